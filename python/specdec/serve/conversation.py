"""Schemas of conversations: messages, response input, tools, template variables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, FailFast, Field, Tag

from specdec.errors import shown
from specdec.models.chat_template import ChatTemplate
from specdec.serve import request_fields
from specdec.serve.reply_readers import Tools
from specdec.serve.request_fields import (
    CACHE_CONTROL,
    Only,
    ReasoningTexts,
    RequestFields,
    Texts,
    at_most,
    refused,
    wrong,
)

_NOT_SAID: Final = "replies of this server have only text and tool calls"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _arguments(value: Any) -> Any:
    """Parse the arguments of a call to an object, which most templates expect."""
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
    index: Annotated[int, Field(ge=0)] | None = Field(None, exclude=True)
    function: _Function = Field(description="an object with name and arguments")


class _Message(RequestFields):
    """System or user message; the role developer becomes system."""

    role: str
    content: Texts = Field(description="a text")
    name: str | None = None
    without_effect = CACHE_CONTROL

    def for_template(self) -> dict[str, Any]:
        """Convert the message for chat templates."""
        role = "system" if self.role == "developer" else self.role
        return {**self.model_dump(exclude_none=True, warnings=False), "role": role}  # parts became a text


class _ToolMessage(_Message):
    tool_call_id: str | None = None


class _Reply(_Message):
    content: Texts = ""
    tool_calls: Annotated[list[_Call] | None, FailFast(), AfterValidator(lambda calls: calls or None)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    fixed: ClassVar = {
        **dict.fromkeys(("refusal", "audio", "function_call"), Only((), _NOT_SAID)),
        "annotations": Only(([],), _NOT_SAID),
    }


_ROLES: Final = dict.fromkeys(("system", "developer", "user"), "<user>") | {
    "assistant": "<assistant>", "tool": "<tool>",
}  # fmt: skip
Message = Annotated[
    Annotated[_Message, Tag("<user>")]
    | Annotated[_Reply, Tag("<assistant>")]
    | Annotated[_ToolMessage, Tag("<tool>")],
    request_fields.by_field("role", _ROLES),
]
"""A message of `/v1/chat/completions`."""


# ── Input of responses


class _Item(RequestFields):
    type: Any = None
    without_effect = ("id", "status")


class _InputMessage(_Item):
    role: Literal["user", "assistant", "system", "developer"] = Field(description="'user'")
    content: Texts = Field(description="a text")


class _FunctionCall(_Item, _Function):
    call_id: str = Field(description="a string")


class _FunctionOutput(_Item):
    output: Texts = Field(description="a text")
    call_id: str = Field(description="a string")


class _ReasoningItem(_Item):
    content: ReasoningTexts = ""
    fixed: ClassVar = {
        "summary": Only(([],), "responses of this server have reasoning in their content"),
        "encrypted_content": Only((), "nothing is encrypted here"),
    }


_ITEMS: Final = {one: f"<{one}>" for one in ("message", "function_call", "function_call_output", "reasoning")}
InputItem = Annotated[
    Annotated[_InputMessage, Tag("<message>")]
    | Annotated[_FunctionCall, Tag("<function_call>")]
    | Annotated[_FunctionOutput, Tag("<function_call_output>")]
    | Annotated[_ReasoningItem, Tag("<reasoning>")],
    request_fields.by_field("type", _ITEMS, default="message", code="unsupported_parameter"),
]
"""An item of the input of `/v1/responses`."""


def messages_of_input(instructions: str | None, items: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert response input to messages; merge reasoning and calls into the adjacent assistant message."""
    found: list[dict[str, Any]] = []
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
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
            if last.get("role") != "assistant":
                found.append(last := {"role": "assistant", "content": ""})
            call = {"id": item.call_id, "type": "function", "function": function}
            last.setdefault("tool_calls", []).append(call)
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


class _TypedTool(RequestFields):
    type: Annotated[Any, AfterValidator(_type)] = Field(description="'function'")
    without_effect = CACHE_CONTROL


ToolName = Annotated[str, AfterValidator(_name)]


class _OfferedFunction(RequestFields):
    name: ToolName = Field(description="a string")
    description: str | None = None
    parameters: dict[Any, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: Annotated[bool, AfterValidator(lambda strict: strict or None)] | None = None

    def for_template(self) -> dict[str, Any]:
        given: dict[str, Any] = self.model_dump(exclude_none=True, include={*_OfferedFunction.model_fields})
        return given


class _ChatTool(_TypedTool):
    function: _OfferedFunction = Field(description="an object with a name")


class _ResponseTool(_OfferedFunction, _TypedTool):
    @property
    def function(self) -> _OfferedFunction:
        return self


class _Named(RequestFields):
    name: str = Field(description="a string")


class _ChatChoice(RequestFields):
    type: Literal["function"] = Field(description="'function'")
    function: _Named = Field(description="an object with a name")


class _ResponseChoice(_Named):
    type: Literal["function"] = Field(description="'function'")

    @property
    def function(self) -> _Named:
        return self


_Word = Annotated[Literal["none", "auto", "required"], Tag("<word>")]
_of_choice: Final = Discriminator(lambda value: "<function>" if isinstance(value, dict) else "<word>")


class ChatTools(RequestFields):
    """Tools and the tool choice of chats, where `function` holds name and parameters."""

    tools: Annotated[list[_ChatTool], FailFast(), at_most("n_tools")] = Field(default_factory=list)
    tool_choice: Annotated[_Word | Annotated[_ChatChoice, Tag("<function>")], _of_choice] | None = None
    parallel_tool_calls: bool = True

    @property
    def offered(self) -> Tools | None:
        """Callable tools, checked; None without tools."""
        given, choice = [tool.function.for_template() for tool in self.tools], self.tool_choice
        if choice is None or isinstance(choice, str):
            return tools_of(given, choice, None, self.parallel_tool_calls)
        return tools_of(given, "named", choice.function.name, self.parallel_tool_calls)


def tools_of(
    given: Sequence[dict[str, Any]], choice: str | None, name: str | None, parallel: bool
) -> Tools | None:
    """Make the tools of a request from descriptions with unique names; None without tools."""
    functions: dict[str, dict[str, Any]] = {}
    for function in given:
        if functions.setdefault(function["name"], function) is not function:
            message = f"tools has two functions {function['name']!r}; expected unique names"
            raise refused("tools", message)
    if name is not None:
        if name not in functions:
            message = f"tool_choice names the function {shown(name)}; expected one of tools"
            raise refused("tool_choice", message)
        return Tools({name: functions[name]}, "named", parallel)
    if not functions and choice == "required":
        raise refused("tool_choice", "tool_choice is given without tools; expected tools")
    return Tools(functions, choice or "auto", parallel) if functions else None


class ResponseTools(ChatTools):
    """Tools and the tool choice of responses, where name and parameters are next to the type."""

    tools: Annotated[list[_ResponseTool], FailFast(), at_most("n_tools")] = Field(default_factory=list)
    tool_choice: Annotated[_Word | Annotated[_ResponseChoice, Tag("<function>")], _of_choice] | None = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_EFFORT: Final = "reasoning_effort"
SWITCH: Final = "enable_thinking"
"""Variable of chat templates that turns reasoning on or off."""


class TemplateFields(RequestFields):
    """Variables of the chat template."""

    chat_template_kwargs: dict[Any, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def effort(self) -> tuple[str, Effort | None]:
        """(field with the reasoning effort, its value)."""
        raise NotImplementedError

    def variables(self, template: ChatTemplate, *, tools: bool) -> dict[str, Any]:
        """Return the variables; a reasoning effort that the template does not read is refused."""
        found = dict(self.chat_template_kwargs)
        for name in ("add_generation_prompt", "continue_final_message"):
            if (value := getattr(self, name)) is not None:
                if name in found:
                    raise refused(name, f"{name} is in chat_template_kwargs too; expected one of them")
                found[name] = value
        if "chat_template" in found:
            message = "chat_template_kwargs has chat_template; expected variables of the model's own template"
            raise refused("chat_template_kwargs", message, "unsupported_parameter")
        field, effort = self.effort
        if effort is None:
            return found
        if _EFFORT in found:
            raise refused(field, f"{_EFFORT} is in chat_template_kwargs too; expected one of them")
        if template.reads(_EFFORT, tools=tools):
            return {**found, _EFFORT: effort}
        if effort == "none" and SWITCH not in found and template.reads(SWITCH, tools=tools):
            return {**found, SWITCH: False}
        message = f"{field} is {effort!r}, which the model's chat template does not read"
        raise refused(field, f"{message}; expected no such field, or max_reasoning_tokens")


class EffortFields(TemplateFields):
    """Variables of the chat template, with the reasoning effort by its own name."""

    reasoning_effort: Effort | None = None

    @property
    def effort(self) -> tuple[str, Effort | None]:
        return _EFFORT, self.reasoning_effort
