"""A file that is read piece by piece, and the tensors that are still in it."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, CheckpointNotFoundError, UnsupportedModelError

_LFS: Final = b"version https://git-lfs"  # how the text that Git LFS leaves in place of a file begins
_PIECE: Final = 1 << 26  # bytes of one system call, so that Ctrl-C is heard in between


class OpenedFile:
    """A regular file of `size` bytes, open for reading until the object goes.

    Bytes are read, not mapped: a page that the file has lost would end the process (SIGBUS).
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
            what = "is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
            raise CheckpointError(f"{path}: {what}")

    def fileno(self) -> int:
        """The descriptor, which the object owns."""
        return self._descriptor

    def read(self, start: int, n_bytes: int, within: str = "") -> NDArray[np.uint8]:
        """A copy of `n_bytes` from `start` on; `within` is what has them, for messages."""
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


PLAIN: Final[Mapping[str, tuple[str, str]]] = {
    "F32": ("f32", "<f4"), "F16": ("f16", "<f2"), "BF16": ("bf16", "<u2"),
}  # fmt: skip
"""Kinds of one number an element: the core's name of the format, and the dtype of its array."""

_LARGE_PIECE: Final = 1 << 24  # bytes


class FileRows(NamedTuple):
    """The rows of a matrix in a file, from `start` on, in an `order` or one after the other, not read."""

    opened: OpenedFile
    start: int
    n_rows: int
    row_bytes: int
    order: NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.n_rows * self.row_bytes

    def chosen(self, order: NDArray[np.int64]) -> FileRows:
        """Some of these rows, which lie one after the other, in another order."""
        if not np.array_equal(order, np.arange(order[0], order[0] + len(order))):
            return self._replace(n_rows=len(order), order=order)
        return self._replace(start=self.start + int(order[0]) * self.row_bytes, n_rows=len(order))


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file; here of plain numbers.

    `name`: As the file calls it. `kind`: What the file calls its numbers: "F32", "BF16", "Q4_K", …; of codes
    of another container the type of GGUF files that has their content. `shape`: Rows first. `start`,
    `n_bytes`: Where its bytes are in the file.
    """

    opened: OpenedFile
    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    n_bytes: int

    @property
    def file(self) -> Path:
        """The path of the file."""
        return self.opened.path

    @property
    def files(self) -> set[Path]:
        """The paths of all files that it lies in."""
        return {self.file}

    @property
    def is_coded(self) -> bool:
        """Whether the file holds codes, which `array` decodes."""
        return False

    @property
    def format(self) -> str:
        """The core's name of the numbers that `array` gives: "f32", "f16" or "bf16"."""
        return PLAIN[self.kind][0] if self.kind in PLAIN else "f32"

    def error(
        self, found: str, expected: str, kind: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        """The exception about this tensor, which `found` speaks of: "has shape [2]"."""
        return error_of(self.file, self.name, found, expected, kind)

    def shape_error(self, expected: str, kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
        """The exception about its shape."""
        return self.error(f"has shape {list(self.shape)}", expected, kind)

    def check(self, numbers: str = "") -> None:
        """Refuse numbers that are not read; where `numbers` is "U8", anything but bytes."""
        self._check_kind((numbers,) if numbers else tuple(PLAIN))

    def _check_kind(self, kinds: Collection[str]) -> None:
        if self.kind not in kinds:
            raise self.error(f"has dtype {self.kind}", ", ".join(kinds), UnsupportedModelError)

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[Any]:
        """The numbers, of `shape`: float32, float16, or uint16 with the bits of bf16; read at each call.

        `index`: Those at this index of the first axis. `numbers`: "U8": of a tensor of bytes.
        """
        self.check(numbers)
        start, n_bytes, shape = self._part(index)
        return self._read(start, n_bytes).view("u1" if numbers else PLAIN[self.kind][1]).reshape(shape)

    def blocks(self, index: int | None = None) -> NDArray[Any]:
        """As `array`; of codes uint8, [*shape[:-1], bytes of a row]: blocks as GGUF files have them."""
        return self.array(index)

    def file_rows(self, index: int | None = None) -> FileRows | None:
        """The rows of a matrix as `blocks` has them, not read; None where the file has something else."""
        start, n_bytes, shape = self._part(index)
        if len(shape) != 2 or n_bytes == 0:
            return None
        return FileRows(self.opened, start, shape[0], n_bytes // shape[0])

    def _part(self, index: int | None) -> tuple[int, int, tuple[int, ...]]:
        """(start, bytes, shape) of the tensor, or of what it has at an index of its first axis."""
        if index is None:
            return self.start, self.n_bytes, self.shape
        size = self.n_bytes // self.shape[0]
        return self.start + index * size, size, self.shape[1:]

    def read(self) -> NDArray[np.uint8]:
        """The bytes as the file has them."""
        return self._read(self.start, self.n_bytes)

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """The same, some at a time."""
        for at in range(0, self.n_bytes, _LARGE_PIECE):
            yield self._read(self.start + at, min(_LARGE_PIECE, self.n_bytes - at))

    def _read(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        return self.opened.read(start, n_bytes, f"tensor '{self.name}'")

    def same_as(self, other: FileTensor) -> bool:
        """Whether both hold the same bits in the same shape."""
        if (self.kind, self.shape, self.n_bytes) != (other.kind, other.shape, other.n_bytes):
            return False
        return all(map(np.array_equal, self.pieces(), other.pieces()))


def error_of(
    file: Path, name: str, found: str, expected: str, kind: type[CheckpointError] = CheckpointError
) -> CheckpointError:
    """The exception about a tensor of a file, which `found` speaks of: "is missing"."""
    error = kind(f"{file}: tensor '{name}' {found}; expected {expected}")
    error.file, error.field, error.value, error.expected = file, name, found, expected
    return error
