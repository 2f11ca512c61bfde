"""Predicted speed-ups: acceptance at every position of texts, and times of forward passes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core, theory
from specdec.analysis.arguments import RUN_BY_THE_CORE, ProbabilityDraft, Setup, has_distribution
from specdec.analysis.experiment import ExperimentRow
from specdec.analysis.statistics import mean_interval
from specdec.decoding.generate import generate
from specdec.decoding.options import DecodingOptions
from specdec.decoding.prompts import PromptIds
from specdec.decoding.result import Result
from specdec.decoding.scheduler import SLICE_S
from specdec.drafts import Draft, OnlineNgram, Unigram
from specdec.drafts.model_draft import ModelDraft, as_draft
from specdec.errors import InputError
from specdec.models.model import Model
from specdec.trace import Round
from specdec.verification.sampling import TRUNCATIONS
from specdec.verification.verify import distribution

Array = NDArray[np.float64]

_WARM_UP = 3  # discarded measurements: caches, threads, clock speed
_TURNS = (5, 200)  # minimum and maximum
_ENOUGH_S = 2.0  # seconds after which the minimum suffices
_DRAFTED = 4  # maximum of draft tokens per round when timing a draft
_PROBED = 8  # tokens timed for a plan's estimate
_N_NEW = 256  # tokens of a timed text before it restarts
_ROWS = 64  # positions whose distributions are in memory at once


@dataclass(frozen=True)
class ForwardTimes:
    """Median seconds of target forward passes by number of positions, and of the draft per token.

    `draft_s` is measured in rounds of a few tokens; 0 for a draft that the core does not run.
    """

    target_s: dict[int, float]
    draft_s: float

    @property
    def cost(self) -> float:
        """Cost coefficient c (Definition 3.7)."""
        return self.draft_s / self.target_s[1]

    @property
    def verify_ratio(self) -> dict[int, float]:
        """t(M) / t(1) by M."""
        return {m: seconds / self.target_s[1] for m, seconds in self.target_s.items()}


def _medians_of(jobs: dict[int, Callable[[], float]]) -> dict[int, float]:
    """Return the median result of each job; jobs are interleaved because machine speed varies."""
    values: dict[int, list[float]] = {key: [] for key in jobs}
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


def forward_times(setup: Setup, draft: Any, tokens: Sequence[Sequence[int]], max_rows: int) -> ForwardTimes:
    """Time target forward passes on M = 1, ..., max_rows positions, and the draft, in interleaved rounds.

    Rounds continue some prompts and their `tokens`, so caches and threads behave as in decoding. A draft that
    the core does not run, or that drafts differently at each position, is replaced by another and not timed.
    """
    text = _sample_text(setup, tokens, max_rows)
    timed = isinstance(draft, RUN_BY_THE_CORE) and has_distribution(draft)
    drafting = draft if timed else Unigram([0], setup.target.config["n_vocab"])
    rounds = {m: _Rounds(setup, drafting, text, m - 1) for m in range(1, max_rows + 1)}
    jobs: dict[int, Callable[[], float]] = {m: one.verify_s for m, one in rounds.items()}
    if timed:
        jobs[0] = rounds[min(_DRAFTED + 1, max_rows)].draft_s
    times = _medians_of(jobs)
    return ForwardTimes(draft_s=times.pop(0, 0.0), target_s=times)


class _Rounds:
    """Greedy rounds with a fixed number of draft tokens, run for some milliseconds at a time."""

    def __init__(self, setup: Setup, draft: Model | Draft, text: PromptIds, gamma: int) -> None:
        target, drafting = setup.target, as_draft(setup.target, draft)
        models = [target, drafting.model] if isinstance(drafting, ModelDraft) else [target]
        self._gamma = gamma
        self._settings = _core.Settings(max_new_tokens=_N_NEW, sampling={"temperature": 0.0})
        self._prompt = text.ids[: max(1, min(model.config.n_ctx for model in models) // 2)]
        self._source = text.source
        self._new_session = partial(
            _core.Session, target.core, drafting.describe(target) if gamma else None, gamma=gamma, n_slots=1,
            n_threads=setup.options.threads, settings=self._settings,
            n_text=min(target.config.n_ctx, len(self._prompt) + _N_NEW),
        )  # fmt: skip
        self._session: _core.Session | None = None

    def verify_s(self) -> float:
        """Return the median seconds of the target in the next rounds; NaN if none fits the context."""
        return _median(round_.verify_s for round_ in self._next())

    def draft_s(self) -> float:
        """Return the draft's median seconds per token in the next rounds."""
        return _median(round_.draft_s / self._gamma for round_ in self._next())

    def _next(self) -> list[Round]:
        for session in (self._session, None):
            if session is None:  # start again: the text has ended
                session = self._session = self._new_session()
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


def step_seconds(setup: Setup) -> float:
    """Estimate the seconds per token of plain decoding from a few tokens of the first prompt."""
    prompt, n_threads = setup.prompts[0], setup.options.threads
    n = max(1, min(_PROBED, prompt.capacity(setup.target)))
    trace = generate(setup.target, None, prompt.given, max_new_tokens=n, n_threads=n_threads).trace
    return trace.rounds_s / max(1, trace.n_tokens)


def _sample_text(setup: Setup, tokens: Sequence[Sequence[int]], n_rows: int) -> PromptIds:
    """Return a text for timing: of average prompt length plus half the continuation and `n_rows`.

    For an encoder-decoder, its source has median length.
    """
    texts = list(zip((prompt.ids for prompt in setup.prompts), tokens, strict=True))
    whole = [token for parts in texts for part in parts for token in part]
    typical = round(statistics.mean(len(prompt) + len(new) / 2 for prompt, new in texts))
    length = min(typical, setup.target.config.n_ctx - n_rows) + n_rows
    ids = (whole * math.ceil(length / len(whole)))[:length]
    sources = sorted((one.source for one in setup.prompts if one.source is not None), key=len)
    return PromptIds(ids, ids, sources[len(sources) // 2] if sources else None)


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Texts generated by the target, and the acceptance probability of a draft at their positions.

    `text` has a piece per token, None without a tokenizer; `betas` has an array per prompt, by lenience;
    `ratios` has one of the draft's over the target's probability of each token, nothing at temperature 0.
    """

    tokens: list[list[int]]
    text: list[list[str]] | None
    betas: dict[float, list[Array]]
    ratios: list[Array]


def acceptance(
    setup: Setup, draft: Model | ProbabilityDraft, options: DecodingOptions, *, leniences: Sequence[float],
    n_tokens: int, done: Callable[[int], object],
) -> Acceptance:  # fmt: skip
    """Continue prompts with the target, and compare the draft's distributions with its own (section 4.2).

    At temperature 0 both use the argmax, and a lenience below 1 refers to the target's distribution at
    temperature 1 (appendix A.5). Prompt i has the key (seed, i) and `n_tokens`, limited by the contexts.
    """
    target, settings = setup.target, setup.runs(temperature=options.temperature)
    text: list[list[str]] | None = None if target.tokenizer is None else []
    found = Acceptance([], text, {lenience: [] for lenience in leniences}, [])
    for i, prompt in enumerate(setup.prompts):
        n = min(n_tokens, _capacity(target, draft, prompt, i))
        result = generate(
            target, None, prompt.given, max_new_tokens=n, seed=[(setup.seed, i)], logits=True, **settings
        )
        assert result.logits is not None
        draft_logits = _draft_logits(setup, draft, prompt, result.tokens)
        betas, ratios = _compared(result, draft_logits, options, leniences)
        for lenience in leniences:
            found.betas[lenience].append(betas[lenience])
        if not options.sampling.greedy:
            found.ratios.append(ratios)
        found.tokens.append(result.tokens)
        if text is not None and (stream := prompt.stream_decoder(target)) is not None:
            text.append([stream.feed([token]) for token in result.tokens])
            text[-1][-1] += stream.finish()
        done(n_tokens)
    return found


def _capacity(target: Model, draft: Model | ProbabilityDraft, prompt: PromptIds, index: int) -> int:
    """Return how many new tokens fit the contexts; the draft does not process the last one."""
    capacity = prompt.capacity(target)
    if isinstance(draft, Model):
        capacity = min(capacity, prompt.capacity(draft) + 1)
        n, encoder = len(prompt.source or ()), draft.config.encoder
        if encoder is not None and n > encoder.n_ctx:
            expected = f"at most {encoder.n_ctx}, the draft's source length"
            raise InputError(f"prompt {index} has {n} tokens; expected {expected}")
    if capacity < 1:
        n, expected = len(prompt.ids), "fewer than the context length"
        raise InputError(f"prompt {index} has {n} tokens; expected {expected}")
    return capacity


def _draft_logits(
    setup: Setup, draft: Model | ProbabilityDraft, prompt: PromptIds, tokens: Sequence[int]
) -> NDArray[np.float32]:
    """Return the draft's logits at each generated position, [n_tokens, n_vocab]."""
    ids, first, n_vocab = [*prompt.ids, *tokens[:-1]], len(prompt.ids) - 1, setup.target.config.n_vocab
    if isinstance(draft, Model):
        decoder = _core.Decoder(
            draft.core, capacity=len(ids), n_threads=setup.options.threads, n_vocab=n_vocab,
            source=prompt.source_of(draft),
        )  # fmt: skip
        logits = decoder.prefill(ids, logits=True, finite=True)
        assert logits is not None
        return logits[first:]
    if isinstance(draft, OnlineNgram):  # may have no table that defines the vocabulary
        probs = draft.probabilities(ids, n_vocab)
    else:
        probs = np.asarray(draft.probabilities(ids), dtype=np.float64)
    if probs.shape != (len(ids), n_vocab):
        found = f"an array of shape {probs.shape}"
        raise InputError.of("draft.probabilities", probs, f"{(len(ids), n_vocab)}", found, verb="gave")
    if not (np.all(probs >= 0.0) and np.allclose(probs.sum(axis=1), 1.0, rtol=0.0, atol=1e-6)):
        found = "a row that is not a distribution"
        raise InputError.of("draft.probabilities", probs, "sum 1", found, verb="gave")
    with np.errstate(divide="ignore"):
        return np.log(probs[first:]).astype(np.float32)


def _compared(
    result: Result, draft_logits: NDArray[np.float32], options: DecodingOptions, leniences: Sequence[float]
) -> tuple[dict[float, Array], Array]:
    """Return the betas at a text's positions by lenience, and draft over target probability of its tokens."""
    assert result.logits is not None
    ours = {name: getattr(options, name) for name in ("temperature", *TRUNCATIONS)}
    rate: Callable[..., float | Array] = theory.acceptance_rate
    targets = ours
    if options.sampling.greedy:  # use the distribution before the argmax, as `generate` does
        rate, targets = theory.greedy_acceptance_rate, {"temperature": 1.0}
    tokens = np.array(result.tokens)
    betas, ratios = {lenience: np.empty(len(tokens)) for lenience in leniences}, np.empty(len(tokens))
    for first in range(0, len(tokens), _ROWS):
        rows = slice(first, first + _ROWS)
        probs = distribution(result.logits[rows], **targets), distribution(draft_logits[rows], **ours)
        for lenience, found in betas.items():
            found[rows] = rate(*probs, lenience=lenience)
        of_target, of_draft = (np.take_along_axis(p, tokens[rows, None], axis=1)[:, 0] for p in probs)
        ratios[rows] = of_draft / of_target  # a sampled token has mass
    return betas, ratios


def mean_of(betas: Sequence[Array]) -> float:
    """Return the mean acceptance rate of texts; NaN without any position."""
    n_positions = sum(map(len, betas))
    return math.fsum(float(text.sum()) for text in betas) / n_positions if n_positions else math.nan


def predicted_row(
    draft: str, texts: Acceptance, times: ForwardTimes | None, temperature: float, gamma: int,
    lenience: float = 1.0,
) -> ExperimentRow:  # fmt: skip
    """Predict a row of the default rule from acceptance and times of forward passes."""
    betas, rule = texts.betas[lenience], "block" if texts.ratios and lenience == 1.0 else "rejection"
    alpha, (low, high) = mean_of(betas), mean_interval(betas)
    timed: dict[str, Any] = {}
    if times is not None:
        c, ratio = times.cost, times.verify_ratio[gamma + 1]
        tokens = theory.expected_tokens(alpha, gamma)
        if rule == "block":
            tokens = theory.expected_block_tokens(texts.ratios, gamma)
        ideal, predicted = (
            float(theory.speedup_of_tokens(tokens, gamma, c, verify)) for verify in (1.0, max(ratio, 1.0))
        )
        timed = {"c": c, "verify_ratio": ratio, "ideal_speedup": ideal, "predicted_speedup": predicted}
    return ExperimentRow(
        draft=draft, temperature=temperature, gamma=gamma, lenience=lenience, n_tokens=sum(map(len, betas)),
        alpha=alpha, alpha_low=low, alpha_high=high, by_running=False, rule=rule, **timed,
    )  # fmt: skip
