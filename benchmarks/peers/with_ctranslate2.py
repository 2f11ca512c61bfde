"""CTranslate2. Its interface has generation but no KV cache: what it can be asked is timed, and marked."""

from __future__ import annotations

import time
from collections.abc import Callable

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter
from numpy.typing import NDArray

from benchmarks.peers.engine import CACHE, CELLS, Engine, Job, Unsupported, Writer
from benchmarks.shapes import vocabulary

_COMPUTE = {"f32": "float32", "int8": "int8_float32"}


class CTranslate2(Engine):
    """Plain decoding and prefill by `generate_batch`; M positions by `forward_batch`, without the cache."""

    settings = "int8: one scale per row; t(5) and t(9) are of 5 and 9 tokens without a cache before them"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.generator = ctranslate2.Generator(
            str(_folder(job)),
            compute_type=_COMPUTE[job.format],
            inter_threads=1,
            intra_threads=job.n_threads,
        )
        self.tokens = vocabulary(job.config["n_vocab"])
        self.cache: list[int] = []

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Convert, once, as f32: other types are made at load."""
        if job.format not in _COMPUTE:
            has = ", ".join(sorted(ctranslate2.get_supported_compute_types("cpu")))
            raise Unsupported(f"has only {has} on this CPU")
        _folder(job)

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """All logits, unlike what is timed."""
        self.cache = ids
        return self._logits(ids)[-1]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Recompute everything, for the check."""
        return self._logits(self.cache + ids)[-len(ids) :]

    def _logits(self, ids: list[int]) -> NDArray[np.float32]:
        return np.array(self.generator.forward_batch([[self.tokens[i] for i in ids]]))[0]

    def trim(self, n: int) -> None:
        """There is no cache to drop."""

    def timer(self, cell: str) -> Callable[[], list[float]]:
        """Through what its interface has."""
        prompt = [self.tokens[i] for i in self.job.ids(max(CACHE, CELLS[cell]))]

        def generate(tokens: list[str], n: int) -> list[float]:
            """The times at which each of n tokens was there."""
            times: list[float] = []
            self.generator.generate_batch(
                [tokens],
                max_length=n,
                min_length=n,
                include_prompt_in_result=False,
                callback=lambda step: times.append(time.perf_counter()) is not None,
            )
            return times

        def prefill() -> list[float]:
            begun = time.perf_counter()
            return [generate(prompt, 1)[0] - begun]

        def plain() -> list[float]:
            return np.diff(generate(prompt[: CACHE - 8], 17)).tolist()

        def several() -> list[float]:
            begun = time.perf_counter()
            self.generator.forward_batch([prompt[: CELLS[cell]]])
            return [time.perf_counter() - begun]

        return plain if cell == "plain" else prefill if cell.startswith("prefill") else several


def _folder(job: Job):
    def convert(folder) -> None:
        TransformersConverter(str(job.checkpoint), load_as_float16=False).convert(str(folder))

    return job.made(f"{job.name}-ctranslate2", convert)


class CTranslate2Writer(Writer):
    """There is nothing to write with."""

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Say so."""
        raise Unsupported("has no speculative decoding")

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Never called."""
        raise Unsupported("has no speculative decoding")
