"""The formats in which the families of models write replies, chosen by their chat templates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from specdec.models.tokenizer import MarkSpelling
from specdec.serve import tool_calls
from specdec.serve.reply_readers import BareCalls, ForcedCalls, MarkCutter, MarkedCalls, ReplyReader
from specdec.serve.tool_calls import ReadCalls, Reasoning, Said, ToolCall, Tools, json_calls

_HARMONY_MARKS: Final = (
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
)  # fmt: skip
"""Marks before the parts of a message (role, channel, type of content, content), and three ends."""
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")


class HarmonyReader(ReplyReader):
    """Reads the channels of gpt-oss: "analysis" is reasoning, a message to a function a call, the rest text.

    A message to a function that was not offered, or whose content is not the JSON of an object, stays text,
    its marks included. A header that was cut off is left out. Messages of one kind are joined by line ends. A
    reply that begins with neither a mark nor a recipient is text, as with a structured output.

    `begun` is what the prompt has of the message, after ``<|start|>``; None: "assistant".
    """

    def __init__(self, tools: Tools, spelling: MarkSpelling | None = None, begun: str | None = None) -> None:
        super().__init__(tools, spelling)
        self._names = {self._spelling.spell(name): name for name in _HARMONY_MARKS}
        self._cutter = MarkCutter(self._names)
        self._header: str | None = ""  # of the message that begins; None: its content follows, or none
        self._raw_header = ""  # of the message whose content follows
        self._kind, self._recipient = "text", ""
        self._arguments: list[str] = []
        self._given: set[str] = set()  # kinds of which there has been text
        self._gap = False  # whether a line end is due before more of it
        self._own = ""  # what the reply adds to a header of the prompt, as long as this has no mark
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
        self.reasons = self._header is None and self._kind == "reasoning" and not self._recipient
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
        self._given.add(self._kind)
        return [Reasoning(self._spelling.named(piece))] if self._kind == "reasoning" else self._say(piece)

    def _mark(self, name: str) -> list[Said]:
        said: list[Said] = []
        if self._header is not None:
            self._header, self._own = self._header + self._own, ""
        self._has_mark = True
        if name in _ENDS:
            said = self._close(name)
            self._header = None
        elif name == "<|start|>":
            said = self._close("")
            self._header = ""
        elif name == "<|channel|>" and self._header is None:  # a message without its beginning
            said = self._close("")
            self._header = name
        elif name == "<|message|>" and self._header is not None:
            channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
            self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "text"
            self._recipient = "" if recipient is None else recipient[1]
            self._gap = self._kind in self._given
            self._raw_header, self._header = self._header.removeprefix("assistant").lstrip() + name, None
        elif self._header is not None:
            self._header += name
        return said

    def _close(self, end: str) -> list[Said]:
        """End a message; if it is to a function, return the call."""
        written, recipient = self._spelling.named("".join(self._arguments)), self._recipient
        self._arguments, self._recipient, self._kind, self._gap = [], "", "text", False
        if not recipient:
            return []
        name, arguments = recipient.removeprefix("functions."), tool_calls.json_arguments(written)
        if name in self._tools.functions and arguments is not None:
            return self._call([ToolCall(name, arguments)])
        return self._say(f"{self._raw_header}{written}{end}")


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes replies with calls of tools.

    `sign` is a string in its chat templates. `marks` are between the parts of a reply; tokens of these names
    are read though they have no text. `begin` is the mark that begins a message: if there is one, every reply
    is read, and the reader needs what the prompt has after the last of them.
    """

    sign: str
    marks: tuple[str, ...]
    make: Callable[[Tools, MarkSpelling, str | None], ReplyReader]
    begin: str = ""


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
    "harmony": ToolFormat("<|channel|>", _HARMONY_MARKS, HarmonyReader, "<|start|>"),
    "mistral": _marked("[TOOL_CALLS]", "[TOOL_CALLS]", None, tool_calls.mistral_calls),
    "xml": _marked("<function=", "<tool_call>", "</tool_call>", tool_calls.xml_calls, tags=True),
    "hermes": _marked("<tool_call>", "<tool_call>", "</tool_call>"),
    "granite": _marked("<|tool_call|>", "<|tool_call|>", "<|/tool_call|>"),
    "llama": _bare('"parameters":', "<|python_tag|>"),
    "json": _bare("", ""),
}
"""Formats by name; a template has the first format whose sign is in it."""


def tool_format_of(template: str) -> str:
    """Return the name of the format that a chat template asks for."""
    return next(name for name, one in TOOL_FORMATS.items() if one.sign in template)


def reply_reader(
    tools: Tools | None, name: str, spelling: MarkSpelling | None = None, begun: str | None = None
) -> ReplyReader | None:
    """Make the reader of a reply, the one place where replies are cut at marks.

    `name` is one of `TOOL_FORMATS`, `spelling` how special tokens are written in the reply, and `begun` what
    the prompt has of the message, if that is known. None is returned where a reply is text as it is.
    """
    one, spelling = TOOL_FORMATS[name], spelling or MarkSpelling()
    if tools is None or tools.choice == "none":
        return one.make(Tools({}, "none"), spelling, begun) if one.begin else None
    if tools.choice in ("named", "required"):
        return ForcedCalls(tools, spelling)
    return one.make(tools, spelling, begun)
