"""Contract 1, distribution: the rejection rule proven by exact integration, in the reference and in the core.

``exact.prove`` sums over every draft and every random number; nothing here is statistical.
"""

from __future__ import annotations

import doctest
import inspect
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from exact import Conditional, DisprovedError, Probs, Rule, outcome_law, prove, round_law, shapes, table
from specdec import InputError, _core, distribution, reference, verification, verify
from specdec.reference import rules

# ------------------------------------------------------------------------------------ the proof

Standardise = Callable[[np.ndarray], Probs]


def standardise(with_core: bool, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Standardise:
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return partial(_core.distribution if with_core else reference.distribution, **options)


# (kind and settings of the target, kind and settings of the draft)
PAIRS: dict[str, tuple[tuple[str, dict], tuple[str, dict]]] = {
    "plain": (("random", {}), ("random", {})),
    "temperatures": (("random", {"temperature": 0.6}), ("random", {"temperature": 1.8})),
    "top-k-of-target": (("random", {"top_k": 2}), ("random", {})),
    "top-k-of-draft": (("random", {}), ("random", {"top_k": 2})),
    "top-k-of-both": (("random", {"top_k": 2}), ("random", {"top_k": 2, "temperature": 0.7})),
    "nucleus-of-target": (("random", {"top_p": 0.6}), ("random", {"temperature": 2.0})),
    "nucleus-of-draft": (("random", {"temperature": 2.0}), ("random", {"top_p": 0.6})),
    "nucleus-and-top-k": (("random", {"top_p": 0.8}), ("random", {"top_k": 2, "top_p": 0.9})),
    "zeros": (("zeros", {}), ("zeros", {})),
    "ties": (("ties", {"top_k": 2}), ("ties", {"top_p": 0.5})),
    "disjoint": (("even", {}), ("odd", {})),
    "greedy": (("random", {"temperature": 0.0}), ("random", {"temperature": 0.0})),
    "greedy-target": (("random", {"temperature": 0.0}), ("random", {})),
    "greedy-draft": (("random", {}), ("random", {"temperature": 0.0})),
}
# (shape, n_vocab)
TREES = [
    *(("chain0", 5), ("chain1", 5), ("chain2", 4), ("chain3", 3)),
    *(("two", 5), ("three", 4), ("left", 3), ("right", 3), ("both", 3), ("interleaved", 3)),
]


def models(pair: str, n_vocab: int, with_core: bool) -> tuple[Conditional, Conditional]:
    (target_kind, target_settings), (draft_kind, draft_settings) = PAIRS[pair]
    return (
        table(n_vocab, 1, standardise(with_core, **target_settings), kind=target_kind),
        table(n_vocab, 2, standardise(with_core, **draft_settings), kind=draft_kind),
    )


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("shape", "n_vocab"), TREES)
def test_the_reference_samples_exactly_the_target(shape: str, n_vocab: int, pair: str) -> None:
    prove(reference.verify, shapes()[shape], *models(pair, n_vocab, with_core=False))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("shape", "n_vocab"), TREES)
def test_the_core_samples_exactly_the_target(shape: str, n_vocab: int, pair: str) -> None:
    prove(_core.verify, shapes()[shape], *models(pair, n_vocab, with_core=True))


def test_the_core_samples_exactly_the_target_on_a_bushy_tree() -> None:
    """Seven nodes: 729 trees of drafts."""
    prove(_core.verify, shapes()["bushy"], *models("plain", 3, with_core=True))


@pytest.mark.parametrize("rule", [reference.verify, _core.verify], ids=["reference", "core"])
@pytest.mark.parametrize("shape", ["chain2", "two"])
def test_a_draft_equal_to_the_target_is_always_accepted(rule: Rule, shape: str) -> None:
    target = table(4, 3, standardise(rule is _core.verify, top_p=0.9))
    law = round_law(rule, shapes()[shape], target, target)
    prove(rule, shapes()[shape], target, target)
    assert law.accepted[1] == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("rule", [reference.verify, _core.verify], ids=["reference", "core"])
def test_outcome_law_by_hand(rule: Rule) -> None:
    """Dyadic probabilities, so that every number of the law is exact.

    Target 1/4 1/2 1/4, draft 1/2 1/2 0, drafted 0: accepted with probability 1/2, and the residual has only
    2. After an accepted 0 the target is 1/8 7/8 0.
    """
    target = np.array([[0.25, 0.5, 0.25], [0.125, 0.875, 0.0]])
    draft = np.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    assert outcome_law(rule, [2, 0], [-1, 0], target, draft) == {
        ((1,), 0): 0.5 * 0.125,
        ((1,), 1): 0.5 * 0.875,
        ((), 2): 0.5,
    }
    # A second child drawn from the same D is held against the residual, in which token 0 has nothing left.
    target, draft = np.vstack([target, target[1:]]), np.vstack([draft, draft[1:]])
    assert outcome_law(rule, [2, 0, 0], [-1, 0, 0], target, draft) == {
        ((1,), 0): 0.5 * 0.125,
        ((1,), 1): 0.5 * 0.875,
        ((), 2): 0.5,
    }


@pytest.mark.parametrize("n_vocab", [63, 64, 65, 128, 200])
@pytest.mark.parametrize("rule", [reference.verify, _core.verify], ids=["reference", "core"])
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
        law = outcome_law(rule, [0, drafted], [-1, 0], np.array([target, after]), np.array([target, draft]))
        accept = min(1.0, target[drafted] / draft[drafted])
        left = np.maximum(0.0, target - draft)
        expected = {((1,), token): accept * after[token] for token in range(n_vocab)}
        expected |= {((), token): (1 - accept) * left[token] / left.sum() for token in range(n_vocab)}
        assert law.keys() == {outcome for outcome, probability in expected.items() if probability > 0}
        assert all(abs(probability - expected[outcome]) < 1e-12 for outcome, probability in law.items())


# --------------------------------------------------------------------------- the proof can fail

# What is wrong, the text of the reference that is replaced, and its replacement.
MUTATIONS: dict[str, tuple[str, str]] = {
    "accepts with draft / target": (
        "return float(target[token] / draft[token])",
        "return float(draft[token] / max(target[token], 1e-9))",
    ),
    "accepts only above half": (
        "return float(target[token] / draft[token])",
        "return float(target[token] >= 0.5 * draft[token])",
    ),
    "accepts always": (
        "if uniforms[child] < accept_probability(target, draft_probs[child], tokens[child]):",
        "if True:",
    ),
    "accepts never": (
        "if uniforms[child] < accept_probability(target, draft_probs[child], tokens[child]):",
        "if False:",
    ),
    "accepts at equality": (
        "if uniforms[child] < accept_probability(",
        "if uniforms[child] <= accept_probability(",
    ),
    "accepts only what an independent sample of the target equals": (
        "if uniforms[child] < accept_probability(target, draft_probs[child], tokens[child]):",
        "if sample(target, uniforms[child]) == tokens[child]:",
    ),
    "residual not subtracted": ("left = np.maximum(0.0, target - draft)", "left = np.maximum(0.0, target)"),
    "residual the wrong way round": ("np.maximum(0.0, target - draft)", "np.maximum(0.0, draft - target)"),
    "residual not cut at zero": ("np.maximum(0.0, target - draft)", "np.abs(target - draft)"),
    "residual by rank instead of by id": (
        "left = np.maximum(0.0, target - draft)",
        "order = np.argsort(-target)\n    left = np.zeros(len(target))\n"
        "    left[order] = np.maximum(0.0, target[order] - np.sort(draft)[::-1])",
    ),
    "residual not normalised": (
        "return left / mass if mass > 0 else target",
        "return left if mass > 0 else target",
    ),
    "samples the target after a rejection": (
        "return path, sample(target, uniforms[n_nodes]), betas",
        "return path, sample(target_probs[node], uniforms[n_nodes]), betas",
    ),
    "bonus token from the draft": (
        "return path, sample(target, uniforms[n_nodes]), betas",
        "return path, sample(target if children else draft_probs[node], uniforms[n_nodes]), betas",
    ),
    "bonus token missing": (
        "return path, sample(target, uniforms[n_nodes]), betas",
        "if path and not children:\n                return path[:-1], tokens[path[-1]], betas\n"
        "            return path, sample(target, uniforms[n_nodes]), betas",
    ),
    "bonus token from one node too early": (
        "target = target_probs[node]\n",
        "target = target_probs[node if node == 0 or node in parents else parents[node]]\n",
    ),
    "uniforms shifted down": ("if uniforms[child] <", "if uniforms[child - 1] <"),
    "uniforms shifted up": ("if uniforms[child] <", "if uniforms[child + 1] <"),
    "one uniform for two decisions": (
        "sample(target, uniforms[n_nodes])",
        "sample(target, uniforms[n_nodes - 1])",
    ),
    "second child held against the whole target": (
        "            target = residual(target, draft_probs[child])\n",
        "",
    ),
    "second child forgets the first": (
        "target = residual(target, draft_probs[child])",
        "target = residual(target_probs[node], draft_probs[child])",
    ),
    "second child never tried": (
        "            target = residual(target, draft_probs[child])\n",
        "            return path, sample(residual(target, draft_probs[child]), uniforms[n_nodes]), betas\n",
    ),
    "descends into the last child": (
        "                node = child\n",
        "                node = children[-1]\n",
    ),
    "draws a token of no mass at 0": ('side="right"', 'side="left"'),
    "sampling skips the first token": (
        'np.searchsorted(np.cumsum(probs), uniform, side="right")',
        '1 + np.searchsorted(np.cumsum(probs[1:]) / max(probs[1:].sum(), 1e-9), uniform, side="right")',
    ),
}
# Trees and models on which every fault must show: equal siblings, zeros, other truncation on either side.
EXPOSING = [
    ("left", "temperatures"),
    ("two", "top-k-of-draft"),
    ("chain2", "top-k-of-both"),
    ("chain2", "zeros"),
    ("two", "plain"),
    ("chain1", "nucleus-of-target"),
    ("chain1", "disjoint"),
    ("chain2", "nucleus-and-top-k"),
]


def mutated(old: str, new: str) -> types.ModuleType:
    """The module of the rules with one place of its text replaced."""
    source = inspect.getsource(rules)
    assert source.count(old) == 1, f"the reference has {source.count(old)} places that read {old!r}"
    module = types.ModuleType("specdec.reference.rules_mutated")
    exec(compile(source.replace(old, new), str(Path(rules.__file__)), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("old", "new"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_proof_catches_a_broken_rule(old: str, new: str) -> None:
    rule = mutated(old, new).verify
    disproved = 0
    with np.errstate(all="ignore"):
        for shape, pair in EXPOSING:
            try:
                prove(rule, shapes()[shape], *models(pair, 3, with_core=False))
            except DisprovedError:
                disproved += 1
                break
    assert disproved


@pytest.mark.parametrize(("shape", "pair"), EXPOSING)
def test_the_unbroken_rule_passes_where_broken_ones_fail(shape: str, pair: str) -> None:
    prove(reference.verify, shapes()[shape], *models(pair, 3, with_core=False))


def test_the_proof_catches_a_draft_that_was_not_standardised() -> None:
    """The drafts are drawn with top-k, but the rule is told the distribution before it."""
    target = table(4, 1, standardise(False))
    drawn = table(4, 2, standardise(False, top_k=2, temperature=0.7))
    told = table(4, 2, standardise(False))
    for rule in (reference.verify, _core.verify):
        with pytest.raises(DisprovedError):
            prove(rule, shapes()["chain2"], target, drawn, reported=told)


def test_the_proof_catches_one_part_in_a_billion() -> None:
    """The bound of 1e-12 bites: a threshold that is off by 1e-9 is seen."""
    rule = mutated(
        "return float(target[token] / draft[token])",
        "return float(target[token] / draft[token]) * (1 - 1e-9)",
    ).verify
    with pytest.raises(DisprovedError):
        prove(rule, shapes()["chain1"], *models("plain", 3, with_core=False))


# ------------------------------------------------------------------------- core equals reference


def random_tree(rng: np.random.Generator) -> tuple[list[int], list[int], Probs, Probs]:
    """A tree of up to 13 nodes over up to 300 tokens, of any shape, drafts drawn from their distributions."""
    n_nodes, n_vocab = int(rng.integers(1, 14)), int(rng.choice([1, 2, 3, 8, 17, 300]))
    chain = rng.random() < 0.3
    parents = [-1, *(node - 1 if chain else int(rng.integers(node)) for node in range(1, n_nodes))]

    def row() -> Probs:
        logits = (rng.choice([0.5, 2.0, 8.0]) * rng.standard_normal(n_vocab)).astype(np.float32)
        if rng.random() < 0.3:
            logits = np.round(logits)
        options = {"temperature": float(rng.choice([0.0, 0.7, 1.0])), "top_p": float(rng.choice([0.8, 1.0]))}
        return reference.distribution(logits, top_k=int(rng.choice([0, 1, 3])), **options)

    target_probs = np.array([row() for _ in range(n_nodes)])
    # Drafts resemble the target often enough that long paths are accepted.
    draft_probs = np.array(
        [
            row() if rng.random() < 0.4 or parent < 0 else 0.8 * target_probs[parent] + 0.2 * row()
            for parent in parents
        ]
    )
    draft_probs /= draft_probs.sum(axis=1, keepdims=True)
    tokens = [reference.sample(probs, float(rng.random())) for probs in draft_probs]
    return tokens, parents, target_probs, draft_probs


def test_core_equals_reference_on_random_trees() -> None:
    rng = np.random.default_rng(11)
    lengths = np.zeros(14, dtype=int)
    later_children = 0
    for _ in range(4000):
        tokens, parents, target_probs, draft_probs = random_tree(rng)
        uniforms = rng.integers(2**53, size=len(tokens) + 1) / 2**53
        if rng.random() < 0.05:
            uniforms[rng.integers(len(uniforms))] = rng.choice([0.0, 1 - 2**-53])
        path, token, betas = _core.verify(tokens, parents, target_probs, draft_probs, uniforms)
        expected_path, expected_token, expected_betas = reference.verify(
            tokens, parents, target_probs, draft_probs, uniforms
        )
        assert (path, token) == (expected_path, expected_token)
        np.testing.assert_allclose(betas, expected_betas, rtol=0, atol=1e-12)
        assert all(isinstance(value, int) for value in [*path, token])
        lengths[len(path)] += 1
        later_children += any(parents[:node].count(parents[node]) for node in path)
    assert np.all(lengths[:6] > 20), f"too few long paths to mean anything: {lengths}"
    assert later_children > 100


@pytest.mark.parametrize("rule", [reference.verify, _core.verify], ids=["reference", "core"])
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
    assert doctest.testmod(verification).attempted > 3
    assert doctest.testmod(verification).failed == 0


def test_public_verify_on_a_tree() -> None:
    """Two drafts for one position: the second is held against norm(max(0, T - D)) = [1, 0, 0]."""
    draft = DRAFT[[0, 0]]
    assert verify([1, 0], TARGET, draft, parents=[0, 0], uniforms=[0.5, 0.99, 0.1]) == (
        [2],
        0,
        [0.75],
        [0, 0],
    )
    assert verify([1, 0], TARGET, draft, parents=[0, 0], uniforms=[0.4, 0.99, 0.3]) == (
        [1],
        1,
        [0.75],
        [1, 1],
    )
    tokens, parents, target_probs, draft_probs = random_tree(np.random.default_rng(0))
    uniforms = np.random.default_rng(1).random(len(tokens) + 1)
    got = verify(tokens[1:], target_probs, draft_probs[1:], parents=parents[1:], uniforms=uniforms[1:])
    assert got[:3] == tuple(_core.verify(tokens, parents, target_probs, draft_probs, uniforms))


def test_public_verify_draws_from_a_seed() -> None:
    numbers = np.random.default_rng(3).random(3)
    assert verify([1, 0], TARGET, DRAFT, seed=3) == verify([1, 0], TARGET, DRAFT, uniforms=numbers)
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
        ({"tokens": [[1, 0]]}, "tokens has shape"),
        ({"tokens": [1.0, 0.0]}, "tokens has dtype float64"),
        ({"tokens": [True, False]}, "tokens has dtype bool"),
        ({"tokens": [1, 3]}, r"tokens\[1\] is 3"),
        ({"tokens": [-1, 0]}, r"tokens\[0\] is -1"),
        ({"tokens": [1, 2]}, r"draft_probs\[1, 2\] is 0"),
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
        ({"parents": [0]}, "parents has shape"),
        ({"parents": [0, 2]}, r"parents\[1\] is 2"),
        ({"parents": [1, 0]}, r"parents\[0\] is 1; draft 0 is node 1"),
        ({"parents": [-1, 0]}, r"parents\[0\] is -1"),
        ({"uniforms": [0.1, 0.2]}, r"uniforms has shape \(2,\); expected \(3,\)"),
        ({"uniforms": [0.1, 0.2, 1.0]}, r"uniforms\[2\] is 1.0"),
        ({"uniforms": [0.1, -0.1, 0.0]}, r"uniforms\[1\] is -0.1"),
        ({"uniforms": [0.1, np.nan, 0.0]}, r"uniforms\[1\] is nan"),
        ({"seed": 1}, "both uniforms and seed"),
        ({"uniforms": None, "seed": -1}, "seed is -1"),
        ({"uniforms": None, "seed": 1.5}, "seed is 1.5"),
    ],
)
def test_public_verify_names_what_is_wrong(change: dict, message: str) -> None:
    arguments = {"tokens": [1, 0], "target_probs": TARGET, "draft_probs": DRAFT, "uniforms": [0.1, 0.2, 0.3]}
    with pytest.raises(InputError, match=message):
        verify(**{**arguments, **change})
    with pytest.raises(InputError, match="target_probs has shape"):
        verify([], np.empty((1, 0)), np.empty((0, 0)), seed=0)
