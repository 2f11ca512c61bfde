"""Contract 1 for every rule: proven by exact integration, in the reference and in the core.

``proofs.prove`` sums over every draft and every random number; nothing here is statistical. The core gets
probabilities, and the weights and point masses that a session would pass (``weights``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import (
    Conditional,
    DisprovedError,
    Drafts,
    Probs,
    Proposal,
    Rule,
    Tokens,
    alternating,
    cells,
    chain_distribution,
    chosen,
    drafts,
    first_tokens,
    independent,
    outcome_distribution,
    question,
    round_distribution,
    rows_after,
    without_replacement,
)
from grids import in_few_items
from proofs import most_probable, prove, prove_bound, prove_coupled, prove_race
from specdec import reference
from tables import PAIRS, models, random_tree, shapes, standardize, table, unlike
from weights import verify_core, verify_dense, verify_weights

RULES: dict[str, Rule] = {
    "reference": reference.verify, "core": verify_core, "weights": verify_weights, "dense": verify_dense,
}  # fmt: skip
IMPLEMENTATIONS = {name: RULES[name] for name in ("reference", "core", "weights")}
implementations = pytest.mark.parametrize("verify", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())

# --------------------------------------------------------------------------------- exact, rule by rule

# For each rule, (shape, n_vocab). The shapes "long" are sequences side by side, some equal.
TREES: dict[str, list[tuple[str, int]]] = {
    "rejection": [
        ("chain0", 5), ("chain1", 5), ("chain2", 4), ("chain3", 3), ("two", 5), ("three", 4), ("left", 3),
        ("right", 3), ("both", 3), ("interleaved", 3), ("bushy", 2), ("two long", 2), ("three long", 2),
    ],
    "greedy": [("chain2", 4), ("three", 4), ("both", 3), ("interleaved", 3), ("three long", 2)],
    "block": [("chain0", 5), ("chain1", 5), ("chain2", 4), ("chain3", 3), ("chain4", 2)],
    "traversal": [
        ("chain0", 5), ("chain3", 3), ("chain4", 2), ("two", 5), ("three", 4), ("left", 3), ("right", 3),
        ("both", 3), ("interleaved", 3), ("bushy", 2), ("two long", 2), ("three long", 2),
    ],
    "k-sequential": [("chain2", 3), ("two", 5), ("three", 3), ("both", 2), ("interleaved", 2)],
    "classical": [("chain2", 4), ("two", 4), ("both", 2)],
}  # fmt: skip


@in_few_items(by=("verify", "rule"))
@pytest.mark.parametrize(
    ("verify", "rule", "shape", "n_vocab", "pair"),
    [
        (verify, rule, *tree, pair)
        for verify in ("reference", "core")
        for rule, trees in TREES.items()
        for tree in trees
        for pair in PAIRS
        if verify == "core" or rule == "rejection" or pair in ("rational", "zeros")
    ],
)
def test_the_target_is_sampled_exactly(verify: str, rule: str, shape: str, n_vocab: int, pair: str) -> None:
    prove(RULES[verify], shapes()[shape], *models(pair, n_vocab, with_core=verify == "core"), rule=rule)


def fresh(pool: Sequence[Probs], seed: int) -> Conditional:
    """Draw a random distribution of the pool for every text."""

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


LENIENCES = (1.0, 0.99, 0.5, 0.2)
PROMISES: dict[str, Callable[..., object]] = {
    **{rule: partial(prove, rule=rule) for rule in TREES}, "coupled": prove_coupled,
    **{f"lenience {lenience}": partial(prove_bound, lenience=lenience) for lenience in LENIENCES},
}  # fmt: skip
"""The proof of what each rule promises; with lenience that no token exceeds its bound (A.5)."""


@pytest.mark.grid
@implementations
@pytest.mark.parametrize(
    ("promise", "shape"),
    [
        ("rejection", "left"), ("greedy", "both"), ("block", "chain2"), ("traversal", "left"),
        ("k-sequential", "two"), ("classical", "two"), ("coupled", "interleaved"), ("lenience 0.2", "two"),
    ],
)  # fmt: skip
def test_any_distributions(verify: Rule, promise: str, shape: str) -> None:
    @settings(max_examples=40 if verify is verify_core else 5, deadline=None, derandomize=True)
    @given(pairs())
    def proves(pair: tuple[Conditional, Conditional]) -> None:
        PROMISES[promise](verify, shapes()[shape], *pair)

    proves()


@implementations
@pytest.mark.parametrize("rule", ["rejection", "block", "traversal", "k-sequential"])
def test_a_draft_equal_to_the_target_is_always_accepted(verify: Rule, rule: str) -> None:
    target = table(4, 3, standardize(False, top_p=0.9))
    distribution = prove(verify, shapes()["chain2"], target, target, rule=rule)
    assert distribution.accepted[1:] == pytest.approx([1.0, 1.0], abs=1e-15)


# ------------------------------------------------------------------------------------------- proposals


def several(parents: Sequence[int], draft: Conditional) -> Proposal:
    """Three drafts in one tree: one samples, one takes the most probable tokens, one is greedy."""
    n_vocab = len(draft(()))
    drawn, greedy = independent(parents, draft), table(n_vocab, 7, standardize(False, temperature=0.0))
    sources = [drawn, chosen(parents, draft), independent(parents, greedy)]
    return lambda node, prefixes: sources[node % 3](node, prefixes)


def chosen_twice(parents: Sequence[int], draft: Conditional) -> Proposal:
    """A tree in which every child of a node is its most probable token."""
    return independent(parents, most_probable(draft))


def chosen_then_drawn(parents: Sequence[int], draft: Conditional) -> Proposal:
    return alternating(chosen(parents, draft), independent(parents, draft))


def drawn_then_chosen(parents: Sequence[int], draft: Conditional) -> Proposal:
    return alternating(independent(parents, draft), chosen(parents, draft))


PROPOSALS: dict[str, Callable[[Sequence[int], Conditional], Proposal]] = {
    "drawn": independent, "drawn without replacement": without_replacement, "chosen": chosen,
    "chosen, then drawn": chosen_then_drawn, "drawn, then chosen": drawn_then_chosen,
    "chosen twice": chosen_twice, "of several drafts": several,
    "each of a draft of its own": lambda parents, draft: unlike(parents, len(draft(()))),
}  # fmt: skip


# A pair without cuts, one with different supports, one with point masses and ties, and more; the reference,
# which takes probabilities only, and rows with one weight on the first pair.
@in_few_items(by="how")
@pytest.mark.parametrize("promise", [name for name in PROMISES if name not in ("block", "k-sequential")])
@pytest.mark.parametrize(
    ("verify", "how", "shape", "n_vocab", "pair"),
    [
        (verify, how, shape, n_vocab, pair)
        for verify in RULES
        for how in PROPOSALS
        for shape, n_vocab in (("chain3", 2), ("two", 4), ("three", 3), ("both", 2))
        for pair in ("plain", "nucleus-and-top-k", "rational", "temperatures", "greedy-target", "disjoint")
        if (verify == "weights" or pair == "plain")
        and not (how == "drawn without replacement" and pair != "plain")  # may run out of tokens
    ],
)
def test_every_type_of_proposal(
    verify: str, how: str, shape: str, n_vocab: int, pair: str, promise: str
) -> None:
    """Drawn and chosen draft tokens, siblings of both types, several drafts in one tree with equal tokens."""
    target, draft = models(pair, n_vocab, with_core=False)
    proposal = PROPOSALS[how](shapes()[shape], draft)
    PROMISES[promise](RULES[verify], shapes()[shape], target, draft, proposal=proposal)


@in_few_items(by="how")
@pytest.mark.parametrize("verify", ["weights", "dense"])
@pytest.mark.parametrize("pair", ["plain", "nucleus-and-top-k", "rational", "greedy-target", "greedy-draft"])
@pytest.mark.parametrize(
    ("rule", "shape", "n_vocab", "how"),
    [
        *itertools.product(
            ["block", "k-sequential"], ["chain3"], [3],
            ["drawn", "chosen", "chosen, then drawn", "drawn, then chosen"],
        ),
        *itertools.product(["k-sequential"], ["two", "both"], [2], ["drawn"]),
    ],
)  # fmt: skip
def test_proposals_of_chains_and_samples(
    verify: str, pair: str, rule: str, shape: str, n_vocab: int, how: str
) -> None:
    """For the rules that take no other trees."""
    target, draft = models(pair, n_vocab, with_core=False)
    proposal = PROPOSALS[how](shapes()[shape], draft)
    prove(RULES[verify], shapes()[shape], target, draft, rule=rule, proposal=proposal)


@in_few_items(by="verify")
@implementations
@pytest.mark.parametrize(
    ("shape", "n_vocab", "pair", "order"),
    [
        *(("three", 3, "plain", [0.0, *order]) for order in itertools.permutations([1.0, 2.0, 3.0])),
        *(
            ("both", 2, "zeros", order)
            for order in ([0, 2, 1, 3, 4], [0, 1, 2, 4, 3], [0, 0, 0, 0, 0], [9, 4, 3, 2, 1])
        ),
    ],
)
def test_siblings_in_any_order_from_different_drafts(
    verify: Rule, shape: str, n_vocab: int, pair: str, order: list[float]
) -> None:
    """SpecInfer tries a node's children, each from its own draft model, in random order."""
    parents = shapes()[shape]
    target, draft = models(pair, n_vocab, with_core=False)
    prove(verify, parents, target, draft, proposal=unlike(parents, n_vocab), order=order)


@implementations
def test_drafts_without_replacement_are_no_samples_of_one_distribution(verify: Rule) -> None:
    """A known error: treating each as drawn from D itself."""
    target, draft = models("plain", 4, with_core=False)
    proposal = without_replacement(shapes()["two"], draft)
    with pytest.raises(DisprovedError):
        prove(verify, shapes()["two"], target, draft, proposal=proposal, reported=draft)


# ------------------------------------------------------------------------------------------ lenience


@implementations
@pytest.mark.parametrize("lenience", LENIENCES)
def test_the_distribution_with_lenience_by_formula(verify: Rule, lenience: float) -> None:
    """One draft: min(T / l, D) by acceptance, and the rest from norm(max(0, T / l - D))."""
    target, draft = models("temperatures", 5, with_core=False)
    distribution = round_distribution(partial(verify, lenience=lenience), shapes()["chain1"], target, draft)
    both = np.minimum(target(()) / lenience, draft(()))
    rest = np.maximum(0.0, target(()) / lenience - draft(()))
    expected = both + (1 - both.sum()) * rest / rest.sum()
    got = first_tokens(distribution.outputs, target, 1)
    assert [got[token,] for token in range(5)] == pytest.approx(expected, abs=1e-12)
    assert distribution.accepted[1] == pytest.approx(both.sum(), abs=1e-12)
    if lenience == 1:
        assert expected == pytest.approx(target(()), abs=1e-15)
    elif lenience < 0.9:
        assert np.any(expected > 1.05 * target(())), "lenience that changes nothing shows nothing"


@implementations
@pytest.mark.parametrize("n_siblings", [1, 2, 3])
def test_the_bound_of_lenience_is_reached(verify: Rule, n_siblings: int) -> None:
    """A draft that always proposes one token makes it exactly 1 / l times as likely."""
    rows = np.array([[0.25, 0.5, 0.25]] * (n_siblings + 1))
    insist = np.array([[0.0, 0.0, 0.0], *[[1.0, 0.0, 0.0]] * n_siblings])
    tree = [0] * (n_siblings + 1), [-1] + [0] * n_siblings
    distribution = outcome_distribution(partial(verify, lenience=0.5), *tree, rows, insist)
    first = sum(probability for (path, token), probability in distribution.items() if path or token == 0)
    assert first == pytest.approx(0.5, abs=1e-12)


@implementations
def test_a_lenient_distribution_with_two_chosen_tokens_by_hand(verify: Rule) -> None:
    """T = 1/2, 1/4, 1/8, 1/8 and l = 1/4: the chosen tokens 2 and 3 get 1/2 each, all that T / l allows.

    The first is accepted with T / l = 1/2. What is left of T / l is 2, 1, 0, 1/2, over the chance of 1/2 of
    a rejection 4, 2, 0, 1. So the second draft token, 3, is always accepted.
    """
    target = np.array([[0.5, 0.25, 0.125, 0.125]] * 3)
    draft = np.array([[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=float)
    for uniform in (0.0, 0.499, 0.501, 0.999):
        uniforms = np.array([0.0, uniform, 0.999, 0.5])
        path, _, _ = verify([0, 2, 3], [-1, 0, 0], target, draft, uniforms, lenience=0.25)
        assert path == ([1] if uniform < 0.5 else [2])


@implementations
@pytest.mark.parametrize("lenience", LENIENCES)
@pytest.mark.parametrize("pair", ["plain", "rational", "temperatures"])
def test_lenient_greedy_accepts_what_is_nearly_as_probable(verify: Rule, pair: str, lenience: float) -> None:
    """Two siblings: the first acceptable one, else the argmax; the bonus token is the argmax.

    The paper prints T(x) <= l max T, under which l = 1 would accept everything.
    """
    target, draft = models(pair, 4, with_core=False)
    best, parents = most_probable(target), shapes()["two"]
    judge = partial(verify, rule="greedy", lenience=lenience)
    for tree in drafts(parents, independent(parents, draft)):
        rows = rows_after(tree, target)
        acceptable = best(()) > 0 if lenience == 1 else rows[0] >= lenience * rows[0].max()
        path, token, betas = judge(tree.tokens, parents, rows, tree.probs, np.full(4, 0.5))
        expected = [node for node in (1, 2) if acceptable[tree.tokens[node]]][:1]
        assert (path, betas) == (expected, [float(bool(expected))])
        assert best(tuple(tree.tokens[node] for node in path))[token] == 1
        alone = judge(tree.tokens[:2], [-1, 0], rows[:2], tree.probs[:2], np.full(3, 0.5))
        assert alone[2] == pytest.approx([draft(())[acceptable].sum()], abs=1e-12)


# ----------------------------------------------------------------------- further promises of each rule


@pytest.mark.parametrize("rule", ["block", "traversal"])
@pytest.mark.parametrize("pair", PAIRS)
def test_verification_of_whole_chains_keeps_at_least_as_many_drafts(pair: str, rule: str) -> None:
    """Sun et al. 2024: for every prefix of the draft tokens, so in expectation too; the first token alike."""
    for shape, n_vocab in (("chain2", 4), ("chain3", 3)):
        pair_of_models, parents = models(pair, n_vocab, with_core=True), shapes()[shape]
        whole = round_distribution(partial(verify_core, rule=rule), parents, *pair_of_models)
        standard = round_distribution(verify_core, parents, *pair_of_models)
        assert np.all(whole.accepted >= standard.accepted - 1e-12)
        if pair in ("plain", "temperatures"):
            assert whole.accepted.sum() > standard.accepted.sum() + 1e-3


def shaped_by_draws(draft: Conditional) -> Iterator[tuple[Drafts, list[int]]]:
    """Draft trees, with their parents, that grow where the tokens drawn before say, as adaptive drafts do."""

    def parent_of_next(prefixes: Sequence[Tokens]) -> int | None:
        tokens = [prefix[-1] if prefix else -1 for prefix in prefixes]
        if len(tokens) < 3:
            return 1 if len(tokens) == 2 and tokens[1] else 0
        return (2, 0, None)[tokens[2]] if len(tokens) == 3 else 3 if len(tokens) == 4 and tokens[3] else None

    def grow(
        prefixes: list[Tokens], parents: list[int], rows: list[Probs], probability: float
    ) -> Iterator[tuple[Drafts, list[int]]]:
        parent = parent_of_next(prefixes)
        if parent is None:
            tokens = [prefix[-1] if prefix else 0 for prefix in prefixes]
            yield Drafts(tokens, prefixes, np.array(rows), probability), parents
            return
        row = draft(prefixes[parent])
        for token in np.flatnonzero(row):
            extended = [*prefixes, (*prefixes[parent], int(token))]
            yield from grow(extended, [*parents, parent], [*rows, row], probability * float(row[token]))

    yield from grow([()], [-1], [np.zeros_like(draft(()))], 1.0)


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_the_shape_of_a_tree_may_depend_on_the_tokens_drawn_before(rule: str) -> None:
    """A second draft token next to the first may even depend on the tokens below the first."""
    target, draft = models("temperatures", 3, with_core=True)
    outputs: dict[Tokens, float] = {}
    found = list(shaped_by_draws(draft))
    assert {(-1, 0, 1, 0, 3), (-1, 0, 1, 2, 3), (-1, 0, 0)} < {tuple(parents) for _, parents in found}
    for tree, parents in found:
        for box in cells(partial(verify_core, rule=rule), *question(tree, parents, target)):
            output = (*(tree.tokens[node] for node in box.path), box.token)
            outputs[output] = outputs.get(output, 0.0) + tree.probability * box.probability
    got, wanted = first_tokens(outputs, target, 5), chain_distribution(target, 5)
    np.testing.assert_allclose([got[key] for key in wanted], list(wanted.values()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", ["left", "right", "both", "interleaved"])
@pytest.mark.parametrize("pair", ["plain", "temperatures"])
def test_traversal_keeps_longer_paths_than_rejection(pair: str, shape: str) -> None:
    """Weng et al. 2025, section 4."""
    pair_of_models = models(pair, 3, with_core=True)
    accepted = [
        round_distribution(partial(verify_core, rule=rule), shapes()[shape], *pair_of_models).accepted.sum()
        for rule in ("rejection", "traversal")
    ]
    assert accepted[1] > accepted[0] + 1e-3


@pytest.mark.parametrize("rule", ["block", "rejection"])
def test_traversal_is_block_verification_of_drawn_chains_and_rejection_of_chosen_tokens(rule: str) -> None:
    """To the bit, in every outcome: some 150 chains of drawn tokens, 600 trees of chosen ones."""
    rng = np.random.default_rng(11)
    lengths = np.zeros(14, dtype=int)
    for _ in range(600):
        tokens, parents, target, draft = random_tree(rng, chain=rule == "block")
        if rule == "rejection":
            draft = np.eye(target.shape[1])[tokens]
        elif np.any(draft == 1):
            continue
        asked = tokens, parents, target, draft, rng.integers(2**53, size=len(tokens) + 1) / 2**53
        expected = verify_weights(*asked, rule=rule)
        assert verify_weights(*asked, rule="traversal") == expected
        lengths[len(expected[0])] += 1
    assert np.all(lengths[:3] > 10), f"too few long paths to mean anything: {lengths}"


@implementations
def test_block_verification_by_hand(verify: Rule) -> None:
    """The motivating example of Sun et al. 2024: T = (1/3, 2/3), D = (2/3, 1/3), independent of the text.

    Of two drafts the standard rule accepts 10/9, block verification 11/9.
    """
    target, draft = np.array([1, 2]) / 3, np.array([2, 1]) / 3
    for rule, expected in (("rejection", 10 / 9), ("block", 11 / 9), ("traversal", 11 / 9)):
        found = prove(verify, [-1, 0, 1], lambda prefix: target, lambda prefix: draft, rule=rule)
        assert found.accepted.sum() == pytest.approx(expected, abs=1e-12)


@implementations
@pytest.mark.parametrize("pair", ["plain", "ties", "rational", "greedy-draft"])
def test_a_greedy_tree_finds_the_longest_of_its_sequences(verify: Rule, pair: str) -> None:
    """Stratos' note, appendix A: the result of checking K sequences one by one, without randomness."""
    target, draft = models(pair, 2, with_core=False)
    parents, rng = shapes()["three long"], np.random.default_rng(0)

    def output(tree: Any, rows: Probs, nodes: list[int], above: Sequence[int]) -> list[int]:
        tokens, uniforms = [tree.tokens[node] for node in nodes], rng.random(len(nodes) + 1)
        path, token, _ = verify(tokens, above, rows[nodes], tree.probs[nodes], uniforms, rule="greedy")
        return [*(tokens[i] for i in path), token]

    for tree in drafts(parents, independent(parents, draft)):
        rows = rows_after(tree, target)
        alone = [output(tree, rows, [0, node, node + 3], [-1, 0, 1]) for node in (1, 2, 3)]
        assert output(tree, rows, list(range(len(parents))), parents) == max(alone, key=len)


@pytest.mark.parametrize("pair", ["plain", "temperatures", "rational", "disjoint", "top-k-of-both"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_sequential_selection_accepts_some_draft(pair: str, k: int) -> None:
    """SpecTr: with probability 1 - (1 - b)**k, and at least (1 - 1/e) of the best possible."""
    target, draft = models(pair, 3, with_core=False)
    distribution = prove(verify_core, [-1] + [0] * k, target, draft, rule="k-sequential")
    rho = reference.smallest_rho(target(()), draft(()), k)
    b = np.minimum(draft(()), target(()) / rho).sum()
    accepted = distribution.accepted.sum()
    assert accepted == pytest.approx(1 - (1 - b) ** k, abs=1e-12)
    best = np.minimum(target(()), 1 - (1 - draft(())) ** k).sum()  # no rule can output x unless it was drawn
    assert (1 - np.exp(-1)) * best - 1e-12 <= accepted <= best + 1e-12
    if k == 1:
        assert accepted == pytest.approx(np.minimum(target(()), draft(())).sum(), abs=1e-12)


@implementations
@pytest.mark.parametrize(
    "target", [[1, 0], [1 / 2, 1 / 2], [1 / 2, 1 / 3, 1 / 6], [0, 1 / 4, 1 / 2, 1 / 4], [1 / 5] * 5]
)
def test_the_race_samples_the_target(verify: Rule, target: list[float]) -> None:
    """So the coupled rule, which gives plain sampling's tokens for any noise, does too."""
    prove_race(verify, np.array(target, dtype=float))


# ------------------------------------------------------------------------------------- single rounds


@implementations
def test_outcomes_by_hand(verify: Rule) -> None:
    """Dyadic probabilities, so that every number of the distribution is exact.

    Target 1/4 1/2 1/4, draft 1/2 1/2 0, drafted 0: accepted with probability 1/2, and the residual has only
    2. After an accepted 0 the target is 1/8 7/8 0.
    """
    target = np.array([[0.25, 0.5, 0.25], [0.125, 0.875, 0.0]])
    draft = np.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    expected = {((1,), 0): 0.5 * 0.125, ((1,), 1): 0.5 * 0.875, ((), 2): 0.5}
    assert outcome_distribution(verify, [2, 0], [-1, 0], target, draft) == expected
    # A second child drawn from the same D is judged by the residual, in which token 0 has no mass.
    target, draft = np.vstack([target, target[1:]]), np.vstack([draft, draft[1:]])
    assert outcome_distribution(verify, [2, 0, 0], [-1, 0, 0], target, draft) == expected


@implementations
@pytest.mark.parametrize("n_vocab", [63, 64, 65, 128, 200])
def test_long_distributions_are_sampled_exactly(verify: Rule, n_vocab: int) -> None:
    """Vocabularies near the lengths of vectors and blocks, with long runs of tokens without mass.

    One round with one given draft x: accepted with min(1, T(x) / D(x)), and then the next target.
    """
    rng = np.random.default_rng(n_vocab)
    probs = rng.exponential(size=(3, n_vocab))
    probs[:, rng.random(n_vocab) < 0.5] = 0.0
    probs[0, :40] = probs[1, 20 : n_vocab - 2] = probs[2, -1] = 0.0
    target, after, draft = probs / probs.sum(axis=1, keepdims=True)
    for drafted in (int(np.argmax(draft)), int(np.argmax(draft - target))):
        rows = np.array([target, after]), np.array([target, draft])
        found = outcome_distribution(verify, [0, drafted], [-1, 0], *rows)
        accept = min(1.0, target[drafted] / draft[drafted])
        left = np.maximum(0.0, target - draft)
        expected = {((1,), token): accept * after[token] for token in range(n_vocab)}
        expected |= {((), token): (1 - accept) * left[token] / left.sum() for token in range(n_vocab)}
        assert found.keys() == {outcome for outcome, probability in expected.items() if probability > 0}
        assert all(abs(probability - expected[outcome]) < 1e-12 for outcome, probability in found.items())


@pytest.mark.parametrize("verify", [reference.verify, verify_core], ids=["reference", "core"])
def test_no_mass_left_and_sums_short_of_one(verify: Rule) -> None:
    largest = 1 - 2**-53
    tenths = np.array([0.1] * 10 + [0.0, 0.0])
    assert verify([0], [-1], tenths[None], tenths[None], np.array([0.0, largest]))[1] == 9
    # Equal distributions accept for any random number.
    near = np.array([[0.5, 0.5 - 2**-53, 2**-53]] * 2)
    path, token, betas = verify([0, 0], [-1, 0], near, near, np.array([0.0, largest, 0.6]))
    assert (path, token, len(betas)) == ([1], 1, 1)
    # A token that neither side can produce is not accepted for any random number.
    target, draft = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    assert verify([0, 0], [-1, 0], target, draft, np.zeros(3))[:2] == ([], 1)


# ------------------------------------------------------------------------- core equals reference


WALKS: list[tuple[str, float, bool]] = [
    *itertools.product(("rejection", "greedy"), (1.0, 0.4), (False, True)),
    *((rule, 1.0, True) for rule in ("coupled", "traversal", "k-sequential", "classical")),
    ("block", 1.0, False), ("traversal", 1.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "lenience", "ordered"), WALKS)
def test_core_equals_reference_on_random_trees(rule: str, lenience: float, ordered: bool) -> None:
    """Trees of up to 13 nodes, vocabularies up to 300, many of whose rows are point masses."""
    rng = np.random.default_rng([17, ordered])
    lengths = np.zeros(14, dtype=int)
    for _ in range(250):
        tree = random_tree(rng, chain=rule == "block", one_draft=rule == "k-sequential")
        n_nodes, n_vocab = len(tree[0]), tree[2].shape[1]
        options: dict[str, Any] = {"rule": rule, "lenience": lenience}
        if ordered:
            options["order"] = rng.choice([rng.random(n_nodes), rng.integers(3, size=n_nodes) + 0.0])
        if rule == "coupled":
            options["noise"] = rng.integers(2**53, size=(n_nodes, n_vocab)) / 2**53
        uniforms = rng.integers(2**53, size=n_nodes + 1) / 2**53
        expected = reference.verify(*tree, uniforms, **options)
        for verify in (verify_core, verify_weights):
            path, token, betas = verify(*tree, uniforms, **options)
            assert (path, token) == expected[:2]
            np.testing.assert_allclose(betas, expected[2], rtol=0, atol=1e-12)
        lengths[len(path)] += 1
    assert np.all(lengths[:3] > 10), f"too few long paths to mean anything: {lengths}"
