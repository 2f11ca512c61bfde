"""Choices of a response during generation, their log-probabilities, and usage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.display.rounds import Figure
from specdec.models.reasoning_format import ReasoningPosition
from specdec.models.tokenizer import StreamDecoder
from specdec.serve.bodies import RequestError
from specdec.serve.reply_readers import (
    MarkedText,
    Reasoning,
    ReplyReader,
    Said,
    ToolCall,
    Tools,
)
from specdec.serve.reply_reading import reply_reader
from specdec.serve.service import Service, TokenTexts
from specdec.trace import Round, Trace

_LEAST: Final = -9999.0
"""Replacement for ln 0, as JSON has no infinity."""

ScoredToken = tuple[int, int, float | None, list[tuple[int, float]]]
"""(index of a token's first character, id, ln p, top tokens); ln p is None for a prompt's first token."""

_REASONS: Final = {"stop": "stop", "length": "length", "context": "length"}
_OWN_TOKENS: Final = {"correction": "recovered", "bonus": "bonus", "target": "target"}
"""Type of a round's last token in `rounds`, by its origin in the trace."""


@dataclass(frozen=True)
class Delta:
    """New part of a choice."""

    said: list[Said] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)  # if log-probabilities were requested
    finish_reason: str | None = None  # in the API's words, with the last part
    stop: str | int | None = None  # the requested stop string or stop id that ended the text
    rounds: list[dict[str, Any]] | None = None  # if requested

    @property
    def end(self) -> dict[str, Any]:
        """Fields of a choice besides its text and log-probabilities."""
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop, **rounds}

    @property
    def text(self) -> str:
        return "".join(one for one in self.said if isinstance(one, str))

    @property
    def reasoning(self) -> str:
        return "".join(one.text for one in self.said if isinstance(one, Reasoning))

    @property
    def calls(self) -> list[ToolCall]:
        return [one for one in self.said if isinstance(one, ToolCall)]


def _finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else _LEAST


def chat_logprobs(texts: TokenTexts, scored: Iterable[ScoredToken]) -> list[dict[str, Any]]:
    """Format log-probabilities for chat completions and responses."""

    def entry(token: int, log_prob: float) -> dict[str, Any]:
        return {"token": texts.text(token), "logprob": _finite(log_prob), "bytes": list(texts.utf8(token))}

    return [
        {**entry(token, log_prob or 0.0), "top_logprobs": [entry(*pair) for pair in top]}
        for _, token, log_prob, top in scored
    ]


def legacy_logprobs(texts: TokenTexts, scored: Iterable[ScoredToken], n_top: int) -> dict[str, Any]:
    """Format log-probabilities for completions: four lists with an entry per token."""
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for begin, token, log_prob, top in scored:
        found["tokens"].append(texts.key(token))
        found["text_offset"].append(begin)
        found["token_logprobs"].append(None if log_prob is None else _finite(log_prob))
        if log_prob is None:
            found["top_logprobs"].append(None)
            continue
        named: dict[str, float] = {}
        for other, of_other in [(token, log_prob), *top[:n_top]]:
            if other == token and named:
                continue  # already there
            name = texts.key(other)
            named[name if name not in named else f"token_id:{other}"] = _finite(of_other)
        found["top_logprobs"].append(named)
    return found


class Choice:
    """One text of a response; a `reply` is parsed for reasoning and calls of `tools`.

    `own_text`: does not continue the prompt; `continued`: the reply's text in the prompt; `scored`: with
    log-probabilities; `begin`: characters before it; `rounds`: with the rounds of its tokens; `names`: with
    names of special tokens.
    """

    def __init__(
        self, service: Service, prompt_ids: Sequence[int], *, own_text: bool, stops: Sequence[str | int] = (),
        scored: bool = False, reply: bool = False, tools: Tools | None = None, continued: str | None = None,
        begin: int = 0, rounds: bool = False, names: bool = False,
    ) -> None:  # fmt: skip
        ids, tokenizer = list(prompt_ids), service.tokenizer
        continuing = not own_text and bool(tokenizer.decode(ids[-16:]) or tokenizer.decode(ids))
        decoder = partial(StreamDecoder, tokenizer, continuing=continuing, names=names)
        self.n_calls = 0
        self._n_characters, self._stops = begin, frozenset(stops)
        self._decoder, self._end = decoder(), begin  # token by token, not cut at stop strings
        self._held: list[ScoredToken] | None = [] if scored else None  # tokens whose text is pending
        self._figure = Figure(tokenizer, ids, decoder=decoder()) if rounds else None
        self._reader: ReplyReader | None = None
        self._position: ReasoningPosition | None = None  # after the tokens so far
        if reply:
            if (how := service.target.reasoning_format) is not None:
                self._position = how.position(ids, continued)
            name, begun = service.tool_format, service.begun_message(ids)
            self._reader = reply_reader(tools, name, service.marks, begun, self._position)
            self._marked = MarkedText(decoder(), service.marks)

    @property
    def n_reasoning_tokens(self) -> int:
        """Number of tokens of reasoning so far."""
        return 0 if self._position is None else self._position.n_tokens

    def feed(self, piece: Piece) -> Delta:
        """Take a piece of the text; raise RequestError if it was cancelled or failed."""
        if piece.finish_reason == "cancelled":
            raise RequestError("the server stopped before the text was complete", status=503)
        final = piece.finish_reason is not None
        self._n_characters += len(piece.text)
        said: list[Said] = [piece.text] if piece.text else []
        if self._reader is not None:
            said = self._reader.feed(self._marked.feed(piece.text, piece.tokens))
            if final:
                said += self._reader.finish()
        scored = self._read_tokens(piece)
        figure = self._figure
        rounds = None if figure is None else [_shown_round(figure, one) for one in piece.rounds]
        delta = Delta(said, scored, rounds=rounds)
        self.n_calls += len(delta.calls)
        if not final:
            return delta
        reason = _REASONS.get(str(piece.finish_reason))
        if reason is None:
            raise RequestError("the text is incomplete", status=500)
        if reason == "stop" and self.n_calls:
            reason = "tool_calls"
        return Delta(said, scored, reason, piece.stop if piece.stop in self._stops else None, rounds)

    def _read_tokens(self, piece: Piece) -> list[ScoredToken]:
        """Count reasoning tokens; return the scored tokens that begin in the text so far.

        Tokens after the end of the text (cut at a stop string, or an end token) are dropped.
        """
        if self._position is not None:
            for token in piece.tokens:
                self._position = self._position.after(token)
        if self._held is None:
            return []
        for i, token in enumerate(piece.tokens):
            text = self._decoder.feed([token])
            if piece.logprobs is not None:
                top = list(piece.top_logprobs[i]) if piece.top_logprobs else []
                self._held.append((self._end, token, float(piece.logprobs[i]), top))
            self._end += len(text)
        held = self._held
        n = len(held)
        if piece.finish_reason in (None, "stop"):
            n = next((i for i, one in enumerate(held) if one[0] >= self._n_characters), n)
        self._held = held[n:]
        return held[:n]


def _shown_round(figure: Figure, round_: Round) -> dict[str, Any]:
    """Format the next round of a text: counts, and tokens in order, a rejected one before the target's."""
    pieces = [piece for piece in figure.pieces(round_) if piece.status != "cut"]
    types = {"accepted": "accepted", "target": _OWN_TOKENS[round_.origin[-1]]}
    return {
        "num_draft_tokens": round_.n_drafted, "num_accepted_draft_tokens": round_.n_accepted,
        "draft_depth": round_.depth,
        "tokens": [
            {"id": one.token, "text": one.text, "type": types.get(one.status, "rejected")} for one in pieces
        ],
    }  # fmt: skip


def piece_of(index: int, result: Result) -> Piece:
    """Convert a result to one piece."""
    log_probs = None if result.logprobs is None else result.logprobs.tolist()
    return Piece(
        index, result.text or "", list(result.tokens), log_probs, result.top_logprobs, result.finish_reason,
        result.stop, list(result.trace.rounds),
    )  # fmt: skip


class Usage:
    """Token counts, timings and acceptance of a finished request."""

    def __init__(
        self, generations: Sequence[Generation], results: Sequence[Sequence[Result]], n_reasoning: int = 0
    ) -> None:
        self._generations = generations
        self._results = [result for samples in results for result in samples]
        self._n_prompt = sum(len(generation.prompt_ids) for generation in generations)
        self._n_cached = sum(generation.n_cached_tokens or 0 for generation in generations)
        self._n_reasoning = n_reasoning
        self._n_new = sum(len(result.tokens) for result in self._results)

    def completion(self) -> dict[str, Any]:
        """Return `usage` of completions and chat completions."""
        uses = [one.prediction for one in self._generations if one.prediction is not None]
        details: dict[str, Any] = {
            "accepted_prediction_tokens": sum(use.n_accepted for use in uses),
            "rejected_prediction_tokens": sum(use.n_rejected for use in uses),
            **self._drafts(),
        }
        if self._n_reasoning:
            details["reasoning_tokens"] = self._n_reasoning
        return {
            "prompt_tokens": self._n_prompt, "completion_tokens": self._n_new,
            "total_tokens": self._n_prompt + self._n_new,
            "prompt_tokens_details": {"cached_tokens": self._n_cached}, "completion_tokens_details": details,
        }  # fmt: skip

    def response(self) -> dict[str, Any]:
        """Return `usage` of responses."""
        return {
            "input_tokens": self._n_prompt,
            "input_tokens_details": {"cached_tokens": self._n_cached, "cache_write_tokens": 0},
            "output_tokens": self._n_new,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning},
            "total_tokens": self._n_prompt + self._n_new,
        }

    def _drafts(self) -> dict[str, Any]:
        """Return counts of draft tokens, and of accepted ones by position."""
        rounds = [one for result in self._results for one in result.trace.rounds]
        n_drafted = sum(one.n_drafted for one in rounds)
        n_accepted = sum(one.n_accepted for one in rounds)
        n_positions = max((one.n_accepted for one in rounds), default=0)
        return {
            "accepted_draft_tokens": n_accepted,
            "rejected_draft_tokens": n_drafted - n_accepted,
            "accepted_draft_tokens_per_pos": [
                sum(one.n_accepted > position for one in rounds) for position in range(n_positions)
            ],
        }

    def message(self) -> dict[str, Any]:
        """Return `usage` of messages, where input tokens are those not in the cache."""
        return {
            "input_tokens": self._n_prompt - self._n_cached, "cache_read_input_tokens": self._n_cached,
            "cache_creation_input_tokens": 0, "output_tokens": self._n_new,
            "output_tokens_details": {"thinking_tokens": self._n_reasoning},
        }  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Return `timings` as in llama.cpp and `metrics` as in vLLM."""
        return {"timings": self._timings(), "metrics": {"speculative_decoding": self._metrics()}}

    def _timings(self) -> dict[str, Any]:
        """Return milliseconds and rates of prefill and generation."""
        begun, first, ended = (
            [moment for one in self._generations if (moment := getattr(one.times, name)) is not None]
            for name in ("started", "first_token", "ended")
        )
        prompt_ms = 1e3 * (max(first) - min(begun)) if begun and first else 0.0
        new_ms = 1e3 * (max(ended) - min(first)) if first and ended else 0.0
        n_read = self._n_prompt - self._n_cached
        found: dict[str, Any] = {"cache_n": self._n_cached}
        for name, n, ms in (("prompt", n_read, prompt_ms), ("predicted", self._n_new, new_ms)):
            found[f"{name}_n"], found[f"{name}_ms"] = n, ms
            found[f"{name}_per_token_ms"] = ms / max(n, 1)
            found[f"{name}_per_second"] = 1e3 * n / ms if ms else 0.0
        found["draft_n"] = sum(result.trace.n_drafted for result in self._results)
        found["draft_n_accepted"] = sum(result.trace.n_accepted for result in self._results)
        return found

    def _metrics(self) -> dict[str, Any]:
        """Return acceptance over rounds with draft tokens; a tree counts by its depth."""
        rounds = [one for result in self._results for one in result.trace.rounds if one.n_drafted > 0]
        n_drafted = sum(one.n_drafted for one in rounds)
        n_accepted = sum(one.n_accepted for one in rounds)
        histogram = Trace(rounds).acceptance_histogram
        return {
            "mean_acceptance_length": 1.0 + n_accepted / len(rounds) if rounds else 1.0,
            "draft_acceptance_rate": n_accepted / n_drafted if n_drafted else 0.0,
            "acceptance_histogram": histogram,
            "num_spec_steps": len(rounds), "num_accepted_draft_tokens": n_accepted,
            "num_draft_tokens": n_drafted, "num_spec_tokens": max(len(histogram) - 1, 0),
        }  # fmt: skip
