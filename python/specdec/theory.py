"""What the paper's formulas predict, as plain functions of its three quantities.

`alpha` is the mean acceptance rate (Corollary 3.6), `gamma` the number of drafted tokens a round, and
`cost` the cost coefficient c (Definition 3.7): the time of one run of the draft over the time of one run of
the target. A NaN among them gives NaN, save with gamma 0, where plain decoding needs neither alpha nor
cost.
"""

from __future__ import annotations

import math

__all__ = ["expected_speedup", "expected_tokens"]


def expected_tokens(alpha: float, gamma: float) -> float:
    """Expected number of tokens one run of the target yields, equation (1): (1 − α^(γ+1)) / (1 − α).

    Parameters
    ----------
    alpha : float
        Mean acceptance rate, in [0, 1]; at 1 the result is the limit γ + 1.
    gamma : float
        Drafted tokens a round, at least 0; a mean over rounds need not be an integer.

    Raises
    ------
    ValueError
        If a quantity is out of its range.
    """
    if gamma < 0.0:
        raise ValueError(f"gamma is {gamma!r}; expected a number, at least 0")
    if alpha < 0.0 or alpha > 1.0:
        raise ValueError(f"alpha is {alpha!r}; expected a number in [0, 1]")
    if gamma == 0.0 or alpha == 0.0:
        return 1.0
    if alpha == 1.0:
        return gamma + 1.0
    return -math.expm1((gamma + 1.0) * math.log(alpha)) / (1.0 - alpha)  # expm1: no cancellation near 1


def expected_speedup(alpha: float, gamma: float, cost: float) -> float:
    """Expected improvement factor in wall time, Theorem 3.8: (1 − α^(γ+1)) / ((1 − α)(γc + 1)).

    It assumes acceptances that are independent and alike, and a target that verifies γ + 1 positions in the
    time of one.

    Parameters
    ----------
    alpha, gamma : float
        As in `expected_tokens`.
    cost : float
        The cost coefficient c, at least 0.

    Raises
    ------
    ValueError
        If a quantity is out of its range.
    """
    if cost < 0.0:
        raise ValueError(f"cost is {cost!r}; expected a number, at least 0")
    tokens = expected_tokens(alpha, gamma)
    return tokens if gamma == 0.0 else tokens / (gamma * cost + 1.0)
