"""Statistics of values at successive, correlated positions of several texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

N_BLOCKS = 20
"""Minimum number of blocks that texts are split into to estimate the variance of a mean."""

_FEWEST = 6  # fewest blocks for an interval


def mean_interval(series: Sequence[Array], confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval (low, high) of the mean of numbers in [0, 1] that depend on their neighbors.

    `series` has one array per text, [n_positions] in order. Texts are split into blocks, each at most a
    twentieth of all numbers. The spread of the block sums gives the variance of the mean, hence an effective
    number of independent observations for Wilson's interval with Student's quantile. (0, 1) with fewer than 6
    numbers.
    """
    total = sum(len(text) for text in series)
    if total < _FEWEST:
        return 0.0, 1.0
    blocks = [
        block
        for text in series
        if len(text)
        for block in np.array_split(text, min(len(text), math.ceil(N_BLOCKS * len(text) / total)))
    ]
    mean = float(np.clip(math.fsum(float(text.sum()) for text in series) / total, 0.0, 1.0))
    n_blocks = len(blocks)
    spread = math.fsum((float(block.sum()) - mean * len(block)) ** 2 for block in blocks)
    variance = n_blocks / (n_blocks - 1) * spread / total**2
    if mean in (0.0, 1.0):
        effective = float(total)
    elif variance <= 1e-30:  # rounding: all numbers are equal
        return mean, mean
    else:
        effective = mean * (1.0 - mean) / variance
    t = student_quantile(0.5 + confidence / 2.0, n_blocks - 1)
    scale = 1.0 + t * t / effective
    center = (mean + t * t / (2.0 * effective)) / scale
    half = t * math.sqrt(mean * (1.0 - mean) / effective + (t / (2.0 * effective)) ** 2) / scale
    return max(0.0, center - half), min(1.0, center + half)


def student_quantile(probability: float, n_free: int) -> float:
    """Quantile of Student's t (Fisher and Cornish, 1960); within 1 % for 5 or more degrees of freedom."""
    z = NormalDist().inv_cdf(probability)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n_free + second / n_free**2 + third / n_free**3


def autocorrelation(series: Sequence[Array], n_lags: int) -> Array:
    """Autocorrelation at lags 1, ..., n_lags within texts, [n_lags].

    Both sums run over all texts, about the common mean. NaN if all numbers are equal.
    """
    total = sum(len(text) for text in series)
    if not total:
        return np.full(n_lags, np.nan)
    mean = math.fsum(float(text.sum()) for text in series) / total
    centered = [text - mean for text in series]
    power = math.fsum(float(text @ text) for text in centered)
    if power <= 1e-24 * total:  # rounding
        return np.full(n_lags, np.nan)
    return np.array(
        [
            math.fsum(float(text[lag:] @ text[:-lag]) for text in centered if len(text) > lag) / power
            for lag in range(1, n_lags + 1)
        ]
    )


def ljung_box(correlations: Array, n_positions: int) -> tuple[float, float]:
    """Ljung-Box test of autocorrelations r at lags 1, 2, ...: (statistic, p value).

    As in Biometrika 65, 1978, the statistic is n (n + 2) Σ r[lag]² / (n − lag), chi-square with as many
    degrees of freedom as lags if there is no correlation.
    """
    lags = np.arange(1, len(correlations) + 1)
    if n_positions <= len(lags):
        return math.nan, math.nan
    statistic = float(n_positions * (n_positions + 2) * (correlations**2 / (n_positions - lags)).sum())
    return statistic, chi_square_tail(statistic, len(lags))


def chi_square_tail(x: float, n_free: int) -> float:
    """Probability that chi-square with n_free >= 1 degrees of freedom exceeds x >= 0 (A&S 26.4.8)."""
    if math.isnan(x):
        return math.nan
    if x <= 0.0:
        return 1.0
    k, tail = (2, math.exp(-x / 2.0)) if n_free % 2 == 0 else (1, math.erfc(math.sqrt(x / 2.0)))
    while k < n_free:
        tail += math.exp(k / 2.0 * math.log(x / 2.0) - x / 2.0 - math.lgamma(k / 2.0 + 1.0))
        k += 2
    return min(1.0, tail)


def acceptance_by_position(betas: Sequence[Array], gamma: int) -> Array:
    """Probability that draft token k of a round is accepted given that those before it were, [gamma].

    E(β[t] ··· β[t + k − 1]) / E(β[t] ··· β[t + k − 2]) over all positions t of the target's texts; NaN if no
    position was reached. Each equals alpha if betas are independent and identically distributed.
    """
    rates = np.full(gamma, np.nan)
    reached = [np.ones(len(text)) for text in betas]  # probability that k - 1 tokens are accepted
    for k in range(gamma):
        before = [chances[: len(text) - k] for chances, text in zip(reached, betas, strict=True)]
        reached = [chances * text[k : k + len(chances)] for chances, text in zip(before, betas, strict=True)]
        positions = math.fsum(float(chances.sum()) for chances in before)
        if positions > 0.0:
            rates[k] = math.fsum(float(chances.sum()) for chances in reached) / positions
    return rates
