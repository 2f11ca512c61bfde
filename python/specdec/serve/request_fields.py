"""Building blocks of request schemas: base class, validators, error reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator, FailFast, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from specdec.checks import as_integer
from specdec.errors import InputError, shown, type_of
from specdec.serve.bodies import RequestError

_LONGEST_NAME: Final = 64
_ELSEWHERE: Final = {
    "guided_json": "structured_outputs", "guided_regex": "structured_outputs",
    "guided_grammar": "structured_outputs", "guided_choice": "structured_outputs",
    "grammar": "structured_outputs", "json_schema": "response_format", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens", "repeat_penalty": "repetition_penalty",
    "thinking_token_budget": "max_reasoning_tokens", "thinking_budget_tokens": "max_reasoning_tokens",
}  # fmt: skip
"""Our name of fields that other servers call differently."""
_EXPECTED: Final = {
    "bool_type": "true or false", "dict_type": "an object", "float_type": "a number",
    "greater_than_equal": "an integer, at least {ge}", "int_type": "an integer", "list_type": "a list",
    "literal_error": "{expected}", "model_type": "an object", "string_type": "a string",
    "string_too_short": "a string of at least one character", "too_short": "at least one item",
    "string_unicode": "text without lone surrogates",
}  # fmt: skip
"""Expectations for pydantic's built-in errors."""
CACHE_CONTROL: Final = ("cache_control",)
"""Anthropic's mark of a prefix to cache; the prefix cache is always used."""
_CODES: Final = ("missing_required_parameter", "unknown_parameter", "unsupported_parameter")


@dataclass(frozen=True)
class Only:
    """Field accepted only with the values that match the server's behavior; `why` explains it."""

    allowed: tuple[Any, ...]
    why: str

    def check(self, name: str, value: Any) -> None:
        if not any(type(value) is type(one) and value == one for one in self.allowed):
            found = type_of(value) if isinstance(value, Mapping | list) and value else shown(value)
            different = (one for i, one in enumerate(self.allowed) if one not in self.allowed[:i])
            expected = " or ".join(map(repr, different)) or "no such field"
            rest = f"is {found}, which this server does not support; expected {expected}: {self.why}"
            raise wrong(rest=rest, at=(name,), code="unsupported_parameter")


class _Missing(NamedTuple):
    """Placeholder for a missing required field."""

    expected: str


class _Unknown(NamedTuple):
    """Placeholder for the value of an unknown field."""

    hint: str


class RequestFields(pydantic.BaseModel):
    """Object of a request; null means a missing field, and unknown fields are refused last.

    The `description` of a required field is the expectation that the error for a missing one names.
    """

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)
    fixed: ClassVar[Mapping[str, Only]] = {}
    """Fields accepted with fixed values only."""
    without_effect: ClassVar[tuple[str, ...]] = ()
    """Fields accepted and ignored."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _prepare(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = _fields_of(cls)  # type: ignore[arg-type] # a class is hashable
        unknown = None
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name in fields:
                if value is not None:
                    given[name] = value
            elif name in cls.fixed:
                if value is not None:
                    cls.fixed[name].check(name, value)
            elif unknown is None and name not in cls.without_effect:
                unknown = name
        for name, expected in fields.items():
            if expected is not None and name not in given:
                given[name] = _Missing(expected)
        if unknown is not None:  # report only the first: a request may have many
            known = {*fields, *cls.fixed, *cls.without_effect}
            nearest = get_close_matches(unknown[:_LONGEST_NAME], known, 1)
            meant = _ELSEWHERE.get(unknown) or next(iter(nearest), None)
            name = unknown.encode("utf-8", "backslashreplace").decode()
            given[name] = _Unknown(f"; did you mean {meant}?" if meant in known else "")
        return given


@cache
def _fields_of(schema: type[RequestFields]) -> dict[str, str | None]:
    """Map a schema's field names to what a required field expects, None if optional."""
    return {
        info.alias or name: (info.description or "a value") if info.is_required() else None
        for name, info in schema.model_fields.items()
    }


Schema = TypeVar("Schema", bound=RequestFields)


def parse(schema: type[Schema], body: Mapping[str, Any], service: Any) -> Schema:
    """Validate a request body in the context of a `Service`, or refuse it with its first error."""
    try:
        found: Schema = schema.model_validate(body, context=service)
        return found
    except pydantic.ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0]) from None


def _refusal(fault: Mapping[str, Any]) -> RequestError:
    value, context, error_type = fault["input"], fault.get("ctx", {}), fault["type"]
    loc = [part for part in fault["loc"] if not str(part).startswith("<")]  # tags of unions
    for part in context.get("at", ()):  # path of the wrong part of the value
        loc.append(part)
        value = value.get(part) if isinstance(value, Mapping) else value[part]
    path, cause = _path(loc), context.get("error")
    if isinstance(cause, InputError):  # from the settings table
        context = {"expected": cause.expected} if cause.expected else {"rest": f"is wrong: {cause}"}
    expected = (
        _EXPECTED[error_type].format_map(context) if error_type in _EXPECTED else context.get("expected")
    )
    if isinstance(value, _Unknown):
        error_type, message = "unknown_parameter", f"{path} is not a known field{value.hint}"
    elif "rest" in context:
        message = f"{path} {context['rest']}"
    elif isinstance(value, _Missing) or (value is None and context.get("at")):
        expected = value.expected if isinstance(value, _Missing) else expected
        error_type, message = "missing_required_parameter", f"{path} is missing; expected {expected}"
    else:
        message = f"{path} is {shown(value)}; expected {expected}"
    while loc and isinstance(loc[-1], int) and error_type != "model_type":
        loc.pop()  # the list is the field
    code = error_type if error_type in _CODES else "invalid_value"
    return RequestError(message, param=_path(loc) if loc else None, code=code)


def _path(loc: list[int | str]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return path.removeprefix(".") or "the body"


def refused(param: str, message: str, code: str = "invalid_value") -> RequestError:
    """Make the error for a field that conflicts with other fields or the server."""
    return RequestError(message, param=param, code=code)


def wrong(
    expected: str = "", *, rest: str = "", at: tuple[int | str, ...] = (), code: str = "invalid_value"
) -> PydanticCustomError:
    """Make a validator's error: the expectation or the rest of the message; `at`: path of the wrong part."""
    context: dict[str, Any] = {"rest": rest} if rest else {"expected": expected}
    return PydanticCustomError(code, "refused", {**context, "at": at})


def _bound(bound: float | str | None, info: ValidationInfo) -> Any:
    return getattr(info.context.limits, bound) if isinstance(bound, str) else bound


def within(low: float, high: float | str) -> Any:
    """Refuse numbers outside [low, high]; `high` may be a field of `ServerLimits`."""

    def check(number: Any, info: ValidationInfo) -> Any:
        most = _bound(high, info)
        if number < low or (most is not None and number > most):
            if isinstance(number, int):
                raise wrong(f"an integer {f'at least {low}' if most is None else f'from {low} to {most}'}")
            raise wrong(f"a number from {low:g} to {most:g}")
        return number

    return AfterValidator(check)


def at_most(limit: str) -> Any:
    """Refuse lists and objects with more items than a field of `ServerLimits`, before reading items."""

    def check(value: Any, info: ValidationInfo) -> Any:
        most = _bound(limit, info)
        if isinstance(value, list | dict) and len(value) > most:
            raise wrong(rest=f"has {len(value)} items; expected at most {most}")
        return value

    return BeforeValidator(check)


class _Discriminator(pydantic.Discriminator):
    """Hashable discriminator, as unions with None need."""

    __hash__ = object.__hash__


def by_field(field: str, tags: Mapping[str, str], default: str = "", code: str = "invalid_value") -> Any:
    """Choose an object's schema by a field's value: `tags` maps it to tags such as "<user>"."""

    def tag(value: Any) -> str | None:
        if not isinstance(value, dict):
            return next(iter(tags.values()))  # whose schema refuses it
        word = value.get(field) or default
        return tags.get(word) if isinstance(word, str) else None

    context: Any = {"expected": " or ".join(map(repr, tags)), "at": (field,)}
    return _Discriminator(tag, code, "refused", context)


def or_text(expected: str, listed: Callable[[str], Any] = lambda text: [text]) -> Any:
    """Accept a string in place of a list of one item."""

    def check(value: Any) -> Any:
        if not isinstance(value, str | list):
            raise wrong(expected)
        return listed(value) if isinstance(value, str) else value

    return BeforeValidator(check)


def check_token_ids(ids: list[Any], info: ValidationInfo, at: tuple[int, ...] = ()) -> list[int]:
    """Refuse values that are not token ids of the target."""
    n_vocab = info.context.target.config.n_vocab
    for i, token in enumerate(ids):
        number = as_integer(token)
        if number is None or not 0 <= number < n_vocab:
            raise wrong(f"a token id from 0 to {n_vocab - 1}", at=(*at, i))
    return ids


def _texts(*types: str) -> Any:
    """Make the type of a string, or of a list of parts of these types, joined by line ends."""

    def check(value: Any) -> Any:
        if value not in types:
            raise wrong(f"{types[0]!r}: the model reads only text", code="unsupported_parameter")
        return value

    class Part(RequestFields):
        type: Annotated[Any, AfterValidator(check)] = Field(description=repr(types[0]))
        text: str = Field(description="a string")
        fixed = dict.fromkeys(("annotations", "logprobs"), Only(([],), "only text is read"))
        without_effect = CACHE_CONTROL

    return Annotated[
        list[Part],
        FailFast(),
        or_text("a string, or a list of parts", lambda text: [{"type": types[0], "text": text}]),
        AfterValidator(lambda parts: "\n".join(part.text for part in parts)),
    ]


if TYPE_CHECKING:
    Texts: TypeAlias = str
    ReasoningTexts: TypeAlias = str
else:
    Texts = _texts("text", "input_text", "output_text")
    ReasoningTexts = _texts("reasoning_text")
