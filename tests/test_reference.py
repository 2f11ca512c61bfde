"""The executable specification against a second implementation and hand-computed numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specdec import reference
from worlds.canonical import VARIANTS, random_tensors

# --------------------------------------------------------------------------------- the decoder


@pytest.mark.parametrize("name", ["llama", "llama-wide-head"])
def test_logits_are_those_of_the_page_on_llama(name: str) -> None:
    config = VARIANTS[name]
    tensors = random_tensors(config)
    ids = np.random.default_rng(2).integers(config["n_vocab"], size=9).tolist()
    expected = reference.llama_logits(config, tensors, ids)
    np.testing.assert_allclose(reference.logits(config, tensors, ids), expected, rtol=1e-10, atol=1e-12)
    single = reference.logits(config, tensors, ids, dtype=np.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n_prefix", [0, 5])
@pytest.mark.parametrize("name", VARIANTS)
def test_each_node_of_a_tree_has_the_logits_of_its_own_sequence(name: str, n_prefix: int) -> None:
    config = VARIANTS[name]
    tensors, rng = random_tensors(config, seed=3), np.random.default_rng(4)
    prefix = rng.integers(config["n_vocab"], size=n_prefix).tolist()
    parents = [-1, 0, 0, 1, 1, 2, 4, 3]
    tokens = rng.integers(config["n_vocab"], size=len(parents)).tolist()
    got = reference.tree_logits(config, tensors, prefix, tokens, parents)
    assert got.shape == (len(parents), config["n_vocab"])
    for node in range(len(parents)):
        path, at = [], node
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        expected = reference.logits(config, tensors, prefix + path)[-1]
        np.testing.assert_allclose(got[node], expected, rtol=1e-10, atol=1e-12)


# --------------------------------------------------------------------------- distributions

QUARTERS = np.log([0.25, 0.125, 0.5, 0.125])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [1 / 4, 1 / 8, 1 / 2, 1 / 8]),
        ({"temperature": 0.5}, [4 / 22, 1 / 22, 16 / 22, 1 / 22]), ({"temperature": 0.0}, [0, 0, 1, 0]),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.1}, [0, 0, 1, 0]), ({"top_k": 1}, [0, 0, 1, 0]),
        ({"top_k": 2}, [1 / 3, 0, 2 / 3, 0]), ({"top_k": 3}, [2 / 7, 1 / 7, 4 / 7, 0]),
        ({"top_k": 9}, [1 / 4, 1 / 8, 1 / 2, 1 / 8]), ({"top_p": 0.49}, [0, 0, 1, 0]),
        ({"top_p": 0.51}, [1 / 3, 0, 2 / 3, 0]), ({"top_p": 0.76}, [2 / 7, 1 / 7, 4 / 7, 0]),
        ({"top_p": 0.88}, [1 / 4, 1 / 8, 1 / 2, 1 / 8]), ({"top_p": 1e-9}, [0, 0, 1, 0]),
        # The largest has 1/2 of the whole but 2/3 of what top-k left, of which the nucleus is taken.
        ({"top_k": 2, "top_p": 0.66}, [0, 0, 1, 0]), ({"top_k": 2, "top_p": 0.67}, [1 / 3, 0, 2 / 3, 0]),
    ],
)  # fmt: skip
def test_distribution_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    np.testing.assert_allclose(
        reference.distribution(QUARTERS, **{"temperature": 1.0} | settings), expected, rtol=0, atol=1e-15
    )


def test_ties_go_to_the_lowest_id() -> None:
    level = np.zeros(6)
    assert reference.distribution(level, 0.0).tolist() == [1, 0, 0, 0, 0, 0]
    assert reference.distribution(level, 1.0, top_k=2).tolist() == [0.5, 0.5, 0, 0, 0, 0]
    third = reference.distribution(level, 1.0, top_p=0.4).tolist()
    assert third == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0, 0])
    assert reference.distribution([0.0, 3.0, 1.0, 3.0], 0.0).tolist() == [0, 1, 0, 0]


def test_the_nucleus_is_the_smallest_set_with_enough_mass() -> None:
    """A token whose predecessors reach top_p exactly is not needed: powers of two make the sums exact."""
    halves = np.log2([0.5, 0.25, 0.125, 0.125]) * math.log(2)
    kept = np.flatnonzero(reference.distribution(halves, 1.0, top_p=0.5 - 1e-12))
    assert kept.tolist() == [0]
    assert np.flatnonzero(reference.distribution([0.0, 0.0, 0.0, 0.0], 1.0, top_p=0.5)).tolist() == [0, 1]
    assert np.flatnonzero(reference.distribution([0.0, 0.0, 0.0, 0.0], 1.0, top_p=0.75)).tolist() == [0, 1, 2]


def test_extreme_logits_and_temperatures() -> None:
    assert reference.distribution([-np.inf, 0.0, -np.inf], 1.0).tolist() == [0, 1, 0]
    assert reference.distribution([1e38, -1e38, 3e38], 1e-30).tolist() == [0, 0, 1]
    assert reference.distribution([5.0], 0.7, 1, 0.1).tolist() == [1]
    np.testing.assert_allclose(reference.distribution([1.0, 2.0, 3.0], 1e30), [1 / 3] * 3, rtol=1e-15)


# -------------------------------------------------------------------- speculative sampling


def test_sample_inverts_the_cumulative_distribution() -> None:
    probs = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    below = [np.nextafter(end, 0) for end in (0.25, 0.75, 1.0)]
    drawn = [reference.sample(probs, u) for u in (0.0, below[0], 0.25, below[1], 0.75, below[2])]
    assert drawn == [1, 1, 3, 3, 4, 4]


def test_sample_never_draws_a_token_without_mass() -> None:
    """Ten tenths make less than one in doubles; the largest uniform lies above their sum."""
    probs = np.array([0.1] * 10 + [0.0, 0.0])
    largest = 1 - 2**-53
    assert np.cumsum(probs)[-1] <= largest
    assert reference.sample(probs, largest) == 9
    assert reference.sample(np.array([0.0, 0.0, 1.0]), 0.0) == 2


def test_accept_probability_and_residual_by_hand() -> None:
    target, draft = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.25, 0.0, 0.25, 0.5])
    assert [reference.accept_probability(target, draft, x) for x in range(4)] == [1, 1, 0, 0]
    assert reference.accept_probability(draft, target, 0) == 0.5
    assert reference.residual(target, draft).tolist() == [1 / 3, 2 / 3, 0, 0]
    assert reference.residual(target, target) is target
