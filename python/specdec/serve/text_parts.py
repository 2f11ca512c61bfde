"""Texts in requests: a string, or a list of parts with a text each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specdec.errors import shown
from specdec.serve.given_fields import GivenFields

__all__ = ["required_text_of_parts", "text_of_parts"]

_KINDS: Final = ("text", "input_text", "output_text")


def text_of_parts(given: GivenFields, field: str, kinds: Sequence[str] = _KINDS) -> str | None:
    """A text, or the texts of a list of parts joined by line ends; None where the field is not given.

    Parameters
    ----------
    given : GivenFields
    field : str
    kinds : sequence of str
        Types that parts may have.

    Raises
    ------
    RequestError
    """
    value = given.value(field)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise given.wrong(field, "a string, or a list of parts")
    texts = []
    for part in given.inner_items(field):
        kind = part.value("type")
        if kind not in kinds:
            raise part.refusal(
                "type",
                f"{part.path('type')} is {shown(kind)}; expected {kinds[0]!r}: the model reads text alone",
                "unsupported_parameter",
            )
        texts.append(part.required_text("text"))
        part.only("annotations", [], why="they are no text")
        part.only("logprobs", [], why="they are no text")
        part.finish()
    return "\n".join(texts)


def required_text_of_parts(given: GivenFields, field: str) -> str:
    """A text, or the texts of a list of parts joined by line ends, in a field that must be given.

    Raises
    ------
    RequestError
    """
    given.required(field, "a text")
    return text_of_parts(given, field) or ""
