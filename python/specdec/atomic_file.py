"""Atomic writing of files and folders."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from specdec.errors import InputError, shown


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends, and is removed if the block fails.

    It has an unpredictable name in the folder of `path`, so no existing file or link is followed.
    """
    if path.name in ("", ".."):
        raise InputError(f"path {shown(str(path))} has no file name; expected the path of a file")
    part = path.parent / f".{secrets.token_hex(8)}.part"
    with _errors_of(path):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
        with _errors_of(path):
            part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a value as JSON, atomically."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=indent) + "\n").encode())


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Create a new folder that replaces `path` when the block ends, and is removed if the block fails."""
    with _errors_of(path):
        replaces = path.exists() and any(path.iterdir())
        target = path.resolve()  # resolves a link to its folder
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
    """Move the folder `new` to `target`, and remove the old one."""
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
    """Make an OSError of the block name `path`, not the temporary file."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
