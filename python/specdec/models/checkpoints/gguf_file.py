"""GGUF files: metadata, and tensors that are still in the file.

The numbers of the format (value types, tensor types, bytes of their blocks) are those of the package
``gguf``. The container is walked here: the reader of that package makes an array of each string, which takes
seconds and hundreds of megabytes for the vocabulary of a common model, and does not end on some damaged
files.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, CheckpointNotFoundError, MissingGGUFError, UnsupportedModelError
from specdec.fields import as_json
from specdec.models.checkpoints.file_tensor import PLAIN, FileRows, FileTensor, OpenedFile
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
_Text: TypeAlias = bytes
_NUMBERS: Final[Mapping[int, str]] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Value types of one number, by the ids of the format."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    opened = OpenedFile(path)
    return opened.size >= 4 and opened.read(0, 4).tobytes() == MAGIC


@dataclass(frozen=True)
class StoredBlocks(FileTensor):
    """One tensor of a GGUF file, still in the file; its kind is as ggml calls it.

    `block`: (elements of a block, bytes of a block); (1, 4) of F32.
    """

    block: tuple[int, int]

    @property
    def is_coded(self) -> bool:
        """Whether the file holds blocks of codes, which `array` decodes."""
        return self.kind not in PLAIN

    def check(self, numbers: str = "") -> None:
        """Refuse a tensor whose numbers are not read."""
        if numbers or self.kind not in (*PLAIN, *_decoders()):
            raise UnsupportedModelError(
                f"{self.file}: tensor '{self.name}' has type {self.kind}; expected "
                f"{', '.join(sorted((*PLAIN, *_decoders())))}"
            )

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[Any]:
        """The numbers, of `shape`: float32, float16, or uint16 with the bits of bf16.

        Read anew at each call. With an index, those at this index of the first axis. Codes are decoded by
        ``gguf``, to float32.
        """
        self.check(numbers)
        blocks = self.blocks(index)
        if not self.is_coded:
            return blocks
        from gguf import quants

        with np.errstate(all="ignore"):  # damaged scales may be anything; the core refuses what is not finite
            decoded: NDArray[np.float32] = quants.dequantize(blocks, _decoders()[self.kind])
        return decoded

    def blocks(self, index: int | None = None) -> NDArray[Any]:
        """What the file holds: as `array`, or, of blocks of codes, uint8, [*shape[:-1], bytes of a row]."""
        shape, start, n_bytes = self.shape, self.start, self.n_bytes
        if index is not None:
            n_bytes //= shape[0]
            shape, start = shape[1:], start + index * n_bytes
        data = self._read(start, n_bytes)
        if not self.is_coded:
            return data.view(PLAIN[self.kind][1]).reshape(shape)
        elements, size = self.block
        return data.reshape(*shape[:-1], shape[-1] // elements * size)

    def file_rows(self, index: int | None = None) -> FileRows | None:
        """The rows of a matrix, of numbers or of blocks; see `FileTensor`."""
        return self._rows_there(index)

    def numbers(self) -> NDArray[np.float32]:
        """All of them as float32."""
        return widened(self.array(), self.format)


@dataclass(frozen=True)
class _Value:
    """A value of the metadata that has not been read: its type, and where it begins."""

    kind: int
    item: int  # of an array: the type of its items
    start: int
    n: int  # items of an array, bytes of a string


class GGUFFile(Mapping[str, Any]):
    """The metadata of a GGUF file; values are read when they are asked for.

    `tensors`: In the file's order.
    """

    def __init__(self, opened: OpenedFile) -> None:
        self._opened = opened
        self.path = opened.path
        self._values: dict[str, _Value] = {}
        self.tensors: dict[str, StoredBlocks] = {}
        cursor = _Cursor(opened)
        n_tensors, n_values = self._read_head(cursor)
        for _ in range(n_values):
            key = cursor.name("a key of the metadata")
            if key in self._values:
                raise self.error(f"metadata field '{key}' is there twice; expected once")
            self._values[key] = self._walk(cursor, key)
        infos = [self._read_info(cursor) for _ in range(n_tensors)]
        self._place(infos, cursor.at)

    def error(self, message: str) -> CheckpointError:
        """An exception that names the file."""
        return CheckpointError(f"{self.path}: {message}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: str) -> Any:
        """Read a value of the metadata: bool, int, float, str, a list of str, or an ndarray."""
        value = self._values[key]
        if value.kind == _STRING:
            return self._decoded(self._opened.read(value.start, value.n).tobytes(), key)
        if value.kind == _ARRAY:
            return self._array(value, key)
        dtype = np.dtype(_NUMBERS[value.kind])
        return self._opened.read(value.start, dtype.itemsize).view(dtype)[0].item()

    def _array(self, value: _Value, key: str) -> Any:
        if value.item != _STRING:
            dtype = np.dtype(_NUMBERS[value.item])
            return self._opened.read(value.start, value.n * dtype.itemsize).view(dtype)
        texts: list[_Text] = []
        _Cursor(self._opened, value.start).strings(value.n, f"metadata field '{key}'", texts)
        return [self._decoded(text, key) for text in texts]

    def _decoded(self, data: bytes, key: str) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"metadata field '{key}' has a string that is no UTF-8: {error}") from error

    def _read_head(self, cursor: _Cursor) -> tuple[int, int]:
        """(number of tensors, number of values of the metadata)."""
        magic = cursor.bytes(4)
        if magic != MAGIC:
            raise self.error(f"begins with {magic!r}; expected {MAGIC!r}, a GGUF file")
        version = cursor.integer(4)
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "of the other byte order" if swapped in _VERSIONS else f"of version {version}"
            raise UnsupportedModelError(
                f"{self.path}: is a GGUF file {what}; expected version {' or '.join(map(str, _VERSIONS))}, "
                "little-endian"
            )
        n_tensors, n_values = cursor.integer(8), cursor.integer(8)
        # Bytes of the smallest tensor and of the smallest value: counts beyond are damage.
        for name, n, least in (("tensors", n_tensors, 24), ("values", n_values, 13)):
            most = min(self._opened.size // least, _MAX_ENTRIES)
            if n > most:
                raise self.error(
                    f"says that it has {n} {name}; expected at most {most} in {self._opened.size} bytes"
                )
        return n_tensors, n_values

    def _walk(self, cursor: _Cursor, key: str) -> _Value:
        what = f"metadata field '{key}'"
        kind = cursor.integer(4)
        if kind in _NUMBERS:
            start = cursor.skip(np.dtype(_NUMBERS[kind]).itemsize)
            return _Value(kind, 0, start, 1)
        if kind == _STRING:
            n = cursor.size(what)
            return _Value(kind, 0, cursor.skip(n), n)
        if kind != _ARRAY:
            raise self.error(f"{what} has type {kind}; expected 0 to 12")
        item, n = cursor.integer(4), cursor.integer(8)
        start = cursor.at
        if item in _NUMBERS:
            cursor.skip(n * np.dtype(_NUMBERS[item]).itemsize)
        elif item == _STRING:
            if n > _MAX_STRINGS:
                raise self.error(f"{what} is an array of {n} strings; expected at most {_MAX_STRINGS}")
            cursor.check(8 * n)
            cursor.strings(n, what)
        else:
            raise UnsupportedModelError(
                f"{self.path}: {what} is an array of items of type {item}; expected numbers or strings"
            )
        return _Value(kind, item, start, n)

    def _read_info(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], str, tuple[int, int], int]:
        """(name, shape, type, block, offset) of a tensor."""
        name = cursor.name("a tensor's name")
        what = f"tensor '{name}'"
        n_dims = cursor.integer(4)
        if not 1 <= n_dims <= _MAX_DIMENSIONS:
            raise self.error(f"{what} has {n_dims} dimensions; expected 1 to {_MAX_DIMENSIONS}")
        extents = [cursor.integer(8) for _ in range(n_dims)]
        n_elements = 1
        for extent in extents:
            n_elements *= extent
        if not 0 < n_elements <= _MAX_ELEMENTS:
            raise self.error(f"{what} has the extents {as_json(extents)}; expected a tensor of some elements")
        number = cursor.integer(4)
        if number not in _types():
            raise UnsupportedModelError(
                f"{self.path}: {what} has type {number}; expected one that the package `gguf` knows"
            )
        kind, block = _types()[number]
        if extents[0] % block[0]:
            raise self.error(
                f"{what} of type {kind} has rows of {extents[0]}; expected multiples of {block[0]}"
            )
        return name, tuple(reversed(extents)), kind, block, cursor.integer(8)

    def _place(self, infos: list[tuple[str, tuple[int, ...], str, tuple[int, int], int]], end: int) -> None:
        """Find each tensor's bytes, behind the infos: aligned, inside the file, shared by none."""
        alignment = self.get("general.alignment")
        alignment = _ALIGNMENT if alignment is None else alignment
        if (
            not isinstance(alignment, int)
            or not 1 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self.error(
                f"metadata field 'general.alignment' is {as_json(alignment)}; expected a power of two up to "
                f"{_MAX_ALIGNMENT}"
            )
        first = -(-end // alignment) * alignment
        ranges: list[tuple[int, int, str]] = []
        for name, shape, kind, block, offset in infos:
            if name in self.tensors:
                raise self.error(f"tensor '{name}' is there twice; expected once")
            n_bytes = int(np.prod(shape, dtype=object)) // block[0] * block[1]
            start = first + offset
            if offset % alignment or start + n_bytes > self._opened.size:
                raise self.error(
                    f"tensor '{name}' has {n_bytes} bytes from {start} on; expected them inside the file's "
                    f"{self._opened.size}, from a multiple of {alignment} on (is the file truncated?)"
                )
            ranges.append((start, start + n_bytes, name))
            self.tensors[name] = StoredBlocks(self._opened, name, kind, shape, start, n_bytes, block)
        ranges.sort()
        for (_, stop, before), (start, _, name) in pairwise(ranges):
            if start < stop:
                raise self.error(f"tensor '{name}' overlaps tensor '{before}'; expected bytes of its own")


class _Cursor:
    """A place in a file that moves on; bytes are read in windows.

    `at`: The next byte.
    """

    def __init__(self, opened: OpenedFile, at: int = 0) -> None:
        self._opened = opened
        self.at = at
        self._window = b""
        self._window_start = 0

    def check(self, n: int) -> None:
        """Refuse a file that has not as many bytes left."""
        left = self._opened.size - self.at
        if n > left:
            raise CheckpointError(
                f"{self._opened.path}: ends where {n} bytes are to follow byte {self.at}; expected them, not "
                f"{left} (is the file truncated?)"
            )

    def skip(self, n: int) -> int:
        self.check(n)
        start, self.at = self.at, self.at + n
        return start

    def strings(self, n: int, what: str, found: list[_Text] | None = None) -> None:
        """The next n strings, added to a list if there is one."""
        while n > 0:
            at = self._begin(8)
            window, last = self._window, len(self._window)
            length_at = _LENGTH.unpack_from
            while n > 0 and at + 8 <= last:  # those that the window holds whole
                begin = at + 8
                end = begin + length_at(window, at)[0]
                if end > last:
                    break
                if found is not None:
                    found.append(window[begin:end])
                at, n = end, n - 1
            self.at = self._window_start + at
            if n > 0:
                size = self.size(what)
                if found is not None:
                    found.append(self.bytes(size))
                else:
                    self.skip(size)
                n -= 1

    def bytes(self, n: int) -> bytes:
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
        return int(struct.unpack("<I" if n == 4 else "<Q", self.bytes(n))[0])

    def size(self, what: str) -> int:
        n = self.integer(8)
        if n > self._opened.size - self.at:
            raise CheckpointError(
                f"{self._opened.path}: {what} has a string of {n} bytes; expected at most "
                f"{self._opened.size - self.at}, what the file holds"
            )
        return n

    def name(self, what: str) -> str:
        n = self.size(what)
        if n > _MAX_NAME:
            raise CheckpointError(f"{self._opened.path}: {what} has {n} bytes; expected at most {_MAX_NAME}")
        try:
            return self.bytes(n).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self._opened.path}: {what} is no UTF-8: {error}") from error


@cache
def _decoders() -> dict[str, Any]:
    """Types whose codes ``gguf`` decodes, by name."""
    from gguf import constants, quants

    found = {}
    for kind, (elements, size) in constants.GGML_QUANT_SIZES.items():
        if elements == 1:
            continue
        try:
            quants.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        found[kind.name] = kind
    return found


@cache
def _types() -> dict[int, tuple[str, tuple[int, int]]]:
    """Types of tensors by number: ggml's name, elements and bytes of a block."""
    try:
        from gguf import constants
    except ImportError as error:
        raise MissingGGUFError(
            "GGUF files are read with the package `gguf`, which is not installed: pip install gguf"
        ) from error
    return {int(kind): (kind.name, sizes) for kind, sizes in constants.GGML_QUANT_SIZES.items()}


@cache
def type_sizes() -> dict[str, tuple[int, tuple[int, int]]]:
    """Types of tensors by ggml's name: number, elements and bytes of a block."""
    return {name: (number, sizes) for number, (name, sizes) in _types().items()}


def read_gguf(path: Path) -> tuple[GGUFFile, dict[str, StoredBlocks]]:
    """Open a GGUF file, or all parts of one that was split, and check them against their sizes.

    `path`: The file, or any part, whose names end as in "-00001-of-00003.gguf". Returns GGUFFile, dict of str
    to StoredBlocks: the first part, whose metadata describe the model, and the tensors of all.
    """
    file = GGUFFile(OpenedFile(path))
    n_parts = _count(file, "split.count")
    if n_parts <= 1:
        return file, file.tensors
    if (match := _PART.fullmatch(path.name)) is None or int(match[3]) != n_parts:
        raise file.error(
            f"is a part of {n_parts}; expected a name that ends as in '-00001-of-{n_parts:05}.gguf'"
        )
    tensors: dict[str, StoredBlocks] = {}
    first: GGUFFile | None = None
    for part in range(n_parts):
        place = path.with_name(f"{match[1]}-{part + 1:05}-of-{n_parts:05}.gguf")
        if place != path and not place.is_file():
            raise CheckpointNotFoundError(f"{place}: no such file; expected part {part + 1} of {n_parts}")
        one = file if place == path else GGUFFile(OpenedFile(place))
        if (_count(one, "split.no"), _count(one, "split.count")) != (part, n_parts):
            raise one.error(
                f"says that it is part {_count(one, 'split.no') + 1} of {_count(one, 'split.count')}; "
                f"expected {part + 1} of {n_parts}, as its name has it"
            )
        for name, tensor in one.tensors.items():
            if name in tensors:
                raise one.error(f"tensor '{name}' is in {tensors[name].file.name} too; expected it once")
            tensors[name] = tensor
        first = first or one
    assert first is not None
    n_tensors = _count(first, "split.tensors.count")
    if n_tensors not in (0, len(tensors)):
        raise first.error(f"has {len(tensors)} tensors in {n_parts} parts; expected {n_tensors}")
    return first, tensors


def _count(file: GGUFFile, key: str) -> int:
    """A number of parts or tensors; 0 where the file says nothing."""
    n = file.get(key)
    if n is None:
        return 0
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= _MAX_PARTS * 1000:
        raise file.error(f"metadata field '{key}' is {as_json(n)}; expected a whole number")
    return n
