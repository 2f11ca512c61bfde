"""GGUF files: metadata, and tensors that are still in the file.

Constants come from the package ``gguf``. Its reader is not used: it makes an array of each string, which
costs seconds and hundreds of megabytes for a common vocabulary, and hangs on some damaged files.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, CheckpointNotFoundError, MissingGGUFError, UnsupportedModelError
from specdec.fields import as_json
from specdec.models.checkpoints.file_tensor import PLAIN, FileTensor, OpenedFile, error_of
from specdec.models.number_formats import widened

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32  # bytes, without general.alignment
_MAX_ALIGNMENT: Final = 1 << 20
_MAX_DIMENSIONS: Final = 4
_MAX_NAME: Final = 1 << 16  # bytes of a key or a tensor name
_MAX_PARTS: Final = 10_000
_MAX_ELEMENTS: Final = 1 << 48
# Larger than any model; Python objects take some twenty times the bytes of the smallest entries.
_MAX_ENTRIES: Final = 1 << 16  # tensors, or metadata values
_MAX_STRINGS: Final = 1 << 21  # in an array
_WINDOW: Final = 1 << 20  # bytes read at a time
_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")

_STRING, _ARRAY = 8, 9
_LENGTH: Final = struct.Struct("<Q")  # string length in bytes
_NUMBERS: Final[Mapping[int, np.dtype[Any]]] = {
    value_type: np.dtype(name)
    for value_type, name in enumerate("<u1 <i1 <u2 <i2 <u4 <i4 <f4 <? - - <u8 <i8 <f8".split())
    if name != "-"
}
"""Numeric value types, by the ids of the format."""


def is_gguf(path: Path) -> bool:
    """Return whether a file starts with the GGUF magic."""
    opened = OpenedFile(path)
    return opened.size >= 4 and opened.read(0, 4).tobytes() == MAGIC


@dataclass(frozen=True)
class StoredBlocks(FileTensor):
    """A tensor of a GGUF file; `block` is (elements, bytes), (1, 4) for F32."""

    block: tuple[int, int]

    @property
    def is_coded(self) -> bool:
        """Whether the tensor is quantized, so that `array` dequantizes it."""
        return self.dtype not in PLAIN

    def check(self, numbers: str = "") -> None:
        """Refuse unsupported types; see `FileTensor`."""
        known = sorted((*PLAIN, *_decoders()))
        if numbers or self.dtype not in known:
            raise self.error(f"has type {self.dtype}", ", ".join(known), UnsupportedModelError)

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[Any]:
        """Read the values, dequantized by ``gguf`` to float32; see `FileTensor`."""
        if not self.is_coded:
            return super().array(index, numbers)
        self.check(numbers)
        from gguf import quants

        with np.errstate(all="ignore"):  # damaged scales; the core refuses values that are not finite
            decoded: NDArray[np.float32] = quants.dequantize(self.blocks(index), _decoders()[self.dtype])
        return decoded

    def blocks(self, index: int | None = None) -> NDArray[Any]:
        """Read the blocks of the file; see `FileTensor`."""
        if not self.is_coded:
            return self.array(index)
        start, n_bytes, shape = self._part(index)
        elements, size = self.block
        return self._read(start, n_bytes).reshape(*shape[:-1], shape[-1] // elements * size)

    def numbers(self) -> NDArray[np.float32]:
        """Read all values as float32."""
        return widened(self.array(), self.format)


class GGUFFile(Mapping[str, Any]):
    """Metadata of a GGUF file, whose strings are decoded on access, and its `tensors`."""

    def __init__(self, opened: OpenedFile) -> None:
        self._opened = opened
        self.path = opened.path
        self._values: dict[str, Any] = {}
        cursor = _Cursor(opened)
        n_tensors, n_values = self._read_head(cursor)
        for _ in range(n_values):
            key = cursor.name("a metadata key")
            if key in self._values:
                raise self.error(f"metadata field '{key}' is duplicate; expected it once")
            self._values[key] = self._read_value(cursor, f"metadata field '{key}'")
        tensors = [self._read_tensor(cursor) for _ in range(n_tensors)]
        self.tensors = self._placed(tensors, cursor.at)

    def error(self, message: str) -> CheckpointError:
        """Return an exception that names the file."""
        return CheckpointError(f"{self.path}: {message}")

    def field_error(self, key: str, expected: str, *value: Any) -> CheckpointError:
        """Return an exception about a metadata field, or about a `value` inside it."""
        found = value[0] if value else self[key]
        return CheckpointError.of(self.path, key, found, expected, noun="metadata field")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: str) -> Any:
        """Return a metadata value: bool, int, float, str, list of str, or ndarray."""
        value = self._values[key]
        try:
            if isinstance(value, bytes):
                return value.decode("utf-8")
            return [text.decode("utf-8") for text in value] if isinstance(value, list) else value
        except UnicodeDecodeError as error:
            raise self.error(f"metadata field '{key}' has a string that is not UTF-8: {error}") from error

    def _read_head(self, cursor: _Cursor) -> tuple[int, int]:
        """Return the numbers of tensors and of metadata values."""
        magic = cursor.take(4)
        if magic != MAGIC:
            raise self.error(f"starts with {magic!r}; expected {MAGIC!r}, a GGUF file")
        version = cursor.integer(4)
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "with big-endian byte order" if swapped in _VERSIONS else f"of version {version}"
            expected = f"version {' or '.join(map(str, _VERSIONS))}, little-endian"
            raise UnsupportedModelError(f"{self.path}: is a GGUF file {what}; expected {expected}")
        n_tensors, n_values = cursor.integer(8), cursor.integer(8)
        # Bytes of the smallest tensor and of the smallest value: larger counts mean damage.
        for name, n, least in (("tensors", n_tensors, 24), ("values", n_values, 13)):
            most = min(self._opened.size // least, _MAX_ENTRIES)
            if n > most:
                raise self.error(f"claims {n} {name}; expected at most {most} in a file of its size")
        return n_tensors, n_values

    def _read_value(self, cursor: _Cursor, what: str) -> Any:
        value_type = cursor.integer(4)
        if value_type in _NUMBERS:
            return cursor.numbers(value_type, 1)[0].item()
        if value_type == _STRING:
            return cursor.take(cursor.size(what))
        if value_type != _ARRAY:
            raise self.error(f"{what} has type {value_type}; expected 0 to 12")
        item, n = cursor.integer(4), cursor.integer(8)
        if item in _NUMBERS:
            return cursor.numbers(item, n)
        if item != _STRING:
            found = f"{what} is an array of items of type {item}"
            raise UnsupportedModelError(f"{self.path}: {found}; expected numbers or strings")
        if n > _MAX_STRINGS:
            raise self.error(f"{what} is an array of {n} strings; expected at most {_MAX_STRINGS}")
        cursor.check(8 * n)
        return cursor.strings(n, what)

    def _read_tensor(self, cursor: _Cursor) -> StoredBlocks:
        """Read a tensor's description; `start` is its offset in the data section."""
        name = cursor.name("a tensor name")
        n_dims = cursor.integer(4)
        if not 1 <= n_dims <= _MAX_DIMENSIONS:
            raise error_of(self.path, name, f"has {n_dims} dimensions", f"1 to {_MAX_DIMENSIONS}")
        extents = [cursor.integer(8) for _ in range(n_dims)]
        n = math.prod(extents)
        if not 0 < n <= _MAX_ELEMENTS:
            raise error_of(self.path, name, f"has the dimensions {as_json(extents)}", "at least one element")
        number = cursor.integer(4)
        if number not in _types():
            expected = "a type that the installed package `gguf` knows (pip install -U gguf)"
            raise error_of(self.path, name, f"has type {number}", expected, UnsupportedModelError)
        dtype, block = _types()[number]
        if extents[0] % block[0]:
            found = f"of type {dtype} has rows of {extents[0]} elements"
            raise error_of(self.path, name, found, f"a multiple of {block[0]}")
        shape, n_bytes = tuple(reversed(extents)), n // block[0] * block[1]
        return StoredBlocks(self._opened, name, dtype, shape, cursor.integer(8), n_bytes, block)

    def _placed(self, tensors: list[StoredBlocks], end: int) -> dict[str, StoredBlocks]:
        """Return the tensors at absolute positions, checked for alignment, size and overlap."""
        key = "general.alignment"
        n = self.get(key, _ALIGNMENT)
        if not isinstance(n, int) or not 1 <= n <= _MAX_ALIGNMENT or n & (n - 1):
            raise self.field_error(key, f"a power of two up to {_MAX_ALIGNMENT}")
        first = -(-end // n) * n
        placed: dict[str, StoredBlocks] = {}
        for tensor in (replace(tensor, start=first + tensor.start) for tensor in tensors):
            if tensor.name in placed:
                raise tensor.error("is duplicate", "it once")
            if tensor.start % n or tensor.start + tensor.n_bytes > self._opened.size:
                inside = f"a multiple of {n}, inside the file of {self._opened.size} bytes"
                found = f"has {tensor.n_bytes} bytes at offset {tensor.start}"
                raise tensor.error(found, f"{inside} (is the file truncated?)")
            placed[tensor.name] = tensor
        for before, tensor in pairwise(sorted(placed.values(), key=lambda one: (one.start, one.n_bytes))):
            if tensor.start < before.start + before.n_bytes:
                raise tensor.error(f"overlaps tensor '{before.name}'", "separate bytes")
        return placed


class _Cursor:
    """A read position `at` in a file; bytes are read in windows."""

    def __init__(self, opened: OpenedFile, at: int = 0) -> None:
        self._opened = opened
        self.at = at
        self._window, self._window_start = b"", 0

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._opened.path}: {message}")

    def check(self, n: int) -> None:
        """Refuse a file with fewer than `n` bytes left."""
        left = self._opened.size - self.at
        if n > left:
            expected = f"{n} (is the file truncated?)"
            raise self._error(f"ends {left} bytes after byte {self.at}; expected {expected}")

    def strings(self, n: int, what: str) -> list[bytes]:
        """Read `n` strings."""
        length_at = _LENGTH.unpack_from
        found: list[bytes] = []
        while len(found) < n:
            at = self._begin(8)
            window, last = self._window, len(self._window)
            while len(found) < n and at + 8 <= last:  # strings that are whole in the window
                begin = at + 8
                end = begin + length_at(window, at)[0]
                if end > last:
                    break
                found.append(window[begin:end])
                at = end
            self.at = self._window_start + at
            if len(found) < n:
                found.append(self.take(self.size(what)))
        return found

    def numbers(self, value_type: int, n: int) -> NDArray[Any]:
        """Read `n` numbers."""
        dtype = _NUMBERS[value_type]
        self.check(n * dtype.itemsize)
        return np.frombuffer(self.take(n * dtype.itemsize), dtype)

    def take(self, n: int) -> bytes:
        begin = self._begin(n)
        self.at += n
        return self._window[begin : begin + n]

    def _begin(self, n: int) -> int:
        """Return the position of the next `n` bytes in the window, reading them if needed."""
        self.check(n)
        begin = self.at - self._window_start
        if begin < 0 or begin + n > len(self._window):
            size = min(max(n, _WINDOW), self._opened.size - self.at)
            self._window = self._opened.read(self.at, size).tobytes()
            self._window_start, begin = self.at, 0
        return begin

    def integer(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def size(self, what: str, most: int | None = None) -> int:
        """Read the length of a string and check that the file holds it."""
        n, left = self.integer(8), self._opened.size - self.at
        most = left if most is None else min(most, left)
        if n > most:
            raise self._error(f"{what} has a string of {n} bytes; expected at most {most}")
        return n

    def name(self, what: str) -> str:
        try:
            return self.take(self.size(what, _MAX_NAME)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8: {error}") from error


@cache
def _decoders() -> dict[str, Any]:
    """Return the types that ``gguf`` dequantizes, by name."""
    from gguf import constants, quants

    found = {}
    for ggml_type, (elements, size) in constants.GGML_QUANT_SIZES.items():
        if elements > 1:
            with suppress(NotImplementedError):
                quants.dequantize(np.zeros((1, size), np.uint8), ggml_type)
                found[ggml_type.name] = ggml_type
    return found


@cache
def _types() -> dict[int, tuple[str, tuple[int, int]]]:
    """Return ggml's types by number: name, and elements and bytes per block."""
    try:
        from gguf import constants
    except ImportError as error:
        raise MissingGGUFError(
            "reading GGUF files needs the package `gguf`, which is not installed: "
            "pip install 'specdec-cpu[gguf]'"
        ) from error
    return {
        int(ggml_type): (ggml_type.name, sizes) for ggml_type, sizes in constants.GGML_QUANT_SIZES.items()
    }


@cache
def type_sizes() -> dict[str, tuple[int, tuple[int, int]]]:
    """Return ggml's types by name: number, and elements and bytes per block."""
    return {name: (number, sizes) for number, (name, sizes) in _types().items()}


def read_gguf(path: Path) -> tuple[GGUFFile, dict[str, StoredBlocks]]:
    """Read a file, or all parts of a split one; return the first part, with the metadata, and all tensors."""
    file = GGUFFile(OpenedFile(path))
    n_parts = _count(file, "split.count")
    if n_parts <= 1:
        return file, file.tensors
    if (match := _PART.fullmatch(path.name)) is None or int(match[3]) != n_parts:
        expected = f"a name that ends like '-00001-of-{n_parts:05}.gguf'"
        raise file.error(f"is one of {n_parts} parts; expected {expected}")
    parts: list[GGUFFile] = []
    tensors: dict[str, StoredBlocks] = {}
    for part in range(n_parts):
        part_path = path.with_name(f"{match[1]}-{part + 1:05}-of-{n_parts:05}.gguf")
        if part_path != path and not part_path.is_file():
            raise CheckpointNotFoundError(f"{part_path}: no such file; expected part {part + 1} of {n_parts}")
        one = file if part_path == path else GGUFFile(OpenedFile(part_path))
        parts.append(one)
        number, n = _count(one, "split.no"), _count(one, "split.count")
        if (number, n) != (part, n_parts):
            expected = f"part {part + 1} of {n_parts}, as in its name"
            raise one.error(f"claims to be part {number + 1} of {n}; expected {expected}")
        for name, tensor in one.tensors.items():
            if name in tensors:
                raise tensor.error(f"is also in {tensors[name].file.name}", "it once")
            tensors[name] = tensor
    n_tensors = _count(parts[0], "split.tensors.count")
    if n_tensors not in (0, len(tensors)):
        raise parts[0].error(f"has {len(tensors)} tensors in {n_parts} parts; expected {n_tensors}")
    return parts[0], tensors


def _count(file: GGUFFile, key: str) -> int:
    """Return a number of parts or tensors, by default 0."""
    n = file.get(key, 0)
    if type(n) is not int or not 0 <= n <= _MAX_PARTS * 1000:
        raise file.field_error(key, "a whole number")
    return n
