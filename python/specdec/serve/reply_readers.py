"""Parsers that split replies into text, reasoning and tool calls, by model family."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from specdec.models.reasoning_format import HARMONY_ENDS, HARMONY_MARKS, harmony_address
from specdec.models.tokenizer import MarkSpelling, StreamDecoder, overlap


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call."""

    functions: dict[str, dict[str, Any]]  # descriptions by name; parameters are a JSON schema
    choice: str = "auto"  # or "none", "required", "named" (must call the only function)
    parallel: bool = True  # whether a reply may hold several calls

    @property
    def for_template(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": function} for function in self.functions.values()]

    def parameters(self, name: str) -> Any:
        return self.functions[name].get("parameters") or {"type": "object", "properties": {}}

    def schema(self) -> Any:
        """Return the JSON schema of a forced call: its arguments, or a list of calls."""
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
    """Call of the function `name`; `arguments` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reasoning:
    """Part of the model's reasoning, outside the answer."""

    text: str


Said: TypeAlias = str | Reasoning | ToolCall
"""Part of a reply."""

ReadCalls: TypeAlias = Callable[[str, Tools], list[ToolCall] | None]
"""Parser of the text between two marks to calls; None if it is not a call."""

_DECODER: Final = json.JSONDecoder(strict=False)  # models write line ends into strings


def parsed(text: str, otherwise: Any = None) -> Any:
    """Parse JSON as models write it; return another value for other texts."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return otherwise


def json_calls(text: str, tools: Tools) -> list[ToolCall] | None:
    """Parse calls from JSON objects with name and arguments, concatenated or in a list."""
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
    """Convert a JSON object with name and arguments to a call; None for other values."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    written = json_arguments(arguments) if isinstance(arguments, str) else _written(arguments)
    return None if written is None else ToolCall(value["name"], written)


def json_arguments(text: str) -> str | None:
    """Convert a model's arguments to the JSON of an object; None if they are not an object."""
    # Text that does not parse stays text, for which `_written` returns None; None itself would become {}.
    return _written(parsed(text.strip(), text.strip())) if text.strip() else "{}"


def _written(arguments: Any) -> str | None:
    """Encode an object as JSON; None for other values, non-finite numbers and too deep nesting."""
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
    """Parse a function and its parameters from their tags, else from JSON."""
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
    """Convert the text between tags: a string if the schema says so, else JSON if it parses."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    return parsed(text, text)


# ── Readers


class MarkedText:
    """Inserts special tokens, as a `MarkSpelling` writes them, into a decoder's text."""

    def __init__(self, decoder: StreamDecoder, spelling: MarkSpelling) -> None:
        self._decoder, self._spelling = decoder, spelling
        self._n_decoded = self._n_given = 0
        self._waiting: list[tuple[int, str]] = []  # index and character of each mark

    def feed(self, text: str, tokens: Sequence[int]) -> str:
        """Add new text and tokens; return the text with marks."""
        if not self._spelling:
            return text
        for token in tokens:
            self._n_decoded += len(self._decoder.feed([token]))
            if mark := self._spelling.mark(token):
                self._waiting.append((self._n_decoded, mark))
        found, begin = "", 0
        end = self._n_given + len(text)
        while self._waiting and self._waiting[0][0] <= end:
            index, mark = self._waiting.pop(0)
            cut = max(index - self._n_given, begin)
            found += text[begin:cut] + mark
            begin = cut
        self._n_given = end
        return found + text[begin:]


class MarkCutter:
    """Splits streamed text at one or more marks; holds back text that may become a mark."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = sorted(marks, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, self._marks)))
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Return pairs of a text and the mark after it, "" if none follows yet."""
        text = self._held + text
        cuts, begin = [], 0
        for found in self._found.finditer(text):
            cuts.append((text[begin : found.start()], found[0]))
            begin = found.end()
        end = len(text) - max(overlap(text[begin:], mark) for mark in self._marks)
        if end > begin:
            cuts.append((text[begin:end], ""))
        self._held = text[end:]
        return cuts

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class ReplyReader(ABC):
    """Splits a reply into text, reasoning and calls.

    Text that may become a call is held back until that is decided; anything but a call of an offered function
    stays text. Whitespace between two texts stays; whitespace between calls and no text is dropped.
    """

    def __init__(self, tools: Tools, spelling: MarkSpelling | None = None) -> None:
        self._tools = tools
        self._spelling = spelling or MarkSpelling()
        self._n_calls = 0
        self._space = ""  # trailing whitespace, dropped unless more text comes
        self._has_text = False

    @abstractmethod
    def feed(self, text: str) -> list[Said]:
        """Add new text; return the parts that are decided."""

    @abstractmethod
    def finish(self) -> list[Said]:
        """Return the remaining parts at the end of the text."""

    def _say(self, text: str) -> list[Said]:
        text = self._space + self._spelling.named(text)
        said = text.rstrip()
        self._space = text[len(said) :]
        if not said:
            return []
        if self._n_calls and not self._has_text:
            said = said.lstrip()
        self._has_text = True
        return [said]

    def _end(self) -> list[Said]:
        space, self._space = self._space, ""
        return [space] if space and not self._n_calls else []

    def _call(self, calls: Sequence[ToolCall]) -> list[Said]:
        first = self._n_calls == 0
        self._n_calls += len(calls)
        if not self._tools.parallel:
            calls = calls[:1] if first else []
        return list(calls)

    def _known(self, calls: Sequence[ToolCall] | None) -> bool:
        return bool(calls) and all(call.name in self._tools.functions for call in calls or ())


class _JsonText:
    """Streamed JSON that tracks whether it ends within a string or braces."""

    _SIGNS: Final = re.compile(r'[\\"{}]')

    def __init__(self, text: str = "") -> None:
        self._parts: list[str] = []
        self.in_string = self._escaped = False
        self._depth = 0
        self.append(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def append(self, text: str) -> list[int]:
        """Add text; return the indices after braces in it that close an outermost object."""
        self._parts.append(text)
        at, ends = int(self._escaped and bool(text)), []
        self._escaped = self._escaped and not text
        while found := self._SIGNS.search(text, at):
            at = found.end()
            if found[0] == '"':
                self.in_string = not self.in_string
            elif self.in_string:
                if found[0] == "\\":
                    self._escaped = at == len(text)
                    at += 1
            elif found[0] == "{":
                self._depth += 1
            elif found[0] == "}":
                self._depth -= 1
                if self._depth == 0:
                    ends.append(at)
        return ends


class MarkedCalls(ReplyReader):
    """Reads calls between two marks; without an end mark, up to the next begin mark or the end.

    A mark within a string belongs to the call, unless the call stays incomplete. `read` parses the text
    between marks; with `tags`, a call may use the tags of a function and its parameters.
    """

    def __init__(
        self, tools: Tools, begin: str, end: str | None, read: ReadCalls,
        spelling: MarkSpelling | None = None, *, tags: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(tools, spelling)
        self._begin = self._spelling.spell(begin)
        self._close = "" if end is None else self._spelling.spell(end)
        self._read, self._tags = read, tags
        self._cutter = MarkCutter(filter(None, (self._begin, self._close)))
        self._body: _JsonText | None = None  # None: not between marks
        self._first_end: int | None = None  # index in the body of the first end mark
        self._marks_end = False  # even within strings

    def feed(self, text: str) -> list[Said]:
        return [one for piece, mark in self._cutter.feed(text) for one in self._more(piece, mark)]

    def _more(self, piece: str, mark: str) -> list[Said]:
        if self._body is None:
            if mark == self._begin:
                self._body, mark = _JsonText(), ""
            return self._say(piece + mark) if piece + mark else []
        self._body.append(piece)
        if not mark:
            return []
        if mark != (self._close or self._begin):
            self._body.append(mark)
            return []
        if self._is_open(self._body) and not self._marks_end:
            if self._first_end is None:
                self._first_end = len(self._body.text)
            self._body.append(mark)
            return []
        return self._end_body(self._close)

    def _is_open(self, body: _JsonText) -> bool:
        """Return whether an end mark would be within a JSON string or a function's tags."""
        if self._tags and "<function=" in (text := body.text):
            return "</function>" not in text
        return body.in_string

    def _end_body(self, end: str) -> list[Said]:
        assert self._body is not None
        body, self._first_end = self._body.text, None
        self._body = None if self._close else _JsonText()
        calls = self._read(self._spelling.named(body), self._tools)
        return self._call(calls or []) if self._known(calls) else self._say(f"{self._begin}{body}{end}")

    def finish(self) -> list[Said]:
        said = self._more(self._cutter.finish(), "")
        if self._body is not None and self._first_end is not None:
            body, first, mark = self._body.text, self._first_end, self._close or self._begin
            if not self._known(self._read(self._spelling.named(body), self._tools)):
                self._marks_end, self._body = True, _JsonText(body[:first])
                said += [*self._end_body(self._close), *self.feed(body[first + len(mark) :])]
                said += self._more(self._cutter.finish(), "")
        if self._body is not None:
            said += self._end_body("")
            self._body = None
        return [*said, *self._end()]


class BareCalls(ReplyReader):
    """Reads replies that are entirely JSON calls, after an optional mark, or else text."""

    def __init__(self, tools: Tools, mark: str = "", spelling: MarkSpelling | None = None) -> None:
        super().__init__(tools, spelling)
        self._mark, self._text, self._plain = self._spelling.spell(mark), "", False

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
        written = self._spelling.named(self._text.strip().removeprefix(self._mark))
        calls = json_calls(written, self._tools)
        if self._known(calls):
            return self._call(calls or [])
        return [*(self._say(self._text) if self._text else []), *self._end()]


class ForcedCalls(ReplyReader):
    """Reads constrained replies: a function's arguments or a list of calls, without truncated calls."""

    def __init__(self, tools: Tools, spelling: MarkSpelling | None = None) -> None:
        super().__init__(tools, spelling)
        self._pending = _JsonText()  # of the incomplete call

    def feed(self, text: str) -> list[Said]:
        text, calls, begin = self._spelling.without_marks(text), [], 0
        ends = self._pending.append(text)
        if self._tools.choice == "required":
            before = self._pending.text[: -len(text)] if ends else ""
            for end in ends:
                call = json_call(parsed((before + text[begin:end]).lstrip(" \t\r\n[,")))
                if call is not None and call.name in self._tools.functions:
                    calls.append(call)
                before, begin = "", end
            if ends:
                self._pending = _JsonText(text[begin:])
        return self._call(calls)

    def finish(self) -> list[Said]:
        if self._tools.choice == "required":
            return []
        (name,), text = self._tools.functions, self._pending.text.strip()
        try:
            json.loads(text)  # strict, as clients get the text itself
        except (ValueError, RecursionError):
            return []
        return self._call([ToolCall(name, text)])


class HarmonyReader(ReplyReader):
    """Reads gpt-oss channels: "analysis" is reasoning, messages to functions are calls, the rest is text.

    Invalid calls stay text with their marks, as does a reply that starts with neither a mark nor a recipient.
    Line ends join messages of one type; a truncated header is dropped. `begun` is the part of the message in
    the prompt, after ``<|start|>``; None: "assistant".
    """

    def __init__(self, tools: Tools, spelling: MarkSpelling | None = None, begun: str | None = None) -> None:
        super().__init__(tools, spelling)
        self._names = {self._spelling.spell(name): name for name in HARMONY_MARKS}
        self._cutter = MarkCutter(self._names)
        self._header: str | None = ""  # of the current message; None in its content or outside
        self._raw_header = ""  # of the message being read
        self._channel, self._recipient = "text", ""
        self._arguments: list[str] = []
        self._given: set[str] = set()  # types that have had text
        self._gap = False  # whether more text of the type needs a line end first
        self._own = ""  # what the reply adds to the prompt's header before any mark
        self._has_mark = False
        header = "assistant" if begun is None else begun
        for piece, mark in [*self._cutter.feed(header), (self._cutter.finish(), "")]:
            if self._header is not None:
                self._header += piece
            if mark:
                self._mark(self._names[mark])

    def feed(self, text: str) -> list[Said]:
        said: list[Said] = []
        for piece, mark in self._cutter.feed(text):
            said += self._text(piece) if piece else []
            said += self._mark(self._names[mark]) if mark else []
        return said

    def finish(self) -> list[Said]:
        rest = self._cutter.finish()
        said = self._text(rest) if rest else []
        if self._own:
            said += self._say(self._own)
        return [*said, *self._close(""), *self._end()]

    def _text(self, piece: str) -> list[Said]:
        if self._header is not None and not self._has_mark:
            self._own += piece
            begin = self._own.lstrip()
            if begin.startswith("to=") or "to=".startswith(begin):
                return []
            piece, self._own, self._header = self._own, "", None
        if self._header is not None:
            self._header += piece
            return []
        if self._recipient:
            self._arguments.append(piece)
            return []
        if self._gap:
            piece, self._gap = "\n" + piece, False
        self._given.add(self._channel)
        return [Reasoning(self._spelling.named(piece))] if self._channel == "reasoning" else self._say(piece)

    def _mark(self, name: str) -> list[Said]:
        said: list[Said] = []
        if self._header is not None:
            self._header, self._own = self._header + self._own, ""
        self._has_mark = True
        if name in HARMONY_ENDS:
            said = self._close(name)
            self._header = None
        elif name == "<|start|>":
            said = self._close("")
            self._header = ""
        elif name == "<|channel|>" and self._header is None:  # a message without a start mark
            said = self._close("")
            self._header = name
        elif name == "<|message|>" and self._header is not None:
            channel, self._recipient = harmony_address(self._header)
            self._channel = "reasoning" if channel == "analysis" else "text"
            self._gap = self._channel in self._given
            self._raw_header, self._header = self._header.removeprefix("assistant").lstrip() + name, None
        elif self._header is not None:
            self._header += name
        return said

    def _close(self, end: str) -> list[Said]:
        """End a message; return the call if it is to a function."""
        written, recipient = self._spelling.named("".join(self._arguments)), self._recipient
        self._arguments, self._recipient, self._channel, self._gap = [], "", "text", False
        if not recipient:
            return []
        name, arguments = recipient.removeprefix("functions."), json_arguments(written)
        if name in self._tools.functions and arguments is not None:
            return self._call([ToolCall(name, arguments)])
        return self._say(f"{self._raw_header}{written}{end}")


@dataclass(frozen=True)
class ToolFormat:
    """Format of replies with tool calls in a family of models."""

    sign: str  # text that identifies its chat templates
    marks: tuple[str, ...]  # between parts of a reply; special tokens of these names count too
    make: Callable[[Tools, MarkSpelling, str | None], ReplyReader]
    begin: str = ""  # mark of a message: if set, every reply is parsed, from the last one in the prompt on


def _marked(
    sign: str, begin: str, end: str | None, read: ReadCalls = json_calls, *, tags: bool = False
) -> ToolFormat:
    marks = (begin,) if end is None else (begin, end)
    return ToolFormat(
        sign, marks, lambda tools, spelling, _: MarkedCalls(tools, begin, end, read, spelling, tags=tags)
    )


def _bare(sign: str, mark: str) -> ToolFormat:
    marks = (mark,) if mark else ()
    return ToolFormat(sign, marks, lambda tools, spelling, _: BareCalls(tools, mark, spelling))


TOOL_FORMATS: Final[dict[str, ToolFormat]] = {
    "harmony": ToolFormat("<|channel|>", HARMONY_MARKS, HarmonyReader, "<|start|>"),
    "mistral": _marked("[TOOL_CALLS]", "[TOOL_CALLS]", None, mistral_calls),
    "xml": _marked("<function=", "<tool_call>", "</tool_call>", xml_calls, tags=True),
    "hermes": _marked("<tool_call>", "<tool_call>", "</tool_call>"),
    "granite": _marked("<|tool_call|>", "<|tool_call|>", "<|/tool_call|>"),
    "llama": _bare('"parameters":', "<|python_tag|>"),
    "json": _bare("", ""),
}
"""Formats by name; a template uses the first format whose sign it contains."""


def tool_format_of(template: str) -> str:
    """Return the name of a chat template's tool format."""
    return next(name for name, one in TOOL_FORMATS.items() if one.sign in template)
