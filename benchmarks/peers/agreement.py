"""Statistics of `exact.py`: agreement of samples with a distribution, and of texts.

A distribution is an array [n_vocab, ..., n_vocab] of the probabilities of a text's first tokens, one axis per
token. Some engines stop after the end token, so distributions and counts repeat it at all later positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

#: A G-test merges cells with fewer expected samples.
MIN_EXPECTED = 5.0

Distribution = NDArray[np.float64]


def joint_distribution(
    conditional: Callable[[tuple[int, ...]], NDArray[np.float64]], length: int, n_vocab: int
) -> Distribution:
    """Return the distribution of the first `length` tokens.

    Parameters
    ----------
    conditional : callable
        Maps the tokens so far to the next-token distribution [n_vocab]. Called once for each text shorter
        than `length` without the end token, which is the last id.
    """
    distribution = np.zeros((n_vocab,) * length)
    end = n_vocab - 1

    def extend(tokens: tuple[int, ...], probability: float) -> None:
        if len(tokens) == length:
            distribution[tokens] = probability
        elif tokens and tokens[-1] == end:
            extend((*tokens, end), probability)
        else:
            for token, share in enumerate(conditional(tokens)):
                extend((*tokens, token), probability * float(share))

    extend((), 1.0)
    return distribution


def count(texts: Sequence[Sequence[int]], length: int, n_vocab: int) -> NDArray[np.int64]:
    """Count the first `length` tokens of texts, in an array of the distribution's shape."""
    end = n_vocab - 1
    counts = np.zeros((n_vocab,) * length, np.int64)
    for text in texts:
        tokens = list(itertools.takewhile(lambda token: token != end, text[:length]))
        counts[(*tokens, *[end] * (length - len(tokens)))] += 1
    return counts


def marginal(distribution: NDArray[np.generic], position: int) -> NDArray[np.generic]:
    """Return the distribution, or counts, of the token at a position from 0."""
    return distribution.sum(axis=tuple(axis for axis in range(distribution.ndim) if axis != position))


def total_variation(counts: NDArray[np.int64], distribution: Distribution) -> float:
    """Return Σ |frequency - probability| / 2, the largest error in the probability of any event."""
    return float(0.5 * np.abs(counts / counts.sum() - distribution).sum())


def expected_noise(n_samples: int, distribution: Distribution) -> float:
    """Return the expected total variation of `n_samples` exact samples.

    The mean absolute deviation of a binomial number X is E|X - np| = 2 k (1 - p) P(X = k), k = floor(np) + 1
    (de Moivre, 1730).
    """
    p = distribution[distribution > 0]
    k = np.floor(n_samples * p) + 1
    deviations = 2 * k * (1 - p) * scipy.stats.binom.pmf(k, n_samples, p)
    return float(0.5 * deviations.sum() / n_samples)


def p_value(counts: NDArray[np.int64], distribution: Distribution) -> float:
    """Return the p-value of a G-test.

    Merges cells with less than `MIN_EXPECTED` expected samples. A sample of probability 0 gives 0.
    """
    observed, expected = counts.ravel(), distribution.ravel() * counts.sum()
    if observed[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    order = order[expected[order] > 0]
    sums = np.cumsum(expected[order])
    n_small = int(np.searchsorted(expected[order], MIN_EXPECTED))
    if n_small:  # merge until the cell is large enough
        n_small = max(n_small, int(np.searchsorted(sums, MIN_EXPECTED)) + 1)
    small, large = order[:n_small], order[n_small:]
    seen = np.append(observed[large], observed[small].sum()) if n_small else observed[large]
    wanted = np.append(expected[large], expected[small].sum()) if n_small else expected[large]
    if len(seen) < 2:
        return 1.0
    some = seen > 0
    g = 2 * float(np.sum(seen[some] * np.log(seen[some] / wanted[some])))
    return float(scipy.stats.chi2.sf(g, len(seen) - 1))


def first_difference(text: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the position of the first different token, from 0; None for equal texts."""
    if len(text) != len(other):
        shorter = min(len(text), len(other))
        return next((i for i in range(shorter) if text[i] != other[i]), shorter)
    return next((i for i, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), None)


def probability(value: float) -> str:
    """Format a p-value."""
    if value == 0 or value < 1e-12:
        return "< 1e-12"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def softmax(logits: Sequence[float]) -> NDArray[np.float64]:
    """Return probabilities at temperature 1."""
    values = np.asarray(logits, np.float64)
    weights = np.exp(values - values.max())
    return weights / math.fsum(weights)
