"""Bytes of a request as a JSON object, and objects as bytes of an answer."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from specdec.errors import shown
from specdec.serve.request_error import RequestError

__all__ = ["json_bytes", "read_object"]

_DEEPEST: Final = 128
"""Objects and lists within each other. Schemas are nested deepest, and llguidance has a bound of its own."""
_PIECE: Final = 1 << 16
"""Entries of a list that are encoded with the GIL held."""
_MAX_VALUES: Final = 600_000
"""Commas and opening brackets, about as many as values: the parser makes values with the GIL held."""


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8; long lists of an object in pieces, between which other threads run."""
    if isinstance(value, dict) and any(isinstance(one, list) and len(one) > _PIECE for one in value.values()):
        text = ",".join(f"{_encode(name)}:{_encode_in_pieces(one)}" for name, one in value.items())
        return f"{{{text}}}".encode("utf-8", "backslashreplace")
    return _encode(value).encode("utf-8", "backslashreplace")


def _encode(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encode_in_pieces(value: Any) -> str:
    if not isinstance(value, list):
        return _encode(value)
    pieces = (value[first : first + _PIECE] for first in range(0, len(value), _PIECE))
    return f"[{','.join(_encode(piece)[1:-1] for piece in pieces)}]"


def read_object(body: bytes) -> dict[str, Any]:
    """The object that the body of a request holds.

    Raises
    ------
    RequestError
        It is no JSON, no object, nested too deep, or has too many values; a name occurs twice in an object,
        so that one of its values would be ignored; or a number is not finite.
    """
    n_values = sum(map(body.count, (b",", b"[", b"{")))
    if n_values > _MAX_VALUES:
        raise _refusal(f"the body has {n_values} commas and brackets; expected at most {_MAX_VALUES}")
    try:
        text = body.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number, parse_int=_integer
        )
    except RequestError:
        raise
    except RecursionError:
        raise _nested() from None
    except ValueError as error:
        raise _refusal(f"the body is no JSON in UTF-8: {error}") from None
    _check_depth(value)
    if not isinstance(value, dict):
        raise _refusal(f"the body is {shown(value)}; expected an object")
    return value


def _refusal(message: str) -> RequestError:
    return RequestError(message, code="invalid_json")


def _nested() -> RequestError:
    return _refusal(f"the body is nested more than {_DEEPEST} deep")


def _check_depth(value: Any) -> None:
    """Refuse what is nested deeper than programs that read it may expect."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEEPEST):
        items = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise _nested()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, n in counts.items() if n > 1)
        raise _refusal(f"the body has {shown(twice)} twice in one object; expected each name once")
    return found


def _constant(name: str) -> Any:
    raise _refusal(f"the body holds {name}; expected numbers that JSON has")


def _integer(text: str) -> int:
    """Parse an integer. A call of Python for each lets other threads take the GIL in long lists."""
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _refusal(f"the body holds the number {shown(text)}; expected finite ones")
    return value
