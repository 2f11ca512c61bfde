"""What runs of a model take on this machine: t(M), and decoding with and without a draft."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from specdec import _core
from specdec.drafts import Bigram, Unigram
from specdec.generation import generate
from specdec.model import Model

__all__ = ["ForwardTimes", "forward_times", "sample_text", "speedups", "take_turns"]

Key = TypeVar("Key", bound=Hashable)

_WARM_UP = 3  # turns that are thrown away: caches, threads, the processor's clock
_TURNS = (5, 200)  # at least and at most
_ENOUGH_S = 2.0  # seconds after which the least number of turns is enough
_DRAFTED = 4  # tokens a round where a draft is timed, at most


@dataclass(frozen=True)
class ForwardTimes:
    """Median seconds of runs of target and draft, measured in turns.

    Attributes
    ----------
    target_s : dict of int to float
        Of the target, by the number M of positions in a run.
    draft_s : float
        Of the draft, for a token, in rounds of a few; 0 for a draft that the core does not run.
    """

    target_s: dict[int, float]
    draft_s: float

    @property
    def cost(self) -> float:
        """The cost coefficient c of Definition 3.7."""
        return self.draft_s / self.target_s[1]

    @property
    def verify_ratio(self) -> dict[int, float]:
        """t(M) / t(1) by M."""
        return {m: seconds / self.target_s[1] for m, seconds in self.target_s.items()}


def take_turns(jobs: Mapping[Key, Callable[[], float]]) -> dict[Key, float]:
    """Median of what each job returns, one after the other, again and again.

    The speed of a shared machine changes within seconds; jobs that take turns see the same changes.
    """
    values: dict[Key, list[float]] = {key: [] for key in jobs}
    for _ in range(_WARM_UP):
        for job in jobs.values():
            job()
    fewest, most = _TURNS
    begun = time.perf_counter()
    for turn in range(most):
        if turn >= fewest and time.perf_counter() - begun > _ENOUGH_S:
            break
        for key, job in jobs.items():
            values[key].append(job())
    return {key: statistics.median(found) for key, found in values.items()}


def forward_times(
    target: Model,
    draft: Model | Unigram | Bigram | None,
    ids: Sequence[int],
    *,
    max_rows: int,
    n_threads: int,
) -> ForwardTimes:
    """Time runs of the target on M = 1, ..., max_rows positions, and a draft in its rounds, in turns.

    Parameters
    ----------
    target : Model
    draft : Model, Unigram, Bigram or None
        None counts as 0 seconds.
    ids : sequence of int
        A text: what stands in the caches, then at least `max_rows` tokens that are run.
    max_rows : int
    n_threads : int

    Returns
    -------
    ForwardTimes
    """
    cache, rows = ids[:-max_rows], ids[-max_rows:]
    n_cache = min(len(cache), target.config.n_ctx - max_rows)
    decoder = _core.Decoder(target.core, capacity=n_cache + max_rows, max_nodes=max_rows, n_threads=n_threads)
    if n_cache:
        decoder.prefill(list(cache[:n_cache]))

    def run(m: int) -> float:
        tokens, parents = list(rows[:m]), list(range(-1, m - 1))
        begun = time.perf_counter()
        decoder.forward(tokens, parents)
        return time.perf_counter() - begun

    jobs: dict[int, Callable[[], float]] = {m: partial(run, m) for m in range(1, max_rows + 1)}
    if draft is not None:
        jobs[0] = _Drafting(target, draft, ids, min(_DRAFTED, max_rows - 1), n_threads).token_s
    times = take_turns(jobs)
    draft_s = times.pop(0, 0.0)
    return ForwardTimes(times, draft_s)


class _Drafting:
    """Rounds of a pair, one a turn, for what the draft takes in them.

    A round's first draft finds in the processor's caches what the target has left of its weights, the others
    what the first one has put there: a run of the draft by itself would show neither.
    """

    def __init__(
        self, target: Model, draft: Model | Unigram | Bigram, ids: Sequence[int], gamma: int, n_threads: int
    ) -> None:
        n_ctx = min(model.config["n_ctx"] for model in (target, draft) if isinstance(model, Model))
        self._options: dict[str, Any] = {
            "gamma": gamma, "max_new_tokens": n_ctx, "sampling": {"temperature": 0.0},
            "draft_sampling": {"temperature": 0.0}, "seeds": [(0, 0)], "n_threads": n_threads,
        }  # fmt: skip
        self._arguments = (target.core, draft.core, [list(ids[: max(1, n_ctx // 2)])])
        self._session: _core.Session | None = None

    def token_s(self) -> float:
        """Seconds of the next round's drafting, for a token of it; NaN if the context has no room for one."""
        for session in (self._session, None):
            if session is None:  # a new one; the old one's context is full
                session = self._session = _core.Session(*self._arguments, **self._options)
                session.prefill()
            for record in session.round():
                if record["drafted"]:
                    return record["draft_s"] / len(record["drafted"])
        return math.nan


def sample_text(
    target: Model, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], n_rows: int
) -> list[int]:
    """A text for timing: as long as a prompt and half its continuation on average, and `n_rows` more."""
    whole = [token for pair in zip(prompts, tokens, strict=True) for part in pair for token in part]
    typical = round(statistics.mean(len(p) + len(t) / 2 for p, t in zip(prompts, tokens, strict=True)))
    length = min(typical, target.config.n_ctx - n_rows) + n_rows
    return (whole * math.ceil(length / len(whole)))[:length]


def speedups(
    target: Model,
    draft: Model | Unigram | Bigram,
    work: Sequence[tuple[Sequence[int], int]],
    *,
    gammas: Sequence[int],
    repeats: int,
    seed: int,
    done: Callable[[int], object],
    lenience: float = 1.0,
    **options: Any,
) -> dict[int, float]:
    """Speed of speculative over plain decoding, by gamma, both by the clock on the wall.

    In every repetition plain decoding and each gamma take their turns on the same prompts; what counts is the
    time of `specdec.generate` for a new token, without the prompts' prefill, and of all repetitions the
    median ratio.

    Parameters
    ----------
    target : Model
    draft : Model, Unigram or Bigram
    work : sequence of (token ids of a prompt, new tokens)
    gammas : sequence of int
        Each at least 1.
    repeats : int
    seed : int
        Repetition i uses seed + i.
    done : callable
        Told how many new tokens were made, after every prompt.
    lenience : float, default 1.0
        Of speculative decoding; plain decoding is exact.
    **options
        Of `specdec.generate`.
    """

    def seconds_a_token(gamma: int, repetition: int) -> float:
        seconds, n_tokens = 0.0, 0
        for i, (prompt, n) in enumerate(work):
            begun = time.perf_counter()
            result = generate(
                target,
                draft if gamma else None,
                prompt,
                gamma=gamma,
                max_new_tokens=n,
                seed=[(seed + repetition, i)],
                lenience=lenience if gamma else 1.0,
                **options,
            )
            seconds += time.perf_counter() - begun - result.trace.prefill_s
            n_tokens += len(result.tokens)
            done(n)
        return seconds / n_tokens

    ratios: dict[int, list[float]] = {gamma: [] for gamma in gammas}
    for repetition in range(repeats):
        times = {gamma: seconds_a_token(gamma, repetition) for gamma in (0, *gammas)}
        for gamma in gammas:
            ratios[gamma].append(times[0] / times[gamma])
    return {gamma: statistics.median(found) for gamma, found in ratios.items()}
