"""The side of sources: from a text to what the encoder of a model was trained to read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from specdec.errors import InputError, shown
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.interface import Tokenizer
from specdec.models.tokenizer.numbered_pieces import NumberedPieces

__all__ = ["SourceTokenizer", "languages_of", "source_side"]

# As mBART ("en_XX"), NLLB ("eng_Latn") and M2M-100 ("__en__") write languages.
_LANGUAGE: Final = re.compile(
    r"(?:__)?([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3})|(?<=__)[a-z]{2,3}(?=__))(?:__)?"
)


class SourceTokenizer:
    """Encodes sources: the tokens of a text, between those that an encoder expects before and behind it.

    Parameters
    ----------
    tokenizer : Tokenizer
        Cuts the text.
    before, after : tuple of int
        Such as the token of the source's language, and end of text.
    languages : mapping of str to int
        The ids of languages, by their codes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        before: tuple[int, ...],
        after: tuple[int, ...],
        languages: Mapping[str, int],
    ) -> None:
        self.tokenizer = tokenizer
        self.before, self.after = before, after
        self.languages = dict(languages)

    def __repr__(self) -> str:
        return f"SourceTokenizer({self.tokenizer!r}, before={self.before}, after={self.after})"

    def encode(self, text: str) -> list[int]:
        """The ids of a source.

        Raises
        ------
        InputError
            `text` is no str, or has a lone surrogate.
        """
        return [*self.before, *self.tokenizer.encode(text, add_bos=False), *self.after]

    def language_id(self, name: str, code: Any) -> int:
        """The id of a language; `name` is that of the argument, for messages.

        Raises
        ------
        InputError
            The model has no such language, or none at all.
        """
        if not self.languages:
            raise InputError(f"{name} is {shown(code)}, but the tokenizer has no languages; expected None")
        if code not in self.languages:
            few = ", ".join(list(self.languages)[:6])
            raise InputError(
                f"{name} is {shown(code)}; expected one of the {len(self.languages)} languages of the "
                f"tokenizer, such as {few}"
            )
        return self.languages[code]

    def in_language(self, code: str) -> SourceTokenizer:
        """The same for sources in a language.

        Raises
        ------
        InputError
        """
        ours, known = self.language_id("src_lang", code), set(self.languages.values())
        before, after = (
            tuple(ours if token in known else token for token in side) for side in (self.before, self.after)
        )
        return SourceTokenizer(self.tokenizer, before, after, self.languages)


def source_side(tokenizer: Tokenizer | None) -> SourceTokenizer | None:
    """What encodes the sources of a model with this tokenizer.

    A text without tokens of its own before or behind it is followed by end of text.
    """
    if tokenizer is None:
        return None
    pieces = tokenizer.source_side if isinstance(tokenizer, NumberedPieces) else tokenizer
    before, after = (tuple(getattr(pieces, side, ())) for side in ("before", "after"))
    if not after:
        after = tuple(pieces.eos_ids[:1])
    return SourceTokenizer(pieces, before, after, languages_of(pieces))


def languages_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens that name languages, by their codes."""
    special = tokenizer.special_tokens() if isinstance(tokenizer, ByteTokenizer) else {}
    matches = {name: _LANGUAGE.fullmatch(name) for name in special}
    return {match[1]: special[name] for name, match in matches.items() if match}
