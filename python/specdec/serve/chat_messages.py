"""The messages of a request, as chat templates read them."""

from __future__ import annotations

import json
from typing import Any, Final

from specdec.errors import shown
from specdec.serve.given_fields import GivenFields

__all__ = ["read_messages", "text_of_parts"]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
_EMPTY_IN_REPLIES: Final = ("refusal", "audio", "function_call")


def read_messages(fields: GivenFields) -> list[dict[str, Any]]:
    """The conversation in the field `messages`.

    Parts of a content are joined by line ends, a developer's message is a system's, and the arguments of tool
    calls are objects: so most templates expect them.

    Raises
    ------
    RequestError
        It is none, or has images, sounds or files.
    """
    fields.required("messages", "a list of messages")
    messages = [_message(message) for message in fields.inner_items("messages")]
    if not messages:
        raise fields.refusal("messages", "messages is an empty list; expected at least one message")
    return messages


def _message(given: GivenFields) -> dict[str, Any]:
    role = given.required("role", " or ".join(map(repr, _ROLES)))
    given.choice("role", _ROLES)
    found: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = given.inner_items("tool_calls") if role == "assistant" else []
    content = text_of_parts(given, "content")
    if content is None and not calls and role != "assistant":
        raise given.refusal("content", f"{given.path('content')} is missing; expected a text")
    found["content"] = content or ""
    if (name := given.text("name")) is not None:
        found["name"] = name
    if role == "tool":
        call_id = given.text("tool_call_id")
        if call_id is not None:
            found["tool_call_id"] = call_id
    if role == "assistant":
        if calls:
            found["tool_calls"] = [_call(call) for call in calls]
        for field in _REASONING:
            if (text := given.text(field)) is not None:
                found[field] = text
        for field in _EMPTY_IN_REPLIES:
            given.only(field, why="a reply of this server has text and tool calls")
        given.only("annotations", [], why="a reply of this server has text and tool calls")
    given.finish()
    return found


def text_of_parts(given: GivenFields, field: str) -> str | None:
    """A text, or the texts of a list of parts; None where the field is not given.

    Raises
    ------
    RequestError
    """
    value = given.value(field)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise given.wrong(field, "a string, or a list of parts")
    texts = []
    for part in given.inner_items(field):
        kind = part.value("type")
        if kind not in _TEXT_PARTS:
            raise part.refusal(
                "type", f"{part.path('type')} is {shown(kind)}; expected 'text': the model reads text alone",
                "unsupported_parameter",
            )  # fmt: skip
        if (text := part.text("text")) is None:
            raise part.refusal("text", f"{part.path('text')} is missing; expected a string")
        part.only("annotations", [], why="they are no text")
        part.only("logprobs", [], why="they are no text")
        part.finish()
        texts.append(text)
    return "\n".join(texts)


def _call(given: GivenFields) -> dict[str, Any]:
    call_id = given.text("id")
    given.choice("type", ("function",))
    given.integer("index", 0)
    given.required("function", "an object with name and arguments")
    function = given.inner("function")
    assert function is not None
    name, arguments = function.required("name", "a string"), function.value("arguments")
    if not isinstance(name, str):
        raise function.wrong("name", "a string")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise function.wrong("arguments", "the JSON of an object, as a string")
    function.finish()
    given.finish()
    found = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return found if call_id is None else {"id": call_id, **found}
