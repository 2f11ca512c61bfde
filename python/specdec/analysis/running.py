"""What runs of a draft came to, counted: for drafts of every kind, with a law of their own or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.analysis.speedup import TimedRuns
from specdec.analysis.statistics import mean_interval
from specdec.decoding.generate import generate
from specdec.decoding.result import Result
from specdec.drafts import Draft
from specdec.models.model import Model, Prompt
from specdec.trace import Trace
from specdec.verification.sampling import Sampling

__all__ = ["EQUALS_PLAIN", "NOTHING_DRAFTED", "TREES", "RunFigures", "figures_of", "run_texts"]

TREES = "it drafts trees, with several guesses for a position; alpha is that of one guess"
NOTHING_DRAFTED = "it has drafted nothing"
EQUALS_PLAIN = "= plain (drafted nothing)"
"""The speed-up of such a draft in a table: what was timed is plain decoding twice."""


@dataclass(frozen=True)
class RunFigures:
    """Counts of the rounds of some texts that were decoded in one way.

    Attributes
    ----------
    n_tokens, n_calls, n_drafted, n_accepted : int
        New tokens, runs of the target, guesses, accepted guesses.
    tokens_per_call, tokens_low, tokens_high : float
        New tokens per run of the target, and its 95 % confidence interval. Of all tokens a share of n_calls /
        n_tokens is the last of its round, and the interval is that of this share.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate at the positions that were verified (Corollary 3.6), and its 95 % confidence
        interval. None where a position had several guesses or nothing was drafted.
    by_position : tuple of float
        Of the rounds that drafted so far: share that accepted the first, second, ... guess of a path.
    reason : str
        Why alpha is None; empty if it is not.
    """

    n_tokens: int
    n_calls: int
    n_drafted: int
    n_accepted: int
    tokens_per_call: float
    tokens_low: float
    tokens_high: float
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    by_position: tuple[float, ...]
    reason: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> RunFigures:
        """The figures of some texts."""
        texts = [result.trace for result in results]
        rounds = Trace([one for text in texts for one in text.rounds])
        low, high = mean_interval([_ends(text) for text in texts])
        reason = NOTHING_DRAFTED if not rounds.n_verified else ""
        if any(one.depth != one.n_drafted for one in rounds.rounds):
            reason = TREES
        alpha = interval = None
        if not reason:
            alpha = rounds.acceptance_rate
            interval = mean_interval([np.array([b for r in text.rounds for b in r.betas]) for text in texts])
        return cls(
            n_tokens=rounds.n_tokens,
            n_calls=rounds.n_calls,
            n_drafted=rounds.n_drafted,
            n_accepted=rounds.n_accepted,
            tokens_per_call=rounds.tokens_per_call,
            tokens_low=1.0 / high,
            tokens_high=1.0 / low if low > 0.0 else float("inf"),
            alpha=alpha,
            alpha_low=interval and interval[0],
            alpha_high=interval and interval[1],
            by_position=tuple(rounds.acceptance_by_position),
            reason=reason,
        )


def _ends(text: Trace) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of each new token of a text: 1 if it is the last of its round, else 0."""
    ends = np.zeros(text.n_tokens)
    ends[np.cumsum([one.kept for one in text.rounds if one.kept], dtype=np.int64) - 1] = 1.0
    return ends


def figures_of(way: TimedRuns, sampling: Sampling) -> RunFigures:
    """Counts of timed runs. Greedy ones give the same text in each turn, of which one counts."""
    return RunFigures.of(way.turns[0] if sampling.greedy else way.results)


def run_texts(
    target: Model,
    draft: Model | Draft,
    work: Sequence[tuple[Prompt, int]],
    *,
    seed: int,
    done: Callable[[int], object] = lambda n: None,
    **options: Any,
) -> list[Result]:
    """What becomes of prompts that are continued one after the other, beginning with a snapshot of the draft.

    Parameters
    ----------
    target : Model
    draft : Model or Draft
    work : sequence of (prompt, new tokens)
    seed : int
        Prompt i has the key (seed, i).
    done : callable, optional
        Told how many new tokens were asked for, after every run.
    **options
        Of `specdec.generate`.
    """
    drafting = draft.snapshot() if isinstance(draft, Draft) else draft
    results = []
    for i, (prompt, n) in enumerate(work):
        results.append(generate(target, drafting, prompt, max_new_tokens=n, seed=[(seed, i)], **options))
        done(n)
    return results
