"""Calls of tools, and how each family of models writes them; the parts of a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from specdec.serve.tool_fields import Tools

__all__ = [
    "ReadCalls",
    "Reasoning",
    "Said",
    "ToolCall",
    "json_arguments",
    "json_call",
    "json_calls",
    "loads",
    "mistral_calls",
    "raw_decode",
    "xml_calls",
]


@dataclass(frozen=True)
class ToolCall:
    """A call of a function.

    Attributes
    ----------
    name : str
    arguments : str
        JSON of an object.
    """

    name: str
    arguments: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's reasoning, which is not part of the answer.

    Attributes
    ----------
    text : str
    """

    text: str


Said: TypeAlias = str | Reasoning | ToolCall
"""A piece of text, of reasoning, or a call."""

ReadCalls: TypeAlias = Callable[[str, Tools], list[ToolCall] | None]
"""From what stands between marks to the calls that it is; None: it is none."""

_DECODER: Final = json.JSONDecoder(strict=False)  # models write line ends into strings
loads: Final = _DECODER.decode
raw_decode: Final = _DECODER.raw_decode


def json_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """Calls as objects of JSON with a name and arguments, one after the other or in a list."""
    found: list[ToolCall] = []
    position, text = 0, text.strip()
    while position < len(text):
        try:
            value, position = raw_decode(text, position)
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
    """A value of JSON as a call: an object with a name and arguments; None: it is none."""
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
    """A list of JSON, or a name and the JSON of its arguments."""
    named = _NAMED.match(text)
    if named is None:
        return json_calls(text, tools)
    calls = json_calls(f'{{"name": "{named[1]}", "arguments": {text[named.end() :].strip()}}}', tools)
    return calls if calls is not None and len(calls) == 1 else None


_FUNCTION: Final = re.compile(r"\s*<function=([^>\s]+)>\s*(.*?)\s*</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def xml_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """A function and its parameters, each between tags of its own; else JSON."""
    function = _FUNCTION.fullmatch(text)
    if function is None:
        return json_calls(text, tools)
    name, rest = function[1], function[2]
    if name not in tools.functions or _PARAMETER.sub("", rest).strip():
        return None
    schemas = tools.parameters(name).get("properties")
    arguments = {}
    for key, value in _PARAMETER.findall(rest):
        schema = schemas.get(key) if isinstance(schemas, Mapping) else None
        arguments[key] = _typed(value, schema)
    written = _written(arguments)
    return None if written is None else [ToolCall(name, written)]


def _typed(text: str, schema: Any) -> Any:
    """The value that stands in a tag: a text where the schema says so, else JSON where it is some."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text
