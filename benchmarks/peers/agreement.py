"""Whether samples agree with a law, and texts with each other: the statistics of `exact.py`.

A *law* is an array with an axis for each token, [n_vocab, ..., n_vocab], of probabilities of the first tokens
of a text. Some engines stop after the end token, so no one looks at what follows it: the law and the counts
put the end token at all positions after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

#: Cells of fewer expected samples are counted together in a G-test.
MIN_EXPECTED = 5.0

Law = NDArray[np.float64]


def joint_distribution(
    conditional: Callable[[tuple[int, ...]], NDArray[np.float64]], length: int, n_vocab: int
) -> Law:
    """The law of the first `length` tokens.

    Parameters
    ----------
    conditional : callable
        From the tokens so far to the distribution of the next, [n_vocab]. Asked once for each text shorter
        than `length` without end token, which is the last id.
    """
    law = np.zeros((n_vocab,) * length)
    end = n_vocab - 1

    def extend(tokens: tuple[int, ...], probability: float) -> None:
        if len(tokens) == length:
            law[tokens] = probability
        elif tokens and tokens[-1] == end:
            extend((*tokens, end), probability)
        else:
            for token, share in enumerate(conditional(tokens)):
                extend((*tokens, token), probability * float(share))

    extend((), 1.0)
    return law


def count(texts: Sequence[Sequence[int]], length: int, n_vocab: int) -> NDArray[np.int64]:
    """How often the texts begin with each `length` tokens, as an array of the law's shape."""
    end = n_vocab - 1
    counts = np.zeros((n_vocab,) * length, np.int64)
    for text in texts:
        tokens = list(itertools.takewhile(lambda token: token != end, text[:length]))
        counts[(*tokens, *[end] * (length - len(tokens)))] += 1
    return counts


def marginal(law: NDArray[np.generic], position: int) -> NDArray[np.generic]:
    """Law, or counts, of the token at a position, 0 the first."""
    return law.sum(axis=tuple(axis for axis in range(law.ndim) if axis != position))


def total_variation(counts: NDArray[np.int64], law: Law) -> float:
    """Half of the sum of |frequency - probability|: the largest error in the probability of any event."""
    return float(0.5 * np.abs(counts / counts.sum() - law).sum())


def expected_noise(n_samples: int, law: Law) -> float:
    """The expected total variation of as many exact samples.

    The mean absolute deviation of a binomial number X is E|X - np| = 2 k (1 - p) P(X = k), k = floor(np) + 1
    (de Moivre, 1730).
    """
    p = law[law > 0]
    k = np.floor(n_samples * p) + 1
    deviations = 2 * k * (1 - p) * scipy.stats.binom.pmf(k, n_samples, p)
    return float(0.5 * deviations.sum() / n_samples)


def p_value(counts: NDArray[np.int64], law: Law) -> float:
    """Of a G-test: the chance that exact samples are as far from the law, or farther.

    Cells that expect less than `MIN_EXPECTED` samples are one. A sample where the law is 0 gives 0.
    """
    observed, expected = counts.ravel(), law.ravel() * counts.sum()
    if observed[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    order = order[expected[order] > 0]
    sums = np.cumsum(expected[order])
    n_small = int(np.searchsorted(expected[order], MIN_EXPECTED))
    if n_small:  # as many more as make them one cell large enough
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
    """Position of the first token that differs, from 0; None for equal texts."""
    if len(text) != len(other):
        shorter = min(len(text), len(other))
        return next((i for i in range(shorter) if text[i] != other[i]), shorter)
    return next((i for i, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), None)


def probability(value: float) -> str:
    """A p-value for a table."""
    if value == 0 or value < 1e-12:
        return "< 1e-12"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def softmax(logits: Sequence[float]) -> NDArray[np.float64]:
    """Probabilities at temperature 1."""
    values = np.asarray(logits, np.float64)
    weights = np.exp(values - values.max())
    return weights / math.fsum(weights)
