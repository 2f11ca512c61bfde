"""Statistics of dependent series, against SciPy, explicit sums, and their guarantees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from specdec.analysis import statistics

RNG = np.random.default_rng(11)


def dependent(rng: np.random.Generator, n: int, keep: float, rate: float) -> np.ndarray:
    """Zeros and ones with mean `rate`; each repeats the one before it with probability `keep`."""
    fresh = rng.random(n) < rate
    kept = rng.random(n) < keep
    values = np.empty(n)
    values[0] = fresh[0]
    for i in range(1, n):
        values[i] = values[i - 1] if kept[i] else fresh[i]
    return values


@pytest.mark.parametrize("n_free", [1, 2, 3, 10, 25])
@pytest.mark.parametrize("x", [0.0, 0.3, 4.0, 20.0, 300.0])
def test_chi_square_tail(x: float, n_free: int) -> None:
    assert statistics.chi_square_tail(x, n_free) == pytest.approx(scipy.stats.chi2.sf(x, n_free), rel=1e-10)


@pytest.mark.parametrize(("n_free", "rel"), [(5, 0.01), (10, 1e-3), (19, 1e-4), (200, 1e-6)])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.995])
def test_student_quantile(probability: float, n_free: int, rel: float) -> None:
    found = statistics.student_quantile(probability, n_free)
    assert found == pytest.approx(scipy.stats.t.ppf(probability, n_free), rel=rel)


def test_autocorrelation_is_the_sum_over_all_texts() -> None:
    texts = [RNG.random(7), RNG.random(2), RNG.random(12)]
    everything = np.concatenate(texts)
    mean = everything.mean()
    found = statistics.autocorrelation(texts, 3)
    for lag in (1, 2, 3):
        pairs = [(x[i] - mean) * (x[i - lag] - mean) for x in texts for i in range(lag, len(x))]
        assert found[lag - 1] == pytest.approx(sum(pairs) / ((everything - mean) ** 2).sum())
    assert np.isnan(statistics.autocorrelation([np.full(9, 0.7)], 2)).all()
    assert np.isnan(statistics.autocorrelation([], 2)).all()


def test_ljung_box_is_the_formula() -> None:
    found = statistics.ljung_box(np.array([0.1, -0.2]), 50)
    statistic = 50 * 52 * (0.01 / 49 + 0.04 / 48)
    assert found == pytest.approx((statistic, scipy.stats.chi2.sf(statistic, 2)))
    assert np.isnan(statistics.ljung_box(np.array([0.1, np.nan]), 50)).all()
    assert np.isnan(statistics.ljung_box(np.array([0.1, 0.2]), 2)).all()


def test_ljung_box_is_right_of_independent_series_and_finds_dependent_ones() -> None:
    """p values of independent series are uniform: Kolmogorov and Smirnov's test, false alarms one in 1000."""
    rng = np.random.default_rng(2)

    def p_value(keep: float) -> float:
        texts = [dependent(rng, 120, keep, 0.7) for _ in range(4)]
        return statistics.ljung_box(statistics.autocorrelation(texts, 10), 480)[1]

    assert scipy.stats.kstest([p_value(0.0) for _ in range(400)], "uniform").pvalue > 1e-3
    assert np.median([p_value(0.4) for _ in range(20)]) < 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize("keep", [0.0, 0.5])
@pytest.mark.parametrize("n_texts", [1, 5, 40])
def test_interval_has_its_stated_coverage(n_texts: int, keep: float) -> None:
    """Also where neighbors are alike, which makes Wilson's own interval cover in 75 % of cases.

    Each case would raise a false alarm with probability below 1 in 1000 at a coverage of 95 %; blocks of a
    text see most of its dependence, not all.
    """
    rng = np.random.default_rng(8)
    covered = 0
    for _ in range(600):
        texts = [dependent(rng, 800 // n_texts, keep, 0.8) for _ in range(n_texts)]
        low, high = statistics.mean_interval(texts)
        covered += low <= 0.8 <= high
    assert covered / 600 > 0.92


def test_interval_at_the_edges() -> None:
    assert statistics.mean_interval([np.ones(5)]) == (0.0, 1.0)
    assert statistics.mean_interval([]) == (0.0, 1.0)
    assert statistics.mean_interval([np.full(50, 0.25)]) == (0.25, 0.25)
    low, high = statistics.mean_interval([np.ones(100), np.ones(0)])
    assert 0.94 < low < 1.0 and high == 1.0  # no rejection occurred, which does not prove that none can occur
    low, high = statistics.mean_interval([np.zeros(100)])
    assert low == 0.0 and 0.0 < high < 0.06


def test_interval_is_narrower_with_less_confidence_and_more_text() -> None:
    texts = [dependent(np.random.default_rng(1), 4000, 0.3, 0.6)]
    wide = np.ptp(statistics.mean_interval(texts))
    assert np.ptp(statistics.mean_interval(texts, 0.5)) < 0.5 * wide
    assert np.ptp(statistics.mean_interval([texts[0][:400]])) > 2 * wide


def test_acceptance_by_position_is_the_ratio_of_mean_products() -> None:
    texts = [RNG.random(6), RNG.random(3), RNG.random(1)]
    found = statistics.acceptance_by_position(texts, 4)
    for k in range(1, 5):
        contexts = [x[i : i + k] for x in texts for i in range(len(x) - k + 1)]
        wanted = sum(p.prod() for p in contexts) / sum(p[:-1].prod() for p in contexts)
        assert found[k - 1] == pytest.approx(wanted)
    assert np.isnan(statistics.acceptance_by_position([np.zeros(5)], 3)).tolist() == [False, True, True]
    assert math.isnan(statistics.acceptance_by_position([], 1)[0])
