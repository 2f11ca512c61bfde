"""GGUF files: metadata, and tensors that are still in the file.

Numbers of the format are those of the package ``gguf``. Its reader makes an array of each string, which takes
seconds and hundreds of megabytes for a common vocabulary, and does not end on some damaged files.
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
_ALIGNMENT: Final = 32  # bytes, where general.alignment does not say
_MAX_ALIGNMENT: Final = 1 << 20
_MAX_DIMENSIONS: Final = 4
_MAX_NAME: Final = 1 << 16  # bytes of a key or of a tensor's name
_MAX_PARTS: Final = 10_000
_MAX_ELEMENTS: Final = 1 << 48
# Beyond what models have; objects take some twenty times the bytes of the smallest entries of a file.
_MAX_ENTRIES: Final = 1 << 16  # tensors, or values of the metadata
_MAX_STRINGS: Final = 1 << 21  # of an array
_WINDOW: Final = 1 << 20  # bytes read at a time
_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")

_STRING, _ARRAY = 8, 9
_LENGTH: Final = struct.Struct("<Q")  # of a string, in bytes
_NUMBERS: Final[Mapping[int, np.dtype[Any]]] = {
    kind: np.dtype(name)
    for kind, name in enumerate("<u1 <i1 <u2 <i2 <u4 <i4 <f4 <? - - <u8 <i8 <f8".split())
    if name != "-"
}
"""Value types of one number, by the ids of the format."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    opened = OpenedFile(path)
    return opened.size >= 4 and opened.read(0, 4).tobytes() == MAGIC


@dataclass(frozen=True)
class StoredBlocks(FileTensor):
    """One tensor of a GGUF file, still in the file; `block` has (elements, bytes): (1, 4) of F32."""

    block: tuple[int, int]

    @property
    def is_coded(self) -> bool:
        """Whether the file holds blocks of codes, which `array` decodes."""
        return self.kind not in PLAIN

    def check(self, numbers: str = "") -> None:
        """Refuse a tensor whose numbers are not read."""
        known = sorted((*PLAIN, *_decoders()))
        if numbers or self.kind not in known:
            raise self.error(f"has type {self.kind}", ", ".join(known), UnsupportedModelError)

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[Any]:
        """The numbers; see `FileTensor`. Codes are decoded by ``gguf``, to float32."""
        if not self.is_coded:
            return super().array(index, numbers)
        self.check(numbers)
        from gguf import quants

        with np.errstate(all="ignore"):  # damaged scales may be anything; the core refuses what is not finite
            decoded: NDArray[np.float32] = quants.dequantize(self.blocks(index), _decoders()[self.kind])
        return decoded

    def blocks(self, index: int | None = None) -> NDArray[Any]:
        """What the file holds; see `FileTensor`."""
        if not self.is_coded:
            return self.array(index)
        start, n_bytes, shape = self._part(index)
        elements, size = self.block
        return self._read(start, n_bytes).reshape(*shape[:-1], shape[-1] // elements * size)

    def numbers(self) -> NDArray[np.float32]:
        """All of them as float32."""
        return widened(self.array(), self.format)


class GGUFFile(Mapping[str, Any]):
    """The metadata of a GGUF file, whose texts are decoded when they are asked for, and its `tensors`."""

    def __init__(self, opened: OpenedFile) -> None:
        self._opened = opened
        self.path = opened.path
        self._values: dict[str, Any] = {}
        cursor = _Cursor(opened)
        n_tensors, n_values = self._read_head(cursor)
        for _ in range(n_values):
            key = cursor.name("a key of the metadata")
            if key in self._values:
                raise self.error(f"metadata field '{key}' is there twice; expected once")
            self._values[key] = self._read_value(cursor, f"metadata field '{key}'")
        tensors = [self._read_tensor(cursor) for _ in range(n_tensors)]
        self.tensors = self._placed(tensors, cursor.at)

    def error(self, message: str) -> CheckpointError:
        """An exception that names the file."""
        return CheckpointError(f"{self.path}: {message}")

    def field_error(self, key: str, expected: str, *value: Any) -> CheckpointError:
        """The exception about a field of the metadata, or about its `value`."""
        found = value[0] if value else self[key]
        return CheckpointError.of(self.path, key, found, expected, noun="metadata field")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: str) -> Any:
        """A value of the metadata: bool, int, float, str, a list of str, or an ndarray."""
        value = self._values[key]
        try:
            if isinstance(value, bytes):
                return value.decode("utf-8")
            return [text.decode("utf-8") for text in value] if isinstance(value, list) else value
        except UnicodeDecodeError as error:
            raise self.error(f"metadata field '{key}' has a string that is no UTF-8: {error}") from error

    def _read_head(self, cursor: _Cursor) -> tuple[int, int]:
        """(number of tensors, number of values of the metadata)."""
        magic = cursor.take(4)
        if magic != MAGIC:
            raise self.error(f"begins with {magic!r}; expected {MAGIC!r}, a GGUF file")
        version = cursor.integer(4)
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "of the other byte order" if swapped in _VERSIONS else f"of version {version}"
            expected = f"version {' or '.join(map(str, _VERSIONS))}, little-endian"
            raise UnsupportedModelError(f"{self.path}: is a GGUF file {what}; expected {expected}")
        n_tensors, n_values = cursor.integer(8), cursor.integer(8)
        # Bytes of the smallest tensor and of the smallest value: counts beyond are damage.
        for name, n, least in (("tensors", n_tensors, 24), ("values", n_values, 13)):
            most = min(self._opened.size // least, _MAX_ENTRIES)
            if n > most:
                raise self.error(f"says that it has {n} {name}; expected at most {most}, by its size")
        return n_tensors, n_values

    def _read_value(self, cursor: _Cursor, what: str) -> Any:
        kind = cursor.integer(4)
        if kind in _NUMBERS:
            return cursor.numbers(kind, 1)[0].item()
        if kind == _STRING:
            return cursor.take(cursor.size(what))
        if kind != _ARRAY:
            raise self.error(f"{what} has type {kind}; expected 0 to 12")
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
        """A tensor, which starts at its offset from where the bytes of tensors begin."""
        name = cursor.name("a tensor's name")
        n_dims = cursor.integer(4)
        if not 1 <= n_dims <= _MAX_DIMENSIONS:
            raise error_of(self.path, name, f"has {n_dims} dimensions", f"1 to {_MAX_DIMENSIONS}")
        extents = [cursor.integer(8) for _ in range(n_dims)]
        n = math.prod(extents)
        if not 0 < n <= _MAX_ELEMENTS:
            raise error_of(self.path, name, f"has the extents {as_json(extents)}", "some elements")
        number = cursor.integer(4)
        if number not in _types():
            expected = "one that the package `gguf` knows"
            raise error_of(self.path, name, f"has type {number}", expected, UnsupportedModelError)
        kind, block = _types()[number]
        if extents[0] % block[0]:
            found = f"of type {kind} has rows of {extents[0]}"
            raise error_of(self.path, name, found, f"multiples of {block[0]}")
        shape, n_bytes = tuple(reversed(extents)), n // block[0] * block[1]
        return StoredBlocks(self._opened, name, kind, shape, cursor.integer(8), n_bytes, block)

    def _placed(self, tensors: list[StoredBlocks], end: int) -> dict[str, StoredBlocks]:
        """The tensors where they are behind their descriptions: aligned, in the file, shared by none."""
        key = "general.alignment"
        n = self.get(key, _ALIGNMENT)
        if not isinstance(n, int) or not 1 <= n <= _MAX_ALIGNMENT or n & (n - 1):
            raise self.field_error(key, f"a power of two up to {_MAX_ALIGNMENT}")
        first = -(-end // n) * n
        placed: dict[str, StoredBlocks] = {}
        for tensor in (replace(tensor, start=first + tensor.start) for tensor in tensors):
            if tensor.name in placed:
                raise tensor.error("is there twice", "once")
            if tensor.start % n or tensor.start + tensor.n_bytes > self._opened.size:
                inside = f"inside the file's {self._opened.size}, from a multiple of {n} on"
                found = f"has {tensor.n_bytes} bytes from {tensor.start} on"
                raise tensor.error(found, f"them {inside} (is the file truncated?)")
            placed[tensor.name] = tensor
        for before, tensor in pairwise(sorted(placed.values(), key=lambda one: (one.start, one.n_bytes))):
            if tensor.start < before.start + before.n_bytes:
                raise tensor.error(f"overlaps tensor '{before.name}'", "bytes of its own")
        return placed


class _Cursor:
    """A place in a file, `at`, that moves on; bytes are read in windows."""

    def __init__(self, opened: OpenedFile, at: int = 0) -> None:
        self._opened = opened
        self.at = at
        self._window, self._window_start = b"", 0

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._opened.path}: {message}")

    def check(self, n: int) -> None:
        """Refuse a file that has not as many bytes left."""
        left = self._opened.size - self.at
        if n > left:
            expected = f"{n} bytes, not {left} (is the file truncated?)"
            raise self._error(f"ends where more are to follow byte {self.at}; expected {expected}")

    def strings(self, n: int, what: str) -> list[bytes]:
        """The next n strings."""
        length_at = _LENGTH.unpack_from
        found: list[bytes] = []
        while len(found) < n:
            at = self._begin(8)
            window, last = self._window, len(self._window)
            while len(found) < n and at + 8 <= last:  # those that the window holds whole
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

    def numbers(self, kind: int, n: int) -> NDArray[Any]:
        """The next n numbers of a type."""
        dtype = _NUMBERS[kind]
        self.check(n * dtype.itemsize)
        return np.frombuffer(self.take(n * dtype.itemsize), dtype)

    def take(self, n: int) -> bytes:
        begin = self._begin(n)
        self.at += n
        return self._window[begin : begin + n]

    def _begin(self, n: int) -> int:
        """Where the next bytes begin in the window, which holds n of them."""
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
        """The length of a string, which the file holds."""
        n, left = self.integer(8), self._opened.size - self.at
        most = left if most is None else min(most, left)
        if n > most:
            raise self._error(f"{what} has a string of {n} bytes; expected at most {most}")
        return n

    def name(self, what: str) -> str:
        try:
            return self.take(self.size(what, _MAX_NAME)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is no UTF-8: {error}") from error


@cache
def _decoders() -> dict[str, Any]:
    """Types whose codes ``gguf`` decodes, by name."""
    from gguf import constants, quants

    found = {}
    for kind, (elements, size) in constants.GGML_QUANT_SIZES.items():
        if elements > 1:
            with suppress(NotImplementedError):
                quants.dequantize(np.zeros((1, size), np.uint8), kind)
                found[kind.name] = kind
    return found


@cache
def _types() -> dict[int, tuple[str, tuple[int, int]]]:
    """Types of tensors by number: ggml's name, elements and bytes of a block."""
    try:
        from gguf import constants
    except ImportError as error:
        raise MissingGGUFError(
            "GGUF files need the package `gguf`, which is not installed: pip install 'specdec-cpu[gguf]'"
        ) from error
    return {int(kind): (kind.name, sizes) for kind, sizes in constants.GGML_QUANT_SIZES.items()}


@cache
def type_sizes() -> dict[str, tuple[int, tuple[int, int]]]:
    """Types of tensors by ggml's name: number, elements and bytes of a block."""
    return {name: (number, sizes) for number, (name, sizes) in _types().items()}


def read_gguf(path: Path) -> tuple[GGUFFile, dict[str, StoredBlocks]]:
    """The file of a path, or the first of its parts, whose metadata describe the model, and all tensors."""
    file = GGUFFile(OpenedFile(path))
    n_parts = _count(file, "split.count")
    if n_parts <= 1:
        return file, file.tensors
    if (match := _PART.fullmatch(path.name)) is None or int(match[3]) != n_parts:
        expected = f"a name that ends as in '-00001-of-{n_parts:05}.gguf'"
        raise file.error(f"is a part of {n_parts}; expected {expected}")
    parts: list[GGUFFile] = []
    tensors: dict[str, StoredBlocks] = {}
    for part in range(n_parts):
        place = path.with_name(f"{match[1]}-{part + 1:05}-of-{n_parts:05}.gguf")
        if place != path and not place.is_file():
            raise CheckpointNotFoundError(f"{place}: no such file; expected part {part + 1} of {n_parts}")
        one = file if place == path else GGUFFile(OpenedFile(place))
        parts.append(one)
        number, n = _count(one, "split.no"), _count(one, "split.count")
        if (number, n) != (part, n_parts):
            expected = f"{part + 1} of {n_parts}, as its name has it"
            raise one.error(f"says that it is part {number + 1} of {n}; expected {expected}")
        for name, tensor in one.tensors.items():
            if name in tensors:
                raise tensor.error(f"is in {tensors[name].file.name} too", "it once")
            tensors[name] = tensor
    n_tensors = _count(parts[0], "split.tensors.count")
    if n_tensors not in (0, len(tensors)):
        raise parts[0].error(f"has {len(tensors)} tensors in {n_parts} parts; expected {n_tensors}")
    return parts[0], tensors


def _count(file: GGUFFile, key: str) -> int:
    """A number of parts or tensors; 0 where the file says nothing."""
    n = file.get(key, 0)
    if type(n) is not int or not 0 <= n <= _MAX_PARTS * 1000:
        raise file.field_error(key, "a whole number")
    return n
