"""What every draft of this package is: a method, described to the core once the target is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from specdec import _core
from specdec.errors import InputError, VocabularyMismatchError
from specdec.models.model import Model

__all__ = ["MAX_GAMMA", "Description", "Draft", "check_n_vocab", "check_source", "made_again"]

MAX_GAMMA = _core.MAX_GAMMA
"""Guesses of a round at most."""

Description: TypeAlias = tuple[str, dict[str, object]]
"""What `_core.Session` takes as its draft: a method's name and its arguments by name, which may be
descriptions."""


class Draft(ABC):
    """A way to guess ahead that `specdec.generate` takes as its draft.

    Attributes
    ----------
    gamma : int
        Guesses a round when the caller does not say.
    adaptive : bool
        Whether it decides by itself how much to draft; gamma="auto" then leaves that to it.
    in_target_cache : bool
        Whether it works in the target's cache, and so cannot draft for a draft.
    """

    gamma: int = 4
    adaptive: bool = False
    in_target_cache: bool = False
    _snapshot_of: Draft | None = None

    @abstractmethod
    def describe(self, target: Model) -> Description:
        """The method and its arguments, as the core takes them, for a target.

        Raises
        ------
        VocabularyMismatchError, InputError
            If the draft cannot guess for this target.
        """

    def take_update(self, session: _core.Session, description: Description) -> Description:
        """Between two rounds of a session: let it go on with what the draft has learnt meanwhile.

        Parameters
        ----------
        session : specdec._core.Session
            Where anything has changed, its prompts must be read before the next round.
        description : tuple of str and dict
            What the session drafts with.

        Returns
        -------
        tuple of str and dict
            What it drafts with now: the same object where nothing has changed.
        """
        return description

    @property
    def reads_source(self) -> bool:
        """Whether a model that drafts has an encoder, which reads the source of an encoder-decoder."""
        return False

    @property
    def readers(self) -> Sequence[Model]:
        """The models that read the texts into caches of their own, which a prompt cache keeps."""
        return ()

    def as_read(self, reader: Model, target: Model, ids: Sequence[int]) -> Sequence[int]:
        """A text of the target as one of the readers reads it: in its own ids, where it has others."""
        return ids

    def shares(self, target: Model) -> tuple[int, float]:
        """Guesses so far for which a draft of another vocabulary had a law, and their added shares.

        A share is the mass of the tokens that the target has too, see `ModelDraft.named_share`. (0, 0.0) of
        drafts with the target's vocabulary.
        """
        return 0, 0.0

    def text_key(self) -> tuple[int, ...]:
        """A key for a text that begins, never given before by what this draft remembers of earlier texts.

        Empty where nothing outlives a text. A text's random numbers are made of its seed and this key:
        guesses that were learnt from earlier texts must not know the numbers that will judge them, which they
        would if a seed were used twice.
        """
        return ()

    def remember(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """A text has ended, with these new tokens; where nothing outlives a text nothing happens."""
        return

    def snapshot(self) -> Draft:
        """A draft that knows what this one knows now; what either learns later the other does not learn.

        Itself where nothing outlives a text. Runs that are compared with each other begin with a snapshot
        each, so that none knows the texts of another.
        """
        return self

    @property
    def identity(self) -> object:
        """What stands for this draft in what is learnt of it: itself, or the object that it only wraps.

        A caller's model or object is wrapped anew in each call of `specdec.generate`. For a snapshot it is
        that of the draft that it was made of.
        """
        return self if self._snapshot_of is None else self._snapshot_of.identity


def made_again(kind: Callable[..., Draft], given: tuple[Any, ...], options: Mapping[str, Any]) -> Draft:
    """The draft of a pickle: what its class makes of arguments."""
    return kind(*given, **options)


def check_source(reads_source: bool, target: Model) -> None:
    """Refuse a draft that reads a source where the target has none.

    Raises
    ------
    InputError
    """
    if reads_source and target.config.encoder is None:
        raise InputError(
            f"the draft has an encoder and target {target.path} has none; expected a draft without an encoder"
        )


def check_n_vocab(n_vocab: int, target: Model) -> None:
    """Refuse a draft of another number of tokens than the target's.

    Raises
    ------
    VocabularyMismatchError
    """
    expected = target.config["n_vocab"]
    if n_vocab != expected:
        raise VocabularyMismatchError(f"draft has {n_vocab} tokens; expected the target's {expected}")
