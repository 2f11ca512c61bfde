"""Ids in, text out, as they come: the pieces never split a character and add up to the text of the whole."""

from __future__ import annotations

from collections.abc import Iterable

from specdec.errors import TokenizerError
from specdec.models.tokenizer.byte_stream import ByteStream, Strip
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.interface import Tokenizer

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Incremental ``tokenizer.decode``.

    However the ids are cut into calls, the pieces of :meth:`feed` and the last one of :meth:`finish`
    concatenate to ``tokenizer.decode`` of all of them.

    Parameters
    ----------
    tokenizer : Tokenizer
    continuing : bool
        The ids continue a text: a space at their beginning stays. Only for tokenizers that specdec reads
        itself; another one's ``decode`` is called as it is.

    Examples
    --------
    >>> stream = StreamDecoder(tokenizer)
    >>> text = stream.feed([523]) + stream.feed([17, 9]) + stream.finish()
    """

    def __init__(self, tokenizer: Tokenizer, *, continuing: bool = False) -> None:
        self._impl: ByteStream | _PrefixStream
        if isinstance(tokenizer, ByteTokenizer):
            self._impl = ByteStream(tokenizer.text_bytes, Strip.NOTHING if continuing else tokenizer.strip)
        else:
            self._impl = _PrefixStream(tokenizer)

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; often empty, never half a character."""
        return self._impl.feed(ids)

    def finish(self) -> str:
        """The rest: U+FFFD for a character that never became complete, else nothing."""
        return self._impl.finish()


class _PrefixStream:
    """A tokenizer known by its ``decode`` alone: decode all so far, give out what is new and stable."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""

    def feed(self, ids: Iterable[int]) -> str:
        self._ids.extend(ids)
        return self._new(self._tokenizer.decode(self._ids).rstrip("\ufffd"))

    def finish(self) -> str:
        return self._new(self._tokenizer.decode(self._ids))

    def _new(self, text: str) -> str:
        if self._given.startswith(text):
            return ""  # what was given out already ends inside a run of U+FFFD, or nothing is new
        if not text.startswith(self._given):
            raise TokenizerError(
                f"{type(self._tokenizer).__name__}.decode changed the beginning of a text when ids "
                "were appended; "
                f"expected it to extend {self._given[-20:]!r}"
            )
        piece = text[len(self._given) :]
        self._given = text
        return piece
