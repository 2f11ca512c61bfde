"""A tensor that is still in its file, whatever the format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.models.checkpoints.opened_file import OpenedFile

__all__ = ["FileTensor"]

_COMPARED: Final = 1 << 24  # bytes


@dataclass(frozen=True)
class FileTensor(ABC):
    """A tensor of a file.

    Attributes
    ----------
    opened : OpenedFile
    name : str
        As the file calls it.
    kind : str
        What the file calls its numbers: "F32", "BF16", "Q4_K", …
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
    @abstractmethod
    def format(self) -> str:
        """The core's name of the numbers that `array` gives: "f32", "f16" or "bf16"."""

    @abstractmethod
    def check(self, numbers: str = "") -> None:
        """Refuse numbers that are not read.

        Raises
        ------
        UnsupportedModelError
        """

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

    def read(self) -> NDArray[np.uint8]:
        """The bytes as the file has them."""
        return self.opened.read(self.start, self.n_bytes)

    def same_as(self, other: FileTensor) -> bool:
        """Whether both hold the same bits in the same shape."""
        if (self.kind, self.shape) != (other.kind, other.shape):
            return False
        for at in range(0, self.n_bytes, _COMPARED):
            n = min(_COMPARED, self.n_bytes - at)
            mine = self.opened.read(self.start + at, n)
            if not np.array_equal(mine, other.opened.read(other.start + at, n)):
                return False
        return True
