"""`OnlineDraft`, a draft that learns while it serves."""

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

from specdec import _core, system
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
    """Calls a method periodically until stopped, the method returns False, or its object or process ends."""

    def __init__(self, step: Callable[[], bool], interval_s: float, name: str) -> None:
        self._stopping = threading.Event()
        # A daemon: the interpreter joins other threads before it runs the finalizer that stops this one.
        self._thread = threading.Thread(
            target=_run, args=(weakref.WeakMethod(step), interval_s, self._stopping), name=name, daemon=True
        )
        self._end = weakref.finalize(getattr(step, "__self__"), _end, self._stopping, self._thread)  # noqa: B009
        self._thread.start()

    @property
    def goes_on(self) -> bool:
        """Whether the thread runs and was not asked to stop."""
        return not self._stopping.is_set() and self._thread.is_alive()

    def stop(self) -> None:
        """Stop the thread and wait for it; idempotent."""
        _end(self._stopping, self._thread)
        self._end.detach()


def _run(step: weakref.WeakMethod[Callable[[], bool]], interval_s: float, stopping: threading.Event) -> None:
    if sys.platform == "linux":  # lowest priority; only Linux has priorities per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    while not stopping.wait(interval_s):
        method = step()
        if method is None or not method():
            return
        del method  # drop the reference while waiting


def _end(stopping: threading.Event, thread: threading.Thread) -> None:
    stopping.set()
    if thread is not threading.current_thread():  # the thread itself may hold the last reference
        thread.join()


METADATA = {"format": ONLINE_FORMAT, "version": "2"}
_COUNTS = {"n_seen": "n_seen", "n_updates": "n_updates", "n_begun": "_n_begun"}  # metadata to attributes
_ALIVE: weakref.WeakSet[OnlineDraft] = weakref.WeakSet()


class OnlineDraft(Draft):
    """A draft that learns from rejected tokens while it serves (OSD, arXiv 2310.07177).

    Each rejection records a sample: the last tokens of the text and the target's distribution. A low-priority
    thread periodically trains on the samples, and the new draft replaces the old one between two rounds, also
    within a sequence.

    Output stays exact; greedy and ``verify="coupled"`` output does not change. With other rules and
    temperature above 0, a seed fixes the distribution but not the output, because draft tokens depend on when
    training happened. For reproducible runs set ``interval=None`` and call `learn`. Random numbers behave as
    in `SuffixDecoding`.

    One object serves any number of calls and threads. Its KV caches are not stored in a `PromptCache`, as its
    weights change. A forked process stops learning automatically.

    Parameters
    ----------
    draft : Model, path, hub name, ModelDraft, RecurrentDraft, DecodingHeads, Ngram or OnlineNgram
        The initial draft: a model from a Hugging Face folder, a recurrent network or heads (all need ``pip
        install 'specdec-cpu[train]'``), an n-gram table, or an `OnlineNgram` with a table.
    trainer : OnlineTrainer, optional
        By default an `OnlineNetworkTrainer` or `OnlineTableTrainer` of the draft; heads need an
        `OnlineHeadsTrainer`.
    interval : float or None, default 10.0
        Seconds between updates. None: no thread; call `learn`.
    n_positions : int, default 4096
        Number of samples to keep.

    Attributes
    ----------
    n_seen : int
        Samples passed to the trainer.
    n_updates : int
        Completed updates.

    Notes
    -----
    An exception in the trainer ends training; later calls with this draft raise a `LearningError` with that
    cause, and `draft` remains the last trained one. Pickles work as in `SuffixDecoding`, with the default
    trainer only.

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
        self._begun = begun if trainer is None else None  # the default trainer's draft
        self._file: ReadFiles | None = None  # last loaded or saved
        self._draft, self._closed = begun, False
        self._target: Model | None = None
        self._described: Description | None = None  # of the draft for that target
        self._error: BaseException | None = None
        self._thread: LearningThread | None = None
        sizes = self.trainer.n_before, self.trainer.n_top, self.trainer.n_hidden
        self._samples = OnlineSamples.none(*sizes)
        self._begin_apart()
        _ALIVE.add(self)

    def __reduce__(self) -> tuple[Callable[..., Draft], tuple[Any, ...]]:
        if self._file is None or self._begun is None:
            why = "was not saved" if self._file is None else "has a custom trainer"
            expected = "one with the default trainer that was saved to a file or loaded from one"
            raise InputError(f"{self!r} cannot be pickled, as it {why}; expected {expected}, or its `draft`")
        settings = {"interval": self.interval, "n_positions": self.n_positions}
        return loaded_again, (OnlineDraft, self._file.reference(), (self._begun,), settings)

    def _begin_apart(self) -> None:
        """Make the locks and the ring of samples, again in a forked child."""
        self._learning = threading.Lock()  # for one update at a time
        self._changing = threading.Lock()  # for attributes that change together
        trainer = self.trainer
        self._ring = _core.OnlineSamples(
            self.n_positions, trainer.n_before, trainer.n_top, trainer.n_hidden,
            everywhere=trainer.everywhere,
        )  # fmt: skip
        self._first_text = self._samples.n_texts  # sequence numbers of new samples start here

    def _after_fork(self) -> None:
        self._begin_apart()
        self._thread, self._closed = None, True

    def describe(self, target: Model) -> Description:
        """Describe the draft and its recorder of samples; the first call starts the thread."""
        if self._error is not None:
            failure = f"{type(self._error).__name__}: {self._error}"
            raise LearningError(f"{shown(self._draft)} has failed to learn: {failure}") from self._error
        with self._changing:
            if self._target is None or self._target.core is not target.core:
                if isinstance(self._draft, ModelDraft) and self._draft.translates(target):
                    found = f"draft {self._draft.model.path} has another vocabulary than target {target.path}"
                    expected = "the target's, as online training needs equal token ids"
                    raise VocabularyMismatchError(f"{found}; expected {expected}")
                self._described = self._draft.describe(target)
                self._target = target
            if self._thread is None and self.interval is not None and not self._closed:
                self._thread = LearningThread(self._step, self.interval, "specdec-trainer")
            return "recorded", {"draft": self._described, "samples": self._ring}

    def take_update(self, session: _core.Session, description: Description) -> Description:
        method, held = description
        latest = self._described
        if latest is None or held["draft"] is latest:
            return description
        session.swap(held["samples"], latest)  # type: ignore[arg-type]
        return method, {**held, "draft": latest}

    @property
    def reads_source(self) -> bool:
        return self._draft.reads_source

    def rng_key(self) -> tuple[int, ...]:
        with self._changing:
            self._n_begun += 1
            return (self._n_begun,)

    def snapshot(self) -> Draft:
        """Return `draft`, which does not change anymore."""
        return self._draft.snapshot()

    @property
    def draft(self) -> Draft:
        """The latest trained draft, which does not change anymore."""
        return self._draft

    def learn(self) -> bool:
        """Train now, in this thread; running sequences use the new draft from their next round.

        Return whether there were new samples.
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
        """Run one update in the thread; return whether to continue."""
        try:
            self.trainer.begin_thread()
            self.learn()
        except BaseException as error:
            self._error = error
            return False
        return True

    @property
    def is_learning(self) -> bool:
        """Whether the thread is running; it starts with the first run."""
        return self._thread is not None and self._thread.goes_on

    def close(self) -> None:
        """Stop the thread and wait for it; idempotent. The object continues to draft."""
        self._closed = True
        if self._thread is not None:
            self._thread.stop()

    def __enter__(self) -> OnlineDraft:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, optimizer state and samples to a safetensors file; replace an existing file.

        Waits for a running update.
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
        """Continue from a file that `save` wrote; `draft` is the initial draft of the saved object."""
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
            name: tensor.integers() if tensor.dtype.startswith("I") else tensor.array()
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
            raise CheckpointError(f"{file}: {error} is missing; expected a file that `save` wrote") from error
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
    able = "a model without a nested draft, a RecurrentDraft, an Ngram, an OnlineNgram with a table"
    raise InputError.of("draft", draft, f"{able}, or DecodingHeads with trainer=OnlineHeadsTrainer(...)")


def _check_alike(kept: OnlineSamples, ours: OnlineSamples) -> None:
    """Refuse samples with other shapes or invalid values."""
    n = len(kept) if kept.depth.ndim else 0
    for name, array in vars(kept).items():
        expected = getattr(ours, name)
        if array.dtype != expected.dtype or array.shape != (n, *expected.shape[1:]):
            found, wanted = f"{array.dtype}, {list(array.shape)}", [n, *expected.shape[1:]]
            expectation = f"expected {expected.dtype}, {wanted}"
            raise ValueError(f"tensor 'samples.{name}' has {found}; {expectation}")
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
            raise ValueError(f"tensor 'samples.{name}' has values outside {low} to {high}")


def _after_fork() -> None:
    for online in list(_ALIVE):
        online._after_fork()


system.after_fork(_after_fork)  # a child has one thread only, and others may have held locks
