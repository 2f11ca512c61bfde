"""Where a text ends: stop strings and stop ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

from specdec.checks import as_integer, check_items
from specdec.containers import plain
from specdec.errors import InputError, shown

__all__ = ["FinishReason", "StopRules", "StopScanner", "overlap"]

FinishReason: TypeAlias = Literal["stop", "length", "context", "error", "cancelled"]
"""Why a text ended; see `specdec.Result`."""


@dataclass(frozen=True)
class StopRules:
    """What ends a text: strings that may appear anywhere in it, and token ids.

    Attributes
    ----------
    strings : tuple of str
        The text ends before the first of these to be completed.
    ids : frozenset of int
        The text ends before the first of these tokens.
    """

    strings: tuple[str, ...] = ()
    ids: frozenset[int] = frozenset()

    @classmethod
    def parse(
        cls,
        stop: str | int | Iterable[str | int] | None,
        *,
        n_vocab: int,
        has_text: bool,
        eos_ids: Iterable[int] = (),
    ) -> StopRules:
        """Check and sort what a caller passed as `stop`.

        Parameters
        ----------
        stop : str, int, iterable of these, or None
            Stop strings and stop ids in any mixture.
        n_vocab : int
            Ids must be below.
        has_text : bool
            Whether there is a tokenizer; stop strings need one.
        eos_ids : iterable of int
            Further stop ids, those that end a text.

        Raises
        ------
        InputError
            If an entry is neither a non-empty string nor an id in range.
        """
        stop = plain(stop)
        if stop is None:
            entries: list[str | int] = []
        elif isinstance(stop, (str, Integral)):
            entries = [stop]
        else:
            expected = "a string, a token id, or a list of these"
            if isinstance(stop, bytes | bytearray):
                raise InputError(f"stop is {shown(stop)}; expected {expected}")
            entries = check_items("stop", stop, expected)
        strings: list[str] = []
        ids = set(eos_ids)
        for entry in entries:
            if isinstance(entry, str):
                if not entry:
                    raise InputError("stop holds an empty string; expected strings of at least one character")
                if not has_text:
                    raise InputError(
                        f"stop string {shown(entry)}: the target has no tokenizer; expected token ids"
                    )
                strings.append(entry)
            elif (token := as_integer(entry)) is not None:
                if not 0 <= token < n_vocab:
                    raise InputError(f"stop id {shown(token)} is out of range; expected 0 to {n_vocab - 1}")
                ids.add(token)
            else:
                raise InputError(f"stop holds {shown(entry)}; expected strings and token ids")
        return cls(tuple(dict.fromkeys(strings)), frozenset(ids))


class StopScanner:
    """Looks for stop strings in a text that arrives in pieces.

    The first string to be *completed* wins, as if the text were checked after every character, and of several
    completed by the same character the longest. So the outcome depends on the text alone, not on how it was
    cut into pieces: blocks of accepted drafts end where plain decoding ends.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.match: str | None = None
        self.strings = tuple(strings)
        self._reach = max(map(len, self.strings), default=1) - 1
        self._tail = ""  # the last characters, in which a match may begin
        self._n_held = 0  # of them, those that begin one so far
        self._taken: list[str] = []
        self._waiting: list[str] = []

    def feed(self, piece: str) -> str | None:
        """Append `piece`; return the stop string that this completes, if any.

        With a match the text is cut before it, and nothing more may be fed.
        """
        if self.match is not None:
            raise ValueError("the text has already ended")
        if not piece:
            return None
        window = self._tail + piece
        found: tuple[int, int, str] | None = None
        for string in self.strings:
            begin = window.find(string, max(0, len(self._tail) - len(string) + 1))
            if begin >= 0 and (found is None or (begin + len(string), begin) < found[:2]):
                found = (begin + len(string), begin, string)
        self._waiting.append(piece)
        if found is not None:
            waiting = "".join(self._waiting)
            self._waiting = [waiting[: len(waiting) - len(window) + found[1]]]
            self._n_held = 0
            self.match = found[2]
            return self.match
        self._n_held = max((overlap(window, string) for string in self.strings), default=0)
        self._tail = window[-self._reach :] if self._reach else ""
        return None

    @property
    def text(self) -> str:
        """The text so far, without the stop string."""
        return "".join(self._taken + self._waiting)

    def take(self, *, final: bool = False) -> str:
        """Text that has not been taken yet and that no stop string can still claim.

        With `final` no more text will come, and what was held back is given too.
        """
        waiting = "".join(self._waiting)
        n_held = 0 if final else self._n_held
        piece, rest = waiting[: len(waiting) - n_held], waiting[len(waiting) - n_held :]
        self._taken.append(piece)
        self._waiting = [rest]
        return piece


def overlap(text: str, string: str) -> int:
    """Length of the longest proper beginning of `string` that `text` ends with."""
    for length in range(min(len(string) - 1, len(text)), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
