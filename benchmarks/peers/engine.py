"""What every engine can be asked: to hold a model and one sequence, and to run positions on its KV cache."""

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

#: Models that are no shapes: those of the embedded pair, whose texts make sense.
EMBEDDED = {"embedded": "target", "embedded-draft": "draft"}
#: Tokens in the cache when decoding is timed.
CACHE = 128
#: What is timed: how many positions at once, on an empty cache (prefill) or on CACHE tokens.
#: The last leaves the cache as the first wants it.
CELLS = {
    **{"plain": 1, "t(5)": 5, "t(9)": 9},
    **{"prefill 32": 32, "prefill 2048": 2048, "prefill 512": 512, "prefill 128": 128},
}
#: Tokens that a cache has room for.
ROOM = 2048 + 64


class Unsupported(Exception):  # noqa: N818
    """What was asked is not to be had from this engine; says why."""


@dataclass(frozen=True)
class Job:
    """A model in a number format, or in a type of GGUF files, and where its files may be put."""

    shape: str
    format: str
    work: Path
    n_threads: int
    alpha: float = 1.0

    @property
    def config(self) -> dict:
        """The canonical configuration."""
        if self.shape in EMBEDDED:
            return open_checkpoint(self.checkpoint, tokenizer=False).config
        return SHAPES[self.shape]

    @property
    def name(self) -> str:
        """What its files are called after."""
        return self.shape if self.alpha == 1 else f"{self.shape}-alpha{self.alpha:g}"

    @property
    def checkpoint(self) -> Path:
        """The Hugging Face folder every engine starts from; written if need be."""
        if self.shape in EMBEDDED:
            shipped = Path(specdec.__file__).with_name("embedded") / EMBEDDED[self.shape]
            with warnings.catch_warnings(action="ignore"):  # that codes become numbers, exactly
                return self.made(f"{self.shape}-bf16", lambda path: specdec.convert(shipped, path, "BF16"))
        return write_checkpoint(self.shape, self.work / f"{self.name}-bf16", "bf16", alpha=self.alpha)

    @property
    def gguf(self) -> Path | None:
        """The file all engines read, where the format is a type of GGUF files; written if need be."""
        if self.format not in GGUF_TYPES:
            return None
        name = f"{self.name}-{self.format}.gguf"
        return self.made(name, lambda path: specdec.convert(self.checkpoint, path, self.format, force=True))

    def ids(self, n: int, seed: int = 0) -> list[int]:
        """Random token ids, the same for all engines. Never the end token, which is the last id."""
        return np.random.default_rng(seed).integers(0, self.config["n_vocab"] - 1, n).tolist()

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file or folder in the work folder; made once, and whole or not at all."""
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
    """One engine holding one model and one sequence. Constructing it loads the model.

    Attributes
    ----------
    settings : str
        What differs from the engine's defaults, for the report.
    cells : tuple of str
        What it is asked for.
    """

    settings: str = ""
    cells: tuple[str, ...] = tuple(CELLS)

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cached = 0  # tokens of the prompt that timing left in the cache
        self.known: set[str] = set()  # cells that have been run

    @classmethod
    @abstractmethod
    def prepare(cls, job: Job) -> None:
        """Convert the model; in a process that does nothing else. Unsupported: cannot be."""

    @abstractmethod
    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Run a prompt on an empty cache, where it stays; return the last position's logits [n_vocab]."""

    @abstractmethod
    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Append positions to the cache at once; return the logits of all [n_ids, n_vocab]."""

    @abstractmethod
    def trim(self, n: int) -> None:
        """Drop all but the first `n` tokens from the cache. Not timed."""

    def timer(self, cell: str) -> Callable[[], list[float]]:
        """A function that runs a cell once (or a few times) and returns seconds."""
        m = CELLS[cell]
        ids = self.job.ids(max(m, CACHE))
        if cell.startswith("prefill"):

            def once() -> list[float]:
                self.trim(0)
                begun = time.perf_counter()
                self.prefill(ids[:m])
                self.cached = m
                return [time.perf_counter() - begun]

        else:
            if self.cached != CACHE:
                self.trim(0)
                self.prefill(ids[:CACHE])
                self.cached = CACHE

            def once() -> list[float]:
                self.trim(CACHE)
                begun = time.perf_counter()
                self.forward(ids[:m])
                return [time.perf_counter() - begun]

        return once

    def burst(self, cell: str, seconds: float) -> list[float]:
        """Samples of a cell for about so many seconds, at least one.

        What runs in a third of that time before does not count: an engine that has been stopped comes to its
        cores, and has its weights in the caches again. A run that takes longer than the whole burst counts
        all the same, as what comes before it changes little of it; but for a cell's first run, in which
        kernels are made and memory is taken.
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
        """Logits [8, n_vocab] of eight positions on a cache of 120, to compare engines by."""
        ids = self.job.ids(CACHE)
        self.cached = 0
        self.trim(0)
        self.prefill(ids[: CACHE - 8])
        return np.array(self.forward(ids[CACHE - 8 :]), dtype=np.float32).reshape(8, -1)


class Pair(ABC):
    """One engine decoding at temperature 0, plainly or with a draft. Constructing it loads the models.

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
        """Continue a prompt: at least n tokens, and the seconds that n of them took.

        Running the prompt is not counted: prompts are not what is compared.
        """

    def rate(self, seed: int, n: int) -> float:
        """Tokens per second after a random prompt; checks that the text is the target's."""
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
    """One engine decoding many prompts at temperature 0, plainly or with a draft. Constructing it loads.

    Parameters
    ----------
    target : Job
    draft : Job or None
    gamma : int
        Drafted tokens a round; 0, and no draft, for plain decoding.
    n_at_once : int
        Prompts decoded at the same time. Unsupported: cannot be.

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
        """New tokens per second, from the call to its return: prompts are read, places change hands.

        Prompts are random and have 16 to 48 tokens. Checks that every text is the target's. Before the first
        such call comes one that does not count.
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
    """One engine continuing prompts, plainly or with a draft. Constructing it loads the models.

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
        New tokens so far, and how many of them were accepted drafts.
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
        """n new tokens after a prompt: the likeliest ones, or with a seed drawn at temperature 1.

        Nothing else may change the distribution. Fewer tokens if it stopped after the end token, the last id;
        one that can be told to go on is.
        """

    def samples(self, ids: list[int], n: int, seeds: range) -> list[list[int]]:
        """Independent continuations, one for each seed."""
        return [self.write(ids, n, seed) for seed in seeds]


@runtime_checkable
class SayingLogits(Protocol):
    """A writer that also gives the logits its tokens were chosen from."""

    def logits(self, ids: list[int], n: int) -> NDArray[np.float32]:
        """[n, n_vocab] of the target, at the likeliest tokens."""
        ...
