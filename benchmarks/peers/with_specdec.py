"""specdec itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import specdec
from peers.engine import Engine, Job
from specdec import _core


class Specdec(Engine):
    """The core's decoder, as sessions drive it."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        from shapes import random_model
        self.model = random_model(job.shape, job.format)  # TODO with the merge: load
        self.trim(0)

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Write the checkpoint all others start from."""
        job.checkpoint  # noqa: B018

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """All but the last token, then the last: only its logits are wanted."""
        self.decoder.prefill(ids[:-1])
        logits = self.decoder.forward(ids[-1:], [-1])
        self.decoder.keep([0])
        return logits[0]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """A chain, not committed."""
        return self.decoder.forward(ids, list(range(-1, len(ids) - 1)))

    def trim(self, n: int) -> None:
        """Nothing that `forward` ran is in the cache."""
        if n == 0:
            self.decoder = _core.Decoder(self.model.core, capacity=640, max_nodes=9, n_threads=self.job.n_threads)
