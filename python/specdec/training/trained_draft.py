"""The summary of a training, as a table and as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.atomic_file import replacing
from specdec.errors import CheckpointError, number_of
from specdec.tables import OneTable, Table
from specdec.training.held_out import TEMPERATURES_SHOWN

_DAMAGED = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""What a file that is no summary raises."""


@dataclass(frozen=True)
class DraftFigures:
    """How good a draft is on held-out texts, by temperature: 0 and 1.

    Attributes
    ----------
    alpha : dict of float to (float, float, float)
        Mean acceptance rate of the first draft token, and its 95 % confidence interval.
    tokens_per_call : dict of float to float
        New tokens a run of the target, of real runs.
    """

    alpha: Mapping[float, tuple[float, float, float]]
    tokens_per_call: Mapping[float, float]


@dataclass(frozen=True, repr=False)
class TrainedDraft(OneTable):
    """A draft that was trained, and what the training did for it; ``print`` shows it, a notebook too.

    Attributes
    ----------
    folder : str
        Of the draft.
    kind, target : str
    n_parameters : int
        That were trained.
    n_steps, n_tokens : int
        Steps; tokens that were trained on, each pass counted.
    minutes : float
        Of training, texts included.
    losses : str
        File of the loss curve, tab-separated.
    before, after : DraftFigures
        Before the first step and after the last.
    gains : dict of float to (float, float, float)
        Rise of alpha on the same positions, with its 95 % confidence interval.
    words : tuple of str
        Notes on this method.
    """

    folder: str
    kind: str
    target: str
    n_parameters: int
    n_steps: int
    n_tokens: int
    minutes: float
    losses: str
    before: DraftFigures
    after: DraftFigures
    gains: Mapping[float, tuple[float, float, float]]
    words: tuple[str, ...] = ()

    def table(self) -> Table:
        """Return alpha and tokens a call, before and after."""
        rows = []
        for temperature in TEMPERATURES_SHOWN:
            for name, figures in (("before", self.before), ("after", self.after)):
                alpha, low, high = figures.alpha[temperature]
                rose = ""
                if name == "after":
                    rose = "{:+.3f} ({:+.3f} to {:+.3f})".format(*self.gains[temperature])
                calls = f"{figures.tokens_per_call[temperature]:.2f}"
                interval = f"{low:.3f} to {high:.3f}"
                rows.append((f"{name}, T = {temperature:g}", f"{alpha:.3f}", interval, rose, calls))
        title = (
            f"{self.kind} draft for {self.target}: {self.n_parameters:,} parameters, "
            f"{number_of(self.n_steps, 'step')}, {self.n_tokens:,} tokens, {self.minutes:.1f} minutes\n"
            f"draft: {self.folder}\nlosses: {self.losses}"
        )
        title += "".join(f"\n{words}" for words in self.words)
        return Table(title, ("held-out texts", "alpha", "95 %", "gain (95 %)", "tokens/call"), rows)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        with replacing(path) as file:
            file.write(json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> TrainedDraft:
        """Read what `save` wrote.

        Raises
        ------
        CheckpointError
            The file holds something else.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            before, after = (
                DraftFigures(_by_temperature(part["alpha"]), _by_temperature(part["tokens_per_call"]))
                for part in (values.pop("before"), values.pop("after"))
            )
            gains, words = _by_temperature(values.pop("gains")), tuple(values.pop("words"))
            found = cls(before=before, after=after, gains=gains, words=words, **values)
            found.table()  # so that what cannot be shown is refused here
            return found
        except _DAMAGED as error:
            raise CheckpointError(f"{path}: expected the summary of a training ({error})") from error


def _by_temperature(values: Mapping[str, Any]) -> dict[float, Any]:
    return {float(name): tuple(one) if isinstance(one, list) else one for name, one in values.items()}
