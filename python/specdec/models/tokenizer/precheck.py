"""What is checked of a tokenizer.json before the ``tokenizers`` library reads it.

A small file shall not cost gigabytes, and none shall end the process: the library aborts where a merge cuts a
character in two.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from specdec.errors import TokenizerError
from specdec.fields import as_json

__all__ = ["check_tokenizer_json"]

# What one character may become. NFKC makes 18 of one, bytes in place of characters 4, a template adds a few.
_MOST: Final = 1024

_PARTS: Final[Mapping[str, str]] = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
}


def check_tokenizer_json(values: Mapping[str, Any], path: Path) -> None:
    """Refuse a file whose steps, one after another, could blow a text up, or whose merges cut characters.

    The library runs the steps on the file's own added tokens while it reads the file. What is not understood
    here is left to the library.

    Raises
    ------
    TokenizerError
        Says which field of the file, and what was expected.
    """
    _check_merges(values.get("model"), path)
    for part, key in _PARTS.items():
        length = 1
        for step in _steps(values.get(part), key):
            length = _length_after(step, length)
            if length > _MOST:
                raise TokenizerError(
                    f"{path}: field '{part}' has steps that may make {length} characters of one; "
                    f"expected at most {_MOST}"
                )


def _check_merges(model: Any, path: Path) -> None:
    """With a prefix of continuing pieces, the library cuts its length off the right half of every merge."""
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not (isinstance(prefix, str) and prefix and isinstance(merges, list)):
        return
    if not prefix.isascii():
        raise TokenizerError(
            f"{path}: field 'model.continuing_subword_prefix' is {as_json(prefix)}; expected ASCII characters"
        )
    for i, merge in enumerate(merges):
        right = merge.partition(" ")[2] if isinstance(merge, str) else None
        if isinstance(merge, list) and merge:
            right = merge[-1]
        if not (isinstance(right, str) and right.startswith(prefix)):
            raise TokenizerError(
                f"{path}: field 'model.merges' has {as_json(merge)} at {i}; expected a second half that "
                f"begins with {as_json(prefix)}, the continuing_subword_prefix"
            )


def _steps(step: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The steps of nested sequences in the order in which they run."""
    waiting = [step]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            inner = step.get(key)
            if isinstance(inner, list):
                waiting += reversed(inner)
            else:
                yield step


def _length_after(step: Mapping[str, Any], length: int) -> int:
    """Upper bound of the length of a text of `length` characters after a step.

    Steps are told by their fields, as the library tells those that do not name their type.
    """
    content, pattern, prepended = step.get("content"), step.get("pattern"), step.get("prepend")
    if isinstance(content, str):
        string = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(string, str) and string:
            return max(length, -(-length * len(content) // len(string)))
        return length + (length + 1) * len(content)  # a regular expression may match between characters
    if isinstance(prepended, str):
        return length + len(prepended)
    if isinstance(step.get("precompiled_charsmap"), str):
        return length * _longest_replacement(step["precompiled_charsmap"])
    if step.get("type") == "ByteLevel" or "add_prefix_space" in step:
        return 4 * (length + 1)
    if isinstance(step.get("single"), list):
        return sum(_piece_length(piece, step, length) for piece in step["single"])
    return length


def _longest_replacement(charsmap: str) -> int:
    """Bytes of the longest string in SentencePiece's table: a trie after its size, then the strings."""
    try:
        table = base64.b64decode(charsmap)
    except ValueError:
        return 1  # the library refuses it too
    strings = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *map(len, strings.split(b"\0")))


def _piece_length(piece: Any, template: Mapping[str, Any], length: int) -> int:
    """Tokens of a piece of a template: the text, or a special token."""
    special = piece.get("SpecialToken") if isinstance(piece, dict) else None
    if not isinstance(special, dict):
        return length
    known, name = template.get("special_tokens"), special.get("id")
    token = known.get(name) if isinstance(known, dict) and isinstance(name, str) else None
    ids = token.get("ids") if isinstance(token, dict) else None
    return len(ids) if isinstance(ids, list) else 1
