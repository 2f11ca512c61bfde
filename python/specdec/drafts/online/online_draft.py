"""A draft that learns while it serves."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from specdec import _core
from specdec.checks import check_integer, check_number, check_path
from specdec.drafts.draft import Description, Draft
from specdec.drafts.draft_file import ONLINE_FORMAT
from specdec.drafts.learnt.recurrent_draft import Recurrent
from specdec.drafts.model_draft import DraftLike, ModelDraft, open_draft
from specdec.drafts.ngram import Ngram
from specdec.drafts.online.corrections import Corrections
from specdec.drafts.online.learner import Learner
from specdec.drafts.online.learning_thread import LearningThread
from specdec.drafts.online.state_file import read_arrays
from specdec.drafts.online.table_learner import TableLearner
from specdec.drafts.online_ngram import OnlineNgram
from specdec.errors import CheckpointError, InputError, LearningError, VocabularyMismatchError, shown
from specdec.models.checkpoints.safetensors_file import write_safetensors
from specdec.models.model import Model
from specdec.models.origin import FilesReference, ReadFiles

__all__ = ["Online"]

METADATA = {"format": ONLINE_FORMAT, "version": "1"}

_COUNTS = {"n_seen": "n_seen", "n_updates": "n_updates", "n_begun": "_n_begun"}
"""Numbers that a file has as text, and their attributes."""

_ALIVE: weakref.WeakSet[Online] = weakref.WeakSet()


class Online(Draft):
    """A draft that learns from its own mistakes while it serves (OSD, arXiv 2310.07177).

    Where the target refuses its guesses, the text before and what the target says there are kept, in a buffer
    of the last ones. A thread of low priority learns from them every so often, and what it has learnt takes
    the draft's place between two rounds, also in the middle of a text. So the draft follows texts that change
    their kind.

    The output is exact whatever is learnt, and greedy and ``verify="coupled"`` output is the same to the bit.
    With the other rules and a temperature above 0 a seed does not fix the output, since what is guessed
    depends on when something has been learnt; its distribution it does. Random numbers are made of the seed
    and of how many texts the object has begun, so that what was learnt from a text is not judged by the
    numbers that made it. With ``interval=None`` and calls of `learn` between them runs can be repeated in
    the same order, by an object made anew.

    One object serves any number of calls and threads, which learn together. What it reads is not kept in a
    `PromptCache`, as its weights change. In a forked process it drafts with what it has learnt by then and
    learns nothing more by itself.

    Parameters
    ----------
    draft : Model, path, hub name, ModelDraft, Recurrent, Heads, Ngram or OnlineNgram
        What it begins with: a model from a Hugging Face folder or a recurrent network (learning needs
        ``pip install torch transformers``), heads, or a table, or an `OnlineNgram` that has one.
    learner : Learner, optional
        Who learns, with settings of its own: by default a `NetworkLearner` or a `TableLearner` of the draft.
        Heads need a `HeadsLearner`, which knows the target.
    interval : float or None, default 10.0
        Seconds between two times of learning. None: there is no thread, and `learn` must be called.
    n_positions : int, default 4096
        Corrections that are kept.

    Attributes
    ----------
    learner : Learner
    interval : float or None
    n_positions : int
    n_seen : int
        Corrections that the learner has been given.
    n_updates : int
        Times that it has learnt.

    Raises
    ------
    InputError
        If the draft is of a kind that does not learn, or an argument is out of its range.
    CheckpointError, MissingPackageError
        If the draft cannot be loaded, or learning needs a package that is not installed.

    Notes
    -----
    An exception in the learner ends the learning; every later call that drafts with the object raises a
    `LearningError` with it as its cause. `draft` is then still what had been learnt.

    A pickle names the file that the object was loaded from or saved to last. Another process begins with what
    that holds, and learns by itself. Without a file, or with a `learner` that was given, there is none.

    Examples
    --------
    >>> with drafts.Online(small) as draft:
    ...     for prompt in prompts:
    ...         specdec.generate(target, draft, prompt)
    ...     draft.save("learnt.safetensors")
    """

    def __init__(
        self,
        draft: DraftLike,
        *,
        learner: Learner | None = None,
        interval: float | None = 10.0,
        n_positions: int = 4096,
    ) -> None:
        begun = open_draft("draft", draft)
        if learner is not None and not isinstance(learner, Learner):
            raise InputError(f"learner is {shown(learner)}; expected a specdec.drafts.Learner or None")
        if interval is not None:
            expected = "a finite number above 0, or None"
            interval = check_number("interval", interval, expected, lambda x: 0.0 < x < 1e9)
        self.n_positions = check_integer("n_positions", n_positions, 1, 1 << 20)
        self.interval = interval
        self.learner = _learner_of(begun) if learner is None else learner
        self.gamma, self.adaptive, self.in_target_cache = begun.gamma, begun.adaptive, begun.in_target_cache
        self.n_seen = self.n_updates = self._n_begun = 0
        self._begun = begun if learner is None else None  # what the usual learner is made of
        self._file: ReadFiles | None = None  # loaded from or saved to last
        self._draft = begun
        self._target: Model | None = None
        self._described: Description | None = None  # the draft for that target
        self._error: BaseException | None = None
        self._closed = False
        self._thread: LearningThread | None = None
        made_for = self.learner
        self._corrections = Corrections.none(made_for.n_before, made_for.n_top, made_for.n_hidden)
        self._begin_apart()
        _ALIVE.add(self)

    def __reduce__(self) -> tuple[Callable[..., Online], tuple[Any, ...]]:
        if self._file is None or self._begun is None:
            why = "lives in this process" if self._file is None else "was given its learner"
            raise InputError(
                f"{self!r} cannot be pickled, as it {why}; expected one with the usual learner that was "
                "saved to a file or loaded from one, which pickles name, or its `draft`, which learns no more"
            )
        settings = {"interval": self.interval, "n_positions": self.n_positions}
        return _loaded_again, (self._file.reference(), self._begun, settings)

    def _begin_apart(self) -> None:
        """Locks, and where sessions store: what a forked child needs anew."""
        self._learning = threading.Lock()  # one learns at a time
        self._changing = threading.Lock()  # of the attributes that are read together
        learner = self.learner
        self._ring = _core.Corrections(
            self.n_positions,
            learner.n_before,
            learner.n_top,
            learner.n_hidden,
            everywhere=learner.everywhere,
        )
        self._first_text = self._corrections.n_texts  # of those that are stored from now on

    def _after_fork(self) -> None:
        self._begin_apart()
        self._thread, self._closed = None, True

    # ------------------------------------------------------------------------------------------ drafting

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`; the thread that learns begins with the first call.

        Raises
        ------
        LearningError
            If the learner has failed; also whatever the draft raises.
        """
        if self._error is not None:
            failure = f"{type(self._error).__name__}: {self._error}"
            raise LearningError(f"{shown(self._draft)} has failed to learn: {failure}") from self._error
        with self._changing:
            if self._target is None or self._target.core is not target.core:
                if isinstance(self._draft, ModelDraft) and self._draft.translates(target):
                    raise VocabularyMismatchError(
                        f"draft {self._draft.model.path} has another vocabulary than target {target.path}; "
                        f"expected the target's, in whose ids a draft learns"
                    )
                self._described = self._draft.describe(target)
                self._target = target
            if self._thread is None and self.interval is not None and not self._closed:
                self._thread = LearningThread(self._step, self.interval, "specdec-learner")
            return "watched", {"draft": self._described, "corrections": self._ring}

    def take_update(self, session: _core.Session, description: Description) -> Description:
        """See `Draft.take_update`."""
        method, held = description
        latest = self._described
        if latest is None or held["draft"] is latest:
            return description
        session.swap(held["corrections"], latest)  # type: ignore[arg-type]
        return method, {**held, "draft": latest}

    @property
    def reads_source(self) -> bool:
        """See `Draft.reads_source`."""
        return self._draft.reads_source

    def text_key(self) -> tuple[int, ...]:
        """See `Draft.text_key`."""
        with self._changing:
            self._n_begun += 1
            return (self._n_begun,)

    def snapshot(self) -> Draft:
        """The `draft` with what has been learnt so far. It learns nothing more."""
        return self._draft.snapshot()

    @property
    def draft(self) -> Draft:
        """The draft with what has been learnt so far, which learns nothing more."""
        return self._draft

    # ------------------------------------------------------------------------------------------ learning

    def learn(self) -> bool:
        """Learn now, in this thread, from what has been seen; runs that go on take it with their next round.

        Returns
        -------
        bool
            Whether anything had come since the last time.
        """
        with self._learning:
            new = Corrections(**self._ring.take()).numbered_from(self._first_text)
            if len(new) == 0:
                return False
            self.n_seen += len(new)
            self._corrections = self._corrections.followed_by(new, self.n_positions)
            learnt = self.learner.learn(
                self._corrections, min(len(new), len(self._corrections)), lambda: self._goes_on
            )
            self._offer(learnt)
            self.n_updates += 1
            return True

    def _offer(self, learnt: Draft) -> None:
        with self._changing:
            if self._target is not None:
                self._described = learnt.describe(self._target)
            self._draft = learnt

    @property
    def _goes_on(self) -> bool:
        thread = self._thread
        return thread is None or thread.goes_on

    def _step(self) -> bool:
        """What the thread does every so often. Returns whether to go on."""
        try:
            self.learner.begin_thread()
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

    def __enter__(self) -> Online:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what has been learnt to a file (safetensors): weights, optimiser, corrections.

        A file that is there is replaced. Waits until the learner is between two times of learning.

        Raises
        ------
        InputError
            `path` is none, or cannot be that of a file.
        OSError
            The file cannot be written.
        """
        file = check_path("path", path)
        with self._learning:
            arrays = {f"corrections.{name}": array for name, array in self._corrections.arrays.items()}
            arrays |= {f"state.{name}": array for name, array in self.learner.state().items()}
            counts = {name: str(getattr(self, attribute)) for name, attribute in _COUNTS.items()}
            write_safetensors(file, arrays, METADATA | {"learner": self.learner.name} | counts)
            self._file = ReadFiles(file, [file])

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        draft: DraftLike,
        *,
        learner: Learner | None = None,
        interval: float | None = 10.0,
        n_positions: int = 4096,
    ) -> Online:
        """Go on where an object that was saved has been.

        Parameters
        ----------
        path : path
            The file that `save` wrote.
        draft : as of the class
            What that object began with.
        learner, interval, n_positions
            As of the class.

        Raises
        ------
        CheckpointError
            The file is damaged, or another draft's.
        InputError
            As of the class.
        """
        online = cls(draft, learner=learner, interval=interval, n_positions=n_positions)
        online._restore(check_path("path", path, CheckpointError))
        return online

    def _restore(self, file: Path) -> None:
        self._file = ReadFiles(file, [file])
        arrays, metadata = read_arrays(file)
        for name, expected in (METADATA | {"learner": self.learner.name}).items():
            if metadata.get(name) != expected:
                raise CheckpointError(
                    f"{file}: metadata field '{name}' is {metadata.get(name)!r}; expected {expected!r}"
                )
        try:
            names = list(self._corrections.arrays)
            kept = Corrections(**{name: arrays.pop(f"corrections.{name}") for name in names})
            _check_alike(kept, self._corrections)
            self._corrections = self._corrections.followed_by(kept, self.n_positions)
            self._first_text = self._corrections.n_texts
            state = {name.removeprefix("state."): array for name, array in arrays.items()}
            if len(self._corrections) or state:
                self._offer(self.learner.restore(state, self._corrections))
            for name, attribute in _COUNTS.items():
                setattr(self, attribute, _count(name, metadata[name]))
        except KeyError as error:
            raise CheckpointError(f"{file}: {error} is missing; expected it, as `save` writes it") from error
        except ValueError as error:
            raise CheckpointError(f"{file}: {error}") from error

    def __repr__(self) -> str:
        return f"<specdec.drafts.Online {self._draft!r}, {self.n_updates} updates>"


def _loaded_again(reference: FilesReference, begun: Draft, settings: Mapping[str, Any]) -> Online:
    return Online.load(reference.found(), begun, **settings)


def _learner_of(draft: Draft) -> Learner:
    """The learner of a draft, by its kind.

    Raises
    ------
    InputError
    """
    if isinstance(draft, Ngram) or (isinstance(draft, OnlineNgram) and draft.table is not None):
        return TableLearner(draft)
    if (isinstance(draft, ModelDraft) and draft.draft is None) or isinstance(draft, Recurrent):
        from specdec.drafts.online.network_learner import NetworkLearner

        return NetworkLearner(draft)
    raise InputError(
        f"draft is {shown(draft)}; expected one that can learn: a model without a draft of its own, a "
        "Recurrent, a table of n-grams, or an OnlineNgram with a table; Heads with learner=HeadsLearner(...)"
    )


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 1 << 62:
        raise ValueError(f"metadata field '{name}' is {shown(text)}; expected a whole number")
    return int(text)


def _check_alike(kept: Corrections, ours: Corrections) -> None:
    """Refuse corrections of another shape, or of which a number cannot be."""
    n = len(kept) if kept.depth.ndim else 0
    for name, array in kept.arrays.items():
        expected = ours.arrays[name]
        if array.dtype != expected.dtype or array.shape != (n, *expected.shape[1:]):
            found, wanted = (
                f"{array.dtype}, {list(array.shape)}",
                [n, *expected.shape[1:]],
            )
            raise ValueError(
                f"tensor 'corrections.{name}' is of {found}; expected {expected.dtype}, {wanted}"
            )
    for name, least in {"before": -1, "top": -1, "depth": 0, "position": 1, "text": 0}.items():
        if kept.arrays[name].min(initial=least) < least:
            found = kept.arrays[name].min()
            raise ValueError(f"tensor 'corrections.{name}' has {found}; expected {least} or more")
    n_before = kept.before.shape[1]
    in_text = np.arange(n_before) >= n_before - kept.position[:, None].astype(np.int64)
    if not np.array_equal(kept.before >= 0, in_text):
        raise ValueError("tensor 'corrections.before' does not end with the tokens of each 'position'")
    for name, low, high in (("log_probs", -math.inf, 0.001), ("rest", 0.0, 1.0)):
        array = kept.arrays[name]
        if not np.all((array >= low) & (array <= high)):
            raise ValueError(f"tensor 'corrections.{name}' has numbers outside of {low} to {high}")


def _forget_threads() -> None:
    """In a forked child: no thread but one is there, and locks may be held by others."""
    for online in list(_ALIVE):
        online._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
