"""The form that a request asks its text to have."""

from __future__ import annotations

from typing import Any, Final

from specdec.errors import shown
from specdec.serve.given_fields import GivenFields
from specdec.serve.json_body import json_bytes
from specdec.serve.server_limits import ServerLimits

__all__ = [
    "ANY_OBJECT",
    "check_form_size",
    "read_json_format",
    "read_response_format",
    "read_structured_outputs",
]

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
"""The schema of what `json_object` asks for."""


def check_form_size(
    fields: GivenFields, field: str, form: dict[str, Any], limits: ServerLimits
) -> dict[str, Any]:
    """A form, one of the keyword arguments schema, regex and grammar of `Engine.submit`, within the bounds.

    Raises
    ------
    RequestError
    """
    for kind, value in form.items():
        n_bytes = len(json_bytes(value) if kind == "schema" else value.encode("utf-8", "replace"))
        if n_bytes > (most := limits.n_form_bytes):
            raise fields.refusal(
                field, f"the {kind} in {fields.path(field)} has {n_bytes} bytes; expected at most {most}"
            )
    return form


def read_json_format(given: GivenFields, inner: GivenFields, limits: ServerLimits) -> dict[str, Any]:
    """The form of an object with `type`, whose schema is in `inner`.

    Raises
    ------
    RequestError
    """
    kind = given.required("type", "'text', 'json_object' or 'json_schema'")
    given.choice("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return {}
    if kind == "json_object":
        return check_form_size(given, "type", {"schema": ANY_OBJECT}, limits)
    inner.required_text("name", "a name for the schema")
    inner.text("description")
    inner.flag("strict")  # the schema is kept to in either case
    schema = inner.value("schema")
    if schema is None:
        raise inner.refusal("schema", f"{inner.path('schema')} is missing; expected a JSON schema")
    if not isinstance(schema, dict | bool):
        raise inner.wrong("schema", "a JSON schema")
    return check_form_size(inner, "schema", {"schema": schema}, limits)


def read_response_format(fields: GivenFields, limits: ServerLimits) -> dict[str, Any]:
    """The form that `response_format` asks for; empty where it asks for none.

    Raises
    ------
    RequestError
    """
    given = fields.inner("response_format")
    if given is None:
        return {}
    inner = given.inner("json_schema") if given.value("type") == "json_schema" else None
    if inner is None and given.value("type") == "json_schema":
        raise given.refusal("json_schema", f"{given.path('json_schema')} is missing; expected an object")
    found = read_json_format(given, given if inner is None else inner, limits)
    given.finish()
    if inner is not None:
        inner.finish()
    return found


def read_structured_outputs(fields: GivenFields, limits: ServerLimits) -> dict[str, Any]:
    """The form that vLLM's field `structured_outputs` asks for: json, regex, grammar or choice.

    Raises
    ------
    RequestError
    """
    given = fields.inner("structured_outputs")
    if given is None:
        return {}
    names = ("json", "regex", "grammar", "choice")
    asked = [name for name in names if name in given]
    if len(asked) != 1:
        found = " and ".join(asked) or "none of them"
        raise fields.refusal(
            "structured_outputs", f"structured_outputs has {found}; expected one of {', '.join(names)}"
        )
    (name,) = asked
    form: dict[str, Any]
    if name == "choice":
        choices = given.items("choice", limits.n_texts) or []
        if not choices or not all(isinstance(one, str) for one in choices):
            raise given.wrong("choice", "a list of strings")
        form = {"regex": _alternatives(choices)}
    elif name == "json":
        schema = given.value("json")
        if not isinstance(schema, dict | bool):
            raise given.refusal("json", f"{given.path('json')} is {shown(schema)}; expected a JSON schema")
        form = {"schema": schema}
    else:
        form = {name: given.text(name)}
    given.finish()
    return check_form_size(given, name, form, limits)


def _alternatives(choices: list[str]) -> str:
    """A regular expression of some texts."""
    special = set("\\.+*?()|[]{}^$#&-~/")
    return "|".join("".join(f"\\{char}" if char in special else char for char in one) for one in choices)
