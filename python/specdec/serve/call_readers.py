"""Replies with calls of tools in them, taken apart as they come."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from specdec.models.tokenizer import MarkSpelling
from specdec.serve.marked_text import MarkCutter
from specdec.serve.tool_calls import ReadCalls, Said, ToolCall, json_call, json_calls, raw_decode
from specdec.serve.tool_fields import Tools

__all__ = ["BareCalls", "ForcedCalls", "MarkedCalls", "ReplyReader"]

_BEFORE_CALL: Final = re.compile(r"[\s\[,]*")
_IN_STRING: Final = re.compile(r'[\\"]')


class ReplyReader(ABC):
    """Takes a reply apart into text, reasoning and calls.

    What might become a call is held back until that is decided. What turns out to be none, or calls a
    function that was not offered, stays text. Space between two texts stays, whether calls are between them
    or not; space that has calls on one side and no text on the other is left out.

    Parameters
    ----------
    tools : Tools
    spelling : MarkSpelling, optional
        How special tokens are written in the text.

    Attributes
    ----------
    reasons : bool
        Whether text that comes now is reasoning.
    """

    def __init__(self, tools: Tools, spelling: MarkSpelling | None = None) -> None:
        self._tools = tools
        self._spelling = spelling or MarkSpelling()
        self.reasons = False
        self._n_calls = 0
        self._space = ""  # after the text so far; text if more text comes
        self._has_text = False

    @abstractmethod
    def feed(self, text: str) -> list[Said]:
        """What new text says."""

    @abstractmethod
    def finish(self) -> list[Said]:
        """The rest, when no more text comes."""

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
        """The space at the end of a text without calls."""
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


class _CallBody:
    """The text after a begin mark, as far as it has come."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._in_string = self._escaped = False

    def append(self, text: str) -> None:
        """Add text, and follow its strings of JSON."""
        self._parts.append(text)
        at = int(self._escaped and bool(text))
        self._escaped = self._escaped and not text
        while found := _IN_STRING.search(text, at):
            at = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                self._escaped = at == len(text)
                at += 1

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._parts)

    def is_open(self, *, tags: bool) -> bool:
        """Whether an end mark would be within a string of JSON, or with `tags` within a function's tags."""
        if tags and "<function=" in (text := self.text):
            return "</function>" not in text
        return self._in_string


class MarkedCalls(ReplyReader):
    """Calls are between two marks; without an end mark they reach to the next begin mark, or the end.

    A mark within a string of a call is part of the string. Where such a call never becomes complete, its
    first end mark was one.

    Parameters
    ----------
    tools, spelling
        As of `ReplyReader`.
    begin : str
        The mark before calls.
    end : str or None
        That after them.
    read : callable
        From what is between to the calls that it is.
    tags : bool, default False
        Whether a call may be written in the tags of a function and its parameters.
    """

    def __init__(
        self,
        tools: Tools,
        begin: str,
        end: str | None,
        read: ReadCalls,
        spelling: MarkSpelling | None = None,
        *,
        tags: bool = False,
    ) -> None:
        super().__init__(tools, spelling)
        self._begin = self._spelling.spell(begin)
        self._close = None if end is None else self._spelling.spell(end)
        self._read, self._tags = read, tags
        self._cutter = MarkCutter([self._begin] if self._close is None else [self._begin, self._close])
        self._body: _CallBody | None = None  # None: not between marks
        self._first_end: int | None = None  # where in the body the first end mark is
        self._marks_end = False  # even within strings

    def feed(self, text: str) -> list[Said]:
        """See `ReplyReader.feed`."""
        return [one for piece, mark in self._cutter.feed(text) for one in self._more(piece, mark)]

    def _more(self, piece: str, mark: str) -> list[Said]:
        """A text and the mark after it, if there is one."""
        if self._body is None:
            if mark == self._begin:
                self._body = _CallBody()
                mark = ""
            return self._say(piece + mark) if piece + mark else []
        self._body.append(piece)
        if not mark:
            return []
        if mark != (self._close or self._begin):
            self._body.append(mark)
            return []
        if self._body.is_open(tags=self._tags) and not self._marks_end:
            if self._first_end is None:
                self._first_end = len(self._body.text)
            self._body.append(mark)
            return []
        return self._end_body(self._close or "")

    def _end_body(self, end: str) -> list[Said]:
        assert self._body is not None
        body, self._first_end = self._body.text, None
        self._body = _CallBody() if self._close is None else None
        calls = self._read(self._spelling.named(body), self._tools)
        return self._call(calls or []) if self._known(calls) else self._say(f"{self._begin}{body}{end}")

    def finish(self) -> list[Said]:
        """See `ReplyReader.finish`."""
        said = self._more(self._cutter.finish(), "")
        if self._body is not None and self._first_end is not None:
            body, first, mark = self._body.text, self._first_end, self._close or self._begin
            if not self._known(self._read(self._spelling.named(body), self._tools)):
                self._marks_end, self._body = True, _CallBody()
                self._body.append(body[:first])
                said += [*self._end_body(self._close or ""), *self.feed(body[first + len(mark) :])]
                said += self._more(self._cutter.finish(), "")
        if self._body is not None:
            said += self._end_body("")
            self._body = None
        return [*said, *self._end()]


class BareCalls(ReplyReader):
    """The whole text is calls, in JSON, or none is.

    Parameters
    ----------
    tools : Tools
    mark : str
        What some models write first.
    """

    def __init__(self, tools: Tools, mark: str = "", spelling: MarkSpelling | None = None) -> None:
        super().__init__(tools, spelling)
        self._mark, self._text, self._plain = self._spelling.spell(mark), "", False

    def feed(self, text: str) -> list[Said]:
        """See `ReplyReader.feed`."""
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
        """See `ReplyReader.finish`."""
        if self._plain:
            return self._end()
        written = self._spelling.named(self._text.strip().removeprefix(self._mark))
        calls = json_calls(written, self._tools)
        if self._known(calls):
            return self._call(calls or [])
        return [*(self._say(self._text) if self._text else []), *self._end()]


class ForcedCalls(ReplyReader):
    """The text has to be a call: the arguments of the one function, or a list of calls.

    What was cut off before a call was complete is neither a call nor text.
    """

    def __init__(self, tools: Tools, spelling: MarkSpelling | None = None) -> None:
        super().__init__(tools, spelling)
        self._text, self._position = "", 0

    def feed(self, text: str) -> list[Said]:
        """See `ReplyReader.feed`."""
        self._text += self._spelling.without_marks(text)
        return self._complete() if self._tools.choice == "required" and "}" in text else []

    def finish(self) -> list[Said]:
        """See `ReplyReader.finish`."""
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
                value, self._position = raw_decode(self._text, begin.end())
            except (ValueError, RecursionError):
                break
            call = json_call(value)
            if call is None:
                break
            found.append(call)
        return self._call(found) if self._known(found) else []
