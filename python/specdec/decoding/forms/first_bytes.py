"""The tokens of a vocabulary by their first bytes."""

from __future__ import annotations

from functools import cached_property
from typing import Final

__all__ = ["FirstBytes"]

_NO_TEXT: Final = 0xFF
"""The byte with which the library's name of a token begins that stands for no text."""


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
