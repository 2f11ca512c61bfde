"""The recurrent draft in PyTorch: a gated recurrent unit (Cho et al., arXiv 1406.1078) over embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from specdec.drafts.learned.objective import scattered
from specdec.fields import Fields

_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class RecurrentShape:
    """Dimensions of a recurrent draft.

    Attributes
    ----------
    d_embed, d_hidden : int
        Width of an embedding, and of the state of a layer.
    n_layers : int
        Stacked recurrent layers.
    """

    d_embed: int = 64
    d_hidden: int = 128
    n_layers: int = 1

    @classmethod
    def read(cls, fields: Fields) -> RecurrentShape:
        """Read it from the fields of a draft's ``config.json``."""
        return cls(*(fields.integer(name) for name in ("d_embed", "d_hidden", "n_layers")))

    def fields(self) -> dict[str, int]:
        """Return the method's own fields of the draft's ``config.json``."""
        return asdict(self)


class RecurrentNetwork(nn.Module):
    """Token ids [batch, time] to logits [batch, time, n_vocab]; the state before the first token is 0.

    `draft_ids` [n_draft_vocab], int64, are the tokens that it drafts; the logits of others are -inf.
    """

    draft_ids: Tensor | None

    def __init__(self, n_vocab: int, shape: RecurrentShape, draft_ids: Tensor | None = None):
        super().__init__()
        self.shape, self._n_vocab = shape, n_vocab
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.embedding = nn.Embedding(n_vocab, shape.d_embed)
        self.cells = nn.GRU(shape.d_embed, shape.d_hidden, shape.n_layers, batch_first=True)
        self.output = nn.Linear(shape.d_hidden, n_vocab if draft_ids is None else len(draft_ids))
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.zeros_(self.output.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the token after each of `ids`."""
        return self.step(ids, None)[0]

    def step(self, ids: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the same after texts of a given state, and the new state [n_layers, batch, d_hidden]."""
        hidden, state = self.cells(self.embedding(ids), state)
        return scattered(self.output(hidden), self.draft_ids, self._n_vocab), state

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in a draft's folder; gates are in torch's order."""
        found = {"embedding.weight": self.embedding.weight}
        for layer in range(self.shape.n_layers):
            for part in _PARTS:
                found[f"cells.{layer}.{part}"] = getattr(self.cells, f"{part}_l{layer}")
        return found | {"output.weight": self.output.weight, "output.bias": self.output.bias}

    def load_tensors(self, stored: Mapping[str, Tensor]) -> None:
        """Take weights that `tensors` gave, of the same shapes."""
        with torch.no_grad():
            for name, parameter in self.tensors().items():
                parameter.copy_(stored[name])
