"""What every engine can be asked about an encoder-decoder: a source, positions after it, a text."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoder_decoders import CHAINED, chain, n_vocab, write_encoder_decoder
from benchmarks.peers.engine import Job, Unsupported

#: Tokens of the source, and of the text in the cache, when decoding is timed.
SOURCE, TEXT = 128, 64
#: New tokens of a burst of plain decoding.
BURST = 33
#: What is timed: a number of positions of the decoder, or of tokens of a source.
CELLS = {
    "plain": 1, "t(1)": 1, "t(5)": 5,
    "first 32": 32, "first 128": 128, "first 512": 512,
    "encoder 32": 32, "encoder 128": 128, "encoder 512": 512,
}  # fmt: skip


@dataclass(frozen=True)
class SourceJob(Job):
    """An encoder-decoder in a number format, and where its files may be put."""

    @property
    def checkpoint(self) -> Path:
        """The Hugging Face folder every engine starts from; written if need be."""
        return write_encoder_decoder(self.shape, self.work / f"{self.name}-f32", alpha=self.alpha)

    def ids(self, n: int, seed: int = 0) -> list[int]:
        """Random token ids, the same for all engines, none of them special."""
        return np.random.default_rng(seed).integers(4, n_vocab(self.shape) - 1, n).tolist()


class Translator(ABC):
    """One engine with an encoder-decoder, at temperature 0, plain or with a draft. Constructing it loads.

    Parameters
    ----------
    target : SourceJob
    draft : SourceJob or None
    gamma : int
        Drafted tokens a round; 0, and no draft, for plain decoding.

    Attributes
    ----------
    settings : str
        What differs from the engine's defaults, for the report.
    cells : tuple of str
        What it can be asked to time.
    """

    settings: str = ""
    cells: tuple[str, ...] = tuple(CELLS)

    def __init__(self, target: SourceJob, draft: SourceJob | None, gamma: int) -> None:
        self.target, self.draft, self.gamma = target, draft, gamma

    @classmethod
    @abstractmethod
    def prepare(cls, target: SourceJob, draft: SourceJob | None) -> None:
        """Convert the models; in a process that does nothing else. Unsupported: cannot be."""

    @abstractmethod
    def write(self, source: list[int], n: int) -> tuple[list[int], float]:
        """The n most probable tokens, and tokens per second, without what happens before the first is there.

        An engine that tells when a token is there is timed from the first to the last of them, another from
        the end of the source to the end of the call.
        """

    @abstractmethod
    def first(self, source: list[int]) -> None:
        """From a source to the logits of the first token.

        That is the encoder, keys and values of cross-attention in all layers, one position of the decoder.
        """

    def encode(self, source: list[int]) -> None:
        """The encoder alone, to the output of its last layer."""
        raise Unsupported("has no interface to the encoder")

    def forward(self, n: int) -> Callable[[], None]:
        """A function that runs n positions of the decoder after TEXT tokens and a source of SOURCE tokens."""
        raise Unsupported("has no interface to the decoder's cache")

    @abstractmethod
    def log_probabilities(self, source: list[int], text: list[int]) -> NDArray[np.float64]:
        """ln p of each token of a text, after the start token."""

    def burst(self, cell: str, seconds: float) -> list[float]:
        """Samples of a cell for about so many seconds, after as long that does not count.

        In that time the threads of an engine that has been stopped come to their cores.
        """
        source = self.target.ids(max(SOURCE, CELLS[cell]))
        once: Callable[[], object]
        if cell == "plain":
            return self._samples(lambda: 1 / self.write(source[:SOURCE], BURST)[1], seconds)
        if cell.startswith("t("):
            once = self.forward(CELLS[cell])
        else:
            one = self.first if cell.startswith("first") else self.encode

            def once() -> None:
                one(source[: CELLS[cell]])

        def timed() -> float:
            begun = time.perf_counter()
            once()
            return time.perf_counter() - begun

        return self._samples(timed, seconds)

    def _samples(self, sample: Callable[[], float], seconds: float) -> list[float]:
        """The second of two runs of so many seconds each, at least one sample."""
        samples: list[float] = []
        for _ in range(2):
            samples.clear()
            begun = time.perf_counter()
            while not samples or time.perf_counter() - begun < seconds:
                samples.append(sample())
        return samples

    def check(self) -> NDArray[np.float64]:
        """ln p [32] of the tokens of a random text, to compare engines by."""
        return self.log_probabilities(self.target.ids(SOURCE, 1), self.target.ids(32, 2))

    def text(self) -> list[int]:
        """32 tokens, to compare engines by."""
        return self.write(self.target.ids(SOURCE, 1), 32)[0]

    def rate(self, seed: int, n: int) -> float:
        """Tokens per second after a random source; checks the text where it is known."""
        self.write(self.target.ids(SOURCE, seed), n)  # does not count, see `burst`
        tokens, rate = self.write(self.target.ids(SOURCE, seed), n)
        if self.target.shape in CHAINED and tokens != (expected := chain(self.target.shape, n)):
            raise RuntimeError(f"wrong tokens: {tokens[:8]}…, expected {expected[:8]}…")
        return rate
