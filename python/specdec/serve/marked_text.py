"""A text with the marks in it that special tokens make, which have no text of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specdec.models.tokenizer import StreamDecoder

__all__ = ["MarkedText"]


class MarkedText:
    """Puts the names of some special tokens where they stand between characters of the text.

    Parameters
    ----------
    decoder : StreamDecoder
        Of the text.
    marks : mapping of int to str
        Names by token id.
    """

    def __init__(self, decoder: StreamDecoder, marks: Mapping[int, str]) -> None:
        self._decoder, self._marks = decoder, marks
        self._n_decoded = self._n_given = 0
        self._waiting: list[tuple[int, str]] = []  # where a mark stands, and its name

    def feed(self, text: str, tokens: Sequence[int]) -> str:
        """New text and new tokens; the text with the marks that stand in it."""
        if not self._marks:
            return text
        for token in tokens:
            self._n_decoded += len(self._decoder.feed([token]))
            if token in self._marks:
                self._waiting.append((self._n_decoded, self._marks[token]))
        found, begin = "", 0
        end = self._n_given + len(text)
        while self._waiting and self._waiting[0][0] <= end:
            place, name = self._waiting.pop(0)
            cut = max(place - self._n_given, begin)
            found += text[begin:cut] + name
            begin = cut
        self._n_given = end
        return found + text[begin:]
