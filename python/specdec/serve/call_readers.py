"""Texts with calls of tools in them, taken apart as they come."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from specdec.decoding.stopping import overlap
from specdec.serve.tool_calls import ReadCalls, Said, ToolCall, json_call, json_calls
from specdec.serve.tool_fields import Tools

__all__ = ["BareCalls", "CallReader", "ForcedCalls", "MarkedCalls"]

_DECODER: Final = json.JSONDecoder()
_BEFORE_CALL: Final = re.compile(r"[\s\[,]*")


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


class MarkedCalls(CallReader):
    """Calls stand between two marks; without an end mark they reach to the next begin mark, or the end.

    Parameters
    ----------
    tools : Tools
    begin : str
        The mark before calls.
    end : str or None
        That behind them.
    read : callable
        From what stands between to the calls that it is.
    """

    def __init__(
        self,
        tools: Tools,
        begin: str,
        end: str | None,
        read: ReadCalls,
    ) -> None:
        super().__init__(tools)
        self._begin, self._close, self._read = begin, end, read
        self._buffer, self._inside = "", False

    def feed(self, text: str) -> list[Said]:
        """See `CallReader.feed`."""
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
        """See `CallReader.finish`."""
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


class BareCalls(CallReader):
    """The whole text is calls, in JSON, or none is.

    Parameters
    ----------
    tools : Tools
    mark : str
        What some models write first.
    """

    def __init__(self, tools: Tools, mark: str = "") -> None:
        super().__init__(tools)
        self._mark, self._text, self._plain = mark, "", False

    def feed(self, text: str) -> list[Said]:
        """See `CallReader.feed`."""
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
        """See `CallReader.finish`."""
        if self._plain:
            return self._end()
        calls = json_calls(self._text.strip().removeprefix(self._mark), self._tools)
        if self._known(calls):
            return self._call(calls or [])
        return [*(self._say(self._text) if self._text else []), *self._end()]


class ForcedCalls(CallReader):
    """The text has to be a call: the arguments of the one function, or a list of calls.

    What was cut off before a call was complete is neither a call nor text.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._text, self._position = "", 0

    def feed(self, text: str) -> list[Said]:
        """See `CallReader.feed`."""
        self._text += text
        return self._complete() if self._tools.choice == "required" and "}" in text else []

    def finish(self) -> list[Said]:
        """See `CallReader.finish`."""
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
                value, self._position = _DECODER.raw_decode(self._text, begin.end())
            except (ValueError, RecursionError):
                break
            call = json_call(value)
            if call is None:
                break
            found.append(call)
        return self._call(found) if self._known(found) else []
