"""Files read piece by piece, and tensors that are still in a file."""

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
from specdec.system import OPEN_FLAGS, read_at

_LFS: Final = b"version https://git-lfs"  # prefix of a Git LFS pointer file
_PIECE: Final = 1 << 26  # bytes per system call, between which Ctrl-C is handled


class OpenedFile:
    """A regular file of `size` bytes, open while the object lives; read, not mapped: it may be truncated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: mmap.mmap | None = None
        try:
            self._descriptor = os.open(path, OPEN_FLAGS)
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
            what = "is a Git LFS pointer; run `git lfs pull` in its folder to get the file"
            raise CheckpointError(f"{path}: {what}")

    def fileno(self) -> int:
        """Return the descriptor, which the object owns."""
        return self._descriptor

    def read(self, start: int, n_bytes: int, within: str = "") -> NDArray[np.uint8]:
        """Return a copy of `n_bytes` from `start`; messages name what they are `within`."""
        data = np.empty(n_bytes, np.uint8)
        view, done = data.data, 0
        while done < n_bytes:
            try:
                n = read_at(self._descriptor, view[done : done + _PIECE], start + done)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read: {_reason(error)}") from error
            if n == 0:
                where = f", within {within}" if within else ""
                raise CheckpointError(
                    f"{self.path}: ends at byte {start + done}{where}; expected {self.size} bytes, its size "
                    f"when it was opened (is another program writing it?)"
                )
            done += n
        return data

    def check_unchanged(self) -> None:
        """Check that size and modification time are those at opening."""
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) == (self.size, self._time):
            return
        how = "it was written to" if status.st_size == self.size else f"it has {status.st_size} bytes"
        raise CheckpointError(
            f"{self.path}: changed while in use ({how}); expected the file of {self.size} bytes that was "
            f"loaded: load the model again, and replace such files instead of writing to them"
        )

    def map(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return a read-only mapping of these bytes; the file must not become shorter."""
        if n_bytes == 0:
            return np.zeros(0, np.uint8)
        try:
            if self._mapped is None:
                self._mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            return np.frombuffer(self._mapped, np.uint8, n_bytes, start)
        except (OSError, ValueError) as error:  # ValueError: it has become shorter
            raise CheckpointError(f"{self.path}: cannot be mapped: {_reason(error)}") from error

    def map_copy(self) -> mmap.mmap:
        """Return a private writable mapping of the whole file, which must not become shorter."""
        try:
            mapped = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_COPY)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a system without huge pages
                    mapped.madvise(mmap.MADV_HUGEPAGE)  # maps cached pages at once
            return mapped
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path}: cannot be mapped: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


PLAIN: Final[Mapping[str, tuple[str, str]]] = {
    "F32": ("f32", "<f4"), "F16": ("f16", "<f2"), "BF16": ("bf16", "<u2"),
}  # fmt: skip
"""Unquantized dtypes: the core's name of the format, and the dtype of its array."""

_LARGE_PIECE: Final = 1 << 24  # bytes


class FileRows(NamedTuple):
    """Unread rows of a matrix in a file from `start`, contiguous or in an `order`."""

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
        """Return some of these contiguous rows in another order."""
        if not np.array_equal(order, np.arange(order[0], order[0] + len(order))):
            return self._replace(n_rows=len(order), order=order)
        return self._replace(start=self.start + int(order[0]) * self.row_bytes, n_rows=len(order))


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a file, unquantized in this base class.

    `name`: In the file. `dtype`: In the file: "F32", "BF16", "Q4_K", …; the equivalent ggml type for codes of
    other containers. `shape`: Rows first. `start`, `n_bytes`: Its bytes in the file.
    """

    opened: OpenedFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    n_bytes: int

    @property
    def file(self) -> Path:
        """Path of the file."""
        return self.opened.path

    @property
    def files(self) -> set[Path]:
        """Paths of all files that hold parts of it."""
        return {self.file}

    @property
    def is_coded(self) -> bool:
        """Whether the tensor is quantized, so that `array` dequantizes it."""
        return False

    @property
    def format(self) -> str:
        """The core's name of the format that `array` returns: "f32", "f16" or "bf16"."""
        return PLAIN[self.dtype][0] if self.dtype in PLAIN else "f32"

    def error(
        self, found: str, expected: str, error_type: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        """Return an exception about this tensor; `found` is a predicate such as "has shape [2]"."""
        return error_of(self.file, self.name, found, expected, error_type)

    def shape_error(
        self, expected: str, error_type: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        """Return an exception about its shape."""
        return self.error(f"has shape {list(self.shape)}", expected, error_type)

    def check(self, numbers: str = "") -> None:
        """Refuse unsupported dtypes; with `numbers` "U8", any dtype but bytes."""
        self._check_dtype((numbers,) if numbers else tuple(PLAIN))

    def _check_dtype(self, dtypes: Collection[str]) -> None:
        if self.dtype not in dtypes:
            raise self.error(f"has dtype {self.dtype}", ", ".join(dtypes), UnsupportedModelError)

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[Any]:
        """Read the values, of `shape`: float32, float16, or uint16 with the bits of bf16.

        `index`: Select from the first axis. `numbers`: "U8" for a tensor of bytes.
        """
        self.check(numbers)
        start, n_bytes, shape = self._part(index)
        return self._read(start, n_bytes).view("u1" if numbers else PLAIN[self.dtype][1]).reshape(shape)

    def blocks(self, index: int | None = None) -> NDArray[Any]:
        """Read as `array`; a quantized tensor as ggml blocks, uint8, [*shape[:-1], bytes per row]."""
        return self.array(index)

    def file_rows(self, index: int | None = None) -> FileRows | None:
        """Return a matrix's unread rows in the layout of `blocks`; None if the file has another layout."""
        start, n_bytes, shape = self._part(index)
        if len(shape) != 2 or n_bytes == 0:
            return None
        return FileRows(self.opened, start, shape[0], n_bytes // shape[0])

    def _part(self, index: int | None) -> tuple[int, int, tuple[int, ...]]:
        """Return (start, bytes, shape) of the tensor, or of one index of its first axis."""
        if index is None:
            return self.start, self.n_bytes, self.shape
        size = self.n_bytes // self.shape[0]
        return self.start + index * size, size, self.shape[1:]

    def read(self) -> NDArray[np.uint8]:
        """Read the tensor's bytes."""
        return self._read(self.start, self.n_bytes)

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the tensor's bytes in pieces."""
        for at in range(0, self.n_bytes, _LARGE_PIECE):
            yield self._read(self.start + at, min(_LARGE_PIECE, self.n_bytes - at))

    def _read(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        return self.opened.read(start, n_bytes, f"tensor '{self.name}'")

    def same_as(self, other: FileTensor) -> bool:
        """Return whether both hold the same bits in the same shape."""
        if (self.dtype, self.shape, self.n_bytes) != (other.dtype, other.shape, other.n_bytes):
            return False
        return all(map(np.array_equal, self.pieces(), other.pieces()))


def error_of(
    file: Path, name: str, found: str, expected: str, error_type: type[CheckpointError] = CheckpointError
) -> CheckpointError:
    """Return an exception about a tensor of a file; `found` is a predicate such as "is missing"."""
    error = error_type(f"{file}: tensor '{name}' {found}; expected {expected}")
    error.file, error.field, error.value, error.expected = file, name, found, expected
    return error
