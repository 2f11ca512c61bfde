"""A file that is read piece by piece, and may change while it is."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, CheckpointNotFoundError

__all__ = ["OpenedFile"]

_LFS: Final = b"version https://git-lfs"  # how the text that Git LFS leaves in place of a file begins
_PIECE: Final = 1 << 26  # bytes of one system call, so that Ctrl-C is heard in between


class OpenedFile:
    """A regular file, open for reading until the object goes.

    The bytes are read, not mapped: a process that touches a mapped page which the file has lost is ended by
    the system with SIGBUS, and no program can answer that with an exception.

    Attributes
    ----------
    size : int
        Bytes, when it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: mmap.mmap | None = None
        try:
            # O_NONBLOCK: a pipe would wait for a writer. It means nothing for regular files.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(f"{path}: no such file") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise CheckpointError(f"{path}: cannot be read: {_reason(error)}") from error
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: cannot be read: not a regular file")
        self.size = status.st_size
        self._time = status.st_mtime_ns
        if self.size >= len(_LFS) and self.read(0, len(_LFS)).tobytes() == _LFS:
            raise CheckpointError(
                f"{path}: is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
            )

    def fileno(self) -> int:
        """The descriptor, which the object owns."""
        return self._descriptor

    def read(self, start: int, n_bytes: int, within: str = "") -> NDArray[np.uint8]:
        """A copy of `n_bytes` from `start` on.

        Parameters
        ----------
        within : str
            What has these bytes, for the message of a file that ends before.
        """
        data = np.empty(n_bytes, np.uint8)
        view, done = data.data, 0
        while done < n_bytes:
            try:
                n = os.preadv(self._descriptor, [view[done : done + _PIECE]], start + done)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read: {_reason(error)}") from error
            if n == 0:
                where = f", within {within}" if within else ""
                raise CheckpointError(
                    f"{self.path}: ends at byte {start + done}{where}; expected {self.size} bytes, as many "
                    f"as when it was opened (does another program write it?)"
                )
            done += n
        return data

    def check_unchanged(self) -> None:
        """Check that the file has the size and the time of its last change that it had when it was opened."""
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) == (self.size, self._time):
            return
        how = "its bytes were written" if status.st_size == self.size else f"it has {status.st_size} bytes"
        raise CheckpointError(
            f"{self.path}: was changed while it was in use ({how}); expected the file of {self.size} bytes "
            f"that was loaded: load the model again, and replace such files instead of writing to them"
        )

    def map(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """A read-only view of these bytes: it changes with the file, which must not become shorter."""
        if n_bytes == 0:
            return np.zeros(0, np.uint8)
        try:
            if self._mapped is None:
                self._mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            return np.frombuffer(self._mapped, np.uint8, n_bytes, start)
        except (OSError, ValueError) as error:  # ValueError: it has become shorter
            raise CheckpointError(f"{self.path}: cannot be mapped: {_reason(error)}") from error

    def map_copy(self) -> mmap.mmap:
        """The whole file, which must not become shorter, as memory: what is written there stays there."""
        try:
            mapped = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_COPY)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a system without huge pages
                    mapped.madvise(mmap.MADV_HUGEPAGE)  # what is read now can then be mapped at once
            return mapped
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path}: cannot be mapped: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
