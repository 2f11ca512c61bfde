"""Readers of whole replies: of reasoning between tags, and of the text and calls after it."""

from __future__ import annotations

from specdec.models.reasoning_format import ReasoningPosition, TagPosition
from specdec.models.tokenizer import MarkSpelling
from specdec.serve.reply_readers import (
    TOOL_FORMATS,
    ForcedCalls,
    MarkCutter,
    Reasoning,
    ReplyReader,
    Said,
    Tools,
)

_NO_TOOLS = Tools({}, "none")


class TaggedReasoning(ReplyReader):
    """Separates reasoning between tags from the text after it, whose marks stay.

    White space around reasoning, and at the start of the text after it, is dropped.
    """

    def __init__(self, position: TagPosition, spelling: MarkSpelling) -> None:
        super().__init__(_NO_TOOLS, spelling)
        begin, end = map(spelling.spell, position.format.tags)
        self._phase, self._begin, self._cutter = position.phase, begin, MarkCutter([end])
        self._held = ""  # what may become the begin tag, or white space
        self._is_begun = False  # whether there is text of the part

    def feed(self, text: str) -> list[Said]:
        if self._phase == "undecided":
            text, self._held = self._held + text, ""
            stripped = text.lstrip()
            if stripped.startswith(self._begin):
                self._phase, text = "inside", stripped[len(self._begin) :]
            elif self._begin.startswith(stripped):
                self._held = text
                return []
            else:
                self._phase = "ended"
                self._is_begun = True
        if self._phase == "ended":
            return self._text(text)
        said: list[Said] = []
        cuts = self._cutter.feed(text)
        for i, (piece, mark) in enumerate(cuts):
            said += self._reason(piece)
            if mark:
                self._phase, self._is_begun, self._held = "ended", False, ""
                rest = "".join(a + b for a, b in cuts[i + 1 :]) + self._cutter.finish()
                return [*said, *self._text(rest)]
        return said

    def finish(self) -> list[Said]:
        if self._phase == "inside":
            return self._reason(self._cutter.finish())
        return [self._held] if self._phase == "undecided" and self._held else []

    def _reason(self, piece: str) -> list[Said]:
        text = self._held + self._spelling.named(piece)
        text = text if self._is_begun else text.lstrip()
        said = text.rstrip()
        self._held = text[len(said) :]
        self._is_begun = self._is_begun or bool(said)
        return [Reasoning(said)] if said else []

    def _text(self, text: str) -> list[Said]:
        text = text if self._is_begun else text.lstrip()
        self._is_begun = self._is_begun or bool(text)
        return [text] if text else []


class AnswerReader(ReplyReader):
    """Reads the text that an `outer` reader leaves by an `inner` one; None: it is plain text."""

    def __init__(self, outer: ReplyReader, inner: ReplyReader | None, spelling: MarkSpelling) -> None:
        super().__init__(_NO_TOOLS, spelling)
        self._outer, self._inner = outer, inner

    def feed(self, text: str) -> list[Said]:
        return self._read(self._outer.feed(text))

    def finish(self) -> list[Said]:
        said = self._read(self._outer.finish())
        return said if self._inner is None else [*said, *self._inner.finish()]

    def _read(self, said: list[Said]) -> list[Said]:
        found: list[Said] = []
        for one in said:
            if not isinstance(one, str):
                found.append(one)
            elif self._inner is not None:
                found += self._inner.feed(one)
            elif text := self._spelling.without_marks(one):
                found.append(text)
        return found


def reply_reader(
    tools: Tools | None, name: str, spelling: MarkSpelling | None = None, begun: str | None = None,
    position: ReasoningPosition | None = None,
) -> ReplyReader | None:  # fmt: skip
    """Make a reader of replies in one of `TOOL_FORMATS`; None if the reply is plain text.

    `spelling` spells special tokens; `begun` is the part of the message in the prompt, if known; `position`
    is where the reply of a model that reasons begins.
    """
    one, spelling = TOOL_FORMATS[name], spelling or MarkSpelling()
    reader: ReplyReader | None
    if tools is None or tools.choice == "none":
        reader = one.make(_NO_TOOLS, spelling, begun) if one.begin else None
    elif tools.choice not in ("named", "required"):
        reader = one.make(tools, spelling, begun)
    else:
        reader = ForcedCalls(tools, spelling)
        if one.begin and position is not None:
            reader = AnswerReader(one.make(_NO_TOOLS, spelling, begun), reader, spelling)
    if isinstance(position, TagPosition) and position.phase != "ended":
        return AnswerReader(TaggedReasoning(position, spelling), reader, spelling)
    return reader
