"""Every rule on every kind of tree that a draft proposes, fed as a session feeds it, by exact integration.

Drawn and chosen guesses, siblings of both kinds, several drafts in one tree with equal guesses, cut
supports: at lenience 1 the law is the target's, below it no token exceeds T / l. The rules are proven on
weights and point masses (`weights`), not only on probabilities, and in the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from exact import Conditional, Proposal, alternating, chosen, independent, without_replacement
from grids import in_few_items
from proofs import prove, prove_bound, prove_coupled
from specdec import reference
from tables import models, random_tree, shapes, standardise, table, unlike
from weights import VerifyWeights, points_of, verify_core, verify_dense, verify_weights

Propose = Callable[[Sequence[int], Conditional], Proposal]

RULES = {"reference": reference.verify, "weights": verify_weights, "dense": verify_dense}


def several(parents: Sequence[int], draft: Conditional) -> Proposal:
    """Three drafts in one tree: of one the guesses are drawn, of one the likeliest taken, one is greedy."""
    n_vocab = len(draft(()))
    drawn, greedy = independent(parents, draft), table(n_vocab, 7, standardise(False, temperature=0.0))
    sources = [drawn, chosen(parents, draft), independent(parents, greedy)]
    return lambda node, prefixes: sources[node % 3](node, prefixes)


PROPOSALS: dict[str, Propose] = {
    "drawn": independent, "drawn without replacement": without_replacement, "chosen": chosen,
    "chosen, then drawn": lambda parents,
    draft: alternating(chosen(parents, draft), independent(parents, draft)),
    "drawn, then chosen": lambda parents,
    draft: alternating(independent(parents, draft), chosen(parents, draft)), "chosen twice": lambda parents,
    draft: (lambda node, prefixes: np.eye(len(draft(())))[int(np.argmax(draft(prefixes[parents[node]])))]),
    "of several drafts": several, "each of a draft of its own": lambda parents,
    draft: unlike(parents, len(draft(()))),
}  # fmt: skip

# (implementation, how, shape, n_vocab, pair): a pair without cuts, one whose supports differ, one with point
# masses and ties. The reference, which knows probabilities alone, and rows with one weight on the first pair.
CASES = [
    (verify, how, shape, n_vocab, pair)
    for verify in RULES
    for how in PROPOSALS
    for shape, n_vocab in (("two", 4), ("three", 3), ("both", 2))
    for pair in ("plain", "nucleus-and-top-k", "rational")
    if (verify == "weights" or pair == "plain")
    and not (how == "drawn without replacement" and pair != "plain")  # may run out of tokens
]
cases = pytest.mark.parametrize(("verify", "how", "shape", "n_vocab", "pair"), CASES)


@in_few_items(by="how")
@cases
@pytest.mark.parametrize("lenience", [0.99, 0.5, 0.2])
def test_no_token_exceeds_its_bound(
    verify: str, how: str, shape: str, n_vocab: int, pair: str, lenience: float
) -> None:
    """A.5, for any number of guesses, however they came to be: P(x) <= T(x) / l."""
    target, draft = models(pair, n_vocab, with_core=False)
    proposal = PROPOSALS[how](shapes()[shape], draft)
    prove_bound(RULES[verify], shapes()[shape], target, draft, lenience=lenience, proposal=proposal)


@in_few_items(by="how")
@cases
@pytest.mark.parametrize("rule", ["rejection", "greedy", "classical"])
def test_the_law_is_the_targets(
    verify: str, how: str, shape: str, n_vocab: int, pair: str, rule: str
) -> None:
    target, draft = models(pair, n_vocab, with_core=False)
    proposal = PROPOSALS[how](shapes()[shape], draft)
    prove(RULES[verify], shapes()[shape], target, draft, rule=rule, proposal=proposal)


@in_few_items(by="how")
@cases
def test_the_coupled_rule_gives_the_plain_token(
    verify: str, how: str, shape: str, n_vocab: int, pair: str
) -> None:
    target, draft = models(pair, n_vocab, with_core=False)
    proposal = PROPOSALS[how](shapes()[shape], draft)
    prove_coupled(RULES[verify], shapes()[shape], target, draft, proposal=proposal)


@pytest.mark.parametrize("shape", ["two", "both"])
@pytest.mark.parametrize("pair", ["plain", "nucleus-and-top-k", "rational"])
def test_k_sequential_selection_of_draws(shape: str, pair: str) -> None:
    prove(verify_weights, shapes()[shape], *models(pair, 2, with_core=False), rule="k-sequential")


@in_few_items(by="how")
@pytest.mark.parametrize("verify", ["weights", "dense"])
@pytest.mark.parametrize("rule", ["block", "k-sequential"])
@pytest.mark.parametrize("how", ["drawn", "chosen", "chosen, then drawn", "drawn, then chosen"])
@pytest.mark.parametrize("pair", ["plain", "nucleus-and-top-k", "rational", "greedy-target", "greedy-draft"])
def test_chains_of_drawn_and_chosen_guesses(verify: str, pair: str, how: str, rule: str) -> None:
    parents = shapes()["chain3"]
    target, draft = models(pair, 3, with_core=False)
    prove(RULES[verify], parents, target, draft, rule=rule, proposal=PROPOSALS[how](parents, draft))


def test_a_lenient_law_with_two_chosen_guesses_by_hand() -> None:
    """T = 1/2, 1/4, 1/8, 1/8 and l = 1/4: the chosen tokens 2 and 3 get 1/2 each, all that T / l allows.

    The first is accepted with T / l = 1/2. What is left of T / l is 2, 1, 0, 1/2, over the chance of 1/2 of
    a rejection 4, 2, 0, 1. So the second guess, token 3, is accepted in any case.
    """
    target = np.array([[0.5, 0.25, 0.125, 0.125]] * 3)
    draft = np.array([[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=float)
    for verify in RULES.values():
        for uniform in (0.0, 0.499, 0.501, 0.999):
            uniforms = np.array([0.0, uniform, 0.999, 0.5])
            path, _, _ = verify([0, 2, 3], [-1, 0, 0], target, draft, uniforms, lenience=0.25)
            assert path == ([1] if uniform < 0.5 else [2])


def test_weights_and_points_equal_the_reference_on_random_trees() -> None:
    """Trees of up to 13 nodes, vocabularies up to 300, many of whose rows are point masses."""
    rng, n_points = np.random.default_rng(23), 0
    for _ in range(800):
        tree = random_tree(rng)
        n_points += sum(point >= 0 for point in points_of(tree[3]))
        lenience = float(rng.choice([1.0, 0.9, 0.3]))
        uniforms = rng.integers(2**53, size=len(tree[0]) + 1) / 2**53
        path, token, betas = VerifyWeights()(*tree, uniforms, lenience=lenience)
        expected = reference.verify(*tree, uniforms, lenience=lenience)
        assert (path, token) == expected[:2]
        np.testing.assert_allclose(betas, expected[2], rtol=0, atol=1e-12)
    assert n_points > 500


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([0], "points"), (([-1], [-1, -1]), "points"), (([-1, -1], [-1, 3]), "points"),
        (([-2, -1], [-1, -1]), "points"),
    ],
)  # fmt: skip
def test_bad_points_are_refused(points: object, message: str) -> None:
    rows = np.full((2, 3), 1 / 3)
    with pytest.raises((TypeError, ValueError), match=message):
        verify_core([0, 1], [-1, 0], rows, rows, np.zeros(3), points=points)
