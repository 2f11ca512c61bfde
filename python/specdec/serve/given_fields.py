"""The fields of a request: each is taken by name, or refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from specdec.checks import as_integer
from specdec.errors import kind_of, shown
from specdec.serve.request_error import RequestError

__all__ = ["GivenFields"]

_LONGEST_NAME: Final = 64
_ELSEWHERE: Final = {
    "guided_json": "structured_outputs", "guided_regex": "structured_outputs",
    "guided_grammar": "structured_outputs", "guided_choice": "structured_outputs",
    "grammar": "structured_outputs", "json_schema": "response_format", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens", "repeat_penalty": "repetition_penalty",
}  # fmt: skip
"""What fields are called by other servers."""


class GivenFields:
    """An object of a request, read field by field; null is a field that is not given.

    What a field holds is refused by its path in the request, such as ``messages[2].role``. After all fields
    have been read `finish` refuses those that nobody has asked for, so that none is ignored.

    Parameters
    ----------
    values : object
        What the request holds.
    name : str
        The path of the object; empty for the request itself.
    """

    def __init__(self, values: object, name: str = "") -> None:
        self._name = name
        if not isinstance(values, Mapping):
            raise self.refusal(None, f"{name or 'the body'} is {shown(values)}; expected an object")
        self._values = values
        self._known: set[str] = set()

    def path(self, field: str) -> str:
        """What a field is called in messages."""
        return f"{self._name}.{field}" if self._name else field

    def refusal(self, field: str | None, message: str, code: str = "invalid_value") -> RequestError:
        """The answer that a field is refused with."""
        return RequestError(
            message, param=self._name or None if field is None else self.path(field), code=code
        )

    def wrong(self, field: str, expected: str) -> RequestError:
        """The answer to a field with a wrong value."""
        path = self.path(field)
        return self.refusal(field, f"{path} is {shown(self._values.get(field))}; expected {expected}")

    def __contains__(self, field: str) -> bool:
        return self._values.get(field) is not None

    def value(self, field: str) -> Any:
        """What a field holds; None where it is not given."""
        self._known.add(field)
        return self._values.get(field)

    def required(self, field: str, expected: str) -> Any:
        """What a field holds that must be given."""
        value = self.value(field)
        if value is None:
            path = self.path(field)
            raise self.refusal(field, f"{path} is missing; expected {expected}", "missing_required_parameter")
        return value

    def required_text(self, field: str, expected: str = "a string") -> str:
        """A text that must be given."""
        value = self.required(field, expected)
        if not isinstance(value, str):
            raise self.wrong(field, "a string")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """True or false."""
        value = self.value(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def optional_flag(self, field: str) -> bool | None:
        """True, false or not given."""
        return self.flag(field) if field in self else self.value(field)

    def integer(self, field: str, low: int, high: int | None = None) -> int | None:
        """A whole number of [low, high]."""
        value = self.value(field)
        if value is None:
            return None
        number = as_integer(value)
        if number is None or number < low or (high is not None and number > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise self.wrong(field, f"an integer {bounds}")
        return number

    def number(self, field: str, low: float, high: float) -> float | None:
        """A number of [low, high]."""
        value = self.value(field)
        if value is None:
            return None
        try:
            number = None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
        except OverflowError:
            number = None
        if number is None or not low <= number <= high:
            raise self.wrong(field, f"a number from {low:g} to {high:g}")
        return number

    def text(self, field: str) -> str | None:
        """A text."""
        value = self.value(field)
        if value is not None and not isinstance(value, str):
            raise self.wrong(field, "a string")
        return value

    def choice(self, field: str, choices: Sequence[str]) -> str | None:
        """One of some words."""
        value = self.value(field)
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise self.wrong(field, " or ".join(map(repr, choices)))
        return value

    def items(self, field: str, most: int | None = None, *, expected: str = "a list") -> list[Any] | None:
        """A list of at most so many; `expected`: what else there may be too, for the message."""
        value = self.value(field)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(field, expected)
        if most is not None and len(value) > most:
            path = self.path(field)
            raise self.refusal(field, f"{path} has {len(value)} items; expected at most {most}")
        return value

    def token_ids(self, field: str, ids: list[Any], n_vocab: int, path: str | None = None) -> list[int]:
        """A list in a field, as token ids below `n_vocab`; `path`: what it is called, if not as the field."""
        for i, token in enumerate(ids):
            number = as_integer(token)
            if number is None or not 0 <= number < n_vocab:
                raise self.refusal(
                    field,
                    f"{path or self.path(field)}[{i}] is {shown(token)}; expected a token id from 0 to "
                    f"{n_vocab - 1}",
                )
        return ids

    def inner(self, field: str) -> GivenFields | None:
        """An object within this one."""
        value = self.value(field)
        return None if value is None else GivenFields(value, self.path(field))

    def inner_items(self, field: str, most: int | None = None) -> list[GivenFields]:
        """A list of objects; empty where it is not given."""
        items = self.items(field, most) or []
        return [GivenFields(item, f"{self.path(field)}[{i}]") for i, item in enumerate(items)]

    def whole(self, field: str) -> Mapping[str, Any] | None:
        """An object as it is, whose fields are not looked at here."""
        value = self.value(field)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(field, "an object")
        return value

    def without_effect(self, fields: Iterable[str]) -> None:
        """Take fields that say nothing about the text."""
        self._known.update(fields)

    def only(self, field: str, *allowed: Any, why: str) -> None:
        """Refuse a field by name unless it says what happens anyway.

        Parameters
        ----------
        field : str
        *allowed
            The values that ask for nothing.
        why : str
            What the server does instead, or what the client can do.
        """
        value = self.value(field)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            path, expected = self.path(field), " or ".join(map(repr, allowed)) or "no such field"
            found = shown(value) if not isinstance(value, Mapping | list) or not value else kind_of(value)
            raise self.refusal(
                field,
                f"{path} is {found}, which this server does not support; expected {expected}: {why}",
                "unsupported_parameter",
            )

    def finish(self) -> None:
        """Refuse the fields that nobody has read."""
        for field in self._values:
            if field not in self._known:
                path = self.path(field[:_LONGEST_NAME])
                nearest = get_close_matches(field[:_LONGEST_NAME], self._known, 1)
                meant = _ELSEWHERE.get(field) or next(iter(nearest), None)
                hint = f"; did you mean {meant}?" if meant in self._known else ""
                raise self.refusal(
                    field, f"{path} is no field that this server knows{hint}", "unknown_parameter"
                )
