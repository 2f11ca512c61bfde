"""A draft that learns while it serves."""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_integer, check_number, check_path
from specdec.drafts.draft import Description, Draft, loaded_again
from specdec.drafts.learned.online.online_trainer import (
    OnlineNetworkTrainer,
    OnlineSamples,
    OnlineTableTrainer,
    OnlineTrainer,
)
from specdec.drafts.learned.recurrent.draft import RecurrentDraft
from specdec.drafts.model_draft import ONLINE_FORMAT, DraftLike, ModelDraft, open_draft
from specdec.drafts.ngram import Ngram, OnlineNgram
from specdec.errors import CheckpointError, InputError, LearningError, VocabularyMismatchError, shown
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata, write_safetensors
from specdec.models.model import Model
from specdec.models.origin import ReadFiles


class LearningThread:
    """Calls a method every so often, until it is stopped or returns False, or its object or process ends."""

    def __init__(self, step: Callable[[], bool], interval_s: float, name: str) -> None:
        self._stopping = threading.Event()
        # A daemon, since the interpreter waits for other threads before it calls what ends this one.
        self._thread = threading.Thread(
            target=_run, args=(weakref.WeakMethod(step), interval_s, self._stopping), name=name, daemon=True
        )
        self._end = weakref.finalize(getattr(step, "__self__"), _end, self._stopping, self._thread)  # noqa: B009
        self._thread.start()

    @property
    def goes_on(self) -> bool:
        """Whether it runs and was not asked to stop."""
        return not self._stopping.is_set() and self._thread.is_alive()

    def stop(self) -> None:
        """Let it end, and wait for that; idempotent."""
        _end(self._stopping, self._thread)
        self._end.detach()


def _run(step: weakref.WeakMethod[Callable[[], bool]], interval_s: float, stopping: threading.Event) -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own, it gives way to all others
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    while not stopping.wait(interval_s):
        method = step()
        if method is None or not method():
            return
        del method  # while it waits the object may go


def _end(stopping: threading.Event, thread: threading.Thread) -> None:
    stopping.set()
    if thread is not threading.current_thread():  # which may be the last that knew the object
        thread.join()


METADATA = {"format": ONLINE_FORMAT, "version": "1"}
_COUNTS = {"n_seen": "n_seen", "n_updates": "n_updates", "n_begun": "_n_begun"}  # of a file, and attributes
_ALIVE: weakref.WeakSet[OnlineDraft] = weakref.WeakSet()


class OnlineDraft(Draft):
    """A draft that learns from its own mistakes while it serves (OSD, arXiv 2310.07177).

    Where the target rejects its draft tokens, the last texts before and the target's distributions there are
    kept. A thread of low priority learns from them every so often, and the better draft takes the place of
    the old one between two rounds, also in the middle of a text.

    The output is exact whatever is learned, and greedy and ``verify="coupled"`` output is the same to the
    bit. With the other rules and a temperature above 0 a seed fixes the distribution and not the output,
    since draft tokens depend on when something has been learned; with ``interval=None`` and calls of `learn`
    a new object repeats runs in the same order. Random numbers are as of `SuffixDecoding`.

    One object serves any number of calls and threads, which learn together. What it reads is not kept in a
    `PromptCache`, as its weights change. In a forked process it learns nothing more by itself.

    Parameters
    ----------
    draft : Model, path, hub name, ModelDraft, Recurrent, Heads, Ngram or OnlineNgram
        The first draft: a model from a Hugging Face folder, a recurrent network or heads (learning needs
        ``pip install torch transformers``), or a table, or an `OnlineNgram` that has one.
    trainer : OnlineTrainer, optional
        By default an `OnlineNetworkTrainer` or `OnlineTableTrainer` of the draft; heads need an
        `OnlineHeadsTrainer`.
    interval : float or None, default 10.0
        Seconds between two times of learning. None: there is no thread, and `learn` must be called.
    n_positions : int, default 4096
        Samples that are kept.

    Attributes
    ----------
    n_seen : int
        Samples that the trainer has been given.
    n_updates : int
        Times that it has learned.

    Notes
    -----
    An exception in the trainer ends the learning; every later call that drafts with the object raises a
    `LearningError` with it as its cause. `draft` is then still the last that was learned. Pickles are as of
    `SuffixDecoding`; with a `trainer` that was given there is none.

    Examples
    --------
    >>> with drafts.OnlineDraft(small) as draft:
    ...     for prompt in prompts:
    ...         specdec.generate(target, draft, prompt)
    ...     draft.save("learned.safetensors")
    """

    def __init__(
        self, draft: DraftLike, *, trainer: OnlineTrainer | None = None, interval: float | None = 10.0,
        n_positions: int = 4096,
    ) -> None:  # fmt: skip
        begun = open_draft("draft", draft)
        if trainer is not None and not isinstance(trainer, OnlineTrainer):
            raise InputError.of("trainer", trainer, "a specdec.drafts.OnlineTrainer or None")
        if interval is not None:
            expected = "a finite number above 0, or None"
            interval = check_number("interval", interval, expected, lambda x: 0.0 < x < 1e9)
        self.n_positions = check_integer("n_positions", n_positions, 1, 1 << 20)
        self.interval = interval
        self.trainer = _trainer_of(begun) if trainer is None else trainer
        self.gamma, self.adaptive, self.in_target_cache = begun.gamma, begun.adaptive, begun.in_target_cache
        self.n_seen = self.n_updates = self._n_begun = 0
        self._begun = begun if trainer is None else None  # what the default trainer is made of
        self._file: ReadFiles | None = None  # loaded from or saved to last
        self._draft, self._closed = begun, False
        self._target: Model | None = None
        self._described: Description | None = None  # the draft for that target
        self._error: BaseException | None = None
        self._thread: LearningThread | None = None
        sizes = self.trainer.n_before, self.trainer.n_top, self.trainer.n_hidden
        self._samples = OnlineSamples.none(*sizes)
        self._begin_apart()
        _ALIVE.add(self)

    def __reduce__(self) -> tuple[Callable[..., Draft], tuple[Any, ...]]:
        if self._file is None or self._begun is None:
            why = "lives in this process" if self._file is None else "was given its trainer"
            expected = "one with the usual trainer that was saved to a file or loaded from one"
            raise InputError(f"{self!r} cannot be pickled, as it {why}; expected {expected}, or its `draft`")
        settings = {"interval": self.interval, "n_positions": self.n_positions}
        return loaded_again, (OnlineDraft, self._file.reference(), (self._begun,), settings)

    def _begin_apart(self) -> None:
        """Make locks and the buffer of sessions, which a forked child needs again."""
        self._learning = threading.Lock()  # one learns at a time
        self._changing = threading.Lock()  # of the attributes that are read together
        trainer = self.trainer
        self._ring = _core.Corrections(
            self.n_positions, trainer.n_before, trainer.n_top, trainer.n_hidden,
            everywhere=trainer.everywhere,
        )  # fmt: skip
        self._first_text = self._samples.n_texts  # of those that are stored from now on

    def _after_fork(self) -> None:
        self._begin_apart()
        self._thread, self._closed = None, True

    def describe(self, target: Model) -> Description:
        """Describe the draft with a recorder of samples; the first call begins the learning thread."""
        if self._error is not None:
            failure = f"{type(self._error).__name__}: {self._error}"
            raise LearningError(f"{shown(self._draft)} has failed to learn: {failure}") from self._error
        with self._changing:
            if self._target is None or self._target.core is not target.core:
                if isinstance(self._draft, ModelDraft) and self._draft.translates(target):
                    found = f"draft {self._draft.model.path} has another vocabulary than target {target.path}"
                    expected = "the target's, in whose ids a draft learns"
                    raise VocabularyMismatchError(f"{found}; expected {expected}")
                self._described = self._draft.describe(target)
                self._target = target
            if self._thread is None and self.interval is not None and not self._closed:
                self._thread = LearningThread(self._step, self.interval, "specdec-trainer")
            return "watched", {"draft": self._described, "corrections": self._ring}

    def take_update(self, session: _core.Session, description: Description) -> Description:
        method, held = description
        latest = self._described
        if latest is None or held["draft"] is latest:
            return description
        session.swap(held["corrections"], latest)  # type: ignore[arg-type]
        return method, {**held, "draft": latest}

    @property
    def reads_source(self) -> bool:
        return self._draft.reads_source

    def rng_key(self) -> tuple[int, ...]:
        with self._changing:
            self._n_begun += 1
            return (self._n_begun,)

    def snapshot(self) -> Draft:
        """Return `draft`, which learns nothing more."""
        return self._draft.snapshot()

    @property
    def draft(self) -> Draft:
        """The draft with what has been learned so far, which learns nothing more."""
        return self._draft

    def learn(self) -> bool:
        """Learn now, in this thread, from the samples so far; running texts use it from their next round.

        Return whether anything had come since the last time.
        """
        with self._learning:
            taken = self._ring.take()
            taken["text"] = taken["text"] + np.int32(self._first_text)
            new = OnlineSamples(**taken)
            if len(new) == 0:
                return False
            self.n_seen += len(new)
            self._samples = self._samples.followed_by(new, self.n_positions)
            n_new = min(len(new), len(self._samples))
            self._offer(self.trainer.learn(self._samples, n_new, lambda: self._goes_on))
            self.n_updates += 1
            return True

    def _offer(self, learned: Draft) -> None:
        with self._changing:
            if self._target is not None:
                self._described = learned.describe(self._target)
            self._draft = learned

    @property
    def _goes_on(self) -> bool:
        thread = self._thread
        return thread is None or thread.goes_on

    def _step(self) -> bool:
        """Learn, in the thread; returns whether to continue."""
        try:
            self.trainer.begin_thread()
            self.learn()
        except BaseException as error:
            self._error = error
            return False
        return True

    @property
    def is_learning(self) -> bool:
        """Whether there is a thread that learns; there is none before the first run."""
        return self._thread is not None and self._thread.goes_on

    def close(self) -> None:
        """End the thread that learns and wait for it; idempotent. The object goes on drafting."""
        self._closed = True
        if self._thread is not None:
            self._thread.stop()

    def __enter__(self) -> OnlineDraft:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what has been learned to a file (safetensors): weights, optimizer, samples.

        A file that is there is replaced. Waits until the trainer is between two times of learning.
        """
        file = check_path("path", path)
        with self._learning:
            arrays = {f"samples.{name}": array for name, array in vars(self._samples).items()}
            arrays |= {f"state.{name}": array for name, array in self.trainer.state().items()}
            counts = {name: str(getattr(self, attribute)) for name, attribute in _COUNTS.items()}
            write_safetensors(file, arrays, METADATA | {"trainer": self.trainer.name} | counts)
            self._file = ReadFiles.at(file, [file])

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], draft: DraftLike, *, trainer: OnlineTrainer | None = None,
        interval: float | None = 10.0, n_positions: int = 4096,
    ) -> OnlineDraft:  # fmt: skip
        """Continue from the file that `save` wrote; `draft` is the first one of that object."""
        online = cls(draft, trainer=trainer, interval=interval, n_positions=n_positions)
        online._restore(check_path("path", path, CheckpointError))
        return online

    def _restore(self, file: Path) -> None:
        self._file = ReadFiles.at(file, [file])
        tensors, metadata = read_safetensors_with_metadata(file)
        for name, expected in (METADATA | {"trainer": self.trainer.name}).items():
            if metadata.get(name) != expected:
                raise CheckpointError.of(file, name, metadata.get(name), repr(expected))
        arrays: dict[str, NDArray[Any]] = {
            name: tensor.integers() if tensor.kind.startswith("I") else tensor.array()
            for name, tensor in tensors.items()
        }
        try:
            kept = OnlineSamples(**{name: arrays.pop(f"samples.{name}") for name in vars(self._samples)})
            _check_alike(kept, self._samples)
            self._samples = self._samples.followed_by(kept, self.n_positions)
            self._first_text = self._samples.n_texts
            state = {name.removeprefix("state."): array for name, array in arrays.items()}
            if len(self._samples) or state:
                self._offer(self.trainer.restore(state, self._samples))
            for name, attribute in _COUNTS.items():
                if not (text := metadata[name]).isdecimal() or not 0 <= int(text) < 1 << 62:
                    raise ValueError(f"metadata field '{name}' is {shown(text)}; expected a whole number")
                setattr(self, attribute, int(text))
        except KeyError as error:
            raise CheckpointError(f"{file}: {error} is missing; expected it, as `save` writes it") from error
        except ValueError as error:
            raise CheckpointError(f"{file}: {error}") from error

    def __repr__(self) -> str:
        return f"<specdec.drafts.OnlineDraft {self._draft!r}, {self.n_updates} updates>"


def _trainer_of(draft: Draft) -> OnlineTrainer:
    """Return the default trainer of a draft."""
    if isinstance(draft, Ngram) or (isinstance(draft, OnlineNgram) and draft.table is not None):
        return OnlineTableTrainer(draft)
    if (isinstance(draft, ModelDraft) and draft.draft is None) or isinstance(draft, RecurrentDraft):
        return OnlineNetworkTrainer(draft)
    able = "a model without a draft of its own, a RecurrentDraft, an Ngram, or an OnlineNgram with a table"
    raise InputError.of(
        "draft", draft, f"one that can learn: {able}; Heads with trainer=OnlineHeadsTrainer(...)"
    )


def _check_alike(kept: OnlineSamples, ours: OnlineSamples) -> None:
    """Refuse samples of another shape, or with impossible numbers."""
    n = len(kept) if kept.depth.ndim else 0
    for name, array in vars(kept).items():
        expected = getattr(ours, name)
        if array.dtype != expected.dtype or array.shape != (n, *expected.shape[1:]):
            found, wanted = f"{array.dtype}, {list(array.shape)}", [n, *expected.shape[1:]]
            expectation = f"expected {expected.dtype}, {wanted}"
            raise ValueError(f"tensor 'samples.{name}' is of {found}; {expectation}")
    for name, least in {"before": -1, "top": -1, "depth": 0, "position": 1, "text": 0}.items():
        if (lowest := getattr(kept, name).min(initial=least)) < least:
            raise ValueError(f"tensor 'samples.{name}' has {lowest}; expected {least} or more")
    n_before = kept.before.shape[1]
    in_text = np.arange(n_before) >= n_before - kept.position[:, None].astype(np.int64)
    if not np.array_equal(kept.before >= 0, in_text):
        raise ValueError("tensor 'samples.before' does not end with the tokens of each 'position'")
    for name, low, high in (("log_probs", -math.inf, 0.001), ("rest", 0.0, 1.0)):
        array = getattr(kept, name)
        if not np.all((array >= low) & (array <= high)):
            raise ValueError(f"tensor 'samples.{name}' has numbers outside of {low} to {high}")


def _after_fork() -> None:
    for online in list(_ALIVE):
        online._after_fork()


if hasattr(os, "register_at_fork"):  # in a child there is one thread only, and others may have held locks
    os.register_at_fork(after_in_child=_after_fork)
