"""A form that ``llguidance`` has compiled for the tokens of a model: its masks, and what is wrong with it."""

from __future__ import annotations

import re
from typing import Any, Final

from specdec.decoding.forms.endless_forms import Watcher
from specdec.decoding.forms.form_text import FormKind
from specdec.errors import FormError, shown
from specdec.models.tokenizer import ByteTokenizer

__all__ = ["CompiledForm"]


class CompiledForm:
    """What all texts of a form share.

    Attributes
    ----------
    kind : {"schema", "regex", "grammar"}
    matcher : llguidance.LLMatcher
        Where a text begins; it stays there.
    watcher : Watcher or None
        Of a grammar that may force bytes without end.
    end_ids : tuple of int
        The ids that end a text in the library's tokenizer.
    nothing : bytes
        The mask of no token.

    Other parameters are those of `Guidance.of`; `has_patterns` is whether a schema has patternProperties.
    """

    def __init__(
        self,
        kind: FormKind,
        matcher: Any,
        watcher: Watcher | None,
        tokenizer: ByteTokenizer,
        n_vocab: int,
        end_ids: tuple[int, ...],
        *,
        has_patterns: bool = False,
    ) -> None:
        self.matcher, self.watcher = matcher, watcher
        self.end_ids = end_ids
        self.nothing = bytes((n_vocab + 31) // 32 * 4)
        self.kind: Final = kind
        self._n_vocab, self._has_patterns = n_vocab, has_patterns
        self._tokenizer = tokenizer  # stays as long as texts are written in it

    def words_of(self, mask: bytes) -> bytes:
        """A mask of the library's tokenizer without the end of text that no model has."""
        n_bytes = len(self.nothing)
        if self.end_ids != (self._n_vocab,):
            return mask[:n_bytes]
        words = bytearray(mask)
        words[self._n_vocab >> 3] &= ~(1 << (self._n_vocab & 7)) & 0xFF
        return bytes(words[:n_bytes])

    def word_of(self, token: int) -> bytes:
        """The mask of one token."""
        words = bytearray(self.nothing)
        words[token >> 3] = 1 << (token & 7)
        return bytes(words)

    def error_of(self, matcher: Any, place: str = "") -> FormError:
        """What the library says of a fault, in a line; `place` is a JSON pointer in a schema."""
        said = _fault_of_pattern(self.kind, matcher)
        said = said or " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
        if "NoExtension" in said:
            said = "no text of this form goes on from here in the target's tokens"
            if self._has_patterns:
                said += (
                    ", or llguidance began a key of patternProperties where all keys that match have come; "
                    "expected patterns that no key of properties matches"
                )
        if "Unknown format" in said:
            said += (
                "; expected one that llguidance reads (date-time, date, time, duration, email, hostname, "
                'ipv4, ipv6, uuid, uri), a pattern, or "x-guidance": {"lenient": true} in the schema, with '
                "which unknown formats are ignored"
            )
        where = f"{self.kind}, at {place}" if place else self.kind
        return FormError(f"{where}: {said or 'a token may not come here'}")


_PATTERN_ERROR: Final = re.compile(
    r"(?P<place>at \d+\(\d+\): )?.*regex parse error:\n"
    r" {4}(?P<pattern>.*)\n {4}(?P<before> *)\^+\nerror: (?P<why>.*)"
)


def _fault_of_pattern(kind: FormKind, matcher: Any) -> str | None:
    """What is wrong with a regular expression, and where; the library shows its own grammar of it."""
    found = _PATTERN_ERROR.search(matcher.get_error())
    if found is None:
        return None
    place = (found["place"] or "") if kind == "grammar" else ""
    pattern, at = found["pattern"], len(found["before"])
    return f"{place}{found['why']}, at character {at + 1} of the regular expression {shown(pattern)}"
