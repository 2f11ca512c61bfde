"""Forms of texts for the tests: automata on token ids, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Form:
    """A form in which what may come next depends on all new tokens before, as their hash says.

    Some places allow one token, so that it is forced; the others `n_allowed`. The text is complete behind
    `length` tokens.
    """

    n_vocab: int
    n_allowed: int = 5
    length: int | None = None
    forced: float = 0.4
    """Share of places that allow one token."""
    among: Sequence[int] | None = None
    """Tokens that may be allowed; all, without."""
    seed: int = 0
    n_asked: int = field(default=0, compare=False)
    known: dict[tuple[int, ...], NDArray[np.bool_]] = field(default_factory=dict, compare=False)

    def allowed(self, new: Sequence[int]) -> NDArray[np.bool_] | None:
        """What may follow some new tokens; None: the text is complete."""
        if self.length is not None and len(new) >= self.length:
            return None
        if (known := self.known.get(tuple(new))) is not None:
            return known
        digest = blake2b(
            np.asarray(new, np.int64).tobytes(), digest_size=8, salt=self.seed.to_bytes(8, "little")
        ).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        tokens = np.arange(self.n_vocab) if self.among is None else np.asarray(self.among)
        n = 1 if rng.random() < self.forced else min(self.n_allowed, len(tokens))
        mask = np.zeros(self.n_vocab, bool)
        mask[rng.choice(tokens, n, replace=False)] = True
        return self.known.setdefault(tuple(new), mask)

    def start(self, tokens: Sequence[int]) -> State:
        return State(self, [])


class State:
    """Where a text of a `Form` is; it checks how it is used."""

    def __init__(self, form: Form, new: list[int]) -> None:
        self.form, self.new, self.was_asked = form, new, False

    def fork(self) -> State:
        return State(self.form, self.new.copy())

    def advance(self, token: int) -> None:
        assert not self.was_asked, "a state that has been asked never changes"
        mask = self.form.allowed(self.new)
        assert mask is not None and mask[token], "only tokens that may come are told"
        self.new.append(token)

    def mask(self) -> NDArray[np.bool_] | NDArray[np.uint32] | None:
        assert not self.was_asked, "a mask is asked for once"
        self.was_asked = True
        self.form.n_asked += 1
        mask = self.form.allowed(self.new)
        return mask if mask is None or len(self.new) % 2 else words(mask)


def words(mask: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """The same in words of 32 bits."""
    padded = np.zeros(-len(mask) % 32 + len(mask), bool)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view(np.uint32)


def obeys(form: Form, new: Sequence[int]) -> bool:
    """Has a text this form, as far as it goes?"""
    masks: list[Any] = [form.allowed(new[:i]) for i in range(len(new))]
    return all(mask is not None and mask[token] for mask, token in zip(masks, new, strict=True))
