"""Online training of decoding heads."""

from __future__ import annotations

import math

import numpy as np

from specdec.checks import check_integer
from specdec.divergences import DivergenceName
from specdec.drafts.draft import Draft, check_model
from specdec.drafts.learned.heads.draft import DecodingHeads, HeadsShape
from specdec.drafts.learned.online.online_trainer import (
    GoesOn,
    OnlineGradientTrainer,
    OnlineSamples,
    relearned,
)
from specdec.errors import InputError
from specdec.models.model import Model


class OnlineHeadsTrainer(OnlineGradientTrainer):
    """Trains decoding heads online; each sample trains the head whose token was rejected.

    Parameters
    ----------
    draft : DecodingHeads
        The initial heads.
    target : Model
        Their target, whose token table and output matrix they read.
    batch : int, default 256
        Samples per step.
    loss, learning_rate, passes, n_top, seed
        See `OnlineNetworkTrainer`.
    """

    name = "heads"

    def __init__(
        self, draft: DecodingHeads, target: Model, *, loss: DivergenceName = "tvd",
        learning_rate: float | None = None, passes: float = 4.0, batch: int = 256, n_top: int = 32,
        seed: int = 0,
    ) -> None:  # fmt: skip
        if not isinstance(draft, DecodingHeads):
            raise InputError.of("draft", draft, "a specdec.drafts.DecodingHeads")
        check_model("target", target)
        draft.describe(target)  # refuses another target
        from specdec.drafts.learned.heads.network import HeadsNetwork
        from specdec.drafts.learned.networks import TargetEnds, draft_ids_of, take_weights

        shape, ids = HeadsShape.read(draft.weights), draft_ids_of(draft.weights)
        network = HeadsNetwork(shape, TargetEnds.of(target), ids)
        take_weights(network, draft.weights)
        self._draft, self.n_before, self.n_hidden = draft, max(draft.n_heads, 2), shape.d_model
        check_integer("batch", batch, 1, 1 << 20)
        super().__init__(
            network, shape.n_vocab, loss=loss, learning_rate=learning_rate, passes=passes, batch=batch,
            n_top=n_top, seed=seed,
        )  # fmt: skip

    def _train(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> None:
        import torch

        from specdec.drafts.learned.networks import scattered

        n, half = len(samples), max(1, min(self.batch // 2, n_new))
        for _ in range(math.ceil(self.passes * n_new / self.batch)):
            if not goes_on():
                return
            new = self._rng.integers(n - n_new, n, half)
            rows = np.unique([*new, *self._rng.integers(0, n, half)])
            parts, order = [], []
            for depth in range(self._draft.n_heads):
                at = rows[samples.depth[rows] == depth]
                if len(at) == 0:
                    continue
                hidden = torch.from_numpy(samples.hidden[at])
                # The root and the draft tokens after it, the last tokens of the text.
                seen = torch.from_numpy(samples.before[at, -(depth + 1) :].astype(np.int64))
                logits = self._network(hidden, seen, depth + 1)
                parts.append(scattered(logits, self._network.draft_ids, self._n_vocab))
                order.append(at)
            if parts:
                self._step(samples, np.concatenate(order), torch.cat(parts))

    def _exported(self) -> Draft:
        return relearned(self._draft, self._network)
