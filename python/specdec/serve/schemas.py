"""Request schemas of each endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, FailFast, Field, Tag, ValidationInfo, create_model, model_validator

from specdec.checks import as_integer
from specdec.decoding.engine import Speculative
from specdec.decoding.options import DecodingOptions, LogprobsOf
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import shown
from specdec.serve import conversation
from specdec.serve.bodies import json_bytes
from specdec.serve.request_fields import (
    Only,
    RequestFields,
    Texts,
    at_most,
    by_field,
    check_token_ids,
    or_text,
    refused,
    within,
    wrong,
)
from specdec.serve.service import NO_DRAFT
from specdec.settings_table import Setting, table_of
from specdec.verification.rules import DecodingRule

if TYPE_CHECKING:
    from typing_extensions import Self


_LOGPROBS: Final = "message.output_text.logprobs"
"""The only value that `include` of responses may hold."""
NewTokens = Annotated[int, within(1, "n_new_tokens")]
NTop = Annotated[int, within(0, "n_top")]


# ── Constraints


def _bounded(value: Any, info: ValidationInfo) -> Any:
    """Refuse a schema, regular expression or grammar of too many bytes."""
    n_bytes = len(value.encode("utf-8", "replace") if isinstance(value, str) else json_bytes(value))
    if n_bytes > (most := info.context.limits.n_constraint_bytes):
        raise wrong(rest=f"has {n_bytes} bytes; expected at most {most}")
    return value


def _json_schema(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, dict | bool):
        raise wrong("a JSON schema")
    return _bounded(value, info)


JsonSchema = Annotated[Any, AfterValidator(_json_schema)]
_Expression = Annotated[str, AfterValidator(_bounded)]


class _NamedSchema(RequestFields):
    name: str = Field(description="a name for the schema")
    description: str | None = None
    strict: bool = False  # always enforced
    schema_: JsonSchema = Field(alias="schema", description="a JSON schema")


class _Format(RequestFields):
    type: str

    @property
    def constraint(self) -> dict[str, Any]:
        """Keyword argument of `Engine.submit`, if any."""
        return {"schema": {"type": "object"}} if self.type == "json_object" else {}


class _SchemaFormat(_Format):
    json_schema: _NamedSchema = Field(description="an object")

    @property
    def constraint(self) -> dict[str, Any]:
        return {"schema": self.json_schema.schema_}


class _FlatFormat(_NamedSchema, _Format):
    @property
    def constraint(self) -> dict[str, Any]:
        return {"schema": self.schema_}


_by_type: Final = by_field("type", {"text": "<plain>", "json_object": "<plain>", "json_schema": "<schema>"})
_Plain = Annotated[_Format, Tag("<plain>")]
_ResponseFormat = Annotated[_Plain | Annotated[_SchemaFormat, Tag("<schema>")], _by_type]
_TextFormat = Annotated[_Plain | Annotated[_FlatFormat, Tag("<schema>")], _by_type]


class _StructuredOutputs(RequestFields):
    """vLLM's field, with exactly one of four constraints."""

    json_: JsonSchema = Field(None, alias="json")
    regex: _Expression | None = None
    grammar: _Expression | None = None
    choice: Annotated[list[str], at_most("n_texts"), AfterValidator(_bounded)] | None = Field(
        None, min_length=1
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            found = " and ".join(sorted(name.rstrip("_") for name in self.model_fields_set))
            raise wrong(rest=f"has {found or 'none of them'}; expected one of json, regex, grammar, choice")
        return self

    @property
    def constraint(self) -> dict[str, Any]:
        if self.choice is not None:
            return {"regex": "|".join(map(_escaped, self.choice))}
        (name,) = self.model_fields_set
        return {"schema" if name == "json_" else name: getattr(self, name)}


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\.+*?()|[]{}^$#&-~/" else char for char in text)


# ── Shared fields


def _draft(wanted: Any, info: ValidationInfo) -> bool | str:
    names = info.context.draft_names
    *others, last = ["true"] * bool(names) + ["false", *map(repr, (NO_DRAFT, *names))]
    expected = f"{', '.join(others)} or {last}"
    if not isinstance(wanted, bool) and wanted not in (NO_DRAFT, *names):
        raise wrong(expected)
    drafting = wanted not in (False, NO_DRAFT)
    if drafting and not names:
        raise wrong(rest=f"is {shown(wanted)}, but this server has no draft; expected {expected}")
    return wanted if isinstance(wanted, str) and wanted in info.context.engine.drafts else drafting


class _SpeculativeFields(RequestFields):
    """Draft settings; `model` and `num_speculative_tokens` are vLLM's names of `draft` and `gamma`."""

    draft: Annotated[Any, AfterValidator(_draft)] | None = None
    model: Annotated[Any, AfterValidator(_draft)] | None = None
    gamma: Annotated[int, within(0, MAX_GAMMA)] | None = None
    num_speculative_tokens: Annotated[int, within(0, MAX_GAMMA)] | None = None
    verify: DecodingRule | None = None

    @model_validator(mode="after")
    def _once(self) -> Self:
        for ours, theirs in (("draft", "model"), ("gamma", "num_speculative_tokens")):
            if getattr(self, ours) is not None and getattr(self, theirs) is not None:
                raise wrong(rest=f"is given with {ours}; expected one of them", at=(theirs,))
        return self

    @property
    def settings(self) -> Speculative:
        """The engine's settings."""
        draft = self.draft if self.model is None else self.model
        gamma = self.gamma if self.num_speculative_tokens is None else self.num_speculative_tokens
        return Speculative(True if draft is None else draft, gamma, self.verify)


class _Prediction(RequestFields):
    type: Literal["content"] = Field(description="'content'")
    content: Texts = Field(description="a text")


class _StreamOptions(RequestFields):
    include_usage: bool = False
    fixed: ClassVar = {
        "include_obfuscation": Only((False,), "chunks are not padded"),
        "continuous_usage_stats": Only((False,), "only the last chunk has usage"),
    }


def _field_of(row: Setting) -> Any:
    """Return the type of a setting's field and its default, None (the server's)."""
    assert row.served is not None
    low, high = row.served

    def check(value: Any, info: ValidationInfo) -> Any:
        """Check a list, or a mapping of token ids to numbers."""
        if isinstance(row.neutral, Mapping) and isinstance(value, dict):
            value = {_token(name): _number(name, value[name]) for name in value}
        return row.check(str(info.field_name), value)

    def _number(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise wrong(f"a number from {low:g} to {high:g}", at=(name,))
        return float(value)

    value_type: Any = Annotated[Any, at_most("n_biases"), AfterValidator(check)]
    if row.value_type in (int, float):
        value_type = Annotated[row.value_type, within(row.value_type(low), row.value_type(high))]
    return value_type | None, Field(None, description=row.help)


def _token(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 10):
        raise wrong(rest=f"has {shown(name)}; expected token ids as strings")
    return int(name)


SamplingFields: Any = create_model(
    "SamplingFields",
    __base__=RequestFields,
    **{name: _field_of(row) for name, row in table_of(DecodingOptions).items() if row.served is not None},
)
"""Fields for the rows of the settings table that a server accepts."""


_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    # vLLM
    "allowed_token_ids": ([],), "detokenize": (True,), "early_stopping": (False,),
    "include_reasoning": (True,), "length_penalty": (1.0, 1),
    "logits_processors": ([],), "mm_processor_kwargs": ({},), "priority": (0,),
    "return_token_ids": (False,), "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,), "use_beam_search": (False,),
    # llama.cpp
    "dynatemp_range": (0.0, 0), "id_slot": (-1,), "lora": ([],), "mirostat": (0,), "n_discard": (0,),
    "n_keep": (0,), "n_probs": (0,), "post_sampling_probs": (False,), "return_tokens": (False,),
    "reasoning_format": ("auto", "deepseek"),
    "t_max_predict_ms": (0, -1), "timings_per_token": (False,), "top_n_sigma": (-1.0, -1, 0.0, 0),
    "typical_p": (1.0, 1), "xtc_probability": (0.0, 0),
}  # fmt: skip
"""Values of other servers' fields that change nothing; any other value is refused."""


class TextFields(SamplingFields):
    """Fields of all requests for generated text."""

    model: str | None = None
    seed: Annotated[int, within(-(2**63), 2**64 - 1)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        FailFast(), at_most("n_stops"), or_text("a string, or a list of strings"),
    ] = Field(default_factory=list)  # fmt: skip
    stop_token_ids: Annotated[list[int], FailFast(), at_most("n_stops")] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs_of: LogprobsOf = "model"
    speculative: _SpeculativeFields | None = None
    prediction: _Prediction | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None

    without_effect: ClassVar[tuple[str, ...]] = (
        "user", "metadata", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
        "safety_identifier",
    )  # fmt: skip
    fixed: ClassVar = {
        **{name: Only(values, "other values are not supported") for name, values in _NEUTRAL.items()},
        "service_tier": Only(("auto", "default"), "there is only one service tier"),
        "store": Only((False,), "nothing is stored"),
        "cache_prompt": Only((True,), "the prefix cache is always used and changes no text"),
    }

    @property
    def constraint(self) -> tuple[str, dict[str, Any]]:
        """(field with the constraint or "", keyword argument of `Engine.submit`)."""
        asked = {name: one.constraint for name, one in self._formats().items() if one and one.constraint}
        if len(asked) > 1:
            raise refused(next(reversed(asked)), f"{' and '.join(asked)} are given; expected one of them")
        return next(iter(asked.items()), ("", {}))

    def _formats(self) -> dict[str, Any]:
        raise NotImplementedError

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong(rest="is given, but stream is not true; expected both", at=("stream_options",))
        if self.prediction and self.speculative and not self.speculative.settings.draft:
            message = "is given, but speculative turns the draft off; expected one of them"
            raise wrong(rest=message, at=("prediction",))
        return self


class _SampleFields(TextFields):
    """Fields of completions and chats."""

    n: Annotated[int, within(1, "n_texts")] = 1
    return_rounds: bool = False
    response_format: _ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None

    def _formats(self) -> dict[str, Any]:
        return {"response_format": self.response_format, "structured_outputs": self.structured_outputs}


# ── Paths


def _prompts(value: Any, info: ValidationInfo) -> list[Any]:
    """Convert a prompt field to a list of texts and token id lists."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise wrong("a string, token ids, or a list of these")
    if as_integer(value[0]) is not None:
        return [check_token_ids(value, info)]
    if len(value) > (most := info.context.limits.n_texts):
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
    suffix: str = ""
    max_tokens: Annotated[int, within(0, "n_new_tokens")] | None = None
    logprobs: NTop | None = None
    echo: bool = False
    skip_special_tokens: bool = True
    best_of: Any = None
    fixed = TextFields.fixed | {
        "add_special_tokens": Only((True,), "pass token ids to leave them out"),
    }

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.best_of is not None:
            Only((self.n,), "all samples are returned").check("best_of", self.best_of)
        if self.max_tokens == 0 and (self.stream or not self.echo):
            raise wrong("an integer, at least 1, or 0 with echo and without stream", at=("max_tokens",))
        if self.echo and self.suffix:
            raise wrong(rest="is given with echo; expected one of them", at=("suffix",))
        return self


PARSED: Final = {
    "skip_special_tokens": Only((True,), "replies are parsed; /v1/completions shows special tokens"),
    "add_special_tokens": Only((False,), "the chat template writes them"),
}
"""Fields of conversations with one value."""


class ChatFields(_SampleFields, conversation.ChatTools, conversation.EffortFields):
    """`/v1/chat/completions`."""

    messages: Annotated[list[conversation.Message], FailFast()] = Field(
        description="a list of messages", min_length=1
    )
    max_completion_tokens: NewTokens | None = None
    max_tokens: NewTokens | None = None
    logprobs: bool = False
    top_logprobs: NTop | None = None
    fixed = TextFields.fixed | PARSED | {
        "modalities": Only((["text"],), "replies are text"), "audio": Only((), "replies are text"),
        "functions": Only((), "use tools"), "function_call": Only((), "use tool_choice"),
        "verbosity": Only(("medium",), "the model has no such setting"),
        "web_search_options": Only((), "there is no web search"),
        "moderation": Only((), "there is no moderation"),
    }  # fmt: skip

    @model_validator(mode="after")
    def _score(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong(rest="is given, but logprobs is not true; expected both", at=("top_logprobs",))
        return self


class _ResponseText(RequestFields):
    format: _TextFormat | None = None
    fixed: ClassVar = {"verbosity": Only(("medium",), "the model has no such setting")}


class _Reasoning(RequestFields):
    effort: conversation.Effort | None = None
    fixed: ClassVar = {
        **dict.fromkeys(
            ("summary", "generate_summary"), Only(("auto",), "responses have the whole reasoning")
        ),
        "context": Only(("auto",), "the chat template decides"),
        "mode": Only(("standard",), "there is only one mode"),
    }


def _included(name: Any) -> Any:
    if name != _LOGPROBS:
        raise wrong(repr(_LOGPROBS), code="unsupported_parameter")
    return name


class ResponseFields(TextFields, conversation.ResponseTools, conversation.TemplateFields):
    """`/v1/responses`."""

    input: Annotated[
        list[conversation.InputItem], FailFast(),
        or_text("a string, or a list of items", lambda text: [{"role": "user", "content": text}]),
    ] = Field(description="a string, or a list of items", min_length=1)  # fmt: skip
    instructions: str | None = None
    max_output_tokens: NewTokens | None = None
    include: Annotated[list[Annotated[Any, AfterValidator(_included)]], FailFast()] = Field(
        default_factory=list
    )
    top_logprobs: NTop | None = None
    text: _ResponseText | None = None
    reasoning: _Reasoning | None = None
    fixed = (
        TextFields.fixed
        | PARSED
        | {
            **dict.fromkeys(
                ("previous_response_id", "conversation", "prompt"),
                Only((), "nothing is stored; send the whole conversation in input"),
            ),
            "background": Only((False,), "responses run only while the client waits"),
            "background_options": Only((), "responses run only while the client waits"),
            "truncation": Only(("disabled",), "input that is too long is refused"),
            "context_management": Only((), "input that is too long is refused"),
            "max_tool_calls": Only((), "the server calls no tools itself"),
            "moderation": Only((), "there is no moderation"),
            "access_programs": Only((), "there are none"),
            "image": Only((), "replies are text"),
        }
    )

    @property
    def effort(self) -> tuple[str, conversation.Effort | None]:
        return "reasoning.effort", None if self.reasoning is None else self.reasoning.effort

    def _formats(self) -> dict[str, Any]:
        return {"text.format": self.text and self.text.format}


class TokenizeFields(RequestFields):
    """`/tokenize` of a text."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    return_token_strs: bool = False
    add_special_tokens: bool | None = None
    add_special: bool = False


class TokenizeChatFields(conversation.ChatTools, conversation.EffortFields):
    """`/tokenize` of a conversation."""

    model: str | None = None
    messages: Annotated[list[conversation.Message], FailFast()] = Field(min_length=1)
    return_token_strs: bool = False


def _tokens(value: Any, info: ValidationInfo) -> list[int]:
    if not isinstance(value, list):
        raise wrong("a list")
    return check_token_ids(value, info)


class DetokenizeFields(RequestFields):
    """`/detokenize`."""

    model: str | None = None
    tokens: Annotated[Any, AfterValidator(_tokens)] = Field(description="a list of token ids")
