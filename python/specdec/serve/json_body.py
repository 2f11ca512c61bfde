"""Bytes of a request as a JSON object, and objects as bytes of an answer."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

from specdec.errors import shown
from specdec.serve.request_error import RequestError

__all__ = ["json_bytes", "read_object"]

_DEEPEST: Final = 128
"""Objects and lists within each other. Schemas are nested deepest, and llguidance has a bound of its own."""
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
"""A string, or one without an end, so that no search fails at its end and begins anew at the next quote."""
_BRACKET: Final = re.compile(rb"[\[\]{}]")


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def read_object(body: bytes) -> dict[str, Any]:
    """The object that the body of a request holds.

    Raises
    ------
    RequestError
        It is no JSON, no object, or nested too deep; a name stands twice in an object, so that one of the
        values would be ignored; or a number is not finite.
    """
    _check_depth(body)
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise _refusal(f"the body is no JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise _refusal(f"the body is {shown(value)}; expected an object")
    return value


def _refusal(message: str) -> RequestError:
    return RequestError(message, code="invalid_json")


def _check_depth(body: bytes) -> None:
    """Refuse what the parser would recurse into too deep; brackets within strings do not count."""
    if body.count(b"[") + body.count(b"{") <= _DEEPEST:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        if depth > _DEEPEST:
            raise _refusal(f"the body is nested more than {_DEEPEST} deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, n in counts.items() if n > 1)
        raise _refusal(f"the body has {shown(twice)} twice in one object; expected each name once")
    return found


def _constant(name: str) -> Any:
    raise _refusal(f"the body holds {name}; expected numbers that JSON has")


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _refusal(f"the body holds the number {shown(text)}; expected finite ones")
    return value
