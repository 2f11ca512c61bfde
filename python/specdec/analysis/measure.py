"""`measure`: the paper's Tables 2 to 5 for your target and draft."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.analysis import arguments, experiment, prediction
from specdec.analysis.arguments import MeasurableDraftLike, Setup
from specdec.analysis.experiment import ExperimentRow, Speedup
from specdec.analysis.statistics import acceptance_by_position, autocorrelation, ljung_box, mean_interval
from specdec.checks import check_flag, check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.models.model import ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import Column, Table, Tabular, figure, marked, or_dash
from specdec.time_limit import TimeLimit
from specdec.verification.rules import check_lenience

Array = NDArray[np.float64]

_N_LAGS: Final = 10
_COUNTING, _TIMING = 0.3, 0.5  # shares of the time limit; the rest times forward passes
_FEWEST: Final = 16  # minimum tokens of a text, however short the time
_NO_FORMULA: Final = "the formulas assume a draft that works the same at every position of a round"
_OWNS: Final = {
    "gamma": "gammas", "temperature": "temperatures", "lenience": "leniences", "max_new_tokens": "n_tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """Amount of timing in `measure`.

    `repeats`: timed runs per gamma and temperature, each of at most `n_tokens` new tokens over the prompts in
    order. `leniences`: also time runs with lenience.
    """

    repeats: int = 5
    n_tokens: int = 400
    leniences: bool = False

    def __post_init__(self) -> None:
        check_integer("repeats", self.repeats, 1)
        check_integer("n_tokens", self.n_tokens, 1)
        check_flag("leniences", self.leniences)


@dataclass(frozen=True)
class Independence:
    """Test whether betas are i.i.d., as equation (1) and its consequences assume.

    `autocorrelation` of the `n_tokens` betas at lags 1, 2, ... within texts; NaN if all are equal. Without
    correlation, 95 % are within ±`band`, 1.96 / sqrt(n_tokens). A small `p_value` of the Ljung-Box
    `statistic` speaks against independence. `by_position`: probability that the first, second, ... draft
    token of a round is accepted given that those before it were; alpha for independent betas.
    """

    temperature: float
    n_tokens: int
    autocorrelation: tuple[float, ...]
    band: float
    statistic: float
    p_value: float
    by_position: tuple[float, ...]

    @classmethod
    def of(cls, temperature: float, betas: Sequence[Array], gamma: int) -> Independence:
        """Test betas; `gamma` is the number of positions of a round."""
        n_positions = sum(map(len, betas))
        correlations = autocorrelation(betas, _N_LAGS)
        by_position = tuple(acceptance_by_position(betas, gamma).tolist())
        return cls(
            temperature, n_positions, tuple(correlations.tolist()), 1.96 / math.sqrt(n_positions),
            *ljung_box(correlations, n_positions), by_position,
        )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Tabular):
    """Result of `specdec.measure`; ``print`` and notebooks show its tables.

    Attributes
    ----------
    target, draft : str
    rows : tuple of ExperimentRow
        By temperature, then lenience, then gamma, in the order requested.
    verify_ratio : dict of int to float
        t(M) / t(1) of the target by number of positions M; empty without timing.
    target_s, draft_s : float
        Median seconds of a target pass on one position, and of the draft per token. NaN without timing.
        draft_s is 0 for a draft that the core does not run, and NaN for one measured by running, whose rows
        have their own c.
    independence : dict of float to Independence
        By temperature. Empty, like the next three, for a draft measured by running, whose draft tokens depend
        on where a round begins.
    betas : dict of float to list of ndarray of float64, [n_tokens]
        By temperature: for each prompt, sum(min(target, draft)) (Theorem 3.5) at every generated position in
        order; 0 or 1 at temperature 0. Without lenience.
    tokens : dict of float to list of list of int
        By temperature: for each prompt, the token ids that the target generated.
    text : dict of float to list of list of str, or None
        The same as text, a piece per token; the pieces of a prompt concatenate to its text. A token that ends
        inside a character has an empty piece. None if the target has no tokenizer.
    prompts : list of list of int
        Token ids of the prompts; for an encoder-decoder, of the sources.
    seed, n_threads : int
        Prompt i was continued with the key (seed, i).
    stopped : str
        Why measuring ended early, so that rows or times are missing; else empty.
    """

    target: str
    draft: str
    rows: tuple[ExperimentRow, ...]
    verify_ratio: dict[int, float]
    target_s: float
    draft_s: float
    independence: dict[float, Independence]
    betas: dict[float, list[Array]]
    tokens: dict[float, list[list[int]]]
    text: dict[float, list[list[str]]] | None
    prompts: list[list[int]]
    seed: int
    n_threads: int
    stopped: str = ""

    def tables(self) -> list[Table]:
        """Return the paper's Tables 2 to 5, verification times and the independence test, as available."""
        found = [*tables(self.rows, self.target), *_running_tables(self.rows)]
        if self.verify_ratio:
            ratios = [f"{ratio:.2f}" for ratio in self.verify_ratio.values()]
            title = f"Time of the target for M positions (t(1) = {1e3 * self.target_s:.3f} ms)"
            head = ("positions M", *map(str, self.verify_ratio))
            found.append(Table(title, head, [("t(M) / t(1)", *ratios)]))
        if self.independence:
            found.append(_independence_table(list(self.independence.values()), self.draft))
        if self.stopped:
            found.append(Table("Measurement ended early", ("because",), [(self.stopped,)]))
        return found

    def __repr__(self) -> str:
        firsts = _first_of_each(self.rows)
        figure = "alpha" if self.independence else f"tokens per pass with gamma {firsts[0].gamma}"
        values = ", ".join(
            f"{row.tokens_per_call if row.by_running else row.alpha:.3f} at temperature {row.temperature:g}"
            for row in firsts
        )
        return f"<specdec.Measurement of {self.draft!r} drafting for {self.target!r}: {figure} {values}>"


def measure(
    target: ModelLike | dict[str, ModelLike],
    draft: MeasurableDraftLike | dict[str, MeasurableDraftLike],
    prompts: Prompt | Sequence[Prompt] | None = None,
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
    """Measure a draft's acceptance rate for a target, the cost of both, and the speed-up of speculation.

    The acceptance rate is that of Corollary 3.6 (arXiv 2211.17192), measured as in section 4.2: the target
    alone continues the prompts, and the two standardized distributions are compared at each of its tokens.
    The speed-up is predicted with the measured verification time, in addition to the ideal one of Theorem
    3.8. It is also measured in interleaved runs with and without the draft. A speed-up above the mean
    accepted length is marked as a measurement error.

    This needs a draft whose next-token distribution depends on the text only: a model, `Ngram`, `Unigram`,
    `Bigram`, `OnlineNgram` or `RecurrentDraft`. All others (trees, prompt lookup, heads, EAGLE, layers of the
    target, memories, ensembles, your own objects) are measured by running them: tokens per pass, acceptance
    by position, and times. Values that need the formulas are None, with the reason in `ExperimentRow.reason`.
    A draft that learns from texts starts each run with its present state (`Draft.snapshot`) and is left
    unchanged; an `OnlineDraft` does not learn here. Your own objects are used as they are.

    Parameters
    ----------
    target : Model, path or hub name
        Here and in all functions that compare drafts: a model, or a dict of one by its name for tables; the
        default name is that of its folder.
    draft : Model, path, hub name, Draft, Drafter, or an object with ``probabilities(ids)``
        Any draft that `specdec.generate` takes, or a dict of one by its name. ``probabilities(ids)`` of an
        object returns [len(ids), n_vocab] float64, row i the distribution of the token after ids[: i + 1];
        its cost c is taken as 0 (section 3.6), and its runs are not timed.
    prompts : str, sequence of int, or a list of these, optional
        Texts to continue, similar to your use; sources for an encoder-decoder. A repeated prompt is continued
        differently at temperatures above 0. None: built-in English prompts, if the target has a tokenizer.
    gammas, temperatures : sequence of int, of float
        Draft tokens per round, each 1 to 1024; temperatures of target and draft.
    leniences : sequence of float
        In (0, 1]; 1 is the exact rule (appendix A.5). At temperature 0 a lenience below 1 accepts each token
        x with target(x) >= lenience * max(target) at temperature 1.
    n_tokens : int, default 2000
        Tokens that the target generates at each temperature in total, shared by the prompts, limited by the
        context and end-of-text tokens. The paper uses 10000. For a draft measured by running: per row.
    timing : bool or Timing, default True
        Whether to measure times, and how. False: acceptance rates only.
    seconds : float, optional
        Time limit; a started text is finished. If everything would take longer (estimated from a few tokens),
        fewer tokens are generated; rows that are not reached are left out or have no times. None: no limit.
    say : callable, optional
        Called with a line for each row as it is measured.
    options : DecodingOptions, optional
        Of these, `top_k`, `top_p` and `min_p` for target and draft; `seed` (default 0; prompt i uses the key
        (seed, i)); and `n_threads`.
    **changes
        Options by name that replace those of `options`, here and in all functions that compare drafts.

    Returns
    -------
    Measurement
        ``print`` shows its tables. Ctrl-C ends the measurement early and returns the results so far
        (``stopped`` says so); before the first row is measured it raises KeyboardInterrupt.

    Raises
    ------
    InputError, VocabularyMismatchError
        If an argument is out of range, a prompt is empty or fills the context, or vocabularies differ.
    CheckpointError, TokenizerError
        If a path cannot be loaded.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> found = specdec.measure(target, draft, ["It was a dark and stormy night", "Once upon a time"])
    >>> print(found)
    """
    decoding = arguments.decoding_options(options, changes, _OWNS, in_distributions=True)
    temperatures = arguments.different_numbers("temperatures", temperatures)
    leniences = arguments.different_numbers("leniences", leniences)
    timed = timing if isinstance(timing, Timing) else Timing() if check_flag("timing", timing) else None
    arguments.check_say(say)
    asked: dict[str, Any] = {
        "gammas": arguments.check_gammas(gammas),
        "samplings": [decoding.replace(temperature=one) for one in temperatures],
        "leniences": [check_lenience("leniences", one, "has") for one in leniences],
        "timing": timed, "limit": TimeLimit.of(seconds), "say": say,
    }  # fmt: skip
    n_tokens = check_integer("n_tokens", n_tokens, 1)
    setup = Setup.of(target, decoding, prompts)
    measuring = _Measuring(setup, *setup.draft(draft), **asked)
    n_steps = measuring.plan(n_tokens, has_limit=seconds is not None)
    with counted(n_steps, "token", decoding.progress) as measuring.done:
        return measuring.result()


@dataclass
class _Measuring:
    """Arguments of a `measure` call, and its results so far."""

    setup: Setup
    name: str
    draft: Any
    gammas: list[int]
    samplings: list[DecodingOptions]
    leniences: list[float]
    timing: Timing | None
    limit: TimeLimit
    say: Callable[[str], object]
    done: Callable[[int], object] = lambda n: None
    share: int = 0  # counted new tokens per prompt
    work: experiment.Work = ()  # counted work of a draft measured by running
    timed: experiment.Work = ()
    timed_leniences: list[float] = field(default_factory=list)
    texts: dict[float, prediction.Acceptance] = field(default_factory=dict)
    speedups: dict[tuple[float, float, int], Speedup] = field(default_factory=dict)
    rows: list[ExperimentRow] = field(default_factory=list)
    times: prediction.ForwardTimes | None = None

    def plan(self, n_tokens: int, *, has_limit: bool) -> int:
        """Decide how many tokens to count and to time; return how many are decoded in total."""
        setup, timing = self.setup, self.timing
        running = not arguments.has_distribution(self.draft)
        n_counted = len(self.leniences) * len(self.gammas) if running else 1
        n_runs = n_timed = 0
        if timing is not None:
            self.timed_leniences = [one for one in self.leniences if timing.leniences or one == 1.0]
            n_runs = len(self.timed_leniences) * timing.repeats * (len(self.gammas) + 1)
            n_timed = timing.n_tokens
        self.share = setup.share(n_tokens)
        if has_limit:
            step_s = prediction.step_seconds(setup) * len(self.samplings)
            fitting = _COUNTING * self.limit.left_s / step_s / n_counted / len(setup.prompts)
            self.share = int(min(self.share, max(_FEWEST, fitting)))
            n_timed = int(min(n_timed, max(_FEWEST, _TIMING * self.limit.left_s / step_s / max(n_runs, 1))))
        if isinstance(self.draft, arguments.RUN_BY_THE_CORE):
            self.timed = setup.work(n_timed, self.share)
        self.work = setup.work(len(setup.prompts) * self.share)
        n_of_texts = sum(n for _, n in self.work) if running else len(setup.prompts) * self.share
        return (n_counted * n_of_texts + n_runs * sum(n for _, n in self.timed)) * len(self.samplings)

    def result(self) -> Measurement:
        """Measure until everything is done, the time is over or Ctrl-C is pressed."""
        try:
            done = self._by_distribution() if arguments.has_distribution(self.draft) else self._by_running()
            stopped = "" if done else self.limit.reason
        except KeyboardInterrupt:
            if not (self.texts or self.rows):
                raise
            stopped = "interrupted"
        settings = itertools.product(self.texts, self.leniences, self.gammas)
        self.rows += [self._row(*setting) for setting in settings]
        times, texts, setup = self.times, self.texts, self.setup
        betas = {temperature: found.betas[1.0] for temperature, found in texts.items()}
        return Measurement(
            target=setup.name, draft=self.name, rows=tuple(self.rows),
            verify_ratio={} if times is None else times.verify_ratio,
            target_s=math.nan if times is None else times.target_s[1],
            draft_s=math.nan if times is None or not texts else times.draft_s,
            independence={t: Independence.of(t, one, max(self.gammas)) for t, one in betas.items()},
            betas=betas, tokens={temperature: found.tokens for temperature, found in texts.items()},
            text={t: found.text for t, found in texts.items() if found.text is not None} or None,
            prompts=[prompt.given for prompt in setup.prompts], seed=setup.seed,
            n_threads=setup.options.threads, stopped=stopped,
        )  # fmt: skip

    def _by_distribution(self) -> bool:
        """Compare the draft's distribution with the target's, then time runs; False if the time ran out."""
        for options in self.samplings:
            found = self.texts[options.temperature] = prediction.acceptance(
                self.setup, self.draft, options, n_tokens=self.share, done=self.done,
                leniences=list(dict.fromkeys([1.0, *self.leniences])),  # always keep the exact rule's betas
            )  # fmt: skip
            self.say(_alpha_in_words(options.temperature, found.betas[1.0]))
        self._time(self.texts[self.samplings[0].temperature].tokens)
        groups = list(itertools.product(self.samplings, self.timed_leniences)) if self.timed else []
        for (options, lenience), part in self.limit.shares(groups):
            plain, drafted = self._run_timed(options, lenience, part)
            for gamma, run in drafted.items():
                speedup = self.speedups[options.temperature, lenience, gamma] = run.over(plain)
                self.say(_speedup_in_words(options.temperature, lenience, gamma, speedup))
        return len(self.speedups) == len(groups) * len(self.gammas)

    def _row(self, temperature: float, lenience: float, gamma: int) -> ExperimentRow:
        """Combine distributions, times and runs into a row."""
        texts = self.texts[temperature]
        row = prediction.predicted_row(self.name, texts, self.times, temperature, gamma, lenience)
        speedup = self.speedups.get((temperature, lenience, gamma))
        tokens = math.nan if speedup is None else statistics.mean(speedup.tokens_per_call)
        return replace(row, speedup=speedup, tokens_per_call=tokens)

    def _by_running(self) -> bool:
        """Count and time runs of a draft without its own distribution; False if the time ran out."""
        groups = list(itertools.product(self.samplings, self.leniences))
        for (options, lenience), part in self.limit.shares(groups):
            _, counting = self._run(options, lenience, self.work, repeats=1, timing=False)
            plain, drafted = None, counting
            if lenience in self.timed_leniences:
                plain, drafted = self._run_timed(options, lenience, part)
            for gamma, run in counting.items():
                row = run.row(self.name)
                reason = "; ".join(filter(None, (row.reason, _NO_FORMULA)))
                timed = {} if plain is None else drafted[gamma].timing(plain)
                self.rows.append(replace(row, reason=reason, **timed))
                said = _speedup_in_words(options.temperature, lenience, gamma, self.rows[-1].speedup)
                self.say(f"{said}, tokens per pass {row.tokens_per_call:.2f}")
            if self.times is None:
                self._time([result.tokens for result in counting[self.gammas[0]].results])
        return len(self.rows) == len(groups) * len(self.gammas)

    def _run_timed(self, options: DecodingOptions, lenience: float, limit: TimeLimit) -> Any:
        assert self.timing is not None
        return self._run(options, lenience, self.timed, repeats=self.timing.repeats, limit=limit)

    def _run(
        self, options: DecodingOptions, lenience: float, work: experiment.Work, **how: Any
    ) -> tuple[experiment.Configuration, dict[int, experiment.Configuration]]:
        """Run plain decoding and the draft at each gamma, interleaved."""
        drafts = {gamma: (self.draft, gamma) for gamma in self.gammas}
        runs = self.setup.runs(temperature=options.temperature, lenience=lenience)
        how |= {"seed": self.setup.seed, "done": self.done}
        return experiment.interleaved(self.setup.target, drafts, work, runs, **how)

    def _time(self, tokens: Sequence[Sequence[int]]) -> None:
        """Time forward passes for all row counts of the rounds, if requested."""
        if self.timing is not None:
            self.times = prediction.forward_times(self.setup, self.draft, tokens, max(self.gammas) + 1)


def _alpha_in_words(temperature: float, betas: Sequence[Array]) -> str:
    alpha, (low, high), n = prediction.mean_of(betas), mean_interval(betas), sum(map(len, betas))
    return f"temperature {temperature:g}: alpha {alpha:.3f} ({low:.3f} to {high:.3f}), {n} tokens"


def _speedup_in_words(temperature: float, lenience: float, gamma: int, speedup: Speedup | None) -> str:
    lenient = "" if lenience == 1.0 else f", lenience {lenience:g}"
    setting = f"temperature {temperature:g}{lenient}, gamma {gamma}"
    if speedup is None:
        return f"{setting}: not timed"
    return f"{setting}: measured speed-up {speedup.text()} ({speedup.interval})"


_SAMPLING: Final[Column] = ("sampling", lambda row: f"T={row.temperature:g}")
_ALPHA: Final[Column] = figure("alpha", "alpha", ".2f")


def tables(rows: Sequence[ExperimentRow], target: str) -> list[Table]:
    """Return the paper's Tables 2 to 5 for rows of one or several drafts."""
    exact = [row for row in rows if row.lenience == 1.0]
    ran = [row for row in exact if row.speedup is not None]
    by_distribution = [row for row in rows if not row.by_running]
    predicted = [row for row in exact if not row.by_running]
    found = [_speedup_table(ran, target)] if ran else []
    if predicted:
        title = f"Table 3: acceptance rates of drafts for {target} (Corollary 3.6)"
        columns = [*experiment.columns_of("draft"), _SAMPLING]
        columns += experiment.columns_of("alpha", "alpha_interval", "n_tokens")
        found.append(Table.of(title, _first_of_each(predicted), columns))
    if any(row.predicted_speedup is not None for row in predicted):
        title = "Table 4: speed-up predicted with t(γ+1)/t(1), measured (min to max), ideal (Theorem 3.8)"
        columns = [
            *experiment.columns_of(*experiment.SETTINGS), _ALPHA, *experiment.columns_of("c"),
            figure("t(γ+1)/t(1)", "verify_ratio", ".2f"),
            ("predicted", lambda row: marked(or_dash(row.predicted_speedup, ".2f"), row.invalid_prediction)),
            ("measured", _measured), figure("ideal", "ideal_speedup", ".2f"),
        ]  # fmt: skip
        found.append(Table.of(title, predicted, columns))
    if len({row.lenience for row in by_distribution}) > 1:
        found.append(_lenience_table(by_distribution))
    return found


def _speedup_table(ran: Sequence[ExperimentRow], target: str) -> Table:
    """Return Table 2; a star marks the fastest valid row per draft and temperature, if it pays."""
    fastest: dict[Any, ExperimentRow] = {}
    for row in ran:
        # If none is above 1, plain decoding is fastest.
        least = fastest[row.setting].timed.median if row.setting in fastest else 1.0
        if not row.invalid and row.timed.median > least:
            fastest[row.setting] = row
    columns = [*experiment.columns_of("draft", "temperature"), experiment.starred(fastest.values()), _ALPHA]
    columns.append(("speed-up (min to max)", lambda row: _measured(row, "X")))
    title = f"Table 2: measured speed-up of {target} (★ fastest, if it beats plain decoding)"
    return Table.of(title, ran, columns)


def _running_tables(rows: Sequence[ExperimentRow]) -> list[Table]:
    """Return tables of rows measured by running: counts, costs, acceptance by position; [] if none."""
    ran = [row for row in rows if row.by_running]
    if not ran:
        return []
    settings = ("draft", "temperature", "lenience", "gamma")
    names = [*settings, "n_tokens", "tokens_per_call", "tokens_interval", "alpha", "alpha_interval"]
    named = any(row.named_share is not None for row in ran)
    names += [*["named_share"] * named, "c", "verify_ratio"]
    title = "Measured by running (intervals: 95 %; c and t(round) in units of a plain target pass"
    title += f"{experiment.NAMED if named else ''})"
    found = Table.of(title, ran, experiment.columns_of(*names))
    return [found, *experiment.position_tables(ran, settings), *experiment.reason_tables(ran)]


def _measured(row: ExperimentRow, unit: str = "") -> str:
    """Format the measured speed-up and its spread; empty if not measured."""
    if row.speedup is None:
        return ""
    return experiment.EQUALS_PLAIN if row.is_plain else f"{row.speedup.text(unit)} ({row.speedup.interval})"


def _lenience_table(rows: Sequence[ExperimentRow]) -> Table:
    leniences = list(dict.fromkeys(row.lenience for row in rows))

    def cell(first: ExperimentRow, lenience: float) -> str:
        alike = [row for row in rows if row.setting == first.setting and row.lenience == lenience]
        found = or_dash(alike[0].alpha, ".2f") if alike else ""
        timed = [row for row in alike if row.predicted_speedup is not None]
        if not timed:
            return found
        best = max(timed, key=lambda row: experiment.number_of(row.predicted_speedup))
        promised = experiment.number_of(best.predicted_speedup)
        predicted = marked(f"{promised:.2f}X", best.invalid_prediction)
        choice = f"{predicted}, γ {best.gamma}" if promised > 1.0 else "1X, γ 0"  # plain decoding
        ran = "" if best.speedup is None else f"; measured {_measured(best, 'X')}"
        return f"{found} ({choice}{ran})"

    title = "Table 5: alpha by lenience l"
    if any(row.predicted_speedup is not None for row in rows):
        title += " (in parentheses: predicted speed-up at the best gamma)"
    columns = [*experiment.columns_of("draft"), _SAMPLING]
    columns += [(f"l = {lenience:g}", partial(cell, lenience=lenience)) for lenience in leniences]
    return Table.of(title, _first_of_each(rows), columns)


def _independence_table(found: Sequence[Independence], draft: str) -> Table:
    n_lags = max(len(one.autocorrelation) for one in found)
    cells: dict[str, Iterable[str]] = {
        f"correlation with lag {lag + 1}": [or_dash(one.autocorrelation[lag], "+.3f") for one in found]
        for lag in range(min(3, n_lags))
    }
    cells["95 % band if uncorrelated"] = (f"±{one.band:.3f}" for one in found)
    cells[f"Ljung-Box, {n_lags} lags"] = (or_dash(one.statistic, ".1f") for one in found)
    cells["p value"] = ("< 1e-300" if one.p_value == 0.0 else or_dash(one.p_value, ".2g") for one in found)
    for i in range(max(len(one.by_position) for one in found)):  # empty if no round reached it
        cells[f"draft {i + 1} accepted"] = [or_dash(one.by_position[i], ".3f", none="") for one in found]
    head = ("Are betas independent?", *(f"T={one.temperature:g}" for one in found))
    title = f"Independence of acceptances of {draft} (section 3.1)"
    return Table(title, head, [(name, *several) for name, several in cells.items()])


def _first_of_each(rows: Sequence[ExperimentRow]) -> list[ExperimentRow]:
    """Return the first row of each draft and temperature."""
    firsts: dict[Any, ExperimentRow] = {}
    for row in rows:
        firsts.setdefault(row.setting, row)
    return list(firsts.values())
