"""Choosing gamma, and a draft, by what drafting and verification cost on this machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from specdec import theory
from specdec.analysis.acceptance import acceptance
from specdec.analysis.arguments import (
    RUN_BY_THE_CORE,
    MeasurableDraftLike,
    Setup,
    decoding_options,
    drafts_by_name,
    has_distribution,
    measurable,
    name_of,
    opened,
    unique,
)
from specdec.analysis.experiment import ExperimentRow, decoding_experiment
from specdec.analysis.statistics import mean_interval
from specdec.analysis.timing import forward_times, sample_text
from specdec.checks import check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.drafts import EarlyExit
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.errors import InputError, kind_of
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import OneTable, Table, marked, or_dash, plain, record
from specdec.trace import invalid_ratio

_REPEATS: Final = 3  # turns, where drafts are run
_LOOKED_AT: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # gammas, where drafts are run
_OWNS: Final = {"gamma": "max_gamma", "max_new_tokens": "n_tokens", "lenience": "1.0, the exact rule"}


@dataclass(frozen=True, repr=False)
class Tuning(OneTable):
    """The gamma that promises most, and why; ``print`` shows it, a notebook too.

    Attributes
    ----------
    target, draft : str
        Names.
    temperature : float
    n_tokens : int
        Positions that alpha is the mean of; of a draft that was run, the tokens of its runs.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate (Corollary 3.6) and its 95 % confidence interval; of a draft that was run, at the
        positions that were verified with the chosen gamma. None for trees, see `reason`.
    c : float
        Cost coefficient (Definition 3.7); 0 for a draft that is no model.
    verify_ratio : dict of int to float
        t(M) / t(1) of the target, by the number M of positions in a run; of a draft that was run, the mean
        time of the target's runs with gamma M - 1 over that of plain decoding.
    ran : dict of int to ExperimentRow
        By gamma, what runs gave; empty where acceptance and costs predict the speed-up.
    reason : str
        Why figures are None; empty if none is.
    choice : Model, Draft or object
        The draft, as `generate` takes it.
    others : tuple of Tuning
        Where several drafts were given: the tunings of the others, best first.
    """

    target: str
    draft: str
    temperature: float
    n_tokens: int
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    c: float
    verify_ratio: dict[int, float]
    ran: dict[int, ExperimentRow] = field(default_factory=dict)
    reason: str = ""
    choice: Any = None
    others: tuple[Tuning, ...] = ()

    @property
    def gamma(self) -> int:
        """Drafted tokens a round with the highest speed-up; 0: plain decoding.

        Measured speed-ups that are errors of measurement do not count, nor do those of drafts that drafted
        nothing.
        """
        return best_gamma(self.speedups, _no_choices(self.ran))

    @property
    def speedups(self) -> dict[int, float]:
        """Speed-up over plain decoding by gamma.

        Predicted as E(tokens) / (gamma c + t(gamma + 1) / t(1)), where a ratio of times below 1 counts as 1;
        so none is above `idealised`. Of a draft that was measured by running the median of the measured ones.
        """
        if self.ran:
            return {0: 1.0} | {gamma: one.timed.median for gamma, one in self.ran.items()}
        return self._predicted(self.alpha)

    @property
    def invalid_predictions(self) -> dict[int, str]:
        """Why a speed-up is or comes from an error of measurement, by gamma; without those that are valid.

        A forward pass on several positions takes at least as long as on one. Where it seems to take less, as
        on a busy machine, t(gamma + 1) / t(1) is below 1, or a measured speed-up above the tokens per pass.
        """
        if self.ran:
            reasons = {gamma: one.invalid for gamma, one in self.ran.items()}
        else:
            reasons = {m - 1: invalid_ratio(m - 1, ratio) for m, ratio in self.verify_ratio.items()}
        return {gamma: reason for gamma, reason in reasons.items() if reason}

    @property
    def speedup_intervals(self) -> dict[int, tuple[float, float]]:
        """(low, high) of each of `speedups`.

        Of predicted ones at both ends of alpha's confidence interval, of measured ones the smallest and the
        largest.
        """
        if self.ran:
            spread = {gamma: (one.timed.low, one.timed.high) for gamma, one in self.ran.items()}
            return {0: (1.0, 1.0)} | spread
        low, high = self._predicted(self.alpha_low), self._predicted(self.alpha_high)
        return {gamma: (low[gamma], high[gamma]) for gamma in low}

    def _predicted(self, alpha: float | None) -> dict[int, float]:
        return {
            m - 1: float(theory.expected_speedup(_number(alpha), m - 1, self.c, max(ratio, 1.0)))
            for m, ratio in self.verify_ratio.items()
        }

    @property
    def idealised(self) -> dict[int, float]:
        """The ideal speed-up by gamma: Theorem 3.8, where verification takes as long as one position.

        Empty for a draft that was measured by running, of which the theorem says nothing.
        """
        if self.ran:
            return {}
        alpha = _number(self.alpha)
        return {m - 1: float(theory.expected_speedup(alpha, m - 1, self.c)) for m in self.verify_ratio}

    @property
    def idealised_gamma(self) -> int | None:
        """The gamma that Theorem 3.8 would choose, among those looked at; None where it says nothing."""
        if self.ran:
            return None
        return int(theory.optimal_gamma(_number(self.alpha), self.c, max_gamma=len(self.verify_ratio) - 1))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON; None where there is no number."""
        left_out = ("verify_ratio", "ran", "choice")  # in the rows, or no numbers
        found = {name: value for name, value in record(self).items() if name not in left_out}
        chosen = {"gamma": self.gamma, "idealised_gamma": self.idealised_gamma}
        return found | chosen | {"rows": plain(self._rows())}

    def _rows(self) -> list[dict[str, Any]]:
        invalid, intervals, ideal = self.invalid_predictions, self.speedup_intervals, self.idealised
        rows = []
        for gamma, speedup in self.speedups.items():
            ran = self.ran.get(gamma)
            rows.append(
                {
                    "gamma": gamma,
                    "verify_ratio": self.verify_ratio.get(gamma + 1, 1.0),
                    "speedup": speedup,
                    "invalid": invalid.get(gamma, ""),
                    "speedup_interval": list(intervals[gamma]),
                    "idealised": ideal.get(gamma),
                    "tokens_per_call": ran and ran.tokens_per_call,
                    "by_position": ran and list(ran.by_position),
                    "c": ran.c if ran else self.c,
                }
            )
        return rows

    def table(self) -> Table:
        """Every gamma with its speed-ups; the chosen one has a star."""
        if self.ran:
            return self._table_of_runs()
        rows = [
            (
                f"{row['gamma']}{' ★' if row['gamma'] == self.gamma else ''}",
                f"{row['verify_ratio']:.2f}",
                marked(f"{row['speedup']:.2f}X", row["invalid"]),
                "{:.2f} to {:.2f}".format(*row["speedup_interval"]),
                f"{row['idealised']:.2f}X",
            )
            for row in self._rows()
        ]
        title = (
            f"{self.draft} drafting for {self.target} at temperature {self.temperature:g}: "
            f"alpha {self.alpha:.3f} ({self.alpha_low:.3f} to {self.alpha_high:.3f}), c {self.c:.3f}"
        )
        head = ("gamma", "t(γ+1)/t(1)", "predicted speed-up", "95 % by alpha", "ideal (Theorem 3.8)")
        return Table(title, head, rows)

    def _table_of_runs(self) -> Table:
        rows = [
            (
                one.draft,
                f"{gamma}{' ★' if one is self and gamma == self.gamma else '  '}",
                or_dash(ran.alpha, ".3f"),
                or_dash(ran.tokens_per_call, ".2f"),
                or_dash(ran.c, ".3f"),
                or_dash(ran.verify_ratio, ".2f"),
                ran.speed_cell,
                ran.timed.interval,
            )
            for one in (self, *self.others)
            for gamma, ran in one.ran.items()
        ]
        title = (
            f"Drafting for {self.target} at temperature {self.temperature:g}: "
            f"{f'{self.draft} with gamma {self.gamma}' if self.gamma else 'plain decoding'} is fastest"
        )
        head = ("draft", "gamma", "alpha", "tokens/run", "c", "t(round)/t(1)", "speed-up", "min to max")
        return Table(title, head, rows)

    def __repr__(self) -> str:
        invalid = self.invalid_predictions.get(self.gamma)
        speedup = marked(f"{self.speedups[self.gamma]:.2f}", invalid)
        alpha = "" if self.alpha is None else f", alpha {self.alpha:.3f}"
        return (
            f"<specdec.Tuning: {f'{self.draft}, ' if self.others else ''}gamma {self.gamma}, "
            f"{'measured' if self.ran else 'predicted'} speed-up {speedup}{alpha}, c {self.c:.3f}>"
        )


def _no_choices(ran: Mapping[int, ExperimentRow]) -> set[int]:
    """The gammas whose measured speed-up is an error of measurement, or of runs that drafted nothing."""
    return {gamma for gamma, one in ran.items() if one.invalid or one.is_plain}


def best_gamma(speedups: Mapping[int, float], excluded: Collection[int]) -> int:
    """The gamma with the highest speed-up, the smallest of equal ones; 0 if none pays."""
    possible = {gamma: s for gamma, s in speedups.items() if gamma not in excluded and not math.isnan(s)}
    fastest = max(possible.values(), default=1.0)
    return min((gamma for gamma, speedup in possible.items() if speedup == fastest), default=0)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


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
    measured, so the choice holds where arithmetic, not memory, sets the speed, too.

    A draft without a distribution of its own (see `specdec.measure`) is run with some gammas, in turns with
    plain decoding, and the fastest gamma is chosen. So are several drafts, in turns with each other, and the
    fastest of them is chosen with its gamma.

    Parameters
    ----------
    target : Model, path, hub name, or a dict of one of these by its name
    draft : as in `specdec.measure`, a list of these, a dict of these by name, or the class `EarlyExit`
        The class means exits at every layer of the target, or at six of a deep one: so a target that was
        trained to leave early is served at its best.
    prompts : str, sequence of int, or a list of these, optional
        What the target continues to measure the acceptance rate: give what resembles your use; for an
        encoder-decoder sources. None: some beginnings of English sentences, for a target with a tokenizer.
    max_gamma : int, default 8
        The largest gamma looked at. Where drafts are run, the gamma that a draft asks for by itself, as the
        nodes of its tree, is looked at too.
    n_tokens : int, default 400
        Tokens the target generates, in all; where drafts are run, in each turn of each of their gammas.
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
    decoding = decoding_options(options, changes, _OWNS)
    setup = Setup.of(target, decoding, prompts)
    given = _candidates(setup.target, draft)
    drafts = {name: measurable(setup.target, one) for name, one in given.items()}
    name, only = next(iter(drafts.items()))
    if len(given) == 1 and has_distribution(only):
        decoding_options(options, changes, _OWNS, in_distributions=True)
        return replace(_by_distribution(setup, name, only, max_gamma, n_tokens), choice=given[name])
    for name, one in drafts.items():
        if not isinstance(one, RUN_BY_THE_CORE):
            raise InputError(f"draft {name!r} is {kind_of(one)}; expected drafts that generate takes")
    found = _by_running(setup, drafts, max_gamma, n_tokens)
    tunings = [replace(one, choice=given[one.draft]) for one in found]
    return replace(tunings[0], others=tuple(tunings[1:]))


def _candidates(target: Model, draft: Any) -> dict[str, Any]:
    """The drafts by name, loaded where they are paths."""
    if isinstance(draft, Mapping):
        return drafts_by_name("draft", target, draft)
    several = list(draft) if isinstance(draft, list | tuple) else [draft]
    if draft is EarlyExit:
        several = list(EarlyExit.exits(target))
    if not several:
        raise InputError.of("draft", draft, "at least one")
    found = [opened(one, target) for one in several]
    return dict(zip(unique([name_of(measurable(target, one)) for one in found]), found, strict=True))


def _by_distribution(setup: Setup, name: str, draft: Any, max_gamma: int, n_tokens: int) -> Tuning:
    """Predict the speed-up of each gamma by acceptance and costs."""
    share = setup.share(n_tokens)
    with counted(len(setup.prompts) * share, "token", setup.options.progress) as done:
        texts = acceptance(setup, draft, setup.options, leniences=[1.0], n_tokens=share, done=done)
    times = forward_times(
        setup.target,
        draft if isinstance(draft, RUN_BY_THE_CORE) else None,
        sample_text(setup.target, setup.prompts, texts.tokens, max_gamma + 1),
        max_rows=max_gamma + 1,
        n_threads=setup.options.threads,
    )
    betas = texts.betas[1.0]
    n_positions = sum(map(len, betas))
    low, high = mean_interval(betas)
    return Tuning(
        target=setup.name,
        draft=name,
        temperature=setup.options.temperature,
        n_tokens=n_positions,
        alpha=math.fsum(float(text.sum()) for text in betas) / n_positions,
        alpha_low=low,
        alpha_high=high,
        c=times.cost,
        verify_ratio=times.verify_ratio,
    )


def _by_running(setup: Setup, drafts: Mapping[str, Any], max_gamma: int, n_tokens: int) -> list[Tuning]:
    """Run drafts with some gammas and plain decoding in turns; the best draft comes first."""
    work = setup.work(setup.share(n_tokens), n_tokens)
    ways = {
        (name, gamma): (draft, gamma) for name, draft in drafts.items() for gamma in _gammas(draft, max_gamma)
    }
    experiment, plain_runs, running = decoding_experiment(setup.target, ways, work, setup.runs())
    n_steps = _REPEATS * (1 + len(ways)) * sum(n for _, n in work)
    with counted(n_steps, "token", setup.options.progress) as done:
        experiment.run(repeats=_REPEATS, seed=setup.seed, done=done)
    found = []
    for name in drafts:
        ran = {gamma: way.row(name, plain_runs) for (one, gamma), way in running.items() if one == name}
        best = best_gamma({gamma: one.timed.median for gamma, one in ran.items()}, _no_choices(ran))
        row = ran.get(best, ran[min(ran)])
        ratios = {gamma + 1: _number(one.verify_ratio) for gamma, one in ran.items()}
        found.append(
            Tuning(
                target=setup.name,
                draft=name,
                temperature=row.temperature,
                n_tokens=row.n_tokens,
                alpha=row.alpha,
                alpha_low=row.alpha_low,
                alpha_high=row.alpha_high,
                c=_number(row.c),
                verify_ratio={1: 1.0} | ratios,
                ran=ran,
                reason=row.reason,
            )
        )
    return sorted(found, key=lambda one: -one.speedups[one.gamma])


def _gammas(draft: Model | Draft, max_gamma: int) -> list[int]:
    own = [draft.gamma] if isinstance(draft, Draft) and draft.gamma else []
    return sorted({*(gamma for gamma in _LOOKED_AT if gamma < max_gamma), max_gamma, *own})
