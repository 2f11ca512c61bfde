"""Which drafts fit a target, and what each gave: the result of `specdec.recommend_draft`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec.analysis.comparison import Comparison, ComparisonRow
from specdec.analysis.known_models import KnownModel
from specdec.tables import Table, Tabular, plain

__all__ = ["DraftFit", "DraftRecommendation"]


@dataclass(frozen=True)
class DraftFit:
    """Whether a draft can draft for a target, and by which way.

    Attributes
    ----------
    draft : str
        Its name.
    ways : dict of str to str
        The name in the comparison of each way that was measured: "same vocabulary", "intersection", "text"
        (`drafts.ModelDraft`), or "its own" of what is no model. Empty for a draft that was refused.
    n_shared : int or None
        Tokens that both vocabularies have; None where they are the same, or the draft is no model.
    n_vocab : int or None
        Tokens of the draft's vocabulary; None for what is no model.
    weight_bytes : int
        Memory of its weights.
    cache_bytes : int
        Memory of its keys and values for each token of a text.
    refusal : str
        Why it cannot draft for the target; empty if it can.
    """

    draft: str
    ways: dict[str, str]
    n_shared: int | None = None
    n_vocab: int | None = None
    weight_bytes: int = 0
    cache_bytes: int = 0
    refusal: str = ""

    @property
    def overlap(self) -> float | None:
        """Share of the draft's tokens that the target has too; None where the vocabularies are the same."""
        return None if self.n_shared is None or not self.n_vocab else self.n_shared / self.n_vocab


@dataclass(frozen=True, eq=False, repr=False)
class DraftRecommendation(Tabular):
    """What `specdec.recommend_draft` found; ``print`` shows its tables, a notebook too.

    Attributes
    ----------
    target : str
        Its name.
    fits : tuple of DraftFit
        One for each draft, in the order in which they were given.
    comparison : Comparison
        What those that fit gave, by running them in turns; `specdec.plot` draws it.
    vocabulary : str
        Which public models have the target's vocabulary; empty where that is not known.
    known : tuple of KnownModel
        Small ones of these, by name: none of them was downloaded or tried.
    drafts : dict of str to Draft
        The drafts that fit, by their names in the comparison.
    stopped : str
        Why the measuring ended early, and which drafts were not measured; empty if it did not.
    """

    target: str
    fits: tuple[DraftFit, ...]
    comparison: Comparison
    vocabulary: str
    known: tuple[KnownModel, ...]
    drafts: dict[str, Any]
    stopped: str = ""

    @property
    def temperature(self) -> float:
        """At which the drafts were measured."""
        return self.comparison.temperatures[0]

    @property
    def best(self) -> ComparisonRow | None:
        """The fastest row whose speed-up is not invalid; None: plain decoding is."""
        return self.comparison.best(self.temperature)

    @property
    def gamma(self) -> int:
        """The gamma of `best`; 0: plain decoding."""
        return 0 if self.best is None else self.best.gamma

    @property
    def choice(self) -> Any:
        """The draft of `best`, as `specdec.generate` takes it; None: plain decoding."""
        return None if self.best is None else self.drafts[self.best.draft]

    @property
    def is_certain(self) -> bool:
        """Whether `best` had several turns, each of them faster than plain decoding."""
        speedup = None if self.best is None else self.best.speedup
        return speedup is not None and len(speedup.ratios) > 1 and speedup.low > 1.0

    @property
    def reason(self) -> str:
        """Why that is the choice, in a sentence."""
        valid = [
            row
            for row in self.comparison.rows
            if row.speedup is not None and not row.invalid and row.drafted_per_call
        ]
        ranked = sorted(valid, key=lambda row: -_median(row))
        if self.best is None:
            if not ranked:
                if any(row.drafted_per_call for row in self.comparison.rows):
                    return "no speed-up is valid: the machine was too busy to measure"
                return "no draft found anything to draft on these prompts"
            return f"no draft beats plain decoding; the fastest, {_figures(ranked[0])}"
        others = [row for row in ranked if row.draft != self.best.draft]
        found = _figures(self.best)
        if not self.is_certain:
            assert self.best.speedup is not None
            why = "it had a single turn" if self.best.speedup.low > 1.0 else "some turns were slower"
            found += f"; {why}: measure again with more repeats, and time"
        if others:
            found += f"; next is {_figures(others[0])}"
        return found

    def tables(self) -> list[Table]:
        """What fits, by which way; what runs gave; known models; the choice.

        More of the runs, by position and by prompt, is in ``comparison.tables()``.
        """
        found = [self._fits(), self.comparison.summary()]
        if self.vocabulary:
            found.append(self._known())
        return [*found, self._choice()]

    def _fits(self) -> Table:
        head = ("draft", "fits by", "tokens in common", "weights", "cache of 1000 tokens")
        body = [
            (
                fit.draft,
                " and ".join(fit.ways) or "refused",
                "–"
                if fit.n_vocab is None
                else f"{fit.n_vocab if fit.n_shared is None else fit.n_shared} of {fit.n_vocab}",
                _size(fit.weight_bytes),
                _size(1000 * fit.cache_bytes),
            )
            for fit in self.fits
        ]
        refused = "".join(f"\n{fit.draft}: {fit.refusal}" for fit in self.fits if fit.refusal)
        return Table(f"Drafts for {self.target}: do they fit?{refused}", head, body)

    def _known(self) -> Table:
        title = (
            f"Small public models with the vocabulary of {self.vocabulary} (names only: none of them was "
            "downloaded or tried; specdec recommend TARGET NAME does both)"
        )
        rows = [(model.name, f"{model.n_parameters / 1e6:.0f} M") for model in self.known]
        return Table(
            title, ("model", "parameters"), rows or [("none that is half as large as the target", "")]
        )

    def _choice(self) -> Table:
        name = "plain decoding" if self.best is None else self.best.draft
        stopped = f"\nmeasuring ended early: {self.stopped}" if self.stopped else ""
        return Table(f"Recommended: {self.reason}{stopped}", ("draft", "gamma"), [(name, str(self.gamma))])

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON; None where there is no number."""
        return {
            "target": self.target,
            "fits": plain(list(self.fits)),
            "comparison": self.comparison.to_dict(),
            "vocabulary": self.vocabulary,
            "known": plain(list(self.known)),
            "best": None if self.best is None else self.best.draft,
            "gamma": self.gamma,
            "is_certain": self.is_certain,
            "reason": self.reason,
            "stopped": self.stopped,
        }

    def to_pandas(self) -> Any:
        """The rows of the comparison as a `pandas.DataFrame`, see `Comparison.to_pandas`.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        return self.comparison.to_pandas()

    def __repr__(self) -> str:
        best = "plain decoding" if self.best is None else f"{self.best.draft} with gamma {self.gamma}"
        return f"<specdec.DraftRecommendation of {len(self.fits)} drafts for {self.target!r}: {best}>"


def _median(row: ComparisonRow) -> float:
    return 0.0 if row.speedup is None else row.speedup.median


def _figures(row: ComparisonRow) -> str:
    """A row in words."""
    assert row.speedup is not None
    return (
        f"{row.draft} with gamma {row.gamma}: {row.speedup.median:.2f} times as fast as plain decoding "
        f"({row.speedup.low:.2f} to {row.speedup.high:.2f}), {row.tokens_per_call:.2f} tokens a run"
    )


def _size(n_bytes: int) -> str:
    """Bytes in words."""
    if n_bytes < 1000:
        return f"{n_bytes} B"
    for unit in ("kB", "MB", "GB"):
        n_bytes_in, n_bytes = n_bytes / 1000, n_bytes // 1000
        if n_bytes_in < 999.5 or unit == "GB":
            return f"{n_bytes_in:.3g} {unit}"
    raise AssertionError(n_bytes)
