"""The answer that completions and chats have in common: a list of choices, whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdec import _core
from specdec.decoding.engine import Generation
from specdec.decoding.result import Result
from specdec.serve.event_stream import EventWriter, event
from specdec.serve.text_request import TextRequest
from specdec.serve.usage import Usage

__all__ = ["ChunkWriter", "choices_answer"]

FINGERPRINT: Final = f"specdec-{_core.__version__}-{_core.kernels()}"
"""What makes the texts: with another one equal seeds may give other texts."""


def choices_answer(
    request: TextRequest, kind: str, choices: list[dict[str, Any]], usage: Usage | None = None
) -> dict[str, Any]:
    """An answer, or a chunk of one.

    Parameters
    ----------
    request : TextRequest
    kind : str
        What the API calls such an answer.
    choices : list of dict
    usage : Usage, optional
        What the texts cost; None: it is not said.
    """
    found = {
        "id": request.id,
        "object": kind,
        "created": request.created,
        "model": request.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
    }
    return found if usage is None else {**found, "usage": usage.completion(), **usage.figures()}


class ChunkWriter(EventWriter):
    """Writes an answer in chunks, of which the last may say what the texts cost.

    Parameters
    ----------
    request : TextRequest
    kind : str
        What the API calls such a chunk.
    generations : sequence of Generation
    """

    def __init__(self, request: TextRequest, kind: str, generations: Sequence[Generation]) -> None:
        self._request, self._kind, self._generations = request, kind, generations

    @property
    def n_reasoning_tokens(self) -> int:
        """Tokens of reasoning in all texts."""
        return 0

    def chunk(self, *choices: dict[str, Any], usage: Usage | None = None) -> bytes:
        """The event of a chunk."""
        return event(choices_answer(self._request, self._kind, list(choices), usage))

    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        """See `EventWriter.end`."""
        last = []
        if self._request.fields.include_usage:
            last = [self.chunk(usage=Usage(self._generations, results, self.n_reasoning_tokens))]
        return [*last, event("[DONE]")]

    def fail(self, error: Mapping[str, Any]) -> list[bytes]:
        """See `EventWriter.fail`."""
        return [event(error)]
