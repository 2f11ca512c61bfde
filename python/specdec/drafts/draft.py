"""Base class of all drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from specdec import _core
from specdec.errors import InputError, VocabularyMismatchError, type_of
from specdec.models.model import Model
from specdec.models.origin import ReadFiles

MAX_GAMMA = _core.MAX_GAMMA
"""Largest number of draft tokens in a round."""

Description: TypeAlias = tuple[str, dict[str, object]]
"""A draft as `_core.Session` takes it: a method name and keyword arguments, which may be descriptions."""


class Draft(ABC):
    """A draft method for `specdec.generate`."""

    gamma: int = 4  # default number of draft tokens per round
    adaptive: bool = False  # chooses its own draft length, which gamma="auto" then does not override
    in_target_cache: bool = False  # works in the target's cache, so it cannot draft for another draft
    _snapshot_of: Draft | None = None

    @abstractmethod
    def describe(self, target: Model) -> Description:
        """Return the method and its arguments for a target, as the core takes them; refuse other targets."""

    @property
    def parts(self) -> Sequence[Draft]:
        """Nested drafts."""
        return ()

    def take_update(self, session: _core.Session, description: Description) -> Description:
        """Update a session to what the draft has learned since; return the new description.

        Return the same object if nothing changed; otherwise prompts must be read before the next round.
        """
        return description

    @property
    def reads_source(self) -> bool:
        """Whether a draft model has an encoder, which reads the source."""
        return any(part.reads_source for part in self.parts)

    @property
    def readers(self) -> Sequence[Model]:
        """Draft models with their own KV caches, which a prompt cache stores."""
        return [model for part in self.parts for model in part.readers]

    def as_read(self, reader: Model, target: Model, ids: Sequence[int]) -> Sequence[int]:
        """Return a text of the target in the token ids of one of the readers."""
        for part in self.parts:
            if any(model is reader for model in part.readers):
                return part.as_read(reader, target, ids)
        return ids

    def shares(self, target: Model) -> tuple[int, float]:
        """Return the number of draft tokens of models with another vocabulary and their total named share."""
        counts = [part.shares(target) for part in self.parts]
        return sum(n for n, _ in counts), sum(total for _, total in counts)

    def rng_key(self) -> tuple[int, ...]:
        """Return a new RNG stream key for a sequence; empty if the draft keeps nothing between sequences.

        The key and the seed determine a sequence's random numbers, independent of learned draft tokens.
        """
        return tuple(number for part in self.parts for number in part.rng_key())

    def remember(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Record the new tokens of a finished sequence."""
        for part in self.parts:
            part.remember(prompt, tokens)

    def snapshot(self) -> Draft:
        """Return a copy that learns separately; the draft itself if it does not learn."""
        return self

    @property
    def identity(self) -> object:
        """Key of the timings learned about this draft: itself, its original, or the wrapped object."""
        return self if self._snapshot_of is None else self._snapshot_of.identity


class RandomDraft(Draft):
    """A baseline that draws tokens uniformly from the target's vocabulary.

    A draft token is accepted with probability Σ min(p(x), 1 / n_vocab) (arXiv 2211.17192, section 3.6).
    """

    def describe(self, target: Model) -> Description:
        return "random", {}

    def __repr__(self) -> str:
        return "<specdec.drafts.RandomDraft>"


def loaded_again(
    draft_type: Any, reference: ReadFiles, given: tuple[Any, ...], options: Mapping[str, Any]
) -> Draft:
    """Load the draft of a pickle that names its files."""
    found: Draft = draft_type.load(reference.found(), *given, **options)
    return found


def check_model(name: str, target: object) -> Model:
    """Return the argument `name` if it is a model; refuse anything else."""
    if isinstance(target, Model):
        return target
    raise InputError.of(name, target, "the specdec.Model that the draft is for", type_of(target))


def check_source(reads_source: bool, target: Model) -> None:
    """Refuse a draft with an encoder for a target without one."""
    if reads_source and target.config.encoder is None:
        expected = "expected a draft without an encoder"
        raise InputError(f"the draft has an encoder and target {target.path} has none; {expected}")


def check_n_vocab(n_vocab: int, target: Model) -> None:
    """Refuse a draft whose vocabulary size differs from the target's."""
    expected = target.config["n_vocab"]
    if n_vocab != expected:
        raise VocabularyMismatchError(f"draft has {n_vocab} tokens; expected the target's {expected}")
