"""The recurrent draft in PyTorch: a gated recurrent unit (Cho et al., arXiv 1406.1078) over embeddings."""

from __future__ import annotations

import re

from torch import Tensor, nn

from specdec.drafts.learned.networks import scattered
from specdec.drafts.learned.recurrent.draft import RecurrentShape


class RecurrentNetwork(nn.Module):
    """Maps ids [batch, time] to logits [batch, time, n_vocab], -inf for tokens outside `draft_ids` [n]."""

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
        """Return logits of the token after each of `ids`."""
        return self.step(ids, None)[0]

    def step(self, ids: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits from an initial state, and the new state [n_layers, batch, d_hidden]."""
        hidden, state = self.cells(self.embedding(ids), state)
        return scattered(self.output(hidden), self.draft_ids, self._n_vocab), state

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in a draft's folder, with the layer number first."""
        return {re.sub(r"(\w+)_l(\d+)$", r"\2.\1", name): weight for name, weight in self.named_parameters()}
