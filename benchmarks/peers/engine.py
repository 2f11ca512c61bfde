"""Base classes of the engines' adapters."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

import specdec
from benchmarks.shapes import GGUF_TYPES, SHAPES, successors, write_checkpoint
from specdec.models.checkpoints import open_checkpoint

#: Trained models: the embedded pair.
EMBEDDED = {"embedded": "target", "embedded-draft": "draft"}
#: Usual number of tokens in the cache when decoding is timed.
CACHE = 128
#: Positions per timed forward pass, on an empty cache (prefill) or on that many tokens.
#: The last leaves the cache as the first needs it.
CELLS = {
    **{"plain": 1, "t(5)": 5, "t(9)": 9},
    **{"prefill 32": 32, "prefill 2048": 2048, "prefill 512": 512, "prefill 128": 128},
}


class Unsupported(Exception):  # noqa: N818
    """The engine does not support a request; the message has the reason."""


@dataclass(frozen=True)
class Job:
    """A model in a number format or GGUF type, and the folder for its files."""

    shape: str
    format: str
    work: Path
    n_threads: int
    alpha: float = 1.0
    context: int = CACHE
    """Tokens in the cache when decoding is timed."""

    @property
    def capacity(self) -> int:
        """Cache capacity in tokens."""
        return max(2048, self.context) + 64

    @property
    def config(self) -> dict:
        """Canonical configuration."""
        if self.shape in EMBEDDED:
            return open_checkpoint(self.checkpoint, tokenizer=False).config
        return SHAPES[self.shape]

    @property
    def name(self) -> str:
        """Prefix of file names."""
        return self.shape if self.alpha == 1 else f"{self.shape}-alpha{self.alpha:g}"

    @property
    def checkpoint(self) -> Path:
        """Hugging Face folder that every engine starts from; written if needed."""
        if self.shape in EMBEDDED:
            shipped = Path(specdec.__file__).with_name("embedded") / EMBEDDED[self.shape]
            with warnings.catch_warnings(action="ignore"):  # about exactly dequantized codes
                return self.made(f"{self.shape}-bf16", lambda path: specdec.convert(shipped, path, "BF16"))
        return write_checkpoint(self.shape, self.work / f"{self.name}-bf16", "bf16", alpha=self.alpha)

    @property
    def gguf(self) -> Path | None:
        """GGUF file that all engines read, if the format is a GGUF type; written if needed."""
        if self.format not in GGUF_TYPES:
            return None
        name = f"{self.name}-{self.format}.gguf"
        return self.made(name, lambda path: specdec.convert(self.checkpoint, path, self.format, force=True))

    def ids(self, n: int, seed: int = 0) -> list[int]:
        """Return random token ids, equal for all engines, without the end token (the last id)."""
        return np.random.default_rng(seed).integers(0, self.config["n_vocab"] - 1, n).tolist()

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return a file or folder in the work folder, created atomically if missing."""
        path = self.work / name
        if not path.exists():
            partial = path.with_name(f"part.{os.getpid()}.{name}")
            make(partial)
            if path.exists() and partial.is_dir():
                shutil.rmtree(partial)
            else:
                partial.rename(path)
        return path


class Engine(ABC):
    """One engine with one model and one sequence. The constructor loads the model.

    Attributes
    ----------
    settings : str
        Differences from the engine's defaults, for the report.
    cells : tuple of str
        Supported cells.
    """

    settings: str = ""
    cells: tuple[str, ...] = tuple(CELLS)

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cached = 0  # prompt tokens that timing left in the cache
        self.known: set[str] = set()  # cells that have been run

    @classmethod
    @abstractmethod
    def prepare(cls, job: Job) -> None:
        """Convert the model, in a separate process, or raise Unsupported."""

    @abstractmethod
    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Run a prompt on an empty cache and keep it; return the last position's logits [n_vocab]."""

    def fill(self, ids: list[int]) -> None:
        """Fill an empty cache with as many tokens, on which decoding is timed."""
        self.prefill(ids)

    @abstractmethod
    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Append positions to the cache; return their logits [n_ids, n_vocab]."""

    @abstractmethod
    def trim(self, n: int) -> None:
        """Truncate the cache to `n` tokens. Not timed."""

    def timer(self, cell: str) -> Callable[[], list[float]]:
        """Return a function that runs a cell and returns seconds."""
        m = CELLS[cell]
        n_cached = self.job.context
        ids = self.job.ids(max(m, n_cached))
        if cell.startswith("prefill"):

            def once() -> list[float]:
                self.trim(0)
                begun = time.perf_counter()
                self.prefill(ids[:m])
                self.cached = m
                return [time.perf_counter() - begun]

        else:
            states = "mixers" in self.job.config  # which cannot be truncated
            if self.cached != n_cached or states:
                self.trim(0)
                self.fill(ids[:n_cached])
                self.cached = n_cached

            def once() -> list[float]:
                if not states:
                    self.trim(n_cached)
                begun = time.perf_counter()
                self.forward(ids[:m])
                return [time.perf_counter() - begun]

        return once

    def burst(self, cell: str, seconds: float) -> list[float]:
        """Sample a cell for about `seconds`, at least once.

        The first third is a warm-up, in which a stopped engine gets its cores back and refills its caches. A
        run longer than the whole burst counts without a warm-up, except for a cell's first run, which
        compiles kernels and allocates memory.
        """
        once = self.timer(cell)
        if cell not in self.known:
            self.known.add(cell)
            once()
        begun = time.perf_counter()
        samples = once()
        while (taken := time.perf_counter() - begun) < seconds / 3:
            once()
        if taken < seconds:
            samples, begun = [], time.perf_counter()
        while not samples or time.perf_counter() - begun < seconds:
            samples += once()
        return samples

    def check(self) -> NDArray[np.float32]:
        """Return logits [8, n_vocab] of eight positions on a cache of 120, to compare engines."""
        ids = self.job.ids(CACHE)
        self.cached = 0
        self.trim(0)
        self.prefill(ids[: CACHE - 8])
        return np.array(self.forward(ids[CACHE - 8 :]), dtype=np.float32).reshape(8, -1)


class Pair(ABC):
    """One engine decoding at temperature 0, plain or with a draft. The constructor loads the models.

    Parameters
    ----------
    target : Job
    draft : Job or None
    gamma : int
        Drafted tokens a round; 0, and no draft, for plain decoding.
    """

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        self.target, self.draft, self.gamma = target, draft, gamma

    @classmethod
    @abstractmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert the models; in a process that does nothing else. Unsupported: cannot be."""

    @abstractmethod
    def generate(self, ids: list[int], n: int) -> tuple[list[int], float]:
        """Continue a prompt by at least n tokens; return them and the seconds of n, without prefill."""

    def rate(self, seed: int, n: int) -> float:
        """Return tokens per second after a random prompt; require the target's text."""
        ids = self.target.ids(CACHE, seed)
        tokens, seconds = self.generate(ids, n)
        after = successors(self.target.config["n_vocab"])
        expected = [int(after[ids[-1]])]
        while len(expected) < n:
            expected.append(int(after[expected[-1]]))
        if tokens[:n] != expected:
            raise RuntimeError(f"wrong tokens: {tokens[:8]}…, expected {expected[:8]}…")
        return n / seconds


class Batch(ABC):
    """One engine decoding many prompts at temperature 0, plain or with a draft. The constructor loads.

    Parameters
    ----------
    target : Job
    draft : Job or None
    gamma : int
        Drafted tokens a round; 0, and no draft, for plain decoding.
    n_at_once : int
        Prompts to decode at the same time.

    Attributes
    ----------
    settings : str
        What differs from the engine's defaults, for the report.
    """

    settings: str = ""

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        self.target, self.draft, self.gamma, self.n_at_once = target, draft, gamma, n_at_once
        self.has_run = False

    @classmethod
    @abstractmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert the models; in a process that does nothing else. Unsupported: cannot be."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """Continue all prompts, more than `n_at_once` of them, by n tokens each."""

    def throughput(self, seed: int, n_prompts: int, n: int) -> float:
        """Return new tokens per second of a whole call with random prompts of 16 to 48 tokens.

        Requires the target's texts. The first call is preceded by a warm-up.
        """
        rng = np.random.default_rng(seed)
        n_vocab = self.target.config["n_vocab"]
        prompts = [rng.integers(2, n_vocab - 1, size=rng.integers(16, 49)).tolist() for _ in range(n_prompts)]
        if not self.has_run:
            self.has_run = True
            self.generate(prompts, min(n, 8))
        begun = time.perf_counter()
        texts = self.generate(prompts, n)
        seconds = time.perf_counter() - begun
        after = successors(n_vocab)
        for prompt, tokens in zip(prompts, texts, strict=True):
            token = prompt[-1]
            expected = [token := int(after[token]) for _ in range(n)]
            if tokens != expected:
                raise RuntimeError(f"wrong tokens: {tokens[:8]}…, expected {expected[:8]}…")
        return n_prompts * n / seconds


class Writer(ABC):
    """One engine continuing prompts, plain or with a draft. The constructor loads the models.

    Parameters
    ----------
    target : Job
    draft : Job or None
    gamma : int
        Drafted tokens a round.

    Attributes
    ----------
    settings : str
        What differs from the engine's defaults, for the report.
    n_tokens, n_accepted : int
        New tokens so far, and accepted draft tokens among them.
    """

    settings: str = ""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        self.target, self.draft, self.gamma = target, draft, gamma
        self.n_tokens = self.n_accepted = 0

    @classmethod
    @abstractmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert the models; in a process that does nothing else. Unsupported: cannot be."""

    @abstractmethod
    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Return n new tokens after a prompt: greedy, or with a seed sampled at temperature 1.

        No other setting may change the distribution. Returns fewer tokens if the engine cannot ignore the end
        token (the last id).
        """

    def samples(self, ids: list[int], n: int, seeds: range) -> list[list[int]]:
        """Return independent continuations, one per seed."""
        return [self.write(ids, n, seed) for seed in seeds]


@runtime_checkable
class SayingLogits(Protocol):
    """A writer that also returns the logits of its tokens."""

    def logits(self, ids: list[int], n: int) -> NDArray[np.float32]:
        """Return the target's logits [n, n_vocab] at the most probable tokens."""
        ...
