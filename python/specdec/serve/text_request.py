"""Base classes of requests for generated text."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import SpecdecError, shown
from specdec.models.chat_template import begins_reply, text_of_message
from specdec.models.model import Model
from specdec.serve.bodies import RequestError, event, json_bytes
from specdec.serve.choices import Choice
from specdec.serve.reply_readers import Tools
from specdec.serve.request_fields import parse, refused
from specdec.serve.schemas import SamplingFields, TextFields
from specdec.serve.service import Service


def new_id(prefix: str) -> str:
    """Return a unique id."""
    return f"{prefix}{secrets.token_hex(12)}"


def read_model(name: str | None, service: Service) -> str:
    """Return the model name of a request, by default the server's; unknown names get status 404."""
    if name is None:
        return service.name
    if name not in service.names:
        expected = " or ".join(map(repr, service.names))
        message = f"the model {shown(name)} is not served here; expected {expected}"
        raise RequestError(message, status=404, param="model", code="model_not_found")
    return name


def check_prompt_size(parts: Mapping[str, Any], service: Service, most: int | None = None) -> None:
    """Refuse fields whose texts together exceed `most` bytes (default: a prompt's); name the largest."""
    sizes = {field: _n_bytes(part) for field, part in parts.items()}
    n_bytes, reason = sum(sizes.values()), ""
    if most is None:
        most, longest = service.most_bytes, service.longest_token
        reason = f": a text has at most {service.engine.n_text} tokens, of at most {longest} bytes each"
    if n_bytes > most:
        names = [name for name, size in sizes.items() if size]
        raise refused(
            max(sizes, key=lambda name: sizes[name]),
            f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} {n_bytes} bytes of text; expected "
            f"at most {most}{reason}",
            "context_length_exceeded",
        )


def _n_bytes(value: Any) -> int:
    """Count the UTF-8 bytes of a value; of an object or list, over all names and items."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return sum(_n_bytes(name) + _n_bytes(inner) for name, inner in value.items())
    return sum(map(_n_bytes, value)) if isinstance(value, list | tuple) else len(str(value))


class TextRequest(ABC):
    """Request for texts with checked fields; after `start` it makes the response.

    A stream consists of `begin`, `piece` for each piece, and `end` or `fail`; otherwise `whole` responds.
    """

    schema: ClassVar[type[TextFields]]
    prefix: ClassVar[str]
    """Prefix of response ids."""
    limit_fields: ClassVar[Sequence[str]]
    """Synonymous fields for the number of new tokens."""
    default_limit: ClassVar[int | None] = None
    """Default number of new tokens; None: what fits the context."""
    prompt_field: ClassVar[str] = "prompt"
    alone = False
    """Whether the request only scores its prompt."""

    def __init__(self, body: Mapping[str, Any], service: Service) -> None:
        self.service, self.body = service, body
        self.id, self.created = new_id(self.prefix), int(time.time())
        self.fields: Any = parse(self.schema, body, service)
        named = read_model(self.fields.model, service)
        self.model = named if named in service.adapters else service.name  # as the response names it
        self.adapter: Model | None = service.adapters.get(named)
        self.n_top = self.read_n_top()
        self.constraint_field, constraint = self.fields.constraint  # "" without a constraint
        self.options = {**self._options(), **constraint}
        self.submissions = self.read_prompts()
        self.generations: list[Generation] = []  # one per prompt, after `start`

    def start(self) -> None:
        """Submit all prompts to the engine, or none, and prepare the response."""
        try:
            for options in self.submissions:
                self.generations.append(self.service.engine.submit(**options, adapter=self.adapter))
            self.prepare()
        except BaseException as error:
            self.cancel()
            if isinstance(error, SpecdecError):
                raise self.service.refusal(error, self.names) from error
            raise

    def cancel(self) -> None:
        """Cancel all texts."""
        for generation in self.generations:
            if not generation.done:
                generation.cancel()

    @abstractmethod
    def prepare(self) -> None:
        """Set up the conversion of generated text to the response, after submission."""

    @abstractmethod
    def read_n_top(self) -> int | None:
        """Return how many top tokens to report per position; None: no log-probabilities."""

    @abstractmethod
    def read_prompts(self) -> list[dict[str, Any]]:
        """Return the keyword arguments of `Engine.submit` for each prompt, or raise RequestError."""

    @abstractmethod
    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """Return the response after all texts have ended."""

    @abstractmethod
    def begin(self) -> list[bytes]:
        """Return the events before the first piece."""

    @abstractmethod
    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        """Return the events of a piece of a prompt's sample, or raise RequestError."""

    @abstractmethod
    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        """Return the events after the last piece of all texts."""

    def fail(self, error: Mapping[str, Any]) -> list[bytes]:
        """Return the events that end the stream with an error, given as a response body."""
        return [event(error)]

    @property
    def names(self) -> dict[str, str]:
        """Request field of each argument of `Engine.submit`."""
        constraints = dict.fromkeys(("schema", "regex", "grammar"), self.constraint_field)
        prompts = dict.fromkeys(("prompt", "messages"), self.prompt_field)
        return {"max_new_tokens": self.limit_fields[0], **prompts, **constraints}

    def _options(self) -> dict[str, Any]:
        """Return the shared keyword arguments of `Engine.submit`, without constraints."""
        fields, asked = self.fields, self.fields.speculative
        given = {name: getattr(fields, name) for name in SamplingFields.model_fields}
        sampling = {"temperature": 1.0, **self.service.sampling}
        sampling |= {name: value for name, value in given.items() if value is not None}
        for name, all_of_them in (("top_k", (-1, 0)), ("dry_penalty_last_n", (-1,))):
            if sampling.get(name) in all_of_them:  # no limit, in other servers
                sampling[name] = None
        prediction = None if fields.prediction is None else fields.prediction.content or None
        lists = {name: value for name, value in given.items() if isinstance(value, list | tuple)}
        check_prompt_size({"prediction": prediction or "", **lists}, self.service)
        return {
            **sampling, "max_new_tokens": self._limit(),
            "seed": None if fields.seed is None else fields.seed % 2**64,
            "stop": [*fields.stop, *fields.stop_token_ids], "ignore_eos": fields.ignore_eos,
            "include_stop_str_in_output": fields.include_stop_str_in_output,
            "logprobs": self.n_top, "logprobs_of": fields.logprobs_of,
            "speculative": None if asked is None else asked.settings,
            "prediction": prediction,
        }  # fmt: skip

    def _limit(self) -> int | None:
        asked: dict[str, int | None] = {name: getattr(self.fields, name) for name in self.limit_fields}
        given = {name: n for name, n in asked.items() if n is not None}
        if len(set(given.values())) > 1:
            numbers = " and ".join(map(str, given.values()))
            raise refused(self.limit_fields[0], f"{' and '.join(given)} are {numbers}; expected one of them")
        if given:
            return next(iter(given.values()))
        defaults = (self.default_limit, self.service.limits.n_new_tokens)
        return min((n for n in defaults if n is not None), default=None)

    def choice(self, generation: Generation, **options: Any) -> Choice:
        """Make a `Choice` for a generation."""
        stops, scored = self.options["stop"], self.n_top is not None
        return Choice(self.service, generation.prompt_ids, stops=stops, scored=scored, **options)


class ConversationRequest(TextRequest):
    """Request for replies in a conversation."""

    prompt_field = "messages"

    def read_prompts(self) -> list[dict[str, Any]]:
        fields, service = self.fields, self.service
        self.messages = self.read_messages()
        self.tools: Tools | None = fields.offered
        if service.target.chat_template is None:
            raise RequestError(
                "the model has no chat template; expected a request to /v1/completions, or a server started "
                "with --chat-template",
                code="unsupported_model",
            )
        forced = self._forced_call()
        tools = None if self.tools is None or self.tools.choice == "none" else self.tools.for_template
        template = service.target.chat_template
        self.variables: dict[str, Any] = fields.variables(template, tools=tools is not None)
        begins, continues = map(self.variables.get, ("add_generation_prompt", "continue_final_message"))
        try:
            self.own_text = begins_reply(self.messages, begins, continues)
        except SpecdecError as error:
            raise self.service.refusal(error) from error
        given = {"tools": tools or [], "chat_template_kwargs": self.variables}
        check_prompt_size({self.prompt_field: self.messages, **given}, service)
        prompt = {"messages": self.messages, "tools": tools, "chat_template_kwargs": self.variables or None}
        return [{**self.options, **forced, "n": getattr(fields, "n", 1), **prompt}]

    def reply(self, generation: Generation, *, rounds: bool = False) -> Choice:
        """Make a `Choice` for a reply."""
        continued = None if self.own_text else text_of_message(self.messages[-1])
        return self.choice(
            generation, own_text=self.own_text, reply=True, tools=self.tools, continued=continued,
            rounds=rounds,
        )  # fmt: skip

    @abstractmethod
    def read_messages(self) -> list[dict[str, Any]]:
        """Return the conversation as messages for chat templates."""

    def _forced_call(self) -> dict[str, Any]:
        """Return the constraint of a reply that must call a tool, else an empty dict."""
        if self.tools is None or self.tools.choice in ("none", "auto"):
            return {}
        if self.constraint_field:
            message = f"tool_choice requires a tool call and {self.constraint_field} a structured output"
            raise refused("tool_choice", f"{message}; expected one of them")
        self.constraint_field, schema = "tools", self.tools.schema()
        n_bytes, most = len(json_bytes(schema)), self.service.limits.n_constraint_bytes
        if n_bytes > most:
            message = f"the schema of the tool call has {n_bytes} bytes; expected at most {most}"
            raise refused("tool_choice", message)
        return {"schema": schema}
