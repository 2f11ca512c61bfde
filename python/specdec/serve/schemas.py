"""Schemas of requests: the fields of each path, and what they ask of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, FailFast, Field, Tag, ValidationInfo, create_model, model_validator

from specdec.checks import as_integer
from specdec.decoding.options import DecodingOptions, LogprobsOf
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import shown
from specdec.serve.bodies import json_bytes
from specdec.serve.conversation import ChatTools, InputItem, Message, ResponseTools, TemplateFields
from specdec.serve.request_fields import (
    RequestFields,
    Texts,
    at_most,
    by_field,
    check_token_ids,
    of_service,
    only,
    or_text,
    refused,
    within,
    wrong,
)
from specdec.serve.service import PLAIN_WORDS, Service
from specdec.settings_table import Setting, table_of
from specdec.verification.rules import DecodingRule

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ChatFields", "CompletionFields", "DetokenizeFields", "ResponseFields", "TextFields",
    "TokenizeChatFields", "TokenizeFields",
]  # fmt: skip

LOGPROBS: Final = "message.output_text.logprobs"
"""What `include` of responses may hold."""


def _n_top(service: Service) -> int:
    return min(service.limits.n_top, service.target.config.n_vocab)


_NewTokens = Annotated[int, within(1, lambda service: service.limits.n_new_tokens)]
_NTop = Annotated[int, within(0, _n_top)]
_NoEffect = Any
_NOT_STORED: Final = "nothing is stored; input takes the whole conversation"


# ── Constraints


def _bounded(value: Any, info: ValidationInfo) -> Any:
    """Refuse a schema, regular expression or grammar of too many bytes."""
    n_bytes = len(value.encode("utf-8", "replace") if isinstance(value, str) else json_bytes(value))
    if n_bytes > (most := of_service(info).limits.n_constraint_bytes):
        raise wrong(rest=f"has {n_bytes} bytes; expected at most {most}")
    return value


def _json_schema(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, dict | bool):
        raise wrong("a JSON schema")
    return _bounded(value, info)


def _choices(value: list[str], info: ValidationInfo) -> Any:
    if not value:
        raise wrong("a list of strings")
    return _bounded(value, info)


_Schema = Annotated[Any, AfterValidator(_json_schema)]


class _JsonSchema(RequestFields):
    name: str = Field(description="a name for the schema")
    description: str | None = None
    strict: bool = False  # the schema is kept to in either case
    schema_: _Schema = Field(alias="schema", description="a JSON schema")


class _Format(RequestFields):
    type: str

    @property
    def constraint(self) -> dict[str, Any]:
        """The keyword argument of `Engine.submit`, or none."""
        return {"schema": {"type": "object"}} if self.type == "json_object" else {}


class _SchemaFormat(_Format):
    json_schema: _JsonSchema = Field(description="an object")

    @property
    def constraint(self) -> dict[str, Any]:
        return {"schema": self.json_schema.schema_}


class _FlatSchemaFormat(_JsonSchema, _Format):
    @property
    def constraint(self) -> dict[str, Any]:
        return {"schema": self.schema_}


_by_type: Final = by_field("type", {"text": "<plain>", "json_object": "<plain>", "json_schema": "<schema>"})
_Plain = Annotated[_Format, Tag("<plain>")]
_ResponseFormat = Annotated[_Plain | Annotated[_SchemaFormat, Tag("<schema>")], _by_type]
_TextFormat = Annotated[_Plain | Annotated[_FlatSchemaFormat, Tag("<schema>")], _by_type]


class _StructuredOutputs(RequestFields):
    """vLLM's field: exactly one of four."""

    json_: _Schema = Field(None, alias="json")
    regex: Annotated[str, AfterValidator(_bounded)] | None = None
    grammar: Annotated[str, AfterValidator(_bounded)] | None = None
    choice: (
        Annotated[list[str], at_most(lambda service: service.limits.n_texts), AfterValidator(_choices)] | None
    ) = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        asked = [
            info.alias or name
            for name, info in type(self).model_fields.items()
            if name in self.model_fields_set
        ]
        if len(asked) != 1:
            found = " and ".join(asked) or "none of them"
            raise wrong(rest=f"has {found}; expected one of json, regex, grammar, choice")
        return self

    @property
    def constraint(self) -> dict[str, Any]:
        if self.choice is not None:
            return {"regex": "|".join(map(_escaped, self.choice))}
        return next(
            {name: value}
            for name, value in (("regex", self.regex), ("grammar", self.grammar), ("schema", self.json_))
            if value is not None
        )


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\.+*?()|[]{}^$#&-~/" else char for char in text)


# ── RequestFields of all texts


def _draft(wanted: Any, info: ValidationInfo) -> bool | str:
    service = of_service(info)
    names = service.draft_names
    expected = ", ".join(["true"] * bool(names) + ["false", repr(PLAIN_WORDS[0])])
    expected += f" or {' or '.join(map(repr, names))}" if names else ""
    if not isinstance(wanted, bool) and wanted not in (*PLAIN_WORDS, *names):
        raise wrong(expected)
    drafting = wanted not in (False, *PLAIN_WORDS)
    if drafting and not names:
        raise wrong(rest=f"is {shown(wanted)}, but this server has no draft; expected {expected}")
    return wanted if isinstance(wanted, str) and wanted in service.engine.drafts else drafting


class _SpeculativeFields(RequestFields):
    draft: Annotated[Any, AfterValidator(_draft)] = True
    gamma: Annotated[int, within(0, MAX_GAMMA)] | None = None
    verify: DecodingRule | None = None


class _Prediction(RequestFields):
    type: Literal["content"] = Field(description="'content'")
    content: Texts = Field(description="a text")


class _StreamOptions(RequestFields):
    include_usage: bool = False
    include_obfuscation: Annotated[Any, only(False, why="chunks are not padded")] = None
    continuous_usage_stats: Annotated[Any, only(False, why="the usage comes in the last chunk")] = None


def _stop_string(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise wrong("a string of at least one character")
    return value


def _stop_id(value: Any) -> Any:
    if as_integer(value) is None:
        raise wrong("a token id")
    return value


_few_stops: Final = at_most(lambda service: service.limits.n_stops)


def _table_value(row: Setting) -> AfterValidator:
    """Check the value of a setting that is a list or a mapping from token ids."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict):
            value = _by_token(value, row)
        return row.check(str(info.field_name), value)

    return AfterValidator(check)


def _by_token(given: dict[str, Any], row: Setting) -> dict[int, float]:
    found, (low, high) = {}, row.served or (0.0, 0.0)
    for name, number in given.items():
        if not (name.isascii() and name.isdecimal() and len(name) < 10):
            raise wrong(rest=f"has {shown(name)}; expected token ids as strings")
        if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
            raise wrong(f"a number from {low:g} to {high:g}", at=(name,))
        found[int(name)] = float(number)
    return found


def _field_of(row: Setting) -> Any:
    """The type of a setting's field, and its default: None, the server's default."""
    low, high = row.served or (0, 0)
    if row.kind in (int, float):
        kind: Any = Annotated[row.kind, within(row.kind(low), row.kind(high))]
    else:
        kind = Annotated[Any, at_most(lambda service: service.limits.n_biases), _table_value(row)]
    return kind | None, Field(None, description=row.help)


SamplingFields: Any = create_model(
    "SamplingFields",
    __base__=RequestFields,
    **{name: _field_of(row) for name, row in table_of(DecodingOptions).items() if row.served is not None},
)
"""A field for each row of the settings' table that a server takes."""


class TextFields(SamplingFields):
    """RequestFields of all requests for texts."""

    model: str | None = None
    seed: Annotated[int, within(-(2**63), 2**64 - 1)] | None = None
    stop: Annotated[
        list[Annotated[Any, AfterValidator(_stop_string)]],
        FailFast(),
        _few_stops,
        or_text("a string, or a list of strings"),
    ] = Field(default_factory=list)
    stop_token_ids: Annotated[list[Annotated[Any, AfterValidator(_stop_id)]], FailFast(), _few_stops] = Field(
        default_factory=list
    )
    ignore_eos: bool = False
    logprobs_of: LogprobsOf = "model"
    speculative: _SpeculativeFields | None = None
    prediction: _Prediction | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None

    user: _NoEffect = None
    metadata: _NoEffect = None
    prompt_cache_key: _NoEffect = None
    prompt_cache_retention: _NoEffect = None
    prompt_cache_options: _NoEffect = None
    safety_identifier: _NoEffect = None
    service_tier: Annotated[
        Any, only("auto", "default", why="there is one way in which texts are served")
    ] = None
    store: Annotated[Any, only(False, why="nothing is stored")] = None
    cache_prompt: Annotated[
        Any, only(True, why="what was read of earlier texts is used, which changes no text")
    ] = None

    @property
    def constraint(self) -> tuple[str, dict[str, Any]]:
        """The field that asks for a constraint, and the keyword argument of `Engine.submit`; both empty."""
        return "", {}

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong(rest="is given, but stream is not true; expected both", at=("stream_options",))
        if self.prediction is not None and self.speculative is not None and not self.speculative.draft:
            message = "is given, but speculative.draft asks for no draft; expected one of them"
            raise wrong(rest=message, at=("prediction",))
        return self


class _SampleFields(TextFields):
    """RequestFields of completions and chats."""

    n: Annotated[int, within(1, lambda service: service.limits.n_texts)] = 1
    response_format: _ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None

    @property
    def constraint(self) -> tuple[str, dict[str, Any]]:
        asked = {
            name: one.constraint
            for name in ("response_format", "structured_outputs")
            if (one := getattr(self, name)) is not None and one.constraint
        }
        if len(asked) > 1:
            raise refused(
                "structured_outputs", "response_format and structured_outputs are given; expected one of them"
            )
        return next(iter(asked.items()), ("", {}))


# ── Paths


def _prompts(value: Any, info: ValidationInfo) -> list[Any]:
    """A list of texts and lists of token ids."""
    expected, most = "a string, token ids, or a list of these", of_service(info).limits.n_texts
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise wrong(expected)
    if as_integer(value[0]) is not None:
        return [check_token_ids(value, info)]
    if len(value) > most:
        raise wrong(rest=f"has {len(value)} items; expected at most {most}")
    for i, item in enumerate(value):
        if isinstance(item, list):
            check_token_ids(item, info, (i,))
        elif not isinstance(item, str):
            raise wrong("a string or token ids", at=(i,))
    return value


class CompletionFields(_SampleFields):
    """`/v1/completions`."""

    prompt: Annotated[Any, AfterValidator(_prompts)] = Field(
        description="a string, token ids, or a list of these"
    )
    max_tokens: Annotated[int, within(0, lambda service: service.limits.n_new_tokens)] | None = None
    logprobs: _NTop | None = None
    echo: bool = False
    best_of: Any = None
    suffix: Annotated[Any, only("", why="the models served here continue texts; they fill no gaps")] = None
    add_special_tokens: Annotated[Any, only(True, why="a prompt given as token ids has none added")] = None

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if self.best_of is not None and self.best_of != self.n:
            message = f"is {shown(self.best_of)}, which this server does not support; expected {self.n}"
            raise wrong(
                rest=f"{message}: all texts are returned", at=("best_of",), code="unsupported_parameter"
            )
        if self.max_tokens == 0 and (self.stream or not self.echo):
            raise wrong("an integer from 1 on, or 0 with echo and without stream", at=("max_tokens",))
        if self.echo and self.logprobs is not None and self.stream:
            raise wrong(
                rest="is given with logprobs and stream; expected stream without one of the others",
                at=("echo",),
                code="unsupported_parameter",
            )
        return self


class ChatFields(_SampleFields, ChatTools, TemplateFields):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], FailFast()] = Field(description="a list of messages", min_length=1)
    max_completion_tokens: _NewTokens | None = None
    max_tokens: _NewTokens | None = None
    logprobs: bool = False
    top_logprobs: _NTop | None = None
    modalities: Annotated[Any, only(["text"], why="a reply is text")] = None
    audio: Annotated[Any, only(why="a reply is text")] = None
    functions: Annotated[Any, only(why="they are tools now")] = None
    function_call: Annotated[Any, only(why="it is tool_choice now")] = None
    reasoning_effort: Annotated[Any, only(why="chat_template_kwargs has what the model's template knows")] = (
        None
    )
    verbosity: Annotated[Any, only(why="the model has no such setting")] = None
    web_search_options: Annotated[Any, only(why="nothing is searched for")] = None
    moderation: Annotated[Any, only(why="nothing is moderated")] = None

    @model_validator(mode="after")
    def _scored(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong(rest="is given, but logprobs is not true; expected both", at=("top_logprobs",))
        return self


class _ResponseText(RequestFields):
    format: _TextFormat | None = None
    verbosity: Annotated[Any, only(why="the model has no such setting")] = None


def _included(name: Any) -> Any:
    if name != LOGPROBS:
        raise wrong(repr(LOGPROBS), code="unsupported_parameter")
    return name


class ResponseFields(TextFields, ResponseTools, TemplateFields):
    """`/v1/responses`."""

    input: Annotated[
        list[InputItem],
        FailFast(),
        or_text("a string, or a list of items", lambda text: [{"role": "user", "content": text}]),
    ] = Field(description="a string, or a list of items", min_length=1)
    instructions: str | None = None
    max_output_tokens: _NewTokens | None = None
    include: Annotated[list[Annotated[Any, AfterValidator(_included)]], FailFast()] = Field(
        default_factory=list
    )
    top_logprobs: _NTop | None = None
    text: _ResponseText | None = None
    previous_response_id: Annotated[Any, only(why=_NOT_STORED)] = None
    conversation: Annotated[Any, only(why=_NOT_STORED)] = None
    prompt: Annotated[Any, only(why=_NOT_STORED)] = None
    background: Annotated[Any, only(False, why="a response is computed while its client waits")] = None
    background_options: Annotated[Any, only(why="a response is computed while its client waits")] = None
    truncation: Annotated[Any, only("disabled", why="input that is too long is refused")] = None
    context_management: Annotated[Any, only(why="input that is too long is refused")] = None
    reasoning: Annotated[Any, only(why="chat_template_kwargs has what the model's template knows")] = None
    max_tool_calls: Annotated[Any, only(why="the server calls no tools itself")] = None
    moderation: Annotated[Any, only(why="nothing is moderated")] = None
    access_programs: Annotated[Any, only(why="there are none")] = None
    image: Annotated[Any, only(why="a reply is text")] = None

    @property
    def constraint(self) -> tuple[str, dict[str, Any]]:
        """See `TextFields.constraint`."""
        found = {} if self.text is None or self.text.format is None else self.text.format.constraint
        return ("text.format", found) if found else ("", {})


class TokenizeFields(RequestFields):
    """`/tokenize` of a text."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    return_token_strs: bool = False
    add_special_tokens: bool | None = None
    add_special: bool = False


class TokenizeChatFields(ChatTools, TemplateFields):
    """`/tokenize` of a conversation."""

    model: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field(description="a list of messages", min_length=1)
    return_token_strs: bool = False


def _tokens(value: Any, info: ValidationInfo) -> list[int]:
    if not isinstance(value, list):
        raise wrong("a list")
    return check_token_ids(value, info)


class DetokenizeFields(RequestFields):
    """`/detokenize`."""

    model: str | None = None
    tokens: Annotated[Any, AfterValidator(_tokens)] = Field(description="a list of token ids")
