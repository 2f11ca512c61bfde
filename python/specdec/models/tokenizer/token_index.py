"""Search of all tokens of a vocabulary for a text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, islice
from typing import Final
from weakref import WeakKeyDictionary

from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Tokenizer, encode_exactly

_APART: Final = "\u0100"
"""Character between tokens, none of Latin-1, which stands for bytes."""
_LONGEST_TAIL: Final = 20
"""Most tokens of a text after its first, as in llama.cpp."""


def token_texts(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token; those of a special token are its name."""
    if isinstance(tokenizer, ByteTokenizer):
        names = enumerate(tokenizer.vocabulary())
        return [tokenizer.text_bytes(token) or name or b"" for token, name in names]
    return [tokenizer.decode([i]).encode("utf-8", "replace") for i in range(tokenizer.n_vocab)]


class TokenIndex:
    """The tokens of a vocabulary, to find those that contain a text or end with it."""

    _known: Final = WeakKeyDictionary[Tokenizer, "TokenIndex"]()

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = token_texts(tokenizer)
        self._begins = list(accumulate((len(text) + 1 for text in texts), initial=0))
        self._all = "".join(text.decode("latin-1") + _APART for text in texts)
        self._reversed = sorted((text[::-1], token) for token, text in enumerate(texts))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenIndex:
        """Return the index of a tokenizer, made once if the object can be a key."""
        with suppress(KeyError, TypeError):
            return cls._known[tokenizer]
        index = cls(tokenizer)
        with suppress(TypeError):
            cls._known[tokenizer] = index
        return index

    def containing(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that contain a text."""
        wanted = text.decode("latin-1")
        at = self._all.find(wanted)
        while at >= 0:
            token = bisect_right(self._begins, at) - 1
            yield token
            at = self._all.find(wanted, self._begins[token + 1])

    def ending_with(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that end with a text."""
        wanted = text[::-1]
        for found, token in islice(self._reversed, bisect_left(self._reversed, (wanted, -1)), None):
            if not found.startswith(wanted):
                break
            yield token


def sequences_of(tokenizer: Tokenizer, text: str) -> set[tuple[int, ...]]:
    """Return the token sequences that a text is written with, wherever it begins in a token.

    These are the tokens that contain the text, and each token that ends with a part of it, followed by the
    rest.
    """

    def encode(rest: bytes) -> tuple[int, ...]:
        try:
            found = rest.decode("utf-8")
        except UnicodeDecodeError:  # it begins within a character
            return ()
        if isinstance(tokenizer, ByteTokenizer):
            return tuple(encode_exactly(tokenizer, found) or ())
        return tuple(tokenizer.encode(found, add_bos=False))

    wanted, index = text.encode("utf-8", "replace"), TokenIndex.of(tokenizer)
    whole = set(index.containing(wanted))
    found: set[tuple[int, ...]] = {(token,) for token in whole} or {encode(wanted)}
    for n in range(1, len(wanted)):
        tail = encode(wanted[n:])[:_LONGEST_TAIL]
        found |= {(token, *tail) for token in index.ending_with(wanted[:n]) if tail and token not in whole}
    return found
