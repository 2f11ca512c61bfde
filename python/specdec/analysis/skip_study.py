"""Which choice of skipped layers is tried next: Bayesian optimisation by Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec.analysis.skip_trials import Choice, SkipTrial
from specdec.drafts import SkipLayers
from specdec.errors import MissingPackageError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["SkipStudy", "import_optuna"]


def import_optuna() -> Any:
    """The module optuna; MissingPackageError if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackageError(
            "search_skips needs optuna, which is not installed: pip install optuna"
        ) from error
    return optuna


class SkipStudy:
    """Proposes choices, and is told how fast they are.

    Parameters
    ----------
    n_layer : int
    gammas : sequence of int
    seed : int
    trials : sequence of SkipTrial
        What was tried before.
    """

    def __init__(self, n_layer: int, gammas: Sequence[int], seed: int, trials: Sequence[SkipTrial]) -> None:
        optuna = self._optuna = import_optuna()
        self._n_layer = n_layer
        one_of = optuna.distributions.CategoricalDistribution
        self._space: dict[str, BaseDistribution] = {
            f"{part}.{i}": one_of([False, True]) for part in ("attn", "mlp") for i in range(n_layer)
        }
        self._space["gamma"] = one_of(list(gammas))
        verbosity = optuna.logging.get_verbosity()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # an earlier search's random numbers are not drawn again
            sampler = optuna.samplers.TPESampler(seed=seed + len(trials), multivariate=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # or it says that there is a study
        try:
            self._study = optuna.create_study(direction="maximize", sampler=sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)
        for trial in trials:
            params = self._params(trial.choice)
            self._study.add_trial(
                optuna.trial.create_trial(params=params, distributions=self._space, value=trial.speedup)
            )
        known = {trial.choice for trial in trials}
        for choice in promising(n_layer, sorted(gammas)[len(gammas) // 2]):
            if choice not in known:
                self._study.enqueue_trial(self._params(choice))

    def _params(self, choice: Choice) -> dict[str, Any]:
        attn, mlp, gamma = choice
        skipped = {f"attn.{i}" for i in attn} | {f"mlp.{i}" for i in mlp}
        return {name: name in skipped for name in self._space} | {"gamma": gamma}

    def ask(self) -> tuple[SkipLayers, Any]:
        """The next draft, and what `tell` is to be told of."""
        while True:
            trial = self._study.ask(self._space)
            attn, mlp = (
                [i for i in range(self._n_layer) if trial.params[f"{part}.{i}"]] for part in ("attn", "mlp")
            )
            if 0 < len(attn) + len(mlp) < 2 * self._n_layer:
                draft = SkipLayers(attn, mlp)
                draft.gamma = trial.params["gamma"]
                return draft, trial
            # to skip nothing or everything is no draft
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def tell(self, trial: Any, speedup: float) -> None:
        """How fast it was."""
        self._study.tell(trial, speedup)


def promising(n_layer: int, gamma: int) -> list[Choice]:
    """Where to begin: layers in the middle, whole or in part, every other one, and the last (early exits)."""
    whole, quarter = tuple(range(n_layer)), n_layer // 4
    middle = whole[max(1, quarter) : max(2, n_layer - quarter)] if n_layer > 1 else ()
    others, half, last = whole[1:-1:2], whole[(n_layer + 1) // 2 :], whole[-1:]
    pairs = [
        (middle, middle), (middle, ()), ((), middle), (others, others), (others, ()), (half, half),
        (last, last), (last, ()),
    ]  # fmt: skip
    drafts = [(*pair, gamma) for pair in pairs if 0 < sum(map(len, pair)) < 2 * n_layer]
    return list(dict.fromkeys(drafts))
