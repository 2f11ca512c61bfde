"""Writing a file that is there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends, and vanishes if it fails.

    It lies in the folder of `path` under a name that nobody can foresee, and is made, never opened: a file or
    a link of that name is not followed, written or removed.

    Raises
    ------
    OSError
        It cannot be written.
    """
    beside = path.with_name(f".{secrets.token_hex(8)}.part")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
