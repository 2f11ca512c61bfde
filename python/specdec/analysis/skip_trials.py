"""What a search for layers to skip found, and the file that keeps it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from specdec.atomic_file import replacing
from specdec.checks import check_path
from specdec.drafts import SkipLayers
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import InputError, printable
from specdec.fields import Fields, without_nan
from specdec.tables import OneTable, Table, marked
from specdec.text_files import read_text_file
from specdec.trace import invalid_speedup

__all__ = ["Choice", "SkipSearch", "SkipTrial", "rank"]

Choice: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Layers whose attention is skipped, layers whose MLP is skipped, gamma."""

_FORMAT = 1  # of the file
_SHOWN = 10  # trials in a table


@dataclass(frozen=True)
class SkipTrial:
    """What one choice of layers and gamma gave; of several repetitions, the one with the median speed-up.

    Attributes
    ----------
    attn, mlp : tuple of int
        Layers whose attention or MLP is skipped.
    gamma : int
        Guesses a round.
    speedup : float
        Seconds a new token of plain decoding over those with this draft, measured in turns; prefill
        excluded. `tokens_per_s` over `plain_tokens_per_s`.
    tokens_per_s, plain_tokens_per_s : float
        New tokens per second, with the draft and without.
    acceptance_rate : float
        Alpha of Corollary 3.6, of all repetitions; NaN if nothing was drafted.
    tokens_per_call : float
        New tokens per run of the whole target.
    speedup_low, speedup_high : float
        The smallest and the largest speed-up of a repetition.
    """

    attn: tuple[int, ...]
    mlp: tuple[int, ...]
    gamma: int
    speedup: float
    tokens_per_s: float
    plain_tokens_per_s: float
    acceptance_rate: float
    tokens_per_call: float
    speedup_low: float = math.nan
    speedup_high: float = math.nan

    @property
    def invalid(self) -> str:
        """Why `speedup` is an error of measuring; empty if it is not.

        No speed-up is above the new tokens per run of the target, as verification takes at least as long as a
        plain step.
        """
        return invalid_speedup(self.speedup, self.tokens_per_call)

    @property
    def choice(self) -> Choice:
        """What was tried: attn, mlp, gamma."""
        return self.attn, self.mlp, self.gamma

    @property
    def draft(self) -> SkipLayers:
        """The draft, with this gamma as its own."""
        draft = SkipLayers(self.attn, self.mlp)
        draft.gamma = self.gamma
        return draft

    def to_dict(self) -> dict[str, Any]:
        """All of it as lists and numbers, ready for JSON, which has no NaN: None."""
        found: dict[str, Any] = without_nan(asdict(self))
        return found


@dataclass(frozen=True, repr=False)
class SkipSearch(OneTable):
    """What a search found; ``print`` shows it, a notebook too.

    Attributes
    ----------
    target : str
        Name.
    settings : dict
        What was asked for: layers of the target, prompts, gammas, sampling, seed.
    trials : tuple of SkipTrial
        In order.
    finals : tuple of SkipTrial
        The best trials, measured again and more often, best first: the best of many noisy numbers looks
        better than it is. Empty for a search that was interrupted.
    """

    target: str
    settings: dict[str, Any]
    trials: tuple[SkipTrial, ...]
    finals: tuple[SkipTrial, ...] = ()

    @property
    def best(self) -> SkipTrial:
        """The fastest of the finals; of the trials, if the search was interrupted.

        Of those whose speed-up is not invalid if there are any.
        """
        return max(self.finals or self.trials, key=rank)

    @property
    def draft(self) -> SkipLayers:
        """The fastest draft, whether it pays or not."""
        return self.best.draft

    @property
    def pays(self) -> bool:
        """Whether the best draft was faster than plain decoding, by a speed-up that is not invalid."""
        return self.best.speedup > 1.0 and not self.best.invalid

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON."""
        return {
            "specdec_skip_search": _FORMAT,
            "target": self.target,
            "settings": self.settings,
            "trials": [trial.to_dict() for trial in self.trials],
            "finals": [trial.to_dict() for trial in self.finals],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; what was in the file before stays until all of it is written."""
        with replacing(check_path("path", path)) as file:
            file.write(json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SkipSearch:
        """Read what `save` wrote; InputError if the file holds something else, or cannot be read."""
        path = check_path("path", path)
        try:
            values = json.loads(read_text_file(path, "a saved specdec.SkipSearch"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: expected a saved specdec.SkipSearch ({error})") from error
        found = Fields(values, path, kind=InputError)
        found.check_version("specdec_skip_search", _FORMAT)
        target, settings = found.text("target"), found.inner("settings")
        settings.amount("temperature")
        trials, finals = (
            tuple(_trial(entry, settings) for entry in found.inner_items(name))
            for name in ("trials", "finals")
        )
        if not trials:
            raise found.error("trials", "at least one")
        return cls(target, settings.as_dict(), trials, finals)

    def table(self) -> Table:
        """The finals, then the best other trials."""
        finals = sorted(self.finals, key=rank, reverse=True)
        known = {trial.choice for trial in finals}
        others = sorted((t for t in self.trials if t.choice not in known), key=rank, reverse=True)
        rows = [
            _row(trial, " ★" if i == 0 and not trial.invalid else "")
            for i, trial in enumerate((finals + others)[:_SHOWN])
        ]
        verdict = "" if self.pays else "; nothing beats plain decoding"
        if not self.finals:
            verdict += "; interrupted"
        title = (
            f"{printable(self.target)} drafting for itself at temperature {self.settings['temperature']:g}, "
            f"{len(self.trials)} trials{verdict}"
        )
        head = ("skipped", "gamma", "alpha", "tokens/call", "tokens/s", "plain", "speed-up", "min to max")
        return Table(title, head, rows)

    def __repr__(self) -> str:
        best = self.best
        paying = "" if self.pays else ", nothing beats plain decoding"
        return (
            f"<specdec.SkipSearch of {len(self.trials)} trials: {best.draft!r} with gamma {best.gamma}, "
            f"speed-up {marked(f'{best.speedup:.2f}', best.invalid)}{paying}>"
        )


def _row(trial: SkipTrial, mark: str) -> tuple[str, ...]:
    parts = [
        f"{name} {' '.join(map(str, layers))}"
        for name, layers in (("attn", trial.attn), ("mlp", trial.mlp))
        if layers
    ]
    return (
        ", ".join(parts) + mark,
        str(trial.gamma),
        f"{trial.acceptance_rate:.3f}",
        f"{trial.tokens_per_call:.2f}",
        f"{trial.tokens_per_s:.1f}",
        f"{trial.plain_tokens_per_s:.1f}",
        marked(f"{trial.speedup:.2f}X", trial.invalid),
        "" if math.isnan(trial.speedup_low) else f"{trial.speedup_low:.2f} to {trial.speedup_high:.2f}",
    )


def rank(trial: SkipTrial) -> tuple[bool, float]:
    """Higher is better: speed-ups that are errors of measuring come last."""
    return not trial.invalid, trial.speedup


def _trial(entry: Fields, settings: Fields) -> SkipTrial:
    """A trial of a file, one that a search of these settings can have made."""
    draft = SkipLayers(entry.integers("attn"), entry.integers("mlp"))
    n_layer = settings.integer("n_layer", default=None)
    if n_layer is not None:
        draft.check(n_layer)
    gamma = entry.integer("gamma", maximum=MAX_GAMMA)
    if settings.has("gammas") and gamma not in settings.integers("gammas"):
        raise entry.error("gamma", "one of the search's gammas")
    optional = ("acceptance_rate", "speedup_low", "speedup_high")
    numbers = {
        field.name: entry.amount(field.name, math.nan) if field.name in optional else entry.amount(field.name)
        for field in fields(SkipTrial)[3:]
    }
    return SkipTrial(draft.attn, draft.mlp, gamma, **numbers)
