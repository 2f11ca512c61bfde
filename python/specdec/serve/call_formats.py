"""How the models that a server knows write calls of tools, by the signs of their chat templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from specdec.serve.call_readers import BareCalls, CallReader, ForcedCalls, MarkedCalls
from specdec.serve.tool_calls import ReadCalls, json_calls, mistral_calls, xml_calls
from specdec.serve.tool_fields import Tools

__all__ = ["CALL_FORMATS", "CallFormat", "call_format_of", "call_reader"]


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Attributes
    ----------
    sign : str
        What its chat templates have in them.
    marks : tuple of str
        What stands around calls; tokens of these names are read though they have no text.
    make : callable
        A reader for some tools.
    """

    sign: str
    marks: tuple[str, ...]
    make: Callable[[Tools], CallReader]


def _marked(
    begin: str, end: str | None, read: ReadCalls = json_calls
) -> tuple[tuple[str, ...], Callable[[Tools], CallReader]]:
    marks = (begin,) if end is None else (begin, end)
    return marks, lambda tools: MarkedCalls(tools, begin, end, read)


CALL_FORMATS: Final[dict[str, CallFormat]] = {
    "mistral": CallFormat("[TOOL_CALLS]", *_marked("[TOOL_CALLS]", None, mistral_calls)),
    "xml": CallFormat("<function=", *_marked("<tool_call>", "</tool_call>", xml_calls)),
    "hermes": CallFormat("<tool_call>", *_marked("<tool_call>", "</tool_call>")),
    "granite": CallFormat("<|tool_call|>", *_marked("<|tool_call|>", "<|/tool_call|>")),
    "llama": CallFormat(
        '"parameters":', ("<|python_tag|>",), lambda tools: BareCalls(tools, "<|python_tag|>")
    ),
    "json": CallFormat("", (), lambda tools: BareCalls(tools)),
}
"""Formats by their names; of those whose sign a template has, the first is meant."""


def call_format_of(template: str) -> str:
    """The name of the format that a chat template asks for."""
    return next(name for name, one in CALL_FORMATS.items() if one.sign in template)


def call_reader(tools: Tools, name: str) -> CallReader:
    """What reads the calls in one text."""
    if tools.choice in ("named", "required"):
        return ForcedCalls(tools)
    return CALL_FORMATS[name].make(tools)
