"""Convert Inspect's messages and tools for chat templates, and replies to Inspect's messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    Content,
    ContentReasoning,
    ContentText,
)
from inspect_ai.tool import ToolCall, ToolInfo

from specdec.decoding.result import Result
from specdec.errors import InputError
from specdec.models.model import Model
from specdec.models.tokenizer import MarkSpelling, StreamDecoder, special_tokens_of
from specdec.serve.reply_readers import (
    TOOL_FORMATS,
    MarkedText,
    Reasoning,
    Tools,
    parsed,
    tool_format_of,
)
from specdec.serve.reply_readers import ToolCall as WrittenCall
from specdec.serve.reply_reading import reply_reader

_THINK: Final = "<think>"
_THINK_END: Final = "</think>"
_CALL: Final = re.compile(
    r"<tool_call>(.*?)</tool_call>|<function>(.*?)</function>|```json\s(.*?)```", re.DOTALL
)
_ARGUMENTS: Final = ("arguments", "parameters")  # names that models use


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Convert a conversation of text and reasoning for `specdec.ChatTemplate.render`."""
    found = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": _text(message)}
        if isinstance(message, ChatMessageAssistant):
            thoughts = [part.reasoning for part in _parts(message) if isinstance(part, ContentReasoning)]
            if thoughts:
                entry["reasoning_content"] = "\n".join(thoughts)
            if message.tool_calls:
                entry["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {"name": call.function,
                     "arguments": call.arguments}} for call in message.tool_calls
                ]  # fmt: skip
        if isinstance(message, ChatMessageTool):
            entry |= {"name": message.function, "tool_call_id": message.tool_call_id}
            if message.error is not None:
                entry["content"] = f"Error: {message.error.message}"
        found.append(entry)
    return found


def plain_text(messages: Sequence[ChatMessage]) -> str:
    """Join the texts of a conversation with empty lines, as the prompt without a chat template."""
    return "\n\n".join(_text(message) for message in messages)


def template_tools(tools: Sequence[ToolInfo]) -> list[dict[str, Any]] | None:
    """Return the JSON schemas of tools for chat templates; None without tools."""
    return [{"type": "function", "function": _function(tool)} for tool in tools] or None


def _function(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


@dataclass(frozen=True)
class ReplyFormat:
    """Reply format of a model.

    `name` is one of `TOOL_FORMATS` ("json": no marks around calls); `spelling` spells the special tokens that
    separate the parts of a reply.
    """

    name: str = "json"
    spelling: MarkSpelling = field(default_factory=MarkSpelling)

    @classmethod
    def of(cls, target: Model) -> ReplyFormat:
        """Find the format of a model from its chat template and tokenizer."""
        template, tokenizer = target.chat_template, target.tokenizer
        if template is None or tokenizer is None:
            return cls()
        name = tool_format_of("\n".join(template.templates.values()))
        if name == "llama":  # its calls are whole replies; the mark before them has no text
            name = "json"
        marks = [*TOOL_FORMATS[name].marks, _THINK, _THINK_END]
        return cls(name, MarkSpelling.of(special_tokens_of(tokenizer), marks, others=False))

    def text_of(self, result: Result) -> str:
        """Return the text of a result with the special tokens that separate its parts."""
        assert result.tokenizer is not None
        marked = MarkedText(StreamDecoder(result.tokenizer), self.spelling)
        return marked.feed(result.text or "", result.tokens)

    def parts_of(self, text: str, tools: Sequence[ToolInfo]) -> tuple[str, str, list[ToolCall]]:
        """Split a text from `text_of` at marks into (reasoning, text, calls)."""
        spelling = self.spelling
        before, end, after = text.rpartition(spelling.spell(_THINK_END))
        thoughts = before.strip().removeprefix(spelling.spell(_THINK)).strip() if end else ""
        answer = after.lstrip() if end else text
        offered = {tool.name: _function(tool) for tool in tools}
        reader = reply_reader(Tools(offered) if tools else None, self.name, spelling)
        if reader is None or self.name == "json":
            return spelling.named(thoughts), spelling.named(answer), []
        said = [*reader.feed(answer), *reader.finish()]
        thoughts += "".join(one.text for one in said if isinstance(one, Reasoning))
        calls = [
            ToolCall(id=f"call_{i}", function=call.name, arguments=json.loads(call.arguments))
            for i, call in enumerate(one for one in said if isinstance(one, WrittenCall))
        ]
        return spelling.named(thoughts), "".join(one for one in said if isinstance(one, str)), calls


def reply_of(
    text: str, model: str, tools: Sequence[ToolInfo], reply_format: ReplyFormat | None = None
) -> ChatMessageAssistant:
    """Parse a reply from `ReplyFormat.text_of` to a message with reasoning, text and tool calls.

    Reasoning ends with ``</think>``, or has its own channel (gpt-oss). A call is in the chat template's
    format, or a JSON object with a name and arguments (or parameters) within ``<tool_call>``, ``<function>``
    or a JSON fence. One such object, or a list of them, may also be the whole reply.
    """
    thoughts, answer, calls = (reply_format or ReplyFormat()).parts_of(text, tools)
    if tools:
        rest, others = _calls(answer, len(calls))
        answer, calls = rest.strip() if calls or others else rest, calls + others
    content: str | list[Content] = answer
    if thoughts:
        content = [ContentReasoning(reasoning=thoughts), ContentText(text=answer)]
    return ChatMessageAssistant(content=content, tool_calls=calls or None, model=model, source="generate")


def _parts(message: ChatMessage) -> list[Content]:
    return [] if isinstance(message.content, str) else message.content


def _text(message: ChatMessage) -> str:
    for part in _parts(message):
        if not isinstance(part, ContentText | ContentReasoning):
            raise InputError(f"a message of role {message.role!r} holds {part.type}; expected only text")
    return str(message.text)


def _calls(answer: str, first: int) -> tuple[str, list[ToolCall]]:
    """Split a reply into (text, calls numbered from `first`)."""
    pieces = [next(filter(None, groups), "") for groups in _CALL.findall(answer)]
    if pieces:
        found = [_call(parsed(piece.strip()), piece, i) for i, piece in enumerate(pieces, first)]
        return _CALL.sub("", answer).strip(), found
    whole = parsed(answer.strip())
    several = whole if isinstance(whole, list) else [whole]
    if several and all(_is_call(value) for value in several):
        return "", [_call(value, answer, i) for i, value in enumerate(several, first)]
    return answer, []


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("name"), str)
        and any(name in value and isinstance(value[name], Mapping | None) for name in _ARGUMENTS)
    )


def _call(value: Any, text: str, number: int) -> ToolCall:
    if not _is_call(value):
        fault = f"this is not a JSON object with 'name' and 'arguments': {text.strip()}"
        return ToolCall(id=f"call_{number}", function="unknown", arguments={}, parse_error=fault)
    arguments = next(value[name] for name in _ARGUMENTS if name in value)
    return ToolCall(id=f"call_{number}", function=value["name"], arguments=dict(arguments or {}))
