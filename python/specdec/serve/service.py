"""The engine as clients see it: names, limits, error responses."""

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
from specdec.decoding.engine import Engine
from specdec.errors import InputError, SpecdecError
from specdec.models.model import Model
from specdec.models.tokenizer import (
    MarkSpelling,
    StreamDecoder,
    Tokenizer,
    special_tokens_of,
    token_texts,
    why_no_tokenizer,
)
from specdec.serve.bodies import RequestError
from specdec.serve.reply_readers import TOOL_FORMATS, tool_format_of

NO_DRAFT: Final = "none"
"""Value of `speculative.draft` that means no draft."""

_LONGEST_CHARACTER: Final = 4
"""Bytes of the longest text that may become one unknown token."""
_ARGUMENTS: Final = frozenset(
    {*inspect.signature(Engine.submit).parameters, "add_generation_prompt", "continue_final_message"}
)
"""Arguments of the engine and of chat templates that requests set."""
_FIELDS: Final = {"max_new_tokens": "max_tokens", "verify": "speculative.verify"}
"""Request field of each engine argument whose name differs."""
_REFUSALS: Final[tuple[tuple[type[SpecdecError], int, str, dict[str, str]], ...]] = (
    (errors.BusyError, 429, "too_many_requests", {"Retry-After": "1"}),
    (errors.EngineClosedError, 503, "server_stopping", {"Retry-After": "1"}),
    (errors.MissingPackageError, 501, "unsupported_parameter", {}),  # some are also InputErrors
)


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Upper bounds on the memory and time of requests."""

    n_waiting: int = 256  # sequences that wait for a slot, and prompt scoring requests (else status 429)
    n_body_bytes: int = 8 << 20  # of a request (else 413)
    n_new_tokens: int | None = None
    """New tokens of a sequence, also the default of requests; None: what fits the context."""
    n_texts: int = 128  # sequences of a request: its prompts times `n`
    n_stops: int = 64  # stop strings of a request, and stop ids
    n_biases: int = 1024  # tokens in `logit_bias`, and items of other list settings
    n_top: int = 20  # most probable tokens per position, for `logprobs` and `top_logprobs`
    n_constraint_bytes: int = 64 << 10  # of a schema (as JSON), a regular expression or a grammar
    n_tools: int = 128  # of a request
    n_tokenize_bytes: int = 1 << 20
    """Bytes of text for `/tokenize`; a text that could be a prompt is always encoded."""
    body_s: float = 30.0  # seconds to receive the body of a request
    write_s: float = 60.0
    """Seconds for a client to read sent data before its connection is closed."""
    n_connections: int = 1024
    """Open connections; a new one replaces the longest idle one, or gets 503 if none is idle."""
    idle_s: float = 60.0
    """Seconds for a connection to be idle, or to send a request's headers, before it is closed."""
    event_s: float = 0.01
    """Shortest time in seconds between two events of a stream; new pieces meanwhile are merged."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_s"):
                check_number(name, value, "a number, at least 0", lambda x: 0.0 <= x < 1e9)
            elif value is not None or name != "n_new_tokens":
                check_integer(name, value, 1)


class TokenTexts:
    """Texts of single tokens; special tokens have their names as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts = token_texts(tokenizer)

    def utf8(self, token: int) -> bytes:
        """Return the bytes of a token, which may be part of a character."""
        return self._texts[token] if token < len(self._texts) else b""

    def longest(self, n_vocab: int) -> int:
        return max(map(len, self._texts[:n_vocab]), default=0)

    def text(self, token: int) -> str:
        """Return the text of a token, with U+FFFD for part of a character."""
        return self.utf8(token).decode("utf-8", "replace")

    def key(self, token: int) -> str:
        """Return the text of a token, or its escaped bytes if they are not UTF-8, to keep keys unique."""
        found = self.utf8(token)
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


class Service:
    """An engine as clients see it.

    Parameters
    ----------
    engine : Engine
    names : sequence of str
        Model names; responses use the first, requests may use any.
    adapters : mapping of str to Model, optional
        The target with each adapter, by model name.
    limits : ServerLimits, optional
    sampling : mapping, optional
        Default sampling settings of requests; by default temperature 1.
    draft_name : str, optional
        Name of the engine's draft if the engine has none for it; None without a draft.
    tool_format : str, optional
        A name of `TOOL_FORMATS`; None: chosen from the model's chat template.
    """

    def __init__(
        self, engine: Engine, names: Sequence[str], *, adapters: Mapping[str, Model] | None = None,
        limits: ServerLimits | None = None, sampling: Mapping[str, Any] | None = None,
        draft_name: str | None = None, tool_format: str | None = None,
    ) -> None:  # fmt: skip
        target = engine.target
        if target.tokenizer is None:
            raise InputError(f"{target.path} cannot be served: {why_no_tokenizer(target.path)}")
        if not names:
            raise InputError.of("names", names, "at least one model name")
        self.engine = engine
        self.target: Model = target
        self.tokenizer = target.tokenizer
        self.adapters = dict(adapters or {})
        self.name, self.names = names[0], [*names, *self.adapters]  # requests may use any
        if taken := self.adapters.keys() & set(names):
            raise InputError.of("adapters", taken.pop(), "a name other than the model's", verb="has")
        limits = limits or ServerLimits()
        self.limits = dataclasses.replace(limits, n_top=min(limits.n_top, target.config.n_vocab))
        self.sampling = dict(sampling or {})
        self.draft_names = list(engine.drafts) or ([] if draft_name is None else [draft_name])
        self.draft_name = next(iter(self.draft_names), None)  # the default of requests
        self.texts = TokenTexts(self.tokenizer)
        self.longest_token = max(self.texts.longest(target.config.n_vocab), _LONGEST_CHARACTER)
        self.most_bytes = engine.n_text * self.longest_token
        self.created, self.stopping = int(time.time()), False  # stopping: new requests get status 503
        self.n_active = 0  # requests that are being answered
        template = target.chat_template
        written = "\n".join(template.templates.values()) if template else ""
        self.tool_format = tool_format or tool_format_of(written)
        special, how = special_tokens_of(self.tokenizer), TOOL_FORMATS[self.tool_format]
        reasoning = target.reasoning_format
        marks = how.marks if reasoning is None else (*how.marks, *reasoning.marks)
        self.marks = MarkSpelling.of(special, marks, others=False)
        self._begin_id = special.get(how.begin) if how.begin else None

    def begun_message(self, prompt_ids: Sequence[int]) -> str | None:
        """Return the part of the reply that the prompt already holds, with marks; None if unknown."""
        if self._begin_id is None or self._begin_id not in prompt_ids:
            return None
        ids = list(prompt_ids)
        ids = ids[len(ids) - ids[::-1].index(self._begin_id) :]
        decoder = StreamDecoder(self.tokenizer, continuing=True)
        return "".join(self.marks.mark(token) + decoder.feed([token]) for token in ids) + decoder.finish()

    def refusal(self, error: SpecdecError, names: Mapping[str, str] | None = None) -> RequestError:
        """Convert an error to its response, without paths; `names`: request field of engine arguments."""
        if isinstance(error, RequestError):
            return error
        message = _without_path(str(error), self.target.path, "the model")
        for adapted in self.adapters.values():
            if adapted.adapter is not None:
                message = _without_path(message, adapted.adapter, "the adapter")
        for error_type, status, code, headers in _REFUSALS:
            if isinstance(error, error_type):
                return RequestError(message, status=status, code=code, headers=headers)
        if isinstance(error, InputError):
            # `argument` may hold an index. Errors of the core name their argument only in the message.
            word = re.match(r"\w+", error.argument or message)
            name = word[0] if word is not None and word[0] in _ARGUMENTS else "prompt"
            param = {**_FIELDS, **(names or {})}.get(name, name)
            message = re.sub(rf"^{name}\b", lambda found: param, message)
            is_long = isinstance(error, errors.ContextLengthError)
            code = "context_length_exceeded" if is_long else "invalid_value"
            return RequestError(message, param=param, code=code)
        if isinstance(error, errors.NotFiniteError):
            message = "the model produced a number that is not finite"
            return RequestError(message, status=500, code="not_finite")
        if isinstance(error, errors.CheckpointError):  # the message may name the file of a draft
            message = "a file of the server's models was changed while it was in use"
        return RequestError(message, status=500, code="server_error")


def _without_path(message: str, path: Path, name: str) -> str:
    """Replace a path in a message by a name; a path of one part could be any word and stays."""
    if len(path.parts) < 2:
        return message
    return re.sub(rf"(?<!\w){re.escape(str(path))}(?!\w)", lambda found: name, message)
