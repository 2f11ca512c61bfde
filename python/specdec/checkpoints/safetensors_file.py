"""Weights in safetensors files, mapped: one file, or shards with an index.

The format is eight bytes of little-endian header length, a JSON header, and the tensors' bytes. The header
is read here rather than by the ``safetensors`` library because that library's NumPy face has no bf16, hands
out copies instead of views of the mapping, and its errors name neither file nor tensor. What is accepted is
what the library accepts (the tests compare the two over damaged files), less duplicate names, where it
takes the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, CheckpointNotFoundError, UnsupportedModelError
from specdec.fields import read_json_object

__all__ = ["StoredTensor", "open_weights", "read_metadata", "read_safetensors"]

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"

_MAX_HEADER: Final = 100_000_000  # the format's own limit, in bytes
_MAX_INT: Final = 2**63 - 1

# Bits per element of every dtype the format names; a needed tensor must be one of _FORMATS.
_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}
_FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "F32": ("f32", "<f4"),
    "F16": ("f16", "<f2"),
    "BF16": ("bf16", "<u2"),
}
_INTEGERS: Final[Mapping[str, str]] = {"I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file.

    Attributes
    ----------
    file : Path
    name : str
        As the file calls it.
    dtype : str
        As the file calls it: "F32", "BF16", …
    shape : tuple of int
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    _bytes: NDArray[np.uint8] = field(repr=False)

    @property
    def format(self) -> str:
        """The core's name of the number format: "f32", "f16" or "bf16".

        Raises
        ------
        UnsupportedModelError
            The file holds it in another one.
        """
        if self.dtype not in _FORMATS:
            raise UnsupportedModelError(
                f"{self.file}: tensor '{self.name}' has dtype {self.dtype}; expected {', '.join(_FORMATS)}"
            )
        return _FORMATS[self.dtype][0]

    @property
    def n_bytes(self) -> int:
        """How much of the file it takes."""
        return self._bytes.size

    def array(self) -> NDArray[np.generic]:
        """The numbers, shape ``self.shape``: float32, float16, or uint16 with the bits of bf16.

        A view of the mapped file; a copy where the file starts the tensor at an address the type does not
        allow.
        """
        _ = self.format
        return self._view(_FORMATS[self.dtype][1])

    def integers(self) -> NDArray[np.integer[Any]]:
        """The numbers of a tensor of integers, int32 or int64; as `array`.

        Raises
        ------
        UnsupportedModelError
            The file holds something else.
        """
        if self.dtype not in _INTEGERS:
            raise UnsupportedModelError(
                f"{self.file}: tensor '{self.name}' has dtype {self.dtype}; expected {', '.join(_INTEGERS)}"
            )
        return self._view(_INTEGERS[self.dtype])

    def _view(self, dtype: str) -> NDArray[Any]:
        array = self._bytes.view(dtype).reshape(self.shape)
        return array if array.flags.aligned else array.copy()

    def same_as(self, other: StoredTensor) -> bool:
        """Whether both hold the same bits in the same shape."""
        return (
            self.dtype == other.dtype
            and self.shape == other.shape
            and np.array_equal(self._bytes, other._bytes)
        )


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a Hugging Face folder, by the name the files give them.

    ``model.safetensors`` is taken where it exists, else the shards of ``model.safetensors.index.json``.

    Raises
    ------
    CheckpointNotFoundError
        Neither is there, or a shard is missing.
    CheckpointError
        A file is damaged, or the index and its shards disagree.
    """
    single = folder / SINGLE_NAME
    if single.is_file():
        return read_safetensors(single)
    index = folder / INDEX_NAME
    if not index.is_file():
        others = sorted(
            p.name for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".gguf", ".safetensors"}
        )
        raise CheckpointNotFoundError(
            f"{folder}: has neither {SINGLE_NAME} nor {INDEX_NAME}"
            + (f"; of the weights it has ({', '.join(others)}) none is read" if others else "")
        )
    return _read_shards(index)


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: field 'weight_map' is missing, empty or no object; expected one")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted({str(shard) for shard in weight_map.values()}):
        _check_shard_name(index, shard)
        held = read_safetensors(index.parent / shard)
        for name, tensor in held.items():
            claimed = weight_map.get(name)
            if claimed != shard:
                raise CheckpointError(
                    f"{index.parent / shard}: holds tensor '{name}', which {index.name} "
                    + (f"puts in {claimed!r}" if name in weight_map else "does not list")
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"{index}: puts tensor '{name}' in {shard!r}, which does not hold it")
    return tensors


def _check_shard_name(index: Path, shard: str) -> None:
    # An index comes from strangers; it may name files of its own folder and no others.
    parts = PurePosixPath(shard).parts
    if len(parts) != 1 or parts[0] in {"..", "/"} or "\\" in shard or "\0" in shard:
        raise CheckpointError(
            f"{index}: names the shard {shard!r}; expected the name of a file in the same folder"
        )


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Map one safetensors file and check its header against its size.

    Raises
    ------
    CheckpointNotFoundError
        There is no such file.
    CheckpointError
        It is truncated, its header is not what the format says, or two tensors share or leave out bytes.
    """
    header, data = _open(path)
    header.pop("__metadata__", None)
    return _check_layout(path, header, data)


def read_metadata(path: Path) -> dict[str, str]:
    """What one safetensors file says of itself; raises as `read_safetensors`."""
    return dict(_open(path)[0].get("__metadata__") or {})


def _open(path: Path) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """The header of a file, and the mapped bytes behind it."""
    try:
        size = path.stat().st_size
        if size < 8:
            raise CheckpointError(f"{path}: has {size} bytes; expected at least 8, the length of the header")
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error

    n_header = int.from_bytes(data[:8].tobytes(), "little")
    if n_header > _MAX_HEADER:
        raise CheckpointError(f"{path}: header length is {n_header}; expected at most {_MAX_HEADER}")
    if 8 + n_header > data.size:
        raise CheckpointError(
            f"{path}: header length is {n_header}; expected at most {data.size - 8}, what the file holds"
        )
    return _parse_header(path, data[8 : 8 + n_header].tobytes()), data[8 + n_header :]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r} occurs more than once")
    return values


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: header begins with {text[:1]!r}; expected b'{{'")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: header is not valid JSON: {error}") from error
    metadata = header.get("__metadata__")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise CheckpointError(
            f"{path}: header field '__metadata__' has other values than strings; expected strings"
        )
    return header


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT


def _check_layout(path: Path, header: dict[str, Any], data: NDArray[np.uint8]) -> dict[str, StoredTensor]:
    """Every tensor's bytes: as many as shape and dtype say, one after the other, all of the file."""
    ranges: list[tuple[int, int, str]] = []
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        where = f"{path}: tensor '{name}'"
        if not isinstance(entry, dict):
            raise CheckpointError(
                f"{where}: header entry is no object; expected dtype, shape and data_offsets"
            )
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise CheckpointError(f"{where}: dtype is {dtype!r}; expected one of {', '.join(_BITS)}")
        if not isinstance(shape, list) or not all(map(_is_size, shape)):
            raise CheckpointError(f"{where}: shape is {shape!r}; expected a list of whole numbers from 0")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
            raise CheckpointError(f"{where}: data_offsets is {offsets!r}; expected two whole numbers from 0")
        start, stop = offsets
        if not start <= stop <= data.size:
            raise CheckpointError(
                f"{where}: data_offsets is [{start}, {stop}]; expected begin <= end <= {data.size}, "
                f"the bytes that follow the header (is the file truncated?)"
            )
        n_bits = _BITS[dtype]
        for extent in shape:
            n_bits *= extent
        if n_bits != 8 * (stop - start):
            raise CheckpointError(
                f"{where}: data_offsets span {stop - start} bytes; expected {n_bits / 8:g} "
                f"for shape {shape} of {dtype}"
            )
        ranges.append((start, stop, name))
        tensors[name] = StoredTensor(path, name, dtype, tuple(shape), data[start:stop])

    end, before = 0, "the header"
    for start, stop, name in sorted(ranges):
        if start != end:
            fault = "overlaps" if start < end else "leaves unused bytes after"
            raise CheckpointError(
                f"{path}: tensor '{name}' begins at byte {start} and {fault} {before}; expected {end}"
            )
        end, before = stop, f"tensor '{name}'"
    if end != data.size:
        raise CheckpointError(
            f"{path}: {data.size - end} bytes follow {before}; expected none after byte {end} of the data"
        )
    return tensors
