"""The text of a form, checked, and as the grammar that ``llguidance`` compiles."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from specdec.decoding.forms.schema_limits import check_joined, check_separators
from specdec.decoding.forms.schema_rewriting import JSON_STYLE, close_objects, rewrite_schema
from specdec.errors import FormError, InputError, kind_of

__all__ = ["FormKind", "grammar_of", "json_text"]

FormKind: TypeAlias = Literal["schema", "regex", "grammar"]

_MOST_BYTES: Final = 1 << 17
"""Of a form's text; larger ones are refused."""


def json_text(schema: Any) -> str:
    """A JSON schema as text.

    Parameters
    ----------
    schema : mapping, bool, str or class
        A schema, its text, or a class with the method ``model_json_schema``, whose objects have no keys but
        those that the class names, unless it allows others by name.

    Raises
    ------
    InputError
        For something else.
    FormError
        For a text that is no JSON.
    """
    if isinstance(schema, type) and callable(getattr(schema, "model_json_schema", None)):
        schema = copy.deepcopy(schema.model_json_schema())  # type: ignore[attr-defined]
        close_objects(schema)
    if isinstance(schema, str):
        _check_size("schema", schema)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise FormError(f"schema is no JSON: {error}") from None
    if not isinstance(schema, Mapping | bool):
        raise InputError(
            f"schema is {kind_of(schema)}; expected a dict, True, the text of a JSON schema, or a class with "
            "the method model_json_schema"
        )
    if schema is False:
        raise FormError("schema is False: no text has it")
    if schema is True:
        schema = {}
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise FormError(f"schema cannot be written as JSON: {error}") from None


def _check_size(kind: str, text: str) -> None:
    n_bytes = len(text.encode("utf-8", "surrogatepass"))
    if n_bytes > _MOST_BYTES:
        raise FormError(f"{kind} has {n_bytes} bytes; expected at most {_MOST_BYTES}")


def grammar_of(library: Any, kind: FormKind, form: Any) -> str:
    """The grammar that the library compiles.

    Parameters
    ----------
    library : module
        ``llguidance``.
    kind : {"schema", "regex", "grammar"}
    form : mapping, bool, str or class
        As `Guidance.of` takes it.

    Raises
    ------
    FormError
        For a form that is too large or would never end. What the library raises is not caught.
    """
    if kind == "schema":
        text = json_text(form)
        _check_size(kind, text)
        check_joined(text)
        check_separators(text)
        schema = json.loads(text)
        rewrite_schema(library, schema)
        made: str = library.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE)
        return made
    _check_size(kind, form)
    if kind == "regex":
        made = library.LLMatcher.grammar_from_regex(form)
        return made
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark = any_to_lark(form)
    except Exception:
        if "::=" not in form:
            raise FormError(
                "grammar has no rule that a text begins with; expected a line 'start: …' (Lark) or "
                "'root ::= …' (GBNF)"
            ) from None
        raise
    return library.LLMatcher.grammar_from_lark(lark)  # type: ignore[no-any-return]
