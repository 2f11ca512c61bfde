"""How the models that a server knows write replies, by the signs of their chat templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from specdec.models.tokenizer import MarkSpelling
from specdec.serve.call_readers import BareCalls, ForcedCalls, MarkedCalls, ReplyReader
from specdec.serve.harmony_reader import HARMONY_MARKS, HarmonyReader
from specdec.serve.tool_calls import ReadCalls, json_calls, mistral_calls, xml_calls
from specdec.serve.tool_fields import Tools

__all__ = ["CALL_FORMATS", "CallFormat", "call_format_of", "reply_reader"]

_NO_TOOLS: Final = Tools({}, "none")
_NO_MARKS: Final = MarkSpelling()

MakeReader: TypeAlias = Callable[[Tools, MarkSpelling, str | None], ReplyReader]
"""Makes a reader from tools, the spelling of special tokens, and what the prompt has of the reply."""


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes replies with calls of tools.

    Attributes
    ----------
    sign : str
        What its chat templates have in them.
    marks : tuple of str
        What separates the parts of a reply; tokens of these names are read though they have no text.
    make : callable
        Makes a reader of one reply.
    begin : str
        The mark that begins a message. If there is one, every reply has to be read, and the reader needs what
        the prompt has after the last of them.
    """

    sign: str
    marks: tuple[str, ...]
    make: MakeReader
    begin: str = ""


def _marked(
    begin: str, end: str | None, read: ReadCalls = json_calls, *, tags: bool = False
) -> tuple[tuple[str, ...], MakeReader]:
    def make(tools: Tools, spelling: MarkSpelling = _NO_MARKS, _: str | None = None) -> ReplyReader:
        return MarkedCalls(tools, begin, end, read, spelling, tags=tags)

    return (begin,) if end is None else (begin, end), make


_PYTHON_TAG: Final = "<|python_tag|>"

CALL_FORMATS: Final[dict[str, CallFormat]] = {
    "harmony": CallFormat("<|channel|>", HARMONY_MARKS, HarmonyReader, "<|start|>"),
    "mistral": CallFormat("[TOOL_CALLS]", *_marked("[TOOL_CALLS]", None, mistral_calls)),
    "xml": CallFormat("<function=", *_marked("<tool_call>", "</tool_call>", xml_calls, tags=True)),
    "hermes": CallFormat("<tool_call>", *_marked("<tool_call>", "</tool_call>")),
    "granite": CallFormat("<|tool_call|>", *_marked("<|tool_call|>", "<|/tool_call|>")),
    "llama": CallFormat(
        '"parameters":', (_PYTHON_TAG,), lambda tools, spelling, _: BareCalls(tools, _PYTHON_TAG, spelling)
    ),
    "json": CallFormat("", (), lambda tools, spelling, _: BareCalls(tools, "", spelling)),
}
"""Formats by their names; of those whose sign a template has, the first is meant."""


def call_format_of(template: str) -> str:
    """The name of the format that a chat template asks for."""
    return next(name for name, one in CALL_FORMATS.items() if one.sign in template)


def reply_reader(
    tools: Tools | None, name: str, spelling: MarkSpelling = _NO_MARKS, begun: str | None = None
) -> ReplyReader | None:
    """Make the reader that takes a reply apart, the one place where replies are cut at marks.

    Parameters
    ----------
    tools : Tools or None
        Those that the model may call.
    name : str
        A name of `CALL_FORMATS`.
    spelling : MarkSpelling, optional
        How special tokens are written in the reply.
    begun : str, optional
        What the prompt has of the message that the reply continues; None: that is unknown.

    Returns
    -------
    ReplyReader or None
        None: the reply is text, whatever is in it.
    """
    form = CALL_FORMATS[name]
    if tools is None or tools.choice == "none":
        return form.make(_NO_TOOLS, spelling, begun) if form.begin else None
    if tools.choice in ("named", "required"):
        return ForcedCalls(tools, spelling)
    return form.make(tools, spelling, begun)
