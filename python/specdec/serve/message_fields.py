"""Schemas of `/v1/messages`, in the format of Anthropic's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, FailFast, Field, Tag, model_validator

from specdec.models.chat_template import ChatTemplate
from specdec.serve.conversation import SWITCH, Effort, TemplateFields, ToolName, tools_of
from specdec.serve.reply_readers import Tools
from specdec.serve.request_fields import (
    CACHE_CONTROL,
    Only,
    RequestFields,
    at_most,
    by_field,
    or_text,
    refused,
    within,
    wrong,
)
from specdec.serve.schemas import PARSED, JsonSchema, NewTokens, TextFields

_NO_CITATIONS: Final = Only(([],), "only text is read")


class _Block(RequestFields):
    type: str
    without_effect: ClassVar[tuple[str, ...]] = CACHE_CONTROL


class _Text(_Block):
    text: str = Field(description="a string")
    fixed: ClassVar = {"citations": _NO_CITATIONS}


def _blocks(tags: dict[str, Any], types: Any) -> Any:
    """Make the type of a list of blocks, for which a string is one text."""
    one = Annotated[types, by_field("type", tags, code="unsupported_parameter")]
    listed = or_text("a string, or a list of blocks", lambda text: [{"type": "text", "text": text}])
    return Annotated[list[one], FailFast(), listed]


_OF_TEXT: Final = {"text": "<text>"}
_Texts: Any = _blocks(_OF_TEXT, Annotated[_Text, Tag("<text>")])


class _ToolUse(_Block):
    id: str = Field(description="a string")
    name: str = Field(description="a string")
    input: dict[Any, Any] = Field(description="an object")
    fixed: ClassVar = {"caller": Only(({"type": "direct"},), "the server calls no tools itself")}


class _ToolResult(_Block):
    tool_use_id: str = Field(description="a string")
    content: _Texts = Field(default_factory=list)
    is_error: bool = False


class _Thinking(_Block):
    thinking: str = Field(description="a string")
    without_effect = ("signature", *CACHE_CONTROL)


_OF_USER: Final = _OF_TEXT | {"tool_result": "<result>"}
_OF_ASSISTANT: Final = _OF_TEXT | {"thinking": "<thinking>", "tool_use": "<use>"}


class _User(RequestFields):
    role: str
    content: _blocks(  # type: ignore[valid-type]
        _OF_USER, Annotated[_Text, Tag("<text>")] | Annotated[_ToolResult, Tag("<result>")]
    ) = Field(description="a text")


class _Assistant(RequestFields):
    role: str
    content: _blocks(  # type: ignore[valid-type]
        _OF_ASSISTANT,
        Annotated[_Text, Tag("<text>")]
        | Annotated[_Thinking, Tag("<thinking>")]
        | Annotated[_ToolUse, Tag("<use>")],
    ) = Field(description="a text")


class _System(RequestFields):
    role: str
    content: _Texts = Field(description="a text")


_Message = Annotated[
    Annotated[_User, Tag("<user>")]
    | Annotated[_Assistant, Tag("<assistant>")]
    | Annotated[_System, Tag("<system>")],
    by_field("role", {role: f"<{role}>" for role in ("user", "assistant", "system")}),
]


def _joined(blocks: Sequence[Any]) -> str:
    """Return the texts of blocks, joined by line breaks."""
    return "\n".join(block.text for block in blocks if isinstance(block, _Text))


def template_messages(system: Sequence[Any], messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert a conversation for chat templates; consecutive turns of one role become one."""
    found: list[dict[str, Any]] = [{"role": "system", "content": _joined(system)}] if system else []
    for message in messages:
        blocks = message.content
        for block in blocks:
            if isinstance(block, _ToolResult):
                text = f"Error: {_joined(block.content)}" if block.is_error else _joined(block.content)
                found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        if blocks and all(isinstance(block, _ToolResult) for block in blocks):
            continue
        entry: dict[str, Any] = {"role": message.role, "content": _joined(blocks)}
        if thoughts := "\n".join(block.thinking for block in blocks if isinstance(block, _Thinking)):
            entry["reasoning_content"] = thoughts
        if uses := [block for block in blocks if isinstance(block, _ToolUse)]:
            entry["tool_calls"] = [
                {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.input}}
                for use in uses
            ]
        if found and found[-1]["role"] == message.role != "system":
            _merge(found[-1], entry)
        else:
            found.append(entry)
    return found


def _merge(last: dict[str, Any], entry: dict[str, Any]) -> None:
    """Append a turn to the last one of the same role."""
    for name in ("content", "reasoning_content"):
        if texts := [one[name] for one in (last, entry) if one.get(name)]:
            last[name] = "\n".join(texts)
    if calls := [*last.get("tool_calls", ()), *entry.get("tool_calls", ())]:
        last["tool_calls"] = calls


# ── Tools


def _custom(value: Any) -> Any:
    if value != "custom":
        raise wrong("'custom': the server has no tools of its own", code="unsupported_parameter")
    return value


class _Tool(RequestFields):
    type: Annotated[Any, AfterValidator(_custom)] = "custom"
    name: ToolName = Field(description="a string")
    description: str | None = None
    input_schema: dict[Any, Any] = Field(description="a JSON schema")
    strict: bool = False
    without_effect = ("eager_input_streaming", *CACHE_CONTROL)
    fixed: ClassVar = {"defer_loading": Only((False,), "templates show all tools")}

    def for_template(self) -> dict[str, Any]:
        described = {} if self.description is None else {"description": self.description}
        strict = {"strict": True} if self.strict else {}
        return {"name": self.name, **described, "parameters": self.input_schema, **strict}


class _Choice(RequestFields):
    type: Literal["auto", "any", "tool", "none"] = Field(description="'auto'")
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _named(self) -> _Choice:
        if (self.name is None) == (self.type == "tool"):
            expected = "a string" if self.type == "tool" else "no name, without the type 'tool'"
            raise wrong(expected, at=("name",))
        return self


# ── Paths


class _ThinkingConfig(RequestFields):
    type: Literal["enabled", "disabled", "adaptive"] = Field(description="'enabled'")
    budget_tokens: Annotated[int, within(1, 2**31 - 1)] | None = None
    fixed: ClassVar = {"display": Only(("summarized",), "the whole reasoning is sent")}

    @model_validator(mode="after")
    def _budgeted(self) -> _ThinkingConfig:
        if (self.budget_tokens is None) == (self.type == "enabled"):
            wanted = self.type == "enabled"
            expected = "an integer, at least 1" if wanted else "none, without the type 'enabled'"
            raise wrong(expected, at=("budget_tokens",))
        return self


class _OutputFormat(RequestFields):
    type: Literal["json_schema"] = Field(description="'json_schema'")
    schema_: JsonSchema = Field(alias="schema", description="a JSON schema")

    @property
    def constraint(self) -> dict[str, Any]:
        return {"schema": self.schema_}


class _OutputConfig(RequestFields):
    effort: Effort | None = None
    format: _OutputFormat | None = None


class CountFields(TemplateFields):
    """`/v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[list[_Message], FailFast()] = Field(description="a list of messages", min_length=1)
    system: _Texts = Field(default_factory=list)
    tools: Annotated[list[_Tool], FailFast(), at_most("n_tools")] = Field(default_factory=list)
    tool_choice: _Choice | None = None
    thinking: _ThinkingConfig | None = None
    output_config: _OutputConfig | None = None
    without_effect: ClassVar[tuple[str, ...]] = CACHE_CONTROL

    @property
    def offered(self) -> Tools | None:
        """Callable tools, checked; None without tools."""
        choice, types = self.tool_choice, {"any": "required", "tool": "named"}
        given = [tool.for_template() for tool in self.tools]
        if choice is None:
            return tools_of(given, None, None, True)
        how = types.get(choice.type, choice.type)
        return tools_of(given, how, choice.name, not choice.disable_parallel_tool_use)

    @property
    def effort(self) -> tuple[str, Effort | None]:
        return "output_config.effort", None if self.output_config is None else self.output_config.effort

    def variables(self, template: ChatTemplate, *, tools: bool) -> dict[str, Any]:
        found = super().variables(template, tools=tools)
        if self.thinking is not None and SWITCH not in found and template.reads(SWITCH, tools=tools):
            found[SWITCH] = self.thinking.type != "disabled"
        return found


class MessageFields(TextFields, CountFields):
    """`/v1/messages`."""

    max_tokens: NewTokens = Field(description="an integer, at least 1")
    stop_sequences: Annotated[
        list[Annotated[str, Field(min_length=1)]], FailFast(), at_most("n_stops")
    ] = Field(default_factory=list)  # fmt: skip
    without_effect = (*TextFields.without_effect, *CACHE_CONTROL)
    fixed = (
        TextFields.fixed
        | PARSED
        | {
            "service_tier": Only(("auto", "standard_only"), "there is only one service tier"),
            "speed": Only(("standard",), "there is only one speed"),
            **dict.fromkeys(
                ("container", "context_management", "mcp_servers"), Only((), "the server has none")
            ),
        }
    )

    def _formats(self) -> dict[str, Any]:
        return {"output_config.format": self.output_config and self.output_config.format}

    def reasoning_limit(self, reasons: bool) -> int | None:
        """Return the bound on reasoning tokens; `reasons`: whether the model has a reasoning format."""
        thinking, limit = self.thinking, self.max_reasoning_tokens
        if thinking is None or thinking.type == "adaptive":
            return None if limit is None else int(limit)
        if limit is not None:
            raise refused("max_reasoning_tokens", "max_reasoning_tokens and thinking are given; expected one")
        if thinking.type == "disabled":
            return 0 if reasons else None
        if not reasons:
            message = "thinking is enabled, but the model's chat template has no known reasoning format"
            raise refused("thinking", f"{message}; expected no thinking", "unsupported_parameter")
        return thinking.budget_tokens
