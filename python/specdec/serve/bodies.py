"""Request and response bodies: JSON and errors in the OpenAI API's format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from specdec.errors import SpecdecError, printable, shown

_TYPES: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
    500: "server_error", 503: "server_error",
}  # fmt: skip
_LONGEST_MESSAGE: Final = 1000
_DEEPEST: Final = 128
"""Nesting depth of JSON. Schemas nest deepest, and llguidance has its own bound."""
_CHUNK: Final = 1 << 16
"""List entries to encode at a time while holding the GIL."""
_LONGEST_INTEGER: Final = 1000
_MAX_VALUES: Final = 600_000
"""Commas and opening brackets, roughly the number of values; parsing holds the GIL."""


class RequestError(SpecdecError):
    """Error response about the field `param`; `code` is machine-readable."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    def body(self) -> dict[str, Any]:
        message = printable(str(self))
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[: _LONGEST_MESSAGE - 1]}…"
        return {
            "error": {
                "message": message,
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": None if self.param is None else printable(self.param)[:_LONGEST_MESSAGE],
                "code": self.code,
            }
        }


def message_error(body: Mapping[str, Any], status: int = 500) -> dict[str, Any]:
    """Convert the body of an error to the format of Anthropic's API."""
    error = body["error"]
    error_type = "api_error" if error["type"] == "server_error" else error["type"]
    if status == 503:
        error_type = "overloaded_error"
    return {"type": "error", "error": {"type": error_type, "message": error["message"]}}


def json_bytes(value: Any) -> bytes:
    """Encode a value as UTF-8 JSON; release the GIL between chunks of an object's long lists."""
    if isinstance(value, dict) and any(isinstance(one, list) and len(one) > _CHUNK for one in value.values()):
        text = ",".join(f"{_encode(name)}:{_encode_in_chunks(one)}" for name, one in value.items())
        return f"{{{text}}}".encode("utf-8", "backslashreplace")
    return _encode(value).encode("utf-8", "backslashreplace")


def _encode(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encode_in_chunks(value: Any) -> str:
    if not isinstance(value, list):
        return _encode(value)
    chunks = (value[first : first + _CHUNK] for first in range(0, len(value), _CHUNK))
    return f"[{','.join(_encode(chunk)[1:-1] for chunk in chunks)}]"


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object with bounded depth and size, unique names and finite numbers."""
    n_values = sum(map(body.count, (b",", b"[", b"{")))
    if n_values > _MAX_VALUES:
        raise _refusal(f"the body has {n_values} commas and brackets; expected at most {_MAX_VALUES}")
    try:
        text = body.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number,
            parse_int=_integer,
        )  # fmt: skip
    except RequestError:
        raise
    except RecursionError:
        raise _refusal(f"the body is nested more than {_DEEPEST} deep") from None
    except ValueError as error:
        raise _refusal(f"the body is not UTF-8 JSON: {error}") from None
    _check_depth(value)
    if not isinstance(value, dict):
        raise _refusal(f"the body is {shown(value)}; expected an object")
    return value


def _refusal(message: str) -> RequestError:
    return RequestError(message, code="invalid_json")


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEEPEST):
        items = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise _refusal(f"the body is nested more than {_DEEPEST} deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, n in counts.items() if n > 1)
        raise _refusal(f"the body has {shown(twice)} twice in one object; expected unique names")
    return found


def _constant(name: str) -> Any:
    raise _refusal(f"the body holds {name}; expected JSON numbers")


def _integer(text: str) -> int:  # a Python function: each call lets other threads take the GIL
    if len(text) > _LONGEST_INTEGER:
        raise _refusal(
            f"the body holds an integer of {len(text)} digits; expected at most {_LONGEST_INTEGER}"
        )
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _refusal(f"the body holds the number {shown(text)}; expected finite numbers")
    return value


def event(value: Mapping[str, Any] | str, name: str | None = None) -> bytes:
    """Format a server-sent event."""
    data = value.encode() if isinstance(value, str) else json_bytes(value)
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + data + b"\n\n"
