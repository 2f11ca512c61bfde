"""specdec itself."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from benchmarks.peers.engine import CELLS, Batch, Engine, Job, Pair, Unsupported, Writer
from specdec import _core


class Specdec(Engine):
    """The core's decoder."""

    reads_prompts, cache_dtype = "auto", None

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = _load(job, self.reads_prompts, self.cache_dtype)
        self.decoder = _core.Decoder(
            self.model.core, capacity=job.capacity, max_nodes=max(m for m in CELLS.values() if m < 32),
            n_threads=job.n_threads,
        )  # fmt: skip

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Write the checkpoint that all engines start from."""
        job.checkpoint  # noqa: B018

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of the last token only."""
        return self.decoder.prefill(ids, last=True)

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Run and commit a chain."""
        logits = self.decoder.forward(ids, list(range(-1, len(ids) - 1)))
        self.decoder.keep(list(range(len(ids))))
        return logits

    def trim(self, n: int) -> None:
        """Free."""
        self.decoder.cut(min(n, self.decoder.n_committed))


class SpecdecRows(Specdec):
    """specdec with prefill='rows'."""

    reads_prompts = "rows"
    cells = tuple(cell for cell in CELLS if cell.startswith("prefill"))

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Refuse what "auto" reads in rows too."""
        if _core.kernels() != "amx" or job.format == "f32":
            raise Unsupported("prefill='auto' is rows here")
        super().prepare(job)


class SpecdecInt8Cache(Specdec):
    """specdec with cache_dtype='int8'."""

    cache_dtype = "int8"
    cells = ("plain", "t(5)", "t(9)")


class SpecdecPair(Pair):
    """`specdec.generate` with one prompt."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.models = _load(target), _load(draft) if draft else None

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Write the checkpoints."""
        for job in filter(None, (target, draft)):
            Specdec.prepare(job)

    def generate(self, ids: list[int], n: int) -> tuple[list[int], float]:
        """Generate at temperature 0 and time the call without prefill."""
        threads = self.target.n_threads
        options = {"gamma": self.gamma} if self.gamma else {}
        begun = time.perf_counter()
        result = specdec.generate(
            *self.models, ids, max_new_tokens=n, n_threads=threads, ignore_eos=True, **options
        )
        seconds = time.perf_counter() - begun - result.trace.prefill_s
        return list(result.tokens), seconds


class SpecdecBatch(Batch):
    """`specdec.generate` with a list of prompts."""

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        super().__init__(target, draft, gamma, n_at_once)
        self.models = _load(target), _load(draft) if draft else None

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Write the checkpoints."""
        SpecdecPair.prepare(target, draft)

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """Run one call."""
        results = specdec.generate(
            *self.models, prompts, batch_size=self.n_at_once, max_new_tokens=n,
            n_threads=self.target.n_threads, ignore_eos=True, **self.options(),
        )  # fmt: skip
        return [list(result.tokens) for result in results]

    def options(self) -> dict[str, Any]:
        """Return options of `specdec.generate`."""
        return {"gamma": self.gamma} if self.draft else {}


class SpecdecAutoBatch(SpecdecBatch):
    """specdec with gamma='auto'."""

    settings = "gamma='auto'"

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Refuse to run without a draft."""
        if not draft:
            raise Unsupported("without a draft")
        super().prepare(target, draft)

    def options(self) -> dict[str, Any]:
        """Return options, with the default limit of gamma."""
        return {"gamma": "auto"}


class SpecdecPlainBatch(SpecdecBatch):
    """specdec without the draft, in the same repeats."""

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        super().__init__(target, None, 0, n_at_once)

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Refuse to run without a draft."""
        SpecdecAutoBatch.prepare(target, draft)


class SpecdecWriter(Writer):
    """`specdec.generate`."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.models = _load(target), _load(draft) if draft else None

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Write the checkpoints."""
        SpecdecPair.prepare(target, draft)

    def _generate(self, prompts: list[list[int]], n: int, **options: Any) -> list[specdec.Result]:
        options |= {"max_new_tokens": n, "n_threads": self.target.n_threads, "ignore_eos": True}
        if self.draft:
            options["gamma"] = self.gamma
        results = specdec.generate(*self.models, prompts, **options)
        self.n_tokens += sum(result.trace.n_tokens for result in results)
        self.n_accepted += sum(result.trace.n_accepted for result in results)
        return results

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Continue one prompt."""
        options = {} if seed is None else {"temperature": 1.0, "seed": seed}
        return list(self._generate([ids], n, **options)[0].tokens)

    def samples(self, ids: list[int], n: int, seeds: range) -> list[list[int]]:
        """Sample a batch."""
        results = self._generate([ids] * len(seeds), n, temperature=1.0, seed=list(seeds))
        return [list(result.tokens) for result in results]

    def logits(self, ids: list[int], n: int) -> NDArray[np.float32]:
        """Return the target's logits [n, n_vocab] at the most probable tokens."""
        return self._generate([ids], n, logits=True)[0].logits


def _load(job: Job, prefill: str = "auto", cache_dtype: str | None = None) -> specdec.Model:
    path, dtype = (job.checkpoint, job.format) if job.gguf is None else (job.gguf, None)
    how: dict[str, Any] = {"prefill": prefill, "cache_dtype": cache_dtype, "n_threads": job.n_threads}
    return specdec.load(path, dtype, tokenizer=False, **how)
