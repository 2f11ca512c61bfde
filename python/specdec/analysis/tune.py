"""Choosing gamma, and a draft, by what drafting and verification cost on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from specdec import theory
from specdec.analysis import arguments, prediction
from specdec.analysis.arguments import MeasurableDraftLike, Setup
from specdec.analysis.compare import compare_ways
from specdec.analysis.experiment import ExperimentRow, columns_of, number_of, starred
from specdec.checks import check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.drafts import EarlyExit
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.errors import InputError, kind_of
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import OneTable, Table, figure, interval, marked, plain

_REPEATS: Final = 3  # turns, where drafts are run
_LOOKED_AT: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # gammas, where drafts are run
_OWNS: Final = {"gamma": "max_gamma", "max_new_tokens": "n_tokens", "lenience": "1.0, the exact rule"}


@dataclass(frozen=True, repr=False)
class Tuning(OneTable):
    """The gamma that promises most, and why; ``print`` shows it, a notebook too.

    Attributes
    ----------
    target, draft, temperature : str, str, float
    rows : dict of int to ExperimentRow
        By gamma: what acceptance and costs predict, plain decoding (0) included; or what runs gave
        (`ExperimentRow.by_running`).
    choice : Model, Draft or object
        The draft, as `generate` takes it.
    others : tuple of Tuning
        Where several drafts were given: the tunings of the others, best first.
    """

    target: str
    draft: str
    temperature: float
    rows: dict[int, ExperimentRow]
    choice: Any = None
    others: tuple[Tuning, ...] = ()

    @property
    def gamma(self) -> int:
        """Drafted tokens a round with the highest speed-up, the smallest of equal ones; 0: plain decoding.

        Measured speed-ups that are errors of measurement do not count, nor do those of drafts that drafted
        nothing.
        """
        speedups = self.speedups
        for gamma, row in self.rows.items():
            if (row.by_running and (row.invalid or row.is_plain)) or math.isnan(speedups[gamma]):
                del speedups[gamma]
        return max(sorted(speedups), key=lambda gamma: speedups[gamma], default=0)

    @property
    def row(self) -> ExperimentRow:
        """What was found with `gamma`; with the smallest one that was run where none pays."""
        return self.rows.get(self.gamma, self.rows[min(self.rows)])

    @property
    def speedups(self) -> dict[int, float]:
        """Speed-up over plain decoding by gamma; of a draft that was run the median of the measured ones.

        Predicted as E(tokens) / (gamma c + t(gamma + 1) / t(1)), where a ratio of times below 1 counts as 1;
        so none is above `idealised`.
        """
        return {0: 1.0} | {gamma: row.speedup_bounds[0] for gamma, row in self.rows.items()}

    @property
    def speedup_intervals(self) -> dict[int, tuple[float, float]]:
        """(low, high) of each: at both ends of alpha's confidence interval, or of the measured ones."""
        return {0: (1.0, 1.0)} | {gamma: row.speedup_bounds[1:] for gamma, row in self.rows.items()}

    @property
    def invalid_predictions(self) -> dict[int, str]:
        """Why a speed-up is or comes from an error of measurement, by gamma; without those that are valid.

        A forward pass on several positions takes at least as long as on one. Where it seems to take less, as
        on a busy machine, t(gamma + 1) / t(1) is below 1, or a measured speed-up above the tokens per pass.
        """
        reasons = {gamma: row.invalid or row.invalid_prediction for gamma, row in self.rows.items()}
        return {gamma: reason for gamma, reason in reasons.items() if reason}

    @property
    def idealised(self) -> dict[int, float]:
        """The ideal speed-up by gamma: Theorem 3.8, where verification takes as long as one position.

        Empty for a draft that was measured by running, of which the theorem says nothing.
        """
        return {g: row.ideal_speedup for g, row in self.rows.items() if row.ideal_speedup is not None}

    @property
    def idealised_gamma(self) -> int | None:
        """The gamma that Theorem 3.8 would choose, among those looked at; None where it says nothing."""
        if self.row.by_running:
            return None
        return int(
            theory.optimal_gamma(number_of(self.row.alpha), number_of(self.row.c), max_gamma=max(self.rows))
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON; None where there is no number."""
        row, intervals = self.row, self.speedup_intervals
        of_rows = ("verify_ratio", "tokens_per_call", "by_position", "c")
        figures = [
            {
                "gamma": gamma, "speedup": speedup, "speedup_interval": intervals[gamma],
                "invalid": self.invalid_predictions.get(gamma, ""), "idealised": self.idealised.get(gamma),
                **{name: getattr(self.rows.get(gamma), name, None) for name in of_rows},
            }
            for gamma, speedup in self.speedups.items()
        ]  # fmt: skip
        of_self = ("target", "draft", "temperature", "others", "gamma", "idealised_gamma")
        of_row = ("n_tokens", "c", "alpha", "alpha_low", "alpha_high", "reason")
        found = {name: plain(getattr(self, name)) for name in of_self}
        return found | {name: plain(getattr(row, name)) for name in of_row} | {"rows": plain(figures)}

    def table(self) -> Table:
        """Every gamma with its speed-ups; the chosen one has a star."""
        if self.row.by_running:
            return self._table_of_runs()
        row = self.row
        title = (
            f"{self.draft} drafting for {self.target} at temperature {self.temperature:g}: "
            f"alpha {row.alpha:.3f} ({row.alpha_low:.3f} to {row.alpha_high:.3f}), c {self.row.c:.3f}"
        )
        columns = [
            starred([self.rows[self.gamma]]),
            figure("t(γ+1)/t(1)", "verify_ratio", ".2f"),
            ("predicted", lambda row: marked(f"{row.predicted_speedup:.2f}X", row.invalid_prediction)),
            ("95 % by alpha", lambda row: interval(*row.speedup_bounds[1:], ".2f")),
            figure("ideal (Theorem 3.8)", "ideal_speedup", ".2f", "X"),
        ]
        return Table.of(title, list(self.rows.values()), columns)

    def _table_of_runs(self) -> Table:
        best = f"{self.draft} with gamma {self.gamma}" if self.gamma else "plain decoding"
        chosen = [self.rows[self.gamma]] if self.gamma in self.rows else []
        names = ("alpha", "tokens_per_call", "c", "verify_ratio", "speedup", "speedup_interval")
        return Table.of(
            f"Drafting for {self.target} at temperature {self.temperature:g}: {best} is fastest",
            [row for one in (self, *self.others) for row in one.rows.values()],
            [*columns_of("draft"), starred(chosen), *columns_of(*names)],
        )

    def __repr__(self) -> str:
        row, several = self.row, f"{self.draft}, " if self.others else ""
        speedup = marked(f"{self.speedups[self.gamma]:.2f}", self.invalid_predictions.get(self.gamma))
        found = f"{'measured' if row.by_running else 'predicted'} speed-up {speedup}"
        alpha = "" if row.alpha is None else f", alpha {row.alpha:.3f}"
        return f"<specdec.Tuning: {several}gamma {self.gamma}, {found}{alpha}, c {number_of(row.c):.3f}>"


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
    """Choose gamma, or a draft and its gamma, by measured acceptance, cost and time of verification.

    Theorem 3.8 takes the target to verify any number of positions in the time of one. Here that time is
    measured, so the choice holds where arithmetic, not memory, sets the speed, too. A draft without a
    distribution of its own (`specdec.measure`) is run with some gammas, in turns with plain decoding, and so
    are several drafts; the fastest is chosen with its gamma.

    Parameters
    ----------
    target, prompts
        As of `specdec.measure`.
    draft : as in `specdec.measure`, a list of these, a dict of these by name, or the class `EarlyExit`
        The class means exits at every layer of the target, or at six of a deep one: so a target that was
        trained to leave early is served at its best.
    max_gamma, n_tokens : int, default 8 and 400
        The largest gamma looked at, and tokens that the target generates in all. Where drafts are run, the
        gamma that a draft asks for by itself is looked at too, and each has so many tokens in each turn.
    options : DecodingOptions, optional
        Of the runs; where acceptance and costs predict the speed-up, `temperature`, `top_k`, `top_p` and
        `min_p`, `seed` (default 0) and `n_threads` alone.

    Returns
    -------
    Tuning
        ``tuning.gamma`` is the choice, ``tuning.speedups`` what every gamma promises, ``tuning.choice`` the
        draft.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.measure`.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> tuning = specdec.tune(target, draft)
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=tuning.gamma)
    >>> tuning = specdec.tune(target, {"small": draft, "copies": specdec.drafts.ContextCopy()})
    >>> out = specdec.generate(target, tuning.choice, "It was a dark and stormy night", gamma=tuning.gamma)
    """
    max_gamma = check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
    n_tokens = check_integer("n_tokens", n_tokens, 1)
    decoding = arguments.decoding_options(options, changes, _OWNS)
    setup = Setup.of(target, decoding, prompts)
    given = _candidates(setup.target, draft)
    drafts = {name: arguments.measurable(setup.target, one) for name, one in given.items()}
    rows: Sequence[ExperimentRow]
    if len(drafts) == 1 and all(map(arguments.has_distribution, drafts.values())):
        arguments.decoding_options(options, changes, _OWNS, in_distributions=True)
        rows = _predicted(setup, drafts, max_gamma, n_tokens)
    else:
        rows = _ran(setup, drafts, max_gamma, n_tokens)
    temperature = decoding.temperature
    by_gamma = {name: {row.gamma: row for row in rows if row.draft == name} for name in drafts}
    tunings = [Tuning(setup.name, name, temperature, by_gamma[name], given[name]) for name in drafts]
    best, *others = sorted(tunings, key=lambda one: -one.speedups[one.gamma])
    return replace(best, others=tuple(others))


def _candidates(target: Model, draft: Any) -> dict[str, Any]:
    """The drafts by name, loaded where they are paths."""
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
    """Predict the speed-up of each gamma, of the one draft, by acceptance and costs."""
    ((name, draft),) = drafts.items()
    share = setup.share(n_tokens)
    with counted(len(setup.prompts) * share, "token", setup.options.progress) as done:
        texts = prediction.acceptance(setup, draft, setup.options, leniences=[1.0], n_tokens=share, done=done)
    times = prediction.forward_times(setup, draft, texts.tokens, max_gamma + 1)
    return [
        prediction.predicted_row(name, texts.betas[1.0], times, setup.options.temperature, gamma)
        for gamma in range(max_gamma + 1)
    ]


def _ran(setup: Setup, drafts: Mapping[str, Any], max_gamma: int, n_tokens: int) -> tuple[ExperimentRow, ...]:
    """Run drafts with some gammas and plain decoding in turns."""
    for name, one in drafts.items():
        if not isinstance(one, arguments.RUN_BY_THE_CORE):
            raise InputError(f"draft {name!r} is {kind_of(one)}; expected drafts that generate takes")
    ways = {
        (name, gamma): (draft, gamma) for name, draft in drafts.items() for gamma in _gammas(draft, max_gamma)
    }
    temperatures = [setup.options.temperature]
    return compare_ways(setup, ways, n_tokens, temperatures=temperatures, repeats=_REPEATS).rows


def _gammas(draft: Model | Draft, max_gamma: int) -> list[int]:
    own = [draft.gamma] if isinstance(draft, Draft) and draft.gamma else []
    return sorted({*(gamma for gamma in _LOOKED_AT if gamma < max_gamma), max_gamma, *own})
