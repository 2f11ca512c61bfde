"""The tools that a request offers to the model, and which of them it may call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec.errors import shown
from specdec.serve.given_fields import GivenFields
from specdec.serve.server_limits import ServerLimits

__all__ = ["Tools", "read_tools"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call.

    Attributes
    ----------
    functions : dict of str to dict
        By name what the request says of each: description, and parameters, a JSON schema.
    choice : str
        "none", "auto", "required", or "named": the one function that is left has to be called.
    parallel : bool
        Whether a reply may hold several calls.
    """

    functions: dict[str, dict[str, Any]]
    choice: str = "auto"
    parallel: bool = True

    @property
    def for_template(self) -> list[dict[str, Any]]:
        """As chat templates read them."""
        return [{"type": "function", "function": function} for function in self.functions.values()]

    def parameters(self, name: str) -> Any:
        """The JSON schema of a function's arguments."""
        return self.functions[name].get("parameters") or {"type": "object", "properties": {}}

    def schema(self) -> Any:
        """The JSON schema of a reply that has to be a call: its arguments, or a list of calls."""
        if self.choice == "named":
            (name,) = self.functions
            return self.parameters(name)
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": self.parameters(name)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name in self.functions
        ]
        bounds = {"minItems": 1} if self.parallel else {"minItems": 1, "maxItems": 1}
        return {"type": "array", "items": {"anyOf": calls}, **bounds}


def read_tools(fields: GivenFields, limits: ServerLimits, *, flat: bool = False) -> Tools | None:
    """The fields `tools`, `tool_choice` and `parallel_tool_calls`; None where there are no tools.

    Parameters
    ----------
    fields : GivenFields
    limits : ServerLimits
    flat : bool
        In the form of responses: name and parameters stand beside the type.

    Raises
    ------
    RequestError
    """
    functions: dict[str, dict[str, Any]] = {}
    for tool in fields.inner_items("tools", limits.n_tools):
        if tool.value("type") != "function":
            raise tool.refusal(
                "type", f"{tool.path('type')} is {shown(tool.value('type'))}; expected 'function': the "
                "server has no tools of its own", "unsupported_parameter",
            )  # fmt: skip
        name, function = _function(tool, flat)
        if name in functions:
            raise fields.refusal("tools", f"tools has two functions {name!r}; expected each name once")
        functions[name] = function
    parallel = fields.flag("parallel_tool_calls", True)
    choice = _choice(fields, functions, flat)
    if not functions:
        if choice not in (None, "none", "auto"):
            raise fields.refusal("tool_choice", "tool_choice is given without tools; expected tools")
        return None
    if choice in (None, "none", "auto", "required"):
        return Tools(functions, choice or "auto", parallel)
    assert choice is not None
    return Tools({choice.removeprefix("="): functions[choice.removeprefix("=")]}, "named", parallel)


def _function(tool: GivenFields, flat: bool) -> tuple[str, dict[str, Any]]:
    given = tool if flat else tool.inner("function")
    if given is None:
        raise tool.refusal("function", f"{tool.path('function')} is missing; expected an object with a name")
    name = given.required("name", "a string")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise given.wrong("name", "at most 64 letters, digits, dots, dashes and underscores")
    found: dict[str, Any] = {"name": name}
    if (description := given.text("description")) is not None:
        found["description"] = description
    parameters = given.whole("parameters")
    found["parameters"] = {"type": "object", "properties": {}} if parameters is None else dict(parameters)
    if given.flag("strict"):
        found["strict"] = True
    given.finish()
    tool.finish()
    return name, found


def _choice(fields: GivenFields, functions: Mapping[str, Any], flat: bool) -> str | None:
    """A word, or "=" and the name of a function."""
    value = fields.value("tool_choice")
    words = ("none", "auto", "required")
    if value is None or (isinstance(value, str) and value in words):
        return value
    if not isinstance(value, Mapping):
        raise fields.wrong("tool_choice", f"{', '.join(map(repr, words))}, or a function")
    given = GivenFields(value, fields.path("tool_choice"))
    given.required("type", "'function'")
    given.choice("type", ("function",))
    inner = given if flat else given.inner("function")
    name = None if inner is None else inner.value("name")
    if not isinstance(name, str) or name not in functions:
        raise fields.refusal(
            "tool_choice", f"tool_choice names the function {shown(name)}; expected one of tools"
        )
    assert inner is not None
    inner.finish()
    given.finish()
    return f"={name}"
