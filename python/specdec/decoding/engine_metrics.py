"""What an engine has done so far, as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

from specdec.trace import Round


@dataclass(kw_only=True)
class EngineMetrics:
    """A look at an `Engine`: what it holds now, and counters since it was made.

    Attributes
    ----------
    n_slots, n_running, n_reading, n_waiting : int
        Slots; texts that take rounds, prompts that are being read, texts that wait for a slot.
    n_submitted, n_refused, n_failed : int
        Requests that were taken, that were refused as too many (`BusyError`), and that ended with an error.
    n_finished : dict of str to int
        Texts by their `finish_reason`.
    n_prompt_tokens, n_cached_tokens, n_new_tokens : int
        Tokens of prompts that got a slot, those of them that a prompt cache had, and new tokens.
    n_rounds, n_drafts : int
        Rounds of the batch, and rounds of single texts that had draft tokens.
    n_draft_tokens, n_accepted_tokens, n_prediction_accepted, n_prediction_rejected : int
        Draft tokens, those that were accepted, and what became of those copied from predictions.
    accepted_at : list of int
        Rounds of single texts in which draft token 1, 2, … in a row was accepted.
    prefill_s, draft_s, verify_s, other_s : float
        Seconds of the engine's thread.
    first_token_s, queue_s : tuple of (int, float)
        How many, and the sum of seconds from submitting to a request's first token, and to its first slot.
    """

    n_slots: int = 0
    n_running: int = 0
    n_reading: int = 0
    n_waiting: int = 0
    n_submitted: int = 0
    n_refused: int = 0
    n_failed: int = 0
    n_finished: dict[str, int] = field(default_factory=dict)
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_new_tokens: int = 0
    n_rounds: int = 0
    n_drafts: int = 0
    n_draft_tokens: int = 0
    n_accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    n_prediction_accepted: int = 0
    n_prediction_rejected: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    first_token_s: tuple[int, float] = (0, 0.0)
    queue_s: tuple[int, float] = (0, 0.0)


class Counters(EngineMetrics):
    """What an engine counts; counters of requests are written under the engine's lock."""

    def metrics(self, **now: int) -> EngineMetrics:
        """A copy, with what the engine holds now."""
        return EngineMetrics(**deepcopy(vars(self)) | now)

    def count_wait(self, name: Literal["first_token_s", "queue_s"], seconds: float) -> None:
        """The first token, or the first slot, of a request, so long after it came."""
        n, sum_s = getattr(self, name)
        setattr(self, name, (n + 1, sum_s + seconds))

    def count_round(self, round_: Round, copied: tuple[int, int]) -> None:
        """A round of one text, and what became of draft tokens that were copied from a prediction."""
        self.n_new_tokens += round_.kept
        self.n_prediction_accepted += copied[0]
        self.n_prediction_rejected += copied[1]
        if not round_.drafted:
            return
        self.n_drafts += 1
        self.n_draft_tokens += round_.n_drafted
        self.n_accepted_tokens += round_.n_accepted
        self.accepted_at += [0] * (round_.n_accepted - len(self.accepted_at))
        for i in range(round_.n_accepted):
            self.accepted_at[i] += 1

    def count_times(self, rounds: Iterable[tuple[object, Round]]) -> None:
        """The times of a step's rounds, by sequence: each of a round has those of the whole batch."""
        seen: set[object] = set()  # sequences of the round
        for sequence, round_ in rounds:
            if not seen or sequence in seen:
                seen.clear()
                self.n_rounds += 1
                self.draft_s += round_.draft_s
                self.verify_s += round_.verify_s
                self.other_s += round_.other_s
            seen.add(sequence)
