"""Special tokens within a text, each as one character that no text has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from specdec.errors import InputError
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.interface import Tokenizer

__all__ = ["MarkSpelling", "special_tokens_of"]

# Decoded text has no lone surrogates, so they can mark special tokens.
_FIRST: Final = 0xD800
_OTHER: Final = 0xDFFF
_MARK: Final = re.compile("[\ud800-\udfff]")


def special_tokens_of(tokenizer: Tokenizer) -> Mapping[str, int]:
    """The tokens with a name and without text, by name; none where a tokenizer does not show its tokens."""
    return tokenizer.special_tokens() if isinstance(tokenizer, ByteTokenizer) else {}


class MarkSpelling:
    """A mapping between special tokens and the characters that mark them.

    Parameters
    ----------
    characters : mapping of int to str
        By token id.
    names : mapping of str to str
        The same by the names of tokens, for those that are of interest.
    """

    def __init__(
        self, characters: Mapping[int, str] | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        self._characters = characters or {}
        self._names = names or {}
        self._by_character = {character: name for name, character in self._names.items()}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def of(cls, special: Mapping[str, int], names: Iterable[str], *, others: bool = True) -> MarkSpelling:
        """A spelling in which some special tokens have characters of their own.

        Parameters
        ----------
        special : mapping of str to int
            All special tokens, by name.
        names : iterable of str
            Those of interest; names of no special token are left out.
        others : bool, default True
            Whether the other special tokens have a character too, one for all of them.
        """
        named = [name for name in dict.fromkeys(names) if name in special]
        if len(named) > _OTHER - _FIRST:
            raise InputError(f"{len(named)} special tokens are named; expected at most {_OTHER - _FIRST}")
        characters = dict.fromkeys(special.values() if others else (), chr(_OTHER))
        by_name = {name: chr(_FIRST + i) for i, name in enumerate(named)}
        return cls(characters | {special[name]: mark for name, mark in by_name.items()}, by_name)

    def __bool__(self) -> bool:
        return bool(self._characters)

    def mark(self, token: int) -> str:
        """The character of a special token; empty for any other token."""
        return self._characters.get(token, "")

    def spell(self, text: str) -> str:
        """A text with the names of special tokens replaced by their characters; the longest of several."""
        return text if self._found is None else self._found.sub(lambda one: self._names[one[0]], text)

    def named(self, text: str) -> str:
        """A text with marks replaced by the names of their tokens; those without a name are left out."""
        return _MARK.sub(lambda found: self._by_character.get(found[0], ""), text)

    def without_marks(self, text: str) -> str:
        """A text without marks."""
        return _MARK.sub("", text)

    @staticmethod
    def is_mark(character: str) -> bool:
        """Whether a character marks a special token."""
        return _FIRST <= ord(character) <= _OTHER
