"""Measuring a pair: the paper's Tables 2 to 5 for the user's own target and draft."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import theory
from specdec.analysis.acceptance import Acceptance, acceptance
from specdec.analysis.arguments import (
    RUN_BY_THE_CORE,
    MeasurableDraftLike,
    ProbabilityDraft,
    check_gammas,
    check_say,
    different_numbers,
    has_law,
    name_of,
    open_pair,
    sampling_options,
    split,
    work_of,
)
from specdec.analysis.measurement import Independence, Measurement, MeasurementRow
from specdec.analysis.running import RunFigures, run_texts
from specdec.analysis.speedup import NOT_RUN, NamedShares, RoundCosts, Speedup, speedups, timed_ways
from specdec.analysis.statistics import acceptance_by_position, autocorrelation, ljung_box, mean_interval
from specdec.analysis.timing import ForwardTimes, forward_times, sample_text, step_seconds
from specdec.checks import check_flag, check_integer
from specdec.decoding.beginning import Beginning
from specdec.drafts.draft import Draft
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.threads import check_threads
from specdec.time_limit import TimeLimit
from specdec.verification.rules import check_lenience
from specdec.verification.sampling import Sampling

__all__ = ["independence", "measure"]

_N_LAGS = 10
_COUNTING, _TIMING = 0.3, 0.5  # shares of the seconds; the rest is for times of forward passes
_FEWEST = 16  # tokens of a text, however short the time is
_NOT_TIMED = RoundCosts(math.nan, math.nan, math.nan)
_NO_FORMULA = "the formulas are of guesses that are made alike at every position of a round"


def measure(
    target: ModelLike,
    draft: MeasurableDraftLike,
    prompts: Prompt | Sequence[Prompt],
    *,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    temperatures: Sequence[float] = (0.0, 1.0),
    leniences: Sequence[float] = (1.0, 0.5, 0.3, 0.1),
    n_tokens: int = 2000,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    timing: bool = True,
    n_timed_tokens: int = 400,
    repeats: int = 5,
    time_leniences: bool = False,
    n_threads: int | None = None,
    name: str | None = None,
    target_name: str | None = None,
    seconds: float | None = None,
    progress: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> Measurement:
    """Measure how well a draft guesses a target, what both cost, and what speculation gains.

    The acceptance rate is that of Corollary 3.6 (arXiv 2211.17192), measured as in section 4.2: the target
    alone continues the prompts, and at each of its tokens the two distributions, after standardisation, are
    held against each other. The speed-up is then predicted with the measured time of verification, beside the
    ideal one of Theorem 3.8, and measured by decoding with and without the draft in turns. Measured ones have
    the spread of their repetitions; one above the new tokens per run of the target is an error of measuring,
    and is marked as such.

    That needs a draft with one distribution for the token after a text: a model, `Ngram`, `Unigram`,
    `Bigram`, `OnlineNgram`, `Recurrent`. All others (trees, copies, heads, EAGLE, layers of the target,
    memories, ensembles, objects of your own) guess otherwise at every position of a round, and are measured
    by running them, for each row of the tables: tokens per run of the target, acceptance by position, and
    times. What the formulas would say of them is None, with the reason (`MeasurementRow.reason`). A draft
    that learns from texts begins every run of the prompts with what it knows now (`Draft.snapshot`), and is
    left as it is; an `Online` learns nothing meanwhile. An object of your own is used as it is.

    Parameters
    ----------
    target : Model, path or hub name
    draft : Model, path, hub name, Draft, Drafter, or an object with ``probabilities(ids)``
        Any draft that `specdec.generate` takes. An object with ``probabilities(ids)`` gives
        [len(ids), n_vocab] float64, row i the distribution of the token after ids[: i + 1]; what that takes
        in Python says nothing, so its cost c is taken to be 0 (section 3.6: negligible cost), and no run with
        it is timed.
    prompts : str, sequence of int, or a list of these
        The same prompt several times is continued differently at temperatures above 0. For an
        encoder-decoder they are sources.
    gammas : sequence of int
        Drafted tokens a round, each 1 to 1024.
    temperatures : sequence of float
        Of target and draft.
    leniences : sequence of float
        In (0, 1]; 1 is the exact rule (appendix A.5). At temperature 0 a lenience below 1 accepts each token
        x with target(x) >= lenience * max(target) at temperature 1.
    n_tokens : int, default 2000
        Tokens the target generates at each temperature, in all: each prompt its share, as far as the context
        reaches and no end-of-text token comes. The paper takes 10000. With a draft that is measured by
        running: for each row.
    top_k, top_p, min_p
        Of target and draft, as in `Sampling`.
    seed : int, default 0
        Prompt i is continued with the key (seed, i).
    timing : bool, default True
        Measure times too. Without, a measurement has acceptance rates alone.
    n_timed_tokens : int, default 400
        New tokens of a timed run at most; a run takes the prompts in order until it has as many.
    repeats : int, default 5
        Timed runs for each gamma and temperature.
    time_leniences : bool, default False
        Time the runs with lenience too, and not only those of the exact rule.
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    name : str, optional
        What the draft is called in the tables; None: the name of its folder or its kind.
    target_name : str, optional
        What the target is called; None: the name of its folder.
    seconds : float, optional
        How long the measuring may take; a text that has begun is finished. If all of it would take longer,
        by the time of a few tokens, fewer tokens are generated, and rows that are not reached are left out or
        have no times. None: no limit.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    say : callable, optional
        Called with a line for each row as soon as it is measured.

    Returns
    -------
    Measurement
        ``print`` shows its tables. Ctrl-C ends the measuring early, and what was measured until then is
        returned (``stopped`` says so); before the first row is measured it raises KeyboardInterrupt.

    Raises
    ------
    InputError
        If an argument is out of range, or a prompt is empty or fills the context.
    VocabularyMismatchError
        If target and draft have different vocabularies.
    CheckpointError, TokenizerError
        If a path cannot be loaded.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> found = specdec.measure(target, draft, ["It was a dark and stormy night", "Once upon a time"])
    >>> print(found)
    """
    chosen_gammas = check_gammas(gammas)
    asked = different_numbers("temperatures", temperatures)
    samplings = [Sampling(temperature, top_k, top_p, min_p) for temperature in asked]
    chosen_leniences = [
        check_lenience("leniences", lenience, "has") for lenience in different_numbers("leniences", leniences)
    ]
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    n_timed_tokens = check_integer("n_timed_tokens", n_timed_tokens, 1)
    target, opened = open_pair(target, draft)
    beginnings = split(target, prompts)
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    threads = check_threads(n_threads)
    timing, time_leniences = check_flag("timing", timing), check_flag("time_leniences", time_leniences)
    check_say(say)
    limit = TimeLimit.of(seconds)
    name, target_name = name_of(opened, name), name_of(target, target_name, "target_name")
    share = -(-n_tokens // len(beginnings))
    runs_draft = timing and isinstance(opened, RUN_BY_THE_CORE)
    timed_leniences = [one for one in chosen_leniences if timing and (time_leniences or one == 1.0)]
    n_runs = len(timed_leniences) * repeats * (len(chosen_gammas) + 1)
    running = isinstance(opened, Draft) and not has_law(opened)
    n_counted = len(chosen_leniences) * len(chosen_gammas) if running else 1
    if seconds is not None:
        step_s = step_seconds(target, beginnings, threads) * len(samplings)
        counting_s, timing_s = _COUNTING * limit.left_s, _TIMING * limit.left_s
        share = min(share, max(_FEWEST, int(counting_s / step_s / n_counted / len(beginnings))))
        if n_runs:
            n_timed_tokens = min(n_timed_tokens, max(_FEWEST, int(timing_s / step_s / n_runs)))
    timed = work_of(target, beginnings, share, n_timed_tokens) if runs_draft else []
    work = work_of(target, beginnings, share, len(beginnings) * share) if running else []
    n_of_texts = sum(n for _, n in work) if running else len(beginnings) * share
    n_steps = n_counted * n_of_texts + n_runs * sum(n for _, n in timed)
    with counted(n_steps * len(samplings), "token", progress) as done:
        options: dict[str, Any] = {
            "samplings": samplings, "gammas": chosen_gammas, "leniences": chosen_leniences,
            "timed_leniences": timed_leniences, "timing": timing, "repeats": repeats, "seed": seed,
            "n_threads": threads, "done": done, "limit": limit, "say": say,
        }  # fmt: skip
        names = target_name, name
        if has_law(opened):
            return _by_distributions(target, opened, names, beginnings, share, timed, **options)
        assert isinstance(opened, Draft)
        return _by_running(target, opened, names, beginnings, work, timed, **options)


def _by_distributions(
    target: Model,
    draft: Model | ProbabilityDraft,
    names: tuple[str, str],
    beginnings: Sequence[Beginning],
    n_tokens: int,
    timed: Sequence[tuple[Sequence[int], int]],
    *,
    samplings: Sequence[Sampling],
    gammas: Sequence[int],
    leniences: Sequence[float],
    timed_leniences: Sequence[float],
    timing: bool,
    repeats: int,
    seed: int,
    n_threads: int,
    done: Callable[[int], object],
    limit: TimeLimit,
    say: Callable[[str], object],
) -> Measurement:
    """Measure a draft with a distribution of its own: `n_tokens` of each prompt, times of `timed`."""
    target_name, name = names
    texts: dict[float, Acceptance] = {}
    measured: dict[tuple[float, float, int], Speedup] = {}
    runnable = draft if isinstance(draft, RUN_BY_THE_CORE) else None
    times, stopped = None, ""
    try:
        for sampling in samplings:
            texts[sampling.temperature] = found = acceptance(
                target, draft, beginnings, sampling=sampling, n_tokens=n_tokens, seed=seed,
                leniences=list(dict.fromkeys([1.0, *leniences])),  # the exact rule's betas are always kept
                n_threads=n_threads, done=done,
            )  # fmt: skip
            say(_alpha_in_words(sampling.temperature, found.betas[1.0]))
        if timing:
            n_rows = max(gammas) + 1
            text = sample_text(target, beginnings, texts[samplings[0].temperature].tokens, n_rows)
            times = forward_times(target, runnable, text, max_rows=n_rows, n_threads=n_threads)
        if timed:
            assert runnable is not None
            groups = list(itertools.product(samplings, timed_leniences))
            for (sampling, lenience), part in limit.shares(groups):
                ratios = speedups(
                    target, runnable, timed, gammas=gammas, repeats=repeats, seed=seed, done=done,
                    lenience=lenience, n_threads=n_threads, limit=part, **sampling_options(sampling),
                )  # fmt: skip
                for gamma, ratio in ratios.items():
                    measured[sampling.temperature, lenience, gamma] = ratio
                    say(_speedup_in_words(sampling.temperature, lenience, gamma, ratio))
            if len(measured) < len(groups) * len(gammas):
                stopped = limit.reason
    except KeyboardInterrupt:
        if not texts:
            raise
        stopped = "interrupted"

    text_figures = {temperature: found.text for temperature, found in texts.items() if found.text is not None}
    return Measurement(
        target=target_name,
        draft=name,
        rows=tuple(
            _row(name, temperature, lenience, gamma, found.betas[lenience], times, measured)
            for temperature, found in texts.items()
            for lenience in leniences
            for gamma in gammas
        ),
        verify_ratio={} if times is None else times.verify_ratio,
        target_s=math.nan if times is None else times.target_s[1],
        draft_s=math.nan if times is None else times.draft_s,
        independence={
            temperature: independence(temperature, found.betas[1.0], max(gammas))
            for temperature, found in texts.items()
        },
        betas={temperature: found.betas[1.0] for temperature, found in texts.items()},
        tokens={temperature: found.tokens for temperature, found in texts.items()},
        text=text_figures or None,
        prompts=[beginning.given for beginning in beginnings],
        seed=seed,
        n_threads=n_threads,
        stopped=stopped,
    )


def _alpha_in_words(temperature: float, betas: Sequence[NDArray[np.float64]]) -> str:
    mean, (low, high) = float(np.concatenate(betas).mean()), mean_interval(betas)
    return (
        f"temperature {temperature:g}: alpha {mean:.3f} ({low:.3f} to {high:.3f}), "
        f"{sum(map(len, betas))} tokens"
    )


def _speedup_in_words(temperature: float, lenience: float, gamma: int, ratio: Speedup) -> str:
    lenient = "" if lenience == 1.0 else f", lenience {lenience:g}"
    setting = f"temperature {temperature:g}{lenient}, gamma {gamma}"
    if ratio is NOT_RUN:
        return f"{setting}: not timed"
    return f"{setting}: measured speed-up {ratio.text()} ({ratio.low:.2f} to {ratio.high:.2f})"


def _by_running(
    target: Model,
    draft: Draft,
    names: tuple[str, str],
    beginnings: Sequence[Beginning],
    work: Sequence[tuple[Sequence[int], int]],
    timed: Sequence[tuple[Sequence[int], int]],
    *,
    samplings: Sequence[Sampling],
    gammas: Sequence[int],
    leniences: Sequence[float],
    timed_leniences: Sequence[float],
    timing: bool,
    repeats: int,
    seed: int,
    n_threads: int,
    done: Callable[[int], object],
    limit: TimeLimit,
    say: Callable[[str], object],
) -> Measurement:
    """Measure a draft without a distribution of its own by running it: counts of `work`, times of `timed`."""
    target_name, name = names
    rows: list[MeasurementRow] = []
    common: dict[str, Any] = {"seed": seed, "n_threads": n_threads, "done": done}
    times, stopped = None, ""
    try:
        groups = list(itertools.product(samplings, leniences))
        for (sampling, lenience), part in limit.shares(groups):
            options = common | sampling_options(sampling) | {"lenience": lenience}
            shares = {gamma: NamedShares(target, draft) for gamma in gammas}
            results = {}
            for gamma in gammas:
                with shares[gamma]:
                    results[gamma] = run_texts(target, draft, work, gamma=gamma, **options)
            counts = {gamma: RunFigures.of(found) for gamma, found in results.items()}
            ratios: dict[int, Speedup] = {}
            costs: dict[int, RoundCosts] = {}
            if lenience in timed_leniences:
                plain, ways = timed_ways(
                    target, draft, timed, gammas=gammas, repeats=repeats, limit=part, **options
                )
                ratios = {gamma: way.over(plain) for gamma, way in ways.items()}
                costs = {gamma: way.costs(plain) for gamma, way in ways.items()}
            for gamma, found in counts.items():
                ratio, cost = ratios.get(gamma, NOT_RUN), costs.get(gamma, _NOT_TIMED)
                row = _run_row(
                    name, sampling.temperature, lenience, gamma, found, ratio, cost, shares[gamma].mean
                )
                rows.append(row)
                said = _speedup_in_words(sampling.temperature, lenience, gamma, ratio)
                say(f"{said}, {row.tokens_per_call:.2f} tokens a run")
            if times is None and timing:
                max_rows = max(gammas) + 1
                texts = [result.tokens for result in results[gammas[0]]]
                text = sample_text(target, beginnings, texts, max_rows)
                times = forward_times(target, None, text, max_rows=max_rows, n_threads=n_threads)
        if len(rows) < len(groups) * len(gammas):
            stopped = limit.reason
    except KeyboardInterrupt:
        if not rows:
            raise
        stopped = "interrupted"
    return Measurement(
        target=target_name,
        draft=name,
        rows=tuple(rows),
        verify_ratio={} if times is None else times.verify_ratio,
        target_s=math.nan if times is None else times.target_s[1],
        draft_s=math.nan,
        independence={},
        betas={},
        tokens={},
        text=None,
        prompts=[beginning.given for beginning in beginnings],
        seed=seed,
        n_threads=n_threads,
        stopped=stopped,
    )


def _run_row(
    draft: str,
    temperature: float,
    lenience: float,
    gamma: int,
    found: RunFigures,
    ran: Speedup,
    costs: RoundCosts,
    named_share: float | None,
) -> MeasurementRow:
    return MeasurementRow(
        draft=draft,
        temperature=temperature,
        lenience=lenience,
        gamma=gamma,
        n_tokens=found.n_tokens,
        alpha=found.alpha,
        alpha_low=found.alpha_low,
        alpha_high=found.alpha_high,
        c=costs.guess,
        t_ratio=costs.verify,
        ideal_speedup=None,
        predicted_speedup=None,
        measured=ran.median,
        measured_low=ran.low,
        measured_high=ran.high,
        tokens_per_call=found.tokens_per_call,
        invalid=ran.invalid,
        by_running=True,
        tokens_low=found.tokens_low,
        tokens_high=found.tokens_high,
        by_position=found.by_position,
        reason="; ".join(filter(None, (found.reason, _NO_FORMULA))),
        named_share=named_share,
    )


def independence(temperature: float, betas: Sequence[NDArray[np.float64]], gamma: int) -> Independence:
    """Test whether betas are independent and alike; `gamma` is how many positions of a round to look at."""
    n_positions = sum(map(len, betas))
    correlations = autocorrelation(betas, _N_LAGS)
    statistic, p_value = ljung_box(correlations, n_positions)
    return Independence(
        temperature=temperature,
        n_tokens=n_positions,
        autocorrelation=tuple(correlations.tolist()),
        band=1.96 / math.sqrt(n_positions),
        statistic=statistic,
        p_value=p_value,
        by_position=tuple(acceptance_by_position(betas, gamma).tolist()),
    )


def _row(
    draft: str,
    temperature: float,
    lenience: float,
    gamma: int,
    betas: Sequence[NDArray[np.float64]],
    times: ForwardTimes | None,
    measured: dict[tuple[float, float, int], Speedup],
) -> MeasurementRow:
    n_positions = sum(map(len, betas))
    alpha = math.fsum(float(text.sum()) for text in betas) / n_positions
    low, high = mean_interval(betas)
    c = math.nan if times is None else times.cost
    ratio = math.nan if times is None else times.verify_ratio[gamma + 1]
    ran = measured.get((temperature, lenience, gamma), NOT_RUN)
    return MeasurementRow(
        draft=draft,
        temperature=temperature,
        lenience=lenience,
        gamma=gamma,
        n_tokens=n_positions,
        alpha=alpha,
        alpha_low=low,
        alpha_high=high,
        c=c,
        t_ratio=ratio,
        ideal_speedup=float(theory.expected_speedup(alpha, gamma, c)),
        predicted_speedup=float(theory.expected_speedup(alpha, gamma, c, np.maximum(ratio, 1.0))),
        measured=ran.median,
        measured_low=ran.low,
        measured_high=ran.high,
        tokens_per_call=statistics.mean(ran.tokens_per_run),
        invalid=ran.invalid,
    )
