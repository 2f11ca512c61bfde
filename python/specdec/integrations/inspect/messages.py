"""Inspect's messages and tools as a chat template reads them, and replies as Inspect's messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
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

from specdec.errors import InputError

__all__ = ["plain_text", "reply_of", "template_messages", "template_tools"]

_THINK_END: Final = "</think>"
_CALL: Final = re.compile(
    r"<tool_call>(.*?)</tool_call>|<function>(.*?)</function>|```json\s(.*?)```", re.DOTALL
)
_ARGUMENTS: Final = ("arguments", "parameters")  # what models call them


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """A conversation as `specdec.ChatTemplate.render` takes it.

    Raises
    ------
    InputError
        A message holds something else than text and reasoning.
    """
    found = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": _text(message)}
        if isinstance(message, ChatMessageAssistant):
            thoughts = [part.reasoning for part in _parts(message) if isinstance(part, ContentReasoning)]
            if thoughts:
                entry["reasoning_content"] = "\n".join(thoughts)
            if message.tool_calls:
                entry["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function, "arguments": call.arguments},
                    }
                    for call in message.tool_calls
                ]
        if isinstance(message, ChatMessageTool):
            entry |= {"name": message.function, "tool_call_id": message.tool_call_id}
            if message.error is not None:
                entry["content"] = f"Error: {message.error.message}"
        found.append(entry)
    return found


def plain_text(messages: Sequence[ChatMessage]) -> str:
    """The texts of a conversation, an empty line between two: the prompt of a model without chat template."""
    return "\n\n".join(_text(message) for message in messages)


def template_tools(tools: Sequence[ToolInfo]) -> list[dict[str, Any]] | None:
    """The JSON schemas of tools, as chat templates read them; None without any."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.model_dump(exclude_none=True),
            },
        }
        for tool in tools
    ] or None


def reply_of(text: str, model: str, tools: Sequence[ToolInfo]) -> ChatMessageAssistant:
    """The message that a reply is: its reasoning, its text and, where there are tools, the calls in it.

    Reasoning ends with ``</think>``. A call is a JSON object with a name and arguments (or parameters),
    within ``<tool_call>``, ``<function>`` or a fence of JSON, or the whole reply, alone or in a list.
    """
    before, end, after = text.rpartition(_THINK_END)
    thoughts, answer = (before.strip().removeprefix("<think>").strip(), after.lstrip()) if end else ("", text)
    calls: list[ToolCall] = []
    if tools:
        answer, calls = _calls(answer)
    content: str | list[Content] = answer
    if thoughts:
        content = [ContentReasoning(reasoning=thoughts), ContentText(text=answer)]
    return ChatMessageAssistant(content=content, tool_calls=calls or None, model=model, source="generate")


def _parts(message: ChatMessage) -> list[Content]:
    return [] if isinstance(message.content, str) else message.content


def _text(message: ChatMessage) -> str:
    for part in _parts(message):
        if not isinstance(part, ContentText | ContentReasoning):
            raise InputError(f"a message of role {message.role!r} holds {part.type}; expected text alone")
    return str(message.text)


def _calls(answer: str) -> tuple[str, list[ToolCall]]:
    """(what of a reply is text, the calls in it)."""
    pieces = [next(filter(None, groups), "") for groups in _CALL.findall(answer)]
    if pieces:
        found = [_call(_object(piece), piece, i) for i, piece in enumerate(pieces)]
        return _CALL.sub("", answer).strip(), found
    whole = _object(answer)
    several = whole if isinstance(whole, list) else [whole]
    if several and all(_is_call(value) for value in several):
        return "", [_call(value, answer, i) for i, value in enumerate(several)]
    return answer, []


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("name"), str)
        and any(isinstance(value.get(name), Mapping) for name in _ARGUMENTS)
    )


def _call(value: Any, text: str, number: int) -> ToolCall:
    if not _is_call(value):
        return ToolCall(
            id=f"call_{number}",
            function="unknown",
            arguments={},
            parse_error=f"this is not a JSON object with 'name' and 'arguments': {text.strip()}",
        )
    arguments = next(value[name] for name in _ARGUMENTS if isinstance(value.get(name), Mapping))
    return ToolCall(id=f"call_{number}", function=value["name"], arguments=dict(arguments))
