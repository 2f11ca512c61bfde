"""Atomic writing of files and folders."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from specdec.errors import InputError, shown


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, of unpredictable name, that replaces `path` when the block ends without error."""
    if path.name in ("", ".."):
        raise InputError(f"path {shown(str(path))} has no file name; expected the path of a file to write")
    temporary = path.parent / f".{secrets.token_hex(8)}.part"
    with _errors_of(path):
        opened = open(temporary, "xb")  # closed below
    try:
        with opened as file:
            yield file
        with _errors_of(path):
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a value as JSON, atomically."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=indent) + "\n").encode())


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Make a new folder that replaces `path` when the block ends and is removed if the block fails."""
    with _errors_of(path):
        replaces = path.exists() and any(path.iterdir())
        target = path.resolve()  # follows a link
        new = target.with_name(f".{secrets.token_hex(8)}.part") if replaces else target
        new.mkdir(parents=True, exist_ok=not replaces)
    try:
        yield new
        if replaces:
            with _errors_of(path):
                _exchange(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _exchange(new: Path, target: Path) -> None:
    """Rename the folder `new` to `target`, and remove the old folder."""
    old = target.with_name(f".{secrets.token_hex(8)}.part")
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Let an OSError of the block name `path` instead of the temporary file."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
