"""A request for texts, whatever its endpoint."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdec import _core
from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.serve.json_body import json_bytes
from specdec.serve.service import Service
from specdec.serve.text_fields import TextFields

__all__ = ["FINGERPRINT", "EventWriter", "TextRequest", "event", "new_id"]

FINGERPRINT: Final = f"specdec-{_core.__version__}-{_core.kernels()}"
"""What makes the texts: with another one equal seeds may give other texts."""


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


def event(value: Mapping[str, Any] | str, name: str | None = None) -> bytes:
    """An event of a stream, as server-sent events are written."""
    data = value.encode() if isinstance(value, str) else json_bytes(value)
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + data + b"\n\n"


class EventWriter(ABC):
    """Writes the events of a stream."""

    @abstractmethod
    def begin(self) -> list[bytes]:
        """Before the first piece."""

    @abstractmethod
    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        """What a piece of a prompt's sample becomes.

        Raises
        ------
        RequestError
        """

    @abstractmethod
    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        """After the last piece of all texts."""

    @abstractmethod
    def fail(self, error: Mapping[str, Any]) -> list[bytes]:
        """In place of what is still to come: an error, as the body of an answer."""


class TextRequest(ABC):
    """A request whose fields have been read.

    Attributes
    ----------
    service : Service
    fields : TextFields
    submissions : list of dict
        For each prompt the keyword arguments of `Engine.submit`.
    id : str
        Of the answer.
    created : int
        Seconds since 1970.
    """

    prefix: str
    fields: TextFields
    submissions: list[dict[str, Any]]

    def __init__(self, service: Service) -> None:
        self.service = service
        self.id = new_id(self.prefix)
        self.created = int(time.time())

    @abstractmethod
    def whole(self, generations: Sequence[Generation], results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """The answer when all texts have ended."""

    @abstractmethod
    def writer(self, generations: Sequence[Generation]) -> EventWriter:
        """What writes the answer as a stream."""
