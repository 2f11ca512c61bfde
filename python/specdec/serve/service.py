"""What a server serves: an engine, its names, its limits."""

from __future__ import annotations

import dataclasses
import inspect
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec import errors
from specdec.checks import check_integer, check_number
from specdec.decoding.engine import Engine, Generation
from specdec.errors import InputError, SpecdecError
from specdec.models.model import Model
from specdec.models.tokenizer import (
    MarkSpelling,
    StreamDecoder,
    Tokenizer,
    special_tokens_of,
    why_no_tokenizer,
)
from specdec.serve.bodies import RequestError
from specdec.serve.logprobs import TokenTexts
from specdec.serve.tool_formats import TOOL_FORMATS, tool_format_of

PLAIN_WORDS: Final = ("none", "plain")
"""Words by which a request asks for no draft."""

_RETRY: Final = {"Retry-After": "1"}
_LONGEST_CHARACTER: Final = 4
"""Bytes of what may become the one token for unknown text."""
_ARGUMENTS: Final = frozenset(
    {*inspect.signature(Engine.submit).parameters, "add_generation_prompt", "continue_final_message"}
)
"""Arguments of the engine, and of chat templates, that are fields of requests."""
_FIELDS: Final = {
    "max_new_tokens": "max_tokens",
    "verify": "speculative.verify",
}
"""The fields of requests by the arguments of the engine, where the names differ."""


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds on what clients may ask for, so that no request takes memory or time without end."""

    n_waiting: int = 256
    """Texts that wait for a slot, and requests that wait for scores of prompts alone; else status 429."""
    n_body_bytes: int = 8 << 20
    """Bytes of a request's body (413)."""
    n_new_tokens: int | None = None
    """New tokens of a text, also where a request names no number; None: as many as the context holds."""
    n_texts: int = 128
    """Texts of a request, its prompts times `n`."""
    n_stops: int = 64
    """Stop strings of a request, and stop ids."""
    n_biases: int = 1024
    """Tokens in `logit_bias`, and items of other settings that are lists."""
    n_top: int = 20
    """Most probable tokens at each position, for `logprobs` and `top_logprobs`."""
    n_constraint_bytes: int = 64 << 10
    """Bytes of a schema (as JSON), a regular expression or a grammar."""
    n_tools: int = 128
    """Tools of a request."""
    n_tokenize_bytes: int = 1 << 20
    """Bytes of text that `/tokenize` encodes; a text as long as a prompt may be is encoded in any case."""
    body_s: float = 30.0
    """Seconds until the body of a request must have come."""
    write_s: float = 60.0
    """Seconds that a client may take for what has been sent to it before its connection is closed."""
    n_connections: int = 1024
    """Connections; a new one takes the place of the one that is idle longest, or is answered with 503."""
    idle_s: float = 60.0
    """Seconds that a connection may be idle, or take for the headers of a request, before it is closed."""
    event_s: float = 0.01
    """Seconds between two events of a stream at least, 0 for none; what comes meanwhile is one event."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_s"):
                check_number(name, value, "a number, at least 0", lambda x: 0.0 <= x < 1e9)
            elif value is not None or name != "n_new_tokens":
                check_integer(name, value, 1)


class Service:
    """An engine as clients see it.

    Parameters
    ----------
    engine : Engine
    names : sequence of str
        What the model is called; the first is its name, the others are taken too.
    adapters : mapping of str to Model, optional
        The target with each adapter, by the name that clients choose.
    limits : ServerLimits, optional
    sampling : mapping, optional
        Settings where a request names none, in place of temperature 1 alone.
    draft_name : str, optional
        What the engine's draft is called, if it has no name there; None where it has none.
    tool_format : str, optional
        A name of `TOOL_FORMATS`; None: as the model's chat template says.

    Raises
    ------
    InputError
        The target has no tokenizer, so that there is no text to serve, or an adapter has a name of it.

    Attributes
    ----------
    name, names : str, list of str
        The model's name, and what clients may ask for: all its names, and those of its adapters.
    stopping : bool
        Whether new requests are answered with status 503, since the server is about to stop.
    n_active : int
        Requests that are being answered.
    draft_name, draft_names : str or None, list of str
        The draft of requests that name none, and the drafts that requests may name.
    marks : MarkSpelling
        How readers of replies get the special tokens that separate their parts.
    longest_token, most_bytes : int
        Bytes of text of a token, and of a prompt, at most: a longer one is not encoded.
    """

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        *,
        adapters: Mapping[str, Model] | None = None,
        limits: ServerLimits | None = None,
        sampling: Mapping[str, Any] | None = None,
        draft_name: str | None = None,
        tool_format: str | None = None,
    ) -> None:
        target = engine.target
        if target.tokenizer is None:
            raise InputError(f"{target.path} cannot be served: {why_no_tokenizer(target.path)}")
        if not names:
            raise InputError.of("names", names, "what the model is called")
        self.engine = engine
        self.target: Model = target
        self.tokenizer: Tokenizer = target.tokenizer
        self.adapters = dict(adapters or {})
        self.name, self.names = names[0], [*names, *self.adapters]
        if taken := self.adapters.keys() & set(names):
            raise InputError.of("adapters", taken.pop(), "another name: the model is called so", verb="has")
        limits = limits or ServerLimits()
        self.limits = dataclasses.replace(limits, n_top=min(limits.n_top, target.config.n_vocab))
        self.sampling = dict(sampling or {})
        self.draft_names = list(engine.drafts) or ([] if draft_name is None else [draft_name])
        self.draft_name = next(iter(self.draft_names), None)
        self.texts = TokenTexts(self.tokenizer)
        self.longest_token = max(self.texts.longest(target.config.n_vocab), _LONGEST_CHARACTER)
        self.most_bytes = engine.n_text * self.longest_token
        self.created, self.stopping, self.n_active = int(time.time()), False, 0
        if tool_format is None:
            template = target.chat_template
            tool_format = tool_format_of("\n".join(template.templates.values()) if template else "")
        self.tool_format = tool_format
        special, marks = special_tokens_of(self.tokenizer), TOOL_FORMATS[self.tool_format].marks
        self.marks = MarkSpelling.of(special, marks, others=False)
        begin = TOOL_FORMATS[self.tool_format].begin
        self._begin_id = special.get(begin) if begin else None

    def begun_message(self, prompt_ids: Sequence[int]) -> str | None:
        """Return what a prompt has of the message that a reply continues, with marks; None: it is unknown."""
        if self._begin_id is None or self._begin_id not in prompt_ids:
            return None
        ids = list(prompt_ids)
        ids = ids[len(ids) - ids[::-1].index(self._begin_id) :]
        decoder = StreamDecoder(self.tokenizer, continuing=True)
        return "".join(self.marks.mark(token) + decoder.feed([token]) for token in ids) + decoder.finish()

    def submit(
        self,
        submissions: Sequence[Mapping[str, Any]],
        adapter: Model | None = None,
        names: Mapping[str, str] | None = None,
    ) -> list[Generation]:
        """Hand the texts of a request to the engine: all of them, or none.

        `submissions` are keyword arguments of `Engine.submit`, `adapter` the target with the adapter that the
        request names, and `names` as of :meth:`refusal`.
        """
        found: list[Generation] = []
        try:
            for options in submissions:
                found.append(self.engine.submit(**options, adapter=adapter))
        except BaseException as error:
            for generation in found:
                generation.cancel()
            if isinstance(error, SpecdecError):
                raise self.refusal(error, names) from error
            raise
        return found

    def refusal(self, error: SpecdecError, names: Mapping[str, str] | None = None) -> RequestError:
        """Make the answer to an error, without the model's path on the server.

        `names` are the fields of the request by the arguments of `Engine.submit` that they became, where the
        names differ. An error about no argument of a request is about what is named "prompt" there.
        """
        if isinstance(error, RequestError):
            return error
        message = _without_place(str(error), self.target.path, "the model")
        for adapted in self.adapters.values():
            if adapted.adapter is not None:
                message = _without_place(message, adapted.adapter, "the adapter")
        if isinstance(error, errors.BusyError):
            return RequestError(message, status=429, code="too_many_requests", headers=_RETRY)
        if isinstance(error, errors.EngineClosedError):
            return RequestError(message, status=503, code="server_stopping", headers=_RETRY)
        if isinstance(error, errors.MissingPackageError):  # some are InputErrors too
            return RequestError(message, status=501, code="unsupported_parameter")
        if isinstance(error, InputError):
            # An argument may be named with a place in it. The core's errors name theirs in the message alone.
            word = re.match(r"\w+", error.argument or message)
            name = word[0] if word is not None and word[0] in _ARGUMENTS else "prompt"
            param = {**_FIELDS, **(names or {})}.get(name, name)
            message = re.sub(rf"^{name}\b", lambda found: param, message)
            code = (
                "context_length_exceeded" if isinstance(error, errors.ContextLengthError) else "invalid_value"
            )
            return RequestError(message, param=param, code=code)
        if isinstance(error, errors.NotFiniteError):
            message = "the model computed a number that is not finite"
            return RequestError(message, status=500, code="not_finite")
        if isinstance(error, errors.CheckpointError):  # the message may name the file of a draft
            message = "a file of the server's models was changed while it was in use"
        return RequestError(message, status=500, code="server_error")


def _without_place(message: str, place: Path, name: str) -> str:
    """A message with a name in place of a path; a path of one part, which may be any word, hides nothing."""
    if len(place.parts) < 2:
        return message
    return re.sub(rf"(?<!\w){re.escape(str(place))}(?!\w)", lambda found: name, message)
