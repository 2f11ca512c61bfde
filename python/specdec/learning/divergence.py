"""How far a draft's law is from its target's: the divergences of DistillSpec (Zhou et al., arXiv 2310.08461).

P is the target's law of the next token, Q the draft's. Each function takes log-probabilities and gives a
number for every row, in nats where it has a unit. A log-probability may be -inf: the token then has
probability 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from specdec.checks import check_choice
from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.errors import InputError

__all__ = [
    "divergence",
    "divergence_of_laws",
    "forward_kl",
    "jensen_shannon",
    "reverse_kl",
    "total_variation",
]

_LEAST = -1e4
"""In the place of a log-probability of -inf: its exponential is 0, and products with it stay finite."""


def forward_kl(target: Tensor, draft: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ P ln(P / Q): the draft shall be likely wherever the target is (Hinton et al. 2015).

    Parameters
    ----------
    target, draft : Tensor
        [..., n] log-probabilities.

    Returns
    -------
    Tensor
        [...], 0 and above. Where Q is 0 and P is not, it is large but finite and has no gradient.
    """
    target, draft = target.clamp(min=_LEAST), draft.clamp(min=_LEAST)
    return (target.exp() * (target - draft)).sum(-1)


def reverse_kl(target: Tensor, draft: Tensor) -> Tensor:
    """KL(Q ‖ P) = Σ Q ln(Q / P): the draft shall be likely only where the target is.

    Parameters and result are those of `forward_kl`.
    """
    return forward_kl(draft, target)


def jensen_shannon(target: Tensor, draft: Tensor, beta: float = 0.5) -> Tensor:
    """JSD(β) = β KL(P ‖ M) + (1 − β) KL(Q ‖ M), M = β P + (1 − β) Q: generalised Jensen-Shannon.

    Divided by β it tends to KL(P ‖ Q) as β tends to 0, and divided by 1 − β to KL(Q ‖ P) as β tends to 1.

    Parameters
    ----------
    target, draft : Tensor
        [..., n] log-probabilities.
    beta : float, default 0.5
        β, above 0 and below 1; 0.5 is the symmetric one, at most ln 2.

    Returns
    -------
    Tensor
        [...], 0 and above.
    """
    if not 0.0 < beta < 1.0:
        raise InputError(f"beta is {beta!r}; expected a number above 0 and below 1")
    target, draft = target.clamp(min=_LEAST), draft.clamp(min=_LEAST)
    mixture = (target + math.log(beta)).logaddexp(draft + math.log1p(-beta))
    return beta * forward_kl(target, mixture) + (1.0 - beta) * forward_kl(draft, mixture)


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """Σ |P − Q| / 2 = 1 − Σ min(P, Q): the chance of a rejection, 1 − β of Theorem 3.5 (arXiv 2211.17192).

    Parameters and result are those of `forward_kl`; it is at most 1.
    """
    return (target.exp() - draft.exp()).abs().sum(-1) / 2.0


_FUNCTIONS: dict[DivergenceName, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fkl": lambda target, draft, beta: forward_kl(target, draft),
    "rkl": lambda target, draft, beta: reverse_kl(target, draft),
    "jsd": jensen_shannon,
    "tvd": lambda target, draft, beta: total_variation(target, draft),
}


def divergence_of_laws(name: DivergenceName, target: Tensor, draft: Tensor, beta: float = 0.5) -> Tensor:
    """A divergence by its name, of log-probabilities.

    Parameters
    ----------
    name : {"fkl", "rkl", "jsd", "tvd"}
    target, draft : Tensor
        [..., n].
    beta : float, default 0.5
        Of "jsd".

    Returns
    -------
    Tensor
        [...].
    """
    return _FUNCTIONS[name](target, draft, beta)


def divergence(
    name: DivergenceName,
    target: Tensor,
    draft: Tensor,
    *,
    temperature: float = 1.0,
    beta: float = 0.5,
) -> Tensor:
    """A divergence by its name, of logits.

    Parameters
    ----------
    name : {"fkl", "rkl", "jsd", "tvd"}
    target, draft : Tensor
        [..., n_vocab] logits; those of the draft may be -inf for tokens that it never guesses.
    temperature : float, default 1.0
        Above 0: both are divided by it first. The divergence is not multiplied by its square.
    beta : float, default 0.5
        Of "jsd".

    Returns
    -------
    Tensor
        [...].
    """
    check_choice("name", name, DIVERGENCES)
    if not 0.0 < temperature < math.inf:
        raise InputError(f"temperature is {temperature!r}; expected a finite number above 0")
    target, draft = ((logits.float() / temperature).log_softmax(-1) for logits in (target, draft))
    return divergence_of_laws(name, target, draft, beta)
