"""Choosing gamma by what verification costs on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec import theory
from specdec.analysis.acceptance import (
    RUN_BY_THE_CORE,
    MeasurableDraftLike,
    acceptance,
    default_prompts,
    name_of,
    open_pair,
    split,
)
from specdec.analysis.statistics import mean_interval
from specdec.analysis.timing import forward_times, sample_text
from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA
from specdec.models.model import ModelLike, Prompt
from specdec.progress import counted
from specdec.tables import OneTable, Table, plain
from specdec.threads import check_threads
from specdec.trace import invalid_speedup
from specdec.verification.sampling import Sampling

__all__ = ["Tuning", "tune"]


@dataclass(frozen=True, repr=False)
class Tuning(OneTable):
    """The gamma that promises most, and why; ``print`` shows it, a notebook too.

    Attributes
    ----------
    target, draft : str
        Names.
    temperature : float
    n_tokens : int
        Positions that alpha is the mean of.
    alpha, alpha_low, alpha_high : float
        Mean acceptance rate (Corollary 3.6) and its 95 % confidence interval.
    c : float
        Cost coefficient (Definition 3.7); 0 for a draft that is no model.
    verify_ratio : dict of int to float
        t(M) / t(1) of the target, by the number M of positions in a run.
    """

    target: str
    draft: str
    temperature: float
    n_tokens: int
    alpha: float
    alpha_low: float
    alpha_high: float
    c: float
    verify_ratio: dict[int, float]

    @property
    def gamma(self) -> int:
        """Drafted tokens a round with the highest predicted speed-up; 0: plain decoding is fastest."""
        ratios = list(self.verify_ratio.values())
        return int(theory.optimal_gamma(self.alpha, self.c, verify_ratios=ratios))

    @property
    def speedups(self) -> dict[int, float]:
        """Predicted speed-up over plain decoding by gamma: E(tokens) / (gamma c + t(gamma + 1) / t(1))."""
        return {
            m - 1: float(theory.expected_speedup(self.alpha, m - 1, self.c, ratio))
            for m, ratio in self.verify_ratio.items()
        }

    @property
    def invalid_predictions(self) -> dict[int, str]:
        """Why a prediction is an error of measuring, by gamma; only of those that are.

        No speed-up is above the expected tokens per run, since a run of the target on several positions takes
        at least as long as on one. Where it seems to take less, the machine was busy.
        """
        reasons = {
            gamma: invalid_speedup(speedup, float(theory.expected_tokens(self.alpha, gamma)))
            for gamma, speedup in self.speedups.items()
        }
        return {gamma: reason for gamma, reason in reasons.items() if reason}

    @property
    def speedup_intervals(self) -> dict[int, tuple[float, float]]:
        """(low, high) of each of `speedups`: at both ends of alpha's confidence interval."""
        return {
            m - 1: (
                float(theory.expected_speedup(self.alpha_low, m - 1, self.c, ratio)),
                float(theory.expected_speedup(self.alpha_high, m - 1, self.c, ratio)),
            )
            for m, ratio in self.verify_ratio.items()
        }

    @property
    def idealised(self) -> dict[int, float]:
        """The ideal speed-up by gamma: Theorem 3.8, where verification takes as long as one position."""
        return {m - 1: float(theory.expected_speedup(self.alpha, m - 1, self.c)) for m in self.verify_ratio}

    @property
    def idealised_gamma(self) -> int:
        """The gamma that Theorem 3.8 would choose, among those looked at."""
        return int(theory.optimal_gamma(self.alpha, self.c, max_gamma=len(self.verify_ratio) - 1))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON: a number that is NaN is None."""
        found = super().to_dict()
        del found["verify_ratio"]  # in the rows
        own = {"gamma": self.gamma, "idealised_gamma": self.idealised_gamma, "rows": plain(self._rows())}
        return found | own

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "gamma": gamma,
                "verify_ratio": self.verify_ratio[gamma + 1],
                "speedup": speedup,
                "invalid": self.invalid_predictions.get(gamma, ""),
                "speedup_interval": list(self.speedup_intervals[gamma]),
                "idealised": self.idealised[gamma],
            }
            for gamma, speedup in self.speedups.items()
        ]

    def table(self) -> Table:
        """Every gamma with its predictions; the chosen one has a star."""
        rows = [
            (
                f"{row['gamma']}{' ★' if row['gamma'] == self.gamma else ''}",
                f"{row['verify_ratio']:.2f}",
                row["invalid"] or f"{row['speedup']:.2f}X",
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

    def __repr__(self) -> str:
        predicted = self.invalid_predictions.get(self.gamma, f"{self.speedups[self.gamma]:.2f}")
        return (
            f"<specdec.Tuning: gamma {self.gamma}, predicted speed-up {predicted}, "
            f"alpha {self.alpha:.3f}, c {self.c:.3f}>"
        )


def tune(
    target: ModelLike,
    draft: MeasurableDraftLike,
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    max_gamma: int = 8,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    n_tokens: int = 400,
    seed: int = 0,
    n_threads: int | None = None,
    progress: bool = False,
) -> Tuning:
    """Choose gamma from the measured acceptance rate, cost and time of verification.

    Theorem 3.8 takes the target to verify any number of positions in the time of one. Here that time is
    measured, so the choice holds where arithmetic, not memory, sets the speed, too.

    Parameters
    ----------
    target : Model, path or hub name
    draft : Model, path, hub name, or an object with ``probabilities(ids)``
        As in `specdec.measure`.
    prompts : str, sequence of int, or a list of these, optional
        What the target continues to measure the acceptance rate: give what resembles your use; for an
        encoder-decoder sources. None: some beginnings of English sentences, for a target with a tokenizer.
    max_gamma : int, default 8
        The largest gamma looked at.
    temperature, top_k, top_p, min_p
        As in `Sampling`.
    n_tokens : int, default 400
        Tokens the target generates, in all.
    seed : int, default 0
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Tuning
        ``tuning.gamma`` is the choice, and ``tuning.speedups`` what every gamma promises.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.measure`.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> tuning = specdec.tune(target, draft)
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=tuning.gamma)
    """
    max_gamma = check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
    n_tokens = check_integer("n_tokens", n_tokens, 1)
    sampling = Sampling(temperature, top_k, top_p, min_p)
    target, opened = open_pair(target, draft)
    beginnings = split(target, default_prompts(target) if prompts is None else prompts)
    seed, threads = check_integer("seed", seed, 0, 2**64 - 1), check_threads(n_threads)
    share = -(-n_tokens // len(beginnings))
    with counted(len(beginnings) * share, "token", progress) as done:
        found = acceptance(
            target, opened, beginnings, sampling=sampling, leniences=[1.0], n_tokens=share, seed=seed,
            n_threads=threads, done=done,
        )  # fmt: skip
    times = forward_times(
        target,
        opened if isinstance(opened, RUN_BY_THE_CORE) else None,
        sample_text(target, beginnings, found.tokens, max_gamma + 1),
        max_rows=max_gamma + 1,
        n_threads=threads,
    )
    betas = found.betas[1.0]
    n_positions = sum(map(len, betas))
    low, high = mean_interval(betas)
    return Tuning(
        target=name_of(target),
        draft=name_of(opened),
        temperature=sampling.temperature,
        n_tokens=n_positions,
        alpha=math.fsum(float(text.sum()) for text in betas) / n_positions,
        alpha_low=low,
        alpha_high=high,
        c=times.cost,
        verify_ratio=times.verify_ratio,
    )
