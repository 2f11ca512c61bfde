"""Learning by gradient steps towards the target's law where the draft was corrected."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_choice, check_integer, check_number
from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.drafts.draft import Draft
from specdec.drafts.online.corrections import Corrections
from specdec.drafts.online.learner import GoesOn, Learner
from specdec.errors import shown

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GradientLearner"]


class GradientLearner(Learner):
    """What learners by gradient steps have in common: AdamW, the loss, and what is saved.

    Parameters
    ----------
    network : torch.nn.Module
        In f32.
    n_vocab : int
        Ids that it has logits for.
    loss, learning_rate, passes, batch, n_top, seed
        As of `NetworkLearner`.
    """

    usual_rate: float = 2e-4
    """Learning rate for networks of up to ten million parameters, where the caller does not say."""

    def __init__(
        self,
        network: Any,
        n_vocab: int,
        *,
        loss: DivergenceName,
        learning_rate: float | None,
        passes: float,
        batch: int,
        n_top: int,
        seed: int,
    ) -> None:
        self.loss = check_choice("loss", loss, DIVERGENCES)
        positive = "a finite number above 0"
        if learning_rate is not None:
            check_number("learning_rate", learning_rate, positive, lambda x: 0.0 < x < math.inf)
        self.passes = check_number("passes", passes, positive, lambda x: 0.0 < x < 1e6)
        self.batch = check_integer("batch", batch, 1, 1 << 24)
        self.n_top = check_integer("n_top", n_top, 1, 1 << 16)
        self._rng = np.random.default_rng(check_integer("seed", seed, 0, 2**63 - 1))
        self._network, self._n_vocab = network.eval(), n_vocab  # no dropout
        size = sum(parameter.numel() for parameter in network.parameters())
        self.learning_rate = learning_rate or self.usual_rate / max(1.0, size / 1e7) ** 0.5
        self._optimiser = self._new_optimiser()

    def _new_optimiser(self) -> Any:
        import torch

        parameters = self._network.parameters()
        return torch.optim.AdamW(parameters, lr=self.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    def begin_thread(self) -> None:
        """See `Learner.begin_thread`: torch computes in this one thread."""
        import torch

        torch.set_num_threads(1)

    # ------------------------------------------------------------------------------------------ learning

    @abstractmethod
    def _train(self, corrections: Corrections, n_new: int, goes_on: GoesOn) -> None:
        """Take steps."""

    @abstractmethod
    def _exported(self) -> Draft:
        """The draft with the weights as they are."""

    def learn(self, corrections: Corrections, n_new: int, goes_on: GoesOn) -> Draft:
        """See `Learner.learn`."""
        self._train(corrections, n_new, goes_on)
        return self._exported()

    def _step(self, corrections: Corrections, rows: NDArray[np.int64], logits: Tensor) -> None:
        """A step on some corrections, for which the network says `logits` [n, n_vocab]."""
        import torch

        from specdec.learning.target_law import Objective

        # What the draft does not know, and what a small vocabulary lacks, is a token that it never guesses.
        logits = torch.nn.functional.pad(logits.float(), (0, 1), value=-math.inf)
        objective = Objective.of_shares({self.loss: 1.0})
        loss = objective(_law(corrections, rows, self._n_vocab), logits).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}; a lower learning_rate may help")
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimiser.step()

    # ---------------------------------------------------------------------------------------------- state

    def state(self) -> Mapping[str, NDArray[Any]]:
        """See `Learner.state`: parameters, and the moments of those that have been trained."""
        found: dict[str, NDArray[Any]] = {}
        for name, parameter in self._network.named_parameters():
            found[f"parameter.{name}"] = parameter.detach().numpy().copy()
            if moments := self._optimiser.state.get(parameter):
                found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
                found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
                found[f"steps.{name}"] = np.array([int(moments["step"])], np.int32)
        return found

    def restore(self, state: Mapping[str, NDArray[Any]], corrections: Corrections) -> Draft:
        """See `Learner.restore`."""
        import torch

        parameters = dict(self._network.named_parameters())
        parts = ("first", "second", "steps")
        known = {f"{part}.{name}" for name in parameters for part in ("parameter", *parts)}
        for unknown in sorted(state.keys() - known):
            raise ValueError(f"tensor '{unknown}' is none of this model")
        arrays = {
            name: self.expect(state, f"parameter.{name}", tuple(parameter.shape))
            for name, parameter in parameters.items()
        }
        moments: dict[str, dict[str, Tensor]] = {}
        for name, parameter in parameters.items():
            if not any(f"{part}.{name}" in state for part in parts):
                continue
            steps = state.get(f"steps.{name}", np.zeros(0))
            if steps.shape != (1,) or not 0 < steps[0] < 1 << 24:
                raise ValueError(f"tensor 'steps.{name}' is {shown(steps)}; expected one number above 0")
            both = [self.expect(state, f"{part}.{name}", tuple(parameter.shape)) for part in parts[:2]]
            moments[name] = {
                "step": torch.tensor(float(steps[0])),
                "exp_avg": torch.from_numpy(both[0].copy()),
                "exp_avg_sq": torch.from_numpy(both[1].copy()),
            }
        for name in sorted(state):
            if not np.isfinite(state[name]).all():
                raise ValueError(f"tensor '{name}' has a number that is not finite")
            if name.startswith("second.") and state[name].min(initial=0.0) < 0.0:
                raise ValueError(f"tensor '{name}' has a number below 0; expected means of squares")
        with torch.no_grad():
            for name, array in arrays.items():
                parameters[name].copy_(torch.from_numpy(array))
        self._optimiser = self._new_optimiser()
        for name, found in moments.items():
            self._optimiser.state[parameters[name]] = found
        return self._exported()


def _law(corrections: Corrections, rows: NDArray[np.int64], n_vocab: int) -> Any:
    """The target's law at some corrections, over a draft's ids; `n_vocab` stands for any that it lacks."""
    import torch

    from specdec.learning.target_law import TargetLaw

    top = corrections.top[rows].astype(np.int64)
    tokens = np.where((top < 0) | (top >= n_vocab), n_vocab, top)
    log_probs, rest = corrections.log_probs[rows], corrections.rest[rows]
    return TargetLaw.of_top(*(torch.from_numpy(array) for array in (tokens, log_probs, rest)))
