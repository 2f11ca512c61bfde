"""`compare` and `tune`: interleaved runs of drafts, and the choice of a draft and gamma."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from specdec.analysis import arguments, experiment, prediction
from specdec.analysis.arguments import MeasurableDraftLike, Setup
from specdec.analysis.experiment import ExperimentRow, Speedup, number_of
from specdec.checks import check_flag, check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.decoding.prompts import PromptIds
from specdec.drafts import EarlyExit
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, printable, type_of
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import OneTable, Table, Tabular, figure, figures_frame, marked, plain

_LABEL: Final = 40  # characters of a prompt to show
_OWNS: Final = {"gamma": "gammas", "temperature": "temperatures", "max_new_tokens": "n_tokens"}
Candidates: TypeAlias = Mapping[tuple[str, int], tuple[Model | Draft, int]]
"""Drafts with their gammas, by name and gamma."""


def compare(
    target: ModelLike | dict[str, ModelLike],
    drafts: Mapping[str, DraftLike],
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    gammas: Sequence[int] | None = None,
    n_tokens: int = 400,
    repeats: int = 5,
    timing: bool = True,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> Comparison:
    """Compare any drafts for one target by running them.

    Every draft, at each gamma, and plain decoding continue the same prompts in interleaved runs, so all of
    them see the same machine. Counts (acceptance, tokens per pass) and times come from the same runs and
    mean the same for every draft, models included. A draft that learns from texts learns within each
    repetition, from its prompts in order, otherwise as in `specdec.measure`.

    Parameters
    ----------
    target, prompts, temperatures
        As in `specdec.measure`.
    drafts : dict of str to Model, path, hub name, Draft, Drafter or str
        Drafts by names you choose. A str is a path or a name for `specdec.drafts.named`, such as
        ``"prompt-lookup"``.
    gammas : sequence of int, optional
        Maximum number of draft tokens per round, each 1 to 1024; None: each draft's own default.
    n_tokens, repeats : int, default 400 and 5
        New tokens of each draft per repetition, gamma and temperature, shared by the prompts; repetitions.
        Sampled texts differ between repetitions.
    timing : bool, default True
        False: one repetition, without plain decoding and times.
    options : DecodingOptions, optional
        Decoding options. Prompt i of repetition k has the key (seed + k, i); `seed` is 0 by default.

    Returns
    -------
    Comparison
        ``print`` shows its tables; `specdec.plot` draws it by position, by prompt and by temperature.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As in `specdec.measure`; or the rule (`verify`) cannot judge a draft's output, such as trees.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> candidates = {"small model": draft, "copies": specdec.drafts.PromptLookup()}
    >>> found = specdec.compare(target, candidates, ["Once upon a time", "It was a dark and stormy night"])
    >>> print(found)
    """
    decoding = arguments.decoding_options(options, changes, _OWNS)
    temperatures = arguments.different_numbers("temperatures", temperatures)
    asked = [decoding.replace(temperature=one).temperature for one in temperatures]
    chosen = None if gammas is None else arguments.check_gammas(gammas)
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    timing = check_flag("timing", timing)
    repeats = repeats if timing else 1
    setup = Setup.of(target, decoding, prompts)
    candidates: Candidates = {
        (name, gamma): (draft, gamma)
        for name, given in arguments.drafts_by_name("drafts", setup.target, drafts).items()
        for draft in [as_draft(setup.target, given)]
        for gamma in chosen or [max(draft.gamma, 1)]
    }
    return compare_drafts(setup, candidates, n_tokens, temperatures=asked, repeats=repeats, timing=timing)


def compare_drafts(
    setup: Setup, candidates: Candidates, n_tokens: int, *, temperatures: Sequence[float], repeats: int,
    timing: bool = True, **how: Any,
) -> Comparison:  # fmt: skip
    """Run drafts at their gammas, and plain decoding, interleaved; `how` as in `interleaved`."""
    work = setup.work(n_tokens)
    rows: list[ExperimentRow] = []
    rates: dict[float, tuple[float, ...]] = {}
    n_steps = len(temperatures) * repeats * (len(candidates) + timing) * sum(n for _, n in work)
    with counted(n_steps, "token", setup.options.progress) as done:
        for temperature in temperatures:
            plain, running = experiment.interleaved(
                setup.target, candidates, work, setup.runs(temperature=temperature), repeats=repeats,
                seed=setup.seed, timing=timing, done=done, **how,
            )  # fmt: skip
            for (name, _), run in running.items():
                rows.append(run.row(name, plain if timing else None, by_prompt=True))
            if timing:
                rates[temperature] = plain.tokens_per_s
    prompts = setup.prompts[: len(work)]
    labels = tuple(_label(setup.target, prompt) for prompt in prompts)
    settings = setup.described(n_tokens=n_tokens, repeats=repeats)
    return Comparison(setup.name, tuple(rows), rates, [one.given for one in prompts], labels, settings)


def _label(target: Model, prompt: PromptIds) -> str:
    text = prompt.source_text(target)
    if text is None and prompt.source is None and target.tokenizer is not None:
        text = target.tokenizer.decode(prompt.ids)
    words = " ".join(map(str, prompt.given)) if text is None else " ".join(text.split())
    return printable(words if len(words) <= _LABEL else words[: _LABEL - 1] + "…")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """Result of `specdec.compare`; ``print`` and notebooks show its tables.

    Attributes
    ----------
    target : str
    rows : tuple of ExperimentRow
        By temperature, then draft, then gamma.
    plain_tokens_per_s : dict of float to tuple of float
        New tokens per second of plain decoding in each repetition, by temperature; empty without timing.
    prompts, labels : list of list of int, tuple of str
        Token ids of the prompts (an encoder-decoder's sources), and the start of their texts.
    settings : dict of str to object
        Arguments: n_tokens, repeats, seed, n_threads and other decoding options.
    """

    target: str
    rows: tuple[ExperimentRow, ...]
    plain_tokens_per_s: dict[float, tuple[float, ...]]
    prompts: list[list[int]]
    labels: tuple[str, ...]
    settings: dict[str, Any]

    def __getitem__(self, draft: str) -> list[ExperimentRow]:
        """Return the rows of a draft; KeyError if there is none."""
        found = [row for row in self.rows if row.draft == draft]
        if not found:
            raise KeyError(draft)
        return found

    @property
    def drafts(self) -> tuple[str, ...]:
        """Names of the drafts, in the order given."""
        return tuple(dict.fromkeys(row.draft for row in self.rows))

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures, in the order given."""
        return tuple(dict.fromkeys(row.temperature for row in self.rows))

    def best(self, temperature: float) -> ExperimentRow | None:
        """Return the fastest row at a temperature with a valid speed-up; None: plain decoding is fastest."""
        faster = [row for row in self.ranked(temperature) if row.timed.median > 1.0]
        return faster[0] if faster else None

    def ranked(self, temperature: float) -> list[ExperimentRow]:
        """Return the rows at a temperature that drafted, with a valid speed-up, fastest first."""
        rows = [row for row in self.rows if row.temperature == temperature and row.speedup is not None]
        valid = [row for row in rows if not row.invalid and not row.is_plain]
        return sorted(valid, key=lambda row: -row.timed.median)

    def tables(self) -> list[Table]:
        """Return the summary, acceptance by position, results by prompt, and reasons for missing values."""
        found = [self.summary(), *experiment.position_tables(self.rows, experiment.SETTINGS)]
        if len(self.prompts) > 1:
            found.append(self._by_prompt())
        return [*found, *experiment.reason_tables(self.rows)]

    def summary(self) -> Table:
        """Return one table of all drafts and plain decoding."""
        timed = bool(self.plain_tokens_per_s)
        named = any(row.named_share is not None for row in self.rows)
        names = ["alpha", "alpha_interval", "tokens_per_call", "tokens_interval", *["named_share"] * named]
        names += ["c", "verify_ratio", "tokens_per_s", "speedup", "speedup_interval"] * timed
        body: list[ExperimentRow] = []
        for temperature in self.temperatures:
            if timed:
                plain = ExperimentRow(
                    draft="plain decoding", temperature=temperature, gamma=0, tokens_per_call=1.0,
                    verify_ratio=1.0, tokens_per_s=self.plain_tokens_per_s[temperature],
                    speedup=Speedup((1.0,), (1.0,)),
                )  # fmt: skip
                body.append(plain)
            body += [row for row in self.rows if row.temperature == temperature]
        best = [row for row in map(self.best, self.temperatures) if row is not None]
        columns = [*experiment.columns_of("draft", "temperature"), experiment.starred(best)]
        n_settings = len(columns)
        columns += experiment.columns_of(*names)
        optional = tuple(n_settings + names.index(name) for name in _OPTIONAL if name in names)
        notes = "; ★ fastest, if it beats plain decoding" * timed + experiment.NAMED * named
        return Table.of(f"Drafts for {self.target}{notes}", body, columns, optional)

    def _by_prompt(self) -> Table:
        def cell(row: ExperimentRow, i: int) -> str:
            if i >= len(row.prompts):
                return "–"
            one = row.prompts[i]
            return f"{one.tokens_per_call:.2f}" + (f" ({one.speedup.text()})" if one.speedup else "")

        shown = "\n".join(f"{i}: {label}" for i, label in enumerate(self.labels))
        timed = " (measured speed-up)" if self.plain_tokens_per_s else ""
        columns = experiment.columns_of(*experiment.SETTINGS)
        columns += [(str(i), partial(cell, i=i)) for i in range(len(self.prompts))]
        return Table.of(f"Tokens per pass{timed} by prompt\n{shown}", self.rows, columns)

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame` with columns such as ``speedup_low``; NaN if missing."""
        rows = [replace(row, speedup=row.timed) for row in self.rows]
        return figures_frame(rows, "drafted_per_call", "draft_acceptance_rate")

    def __repr__(self) -> str:
        drafts = ", ".join(map(repr, self.drafts))
        return f"<specdec.Comparison of {drafts} drafting for {self.target!r}: {len(self.rows)} rows>"


_OPTIONAL: Final = (
    "speedup_interval", "tokens_per_s", "named_share", "c", "verify_ratio", "alpha_interval",
    "tokens_interval",
)  # fmt: skip
"""Optional columns for narrow terminals, the most important first."""


_REPEATS: Final = 3  # repetitions of measured drafts
_LOOKED_AT: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # gammas of measured drafts
_OWNS_OF_TUNE: Final = {"gamma": "max_gamma", "max_new_tokens": "n_tokens", "lenience": "1.0, the exact rule"}


@dataclass(frozen=True, repr=False)
class Tuning(OneTable):
    """The most promising gamma, and the evidence; ``print`` and notebooks show it.

    Attributes
    ----------
    target, draft, temperature : str, str, float
    rows : dict of int to ExperimentRow
        By gamma: predictions from acceptance and costs, plain decoding (0) included; or measurements
        (`ExperimentRow.by_running`).
    choice : Model, Draft or object
        The draft, to pass to `generate`.
    others : tuple of Tuning
        If several drafts were given: the tunings of the others, best first.
    """

    target: str
    draft: str
    temperature: float
    rows: dict[int, ExperimentRow]
    choice: Any = None
    others: tuple[Tuning, ...] = ()

    @property
    def gamma(self) -> int:
        """Gamma with the highest valid speed-up, the smallest of ties; 0: plain decoding."""
        speedups = self.speedups
        for gamma, row in self.rows.items():
            if (row.by_running and (row.invalid or row.is_plain)) or math.isnan(speedups[gamma]):
                del speedups[gamma]
        return max(sorted(speedups), key=lambda gamma: speedups[gamma], default=0)

    @property
    def row(self) -> ExperimentRow:
        """Row of `gamma`; if no gamma pays, the row of the smallest one measured."""
        return self.rows.get(self.gamma, self.rows[min(self.rows)])

    @property
    def ran(self) -> bool:
        """Whether the draft was measured by running it."""
        return self.row.by_running

    @property
    def alpha(self) -> float | None:
        """Mean acceptance rate of `row` (Corollary 3.6); None for trees."""
        return self.row.alpha

    @property
    def c(self) -> float:
        """Cost coefficient of `row` (Definition 3.7); 0 for a draft that is not a model."""
        return number_of(self.row.c)

    @property
    def speedups(self) -> dict[int, float]:
        """Speed-up over plain decoding by gamma: measured median, or E(tokens) / (gamma c + t(gamma + 1)).

        t(gamma + 1) is in units of t(1); a ratio below 1 counts as 1, so no value exceeds `idealised`.
        """
        return {0: 1.0} | {gamma: row.speedup_bounds[0] for gamma, row in self.rows.items()}

    @property
    def speedup_intervals(self) -> dict[int, tuple[float, float]]:
        """(low, high) by gamma: at the ends of alpha's confidence interval, or the measured extremes."""
        return {0: (1.0, 1.0)} | {gamma: row.speedup_bounds[1:] for gamma, row in self.rows.items()}

    @property
    def invalid_predictions(self) -> dict[int, str]:
        """Reasons, by gamma, why a speed-up is a measurement error; valid ones are absent."""
        reasons = {gamma: row.invalid or row.invalid_prediction for gamma, row in self.rows.items()}
        return {gamma: reason for gamma, reason in reasons.items() if reason}

    @property
    def idealised(self) -> dict[int, float]:
        """Ideal speed-up by gamma (`ExperimentRow.ideal_speedup`); empty if measured by running."""
        return {g: row.ideal_speedup for g, row in self.rows.items() if row.ideal_speedup is not None}

    @property
    def idealised_gamma(self) -> int | None:
        """Gamma with the highest of `idealised`, the smallest of ties; None without predictions."""
        return None if self.ran else max(self.idealised, key=lambda gamma: self.idealised[gamma])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, ready for JSON; None for missing values."""
        intervals, ideal, invalid = self.speedup_intervals, self.idealised, self.invalid_predictions
        rows = []
        for gamma, speedup in self.speedups.items():
            row = self.rows.get(gamma)  # None: plain decoding of measured drafts
            ran = row if self.ran else None
            rows.append({
                "gamma": gamma, "speedup": speedup, "speedup_interval": intervals[gamma],
                "invalid": invalid.get(gamma, ""), "idealised": ideal.get(gamma),
                "verify_ratio": 1.0 if row is None else row.verify_ratio, "c": ran.c if ran else self.c,
                "tokens_per_call": ran and ran.tokens_per_call, "by_position": ran and ran.by_position,
            })  # fmt: skip
        of_self = ("target", "draft", "temperature", "others", "gamma", "idealised_gamma", "alpha", "c")
        found = {name: plain(getattr(self, name)) for name in of_self}
        of_row = ("n_tokens", "alpha_low", "alpha_high", "reason")
        return found | {name: plain(getattr(self.row, name)) for name in of_row} | {"rows": plain(rows)}

    def table(self) -> Table:
        """Return a table of all gammas and their speed-ups; a star marks the chosen one."""
        if self.ran:
            return self._table_of_runs()
        row = self.row
        title = (
            f"{self.draft} drafting for {self.target} at temperature {self.temperature:g}: "
            f"alpha {row.alpha:.3f} ({row.alpha_low:.3f} to {row.alpha_high:.3f}), c {self.c:.3f}"
        )
        columns = [
            experiment.starred([self.rows[self.gamma]]), figure("t(γ+1)/t(1)", "verify_ratio", ".2f"),
            ("predicted", lambda row: marked(f"{row.predicted_speedup:.2f}X", row.invalid_prediction)),
            ("95 % by alpha", lambda row: "{:.2f} to {:.2f}".format(*row.speedup_bounds[1:])),
            figure("ideal (Theorem 3.8)", "ideal_speedup", ".2f", "X"),
        ]  # fmt: skip
        return Table.of(title, list(self.rows.values()), columns)

    def _table_of_runs(self) -> Table:
        best = f"{self.draft} with gamma {self.gamma}" if self.gamma else "plain decoding"
        chosen = [self.rows[self.gamma]] if self.gamma in self.rows else []
        names = ("alpha", "tokens_per_call", "c", "verify_ratio", "speedup", "speedup_interval")
        return Table.of(
            f"Drafting for {self.target} at temperature {self.temperature:g}: {best} is fastest",
            [row for one in (self, *self.others) for row in one.rows.values()],
            [*experiment.columns_of("draft"), experiment.starred(chosen), *experiment.columns_of(*names)],
        )

    def __repr__(self) -> str:
        several = f"{self.draft}, " if self.others else ""
        speedup = marked(f"{self.speedups[self.gamma]:.2f}", self.invalid_predictions.get(self.gamma))
        found = f"{'measured' if self.ran else 'predicted'} speed-up {speedup}"
        alpha = "" if self.alpha is None else f", alpha {self.alpha:.3f}"
        return f"<specdec.Tuning: {several}gamma {self.gamma}, {found}{alpha}, c {self.c:.3f}>"


def tune(
    target: ModelLike | dict[str, ModelLike],
    draft: MeasurableDraftLike
    | type[EarlyExit]
    | Sequence[MeasurableDraftLike]
    | Mapping[str, MeasurableDraftLike],
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    max_gamma: int = 8,
    n_tokens: int = 400,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> Tuning:
    """Choose gamma, or a draft and its gamma, from measured acceptance, cost and verification time.

    Theorem 3.8 assumes that the target verifies any number of positions in the time of one. This function
    measures that time, so the choice also holds where arithmetic, not memory, limits the speed. Drafts
    without their own distribution (see `specdec.measure`), and several drafts, are run at some gammas,
    interleaved with plain decoding; the fastest wins.

    Parameters
    ----------
    target, prompts
        As in `specdec.measure`.
    draft : as in `specdec.measure`, a list of these, a dict of these by name, or the class `EarlyExit`
        The class stands for exits at every layer of the target, or at six layers of a deep one. Use it for a
        target trained for early exit.
    max_gamma, n_tokens : int, default 8 and 400
        Largest gamma to consider, and the number of tokens the target generates in total. Drafts that are run
        are also tried at their own gamma, each with this many tokens per repetition.
    options : DecodingOptions, optional
        Decoding options. If the speed-up is predicted from acceptance and costs, only `temperature`, `top_k`,
        `top_p`, `min_p`, `seed` (default 0) and `n_threads`.

    Returns
    -------
    Tuning
        ``tuning.gamma`` is the choice, ``tuning.speedups`` has the speed-up of every gamma, ``tuning.choice``
        is the draft.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As in `specdec.measure`.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> tuning = specdec.tune(target, draft)
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=tuning.gamma)
    >>> tuning = specdec.tune(target, {"small": draft, "copies": specdec.drafts.PromptLookup()})
    >>> out = specdec.generate(target, tuning.choice, "It was a dark and stormy night", gamma=tuning.gamma)
    """
    max_gamma = check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
    n_tokens = check_integer("n_tokens", n_tokens, 1)
    decoding = arguments.decoding_options(options, changes, _OWNS_OF_TUNE)
    setup = Setup.of(target, decoding, prompts)
    given = _candidates(setup.target, draft)
    drafts = {name: arguments.measurable(setup.target, one) for name, one in given.items()}
    rows: Sequence[ExperimentRow]
    if len(drafts) == 1 and all(map(arguments.has_distribution, drafts.values())):
        arguments.decoding_options(options, changes, _OWNS_OF_TUNE, in_distributions=True)
        rows = _predicted(setup, drafts, max_gamma, n_tokens)
    else:
        rows = _ran(setup, drafts, max_gamma, n_tokens)
    temperature = decoding.temperature
    by_gamma = {name: {row.gamma: row for row in rows if row.draft == name} for name in drafts}
    tunings = [Tuning(setup.name, name, temperature, by_gamma[name], given[name]) for name in drafts]
    best, *others = sorted(tunings, key=lambda one: -one.speedups[one.gamma])
    return replace(best, others=tuple(others))


def _candidates(target: Model, draft: Any) -> dict[str, Any]:
    """Return the drafts by name, loaded if given as paths."""
    if isinstance(draft, Mapping):
        return arguments.drafts_by_name("draft", target, draft)
    several = list(draft) if isinstance(draft, list | tuple) else [draft]
    if draft is EarlyExit:
        several = list(EarlyExit.exits(target))
    if not several:
        raise InputError.of("draft", draft, "at least one")
    found = [arguments.opened(one, target) for one in several]
    names = [arguments.name_of(arguments.measurable(target, one)) for one in found]
    return dict(zip(arguments.unique(names), found, strict=True))


def _predicted(setup: Setup, drafts: Mapping[str, Any], max_gamma: int, n_tokens: int) -> list[ExperimentRow]:
    """Predict the speed-up of the only draft at each gamma from acceptance and costs."""
    ((name, draft),) = drafts.items()
    share = setup.share(n_tokens)
    with counted(len(setup.prompts) * share, "token", setup.options.progress) as done:
        texts = prediction.acceptance(setup, draft, setup.options, leniences=[1.0], n_tokens=share, done=done)
    times = prediction.forward_times(setup, draft, texts.tokens, max_gamma + 1)
    return [
        prediction.predicted_row(name, texts, times, setup.options.temperature, gamma)
        for gamma in range(max_gamma + 1)
    ]


def _ran(setup: Setup, drafts: Mapping[str, Any], max_gamma: int, n_tokens: int) -> tuple[ExperimentRow, ...]:
    """Run drafts at some gammas, interleaved with plain decoding."""
    for name, one in drafts.items():
        if not isinstance(one, arguments.RUN_BY_THE_CORE):
            raise InputError(f"draft {name!r} is {type_of(one)}; expected a draft that generate takes")
    candidates: dict[tuple[str, int], tuple[Model | Draft, int]] = {}
    for name, draft in drafts.items():
        own = [draft.gamma] if isinstance(draft, Draft) and draft.gamma else []
        gammas = sorted({*(gamma for gamma in _LOOKED_AT if gamma < max_gamma), max_gamma, *own})
        candidates |= {(name, gamma): (draft, gamma) for gamma in gammas}
    temperatures = [setup.options.temperature]
    return compare_drafts(setup, candidates, n_tokens, temperatures=temperatures, repeats=_REPEATS).rows
