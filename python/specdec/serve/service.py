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
from specdec.decoding.engine import Engine
from specdec.errors import InputError, SpecdecError
from specdec.models.model import Model
from specdec.models.tokenizer import (
    ByteTokenizer,
    MarkSpelling,
    StreamDecoder,
    Tokenizer,
    special_tokens_of,
    why_no_tokenizer,
)
from specdec.serve.bodies import RequestError
from specdec.serve.reply_readers import TOOL_FORMATS, tool_format_of

PLAIN_WORDS: Final = ("none", "plain")
"""Words by which a request asks for no draft."""

_LONGEST_CHARACTER: Final = 4
"""Bytes of what may become the one token for unknown text."""
_ARGUMENTS: Final = frozenset(
    {*inspect.signature(Engine.submit).parameters, "add_generation_prompt", "continue_final_message"}
)
"""Arguments of the engine, and of chat templates, that are fields of requests."""
_FIELDS: Final = {"max_new_tokens": "max_tokens", "verify": "speculative.verify"}
"""The fields of requests by the arguments of the engine, where the names differ."""
_REFUSALS: Final[tuple[tuple[type[SpecdecError], int, str, dict[str, str]], ...]] = (
    (errors.BusyError, 429, "too_many_requests", {"Retry-After": "1"}),
    (errors.EngineClosedError, 503, "server_stopping", {"Retry-After": "1"}),
    (errors.MissingPackageError, 501, "unsupported_parameter", {}),  # some are InputErrors too
)


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds on what clients may ask for, so that no request takes memory or time without end."""

    n_waiting: int = 256  # texts that wait for a slot, and requests for scores of prompts alone (status 429)
    n_body_bytes: int = 8 << 20  # of a request's body (413)
    n_new_tokens: int | None = None
    """New tokens of a text, also where a request names no number; None: as many as the context holds."""
    n_texts: int = 128  # of a request, its prompts times `n`
    n_stops: int = 64  # stop strings of a request, and stop ids
    n_biases: int = 1024  # tokens in `logit_bias`, and items of other settings that are lists
    n_top: int = 20  # most probable tokens at each position, for `logprobs` and `top_logprobs`
    n_constraint_bytes: int = 64 << 10  # of a schema (as JSON), a regular expression or a grammar
    n_tools: int = 128  # of a request
    n_tokenize_bytes: int = 1 << 20
    """Bytes of text that `/tokenize` encodes; a text as long as a prompt may be is encoded in any case."""
    body_s: float = 30.0  # seconds until the body of a request must have come
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


class TokenTexts:
    """The texts of tokens; a special token, which has no text, is called by its name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names = {}
        if isinstance(tokenizer, ByteTokenizer):
            self._names = {token: name for name, token in tokenizer.special_tokens().items()}

    def utf8(self, token: int) -> bytes:
        """Return the bytes of a token, which may be a part of a character."""
        if token in self._names:
            return self._names[token].encode("utf-8")
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._tokenizer.text_bytes(token)
        return self._tokenizer.decode([token]).encode("utf-8", "replace")

    def longest(self, n_vocab: int) -> int:
        n = min(n_vocab, self._tokenizer.n_vocab)
        return max((len(self.utf8(token)) for token in range(n)), default=0)

    def text(self, token: int) -> str:
        """Return the text of a token; U+FFFD stands for a part of a character."""
        return self.utf8(token).decode("utf-8", "replace")

    def key(self, token: int) -> str:
        """Return the text of a token, or its bytes where they are no text, so that tokens differ."""
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
            raise InputError.of("names", names, "what the model is called")
        self.engine = engine
        self.target: Model = target
        self.tokenizer = target.tokenizer
        self.adapters = dict(adapters or {})
        self.name, self.names = names[0], [*names, *self.adapters]  # the model's, and what may be asked for
        if taken := self.adapters.keys() & set(names):
            raise InputError.of("adapters", taken.pop(), "another name: the model is called so", verb="has")
        limits = limits or ServerLimits()
        self.limits = dataclasses.replace(limits, n_top=min(limits.n_top, target.config.n_vocab))
        self.sampling = dict(sampling or {})
        self.draft_names = list(engine.drafts) or ([] if draft_name is None else [draft_name])
        self.draft_name = next(iter(self.draft_names), None)  # of requests that name none
        self.texts = TokenTexts(self.tokenizer)
        self.longest_token = max(self.texts.longest(target.config.n_vocab), _LONGEST_CHARACTER)
        self.most_bytes = engine.n_text * self.longest_token
        self.created, self.stopping = int(time.time()), False  # stopping: requests get status 503
        self.n_active = 0  # requests that are being answered
        template = target.chat_template
        written = "\n".join(template.templates.values()) if template else ""
        self.tool_format = tool_format or tool_format_of(written)
        special, how = special_tokens_of(self.tokenizer), TOOL_FORMATS[self.tool_format]
        self.marks = MarkSpelling.of(special, how.marks, others=False)
        self._begin_id = special.get(how.begin) if how.begin else None

    def begun_message(self, prompt_ids: Sequence[int]) -> str | None:
        """Return what a prompt has of the message that a reply continues, with marks; None: it is unknown."""
        if self._begin_id is None or self._begin_id not in prompt_ids:
            return None
        ids = list(prompt_ids)
        ids = ids[len(ids) - ids[::-1].index(self._begin_id) :]
        decoder = StreamDecoder(self.tokenizer, continuing=True)
        return "".join(self.marks.mark(token) + decoder.feed([token]) for token in ids) + decoder.finish()

    def refusal(self, error: SpecdecError, names: Mapping[str, str] | None = None) -> RequestError:
        """Make the answer to an error, without paths; `names`: fields by the engine's arguments."""
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
            # An argument may be named with a place in it. The core's errors name theirs in the message alone.
            word = re.match(r"\w+", error.argument or message)
            name = word[0] if word is not None and word[0] in _ARGUMENTS else "prompt"
            param = {**_FIELDS, **(names or {})}.get(name, name)
            message = re.sub(rf"^{name}\b", lambda found: param, message)
            is_long = isinstance(error, errors.ContextLengthError)
            code = "context_length_exceeded" if is_long else "invalid_value"
            return RequestError(message, param=param, code=code)
        if isinstance(error, errors.NotFiniteError):
            message = "the model computed a number that is not finite"
            return RequestError(message, status=500, code="not_finite")
        if isinstance(error, errors.CheckpointError):  # the message may name the file of a draft
            message = "a file of the server's models was changed while it was in use"
        return RequestError(message, status=500, code="server_error")


def _without_path(message: str, path: Path, name: str) -> str:
    """A message with a name in place of a path; a path of one part, which may be any word, hides nothing."""
    if len(path.parts) < 2:
        return message
    return re.sub(rf"(?<!\w){re.escape(str(path))}(?!\w)", lambda found: name, message)
