"""Tools, calls of tools, and how each family of models writes calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call."""

    functions: dict[str, dict[str, Any]]  # descriptions by name; parameters are a JSON schema
    choice: str = "auto"  # or "none", "required", or "named": the one function has to be called
    parallel: bool = True  # whether a reply may hold several calls

    @property
    def for_template(self) -> list[dict[str, Any]]:
        """The tools as chat templates read them."""
        return [{"type": "function", "function": function} for function in self.functions.values()]

    def parameters(self, name: str) -> Any:
        """Return the JSON schema of a function's arguments."""
        return self.functions[name].get("parameters") or {"type": "object", "properties": {}}

    def schema(self) -> Any:
        """Return the JSON schema of a reply that has to be a call: its arguments, or a list of calls."""
        if self.choice == "named":
            (name,) = self.functions
            return self.parameters(name)
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": self.parameters(name)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name in self.functions
        ]
        bounds = {"minItems": 1} if self.parallel else {"minItems": 1, "maxItems": 1}
        return {"type": "array", "items": {"anyOf": calls}, **bounds}


@dataclass(frozen=True)
class ToolCall:
    """A call of the function `name`; `arguments` is the JSON of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reasoning:
    """A part of the model's reasoning, which is not part of the answer."""

    text: str


Said: TypeAlias = str | Reasoning | ToolCall
"""A part of a reply."""

ReadCalls: TypeAlias = Callable[[str, Tools], list[ToolCall] | None]
"""Parses the text between two marks as calls; None: it is none."""

_DECODER: Final = json.JSONDecoder(strict=False)  # models write line ends into strings
loads: Final = _DECODER.decode


def json_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """Parse calls as JSON objects with a name and arguments, one after the other or in a list."""
    found: list[ToolCall] = []
    position, text = 0, text.strip()
    while position < len(text):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        for item in value if isinstance(value, list) else [value]:
            call = json_call(item)
            if call is None:
                return None
            found.append(call)
        while position < len(text) and (text[position].isspace() or text[position] in ",;"):
            position += 1
    return found


def json_call(value: Any) -> ToolCall | None:
    """Make a call of a JSON object with a name and arguments; None for any other value."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    written = json_arguments(arguments) if isinstance(arguments, str) else _written(arguments)
    return None if written is None else ToolCall(value["name"], written)


def json_arguments(text: str) -> str | None:
    """Return the JSON of an object from what a model has written as arguments; None: it is no object.

    Models write nothing, or null, where a function has no arguments.
    """
    if not text.strip():
        return "{}"
    try:
        return _written(loads(text.strip()))
    except (ValueError, RecursionError):
        return None


def _written(arguments: Any) -> str | None:
    """The JSON of an object; None for other values, numbers that JSON lacks, and nesting too deep."""
    if arguments is None:
        return "{}"
    if not isinstance(arguments, Mapping):
        return None
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


_NAMED: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")


def mistral_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """Parse a list of JSON calls, or a name and the JSON of its arguments."""
    named = _NAMED.match(text)
    if named is None:
        return json_calls(text, tools)
    calls = json_calls(f'{{"name": "{named[1]}", "arguments": {text[named.end() :].strip()}}}', tools)
    return calls if calls is not None and len(calls) == 1 else None


_FUNCTION: Final = re.compile(r"\s*<function=([^>\s]+)>\s*(.*?)\s*</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def xml_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """Parse a function and its parameters, each between tags of its own; else JSON."""
    function = _FUNCTION.fullmatch(text)
    if function is None:
        return json_calls(text, tools)
    name, rest = function[1], function[2]
    if name not in tools.functions or _PARAMETER.sub("", rest).strip():
        return None
    schemas = tools.parameters(name).get("properties")
    arguments = {
        key: _typed(value, schemas.get(key) if isinstance(schemas, Mapping) else None)
        for key, value in _PARAMETER.findall(rest)
    }
    written = _written(arguments)
    return None if written is None else [ToolCall(name, written)]


def _typed(text: str, schema: Any) -> Any:
    """The value between tags: a text where the schema says so, else JSON if it is JSON."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text
