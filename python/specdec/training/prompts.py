"""Prompts that texts begin with: from a file, a list, or nothing but the token that begins a text."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.checks import check_path
from specdec.errors import InputError, shown
from specdec.models.model import Model, Prompt

__all__ = ["Prompts"]

_HELD_OUT = 10  # each tenth prompt is held out


@dataclass(frozen=True)
class Prompts:
    """Token ids that texts begin with, some of them held out.

    Attributes
    ----------
    train, held_out : tuple of tuple of int
        Each prompt has at least one token.
    text : tuple of int
        All of the file as one text.
    digest : str
        What identifies them.
    name : str
        What they are called in a message: their file, or "prompts".
    """

    train: tuple[tuple[int, ...], ...]
    held_out: tuple[tuple[int, ...], ...]
    text: tuple[int, ...] = ()
    digest: str = ""
    name: str = "prompts"

    @classmethod
    def read(
        cls, target: Model, given: str | os.PathLike[str] | Sequence[Prompt] | None, longest: int
    ) -> Prompts:
        """Read prompts as ids of the target.

        Parameters
        ----------
        target : Model
        given : path-like, sequence of prompts, or None
            A text file with a prompt a line; a ``.jsonl`` file with a text, ``{"prompt": text}`` or
            ``{"messages": [...]}`` a line; prompts; or None, the token that begins a text.
        longest : int
            Longer prompts are cut to their first `longest` tokens.

        Raises
        ------
        InputError
            A file that cannot be read or has no prompt, or no prompts and no token that begins a text.
        """
        whole: list[int] = []
        name = "prompts"
        if given is None:
            found = [_beginning(target)]
        elif isinstance(given, str | os.PathLike):
            path = check_path("prompts", given)
            name = f"prompts {path}"
            lines = _lines(path)
            found = [_ids_of_line(target, line, path, number) for number, line in lines]
            whole = [token for prompt in found for token in prompt]
        else:
            found = [target.check_ids(prompt, maximum=2**31 - 1).tolist() for prompt in given]
        if not found:
            raise InputError(f"{name}: has no prompt; expected at least one")
        cut = [tuple(int(token) for token in prompt[:longest]) for prompt in found]
        digest = hashlib.blake2b(repr((cut, whole)).encode(), digest_size=16).hexdigest()
        if len(cut) < 2 * _HELD_OUT:  # the same prompts then, continued otherwise
            return cls(tuple(cut), tuple(cut), tuple(whole), digest, name)
        return cls(
            tuple(prompt for i, prompt in enumerate(cut) if i % _HELD_OUT),
            tuple(cut[::_HELD_OUT]),
            tuple(whole),
            digest,
            name,
        )


def _beginning(target: Model) -> list[int]:
    ids = [] if target.tokenizer is None else target.tokenizer.encode("")
    if not ids:
        raise InputError(
            f"prompts is None, and {target.path} has no token that begins a text; expected a file of prompts"
        )
    return ids


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"prompts {path} cannot be read: {error.strerror}; expected a text file of prompts"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 ({error}); expected a text file of prompts") from error
    return [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _ids_of_line(target: Model, line: str, path: Path, number: int) -> list[int]:
    if path.suffix != ".jsonl":
        ids: list[int] = target.check_ids(line, maximum=2**31 - 1).tolist()
        return ids
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}: is no JSON ({error})") from error
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        return target.chat_ids(value["messages"])
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        raise InputError(
            f"{path}, line {number}: is {shown(value)}; expected a text, "
            '{"prompt": text} or {"messages": [...]}'
        )
    ids = target.check_ids(text, maximum=2**31 - 1).tolist()
    return ids
