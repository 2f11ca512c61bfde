"""Tokens that are bytes, and the text that they make."""

from __future__ import annotations

import codecs
import enum
from collections.abc import Callable, Iterable

__all__ = ["ByteStream", "Strip"]


class Strip(enum.Enum):
    """What a tokenizer drops at the beginning of a decoded text, having added it when it encoded."""

    NOTHING = enum.auto()
    ONE_SPACE = enum.auto()
    ALL_SPACES = enum.auto()
    SPACES_OF_FIRST_TOKEN = enum.auto()


class ByteStream:
    """Tokens are bytes: strip the beginning once, then decode UTF-8, waiting for whole characters.

    Parameters
    ----------
    text_bytes : callable
        The bytes that a token id adds to a text.
    """

    def __init__(self, text_bytes: Callable[[int], bytes], strip: Strip) -> None:
        self._text_bytes = text_bytes
        self._strip = strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return self._utf8.decode(b"".join(self._stripped(self._text_bytes(i)) for i in ids))

    def finish(self) -> str:
        """U+FFFD for a character that never became complete, else nothing."""
        return self._utf8.decode(b"", True)

    def _stripped(self, piece: bytes) -> bytes:
        if self._strip is Strip.NOTHING or not piece:
            return piece
        strip, self._strip = self._strip, Strip.NOTHING
        if strip is Strip.ONE_SPACE:
            return piece.removeprefix(b" ")
        if strip is Strip.SPACES_OF_FIRST_TOKEN:
            return piece.replace(b" ", b"")
        rest = piece.lstrip(b" ")
        if not rest:
            self._strip = strip  # nothing but spaces so far
        return rest
