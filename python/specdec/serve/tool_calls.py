"""Calls of tools in the texts of models: how each family of models writes them, read as they come."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from specdec.decoding.stopping import overlap
from specdec.serve.tool_fields import Tools

__all__ = ["CALL_FORMATS", "CallReader", "Said", "ToolCall", "call_format_of", "call_reader"]


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


Said: TypeAlias = str | ToolCall
"""A piece of text, or a call."""

_ReadCalls: TypeAlias = Callable[[str, Tools], list[ToolCall] | None]
"""From what stands between marks to the calls that it is; None: it is none."""

_JSON: Final = json.JSONDecoder()


class CallReader(ABC):
    """Takes a text apart into text and calls.

    What might become a call is held back until that is decided. What turns out to be none, or calls a
    function that was not offered, stays text. Space around calls is no text.

    Parameters
    ----------
    tools : Tools
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._n_calls = 0
        self._space = ""  # behind the text so far; text if more text comes
        self._behind_call = False

    @abstractmethod
    def feed(self, text: str) -> list[Said]:
        """What new text says."""

    @abstractmethod
    def finish(self) -> list[Said]:
        """The rest, when no more text comes."""

    def _say(self, text: str) -> list[Said]:
        text = self._space + text
        if self._behind_call:
            text = text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        if not said:
            return []
        self._behind_call = False
        return [said]

    def _end(self) -> list[Said]:
        """The space at the end of a text without calls."""
        space, self._space = self._space, ""
        return [space] if space and not self._n_calls else []

    def _call(self, calls: Sequence[ToolCall]) -> list[Said]:
        self._space, self._behind_call = "", True
        first = self._n_calls == 0
        self._n_calls += len(calls)
        if not self._tools.parallel:
            calls = calls[:1] if first else []
        return list(calls)

    def _known(self, calls: Sequence[ToolCall] | None) -> bool:
        return bool(calls) and all(call.name in self._tools.functions for call in calls or ())


class _Marked(CallReader):
    """Calls stand between two marks; without an end mark they reach to the next begin mark, or the end."""

    def __init__(
        self,
        tools: Tools,
        begin: str,
        end: str | None,
        read: _ReadCalls,
    ) -> None:
        super().__init__(tools)
        self._begin, self._close, self._read = begin, end, read
        self._buffer, self._inside = "", False

    def feed(self, text: str) -> list[Said]:
        self._buffer += text
        said: list[Said] = []
        while True:
            mark = (self._close or self._begin) if self._inside else self._begin
            place = self._buffer.find(mark)
            if place < 0:
                break
            body, self._buffer = self._buffer[:place], self._buffer[place + len(mark) :]
            if not self._inside:
                said += self._say(body) if body else []
                self._inside = True
            else:
                said += self._body(body, self._close or "")
                self._inside = self._close is None
        if not self._inside:
            n_held = overlap(self._buffer, self._begin)
            ready = self._buffer[: len(self._buffer) - n_held]
            self._buffer = self._buffer[len(ready) :]
            said += self._say(ready) if ready else []
        return said

    def finish(self) -> list[Said]:
        rest, self._buffer = self._buffer, ""
        if self._inside:
            self._inside = False
            return [*self._body(rest, ""), *self._end()]
        return [*(self._say(rest) if rest else []), *self._end()]

    def _body(self, body: str, end: str) -> list[Said]:
        calls = self._read(body, self._tools)
        if self._known(calls):
            return self._call(calls or [])
        return self._say(f"{self._begin}{body}{end}")


class _Bare(CallReader):
    """The whole text is calls, in JSON, or none is; some write a mark first."""

    def __init__(self, tools: Tools, mark: str = "") -> None:
        super().__init__(tools)
        self._mark, self._text, self._plain = mark, "", False

    def feed(self, text: str) -> list[Said]:
        if self._plain:
            return self._say(text)
        self._text += text
        begin = self._text.lstrip()
        could = begin.startswith("{") or (self._mark and self._mark.startswith(begin[: len(self._mark)]))
        if not begin or could:
            return []
        self._plain = True
        return self._say(self._text)

    def finish(self) -> list[Said]:
        if self._plain:
            return self._end()
        calls = _json_calls(self._text.strip().removeprefix(self._mark), self._tools)
        if self._known(calls):
            return self._call(calls or [])
        return [*(self._say(self._text) if self._text else []), *self._end()]


class _Forced(CallReader):
    """The text has to be a call: the arguments of the one function, or a list of calls.

    What was cut off before a call was complete is neither a call nor text.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._text, self._position = "", 0

    def feed(self, text: str) -> list[Said]:
        self._text += text
        return self._complete() if self._tools.choice == "required" and "}" in text else []

    def finish(self) -> list[Said]:
        if self._tools.choice == "required":
            return self._complete()
        (name,) = self._tools.functions
        try:
            json.loads(self._text)
        except (ValueError, RecursionError):
            return []
        return self._call([ToolCall(name, self._text.strip())])

    def _complete(self) -> list[Said]:
        """The calls of the list that are complete and have not been said."""
        found: list[ToolCall] = []
        while begin := _BEFORE_CALL.match(self._text, self._position):
            try:
                value, self._position = _JSON.raw_decode(self._text, begin.end())
            except (ValueError, RecursionError):
                break
            call = _json_call(value)
            if call is None:
                break
            found.append(call)
        return self._call(found) if self._known(found) else []


_BEFORE_CALL: Final = re.compile(r"[\s\[,]*")


def _json_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """Calls as objects of JSON with a name and arguments, one after the other or in a list."""
    found: list[ToolCall] = []
    position, text = 0, text.strip()
    while position < len(text):
        try:
            value, position = _JSON.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        for item in value if isinstance(value, list) else [value]:
            call = _json_call(item)
            if call is None:
                return None
            found.append(call)
        while position < len(text) and (text[position].isspace() or text[position] in ",;"):
            position += 1
    return found


def _json_call(value: Any) -> ToolCall | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # JSON within JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


_NAMED: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")


def _mistral_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """A list of JSON, or a name and the JSON of its arguments."""
    named = _NAMED.match(text)
    if named is None:
        return _json_calls(text, tools)
    calls = _json_calls(f'{{"name": "{named[1]}", "arguments": {text[named.end() :].strip()}}}', tools)
    return calls if calls is not None and len(calls) == 1 else None


_FUNCTION: Final = re.compile(r"\s*<function=([^>\s]+)>\s*(.*?)\s*</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def _xml_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """A function and its parameters, each between tags of its own; else JSON."""
    function = _FUNCTION.fullmatch(text)
    if function is None:
        return _json_calls(text, tools)
    name, rest = function[1], function[2]
    if name not in tools.functions or _PARAMETER.sub("", rest).strip():
        return None
    schemas = tools.parameters(name).get("properties")
    arguments = {}
    for key, value in _PARAMETER.findall(rest):
        schema = schemas.get(key) if isinstance(schemas, Mapping) else None
        arguments[key] = _typed(value, schema)
    return [ToolCall(name, json.dumps(arguments, ensure_ascii=False))]


def _typed(text: str, schema: Any) -> Any:
    """The value that stands in a tag: a text where the schema says so, else JSON where it is some."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Attributes
    ----------
    sign : str
        What its chat templates have in them.
    marks : tuple of str
        What stands around calls; tokens of these names are read though they have no text.
    make : callable
        A reader for some tools.
    """

    sign: str
    marks: tuple[str, ...]
    make: Callable[[Tools], CallReader]


def _marked(
    begin: str, end: str | None, read: _ReadCalls = _json_calls
) -> tuple[tuple[str, ...], Callable[[Tools], CallReader]]:
    marks = (begin,) if end is None else (begin, end)
    return marks, lambda tools: _Marked(tools, begin, end, read)


CALL_FORMATS: Final[dict[str, CallFormat]] = {
    "mistral": CallFormat("[TOOL_CALLS]", *_marked("[TOOL_CALLS]", None, _mistral_calls)),
    "xml": CallFormat("<function=", *_marked("<tool_call>", "</tool_call>", _xml_calls)),
    "hermes": CallFormat("<tool_call>", *_marked("<tool_call>", "</tool_call>")),
    "granite": CallFormat("<|tool_call|>", *_marked("<|tool_call|>", "<|/tool_call|>")),
    "llama": CallFormat('"parameters":', ("<|python_tag|>",), lambda tools: _Bare(tools, "<|python_tag|>")),
    "json": CallFormat("", (), lambda tools: _Bare(tools)),
}
"""Formats by their names; of those whose sign a template has, the first is meant."""


def call_format_of(template: str) -> str:
    """The name of the format that a chat template asks for."""
    return next(name for name, one in CALL_FORMATS.items() if one.sign in template)


def call_reader(tools: Tools, name: str) -> CallReader:
    """What reads the calls in one text."""
    if tools.choice in ("named", "required"):
        return _Forced(tools)
    return CALL_FORMATS[name].make(tools)
