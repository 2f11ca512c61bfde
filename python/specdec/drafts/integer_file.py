"""Arrays of integers in a safetensors file, which can be mapped and which other programs can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError
from specdec.models.checkpoints.safetensors_file import StoredTensor, read_safetensors_with_metadata

__all__ = ["IntegerFile"]


class IntegerFile:
    """The arrays of a file, taken one by one.

    Parameters
    ----------
    path : Path
    expected : mapping of str to str
        What the file must say of itself.

    Attributes
    ----------
    tensors : dict of str to StoredTensor
        Those that have not been taken.
    metadata : dict of str to str

    Raises
    ------
    CheckpointError
        The file is damaged, or holds something else.
    """

    def __init__(self, path: Path, expected: Mapping[str, str]) -> None:
        self.path = path
        self.tensors: dict[str, StoredTensor]
        self.tensors, self.metadata = read_safetensors_with_metadata(path)
        for name, value in expected.items():
            if self.metadata.get(name) != value:
                raise CheckpointError(
                    f"{path}: metadata field '{name}' is {self.metadata.get(name)!r}; expected {value!r}"
                )

    def take(self, name: str, *, mmap: bool = False) -> NDArray[Any]:
        """An array, in memory or as a view of the mapped file.

        Raises
        ------
        CheckpointError
            There is none of this name, or it holds no integers.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{name}' is missing")
        return self.tensors.pop(name).integers(mmap=mmap)

    def take_ids(self, name: str) -> NDArray[np.int32]:
        """An array of int32 of one dimension, in memory; raises as `take`."""
        array = self.take(name)
        if array.dtype != np.int32 or array.ndim != 1:
            raise CheckpointError(
                f"{self.path}: tensor '{name}' has shape {array.shape} and dtype {array.dtype}; expected one "
                f"dimension and int32"
            )
        return array

    def number(self, name: str, low: int, high: int) -> int:
        """A field of the metadata that is an integer from low to high.

        Raises
        ------
        CheckpointError
        """
        text = self.metadata.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
        raise CheckpointError(
            f"{self.path}: metadata field '{name}' is {text!r}; expected an integer, {low} to {high}"
        )

    def check_end(self, of: str) -> None:
        """Refuse a file with arrays that have not been taken; `of` is what it holds.

        Raises
        ------
        CheckpointError
        """
        if self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{min(self.tensors)}' is none of {of}")
