"""Contract 1, distribution: the rejection rule proven by exact integration, in the reference and in the core.

``exact.prove`` sums over every draft and every random number; nothing here is statistical.
"""

from __future__ import annotations

import doctest
import sys

import numpy as np
import pytest

import specdec
from exact import Rule, outcome_distribution
from grids import in_few_items
from proofs import prove
from specdec import InputError, distribution, reference, verify
from tables import PAIRS, models, random_tree, shapes
from weights import verify_core

# ------------------------------------------------------------------------------------ the proof

# (shape, n_vocab)
TREES = [
    *(("chain0", 5), ("chain1", 5), ("chain2", 4), ("chain3", 3)),
    *(("two", 5), ("three", 4), ("left", 3), ("right", 3), ("both", 3), ("interleaved", 3)),
]


@in_few_items(by="shape")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("shape", "n_vocab"), TREES)
def test_the_reference_samples_exactly_the_target(shape: str, n_vocab: int, pair: str) -> None:
    prove(reference.verify, shapes()[shape], *models(pair, n_vocab, with_core=False))


@in_few_items(by="shape")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("shape", "n_vocab"), TREES)
def test_the_core_samples_exactly_the_target(shape: str, n_vocab: int, pair: str) -> None:
    prove(verify_core, shapes()[shape], *models(pair, n_vocab, with_core=True))


def test_the_core_samples_exactly_the_target_on_a_bushy_tree() -> None:
    """Seven nodes: 729 trees of drafts."""
    prove(verify_core, shapes()["bushy"], *models("plain", 3, with_core=True))


@pytest.mark.parametrize("rule", [reference.verify, verify_core], ids=["reference", "core"])
def test_outcome_law_by_hand(rule: Rule) -> None:
    """Dyadic probabilities, so that every number of the law is exact.

    Target 1/4 1/2 1/4, draft 1/2 1/2 0, drafted 0: accepted with probability 1/2, and the residual has only
    2. After an accepted 0 the target is 1/8 7/8 0.
    """
    target = np.array([[0.25, 0.5, 0.25], [0.125, 0.875, 0.0]])
    draft = np.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    assert outcome_distribution(rule, [2, 0], [-1, 0], target, draft) == {
        ((1,), 0): 0.5 * 0.125, ((1,), 1): 0.5 * 0.875, ((), 2): 0.5,
    }  # fmt: skip
    # A second child drawn from the same D is held against the residual, in which token 0 has nothing left.
    target, draft = np.vstack([target, target[1:]]), np.vstack([draft, draft[1:]])
    assert outcome_distribution(rule, [2, 0, 0], [-1, 0, 0], target, draft) == {
        ((1,), 0): 0.5 * 0.125, ((1,), 1): 0.5 * 0.875, ((), 2): 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("n_vocab", [63, 64, 65, 128, 200])
@pytest.mark.parametrize("rule", [reference.verify, verify_core], ids=["reference", "core"])
def test_long_distributions_are_sampled_exactly(rule: Rule, n_vocab: int) -> None:
    """Vocabularies around the lengths of vectors and blocks, long runs of tokens without mass among them.

    The law of one round with one given draft x: accepted with min(1, T(x) / D(x)), and then the next target.
    """
    rng = np.random.default_rng(n_vocab)
    probs = rng.exponential(size=(3, n_vocab))
    probs[:, rng.random(n_vocab) < 0.5] = 0.0
    probs[0, :40] = probs[1, 20 : n_vocab - 2] = probs[2, -1] = 0.0
    target, after, draft = probs / probs.sum(axis=1, keepdims=True)
    for drafted in (int(np.argmax(draft)), int(np.argmax(draft - target))):
        law = outcome_distribution(
            rule, [0, drafted], [-1, 0], np.array([target, after]), np.array([target, draft])
        )
        accept = min(1.0, target[drafted] / draft[drafted])
        left = np.maximum(0.0, target - draft)
        expected = {((1,), token): accept * after[token] for token in range(n_vocab)}
        expected |= {((), token): (1 - accept) * left[token] / left.sum() for token in range(n_vocab)}
        assert law.keys() == {outcome for outcome, probability in expected.items() if probability > 0}
        assert all(abs(probability - expected[outcome]) < 1e-12 for outcome, probability in law.items())


@pytest.mark.parametrize("rule", [reference.verify, verify_core], ids=["reference", "core"])
def test_no_mass_left_and_sums_short_of_one(rule: Rule) -> None:
    largest = 1 - 2**-53
    tenths = np.array([0.1] * 10 + [0.0, 0.0])
    assert rule([0], [-1], tenths[None], tenths[None], np.array([0.0, largest]))[1] == 9
    # Equal distributions accept whatever number comes.
    near = np.array([0.5, 0.5 - 2**-53, 2**-53])
    path, token, betas = rule(
        [0, 0], [-1, 0], np.array([near, near]), np.array([near, near]), np.array([0.0, largest, 0.6])
    )
    assert (path, token, len(betas)) == ([1], 1, 1)
    # A token that neither side can give is not accepted, whatever number comes.
    target, draft = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    assert rule([0, 0], [-1, 0], target, draft, np.zeros(3))[:2] == ([], 1)


# ------------------------------------------------------------------------------- specdec.verify

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
    """Two drafts for one position: the second is held against norm(max(0, T - D)) = [1, 0, 0].

    Of two drafts beta is the outcome.
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
    assert (
        verify(
            tokens, np.repeat(target, 2, axis=1)[:, ::2], draft.astype(np.float32), uniforms=[0.4, 0.3, 0.2]
        )
        == expected
    )
    assert np.array_equal(target, TARGET)
    assert np.array_equal(draft, DRAFT)
    assert verify([1], [[0, 1], [1, 0]], [[0, 1]], seed=0).tokens == [1, 0]


def test_distribution_and_verify_fit_together() -> None:
    logits = np.random.default_rng(4).standard_normal((4, 3, 5000)).astype(np.float32)
    for target_row, draft_row in zip(logits[:2], logits[2:], strict=True):
        target, draft = (
            distribution(target_row, top_p=0.9),
            distribution(draft_row[:2], temperature=0.7, top_k=50),
        )
        drafts = [reference.sample(row, 0.5) for row in draft]
        assert 1 <= len(verify(drafts, target, draft, seed=0).tokens) <= 3


SHORT = np.array([[0.5, 0.25, 0.25 - 1e-8]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1]}, r"tokens has shape \(1,\); expected \(2,\)"),
        ({"tokens": [[1, 0]]}, "tokens has shape"), ({"tokens": [1.0, 0.0]}, "tokens has dtype float64"),
        ({"tokens": [True, False]}, "tokens has dtype bool"), ({"tokens": [1, 3]}, r"tokens\[1\] is 3"),
        ({"tokens": [-1, 0]}, r"tokens\[0\] is -1"), ({"tokens": [1, 2]}, r"draft_probs\[1, 2\] is 0"),
        ({"target_probs": TARGET[0]}, "target_probs has shape"),
        ({"target_probs": TARGET[:0]}, "target_probs has shape"),
        ({"target_probs": TARGET.astype(complex)}, "target_probs has dtype complex128"),
        ({"target_probs": TARGET - [0, 0, 0.3]}, r"target_probs\[0, 2\] is -0.0"),
        ({"target_probs": TARGET * [[1], [np.nan], [1]]}, r"target_probs\[1\] has NaN"),
        ({"target_probs": TARGET * [[1], [1], [np.inf]]}, r"target_probs\[2\] has NaN or infinite"),
        ({"target_probs": np.vstack([TARGET[:2], SHORT])}, r"target_probs\[2\] sums to 0.99999999"),
        ({"draft_probs": DRAFT[:1]}, r"draft_probs has shape \(1, 3\); expected \(2, 3\)"),
        ({"draft_probs": DRAFT[:, :2]}, "draft_probs has shape"),
        ({"draft_probs": np.vstack([SHORT, DRAFT[1:]])}, r"draft_probs\[0\] sums to"),
        ({"draft_probs": [[1.0], [0.5, 0.5]]}, "draft_probs is not a rectangular array"),
        ({"parents": [0]}, "parents has shape"), ({"parents": [0, 2]}, r"parents\[1\] is 2"),
        ({"parents": [1, 0]}, r"parents\[0\] is 1"), ({"parents": [-1, 0]}, r"parents\[0\] is -1"),
        ({"uniforms": [0.1, 0.2]}, r"uniforms has shape \(2,\); expected \(3,\)"),
        ({"uniforms": [0.1, 0.2, 1.0]}, r"uniforms\[2\] is 1.0"),
        ({"uniforms": [0.1, -0.1, 0.0]}, r"uniforms\[1\] is -0.1"),
        ({"uniforms": [0.1, np.nan, 0.0]}, r"uniforms\[1\] is nan"), ({"seed": 1}, "both uniforms and seed"),
        ({"uniforms": None, "seed": -1}, "seed is -1"), ({"uniforms": None, "seed": 1.5}, "seed is 1.5"),
    ],
)  # fmt: skip
def test_public_verify_names_what_is_wrong(change: dict, message: str) -> None:
    arguments = {"tokens": [1, 0], "target_probs": TARGET, "draft_probs": DRAFT, "uniforms": [0.1, 0.2, 0.3]}
    with pytest.raises(InputError, match=message):
        verify(**{**arguments, **change})
    with pytest.raises(InputError, match="target_probs has shape"):
        verify([], np.empty((1, 0)), np.empty((0, 0)), seed=0)
