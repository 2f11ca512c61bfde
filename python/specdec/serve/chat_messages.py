"""The messages of a request, as chat templates read them."""

from __future__ import annotations

import json
from typing import Any, Final

from specdec.serve.given_fields import GivenFields
from specdec.serve.text_parts import required_text_of_parts, text_of_parts

__all__ = ["read_function", "read_messages"]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
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
    read = text_of_parts if role == "assistant" else required_text_of_parts
    found["content"] = read(given, "content") or ""
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


def _call(given: GivenFields) -> dict[str, Any]:
    call_id = given.text("id")
    given.choice("type", ("function",))
    given.integer("index", 0)
    given.required("function", "an object with name and arguments")
    function = given.inner("function")
    assert function is not None
    called = read_function(function)
    function.finish()
    given.finish()
    found = {"type": "function", "function": called}
    return found if call_id is None else {"id": call_id, **found}


def read_function(given: GivenFields) -> dict[str, Any]:
    """The function of a call, in the fields `name` and `arguments`; the arguments as an object.

    Raises
    ------
    RequestError
    """
    name, arguments = given.required_text("name"), given.value("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise given.wrong("arguments", "the JSON of an object, as a string") from None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise given.wrong("arguments", "the JSON of an object, as a string")
    return {"name": name, "arguments": arguments}
