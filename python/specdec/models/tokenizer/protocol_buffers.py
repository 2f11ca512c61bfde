"""Messages of protocol buffers, read and written: a field is its number and wire type, then its value."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["bytes_field", "float_field", "integer_field", "read_fields"]

_VARINT, _BYTES, _FOUR_BYTES = 0, 2, 5  # wire types; a value of another one has 8 bytes
_BITS: Final = 3  # of a wire type


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def integer_field(number: int, value: int) -> bytes:
    """A field of a whole number."""
    return _varint(number << _BITS | _VARINT) + _varint(value)


def float_field(number: int, value: float) -> bytes:
    """A field of a float of 32 bits."""
    return _varint(number << _BITS | _FOUR_BYTES) + struct.pack("<f", value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of a text or of another message."""
    return _varint(number << _BITS | _BYTES) + _varint(len(value)) + value


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message that is not damaged: int, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = message[at]
        if value < 0x80:  # most numbers
            at += 1
            return value
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> _BITS, key & (1 << _BITS) - 1
        if kind == _VARINT:
            yield number, varint()
            continue
        size = varint() if kind == _BYTES else 4 if kind == _FOUR_BYTES else 8
        yield number, message[at : at + size]
        at += size
