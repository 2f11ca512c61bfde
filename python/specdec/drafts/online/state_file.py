"""Arrays in a file: safetensors, with words of its own among the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata

__all__ = ["read_arrays", "write_arrays"]

_NAMES: Final = {np.dtype(np.int32): "I32", np.dtype(np.float32): "F32"}


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write arrays of float32 and int32, which are there as a whole or not at all."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        dtype, shape = _NAMES[array.dtype], list(array.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays of a file, of float32 and integers, and its metadata.

    Raises
    ------
    CheckpointError
        The file is damaged, or has numbers of other types.
    """
    tensors, metadata = read_safetensors_with_metadata(path)
    arrays = {
        name: tensor.integers() if tensor.dtype.startswith("I") else tensor.array()
        for name, tensor in tensors.items()
    }
    return arrays, metadata
