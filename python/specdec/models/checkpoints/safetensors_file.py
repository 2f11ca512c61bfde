"""Weights in safetensors files: one file, or shards with an index.

The package ``safetensors`` is not used: for NumPy it has no bf16, it maps the file, which must then not
change, and its errors name neither file nor tensor. The same files are accepted, except for duplicate names.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.errors import CheckpointError, CheckpointNotFoundError
from specdec.fields import as_json, read_json_object
from specdec.models.checkpoints.file_tensor import FileTensor, OpenedFile, error_of

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"

_MAX_HEADER: Final = 100_000_000  # limit of the format, in bytes
_MAX_INT: Final = 2**63 - 1
_MAX_BITS: Final = 2**67  # more than any file holds; bounds products of dimensions

# Bits per element of every dtype of the format; a needed tensor must have one of PLAIN.
_BITS: Final[Mapping[str, int]] = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}
_INTEGERS: Final[Mapping[str, str]] = {"I32": "<i4", "I64": "<i8"}
_WRITTEN: Final[Mapping[str, str]] = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "int32": "I32", "int64": "I64",
    "bool": "BOOL",
}  # fmt: skip
"""NumPy's dtype names to those of the format."""
_NAMES: Final = {name: name for name in _WRITTEN} | {"uint16": "bfloat16"}
"""Array dtypes to written dtypes; uint16 holds the bits of bf16."""


class StoredTensor(FileTensor):
    """A tensor of a safetensors file, still in the file."""

    @property
    def format(self) -> str:
        """The core's name of the number format; refuses other dtypes than f32, f16 and bf16."""
        self.check()
        return super().format

    def integers(self, *, mmap: bool = False) -> NDArray[np.integer[Any]]:
        """Read a tensor of int32 or int64; with `mmap` as a view of the mapped file, if aligned."""
        self._check_dtype(_INTEGERS)
        data = self.opened.map(self.start, self.n_bytes) if mmap else self.read()
        array = data.view(_INTEGERS[self.dtype]).reshape(self.shape)
        return array if array.flags.aligned else array.copy()


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a folder by name, from ``model.safetensors`` or the shards of an index."""
    single, index = folder / SINGLE_NAME, folder / INDEX_NAME
    if single.is_file():
        return read_safetensors(single)
    if index.is_file():
        return _read_shards(index)
    endings = {".bin", ".pt", ".pth", ".gguf", ".safetensors"}
    others = ", ".join(sorted(p.name for p in folder.iterdir() if p.suffix in endings))
    wanted = "the whole model's weights in safetensors, as written by transformers' save_pretrained"
    held = f", but {others}" if others else ""
    found = f"has neither {SINGLE_NAME} nor {INDEX_NAME}{held}"
    raise CheckpointNotFoundError(f"{folder}: {found}; expected {wanted}")


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError.of(index, "weight_map", weight_map, "an object of tensor and file names")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted({str(shard) for shard in weight_map.values()}):
        # An index is untrusted: it may only name files in its own folder.
        parts = PurePosixPath(shard).parts
        if len(parts) != 1 or parts[0] in {"..", "/"} or "\\" in shard or not shard.isprintable():
            raise CheckpointError.of(index, "weight_map", shard, "file names in the same folder")
        file = index.parent / shard
        for name, tensor in read_safetensors(file).items():
            if weight_map.get(name) != shard:
                listed = f"lists it in {weight_map[name]!r}" if name in weight_map else "does not list it"
                raise error_of(file, name, f"is in this file, but {index.name} {listed}", "both to agree")
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors:
            raise error_of(index, name, f"is listed in {shard!r}, which lacks it", "the file that has it")
    return tensors


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Open a safetensors file and check its header against its size."""
    return read_safetensors_with_metadata(path)[0]


def read_safetensors_with_metadata(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata; see `read_safetensors`."""
    opened = OpenedFile(path)
    if opened.size < 8:
        raise CheckpointError(f"{path}: has {opened.size} bytes; expected at least 8, the header's length")
    n_header = int.from_bytes(opened.read(0, 8).tobytes(), "little")
    most = min(_MAX_HEADER, opened.size - 8)
    if n_header > most:
        raise CheckpointError(f"{path}: header length is {n_header}; expected at most {most}")
    header = _parse_header(path, opened.read(8, n_header).tobytes())
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise CheckpointError.of(path, "__metadata__", metadata, "an object of strings", noun="header field")
    return _check_layout(opened, header, 8 + n_header), metadata or {}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {twice!r} occurs more than once")
    return values


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: header starts with {text[:1]!r}; expected b'{{'")
    try:
        header: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: header is not valid JSON: {error}") from error
    return header


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int and 0 <= one <= _MAX_INT for one in value)


def _count_bits(dtype: str, shape: list[int]) -> int:
    """Return the bits of a tensor, or some number above `_MAX_BITS`."""
    n_bits = _BITS[dtype]
    for extent in shape:
        n_bits *= extent
        if n_bits > _MAX_BITS:
            break
    return n_bits


def _check_layout(opened: OpenedFile, header: dict[str, Any], first: int) -> dict[str, StoredTensor]:
    """Return the tensors; their bytes must fit shape and dtype and fill the file from `first`."""
    path, size = opened.path, opened.size - first
    ranges: list[tuple[int, int, str]] = []
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():

        def refused(key: str, value: Any, expected: str, name: str = name) -> CheckpointError:
            return error_of(path, name, f"has {key} {as_json(value)}", expected)

        if not isinstance(entry, dict):
            raise refused("the header entry", entry, "an object of dtype, shape and data_offsets")
        dtype, shape, offsets = map(entry.get, ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise refused("dtype", dtype, f"one of {', '.join(_BITS)}")
        if not _are_sizes(shape):
            raise refused("shape", shape, "a list of non-negative integers")
        if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
            expected = f"[begin, end] with begin <= end <= {size}, the bytes after the header"
            raise refused("data_offsets", offsets, f"{expected} (is the file truncated?)")
        start, stop = offsets
        n_bits = _count_bits(dtype, shape)
        if n_bits != 8 * (stop - start):
            wanted = n_bits if n_bits <= _MAX_BITS else f"more than {_MAX_BITS}"
            raise refused("data_offsets", offsets, f"{wanted} bits for shape {as_json(shape)} of {dtype}")
        ranges.append((start, stop, name))
        tensors[name] = StoredTensor(opened, name, dtype, tuple(shape), first + start, stop - start)

    end, before = 0, "the header"
    for start, stop, name in sorted(ranges):
        if start != end:
            fault = "overlaps" if start < end else "leaves unused bytes after"
            raise error_of(path, name, f"starts at byte {start} and {fault} {before}", str(end))
        end, before = stop, f"tensor '{name}'"
    if end != size:
        raise CheckpointError(
            f"{path}: {size - end} bytes follow {before}; expected none after byte {end} of the data"
        )
    return tensors


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write arrays atomically, larger items first for alignment; uint16 is bf16."""
    ordered = sorted(arrays.items(), key=lambda entry: -entry[1].itemsize)
    described = {name: (_NAMES[array.dtype.name], array.shape) for name, array in ordered}
    write_tensors(path, described, (array for _, array in ordered), metadata)


def written_bytes(numbers: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor in a file."""
    return math.prod(shape) * _BITS[_WRITTEN[numbers]] // 8


def write_tensors(
    path: Path, described: Mapping[str, tuple[str, tuple[int, ...]]], arrays: Iterator[NDArray[Any]],
    metadata: Mapping[str, str],
) -> None:  # fmt: skip
    """Write tensors from an iterator; `described` has the dtype ("float32") and shape of each."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (numbers, shape) in described.items():
        begin = end
        end += written_bytes(numbers, shape)
        header[name] = {"dtype": _WRITTEN[numbers], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
            file.write(flat.view(np.uint8).data)
