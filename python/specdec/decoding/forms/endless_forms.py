"""Whether a form forces bytes without end: ``llguidance`` would write them for ever."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from specdec.decoding.forms.first_bytes import FirstBytes
from specdec.errors import FormError

__all__ = ["Watcher", "unforced"]

_LEAST_BOUND: Final = 1 << 12
"""Bytes that any grammar may force in a row."""
_OPTIONS: Final = re.compile(r"^[ \t]*%llguidance\s*", re.MULTILINE)
"""Where a grammar in Lark's syntax says the library's options, as a JSON object."""


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


class Watcher:
    """A grammar whose forced bytes are not written, so that a place where these never end can be found.

    Only grammars have such places: a word of theirs is read as far as it goes, and what follows may begin
    like the word.
    """

    def __init__(self, matcher: Any, first: FirstBytes, grammar: str) -> None:
        self.matcher = matcher
        self._first = first
        # Bytes in a row: more than the grammar's words have, if they are not repeated.
        self._bound = max(_LEAST_BOUND, 2 * len(grammar.encode("utf-8", "surrogatepass")))

    def check(self, matcher: Any) -> None:
        """Raise a `FormError` if more bytes than the bound are forced where the matcher is."""
        if _forces_on(matcher, self._first, self._bound):
            raise FormError(
                f"grammar: more than {self._bound} bytes must come one after the other, and no text has so "
                "many; expected words that end, where what follows may begin like them"
            )


def _forces_on(matcher: Any, first: FirstBytes, bound: int) -> bool:
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
