"""A tensor that is still in its file, whatever the format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.models.checkpoints.opened_file import OpenedFile

__all__ = ["PLAIN", "FileRows", "FileTensor"]

PLAIN: Final[Mapping[str, tuple[str, str]]] = {
    "F32": ("f32", "<f4"),
    "F16": ("f16", "<f2"),
    "BF16": ("bf16", "<u2"),
}
"""Kinds of one number an element: the core's name of the format, and the dtype of its array."""

_PIECE: Final = 1 << 24  # bytes


class FileRows(NamedTuple):
    """The rows of a matrix, still in the file, which the core reads when it packs them.

    Attributes
    ----------
    start : int
        Where row 0 is in the file.
    order : ndarray of int64 or None
        Which row of the file each row is; None: one after the other.
    """

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
class FileTensor(ABC):
    """A tensor of a file.

    Attributes
    ----------
    name : str
        As the file calls it.
    kind : str
        What the file calls its numbers: "F32", "BF16", "Q4_K", …; of codes of another container the type of
        GGUF files that has their content.
    shape : tuple of int
        Rows first.
    start, n_bytes : int
        Where its bytes are in the file.
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

    @abstractmethod
    def check(self, numbers: str = "") -> None:
        """Refuse numbers that are not read."""

    @abstractmethod
    def array(self, index: int | None = None, numbers: str = "") -> NDArray[Any]:
        """The numbers, of `shape`: float32, float16, or uint16 with the bits of bf16; read at each call.

        Parameters
        ----------
        index : int, optional
            Those at this index of the first axis.
        numbers : str
            "U8": of a tensor of bytes.
        """

    def blocks(self, index: int | None = None) -> NDArray[Any]:
        """As `array`; of codes uint8, [*shape[:-1], bytes of a row]: blocks as GGUF files have them."""
        return self.array(index)

    def file_rows(self, index: int | None = None) -> FileRows | None:
        """The rows of a matrix as `blocks` has them, not read; None where the file has something else."""
        return None

    def _rows_there(self, index: int | None) -> FileRows | None:
        """The rows of a matrix that the file holds as it is."""
        shape, start, n_bytes = self.shape, self.start, self.n_bytes
        if index is not None:
            n_bytes //= shape[0]
            shape, start = shape[1:], start + index * n_bytes
        if len(shape) != 2 or n_bytes == 0:
            return None
        return FileRows(self.opened, start, shape[0], n_bytes // shape[0])

    def read(self) -> NDArray[np.uint8]:
        """The bytes as the file has them."""
        return self._read(self.start, self.n_bytes)

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """The same, some at a time."""
        for at in range(0, self.n_bytes, _PIECE):
            yield self._read(self.start + at, min(_PIECE, self.n_bytes - at))

    def _read(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        return self.opened.read(start, n_bytes, f"tensor '{self.name}'")

    def same_as(self, other: FileTensor) -> bool:
        """Whether both hold the same bits in the same shape."""
        if (self.kind, self.shape, self.n_bytes) != (other.kind, other.shape, other.n_bytes):
            return False
        return all(map(np.array_equal, self.pieces(), other.pieces()))
