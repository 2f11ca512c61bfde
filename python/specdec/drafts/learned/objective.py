"""The target's distribution after each token, and the divergences that a draft learns by.

The divergences are those of DistillSpec (Zhou et al., arXiv 2310.08461); P is the target's distribution of
the next token, Q the draft's. A log-probability may be -inf: the token then has probability 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.divergences import DivergenceName

_LEAST = -1e4  # in place of a log-probability of -inf: products with it stay finite
_LEAST_REST = 1e-12  # probability of all other tokens, at least: its logarithm stays finite
_VARIATION_SCALE = 4.0  # total variation is at most 1, the other divergences are in nats


def forward_kl(target: Tensor, draft: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ P ln(P / Q) of log-probabilities [..., n], in nats (Hinton et al. 2015).

    Where Q is 0 and P is not, it is large but finite and has no gradient.
    """
    target, draft = target.clamp(min=_LEAST), draft.clamp(min=_LEAST)
    return (target.exp() * (target - draft)).sum(-1)


def jensen_shannon(target: Tensor, draft: Tensor, beta: float = 0.5) -> Tensor:
    """JSD(β) = β KL(P ‖ M) + (1 − β) KL(Q ‖ M), M = β P + (1 − β) Q: generalized Jensen-Shannon, 0 < β < 1.

    Divided by β it tends to KL(P ‖ Q) as β tends to 0, and divided by 1 − β to KL(Q ‖ P) as β tends to 1.
    """
    target, draft = target.clamp(min=_LEAST), draft.clamp(min=_LEAST)
    mixture = (target + math.log(beta)).logaddexp(draft + math.log1p(-beta))
    return beta * forward_kl(target, mixture) + (1.0 - beta) * forward_kl(draft, mixture)


_FUNCTIONS: dict[DivergenceName, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fkl": lambda target, draft, beta: forward_kl(target, draft),
    "rkl": lambda target, draft, beta: forward_kl(draft, target),
    "jsd": jensen_shannon,
    # The chance of a rejection, 1 - β of Theorem 3.5 (arXiv 2211.17192).
    "tvd": lambda target, draft, beta: (target.exp() - draft.exp()).abs().sum(-1) / 2.0,
}


@dataclass(frozen=True)
class TargetDistribution:
    """The target's distribution of the next token at every position, whole or by its most probable tokens."""

    log_probs: Tensor  # [..., n_vocab]; or [..., k + 1], of k tokens and, last, of all others together
    tokens: Tensor | None = None  # [..., k] ids of the k tokens; None: the distribution is whole
    temperature: float = 1.0  # logits were divided by it; those of a draft are, too

    @classmethod
    def of_logits(
        cls, logits: Tensor, top: int | None = None, temperature: float = 1.0
    ) -> TargetDistribution:
        """Make it of logits [..., n_vocab]: whole, or the `top` most probable tokens and the rest.

        A divergence of such distributions is at most that of the whole ones, and 0 where these are equal.
        """
        log_probs = (logits.float() / temperature).log_softmax(-1)
        if top is None or top >= logits.shape[-1]:
            return cls(log_probs, None, temperature)
        kept, tokens = log_probs.topk(top, dim=-1)
        return cls(torch.cat((kept, _log_rest(kept)), dim=-1), tokens, temperature)

    @classmethod
    def of_top(cls, tokens: Tensor, log_probs: Tensor, rest: Tensor) -> TargetDistribution:
        """Make it of ids and ln of the probabilities of k tokens [..., k], and `rest` [...] of all others."""
        others = rest.clamp(min=_LEAST_REST).log()[..., None]
        return cls(torch.cat((log_probs, others), dim=-1), tokens)

    def __getitem__(self, index: Any) -> TargetDistribution:
        """Return it at some positions: an index of all dimensions but the last."""
        tokens = None if self.tokens is None else self.tokens[index]
        return TargetDistribution(self.log_probs[index], tokens, self.temperature)

    def to(self, device: torch.device | str) -> TargetDistribution:
        """Return the same on a device."""
        tokens = None if self.tokens is None else self.tokens.to(device)
        return TargetDistribution(self.log_probs.to(device), tokens, self.temperature)

    def of_draft(self, logits: Tensor) -> Tensor:
        """Return a draft's log-probabilities of the same tokens, from its logits [..., n_vocab]."""
        log_probs = (logits.float() / self.temperature).log_softmax(-1)
        if self.tokens is None:
            return log_probs
        kept = log_probs.gather(-1, self.tokens)
        return torch.cat((kept, _log_rest(kept)), dim=-1)


def _log_rest(log_probs: Tensor) -> Tensor:
    """Ln of the mass that tokens leave to the others, [..., 1]."""
    return (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=_LEAST_REST).log()


@dataclass(frozen=True)
class Objective:
    """The loss at every position: a weighted sum of divergences, by name; `beta` is that of "jsd"."""

    weights: Mapping[DivergenceName, float]
    beta: float = 0.5

    @classmethod
    def of_shares(cls, shares: Mapping[DivergenceName, float], beta: float = 0.5) -> Objective:
        """Weight divergences by their shares so that the gradients of all are about equally large."""
        scales = {"tvd": _VARIATION_SCALE}
        return cls({name: share * scales.get(name, 1.0) for name, share in shares.items()}, beta)

    def __call__(self, target: TargetDistribution, logits: Tensor) -> Tensor:
        """Return the loss [...] of a draft's logits [..., n_vocab] at the same positions."""
        if logits.dim() > 2:  # text by text, as far fewer numbers are then in use at once: twice as fast
            return torch.stack([self(target[i], part) for i, part in enumerate(logits.unbind(0))])
        draft, total = target.of_draft(logits), logits.new_zeros((), dtype=torch.float32)
        for name, weight in self.weights.items():
            if not weight:
                continue
            total = total + weight * _FUNCTIONS[name](target.log_probs, draft, self.beta)
        return total


def scattered(logits: Tensor, draft_ids: Tensor | None, n_vocab: int) -> Tensor:
    """Spread logits of the tokens `draft_ids` [n_draft_vocab], None for all, to [..., n_vocab] with -inf."""
    if draft_ids is None:
        return logits
    whole = logits.new_full((*logits.shape[:-1], n_vocab), float("-inf"))
    return whole.index_copy(-1, draft_ids, logits)


def reachable(target: TargetDistribution, draft_ids: Tensor | None, n_vocab: int) -> TargetDistribution:
    """Drop the tokens that a draft never drafts, whose losses no training can change; gradients stay."""
    if draft_ids is None:
        return target
    never = torch.ones(n_vocab, dtype=torch.bool, device=draft_ids.device).index_fill(0, draft_ids, False)
    if target.tokens is not None:
        rest = torch.zeros_like(target.tokens[..., :1], dtype=torch.bool)
        never = torch.cat((never[target.tokens], rest), dim=-1)
    log_probs = target.log_probs.masked_fill(never, float("-inf"))
    return TargetDistribution(log_probs, target.tokens, target.temperature)
