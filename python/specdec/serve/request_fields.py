"""What the schemas of requests are made of: their base class, validators, and how a fault is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from specdec.checks import as_integer
from specdec.errors import InputError, kind_of, shown
from specdec.serve.bodies import RequestError

if TYPE_CHECKING:
    from specdec.serve.service import Service

__all__ = [
    "ReasoningTexts",
    "RequestFields",
    "Texts",
    "at_most",
    "by_field",
    "check_token_ids",
    "of_service",
    "only",
    "or_text",
    "parse",
    "refused",
    "within",
    "wrong",
]  # fmt: skip

_LONGEST_NAME: Final = 64
_ELSEWHERE: Final = {
    "guided_json": "structured_outputs", "guided_regex": "structured_outputs",
    "guided_grammar": "structured_outputs", "guided_choice": "structured_outputs",
    "grammar": "structured_outputs", "json_schema": "response_format", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens", "repeat_penalty": "repetition_penalty",
}  # fmt: skip
"""Names of fields in other servers."""
_EXPECTED: Final = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "greater_than_equal": "an integer, at least {ge}",
    "int_type": "an integer",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "an object",
    "string_type": "a string",
    "too_short": "at least one item",
    "string_unicode": "text without lone surrogates",
}
"""The expectations of pydantic's own errors."""
_CODES: Final = ("missing_required_parameter", "unknown_parameter", "unsupported_parameter")

Bound = int | float | Callable[["Service"], "int | None"]


@dataclass(frozen=True)
class _Missing:
    """Stands for a required field that is not given."""

    expected: str


@dataclass(frozen=True)
class _Unknown:
    """Stands for the value of a field that the schema does not have."""

    hint: str


class RequestFields(BaseModel):
    """An object of a request.

    A field whose value is null is not given. An unknown field is refused, after all others were taken. The
    `description` of a required field says what is expected there.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        known = {info.alias or name: info for name, info in cls.model_fields.items()}
        given = {name: values[name] for name in known if values.get(name) is not None}
        for name, info in known.items():
            if info.is_required() and name not in given:
                given[name] = _Missing(info.description or "a value")
        unknown = next((name for name in values if name not in known), None)
        if unknown is not None:  # the first is enough: a request may have many
            nearest = get_close_matches(unknown[:_LONGEST_NAME], known, 1)
            meant = _ELSEWHERE.get(unknown) or next(iter(nearest), None)
            name = unknown.encode("utf-8", "backslashreplace").decode()
            given[name] = _Unknown(f"; did you mean {meant}?" if meant in known else "")
        return given


Schema = TypeVar("Schema", bound=RequestFields)


def parse(schema: type[Schema], body: Mapping[str, Any], service: Service) -> Schema:
    """Validate the body of a request; validators have the service as their context.

    Raises
    ------
    RequestError
        For the first fault: the path of the field, such as ``messages[2].role``, its value, the expectation.
    """
    try:
        return schema.model_validate(body, context=service)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> RequestError:
    fault = error.errors(include_url=False)[0]
    value, context, kind = fault["input"], fault.get("ctx", {}), fault["type"]
    loc = [part for part in fault["loc"] if not str(part).startswith("<")]  # tags of unions
    for part in context.get("at", ()):  # the part of the value that is at fault
        loc.append(part)
        value = (
            (value.get(part) if isinstance(value, Mapping) else value[part]) if value is not None else None
        )
    path = _path(loc)
    if isinstance(value, _Unknown):
        kind, message = "unknown_parameter", f"{path} is no field that this server knows{value.hint}"
    elif "rest" in context:
        message = f"{path} {context['rest']}"
    else:
        cause = context.get("error")
        expected = (cause.expected or str(cause)) if isinstance(cause, InputError) else None
        expected = expected or context.get("expected") or _EXPECTED[kind]
        if kind in _EXPECTED:
            expected = _EXPECTED[kind].format_map(context)
        if isinstance(value, _Missing):
            kind, message = "missing_required_parameter", f"{path} is missing; expected {value.expected}"
        elif value is None and context.get("at"):
            kind, message = "missing_required_parameter", f"{path} is missing; expected {expected}"
        else:
            message = f"{path} is {shown(value)}; expected {expected}"
    while loc and isinstance(loc[-1], int) and fault["type"] != "model_type":
        loc.pop()  # the list is the field
    return RequestError(
        message, param=_path(loc) if loc else None, code=kind if kind in _CODES else "invalid_value"
    )


def _path(loc: Iterable[int | str]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return path.removeprefix(".") or "the body"


def refused(param: str, message: str, code: str = "invalid_value") -> RequestError:
    """Make the answer to fields that contradict each other, or the server's state."""
    return RequestError(message, param=param, code=code)


def wrong(
    expected: str = "", *, rest: str = "", at: tuple[int | str, ...] = (), code: str = "invalid_value"
) -> PydanticCustomError:
    """Make the error of a validator.

    Parameters
    ----------
    expected : str
        Follows the path and the value in the message.
    rest : str
        Follows the path in the message, in place of the value and the expectation.
    at : tuple of int and str
        The part of the value that is at fault.
    code : str
        The `code` of the answer.
    """
    context: dict[str, Any] = {"rest": rest} if rest else {"expected": expected}
    return PydanticCustomError(code, "refused", {**context, "at": at})


def of_service(info: ValidationInfo) -> Service:
    """Return the service that a request is validated for."""
    service: Service = info.context
    return service


def _value(bound: Bound | None, info: ValidationInfo) -> int | float | None:
    return bound(of_service(info)) if callable(bound) else bound


def within(low: Bound, high: Bound) -> AfterValidator:
    """Refuse numbers out of [low, high]; a bound may depend on the service, and None is no bound."""

    def check(number: Any, info: ValidationInfo) -> Any:
        least, most = _value(low, info), _value(high, info)
        if (least is not None and number < least) or (most is not None and number > most):
            if isinstance(number, int):
                raise wrong(
                    f"an integer {f'at least {least}' if most is None else f'from {least} to {most}'}"
                )
            raise wrong(f"a number from {least:g} to {most:g}")
        return number

    return AfterValidator(check)


def at_most(bound: Bound, things: str = "items") -> BeforeValidator:
    """Refuse lists and objects of more items, before these are looked at."""

    def check(value: Any, info: ValidationInfo) -> Any:
        most = _value(bound, info)
        if isinstance(value, list | dict) and most is not None and len(value) > most:
            raise wrong(rest=f"has {len(value)} {things}; expected at most {most}")
        return value

    return BeforeValidator(check)


def only(*allowed: Any, why: str) -> AfterValidator:
    """Refuse a field unless its value is what happens anyway.

    Parameters
    ----------
    *allowed
        The values that ask for nothing.
    why : str
        What the server does instead, or what the client can do.
    """

    def check(value: Any) -> Any:
        if any(type(value) is type(one) and value == one for one in allowed):
            return value
        found = kind_of(value) if isinstance(value, Mapping | list) and value else shown(value)
        expected = " or ".join(map(repr, allowed)) or "no such field"
        raise wrong(
            rest=f"is {found}, which this server does not support; expected {expected}: {why}",
            code="unsupported_parameter",
        )

    return AfterValidator(check)


class _Discriminator(Discriminator):
    """A discriminator that a union with None may hold, as it has a hash."""

    __hash__ = object.__hash__


def by_field(
    field: str, tags: Mapping[str, str], default: str = "", code: str = "invalid_value"
) -> Discriminator:
    """Choose the schema of an object by a word in a field: `tags` has the schemas' tags, such as "<user>"."""

    def tag(value: Any) -> str | None:
        if not isinstance(value, dict):
            return next(iter(tags.values()))  # whose schema refuses it
        word = value.get(field) or default
        return tags.get(word) if isinstance(word, str) else None

    context: Any = {"expected": " or ".join(map(repr, tags)), "at": (field,)}
    return _Discriminator(
        tag, custom_error_type=code, custom_error_message="refused", custom_error_context=context
    )


def or_text(expected: str, listed: Callable[[str], Any] = lambda text: [text]) -> BeforeValidator:
    """Take a string in place of a list of one item."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            return listed(value)
        if not isinstance(value, list):
            raise wrong(expected)
        return value

    return BeforeValidator(check)


def check_token_ids(ids: list[Any], info: ValidationInfo, at: tuple[int, ...] = ()) -> list[int]:
    """Refuse what is no token id of the target."""
    n_vocab = of_service(info).target.config.n_vocab
    for i, token in enumerate(ids):
        number = as_integer(token)
        if number is None or not 0 <= number < n_vocab:
            raise wrong(f"a token id from 0 to {n_vocab - 1}", at=(*at, i))
    return ids


class _Part(RequestFields):
    """A part of a content."""

    type: Any = Field(description="'text'")
    text: str = Field(description="a string")
    annotations: Annotated[Any, only([], why="they are no text")] = None
    logprobs: Annotated[Any, only([], why="they are no text")] = None


def _texts(*types: str) -> Any:
    """Make the type of a string, or a list of parts of these types, whose texts are joined by line ends."""

    def check(value: Any) -> Any:
        if value not in types:
            raise wrong(f"{types[0]!r}: the model reads text alone", code="unsupported_parameter")
        return value

    class Part(_Part):
        type: Annotated[Any, AfterValidator(check)] = Field(description=repr(types[0]))

    return Annotated[
        list[Part],
        FailFast(),
        or_text("a string, or a list of parts", lambda text: [{"type": types[0], "text": text}]),
        AfterValidator(lambda parts: "\n".join(part.text for part in parts)),
    ]


if TYPE_CHECKING:
    Texts = ReasoningTexts = str
else:
    Texts = _texts("text", "input_text", "output_text")
    ReasoningTexts = _texts("reasoning_text")
