"""GGUF files are written: metadata first, then tensors one by one."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.errors import InputError
from specdec.models.checkpoints.gguf_file import MAGIC, type_sizes

__all__ = ["NewTensor", "write_gguf"]

_VERSION: Final = 3
_ALIGNMENT: Final = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT8 = 4, 5, 6, 7, 8, 9, 0
_ARRAY_ITEMS: Final[Mapping[str, int]] = {
    "uint8": _UINT8,
    "int32": _INT32,
    "float32": _FLOAT32,
    "bool": _BOOL,
}


@dataclass(frozen=True)
class NewTensor:
    """A tensor that a file is to hold.

    Attributes
    ----------
    shape : tuple of int
        Rows first.
    type : str
        As ggml calls it.
    """

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def n_bytes(self) -> int:
        """How many bytes the file has for it."""
        _, (elements, size) = type_sizes()[self.type]
        return int(np.prod(self.shape, dtype=object)) // elements * size


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: list[NewTensor], data: Iterator[NDArray[Any]]
) -> None:
    """Write a file of version 3, which is there as a whole or not at all.

    Parameters
    ----------
    path : Path
        A file that is there is replaced.
    metadata : mapping
        Full keys to bool, int (32 bits), float, str, a list of str, or an ndarray of uint8, int32, float32
        or bool.
    tensors : list of NewTensor
        In the order of the file.
    data : iterator of ndarray
        The bytes of each, in the same order; taken one by one.
    """
    with replacing(path) as file:
        file.write(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_string(key) + _value(key, value))
        offset = 0
        for tensor in tensors:
            number, _ = type_sizes()[tensor.type]
            shape = tuple(reversed(tensor.shape))
            file.write(
                _string(tensor.name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)
            )
            offset += tensor.n_bytes + -tensor.n_bytes % _ALIGNMENT
        _pad(file)
        for tensor in tensors:
            array = next(data)
            assert array.nbytes == tensor.n_bytes, tensor.name
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            del array
            _pad(file)


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Any) -> bytes:
    """Type and bytes of a value."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        kind, form = (_INT32, "i") if value < 0 else (_UINT32, "I")
        if not -(1 << 31) <= value < 1 << 32:
            raise InputError(f"metadata field {key!r} is {value}; expected a whole number of 32 bits")
        return struct.pack(f"<I{form}", kind, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, np.ndarray):
        head = struct.pack("<IIQ", _ARRAY, _ARRAY_ITEMS[value.dtype.name], len(value))
        return head + value.astype(value.dtype.newbyteorder("<")).tobytes()
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
