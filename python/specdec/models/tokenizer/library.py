"""The boundary to the libraries that read tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specdec.errors import SpecdecError, TokenizerError

__all__ = ["library_errors"]


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Whatever a library raises inside the block becomes a TokenizerError that begins with `what`.

    The libraries raise bare Exceptions, and where `tokenizers` stops itself (a Rust panic) the exception is a
    PanicException, which is no Exception. Errors of specdec, MemoryError and Ctrl-C go through.
    """
    try:
        yield
    except (SpecdecError, MemoryError):
        raise
    except BaseException as error:
        # pyo3 does not export the type of a panic.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {type(error).__name__}: {error}") from error
