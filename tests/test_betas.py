"""Betas, the acceptance probabilities of draft tokens, against every outcome of every rule and run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import specdec
from exact import Proposal, Rule, cells, drafts, independent, question, without_replacement
from specdec import drafts as draft_types
from specdec import reference, theory
from tables import models, shapes
from weights import verify_core

RULES = {"reference": reference.verify, "core": verify_core}
CASES = [("core", "chain2", 3), ("core", "two", 4), ("core", "left", 3), ("reference", "left", 2)]


def expected_of_a_round(
    rule: Rule, parents: list[int], target: Any, proposal: Proposal
) -> tuple[float, float, float]:
    """(Sum of betas, accepted drafts) on average, and how far a beta is outside of [0, 1]."""
    betas, accepted, outside = 0.0, 0.0, 0.0
    for tree in drafts(parents, proposal):
        asked = question(tree, parents, target)
        for cell in cells(rule, *asked):
            uniforms = np.array(cell.low) / 2.0**53
            path, _, found = rule(*asked, uniforms)
            assert tuple(path) == cell.path
            probability = tree.probability * cell.probability
            betas += probability * sum(found)
            accepted += probability * len(path)
            outside = max(outside, *(abs(beta - 0.5) - 0.5 for beta in found))
    return betas, accepted, outside


@pytest.mark.grid
@pytest.mark.parametrize(
    ("options", "proposed"),
    [
        ({}, independent), ({}, without_replacement), ({"lenience": 0.4}, independent),
        ({"rule": "greedy"}, independent), ({"rule": "greedy", "lenience": 0.4}, independent),
        ({"rule": "k-sequential"}, independent), ({"rule": "classical"}, independent),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("where", "shape", "n_vocab"), CASES)
def test_betas_expect_as_many_accepted_drafts_as_there_are(
    where: str, shape: str, n_vocab: int, options: dict[str, Any], proposed: Any
) -> None:
    """On chains and trees the sum of betas and the number of accepted drafts have the same mean."""
    parents = shapes()[shape]
    target, draft = models("plain", n_vocab, with_core=where == "core")
    rule = partial(RULES[where], **options)
    betas, accepted, outside = expected_of_a_round(rule, parents, target, proposed(parents, draft))
    assert 0.05 < accepted
    assert betas == pytest.approx(accepted, abs=1e-12)
    assert outside <= 1e-15


@pytest.mark.parametrize("judge", ["block", "traversal"])
@pytest.mark.parametrize("where", RULES)
def test_betas_of_rules_for_whole_chains_are_theorem_3_5(where: str, judge: str) -> None:
    """They judge no token alone, so the betas are rejection's acceptance probabilities at each position."""
    parents = shapes()["chain2"]
    target, draft = models("plain", 3, with_core=where == "core")
    lengths = set()
    for tree in drafts(parents, independent(parents, draft)):
        tokens, _, target_probs, draft_probs = asked = question(tree, parents, target)
        overlap = np.minimum(target_probs[:-1], draft_probs[1:]).sum(axis=1)
        for cell in cells(partial(RULES[where], rule=judge), *asked):
            path, _, betas = RULES[where](*asked, np.array(cell.low) / 2.0**53, rule=judge)
            assert betas == pytest.approx(overlap[: len(betas)], abs=1e-15)
            assert len(betas) == min(len(path) + 1, len(tokens) - 1)
            lengths.add(len(betas))
    assert lengths == {1, 2}


def test_betas_of_a_coupled_run_are_of_the_coupling() -> None:
    """Their mean is the chance that one noise draws the same token from both, not Theorem 3.5's."""
    rng = np.random.default_rng(2)
    target, draft = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.35, 0.25, 0.3])
    n = 20000
    found = np.empty(n)
    for i, noise in enumerate(rng.random((n, 2, 4))):
        token = reference.race(draft, noise[0])
        asked = ([0, token], [-1, 0], np.array([target, target]), np.array([draft, draft]), np.zeros(3))
        path, _, (found[i],) = verify_core(*asked, rule="coupled", noise=noise)
        assert found[i] == len(path)
    chance = float(theory.coupled_acceptance_rate(target, draft))
    assert chance < theory.acceptance_rate(target, draft) - 0.05
    assert abs(found.mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / n)


DRAFTS: dict[str, Callable[[specdec.Model], Any]] = {
    "lookahead": lambda small: draft_types.Lookahead(), "model": lambda small: small,
    "tree": lambda small: draft_types.ModelDraft(small, tree=draft_types.ParallelChains(3)),
}  # fmt: skip
COUPLED = {"temperature": 1.0, "verify": "coupled"}


@pytest.mark.parametrize(
    ("name", "options"), [("lookahead", {}), ("tree", {}), ("tree", COUPLED), ("model", COUPLED)]
)
def test_alpha_of_trees_and_coupled_runs_is_what_was_accepted(
    pair: tuple[specdec.Model, specdec.Model], name: str, options: dict[str, Any]
) -> None:
    target, draft = pair[0], DRAFTS[name](pair[1])
    trace = specdec.generate(target, draft, "abcab", max_new_tokens=40, seed=3, n_threads=1, **options).trace
    assert 0 < trace.n_accepted < trace.n_drafted
    assert trace.acceptance_rate == trace.n_accepted / trace.n_verified
