"""The base of all drafts: a method, described to the core once the target is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from specdec import _core
from specdec.errors import InputError, VocabularyMismatchError, type_of
from specdec.models.model import Model
from specdec.models.origin import ReadFiles

MAX_GAMMA = _core.MAX_GAMMA
"""Draft tokens of a round at most."""

Description: TypeAlias = tuple[str, dict[str, object]]
"""A draft as `_core.Session` takes it: a method and its arguments by name, which may be descriptions."""


class Draft(ABC):
    """A way to draft that `specdec.generate` takes as its draft."""

    gamma: int = 4  # draft tokens a round when the caller does not say
    adaptive: bool = False  # it decides by itself how much to draft; gamma="auto" then leaves that to it
    in_target_cache: bool = False  # it works in the target's cache, and so cannot draft for a draft
    _snapshot_of: Draft | None = None

    @abstractmethod
    def describe(self, target: Model) -> Description:
        """Return the method and its arguments, as the core takes them, for a target that it can draft for."""

    @property
    def parts(self) -> Sequence[Draft]:
        """Drafts within this one, which read and remember texts with it."""
        return ()

    def take_update(self, session: _core.Session, description: Description) -> Description:
        """Let a session continue with what the draft has learned meanwhile; return what it drafts with now.

        The same object where nothing has changed; else prompts must be read before the next round.
        """
        return description

    @property
    def reads_source(self) -> bool:
        """Whether a model that drafts has an encoder, which reads the source of an encoder-decoder."""
        return any(part.reads_source for part in self.parts)

    @property
    def readers(self) -> Sequence[Model]:
        """The models that read the texts into caches of their own, which a prompt cache keeps."""
        return [model for part in self.parts for model in part.readers]

    def as_read(self, reader: Model, target: Model, ids: Sequence[int]) -> Sequence[int]:
        """Return a text of the target as one of the readers reads it: in its own ids, where it has others."""
        for part in self.parts:
            if any(model is reader for model in part.readers):
                return part.as_read(reader, target, ids)
        return ids

    def shares(self, target: Model) -> tuple[int, float]:
        """Count draft tokens of drafts with another vocabulary, and sum their `ModelDraft.named_share`."""
        counts = [part.shares(target) for part in self.parts]
        return sum(n for n, _ in counts), sum(total for _, total in counts)

    def rng_key(self) -> tuple[int, ...]:
        """Return a key for a text that begins, never returned before; empty where nothing outlives a text.

        With the seed it makes a text's random numbers, on which learned draft tokens must not depend.
        """
        return tuple(number for part in self.parts for number in part.rng_key())

    def remember(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Take note that a text has ended, with these new tokens."""
        for part in self.parts:
            part.remember(prompt, tokens)

    def snapshot(self) -> Draft:
        """Return a draft of the same knowledge that learns separately; itself where nothing is learned."""
        return self

    @property
    def identity(self) -> object:
        """The key of what is learned about this draft: itself, its original, or the object that it wraps."""
        return self if self._snapshot_of is None else self._snapshot_of.identity


class RandomDraft(Draft):
    """Tokens drawn uniformly from the target's vocabulary: the floor of all drafts.

    A draft token is accepted with probability Σ min(p(x), 1 / n_vocab) (arXiv 2211.17192, section 3.6).
    """

    def describe(self, target: Model) -> Description:
        return "random", {}

    def __repr__(self) -> str:
        return "<specdec.drafts.RandomDraft>"


def loaded_again(
    kind: Any, reference: ReadFiles, given: tuple[Any, ...], options: Mapping[str, Any]
) -> Draft:
    """Make the draft of a pickle that names its files."""
    found: Draft = kind.load(reference.found(), *given, **options)
    return found


def check_model(name: str, target: object) -> Model:
    """Return the argument `name`, a model."""
    if isinstance(target, Model):
        return target
    raise InputError.of(name, target, "the specdec.Model that the draft is for", type_of(target))


def check_source(reads_source: bool, target: Model) -> None:
    """Refuse a draft that reads a source where the target has none."""
    if reads_source and target.config.encoder is None:
        expected = "expected a draft without one"
        raise InputError(f"the draft has an encoder and target {target.path} has none; {expected}")


def check_n_vocab(n_vocab: int, target: Model) -> None:
    """Refuse a draft of another number of tokens than the target's."""
    expected = target.config["n_vocab"]
    if n_vocab != expected:
        raise VocabularyMismatchError(f"draft has {n_vocab} tokens; expected the target's {expected}")
