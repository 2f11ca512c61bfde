"""Statistics of `python -m benchmarks peers-exact`, on samples from known distributions."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import agreement

N_VOCAB = 5
END = N_VOCAB - 1


def conditional(tokens: tuple[int, ...]) -> np.ndarray:
    """A distribution that depends on all tokens so far."""
    rng = np.random.default_rng([9, *(token + 1 for token in tokens)])
    return rng.dirichlet(np.ones(N_VOCAB))


@pytest.fixture(scope="module")
def exact() -> np.ndarray:
    return agreement.joint_distribution(conditional, 3, N_VOCAB)


def draw(exact: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Counts of exact samples, in the shape of the distribution."""
    return np.random.default_rng(seed).multinomial(n, exact.ravel() / exact.sum()).reshape(exact.shape)


def test_the_joint_distribution_is_the_product_of_its_conditionals(exact: np.ndarray) -> None:
    assert exact.sum() == pytest.approx(1, abs=1e-12)
    a, b, c = conditional(()), conditional((0,)), conditional((0, 2))
    assert exact[0, 2, 1] == pytest.approx(a[0] * b[2] * c[1], rel=1e-12)


def test_nothing_follows_the_end_token(exact: np.ndarray) -> None:
    assert exact[END, END, END] == pytest.approx(conditional(())[END], rel=1e-12)
    assert exact[END].sum() == exact[END, END, END]
    assert exact[1, END].sum() == exact[1, END, END]


def test_texts_that_stop_at_the_end_token_count_like_those_that_go_on() -> None:
    short = agreement.count([[1, 2, 3, 0], [1], [], [1, END]], 3, N_VOCAB)
    long = agreement.count([[1, 2, 3], [1, END, 2], [END, 0, 0], [1, END, 3, 3]], 3, N_VOCAB)
    np.testing.assert_array_equal(short, long)
    assert short[1, 2, 3] == 1
    assert short[1, END, END] == 2
    assert short[END, END, END] == 1


def test_marginals(exact: np.ndarray) -> None:
    np.testing.assert_allclose(agreement.marginal(exact, 0), conditional(()), rtol=1e-12)
    second = sum(conditional(())[a] * conditional((a,)) for a in range(END))
    second[END] += conditional(())[END]
    np.testing.assert_allclose(agreement.marginal(exact, 1), second, rtol=1e-12)


def test_expected_noise_is_the_mean_over_exact_samples(exact: np.ndarray) -> None:
    """2000 experiments: their mean is known to about half a percent."""
    off = [agreement.total_variation(draw(exact, 300, seed), exact) for seed in range(2000)]
    mean, error = np.mean(off), np.std(off) / np.sqrt(len(off))
    assert abs(agreement.expected_noise(300, exact) - mean) < 5 * error  # false alarm: 6e-7


def test_p_values_of_exact_samples_are_uniform(exact: np.ndarray) -> None:
    """False alarm of the test of uniformity: 1e-4 (the G-test itself is asymptotic)."""
    p_values = [agreement.p_value(draw(exact, 20_000, seed), exact) for seed in range(500)]
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_p_value_finds_a_wrong_distribution(exact: np.ndarray) -> None:
    """Two independent tokens, each with the right marginal distribution."""
    first, second = agreement.marginal(exact, 0), agreement.marginal(exact, 1)
    wrong = first[:, None, None] * second[None, :, None] * np.ones(N_VOCAB) / N_VOCAB
    pairs = exact.sum(axis=2)[:, :, None] * np.ones(N_VOCAB) / N_VOCAB
    assert agreement.p_value(draw(pairs, 5000, 0), pairs) > 1e-6
    assert agreement.p_value(draw(wrong, 5000, 0), pairs) < 1e-12


def test_a_sample_that_cannot_be_has_p_0() -> None:
    assert agreement.p_value(np.array([99, 1]), np.array([1.0, 0.0])) == 0
    assert agreement.p_value(np.array([100, 0]), np.array([1.0, 0.0])) == 1


def test_p_value_is_that_of_scipy_where_all_cells_are_large() -> None:
    counts, exact = np.array([120, 230, 150]), np.array([0.25, 0.45, 0.3])
    expected = scipy.stats.power_divergence(counts, exact * 500, lambda_="log-likelihood").pvalue
    assert agreement.p_value(counts, exact) == pytest.approx(expected, rel=1e-12)


def test_small_cells_are_counted_together() -> None:
    counts, exact = np.array([50, 45, 3, 2]), np.array([0.5, 0.44, 0.03, 0.03])
    together = scipy.stats.power_divergence([50, 45, 5], [50, 44, 6], lambda_="log-likelihood").pvalue
    assert agreement.p_value(counts, exact) == pytest.approx(together, rel=1e-12)
    few = np.array([0.5, 0.46, 0.03, 0.01])  # 4 expected in the small ones: the next cell is merged with them
    joined = scipy.stats.power_divergence([50, 50], [50, 50], lambda_="log-likelihood").pvalue
    assert agreement.p_value(counts, few) == pytest.approx(joined, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "other", "position"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [], None)],
)
def test_first_difference(text: list[int], other: list[int], position: int | None) -> None:
    assert agreement.first_difference(text, other) == position
