"""One text of an answer as it comes: words, reasoning, calls of tools, log-probabilities, why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from specdec.decoding.beginning import Beginning
from specdec.decoding.engine import Piece
from specdec.decoding.result import Result
from specdec.models.tokenizer import MarkSpelling, StreamDecoder
from specdec.serve.call_formats import CALL_FORMATS, reply_reader
from specdec.serve.call_readers import ReplyReader
from specdec.serve.marked_text import MarkedText
from specdec.serve.request_error import RequestError
from specdec.serve.service import Service
from specdec.serve.token_texts import ScoredToken, TokenLedger
from specdec.serve.tool_calls import Reasoning, Said, ToolCall
from specdec.serve.tool_fields import Tools

__all__ = ["ChoiceText", "Delta", "piece_of"]

_REASONS: Final = {"stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True)
class Delta:
    """What is new of a text.

    Attributes
    ----------
    said : list of str, Reasoning and ToolCall
    scored : list of ScoredToken
        Tokens of the text, where log-probabilities were asked for.
    finish_reason : str or None
        In the API's words, with the last of the text.
    stop : str, int or None
        The stop string or stop id that was asked for and met.
    """

    said: list[Said] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: str | None = None
    stop: str | int | None = None

    @property
    def text(self) -> str:
        """The words."""
        return "".join(one for one in self.said if isinstance(one, str))

    @property
    def reasoning(self) -> str:
        """The reasoning."""
        return "".join(one.text for one in self.said if isinstance(one, Reasoning))

    @property
    def calls(self) -> list[ToolCall]:
        """The calls."""
        return [one for one in self.said if isinstance(one, ToolCall)]


class ChoiceText:
    """One text of an answer.

    Parameters
    ----------
    service : Service
    prompt_ids : sequence of int
    own_text : bool
        Whether it is a text by itself, as a reply is, and not the rest of the prompt.
    stops : sequence of str and int
        Those that the request names.
    scored : bool
        Whether log-probabilities were asked for.
    reply : bool
        Whether it is a reply in a conversation, which is taken apart by the model's format.
    tools : Tools or None
        Whose calls are looked for in a reply.
    begin : int
        Characters before the text, as offsets count them.
    """

    def __init__(
        self,
        service: Service,
        prompt_ids: Sequence[int],
        *,
        own_text: bool,
        stops: Sequence[str | int] = (),
        scored: bool = False,
        reply: bool = False,
        tools: Tools | None = None,
        begin: int = 0,
    ) -> None:
        ids = list(prompt_ids)
        beginning = Beginning(ids, [] if own_text else ids)
        target = service.target
        self._n_characters = begin
        self._stops = frozenset(stops)
        decoder = beginning.stream_decoder(target)
        marker = beginning.stream_decoder(target)
        assert decoder is not None and marker is not None
        self._ledger = TokenLedger(decoder, begin) if scored else None
        self._reader: ReplyReader | None = None
        self._reasoning: _ReasoningCount | None = None
        if reply:
            begun = service.begun_message(ids)
            self._reader = reply_reader(tools, service.tool_format, service.marks, begun)
            self._marked = MarkedText(marker, service.marks)
            if CALL_FORMATS[service.tool_format].begin:
                counted = beginning.stream_decoder(target)
                again = reply_reader(tools, service.tool_format, service.marks, begun)
                assert counted is not None and again is not None
                self._reasoning = _ReasoningCount(again, counted, service.marks)
        self._n_calls = 0

    @property
    def n_reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return 0 if self._reasoning is None else self._reasoning.n_tokens

    def feed(self, piece: Piece) -> Delta:
        """What a piece says.

        Raises
        ------
        RequestError
            The text was cancelled, which nobody who waits for it has asked for.
        """
        if piece.finish_reason == "cancelled":
            raise RequestError("the server was stopped before the text had come to its end", status=503)
        final = piece.finish_reason is not None
        self._n_characters += len(piece.text)
        said: list[Said] = [piece.text] if piece.text else []
        if self._reader is not None:
            said = self._reader.feed(self._marked.feed(piece.text, piece.tokens))
            if final:
                said += self._reader.finish()
        if self._reasoning is not None:
            self._reasoning.add(piece.tokens)
        scored: list[ScoredToken] = []
        if self._ledger is not None:
            self._ledger.add(piece.tokens, piece.logprobs or (), piece.top_logprobs or ())
            stopped = piece.finish_reason == "stop"
            scored = self._ledger.take(self._n_characters, stopped=stopped, final=final)
        delta = Delta(said, scored)
        self._n_calls += len(delta.calls)
        if not final:
            return delta
        reason = _REASONS.get(str(piece.finish_reason))
        if reason is None:
            raise RequestError("the text has not come to its end", status=500)
        if reason == "stop" and self._n_calls:
            reason = "tool_calls"
        stop = piece.stop if piece.stop in self._stops else None
        return Delta(said, scored, reason, stop)


class _ReasoningCount:
    """Counts the tokens of a reply that are reasoning: a reader of its own gets them one by one."""

    def __init__(self, reader: ReplyReader, decoder: StreamDecoder, spelling: MarkSpelling) -> None:
        self.n_tokens = 0
        self._reader, self._decoder, self._spelling = reader, decoder, spelling

    def add(self, tokens: Sequence[int]) -> None:
        """Count new tokens."""
        for token in tokens:
            mark, text = self._spelling.mark(token), self._decoder.feed([token])
            self._reader.feed(mark + text)
            self.n_tokens += self._reader.reasons and not mark


def piece_of(index: int, result: Result) -> Piece:
    """A whole text as one piece."""
    log_probs = None if result.logprobs is None else result.logprobs.tolist()
    return Piece(
        index=index,
        text=result.text or "",
        tokens=list(result.tokens),
        logprobs=log_probs,
        top_logprobs=result.top_logprobs,
        finish_reason=result.finish_reason,
        stop=result.stop,
    )
