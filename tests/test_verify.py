"""`specdec.verify` on a user's arrays; `test_rules` proves its rules."""

from __future__ import annotations

import doctest
import sys
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import InputError, distribution, reference, verify
from tables import random_tree
from weights import verify_core

TARGET = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75]])
DRAFT = np.array([[0.25, 0.5, 0.25], [0.75, 0.25, 0.0]])


def test_public_verify_on_a_chain() -> None:
    """[1] is accepted below 1/2 and [0] after it below 1/3."""
    got = verify([1, 0], TARGET, DRAFT, uniforms=[0.49, 0.33, 0.9])
    assert got == ([1, 2], 2, [0.75, 0.5], [1, 0, 2])
    assert (got.path, got.token, got.betas, got.tokens) == tuple(got)
    assert verify([1, 0], TARGET, DRAFT, uniforms=[0.49, 0.34, 0.1]) == ([1], 1, [0.75, 0.5], [1, 1])
    assert verify([1, 0], TARGET, DRAFT, uniforms=[0.5, 0.0, 0.9]) == ([], 0, [0.75], [0])
    assert verify([], TARGET[:1], [], uniforms=[0.6]) == ([], 1, [], [1])
    assert verify([], TARGET[:1], np.empty((0, 3)), uniforms=[0.6]).tokens == [1]


def test_the_examples_of_the_docstrings() -> None:
    found = doctest.testmod(sys.modules[specdec.verify.__module__])
    assert found.attempted > 3 and found.failed == 0


def test_public_verify_on_a_tree() -> None:
    """Two drafts for one position: the second is judged by norm(max(0, T - D)) = [1, 0, 0].

    For two draft tokens beta is the outcome.
    """
    draft = DRAFT[[0, 0]]
    assert verify([1, 0], TARGET, draft, parents=[0, 0], uniforms=[0.5, 0.99, 0.1]) == ([2], 0, [1.0], [0, 0])
    assert verify([1, 0], TARGET, draft, parents=[0, 0], uniforms=[0.4, 0.99, 0.3]) == ([1], 1, [1.0], [1, 1])
    tokens, parents, target_probs, draft_probs = random_tree(np.random.default_rng(0))
    uniforms = np.random.default_rng(1).random(len(tokens) + 1)
    got = verify(tokens[1:], target_probs, draft_probs[1:], parents=parents[1:], uniforms=uniforms[1:])
    assert got[:3] == tuple(verify_core(tokens, parents, target_probs, draft_probs, uniforms))


def test_public_verify_draws_from_a_seed() -> None:
    numbers = np.random.default_rng(3).random(3)
    assert verify([1, 0], TARGET, DRAFT, seed=3) == verify([1, 0], TARGET, DRAFT, uniforms=numbers)
    for same in (np.random.SeedSequence(3), np.random.PCG64(3), np.random.default_rng(3)):
        assert verify([1, 0], TARGET, DRAFT, seed=same) == verify([1, 0], TARGET, DRAFT, seed=3)
    generator = np.random.default_rng(3)
    results = [verify([1, 0], TARGET, DRAFT, seed=generator) for _ in range(40)]
    assert results[0] == verify([1, 0], TARGET, DRAFT, seed=3)
    assert len({tuple(result.tokens) for result in results}) > 3
    assert len({tuple(verify([1, 0], TARGET, DRAFT).tokens) for _ in range(200)}) > 3


def test_public_verify_takes_any_real_arrays_and_leaves_them_alone() -> None:
    target, draft, tokens = TARGET.copy(), DRAFT.copy(), np.array([1, 0], dtype=np.uint8)
    expected = verify([1, 0], TARGET, DRAFT, uniforms=[0.4, 0.3, 0.2])
    assert verify(tokens, target.tolist(), np.asfortranarray(draft), uniforms=(0.4, 0.3, 0.2)) == expected
    strided = np.repeat(target, 2, axis=1)[:, ::2]
    assert verify(tokens, strided, draft.astype(np.float32), uniforms=[0.4, 0.3, 0.2]) == expected
    assert np.array_equal(target, TARGET)
    assert np.array_equal(draft, DRAFT)
    assert verify([1], [[0, 1], [1, 0]], [[0, 1]], seed=0).tokens == [1, 0]


def test_distribution_and_verify_fit_together() -> None:
    logits = np.random.default_rng(4).standard_normal((4, 3, 5000)).astype(np.float32)
    for target_row, draft_row in zip(logits[:2], logits[2:], strict=True):
        target = distribution(target_row, top_p=0.9)
        draft = distribution(draft_row[:2], temperature=0.7, top_k=50)
        drafts = [reference.sample(row, 0.5) for row in draft]
        assert 1 <= len(verify(drafts, target, draft, seed=0).tokens) <= 3


SHORT = np.array([[0.5, 0.25, 0.25 - 1e-8]])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("tokens", value) for value in ([1], [[1, 0]], [1.0, 0.0], [True, False], [1, 3], [-1, 0])),
        ("target_probs", TARGET[0]), ("target_probs", TARGET[:0]), ("target_probs", TARGET.astype(complex)),
        ("target_probs", TARGET - [0, 0, 0.3]), ("target_probs", TARGET * [[1], [np.nan], [1]]),
        ("target_probs", TARGET * [[1], [1], [np.inf]]), ("target_probs", np.vstack([TARGET[:2], SHORT])),
        ("draft_probs", DRAFT[:1]), ("draft_probs", DRAFT[:, :2]),
        ("draft_probs", np.vstack([SHORT, DRAFT[1:]])), ("draft_probs", [[1.0], [0.5, 0.5]]),
        *(("parents", value) for value in ([0], [0, 2], [1, 0], [-1, 0])),
        *(("uniforms", value) for value in ([0.1, 0.2], [0.1, 0.2, 1.0], [0.1, -0.1, 0.0], [np.nan] * 3)),
        ("seed", -1), ("seed", 1.5),
    ],
)  # fmt: skip
def test_public_verify_names_the_wrong_argument(argument: str, value: Any) -> None:
    given = {"tokens": [1, 0], "target_probs": TARGET, "draft_probs": DRAFT, "uniforms": [0.1, 0.2, 0.3]}
    given["uniforms"] = None if argument == "seed" else given["uniforms"]
    with pytest.raises(InputError, match=rf"^{argument}\b"):
        verify(**given | {argument: value})


def test_mismatched_arguments_are_refused() -> None:
    with pytest.raises(InputError, match=r"draft_probs\[1, 2\] is 0"):
        verify([1, 2], TARGET, DRAFT, seed=0)
    with pytest.raises(InputError, match="both uniforms and seed"):
        verify([1, 0], TARGET, DRAFT, uniforms=[0.1, 0.2, 0.3], seed=1)
    with pytest.raises(InputError, match="^target_probs has shape"):
        verify([], np.empty((1, 0)), np.empty((0, 0)), seed=0)
