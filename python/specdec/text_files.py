"""Reading files that a caller names, with errors that name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec.errors import InputError, SpecdecError


@contextmanager
def reading(path: Path, error: type[SpecdecError]) -> Iterator[None]:
    """Turn an OSError of the block into an `error` that names the path."""
    try:
        yield
    except SpecdecError:
        raise
    except OSError as cause:  # such as a folder without access
        raise error(f"{path}: cannot be read: {cause.strerror or cause}") from cause


def read_text_file(
    path: Path, expected: str, *, name: str | None = None, error: type[SpecdecError] = InputError
) -> str:
    """Return the text of a UTF-8 file; messages name what is `expected` and the argument `name`."""
    file = f"{path}" if name is None else f"{name}: {path}"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        raise error(f"{file}: no such file; expected {expected}") from cause
    except OSError as cause:
        raise error(f"{file}: cannot be read: {cause.strerror or cause}; expected {expected}") from cause
    except UnicodeDecodeError as cause:
        raise error(
            f"{file}: is not UTF-8: {cause.reason} at byte {cause.start}; expected {expected}"
        ) from cause
