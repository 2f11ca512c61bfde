"""A request for texts, whatever its endpoint."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from specdec.decoding.engine import Generation
from specdec.decoding.result import Result
from specdec.serve.choice_text import ChoiceText
from specdec.serve.event_stream import EventWriter
from specdec.serve.form_fields import read_response_format, read_structured_outputs
from specdec.serve.given_fields import GivenFields
from specdec.serve.server_limits import ServerLimits
from specdec.serve.service import Service
from specdec.serve.text_fields import read_model, read_text_fields
from specdec.serve.tool_fields import Tools

__all__ = ["TextRequest", "new_id"]


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


_FORMS: Final[Mapping[str, Callable[[GivenFields, ServerLimits], dict[str, Any]]]] = {
    "response_format": read_response_format,
    "structured_outputs": read_structured_outputs,
}
"""What reads the form of a text, by the field that asks for it."""


class TextRequest(ABC):
    """A request for texts whose fields have been read.

    Parameters
    ----------
    body : mapping
        What the client sent.
    service : Service

    Raises
    ------
    RequestError
        A field is wrong, unknown or not supported.

    Attributes
    ----------
    service : Service
    body : mapping
    model : str
        What the answer calls the model: its name, or that of the adapter which the request names.
    adapter : Model or None
        The target with that adapter.
    fields : TextFields
    n_top : int or None
        Most probable tokens in the place of each; None: no log-probabilities are wanted.
    submissions : list of dict
        For each prompt the keyword arguments of `Engine.submit`.
    id : str
        Of the answer.
    created : int
        Seconds since 1970.
    form_name : str
        The field that asks for a form; empty where none does.
    """

    prefix: str
    """What ids of answers begin with."""
    limit_names: Sequence[str]
    """What the field for the number of new tokens is called; several names of one thing."""
    default_limit: int | None = None
    """New tokens where that field is not given; None: as many as there is room for."""
    has_samples = True
    """Whether the request has `n`."""
    text_name = "prompt"
    """The field of what the text goes on with."""

    def __init__(self, body: Mapping[str, Any], service: Service) -> None:
        self.service, self.body = service, body
        self.id = new_id(self.prefix)
        self.created = int(time.time())
        fields = GivenFields(body)
        named = read_model(fields, service.names)
        self.model = named if named in service.adapters else service.name
        self.adapter = service.adapters.get(named)
        most = min(service.limits.n_top, service.target.config.n_vocab)
        self.n_top = self.read_n_top(fields, most)
        self.fields = read_text_fields(
            fields,
            service,
            limit_names=self.limit_names,
            default_limit=self.default_limit,
            least=self.read_least(fields),
            samples=self.has_samples,
        )
        self.form_name = ""
        self.submissions = self.read_texts(fields, self.read_form(fields))
        self.refuse_others(fields)
        fields.finish()

    @abstractmethod
    def read_n_top(self, fields: GivenFields, most: int) -> int | None:
        """Read which log-probabilities are wanted, at most so many for each place: `n_top`.

        Raises
        ------
        RequestError
        """

    def read_least(self, fields: GivenFields) -> int:
        """Read what says the smallest number of new tokens that may be asked for."""
        return 1

    def read_form(self, fields: GivenFields) -> dict[str, Any]:
        """Read the form that the text is to have: a keyword argument of `Engine.submit`, or none.

        Raises
        ------
        RequestError
        """
        limits = self.service.limits
        for name, read in _FORMS.items():
            if found := read(fields, limits):
                self.form_name = name
                return found
        return {}

    @abstractmethod
    def read_texts(self, fields: GivenFields, form: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Read what the texts begin with, and say what the engine is to write: `submissions`.

        Raises
        ------
        RequestError
        """

    @abstractmethod
    def refuse_others(self, fields: GivenFields) -> None:
        """Refuse by name the fields that the API knows and this server does not.

        Raises
        ------
        RequestError
        """

    @property
    def names(self) -> dict[str, str]:
        """The fields of this request by the arguments of `Engine.submit` that they became."""
        forms = dict.fromkeys(("schema", "regex", "grammar"), self.form_name)
        texts = dict.fromkeys(("prompt", "messages"), self.text_name)
        return {"max_new_tokens": self.limit_names[0], **texts, **forms}

    def options_with(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of `Engine.submit` that all texts have in common."""
        return {**self.fields.options, **form, "logprobs": self.n_top}

    def choice_text(
        self,
        generation: Generation,
        *,
        own_text: bool,
        reply: bool = False,
        tools: Tools | None = None,
        begin: int = 0,
    ) -> ChoiceText:
        """What one of the texts of a generation says; parameters as of `ChoiceText`."""
        return ChoiceText(
            self.service,
            generation.prompt_ids,
            own_text=own_text,
            stops=self.fields.options["stop"],
            scored=self.n_top is not None,
            reply=reply,
            tools=tools,
            begin=begin,
        )

    @abstractmethod
    def whole(self, generations: Sequence[Generation], results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """The answer when all texts have ended."""

    @abstractmethod
    def writer(self, generations: Sequence[Generation]) -> EventWriter:
        """What writes the answer as a stream."""
