"""What runs of a model take on this machine: t(M), and the time of a guess."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from specdec import _core
from specdec.analysis.arguments import RUN_BY_THE_CORE, Setup, has_distribution
from specdec.decoding.generate import generate
from specdec.decoding.prompts import PromptIds
from specdec.decoding.scheduler import SLICE_S
from specdec.drafts import Draft, Unigram
from specdec.drafts.model_draft import ModelDraft, as_draft
from specdec.models.model import Model
from specdec.trace import Round

Key = TypeVar("Key", bound=Hashable)

_WARM_UP = 3  # turns that are thrown away: caches, threads, the processor's clock
_TURNS = (5, 200)  # at least and at most
_ENOUGH_S = 2.0  # seconds after which the least number of turns is enough
_DRAFTED = 4  # tokens a round where a draft is timed, at most
_PROBED = 8  # tokens whose time is the estimate of a plan
_N_NEW = 256  # tokens of a text whose rounds are timed; then it begins again


@dataclass(frozen=True)
class ForwardTimes:
    """Median seconds of runs of the target, by their number of positions, and of the draft for a token.

    `draft_s` is measured in rounds of a few, and 0 for a draft that the core does not run.
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


def medians_of(jobs: Mapping[Key, Callable[[], float]]) -> dict[Key, float]:
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


def forward_times(setup: Setup, draft: Any, text: PromptIds, max_rows: int) -> ForwardTimes:
    """Time runs of the target on M = 1, ..., max_rows positions, and the draft, in rounds that take turns.

    Rounds, because a run of a model by itself costs less, and more: in a round a model finds in the
    processor's caches what the other has left of its weights, and no thread that has fallen asleep. They
    continue the first part of `text`. A draft that the core does not run, or that drafts otherwise at every
    position of a round, is not timed: the rounds are drafted at random.
    """
    target, n_threads = setup.target, setup.options.threads
    timed = isinstance(draft, RUN_BY_THE_CORE) and has_distribution(draft)
    drafting = draft if timed else Unigram([0], target.config["n_vocab"])
    rounds = {m: _Rounds(target, drafting, text, m - 1, n_threads) for m in range(1, max_rows + 1)}
    jobs: dict[int, Callable[[], float]] = {m: one.verify_s for m, one in rounds.items()}
    if timed:
        jobs[0] = rounds[min(_DRAFTED + 1, max_rows)].draft_s
    times = medians_of(jobs)
    draft_s = times.pop(0, 0.0)
    return ForwardTimes(times, draft_s)


class _Rounds:
    """Greedy rounds with so many drafts, some milliseconds of them at a time."""

    def __init__(
        self, target: Model, draft: Model | Draft, text: PromptIds, gamma: int, n_threads: int
    ) -> None:
        drafting = as_draft(target, draft)
        models = [target, drafting.model] if isinstance(drafting, ModelDraft) else [target]
        n_ctx = min(model.config["n_ctx"] for model in models)
        self._gamma = gamma
        self._settings = _core.Settings(max_new_tokens=_N_NEW, sampling={"temperature": 0.0})
        self._prompt, self._source = text.ids[: max(1, n_ctx // 2)], text.source
        self._arguments = target.core, drafting.describe(target) if gamma else None
        self._options: dict[str, Any] = {
            "gamma": gamma, "n_slots": 1, "n_threads": n_threads, "settings": self._settings,
            "n_text": min(target.config.n_ctx, len(self._prompt) + _N_NEW),
        }  # fmt: skip
        self._session: _core.Session | None = None

    def verify_s(self) -> float:
        """Median seconds of the target in the next rounds; NaN if the context has no room for one."""
        return _median(round_.verify_s for round_ in self._next())

    def draft_s(self) -> float:
        """Median seconds of the draft in the next rounds, for a token."""
        return _median(round_.draft_s / self._gamma for round_ in self._next())

    def _next(self) -> list[Round]:
        for session in (self._session, None):
            if session is None:  # a new one; the old one's text has ended
                session = self._session = _core.Session(*self._arguments, **self._options)
                session.admit(0, self._prompt, (0, 0), self._settings, self._source)
                while session.prefill_slice():
                    pass
            found = session.round(SLICE_S)
            for done in found:
                if done.error is not None:
                    raise done.error
            rounds = [done.round for done in found if done.round.n_drafted == self._gamma]
            if rounds:
                return rounds
        return []


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else math.nan


def step_seconds(target: Model, beginnings: Sequence[PromptIds], n_threads: int) -> float:
    """Seconds of plain decoding for a token, by a few tokens of the first prompt: an estimate for plans."""
    n = max(1, min(_PROBED, beginnings[0].room(target)))
    trace = generate(target, None, beginnings[0].given, max_new_tokens=n, n_threads=n_threads).trace
    return trace.rounds_s / max(1, trace.n_tokens)


def sample_text(
    target: Model, beginnings: Sequence[PromptIds], tokens: Sequence[Sequence[int]], n_rows: int
) -> PromptIds:
    """A text for timing: as long as a prompt and half its continuation on average, and `n_rows` more.

    Its source, if the prompts are sources, is the one of median length.
    """
    texts = list(zip((beginning.ids for beginning in beginnings), tokens, strict=True))
    whole = [token for parts in texts for part in parts for token in part]
    typical = round(statistics.mean(len(prompt) + len(new) / 2 for prompt, new in texts))
    length = min(typical, target.config.n_ctx - n_rows) + n_rows
    ids = (whole * math.ceil(length / len(whole)))[:length]
    sources = sorted((one.source for one in beginnings if one.source is not None), key=len)
    return PromptIds(ids, ids, sources[len(sources) // 2] if sources else None)
