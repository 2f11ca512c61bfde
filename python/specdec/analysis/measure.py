"""Measuring a pair: the paper's Tables 2 to 5 for the user's own target and draft."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import theory
from specdec.analysis.acceptance import Acceptance, acceptance
from specdec.analysis.arguments import (
    RUN_BY_THE_CORE,
    MeasurableDraftLike,
    Setup,
    check_gammas,
    check_say,
    decoding_options,
    different_numbers,
    has_distribution,
    measurable,
    name_of,
    named_one,
)
from specdec.analysis.experiment import (
    Configuration,
    Experiment,
    ExperimentRow,
    Speedup,
    Work,
    decoding_experiment,
)
from specdec.analysis.measurement import Independence, Measurement
from specdec.analysis.statistics import acceptance_by_position, autocorrelation, ljung_box, mean_interval
from specdec.analysis.timing import ForwardTimes, forward_times, sample_text, step_seconds
from specdec.checks import check_flag, check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.models.model import ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.time_limit import TimeLimit
from specdec.verification.rules import check_lenience

_N_LAGS: Final = 10
_COUNTING, _TIMING = 0.3, 0.5  # shares of the seconds; the rest is for times of forward passes
_FEWEST: Final = 16  # tokens of a text, however short the time is
_NO_FORMULA: Final = "the formulas are of guesses that are made alike at every position of a round"
_OWNS: Final = {
    "gamma": "gammas", "temperature": "temperatures", "lenience": "leniences", "max_new_tokens": "n_tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """How much `measure` times.

    Attributes
    ----------
    repeats : int, default 5
        Timed runs for each gamma and temperature.
    n_tokens : int, default 400
        New tokens of a timed run at most; a run takes the prompts in order until it has as many.
    leniences : bool, default False
        Time the runs with lenience too, and not only those of the exact rule.
    """

    repeats: int = 5
    n_tokens: int = 400
    leniences: bool = False

    def __post_init__(self) -> None:
        check_integer("repeats", self.repeats, 1)
        check_integer("n_tokens", self.n_tokens, 1)
        check_flag("leniences", self.leniences)


def measure(
    target: ModelLike | dict[str, ModelLike],
    draft: MeasurableDraftLike | dict[str, MeasurableDraftLike],
    prompts: Prompt | Sequence[Prompt],
    *,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    temperatures: Sequence[float] = (0.0, 1.0),
    leniences: Sequence[float] = (1.0, 0.5, 0.3, 0.1),
    n_tokens: int = 2000,
    timing: bool | Timing = True,
    seconds: float | None = None,
    say: Callable[[str], object] = lambda line: None,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> Measurement:
    """Measure how well a draft guesses a target, what both cost, and what speculation gains.

    The acceptance rate is that of Corollary 3.6 (arXiv 2211.17192), measured as in section 4.2: the target
    alone continues the prompts, and at each of its tokens the two distributions, after standardization, are
    held against each other. The speed-up is then predicted with the measured time of verification, next to
    the ideal one of Theorem 3.8, and measured by decoding with and without the draft in turns. A measured one
    has the spread of its repetitions; one above the new tokens per run of the target is marked as an error of
    measuring.

    That needs a draft with one distribution for the token after a text: a model, `Ngram`, `Unigram`,
    `Bigram`, `OnlineNgram`, `Recurrent`. All others (trees, copies, heads, EAGLE, layers of the target,
    memories, ensembles, objects of your own) draft otherwise at every position of a round, and are measured
    by running them, for each row of the tables: tokens per run of the target, acceptance by position, and
    times. What the formulas say of them is None, with the reason (`ExperimentRow.reason`). A draft that
    learns from texts begins every run of the prompts with what it knows now (`Draft.snapshot`), and is left
    as it is; an `Online` learns nothing meanwhile. An object of your own is used as it is.

    Parameters
    ----------
    target : Model, path or hub name
        Here and in all functions that compare drafts it may be a dict of one by the name that tables call it;
        by default it is called after its folder.
    draft : Model, path, hub name, Draft, Drafter, or an object with ``probabilities(ids)``
        Any draft that `specdec.generate` takes, or a dict of one by its name. An object with
        ``probabilities(ids)`` gives [len(ids), n_vocab] float64, row i the distribution of the token after
        ids[: i + 1]; its cost c is taken to be 0 (section 3.6), and no run with it is timed.
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
    timing : bool or Timing, default True
        Measure times too, and how. False: acceptance rates alone.
    seconds : float, optional
        How long the measuring may take; a text that has begun is finished. If all of it would take longer,
        by the time of a few tokens, fewer tokens are generated, and rows that are not reached are left out or
        have no times. None: no limit.
    say : callable, optional
        Called with a line for each row as soon as it is measured.
    options : DecodingOptions, optional
        Of them `top_k`, `top_p` and `min_p`, of target and draft; `seed` (default 0; prompt i is continued
        with the key (seed, i)), and `n_threads`.
    **changes
        Options by name, which replace those of `options`, here and in all functions that compare drafts.

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
    decoding = decoding_options(options, changes, _OWNS, in_distributions=True)
    asked: dict[str, Any] = {
        "gammas": check_gammas(gammas),
        "samplings": [
            decoding.replace(temperature=one) for one in different_numbers("temperatures", temperatures)
        ],
        "leniences": [
            check_lenience("leniences", one, "has") for one in different_numbers("leniences", leniences)
        ],
        "timing": _timing(timing),
        "limit": TimeLimit.of(seconds),
        "say": check_say(say),
    }
    n_tokens = check_integer("n_tokens", n_tokens, 1)
    setup = Setup.of(target, decoding, prompts)
    name, given = named_one("draft", draft)
    opened = measurable(setup.target, given)
    measuring = _Measuring(setup, opened, name or name_of(opened), **asked)
    n_steps = measuring.plan(n_tokens, has_limit=seconds is not None)
    with counted(n_steps, "token", decoding.progress) as measuring.done:
        return measuring.by_distributions() if has_distribution(opened) else measuring.by_running()


@dataclass
class _Measuring:
    """What a call of `measure` was asked for, and what it has found so far."""

    setup: Setup
    draft: Any
    name: str
    gammas: list[int]
    samplings: list[DecodingOptions]
    leniences: list[float]
    timing: Timing | None
    limit: TimeLimit
    say: Callable[[str], object]
    done: Callable[[int], object] = lambda n: None
    share: int = 0
    """New tokens of each prompt that are counted."""
    timed: Work = ()
    """What is timed."""
    timed_leniences: list[float] = field(default_factory=list)

    def plan(self, n_tokens: int, *, has_limit: bool) -> int:
        """Decide how many tokens are counted and timed; return how many are decoded in all."""
        setup, timing = self.setup, self.timing
        running = not has_distribution(self.draft)
        n_counted = len(self.leniences) * len(self.gammas) if running else 1
        n_runs = n_timed = 0
        if timing is not None:
            self.timed_leniences = [one for one in self.leniences if timing.leniences or one == 1.0]
            n_runs = len(self.timed_leniences) * timing.repeats * (len(self.gammas) + 1)
            n_timed = timing.n_tokens
        self.share = setup.share(n_tokens)
        if has_limit:
            step_s = step_seconds(setup.target, setup.prompts, setup.options.threads) * len(self.samplings)
            counting_s, timing_s = _COUNTING * self.limit.left_s, _TIMING * self.limit.left_s
            fitting = counting_s / step_s / n_counted / len(setup.prompts)
            self.share = int(min(self.share, max(_FEWEST, fitting)))
            if n_runs:
                n_timed = int(min(n_timed, max(_FEWEST, timing_s / step_s / n_runs)))
        if isinstance(self.draft, RUN_BY_THE_CORE):
            self.timed = setup.work(self.share, n_timed)
        n_of_texts = sum(n for _, n in self.work) if running else len(setup.prompts) * self.share
        n_steps = n_counted * n_of_texts + n_runs * sum(n for _, n in self.timed)
        return n_steps * len(self.samplings)

    @property
    def work(self) -> Work:
        """What is counted where drafts are run."""
        return self.setup.work(self.share, len(self.setup.prompts) * self.share)

    def by_distributions(self) -> Measurement:
        """Measure a draft with a distribution of its own."""
        texts: dict[float, Acceptance] = {}
        speedups: dict[tuple[float, float, int], Speedup] = {}
        times, stopped = None, ""
        try:
            for options in self.samplings:
                found = texts[options.temperature] = acceptance(
                    self.setup, self.draft, options, n_tokens=self.share, done=self.done,
                    leniences=list(dict.fromkeys([1.0, *self.leniences])),  # the exact rule's betas are kept
                )  # fmt: skip
                self.say(_alpha_in_words(options.temperature, found.betas[1.0]))
            times = self._times(texts[self.samplings[0].temperature].tokens)
            groups = list(itertools.product(self.samplings, self.timed_leniences)) if self.timed else []
            for (options, lenience), part in self.limit.shares(groups):
                plain, ways = self._timed(options.temperature, lenience, part)
                for gamma, way in ways.items():
                    speedup = speedups[options.temperature, lenience, gamma] = way.over(plain)
                    self.say(_speedup_in_words(options.temperature, lenience, gamma, speedup))
            if len(speedups) < len(groups) * len(self.gammas):
                stopped = self.limit.reason
        except KeyboardInterrupt:
            if not texts:
                raise
            stopped = "interrupted"
        rows = [
            self._row((t, lenience, gamma), found.betas[lenience], times, speedups.get((t, lenience, gamma)))
            for t, found in texts.items()
            for lenience, gamma in itertools.product(self.leniences, self.gammas)
        ]
        return self._measurement(rows, times, stopped, texts)

    def by_running(self) -> Measurement:
        """Measure a draft without a distribution of its own by running it."""
        setup = self.setup
        rows: list[ExperimentRow] = []
        times, stopped = None, ""
        try:
            groups = list(itertools.product(self.samplings, self.leniences))
            for (options, lenience), part in self.limit.shares(groups):
                temperature = options.temperature
                settings = setup.runs(temperature=temperature, lenience=lenience)
                counting = {
                    one: Configuration(setup.target, self.draft, one, **settings) for one in self.gammas
                }
                experiment = Experiment([*counting.values()], self.work)
                experiment.run(repeats=1, seed=setup.seed, done=self.done)
                plain, ways = None, counting
                if lenience in self.timed_leniences:
                    plain, ways = self._timed(temperature, lenience, part)
                for gamma, way in counting.items():
                    row = way.row(self.name)
                    reason = "; ".join(filter(None, (row.reason, _NO_FORMULA)))
                    timed = {} if plain is None else ways[gamma].timing(plain)
                    rows.append(replace(row, reason=reason, **timed))
                    said = _speedup_in_words(temperature, lenience, gamma, rows[-1].speedup)
                    self.say(f"{said}, {row.tokens_per_call:.2f} tokens a run")
                if times is None:
                    times = self._times([result.tokens for result in counting[self.gammas[0]].results])
            if len(rows) < len(groups) * len(self.gammas):
                stopped = self.limit.reason
        except KeyboardInterrupt:
            if not rows:
                raise
            stopped = "interrupted"
        return self._measurement(rows, times, stopped, {})

    def _timed(
        self, temperature: float, lenience: float, limit: TimeLimit
    ) -> tuple[Configuration, dict[int, Configuration]]:
        """Time plain decoding, and the draft by gamma."""
        assert self.timing is not None
        options = self.setup.runs(temperature=temperature, lenience=lenience)
        drafts = {gamma: (self.draft, gamma) for gamma in self.gammas}
        experiment, plain, ways = decoding_experiment(self.setup.target, drafts, self.timed, options)
        experiment.run(repeats=self.timing.repeats, seed=self.setup.seed, done=self.done, limit=limit)
        return plain, ways

    def _times(self, tokens: Sequence[Sequence[int]]) -> ForwardTimes | None:
        """Time forward passes on as many positions as rounds have; None if nothing is timed."""
        if self.timing is None:
            return None
        n_rows = max(self.gammas) + 1
        draft = (
            self.draft if has_distribution(self.draft) and isinstance(self.draft, RUN_BY_THE_CORE) else None
        )
        text = sample_text(self.setup.target, self.setup.prompts, tokens, n_rows)
        return forward_times(
            self.setup.target, draft, text, max_rows=n_rows, n_threads=self.setup.options.threads
        )

    def _row(
        self,
        setting: tuple[float, float, int],
        betas: Sequence[NDArray[np.float64]],
        times: ForwardTimes | None,
        speedup: Speedup | None,
    ) -> ExperimentRow:
        """Return the row of a draft with a distribution of its own."""
        temperature, lenience, gamma = setting
        n_positions = sum(map(len, betas))
        alpha = math.fsum(float(text.sum()) for text in betas) / n_positions
        low, high = mean_interval(betas)
        timed: dict[str, Any] = {}
        if times is not None:
            c, ratio = times.cost, times.verify_ratio[gamma + 1]
            timed = {
                "c": c,
                "verify_ratio": ratio,
                "ideal_speedup": float(theory.expected_speedup(alpha, gamma, c)),
                "predicted_speedup": float(theory.expected_speedup(alpha, gamma, c, max(ratio, 1.0))),
            }
        return ExperimentRow(
            draft=self.name,
            temperature=temperature,
            gamma=gamma,
            lenience=lenience,
            n_tokens=n_positions,
            alpha=alpha,
            alpha_low=low,
            alpha_high=high,
            speedup=speedup,
            tokens_per_call=math.nan if speedup is None else statistics.mean(speedup.tokens_per_run),
            by_running=False,
            **timed,
        )

    def _measurement(
        self,
        rows: Sequence[ExperimentRow],
        times: ForwardTimes | None,
        stopped: str,
        texts: dict[float, Acceptance],
    ) -> Measurement:
        """Return the result; `texts` by temperature, of a draft with a distribution of its own."""
        betas = {temperature: found.betas[1.0] for temperature, found in texts.items()}
        pieces = {temperature: found.text for temperature, found in texts.items() if found.text is not None}
        return Measurement(
            target=self.setup.name,
            draft=self.name,
            rows=tuple(rows),
            verify_ratio={} if times is None else times.verify_ratio,
            target_s=math.nan if times is None else times.target_s[1],
            draft_s=math.nan if times is None or not texts else times.draft_s,
            independence={
                temperature: independence(temperature, one, max(self.gammas))
                for temperature, one in betas.items()
            },
            betas=betas,
            tokens={temperature: found.tokens for temperature, found in texts.items()},
            text=pieces or None,
            prompts=[beginning.given for beginning in self.setup.prompts],
            seed=self.setup.seed,
            n_threads=self.setup.options.threads,
            stopped=stopped,
        )


def _timing(timing: bool | Timing) -> Timing | None:
    if isinstance(timing, Timing):
        return timing
    return Timing() if check_flag("timing", timing) else None


def _alpha_in_words(temperature: float, betas: Sequence[NDArray[np.float64]]) -> str:
    mean, (low, high) = float(np.concatenate(betas).mean()), mean_interval(betas)
    return (
        f"temperature {temperature:g}: alpha {mean:.3f} ({low:.3f} to {high:.3f}), "
        f"{sum(map(len, betas))} tokens"
    )


def _speedup_in_words(temperature: float, lenience: float, gamma: int, speedup: Speedup | None) -> str:
    lenient = "" if lenience == 1.0 else f", lenience {lenience:g}"
    setting = f"temperature {temperature:g}{lenient}, gamma {gamma}"
    if speedup is None:
        return f"{setting}: not timed"
    return f"{setting}: measured speed-up {speedup.text()} ({speedup.interval})"


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
