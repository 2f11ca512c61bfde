"""A text with the special tokens between its characters, and cuts at such marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from specdec.decoding.stopping import overlap
from specdec.models.tokenizer import MarkSpelling, StreamDecoder

__all__ = ["MarkCutter", "MarkedText"]


class MarkedText:
    """Puts special tokens, as a `MarkSpelling` writes them, between the characters of a text.

    Parameters
    ----------
    decoder : StreamDecoder
        Of the text.
    spelling : MarkSpelling
    """

    def __init__(self, decoder: StreamDecoder, spelling: MarkSpelling) -> None:
        self._decoder, self._spelling = decoder, spelling
        self._n_decoded = self._n_given = 0
        self._waiting: list[tuple[int, str]] = []  # where a mark is, and its character

    def feed(self, text: str, tokens: Sequence[int]) -> str:
        """Take new text and new tokens; return the text with its marks."""
        if not self._spelling:
            return text
        for token in tokens:
            self._n_decoded += len(self._decoder.feed([token]))
            if mark := self._spelling.mark(token):
                self._waiting.append((self._n_decoded, mark))
        found, begin = "", 0
        end = self._n_given + len(text)
        while self._waiting and self._waiting[0][0] <= end:
            place, mark = self._waiting.pop(0)
            cut = max(place - self._n_given, begin)
            found += text[begin:cut] + mark
            begin = cut
        self._n_given = end
        return found + text[begin:]


class MarkCutter:
    """Cuts a text that comes in pieces at marks; what may become one is held back.

    Parameters
    ----------
    marks : iterable of str
        At least one, none of them empty.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = sorted(marks, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, self._marks)))
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Return pairs of a text and the mark after it; the mark is empty where no mark follows yet."""
        text = self._held + text
        cuts, begin = [], 0
        for found in self._found.finditer(text):
            cuts.append((text[begin : found.start()], found[0]))
            begin = found.end()
        end = len(text) - max(overlap(text[begin:], mark) for mark in self._marks)
        if end > begin:
            cuts.append((text[begin:end], ""))
        self._held = text[end:]
        return cuts

    def finish(self) -> str:
        """Return what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held
