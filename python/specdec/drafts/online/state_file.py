"""The file of a draft that learns: a safetensors file of reals and integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata

__all__ = ["read_arrays"]


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays of a file, of float32 and integers, and its metadata.

    Raises
    ------
    CheckpointError
        The file is damaged, or has numbers of other types.
    """
    tensors, metadata = read_safetensors_with_metadata(path)
    arrays = {
        name: tensor.integers() if tensor.kind.startswith("I") else tensor.array()
        for name, tensor in tensors.items()
    }
    return arrays, metadata
