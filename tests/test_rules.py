"""Contract 1 for every rule: proven by exact integration, in the reference and in the core.

``test_verify`` has the standard rule on all shapes and the public function; here are the other rules, and
what each promises beyond the law of its output.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import (
    Conditional,
    DisprovedError,
    Probs,
    Rule,
    Tokens,
    chain_distribution,
    drafts,
    first_tokens,
    independent,
    outcome_distribution,
    round_distribution,
    rows_after,
    without_replacement,
)
from grids import in_few_items
from proofs import most_probable, prove, prove_bound, prove_coupled, prove_race
from specdec import reference
from tables import PAIRS, models, random_tree, shapes, standardise, table, unlike
from weights import noise, verify_core, verify_weights

IMPLEMENTATIONS = {"reference": reference.verify, "core": verify_core, "weights": verify_weights}
implementations = pytest.mark.parametrize("verify", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())

# --------------------------------------------------------------------------------- exact, rule by rule

# For each rule, (shape, n_vocab). The last two of "rejection" are sequences side by side, some equal.
TREES: dict[str, list[tuple[str, int]]] = {
    "rejection": [("two long", 2), ("three long", 2)],
    "greedy": [("chain2", 4), ("three", 4), ("both", 3), ("interleaved", 3), ("three long", 2)],
    "block": [("chain0", 5), ("chain1", 5), ("chain2", 4), ("chain3", 3), ("chain4", 2)],
    "k-sequential": [("chain2", 3), ("two", 5), ("three", 3), ("both", 2), ("interleaved", 2)],
    "classical": [("chain2", 4), ("two", 4), ("both", 2)],
}
CASES = [(rule, *tree) for rule, trees in TREES.items() for tree in trees]


@in_few_items(by="rule")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("rule", "shape", "n_vocab"), CASES)
def test_the_core_samples_exactly_the_target(rule: str, shape: str, n_vocab: int, pair: str) -> None:
    prove(verify_core, shapes()[shape], *models(pair, n_vocab, with_core=True), rule=rule)


@in_few_items(by="rule")
@pytest.mark.parametrize("pair", ["rational", "zeros"])
@pytest.mark.parametrize(
    ("rule", "shape", "n_vocab"), [case for case in CASES if case[0] != "k-sequential" or case[2] == 3]
)
def test_the_reference_samples_exactly_the_target(rule: str, shape: str, n_vocab: int, pair: str) -> None:
    prove(reference.verify, shapes()[shape], *models(pair, n_vocab, with_core=False), rule=rule)


def fresh(pool: Sequence[Probs], seed: int) -> Conditional:
    """After every text one distribution of the pool, by chance."""

    def conditional(prefix: Tokens) -> Probs:
        return pool[np.random.default_rng([seed, *(token + 1 for token in prefix)]).integers(len(pool))]

    return conditional


@st.composite
def pairs(draw: st.DrawFn, n_vocab: int = 3) -> tuple[Conditional, Conditional]:
    """Target and draft over one pool of distributions: ties, zeros, point masses, equal distributions."""
    weights = st.lists(
        st.one_of(st.integers(0, 3), st.integers(0, 1000)), min_size=n_vocab, max_size=n_vocab
    ).filter(any)
    pool = [np.array(row) / sum(row) for row in draw(st.lists(weights, min_size=1, max_size=5))]
    seeds = st.integers(0, 9)
    return fresh(pool, draw(seeds)), fresh(pool, draw(seeds))


@pytest.mark.grid
@implementations
@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        ("rejection", "left"), ("greedy", "both"), ("block", "chain2"), ("k-sequential", "two"),
        ("classical", "two"),
    ],
)  # fmt: skip
def test_any_distributions(verify: Rule, rule: str, shape: str) -> None:
    @settings(max_examples=40 if verify is verify_core else 5, deadline=None, derandomize=True)
    @given(pairs())
    def proves(pair: tuple[Conditional, Conditional]) -> None:
        prove(verify, shapes()[shape], *pair, rule=rule)

    proves()


@implementations
@pytest.mark.parametrize("rule", ["rejection", "block", "k-sequential"])
def test_a_draft_equal_to_the_target_is_always_accepted(verify: Rule, rule: str) -> None:
    target = table(4, 3, standardise(False, top_p=0.9))
    law = prove(verify, shapes()["chain2"], target, target, rule=rule)
    assert law.accepted[1:] == pytest.approx([1.0, 1.0], abs=1e-15)


# --------------------------------------------------------------------------- the order of siblings


@in_few_items(by="verify")
@implementations
@pytest.mark.parametrize("order", [*itertools.permutations([1.0, 2.0, 3.0])])
def test_siblings_in_any_order_from_different_drafts(verify: Rule, order: tuple[float, ...]) -> None:
    """SpecInfer tries the children of a node, each of a draft model of its own, in random order."""
    target, draft = models("plain", 3, with_core=False)
    parents = shapes()["three"]
    prove(verify, parents, target, draft, proposal=unlike(parents, 3), order=[0.0, *order])


@implementations
@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4], [0, 1, 2, 4, 3], [0, 0, 0, 0, 0], [9, 4, 3, 2, 1]])
def test_sequences_of_different_drafts_in_any_order(verify: Rule, order: list[float]) -> None:
    target, draft = models("zeros", 2, with_core=False)
    parents = shapes()["both"]
    prove(verify, parents, target, draft, proposal=unlike(parents, 2), order=order)


@in_few_items(by="verify")
@implementations
@pytest.mark.parametrize("shape", ["two", "three", "left"])
@pytest.mark.parametrize("pair", ["plain", "temperatures", "top-k-of-target"])
def test_drafts_without_replacement(verify: Rule, shape: str, pair: str) -> None:
    """Sequentially: each sibling is held against the distribution it was drawn from, D less those before."""
    target, draft = models(pair, 3, with_core=False)
    prove(verify, shapes()[shape], target, draft, proposal=without_replacement(shapes()[shape], draft))


@implementations
def test_drafts_without_replacement_are_no_samples_of_one_distribution(verify: Rule) -> None:
    """What the design warns of: the same drafts, each said to be drawn from D itself."""
    target, draft = models("plain", 4, with_core=False)
    proposal = without_replacement(shapes()["two"], draft)
    with pytest.raises(DisprovedError):
        prove(verify, shapes()["two"], target, draft, proposal=proposal, reported=draft)


# ------------------------------------------------------------------------------------------ lenience

LENIENCES = (1.0, 0.5, 0.3, 0.1)


@in_few_items(by="verify")
@implementations
@pytest.mark.parametrize("lenience", LENIENCES)
@pytest.mark.parametrize("pair", ["plain", "rational", "temperatures", "top-k-of-target", "greedy-target"])
@pytest.mark.parametrize(("shape", "n_vocab"), [("chain2", 3), ("three", 3), ("both", 2)])
def test_no_token_exceeds_its_bound(
    verify: Rule, shape: str, n_vocab: int, pair: str, lenience: float
) -> None:
    """A.5, for any number of siblings: P(x) <= T(x) / l."""
    prove_bound(verify, shapes()[shape], *models(pair, n_vocab, with_core=False), lenience=lenience)


@implementations
def test_lenience_for_any_distributions(verify: Rule) -> None:
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(pairs(), st.sampled_from(LENIENCES))
    def proves(pair: tuple[Conditional, Conditional], lenience: float) -> None:
        prove_bound(verify, shapes()["two"], *pair, lenience=lenience)

    proves()


@implementations
@pytest.mark.parametrize("lenience", LENIENCES)
def test_the_law_with_lenience_in_closed_form(verify: Rule, lenience: float) -> None:
    """One draft: min(T / l, D) by acceptance, and the rest from norm(max(0, T / l - D))."""
    target, draft = models("temperatures", 5, with_core=False)
    law = round_distribution(partial(verify, lenience=lenience), shapes()["chain1"], target, draft)
    both = np.minimum(target(()) / lenience, draft(()))
    rest = np.maximum(0.0, target(()) / lenience - draft(()))
    expected = both + (1 - both.sum()) * rest / rest.sum()
    got = first_tokens(law.outputs, target, 1)
    assert [got[token,] for token in range(5)] == pytest.approx(expected, abs=1e-12)
    assert law.accepted[1] == pytest.approx(both.sum(), abs=1e-12)
    if lenience == 1:
        assert expected == pytest.approx(target(()), abs=1e-15)
    else:
        assert np.any(expected > 1.05 * target(())), "lenience that changes nothing shows nothing"


@implementations
def test_the_bound_is_reached(verify: Rule) -> None:
    """A draft that insists on one token makes it 1 / l times as likely, and no likelier."""
    rows = np.array([[0.25, 0.5, 0.25]] * 4)
    insist = np.array([[0.0, 0.0, 0.0], *[[1.0, 0.0, 0.0]] * 3])
    for n_siblings in (1, 2, 3):
        law = outcome_distribution(
            partial(verify, lenience=0.5), [0] * (n_siblings + 1), [-1] + [0] * n_siblings,
            rows[: n_siblings + 1], insist[: n_siblings + 1],
        )  # fmt: skip
        first = sum(probability for (path, token), probability in law.items() if path or token == 0)
        assert first == pytest.approx(0.5, abs=1e-12)


@implementations
@pytest.mark.parametrize("lenience", LENIENCES)
@pytest.mark.parametrize("pair", ["plain", "rational", "temperatures"])
def test_lenient_greedy_accepts_what_is_nearly_as_probable(verify: Rule, pair: str, lenience: float) -> None:
    """Two siblings: the first acceptable one, else the argmax; the bonus token is the argmax."""
    target, draft = models(pair, 4, with_core=False)
    best = most_probable(target)
    for tree in drafts(shapes()["two"], independent(shapes()["two"], draft)):
        rows = rows_after(tree, target)
        acceptable = rows[0] >= lenience * rows[0].max()
        if lenience == 1:
            acceptable = best(()) > 0
        path, token, betas = verify(
            tree.tokens, [-1, 0, 0], rows, tree.probs, np.full(4, 0.5), rule="greedy", lenience=lenience
        )
        expected = [node for node in (1, 2) if acceptable[tree.tokens[node]]][:1]
        assert path == expected
        assert best(tuple(tree.tokens[node] for node in path))[token] == 1
        assert betas == [float(bool(expected))]
        alone = verify(
            tree.tokens[:2], [-1, 0], rows[:2], tree.probs[:2], np.full(3, 0.5), rule="greedy",
            lenience=lenience,
        )  # fmt: skip
        assert alone[2] == pytest.approx([draft(())[acceptable].sum()], abs=1e-12)


def test_lenient_greedy_is_more_lenient_than_argmax() -> None:
    """The paper prints T(x) <= l max T, under which l = 1 would accept everything."""
    rows, draft = np.array([[0.4, 0.35, 0.25]] * 2), np.array([[0.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    for verify in IMPLEMENTATIONS.values():
        run = partial(verify, target_probs=rows, draft_probs=draft, uniforms=np.zeros(3), rule="greedy")
        accepted = {
            (token, lenience): run([0, token], [-1, 0], lenience=lenience)[0] == [1]
            for token in (1, 2)
            for lenience in (1.0, 0.8, 0.5)
        }
        assert [key for key, value in accepted.items() if value] == [(1, 0.8), (1, 0.5), (2, 0.5)]


# ------------------------------------------------------------------------------- block verification


@pytest.mark.parametrize("pair", PAIRS)
def test_block_verification_keeps_at_least_as_many_drafts(pair: str) -> None:
    """Sun et al. 2024: for every prefix of the drafts, so in expectation too; and the first draft alike."""
    for shape, n_vocab in (("chain2", 4), ("chain3", 3)):
        pair_of_models = models(pair, n_vocab, with_core=True)
        block = round_distribution(
            partial(verify_core, rule="block"), shapes()[shape], *pair_of_models, decided=backwards(shape)
        )
        standard = round_distribution(verify_core, shapes()[shape], *pair_of_models)
        assert np.all(block.accepted >= standard.accepted - 1e-12)
        if pair in ("plain", "temperatures"):
            assert block.accepted.sum() > standard.accepted.sum() + 1e-3


def backwards(shape: str) -> list[int]:
    return list(range(len(shapes()[shape]) - 1, 0, -1))


def test_block_verification_by_hand() -> None:
    """The motivating example of Sun et al. 2024: T = (1/3, 2/3), D = (2/3, 1/3), independent of the text.

    Of two drafts the standard rule accepts 10/9, block verification 11/9.
    """
    target, draft = np.array([1, 2]) / 3, np.array([2, 1]) / 3
    for verify in IMPLEMENTATIONS.values():
        arguments = ([-1, 0, 1], lambda prefix: target, lambda prefix: draft)
        standard = prove(verify, *arguments)
        block = prove(verify, *arguments, rule="block")
        assert standard.accepted.sum() == pytest.approx(10 / 9, abs=1e-12)
        assert block.accepted.sum() == pytest.approx(11 / 9, abs=1e-12)


# -------------------------------------------------------------- k-sequential selection, classical


@pytest.mark.parametrize("pair", ["plain", "temperatures", "rational", "disjoint", "top-k-of-both"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_sequential_selection_accepts_some_draft(pair: str, k: int) -> None:
    """SpecTr: with probability 1 - (1 - b)**k, and at least (1 - 1/e) of the best possible."""
    target, draft = models(pair, 3, with_core=False)
    law = prove(verify_core, [-1] + [0] * k, target, draft, rule="k-sequential")
    rho = reference.smallest_rho(target(()), draft(()), k)
    b = np.minimum(draft(()), target(()) / rho).sum()
    accepted = law.accepted.sum()
    assert accepted == pytest.approx(1 - (1 - b) ** k, abs=1e-12)
    best = np.minimum(target(()), 1 - (1 - draft(())) ** k).sum()  # no rule can output x unless it was drawn
    assert (1 - np.exp(-1)) * best - 1e-12 <= accepted <= best + 1e-12
    if k == 1:
        assert accepted == pytest.approx(np.minimum(target(()), draft(())).sum(), abs=1e-12)


@implementations
@pytest.mark.parametrize("pair", ["plain", "temperatures", "top-k-of-draft", "rational"])
def test_classical_rejection_accepts_as_rarely_as_a_2_says(verify: Rule, pair: str) -> None:
    """A.2: sum over x of T(x) times the least D / T, which is at most alpha."""
    target, draft = models(pair, 4, with_core=False)
    law = prove(verify, shapes()["chain1"], target, draft, rule="classical")
    t, d = target(()), draft(())
    rate = sum(t[x] * min(d[y] / t[y] for y in range(4) if t[y] > 0) for x in range(4))
    assert law.accepted[1] == pytest.approx(rate, abs=1e-12)
    assert rate <= np.minimum(t, d).sum()


# -------------------------------------------------------------------------------------------- coupled


@in_few_items(by="verify")
@implementations
@pytest.mark.parametrize(
    "pair", ["plain", "zeros", "top-k-of-draft", "disjoint", "greedy-target", "rational"]
)
@pytest.mark.parametrize(("shape", "n_vocab"), [("chain0", 5), ("chain3", 3), ("three", 4), ("both", 3)])
def test_coupled_output_is_plain_output(verify: Rule, shape: str, n_vocab: int, pair: str) -> None:
    """So its law is that of plain sampling with this noise, which `test_the_race_samples_the_target` has."""
    prove_coupled(verify, shapes()[shape], *models(pair, n_vocab, with_core=False))


@implementations
def test_coupled_sampling_of_any_distributions(verify: Rule) -> None:
    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(pairs(), st.sampled_from(["both", "interleaved"]), st.integers(0, 99))
    def proves(pair: tuple[Conditional, Conditional], shape: str, seed: int) -> None:
        prove_coupled(verify, shapes()[shape], *pair, seed=seed)

    proves()


@implementations
@pytest.mark.parametrize(
    "target", [[1, 0], [1 / 2, 1 / 2], [1 / 2, 1 / 3, 1 / 6], [0, 1 / 4, 1 / 2, 1 / 4], [1 / 5] * 5]
)
def test_the_race_samples_the_target(verify: Rule, target: list[float]) -> None:
    prove_race(verify, np.array(target, dtype=float))


@implementations
def test_coupled_drafts_of_an_equal_model_are_always_accepted(verify: Rule) -> None:
    """A draft that samples with the same noise agrees with an equal target, at every place."""
    rng = np.random.default_rng(5)
    model = table(5, 3, standardise(False))
    for _ in range(50):
        noise = rng.random((4, 5))
        tokens, prefix = [0], ()
        for row in noise[:3]:
            tokens.append(reference.race(model(prefix), row))
            prefix = (*prefix, tokens[-1])
        rows = np.array([model(prefix[:i]) for i in range(4)])
        draft_rows = np.array([np.zeros(5), *rows[:3]])
        path, token, _ = verify(
            tokens, [-1, 0, 1, 2], rows, draft_rows, rng.random(5), rule="coupled", noise=noise
        )
        assert (path, token) == ([1, 2, 3], reference.race(rows[3], noise[3]))


# ---------------------------------------------------------------------------- greedy, side by side


@implementations
@pytest.mark.parametrize("pair", ["plain", "ties", "rational", "greedy-draft"])
def test_a_greedy_tree_finds_the_longest_of_its_sequences(verify: Rule, pair: str) -> None:
    """Stratos' note, appendix A: what checking K sequences one by one gives, without any randomness."""
    target, draft = models(pair, 2, with_core=False)
    parents = shapes()["three long"]
    sequences = [[node, node + 3] for node in (1, 2, 3)]
    plain = max(chain_distribution(most_probable(target), 3), key=len)
    for tree in drafts(parents, independent(parents, draft)):
        rows = rows_after(tree, target)
        outputs = []
        for sequence in sequences:
            nodes = [0, *sequence]
            path, token, _ = verify(
                [tree.tokens[node] for node in nodes], [-1, 0, 1], rows[nodes], tree.probs[nodes],
                np.full(4, 0.5), rule="greedy",
            )  # fmt: skip
            outputs.append([*(tree.tokens[nodes[i]] for i in path), token])
        uniforms = np.random.default_rng(len(outputs)).random(len(parents) + 1)
        path, token, _ = verify(tree.tokens, parents, rows, tree.probs, uniforms, rule="greedy")
        got = [*(tree.tokens[node] for node in path), token]
        assert got == max(outputs, key=len)
        assert tuple(got) == plain[: len(got)]


# ------------------------------------------------------------------------- core equals reference


WALKS = [
    *(
        (rule, lenience, ordered)
        for rule in ("rejection", "greedy")
        for lenience in (1.0, 0.4)
        for ordered in (False, True)
    ),
    *((rule, 1.0, True) for rule in ("coupled", "k-sequential", "classical")),
    ("block", 1.0, False),
]


@pytest.mark.parametrize(("rule", "lenience", "ordered"), WALKS)
def test_core_equals_reference_on_random_trees(rule: str, lenience: float, ordered: bool) -> None:
    rng = np.random.default_rng([17, ordered])
    lengths = np.zeros(14, dtype=int)
    for _ in range(250):
        tree = random_tree(rng, chain=rule == "block", one_draft=rule == "k-sequential")
        n_nodes, n_vocab = len(tree[0]), tree[2].shape[1]
        options = {"rule": rule, "lenience": lenience}
        if ordered:
            options["order"] = rng.choice([rng.random(n_nodes), rng.integers(3, size=n_nodes) + 0.0])
        if rule == "coupled":
            options["noise"] = rng.integers(2**53, size=(n_nodes, n_vocab)) / 2**53
        uniforms = rng.integers(2**53, size=n_nodes + 1) / 2**53
        path, token, betas = verify_core(*tree, uniforms, **options)
        expected_path, expected_token, expected_betas = reference.verify(*tree, uniforms, **options)
        assert (path, token) == (expected_path, expected_token)
        np.testing.assert_allclose(betas, expected_betas, rtol=0, atol=1e-12)
        lengths[len(path)] += 1
    assert np.all(lengths[:3] > 10), f"too few long paths to mean anything: {lengths}"


def test_noise_of_the_core_equals_the_reference() -> None:
    for seed, sequence, position, n_vocab in [(0, 0, 0, 1), (1, 2, 3, 7), (2**64 - 1, 2**32 - 1, 99, 64)]:
        expected = reference.noise(seed, sequence, position, n_vocab)
        assert np.array_equal(noise(seed, sequence, position, n_vocab), expected)
        assert np.all((expected >= 0) & (expected < 1))
    assert len({*reference.noise(5, 0, 9, 100), *reference.noise(5, 0, 10, 100)}) == 200
