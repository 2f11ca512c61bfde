"""Comparing drafts: each in its turn on the same prompts, plain decoding among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from specdec.analysis import arguments, experiment
from specdec.analysis.arguments import Setup
from specdec.analysis.experiment import ExperimentRow, Speedup
from specdec.checks import check_flag, check_integer
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.decoding.prompts import PromptIds
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import printable
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import Table, Tabular, figures_frame

_LABEL: Final = 40  # characters of a prompt that are shown
_OWNS: Final = {"gamma": "gammas", "temperature": "temperatures", "max_new_tokens": "n_tokens"}
Ways: TypeAlias = Mapping[tuple[str, int], tuple[Model | Draft, int]]
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
    """Compare drafts of any kind for one target, by running them.

    Every draft, with each gamma, and plain decoding continue the same prompts in turns, prompt by prompt, so
    that all of them see the same machine. What is counted (acceptance, tokens per run of the target) and what
    is timed are of the same runs, and mean the same for every draft, models included. A draft that learns
    from texts learns within each turn, from its prompts in their order, else as in `specdec.measure`.

    Parameters
    ----------
    target, prompts, temperatures
        As of `specdec.measure`.
    drafts : dict of str to Model, path, hub name, Draft, Drafter or str
        By names of your own. A text is what `specdec.drafts.named` takes, such as ``"copy"``.
    gammas : sequence of int, optional
        Drafted tokens of a round at most, each 1 to 1024; None: as many as each draft asks for by itself.
    n_tokens, repeats : int, default 400 and 5
        New tokens of each draft in each turn, with each gamma at each temperature, each prompt its share; and
        turns. Sampled texts differ from turn to turn.
    timing : bool, default True
        False: one turn, without plain decoding and without times.
    options : DecodingOptions, optional
        Of the runs. Prompt i of turn k has the key (seed + k, i); the default of `seed` is 0.

    Returns
    -------
    Comparison
        ``print`` shows its tables; `specdec.plot` draws it by position, by prompt and by temperature.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.measure`; or the rule (`verify`) does not take what a draft drafts, such as trees.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> ways = {"small model": draft, "copies": specdec.drafts.ContextCopy()}
    >>> found = specdec.compare(target, ways, ["Once upon a time", "It was a dark and stormy night"])
    >>> print(found)
    """
    decoding = arguments.decoding_options(options, changes, _OWNS)
    temperatures = arguments.different_numbers("temperatures", temperatures)
    asked = [decoding.replace(temperature=one).temperature for one in temperatures]
    chosen = None if gammas is None else arguments.check_gammas(gammas)
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    repeats = repeats if check_flag("timing", timing) else 1
    setup = Setup.of(target, decoding, prompts)
    ways: Ways = {
        (name, gamma): (draft, gamma)
        for name, given in arguments.drafts_by_name("drafts", setup.target, drafts).items()
        for draft in [as_draft(setup.target, given)]
        for gamma in chosen or [max(draft.gamma, 1)]
    }
    return compare_ways(setup, ways, n_tokens, temperatures=asked, repeats=repeats, timing=bool(timing))


def compare_ways(
    setup: Setup,
    ways: Ways,
    n_tokens: int,
    *,
    temperatures: Sequence[float],
    repeats: int,
    timing: bool = True,
    **how: Any,
) -> Comparison:
    """Run drafts with gammas of their own, and plain decoding, in turns; `how` as of `interleaved`."""
    work = setup.work(n_tokens)
    rows: list[ExperimentRow] = []
    rates: dict[float, tuple[float, ...]] = {}
    n_steps = len(temperatures) * repeats * (len(ways) + timing) * sum(n for _, n in work)
    with counted(n_steps, "token", setup.options.progress) as done:
        for temperature in temperatures:
            plain, running = experiment.interleaved(
                setup.target, ways, work, setup.runs(temperature=temperature), repeats=repeats,
                seed=setup.seed, timing=timing, done=done, **how,
            )  # fmt: skip
            for (name, _), way in running.items():
                rows.append(way.row(name, plain if timing else None, by_prompt=True))
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
    """What `specdec.compare` found; ``print`` shows its tables, a notebook too.

    Attributes
    ----------
    target : str
    rows : tuple of ExperimentRow
        By temperature, then draft, then gamma.
    plain_tokens_per_s : dict of float to tuple of float
        By temperature: new tokens per second of plain decoding in each turn; empty without timing.
    prompts, labels : list of list of int, tuple of str
        Token ids of the prompts (of an encoder-decoder those of the sources), and how each begins.
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
        valid = [row for row in rows if not row.invalid and not row.is_plain]
        return sorted(valid, key=lambda row: -row.timed.median)

    def tables(self) -> list[Table]:
        """All drafts in one table; acceptance by position; by prompt; why figures are missing."""
        found = [self.summary(), *experiment.position_tables(self.rows, experiment.SETTINGS)]
        if len(self.prompts) > 1:
            found.append(self._by_prompt())
        return [*found, *experiment.reason_tables(self.rows)]

    def summary(self) -> Table:
        """All drafts in one table, with plain decoding."""
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
        columns += experiment.columns_of(*names)
        optional = tuple(3 + names.index(name) for name in _OPTIONAL if name in names)
        notes = "; ★ the fastest that beats plain decoding" * timed + experiment.NAMED * named
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
        return Table.of(f"Tokens per run{timed} by prompt\n{shown}", self.rows, columns)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the figures of its rows; NaN where there is no number.

        Those of the speed-up are ``speedup``, ``speedup_low``, ``speedup_high`` and ``speedup_invalid``.
        """
        rows = [replace(row, speedup=row.timed) for row in self.rows]
        return figures_frame(rows, "drafted_per_call", "draft_acceptance_rate")

    def __repr__(self) -> str:
        drafts = ", ".join(map(repr, self.drafts))
        return f"<specdec.Comparison of {drafts} drafting for {self.target!r}: {len(self.rows)} rows>"


_OPTIONAL: Final = (
    "speedup_interval", "tokens_per_s", "named_share", "c", "verify_ratio", "alpha_interval",
    "tokens_interval",
)  # fmt: skip
"""What a narrow terminal does without, the one to keep longest first."""
