"""`AfterReasoning`: bounds the reasoning of a reply, and constrains its answer only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec.decoding.constraint import Constraint, ConstraintState
from specdec.models.reasoning_format import ReasoningPosition


class AfterReasoning:
    """A `specdec.Constraint` on a reply with reasoning.

    The reasoning is free for `limit` tokens (None: without limit), then it is closed. The answer obeys
    `answer`, for which the text begins after the reasoning; None: it is free. `positions` are the positions
    after each prompt; `end_ids`, which end a text, may not come before a constrained answer.
    """

    def __init__(
        self, positions: Mapping[tuple[int, ...], ReasoningPosition], answer: Constraint | None,
        limit: int | None, n_vocab: int, end_ids: Sequence[int],
    ) -> None:  # fmt: skip
        self._positions, self.answer, self.limit, self.n_vocab = positions, answer, limit, n_vocab
        self.n_bytes = (n_vocab + 31) // 32 * 4
        self.all_tokens = (1 << n_vocab) - 1
        self.ends = sum(1 << token for token in set(end_ids))
        if answer is not None and hasattr(answer, "raises"):
            self.raises = answer.raises

    def start(self, tokens: Sequence[int]) -> AfterReasoningState:
        """Return the state at the start of a reply, after the prompt."""
        position = self._positions[tuple(tokens)]
        first = None if self.answer is None else self.answer.start(tokens)
        return AfterReasoningState(self, first, position, self.closing(position))

    def closing(self, position: ReasoningPosition) -> tuple[frozenset[int], ...]:
        """Return the tokens that must come next because the reasoning is too long; () if it is not."""
        if self.limit is None or position.phase != "inside" or position.n_tokens < self.limit:
            return ()
        return position.closing(self.answer is not None)

    def words(self, bits: int) -> bytes:
        """Return a bit set of tokens as a mask."""
        return bits.to_bytes(self.n_bytes, "little")


class AfterReasoningState:
    """State of an `AfterReasoning` after some tokens; `first` is the constraint's state before an answer."""

    __slots__ = ("_answer", "_answer_bits", "_closing", "_first", "_of", "_position")

    def __init__(
        self, of: AfterReasoning, first: ConstraintState | None, position: ReasoningPosition,
        closing: tuple[frozenset[int], ...],
    ) -> None:  # fmt: skip
        self._of, self._first, self._position, self._closing = of, first, position, closing
        self._answer: ConstraintState | None = None  # in the answer, or in what may become one
        if first is not None and position.phase in ("undecided", "ended"):
            self._answer = first.fork()
        self._answer_bits: int | None = None  # its mask, once computed

    def fork(self) -> AfterReasoningState:
        """An independent copy."""
        copy = object.__new__(AfterReasoningState)
        copy._of, copy._first, copy._position, copy._closing = (
            self._of, self._first, self._position, self._closing
        )  # fmt: skip
        copy._answer = None if self._answer is None else self._answer.fork()
        copy._answer_bits = self._answer_bits
        return copy

    def advance(self, token: int) -> None:
        """Continue the text with a token."""
        before, self._position = self._position.phase, self._position.after(token)
        answer, phase = self._answer, self._position.phase
        if answer is not None:
            if before != "undecided" or self._bits_of(answer) >> token & 1:
                answer.advance(token)
            else:  # a part of the begin tag
                self._answer = None
        if phase == "inside":
            self._answer = None
        elif phase == "ended" and before in ("outside", "inside") and self._first is not None:
            self._answer = self._first.fork()
        self._closing = self._closing[1:] or self._of.closing(self._position)
        self._answer_bits = None

    def mask(self) -> Any:
        """Return the tokens allowed next; None: the text is complete."""
        of, position = self._of, self._position
        if position.phase == "ended" and self._answer is not None:
            return self._answer.mask()
        if self._closing:
            return of.words(sum(1 << token for token in self._closing[0]))
        if of.answer is None:
            return of.words(of.all_tokens)
        bits = position.allowed(of.n_vocab, of.limit) & ~of.ends
        if self._answer is not None:
            bits |= self._bits_of(self._answer)
        return of.words(bits)

    def _bits_of(self, answer: ConstraintState) -> int:
        """Return the tokens that may begin or continue an undecided answer."""
        if self._answer_bits is None:
            mask: Any = answer.fork().mask()
            if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
                mask = np.packbits(mask, bitorder="little")
            self._answer_bits = 0 if mask is None else int.from_bytes(bytes(mask), "little")
        return self._answer_bits
