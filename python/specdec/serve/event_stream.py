"""Answers as streams of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.engine import Piece
from specdec.decoding.result import Result
from specdec.serve.json_body import json_bytes

__all__ = ["EventWriter", "event"]


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
