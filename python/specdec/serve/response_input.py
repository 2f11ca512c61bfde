"""The input of `/v1/responses` as messages."""

from __future__ import annotations

from typing import Any

from specdec.errors import shown
from specdec.serve.chat_messages import read_function
from specdec.serve.given_fields import GivenFields
from specdec.serve.text_parts import required_text_of_parts, text_of_parts

__all__ = ["read_input"]

_ROLES = ("user", "assistant", "system", "developer")
_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def read_input(fields: GivenFields) -> list[dict[str, Any]]:
    """The fields `instructions` and `input` as a conversation.

    Raises
    ------
    RequestError
    """
    found: list[dict[str, Any]] = []
    if (instructions := fields.text("instructions")) is not None:
        found.append({"role": "system", "content": instructions})
    value = fields.required("input", "a string, or a list of items")
    if isinstance(value, str):
        return [*found, {"role": "user", "content": value}]
    if not isinstance(value, list):
        raise fields.wrong("input", "a string, or a list of items")
    for item in fields.inner_items("input"):
        _add(found, item)
    if not found:
        raise fields.refusal("input", "input is an empty list; expected at least one item")
    for message in found:
        message.setdefault("content", "")
    return found


def _add(found: list[dict[str, Any]], item: GivenFields) -> None:
    """Add an item to a conversation; reasoning is part of the assistant's message after it."""
    kind = item.value("type") or "message"
    item.without_effect(("id", "status"))
    if kind == "message":
        role = item.required("role", " or ".join(map(repr, _ROLES)))
        item.choice("role", _ROLES)
        content = required_text_of_parts(item, "content")
        last = found[-1] if found else {}
        if role == "assistant" and last.keys() == {"role", "reasoning_content"}:
            last["content"] = content
        else:
            found.append({"role": "system" if role == "developer" else role, "content": content})
    elif kind == "function_call":
        call_id, function = item.required_text("call_id"), read_function(item)
        call = {"id": call_id, "type": "function", "function": function}
        last = found[-1] if found else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            found.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind == "function_call_output":
        output = required_text_of_parts(item, "output")
        found.append({"role": "tool", "tool_call_id": item.required_text("call_id"), "content": output})
    elif kind == "reasoning":
        item.only("summary", [], why="a response of this server has reasoning in its content")
        item.only("encrypted_content", why="nothing is encrypted here")
        text = text_of_parts(item, "content", ("reasoning_text",))
        found.append({"role": "assistant", "reasoning_content": text or ""})
    else:
        raise item.refusal(
            "type", f"{item.path('type')} is {shown(kind)}; expected {' or '.join(map(repr, _KINDS))}",
            "unsupported_parameter",
        )  # fmt: skip
    item.finish()
