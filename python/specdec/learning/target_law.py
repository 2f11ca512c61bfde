"""The target's law after each token, whole or by its most probable tokens, and the loss against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.divergences import DivergenceName
from specdec.learning.divergence import divergence_of_laws

__all__ = ["Objective", "TargetLaw"]

_LEAST_REST = 1e-12
"""Probability of all other tokens, at least: its logarithm stays finite."""
_VARIATION_SCALE = 4.0
"""Total variation is at most 1, the other divergences are in nats."""


@dataclass(frozen=True)
class TargetLaw:
    """What the target says of the next token, for every position.

    Attributes
    ----------
    log_probs : Tensor
        [..., n_vocab] of every token; or [..., k + 1], of k tokens and, last, of all others together.
    tokens : Tensor or None
        [..., k] ids of the k tokens. None: the law is whole.
    temperature : float
        Logits were divided by it; those of a draft are, too.
    """

    log_probs: Tensor
    tokens: Tensor | None = None
    temperature: float = 1.0

    @classmethod
    def of_logits(cls, logits: Tensor, top: int | None = None, temperature: float = 1.0) -> TargetLaw:
        """The law of logits [..., n_vocab]: whole, or its `top` most probable tokens and the rest.

        A divergence of two laws in which tokens are taken together is at most that of the whole laws, and is
        0 where these are equal. So little is lost where the rest has little mass.
        """
        log_probs = (logits.float() / temperature).log_softmax(-1)
        if top is None or top >= logits.shape[-1]:
            return cls(log_probs, None, temperature)
        kept, tokens = log_probs.topk(top, dim=-1)
        return cls(torch.cat((kept, _log_rest(kept)), dim=-1), tokens, temperature)

    @classmethod
    def of_top(cls, tokens: Tensor, log_probs: Tensor, rest: Tensor) -> TargetLaw:
        """The law at temperature 1 of k tokens, and of all others together.

        Parameters
        ----------
        tokens, log_probs : Tensor
            [..., k] ids, and ln of their probabilities.
        rest : Tensor
            [...] the probability of all others.
        """
        others = rest.clamp(min=_LEAST_REST).log()[..., None]
        return cls(torch.cat((log_probs, others), dim=-1), tokens)

    def __getitem__(self, index: Any) -> TargetLaw:
        """The law at some positions: an index of all dimensions but the last."""
        tokens = None if self.tokens is None else self.tokens[index]
        return TargetLaw(self.log_probs[index], tokens, self.temperature)

    def to(self, device: torch.device | str) -> TargetLaw:
        """The same on a device."""
        tokens = None if self.tokens is None else self.tokens.to(device)
        return TargetLaw(self.log_probs.to(device), tokens, self.temperature)

    def of_draft(self, logits: Tensor) -> Tensor:
        """A draft's log-probabilities of what this law is of.

        Parameters
        ----------
        logits : Tensor
            [..., n_vocab] of the draft; -inf for a token that it never guesses.

        Returns
        -------
        Tensor
            As `log_probs`.
        """
        log_probs = (logits.float() / self.temperature).log_softmax(-1)
        if self.tokens is None:
            return log_probs
        kept = log_probs.gather(-1, self.tokens)
        return torch.cat((kept, _log_rest(kept)), dim=-1)


def _log_rest(log_probs: Tensor) -> Tensor:
    """ln of the mass that tokens leave to the others, [..., 1]."""
    return (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=_LEAST_REST).log()


@dataclass(frozen=True)
class Objective:
    """What a draft is trained to make small at every position: a divergence, or a weighted sum of some.

    Attributes
    ----------
    weights : mapping of str to float
        Weight of each divergence, by its name.
    beta : float
        Of the Jensen-Shannon divergence.
    """

    weights: Mapping[DivergenceName, float]
    beta: float = 0.5

    @classmethod
    def of_shares(cls, shares: Mapping[DivergenceName, float], beta: float = 0.5) -> Objective:
        """Of divergences by their shares, so weighted that the gradients of all are about equally large."""
        scales = {"tvd": _VARIATION_SCALE}
        return cls({name: share * scales.get(name, 1.0) for name, share in shares.items()}, beta)

    def __call__(self, law: TargetLaw, logits: Tensor) -> Tensor:
        """The loss [...] of a draft's logits [..., n_vocab] against the law at the same positions."""
        if logits.dim() > 2:  # text by text, as far fewer numbers are then in use at once: twice as fast
            return torch.stack([self(law[i], part) for i, part in enumerate(logits.unbind(0))])
        draft, total = law.of_draft(logits), logits.new_zeros((), dtype=torch.float32)
        for name, weight in self.weights.items():
            if not weight:
                continue
            total = total + weight * divergence_of_laws(name, law.log_probs, draft, self.beta)
        return total
