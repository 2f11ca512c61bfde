"""Encoding what goes on with a text, as the tokenizer would cut it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer

__all__ = ["encode_continuing", "encode_exactly"]

_APART: Final = "\n"  # what words do not go on behind


def encode_exactly(tokenizer: ByteTokenizer, text: str) -> list[int] | None:
    """The ids of a text that stands behind another one, from the beginning of a word on.

    A tokenizer that puts a space in front of every text does so here too; that space is left out again.

    Returns
    -------
    list of int or None
        Tokens whose bytes are the text's. None: the tokenizer changes this text.
    """
    wanted = text.encode("utf-8")
    ids = tokenizer.encode(text, add_bos=False)
    if _bytes_of(tokenizer, ids) == wanted:
        return ids
    if text.startswith(" "):
        shorter = tokenizer.encode(text[1:], add_bos=False)
        if _bytes_of(tokenizer, shorter) == wanted:
            return shorter
    behind = tokenizer.encode(_APART + text, add_bos=False)
    for at in range(min(len(behind), 4)):
        if _bytes_of(tokenizer, behind[at:]) == wanted:
            return behind[at:]
    return None


def encode_continuing(tokenizer: ByteTokenizer, text: str) -> list[int]:
    """The ids of a text that stands behind another one, also of a text that the tokenizer changes.

    As `encode_exactly` where that finds some; else what the tokenizer makes of the text, whose bytes are
    then other ones.
    """
    ids = encode_exactly(tokenizer, text)
    return tokenizer.encode(text, add_bos=False) if ids is None else ids


def _bytes_of(tokenizer: ByteTokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer.text_bytes(i) for i in ids)
