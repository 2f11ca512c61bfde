"""Comparing drafts: each in its turn on the same prompts, plain decoding among them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from specdec.analysis.arguments import (
    Setup,
    check_gammas,
    decoding_options,
    different_numbers,
    drafts_by_name,
)
from specdec.analysis.experiment import Configuration, Experiment, ExperimentRow, decoding_experiment
from specdec.analysis.measurement import position_tables, reason_tables
from specdec.checks import check_flag, check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.decoding.prompts import PromptIds
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import printable
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import Table, Tabular, figures_frame, interval, or_dash
from specdec.time_limit import ENDLESS, TimeLimit

_LABEL: Final = 40  # characters of a prompt that are shown
_OWNS: Final = {"gamma": "gammas", "temperature": "temperatures", "max_new_tokens": "n_tokens"}
Ways: TypeAlias = Mapping[tuple[str, int], tuple[Draft, int]]
"""Drafts with their gammas, by name and gamma."""


def compare(
    target: ModelLike | dict[str, ModelLike],
    drafts: Mapping[str, DraftLike],
    prompts: Prompt | Sequence[Prompt],
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    gammas: Sequence[int] | None = None,
    n_tokens: int = 400,
    repeats: int = 5,
    timing: bool = True,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> Comparison:
    """Compare drafts of any kind for one target, by running them.

    Every draft, with each gamma, and plain decoding continue the same prompts in turns, prompt by prompt, so
    that all of them see the same machine. What is counted (acceptance, tokens per run of the target) and what
    is timed are of the same runs, and mean the same for every draft; what `specdec.measure` finds of a model
    by its distribution is measured by running here too. A draft that learns from texts begins each turn with
    what it knows now (`Draft.snapshot`), learns from the prompts of the turn in their order, and is left as
    it is; an `Online` learns nothing meanwhile. An object of your own is used as it is.

    Parameters
    ----------
    target : Model, path, hub name, or a dict of one of these by its name
    drafts : dict of str to Model, path, hub name, Draft, Drafter or str
        By names of your own. A text is what `specdec.drafts.named` takes, such as ``"copy"``.
    prompts : str, sequence of int, or a list of these
        For an encoder-decoder sources.
    temperatures : sequence of float
    gammas : sequence of int, optional
        Drafted tokens of a round at most, each 1 to 1024; None: as many as each draft asks for by itself.
    n_tokens : int, default 400
        New tokens of each draft in each turn, with each gamma at each temperature: each prompt its share.
    repeats : int, default 5
        Turns. Sampled texts differ from turn to turn.
    timing : bool, default True
        False: one turn, without plain decoding and without times.
    options : DecodingOptions, optional
        Of the runs; not every rule (`verify`) takes trees. Prompt i of turn k has the key (seed + k, i); the
        default of `seed` is 0.

    Returns
    -------
    Comparison
        ``print`` shows its tables; `specdec.plot` draws it by position, by prompt and by temperature.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.measure`; or the rule does not take what a draft drafts.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> ways = {"small model": draft, "copies": specdec.drafts.ContextCopy()}
    >>> found = specdec.compare(target, ways, ["Once upon a time", "It was a dark and stormy night"])
    >>> print(found)
    """
    decoding = decoding_options(options, changes, _OWNS)
    asked = [
        decoding.replace(temperature=one).temperature
        for one in different_numbers("temperatures", temperatures)
    ]
    chosen = None if gammas is None else check_gammas(gammas)
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    repeats = repeats if check_flag("timing", timing) else 1
    setup = Setup.of(target, decoding, prompts)
    given = drafts_by_name("drafts", setup.target, drafts)
    opened = {name: as_draft(setup.target, draft) for name, draft in given.items()}
    ways: Ways = {
        (name, gamma): (draft, gamma)
        for name, draft in opened.items()
        for gamma in chosen or [max(draft.gamma, 1)]
    }
    return compare_ways(setup, ways, n_tokens, temperatures=asked, repeats=repeats, timing=timing)


def compare_ways(
    setup: Setup,
    ways: Ways,
    n_tokens: int,
    *,
    temperatures: Sequence[float],
    repeats: int,
    timing: bool = True,
    limit: TimeLimit = ENDLESS,
    at_least: float = 0.0,
) -> Comparison:
    """Run drafts with gammas of their own, and plain decoding, in turns; with arguments as of `compare`.

    What has a speed-up below `at_least` after a turn has no further turn.
    """
    work = setup.work(setup.share(n_tokens), n_tokens)
    rows: list[ExperimentRow] = []
    rates: dict[float, tuple[float, ...]] = {}
    n_steps = len(temperatures) * repeats * (len(ways) + timing) * sum(n for _, n in work)
    with counted(n_steps, "token", setup.options.progress) as done:
        for temperature in temperatures:
            options = setup.runs(temperature=temperature)
            experiment, plain, running = decoding_experiment(setup.target, ways, work, options)
            if not timing:
                experiment = Experiment([*running.values()], work)

            def goes_on(one: Configuration, plain: Configuration = plain) -> bool:
                return not at_least or one is plain or one.over(plain).median >= at_least

            experiment.run(repeats=repeats, seed=setup.seed, done=done, limit=limit, goes_on=goes_on)
            for (name, _), way in running.items():
                rows.append(way.row(name, plain if timing else None, by_prompt=True))
            if timing:
                rates[temperature] = plain.tokens_per_s
    prompts = setup.prompts[: len(work)]
    return Comparison(
        target=setup.name,
        rows=tuple(rows),
        plain_tokens_per_s=rates,
        prompts=[beginning.given for beginning in prompts],
        labels=tuple(_label(setup.target, beginning) for beginning in prompts),
        settings=setup.described(n_tokens=n_tokens, repeats=repeats),
    )


def _label(target: Model, beginning: PromptIds) -> str:
    text = beginning.source_text(target)
    if text is None and beginning.source is None and target.tokenizer is not None:
        text = target.tokenizer.decode(beginning.ids)
    words = " ".join(map(str, beginning.given)) if text is None else " ".join(text.split())
    return printable(words if len(words) <= _LABEL else words[: _LABEL - 1] + "…")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """What `specdec.compare` found; ``print`` shows its tables, a notebook too.

    Attributes
    ----------
    target : str
        Its name.
    rows : tuple of ExperimentRow
        By temperature, then draft, then gamma.
    plain_tokens_per_s : dict of float to tuple of float
        By temperature: new tokens per second of plain decoding in each turn; empty without timing.
    prompts : list of list of int
        Token ids of the prompts; of an encoder-decoder those of the sources.
    labels : tuple of str
        How each prompt begins, as text; its token ids without a tokenizer.
    settings : dict of str to object
        What was asked for: n_tokens, repeats, seed, n_threads and other options of decoding.
    """

    target: str
    rows: tuple[ExperimentRow, ...]
    plain_tokens_per_s: dict[float, tuple[float, ...]]
    prompts: list[list[int]]
    labels: tuple[str, ...]
    settings: dict[str, Any]

    def __getitem__(self, draft: str) -> list[ExperimentRow]:
        """The rows of a draft; KeyError if there is none."""
        found = [row for row in self.rows if row.draft == draft]
        if not found:
            raise KeyError(draft)
        return found

    @property
    def drafts(self) -> tuple[str, ...]:
        """Their names, in the order in which they were given."""
        return tuple(dict.fromkeys(row.draft for row in self.rows))

    @property
    def temperatures(self) -> tuple[float, ...]:
        """In the order in which they were given."""
        return tuple(dict.fromkeys(row.temperature for row in self.rows))

    def best(self, temperature: float) -> ExperimentRow | None:
        """The fastest row at a temperature whose speed-up is not invalid; None: plain decoding is."""
        faster = [row for row in self.ranked(temperature) if row.timed.median > 1.0]
        return faster[0] if faster else None

    def ranked(self, temperature: float) -> list[ExperimentRow]:
        """The rows at a temperature with a valid speed-up, that drafted something; the fastest first."""
        rows = [row for row in self.rows if row.temperature == temperature and row.speedup is not None]
        return sorted(
            (row for row in rows if not row.invalid and not row.is_plain), key=lambda row: -row.timed.median
        )

    def tables(self) -> list[Table]:
        """All drafts in one table; acceptance by position; by prompt; why figures are missing."""
        positions = [(*_setting(row), row.by_position) for row in self.rows]
        found = [self.summary(), *position_tables(_HEAD, positions)]
        if len(self.prompts) > 1:
            found.append(self._by_prompt())
        return [*found, *reason_tables((row.draft, row.reason) for row in self.rows)]

    def summary(self) -> Table:
        """All drafts in one table, with plain decoding."""
        timed = bool(self.plain_tokens_per_s)
        head: tuple[str, ...] = (*_HEAD, "alpha", "95 %", "tokens/run", "95 %")
        named = any(row.named_share is not None for row in self.rows)
        if named:
            head += ("named",)
        if timed:
            head += ("c", "t(round)/t(1)", "tokens/s", "speed-up", "min to max")
        body: list[tuple[str, ...]] = []
        for temperature in self.temperatures:
            best = self.best(temperature)
            if timed:
                rate = f"{statistics.median(self.plain_tokens_per_s[temperature]):.1f}"
                counts = ("plain decoding", f"{temperature:g}", "0  ", "–", "", "1.00", "")
                body.append((*counts, *["–"] * named, "–", "1.00", rate, "1.00X", ""))
            for row in self.rows:
                if row.temperature == temperature:
                    body.append(_cells(row, " ★" if row is best else "  ", named))
        notes = "; ★ the fastest that beats plain decoding" if timed else ""
        notes += "; named: share of a draft's law that the target can name" if named else ""
        kept_longest = ("min to max", "tokens/s", "named", "c", "t(round)/t(1)")
        optional = [head.index(name) for name in kept_longest if name in head]
        optional += [i for i, name in enumerate(head) if name == "95 %"]
        return Table(f"Drafts for {self.target}{notes}", head, body, tuple(optional))

    def _by_prompt(self) -> Table:
        numbers = tuple(str(i) for i in range(len(self.prompts)))
        body = []
        for row in self.rows:
            cells = [f"{one.tokens_per_call:.2f}" for one in row.prompts]
            speeds = [f" ({one.speedup.text()})" if one.speedup else "" for one in row.prompts]
            cells = [cell + speed for cell, speed in zip(cells, speeds, strict=True)]
            body.append((*_setting(row), *cells, *["–"] * (len(numbers) - len(cells))))
        shown = "\n".join(f"{i}: {label}" for i, label in enumerate(self.labels))
        timed = " (measured speed-up)" if self.plain_tokens_per_s else ""
        return Table(f"Tokens per run{timed} by prompt\n{shown}", (*_HEAD, *numbers), body)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the figures of its rows; NaN where there is no number.

        Those of the speed-up are ``speedup``, ``speedup_low``, ``speedup_high`` and ``speedup_invalid``.
        """
        rows = [replace(row, speedup=row.timed) for row in self.rows]
        return figures_frame(rows, "drafted_per_call", "draft_acceptance_rate")

    def __repr__(self) -> str:
        drafts = ", ".join(map(repr, self.drafts))
        return f"<specdec.Comparison of {drafts} drafting for {self.target!r}: {len(self.rows)} rows>"


_HEAD = ("draft", "temp", "gamma")


def _cells(row: ExperimentRow, star: str, named: bool) -> tuple[str, ...]:
    name, temperature, gamma = _setting(row)
    counts = (
        name, temperature, gamma + star, or_dash(row.alpha, ".3f"), interval(row.alpha_low, row.alpha_high),
        or_dash(row.tokens_per_call, ".2f"), interval(row.tokens_low, row.tokens_high, ".2f"),
        *[or_dash(row.named_share, ".3f")] * named,
    )  # fmt: skip
    if row.speedup is None:
        return counts
    return (
        *counts, or_dash(row.c, ".3f"), or_dash(row.verify_ratio, ".2f"),
        f"{statistics.median(row.tokens_per_s):.1f}", row.speed_cell, row.speedup.interval,
    )  # fmt: skip


def _setting(row: ExperimentRow) -> tuple[str, str, str]:
    return row.draft, f"{row.temperature:g}", f"{row.gamma}"
