"""Schemas of conversations: messages, the input of responses, tools, variables of the chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, FailFast, Field, Tag

from specdec.errors import shown
from specdec.serve.request_fields import (
    ReasoningTexts,
    RequestFields,
    Texts,
    at_most,
    by_field,
    only,
    refused,
    wrong,
)
from specdec.serve.tool_calls import Tools

__all__ = ["ChatTools", "InputItem", "Message", "ResponseTools", "TemplateFields", "messages_of_input"]

_NOT_SAID: Final = "a reply of this server has text and tool calls"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _arguments(value: Any) -> Any:
    """The arguments of a call as an object: so most templates expect them."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value or "{}")
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict):
        raise wrong("the JSON of an object, as a string")
    return found


class _Function(RequestFields):
    name: str = Field(description="a string")
    arguments: Annotated[dict[Any, Any], BeforeValidator(_arguments)] = Field(default_factory=dict)


class _Call(RequestFields):
    id: str | None = None
    type: Literal["function"] = "function"
    index: Annotated[int, Field(ge=0)] | None = None
    function: _Function = Field(description="an object with name and arguments")

    def for_template(self) -> dict[str, Any]:
        called = {"type": "function", "function": self.function.model_dump()}
        return called if self.id is None else {"id": self.id, **called}


class _Message(RequestFields):
    """A message of the system or the user; a developer's message is a system's."""

    role: str
    content: Texts = Field(description="a text")
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content} | self._named("name")

    def _named(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class _ToolMessage(_Message):
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        return super().for_template() | self._named("tool_call_id")


class _Reply(_Message):
    content: Texts = ""
    tool_calls: Annotated[list[_Call], FailFast()] = Field(default_factory=list)
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: Annotated[Any, only(why=_NOT_SAID)] = None
    audio: Annotated[Any, only(why=_NOT_SAID)] = None
    function_call: Annotated[Any, only(why=_NOT_SAID)] = None
    annotations: Annotated[Any, only([], why=_NOT_SAID)] = None

    def for_template(self) -> dict[str, Any]:
        calls = {"tool_calls": [call.for_template() for call in self.tool_calls]} if self.tool_calls else {}
        reasoning = self._named("reasoning_content", "reasoning", "thinking")
        return super().for_template() | calls | reasoning


_TAGS: Final = {
    "system": "<message>", "developer": "<message>", "user": "<message>", "assistant": "<reply>",
    "tool": "<tool>",
}  # fmt: skip
Message = Annotated[
    Annotated[_Message, Tag("<message>")]
    | Annotated[_Reply, Tag("<reply>")]
    | Annotated[_ToolMessage, Tag("<tool>")],
    by_field("role", _TAGS),
]
"""A message of `/v1/chat/completions`."""


# ── Input of responses


class _Item(RequestFields):
    """An item of `input`; its `id` and `status` have no effect."""

    type: Any = None
    id: Any = None
    status: Any = None


class _InputMessage(_Item):
    role: Literal["user", "assistant", "system", "developer"] = Field(description="'user'")
    content: Texts = Field(description="a text")


class _FunctionCall(_Item, _Function):
    call_id: str = Field(description="a string")


class _FunctionOutput(_Item):
    output: Texts = Field(description="a text")
    call_id: str = Field(description="a string")


class _ReasoningItem(_Item):
    summary: Annotated[Any, only([], why="a response of this server has reasoning in its content")] = None
    encrypted_content: Annotated[Any, only(why="nothing is encrypted here")] = None
    content: ReasoningTexts = ""


InputItem = Annotated[
    Annotated[_InputMessage, Tag("<message>")]
    | Annotated[_FunctionCall, Tag("<function_call>")]
    | Annotated[_FunctionOutput, Tag("<function_call_output>")]
    | Annotated[_ReasoningItem, Tag("<reasoning>")],
    by_field(
        "type",
        {kind: f"<{kind}>" for kind in ("message", "function_call", "function_call_output", "reasoning")},
        default="message",
        code="unsupported_parameter",
    ),
]
"""An item of the input of `/v1/responses`."""


def messages_of_input(instructions: str | None, items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the input of a response as messages that chat templates read.

    Reasoning, and the calls after it, are part of the assistant's message that follows.
    """
    found: list[dict[str, Any]] = (
        [] if instructions is None else [{"role": "system", "content": instructions}]
    )
    for item in items:
        last = found[-1] if found else {}
        if isinstance(item, _InputMessage):
            role = "system" if item.role == "developer" else item.role
            if role == "assistant" and last.keys() == {"role", "reasoning_content"}:
                last["content"] = item.content
            else:
                found.append({"role": role, "content": item.content})
        elif isinstance(item, _FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif isinstance(item, _FunctionOutput):
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        else:
            found.append({"role": "assistant", "reasoning_content": item.content})
    for message in found:
        message.setdefault("content", "")
    return found


# ── Tools


def _type(value: Any) -> Any:
    if value != "function":
        raise wrong("'function': the server has no tools of its own", code="unsupported_parameter")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise wrong("at most 64 letters, digits, dots, dashes and underscores")
    return value


class _OfferedFunction(RequestFields):
    name: Annotated[str, AfterValidator(_name)] = Field(description="a string")
    description: str | None = None
    parameters: dict[Any, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """The function as chat templates read it."""
        described = {} if self.description is None else {"description": self.description}
        strict = {"strict": True} if self.strict else {}
        return {"name": self.name, **described, "parameters": self.parameters, **strict}


class _TypedTool(RequestFields):
    type: Annotated[Any, AfterValidator(_type)] = Field(description="'function'")


class _ChatTool(_TypedTool):
    function: _OfferedFunction = Field(description="an object with a name")


class _ResponseTool(_OfferedFunction, _TypedTool):
    @property
    def function(self) -> _OfferedFunction:
        return self


class _Named(RequestFields):
    name: str = Field(description="a string")


class _TypedChoice(RequestFields):
    type: Literal["function"] = Field(description="'function'")


class _ChatChoice(_TypedChoice):
    function: _Named = Field(description="an object with a name")


class _ResponseChoice(_Named, _TypedChoice):
    @property
    def function(self) -> _Named:
        return self


_Word = Annotated[Literal["none", "auto", "required"], Tag("<word>")]
_word_or_function: Final = Discriminator(lambda value: "<function>" if isinstance(value, dict) else "<word>")
_few_tools: Final = at_most(lambda service: service.limits.n_tools)


class _ToolFields(RequestFields):
    """Tools, and which of them may be called."""

    parallel_tool_calls: bool = True

    @property
    def offered(self) -> Tools | None:
        """The tools that the model may call; None without tools.

        Raises
        ------
        RequestError
        """
        tools, choice = self.tools, self.tool_choice
        functions: dict[str, dict[str, Any]] = {}
        for tool in tools:
            function = tool.function.for_template()
            if functions.setdefault(function["name"], function) is not function:
                message = f"tools has two functions {shown(function['name'])}; expected each name once"
                raise refused("tools", message)
        if isinstance(choice, str | None):
            if functions:
                return Tools(functions, choice or "auto", self.parallel_tool_calls)
            if choice == "required":
                raise refused("tool_choice", "tool_choice is given without tools; expected tools")
            return None
        name = choice.function.name
        if name not in functions:
            raise refused(
                "tool_choice", f"tool_choice names the function {shown(name)}; expected one of tools"
            )
        return Tools({name: functions[name]}, "named", self.parallel_tool_calls)


class ChatTools(_ToolFields):
    """Tools of chats: name and parameters are within `function`."""

    tools: Annotated[list[_ChatTool], FailFast(), _few_tools] = Field(default_factory=list)
    tool_choice: Annotated[_Word | Annotated[_ChatChoice, Tag("<function>")], _word_or_function] | None = None


class ResponseTools(_ToolFields):
    """Tools of responses: name and parameters are next to the type."""

    tools: Annotated[list[_ResponseTool], FailFast(), _few_tools] = Field(default_factory=list)
    tool_choice: (
        Annotated[_Word | Annotated[_ResponseChoice, Tag("<function>")], _word_or_function] | None
    ) = None


class TemplateFields(RequestFields):
    """Variables of the chat template."""

    chat_template_kwargs: dict[Any, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """The variables that the request sets.

        Raises
        ------
        RequestError
        """
        found = dict(self.chat_template_kwargs)
        for name in ("add_generation_prompt", "continue_final_message"):
            if (value := getattr(self, name)) is not None:
                if name in found:
                    raise refused(name, f"{name} is in chat_template_kwargs too; expected one of them")
                found[name] = value
        if "chat_template" in found:
            raise refused(
                "chat_template_kwargs",
                "chat_template_kwargs has chat_template; expected variables of the model's own template",
                "unsupported_parameter",
            )
        return found
