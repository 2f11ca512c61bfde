"""What has come of one sequence: its new tokens and text, and where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specdec.decoding.beginning import Beginning
from specdec.decoding.result import Result
from specdec.decoding.stopping import FinishReason, StopRules, StopScanner
from specdec.models.model import Model
from specdec.models.score import Score, top_pairs
from specdec.models.tokenizer import StreamDecoder
from specdec.trace import Round, Trace

if TYPE_CHECKING:
    from specdec._core import RoundRecord

__all__ = ["SequenceState"]


class SequenceState:
    """The new text of one sequence so far, and where it ends.

    That is decided token by token, in the order of the tokens, and never by the rounds they came in; so
    speculative and plain decoding end alike.

    Parameters
    ----------
    decoder : StreamDecoder or None
        Turns the tokens into text; None where there is no tokenizer.
    stop : StopRules
    limit : int
        New tokens at most.
    limit_reason : str
        The finish reason when there are that many.
    """

    def __init__(
        self, decoder: StreamDecoder | None, stop: StopRules, limit: int, limit_reason: FinishReason
    ) -> None:
        self.tokens: list[int] = []
        self.prefill_s = 0.0  # of the prompts that were read together with this one
        self.n_cached = 0  # tokens of the prompt that a prompt cache had
        self.rounds: list[Round] = []
        self.logits: list[NDArray[np.float32]] = []
        self.laws: list[tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]] = []
        self.finish_reason: FinishReason | None = None
        self.stop: str | int | None = None
        self._decoder = decoder
        self._stop_ids, self._stop_names, self._spelling = stop.ids, stop.names, stop.spelling
        self._scanner = StopScanner(stop.strings, stop.spelling)
        self._ended_by_id = False
        self._n_read = 0  # tokens that have become text
        self._whole = False  # and the end of the text has
        self._limit = limit
        self._limit_reason = limit_reason

    def take(self, record: RoundRecord) -> Round:
        """Add a round's tokens up to where the text ends."""
        if self.finish_reason is not None:
            raise ValueError("the text has already ended")
        kept = 0
        for token in record["tokens"]:
            self._append(token)
            kept += 1
            if self.finish_reason is not None:
                break
        if record["complete"] and self.finish_reason is None:
            self.finish_reason = "stop"
            if self._scanner.strings:
                self._read()
        if record["logits"] is not None:
            self.logits.append(record["logits"][:kept])
        if record["laws"] is not None:
            log_probs, top, of_top = record["laws"]
            self.laws.append((log_probs[:kept], top[:kept], of_top[:kept]))
        round_ = Round(
            index=len(self.rounds),
            drafted=tuple(record["drafted"]),
            parents=tuple(record["parents"]),
            path=tuple(record["accepted"]),
            tokens=tuple(record["tokens"]),
            kept=kept,
            betas=tuple(record["betas"]),
            draft_s=record["draft_s"],
            verify_s=record["verify_s"],
            other_s=record["other_s"],
            experts=record["experts"],
        )
        self.rounds.append(round_)
        return round_

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        if token in self._stop_ids:
            self.finish_reason, self.stop = "stop", self._stop_names.get(token, token)
            self._ended_by_id = True
        elif self._scanner.strings:
            self._read()
        if self.finish_reason is None and len(self.tokens) >= self._limit:
            self.finish_reason = self._limit_reason
        if self.finish_reason is not None and self._scanner.strings:
            self._read()

    def _read(self) -> None:
        """Turn new tokens into text and look for stop strings; without such, when the text is wanted."""
        if self._decoder is None or self._whole or self._scanner.match is not None:
            return
        end = len(self.tokens) - self._ended_by_id  # a stop id is no text
        piece = self._decoded(self.tokens[self._n_read : end]) if end > self._n_read else ""
        self._n_read = end
        if self.finish_reason is not None:
            # What is left of an incomplete character is text too, so it may complete a stop string.
            piece += self._decoder.finish()
            self._whole = True
        if self._ended_by_id:
            piece += self._spelling.mark(self.tokens[-1])  # which may complete a longer stop string
        if self._scanner.feed(piece) is not None:
            self.finish_reason, self.stop = "stop", self._scanner.match

    def _decoded(self, tokens: list[int]) -> str:
        """The text that tokens complete, with the marks of special tokens where stop strings name some."""
        assert self._decoder is not None
        if not self._spelling:
            return self._decoder.feed(tokens)
        return "".join(self._spelling.mark(token) + self._decoder.feed([token]) for token in tokens)

    def take_text(self, *, final: bool = False) -> str:
        """Text that is new since the last call and cannot be taken back; `final`: no more text comes."""
        self._read()
        return self._scanner.take(final=final or self.finish_reason is not None)

    @property
    def text(self) -> str | None:
        """The text so far, None without a tokenizer."""
        if self._decoder is None:
            return None
        self._read()
        return self._scanner.text

    def result(
        self,
        target: Model,
        beginning: Beginning,
        seed: tuple[int, int],
        *,
        n_sequences: int,
        n_top: int | None = None,
        logits: bool = False,
        of_prompt: Score | None = None,
    ) -> Result:
        """The result of the text so far, an error where it has not ended.

        Parameters
        ----------
        target : Model
        beginning : Beginning
            What the text begins with.
        seed : tuple of int
            The key of its random numbers.
        n_sequences : int
            Of the batch.
        n_top : int, optional
            Of the most probable tokens of each new one; None: log-probabilities were not asked for.
        logits : bool, default False
            Whether those were.
        of_prompt : Score, optional
            What the target says of the prompt.
        """
        n_vocab = target.config["n_vocab"]
        return Result(
            text=self.text,
            tokens=self.tokens,
            finish_reason=self.finish_reason or "error",
            stop=self.stop,
            trace=Trace(self.rounds, prefill_s=self.prefill_s, n_sequences=n_sequences),
            prompt_ids=beginning.ids,
            source_ids=beginning.source,
            source_text=beginning.source_text(target),
            seed=seed,
            logits=(np.concatenate([np.empty((0, n_vocab), np.float32), *self.logits]) if logits else None),
            logprobs=None if n_top is None else np.concatenate([np.empty(0), *(law[0] for law in self.laws)]),
            top_logprobs=[pair for _, top, of in self.laws for pair in top_pairs(top, of)] if n_top else None,
            prompt_logprobs=None if of_prompt is None else of_prompt.log_probs,
            prompt_top_logprobs=None if of_prompt is None else of_prompt.top_logprobs,
            tokenizer=target.tokenizer,
            n_cached_tokens=self.n_cached,
        )
