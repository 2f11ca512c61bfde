"""Networks that read texts and learn online: models, and recurrent networks."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_integer
from specdec.divergences import DivergenceName
from specdec.drafts.draft import Draft
from specdec.drafts.learned.online.learner import (
    Corrections,
    GoesOn,
    GradientLearner,
    Passage,
    passages,
    relearned,
)
from specdec.drafts.learned.recurrent.draft import Recurrent
from specdec.drafts.model_draft import ModelDraft
from specdec.errors import InputError
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.models.number_formats import one_dtype

if TYPE_CHECKING:
    from torch import Tensor

_MOST_LOGITS = 1 << 24  # of a step, where that leaves one passage
_LONGEST = 1 << 16  # tokens of a passage where the network has no limit


class NetworkLearner(GradientLearner):
    """A model or a recurrent network learns by gradient steps on its corrections: AdamW.

    It learns the target's distribution at temperature 1: its `n_top` most probable tokens one by one, and
    all others together. Half of a step are passages with the newest corrections, half any that are kept, so
    that what was learned before is not forgotten at once. Learning takes a copy of the weights in f32 with
    two moments each; at each update they are packed again, those of a model by way of a temporary folder.

    Parameters
    ----------
    draft : ModelDraft or Recurrent
        A model from a Hugging Face folder, without an encoder or a draft of its own; or a recurrent network,
        which does not learn to draft tokens that it never drafts.
    loss : {"tvd", "fkl", "rkl", "jsd"}
        Total variation, which is the chance of a rejection; forward or reverse Kullback-Leibler divergence,
        which suit drafts that are far from the target; Jensen-Shannon divergence.
    learning_rate : float, optional
        By default 2e-4 (2e-3 for recurrent networks), times sqrt(1e7 / parameters) where that is below 1.
    passes : float, default 4.0
        How often a new correction is learned from, on average.
    batch : int, default 1024
        Tokens of a step.
    n_before : int, default 64
        Tokens of the text that are kept before a correction, at least 2.
    n_top : int, default 32
        Tokens of the target's distribution that are kept.
    seed : int, default 0
        Of the order in which corrections are learned from.
    """

    name = "network"

    def __init__(
        self, draft: ModelDraft | Recurrent, *, loss: DivergenceName = "tvd",
        learning_rate: float | None = None, passes: float = 4.0, batch: int = 1024, n_before: int = 64,
        n_top: int = 32, seed: int = 0,
    ) -> None:  # fmt: skip
        self.n_before = check_integer("n_before", n_before, 2, 1 << 15)
        self._draft = draft
        n_vocab, self._longest = 0, _LONGEST
        if isinstance(draft, ModelDraft) and draft.draft is None:
            if draft.model.config.encoder is not None:
                raise InputError(f"draft {draft.model.path} has an encoder; expected a model without one")
            n_vocab, self._longest = draft.model.config.n_vocab, draft.model.config.n_ctx
        elif isinstance(draft, Recurrent):
            n_vocab, self.usual_rate = draft.weights.target.n_vocab, 2e-3
        else:
            raise InputError.of("draft", draft, "a ModelDraft without a draft of its own, or a Recurrent")
        super().__init__(
            _open(draft), n_vocab, loss=loss, learning_rate=learning_rate, passes=passes, batch=batch,
            n_top=n_top, seed=seed,
        )  # fmt: skip

    def _train(self, corrections: Corrections, n_new: int, goes_on: GoesOn) -> None:
        found = passages(corrections, min(2 * self.n_before, self._longest))
        of_row = np.empty(len(corrections), np.int64)
        for i, passage in enumerate(found):
            of_row[passage.rows] = i
        new = np.unique(of_row[len(corrections) - n_new :]) if n_new else np.zeros(0, np.int64)
        n_tokens = sum(len(found[i].ids) for i in new)
        for _ in range(math.ceil(self.passes * n_tokens / self._batch_size)):
            if not goes_on():
                return
            chosen = self._drawn(found, new)
            rows = np.concatenate([passage.rows for passage in chosen])
            self._step(corrections, rows, self._logits(chosen))

    @property
    def _batch_size(self) -> int:
        """Return the tokens of a step; few where each has many logits."""
        return max(1, min(self.batch, _MOST_LOGITS // self._n_vocab))

    def _drawn(self, found: Sequence[Passage], new: NDArray[np.int64]) -> list[Passage]:
        """Draw the passages of a step: in turn a new one and any, as many as fit, at least one."""
        chosen: dict[int, None] = {}
        longest = n_chosen = 0
        for turn in range(2 * len(found)):
            i = int(self._rng.choice(new)) if turn % 2 == 0 else int(self._rng.integers(len(found)))
            longest = max(longest, len(found[i].ids))
            if n_chosen and longest * (n_chosen + 1) > self._batch_size:
                break
            chosen[i] = None
            n_chosen = len(chosen)
        return [found[i] for i in chosen]

    def _logits(self, chosen: Sequence[Passage]) -> Tensor:
        """Return the network's logits [n, n_vocab] at the corrections of passages."""
        import torch

        ids = np.zeros((len(chosen), max(len(passage.ids) for passage in chosen)), np.int64)
        for row, passage in zip(ids, chosen, strict=True):
            row[: len(passage.ids)] = np.minimum(passage.ids, self._n_vocab - 1)  # as the core reads others
        lines = np.repeat(np.arange(len(chosen)), [len(passage.ends) for passage in chosen])
        ends = np.concatenate([passage.ends for passage in chosen])
        if isinstance(self._draft, Recurrent):
            logits: Tensor = self._network(torch.from_numpy(ids))
        else:
            logits = self._network(input_ids=torch.from_numpy(ids), use_cache=False).logits
        return logits[torch.from_numpy(lines), torch.from_numpy(ends), : self._n_vocab]

    def _exported(self) -> Draft:
        first = self._draft
        if isinstance(first, Recurrent):
            return relearned(first, self._network)
        return ModelDraft(_packed(self._network, first.model), tree=first.tree, gamma=first.gamma)


def _open(draft: ModelDraft | Recurrent) -> Any:
    from specdec.drafts.learned import networks

    if isinstance(draft, ModelDraft):
        return networks.open_decoder(draft.model.path)
    from specdec.drafts.learned.recurrent.draft import RecurrentShape
    from specdec.drafts.learned.recurrent.network import RecurrentNetwork

    weights = draft.weights
    shape = RecurrentShape.read(weights.fields)
    network = RecurrentNetwork(weights.target.n_vocab, shape, networks.draft_ids_of(weights))
    networks.take_weights(network, weights)
    return network


def _packed(network: Any, first: Model) -> Model:
    """Load a network of transformers as a model like the first one, under a path that only names it."""
    from specdec.drafts.learned.networks import silent

    with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
        with silent():
            network.save_pretrained(folder)
        read = load(
            Path(folder), one_dtype(first.core.dtype), cache_dtype=first.core.cache_dtype,
            prefill=first.core.prefill, tokenizer=False, n_ctx=first.config.n_ctx, n_threads=1,
            progress=False,
        )  # fmt: skip
    path = first.path.with_name(f"{first.path.name} (learned online)")
    return Model(read.core, read.config, first.tokenizer, path, read.architecture)
