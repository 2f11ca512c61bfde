"""Whether a form forces bytes without end: ``llguidance`` would write them for ever."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any, Final

__all__ = ["FirstBytes", "bound_of", "forces_on", "unforced"]

_LEAST_BOUND: Final = 1 << 12
"""Bytes that any grammar may force in a row."""
_NO_TEXT: Final = 0xFF
"""The byte with which the library's name of a token begins that stands for no text."""
_OPTIONS: Final = re.compile(r"^[ \t]*%llguidance\s*", re.MULTILINE)
"""Where a grammar in Lark's syntax says the library's options, as a JSON object."""


def bound_of(grammar: str) -> int:
    """Bytes that a grammar may force in a row: more than its words have, if they are not repeated."""
    return max(_LEAST_BOUND, 2 * len(grammar.encode("utf-8", "surrogatepass")))


def unforced(grammar: str) -> str | None:
    """A grammar of which the library does not write what must come; None: of this one neither.

    Parameters
    ----------
    grammar : str
        In Lark's syntax, as the library reads it.
    """
    options: dict[str, Any] = {}
    rest, at = "", 0
    for found in _OPTIONS.finditer(grammar):
        try:
            given, end = json.JSONDecoder().raw_decode(grammar, found.end())
            options |= given
        except (ValueError, TypeError, RecursionError):  # the library says what is wrong with it
            return grammar
        rest, at = rest + grammar[at : found.start()], end
    if options.get("no_forcing") is True:
        return None
    return f"%llguidance {json.dumps(options | {'no_forcing': True})}\n{rest}{grammar[at:]}"


class FirstBytes:
    """The tokens of a vocabulary by their first bytes.

    Parameters
    ----------
    tokens : list of bytes [n_tokens]
    """

    def __init__(self, tokens: list[bytes]) -> None:
        self._tokens = tokens

    @cached_property
    def _starting(self) -> list[int]:
        """By first byte, the tokens as the bits of a number; only grammars ask."""
        bits = [bytearray((len(self._tokens) + 7) // 8) for _ in range(256)]
        for token, text in enumerate(self._tokens):
            bits[text[0]][token >> 3] |= 1 << (token & 7)
        return [int.from_bytes(words, "little") for words in bits]

    def shortest_forced(self, mask: bytes) -> int | None:
        """The shortest token of a mask all of whose tokens begin with the same byte; None: they do not.

        Longer ones may go on with what need not come.
        """
        left = int.from_bytes(mask, "little")
        if left == 0:
            return None
        lowest = (left & -left).bit_length() - 1
        first = self._tokens[lowest][0]
        # What begins with _NO_TEXT is a token's name: of several of them none must come.
        if first == _NO_TEXT or left & ~self._starting[first]:
            return None
        best = lowest
        while left:
            token = (left & -left).bit_length() - 1
            left &= left - 1
            if len(self._tokens[token]) < len(self._tokens[best]):
                best = token
        return best

    def n_bytes(self, token: int) -> int:
        """Bytes of a token."""
        return len(self._tokens[token])


def forces_on(matcher: Any, first: FirstBytes, bound: int) -> bool:
    """Whether more bytes than a bound must come, one after the other.

    Parameters
    ----------
    matcher : llguidance.LLMatcher
        Of an `unforced` grammar; it stays where it is.
    first : FirstBytes
    bound : int
    """
    token = first.shortest_forced(matcher.compute_bitmask())
    if token is None:
        return False
    ahead, n_bytes = matcher.deep_copy(), 0
    while token is not None and n_bytes <= bound and ahead.consume_token(token):
        n_bytes += first.n_bytes(token)
        token = first.shortest_forced(ahead.compute_bitmask())
    return n_bytes > bound
