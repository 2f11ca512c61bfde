"""The proofs can fail: they disprove each of a list of broken rules.

A fault replaces one passage of the reference's source. This list shows if a change of the tests lets a fault
pass.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exact import DisprovedError, Rule, alternating, chosen, independent
from proofs import prove, prove_bound, prove_coupled, prove_race
from specdec import _core, reference
from specdec.reference import rules
from tables import models, shapes, standardize, table, unlike
from weights import verify_weights

IMPLEMENTATIONS = {"reference": reference.verify, "core": _core.verify, "weights": verify_weights}

# Trees and models on which every fault of a rule must show: equal siblings, zeros, ties, other truncation on
# either side. For each rule, (shape, pair, n_vocab).
EXPOSING: dict[str, list[tuple[str, str, int]]] = {
    "rejection": [
        ("left", "temperatures", 3), ("two", "top-k-of-draft", 3), ("chain2", "top-k-of-both", 3),
        ("chain2", "zeros", 3), ("two", "plain", 3), ("both", "plain", 2), ("chain1", "nucleus-of-target", 3),
        ("chain1", "disjoint", 3), ("chain2", "nucleus-and-top-k", 3),
    ],
    "greedy": [("both", "rational", 3), ("two", "rational", 4), ("chain2", "temperatures", 3)],
    "block": [("chain2", "plain", 5), ("chain3", "temperatures", 2), ("chain2", "rational", 3)],
    "traversal": [
        ("both", "plain", 2), ("left", "temperatures", 3), ("interleaved", "rational", 3),
        ("chain2", "rational", 3), ("two", "top-k-of-draft", 3), ("left", "greedy-draft", 3),
    ],
    "k-sequential": [
        ("chain2", "zeros", 3), ("three", "temperatures", 2), ("both", "rational", 2), ("two", "rational", 4)
    ],
    "classical": [
        ("two", "rational", 3), ("chain2", "plain", 3), ("chain1", "top-k-of-draft", 3),
        ("chain2", "zeros", 3),
    ],
}  # fmt: skip
LENIENT = [("two", "plain", 3), ("three", "temperatures", 3), ("chain2", "rational", 3), ("both", "zeros", 2)]
REVERSED = [0.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
RACES = [[1 / 2, 1 / 4, 1 / 4], [0.0, 1 / 3, 2 / 3 - 1 / 3, 1 / 3], [1 / 6, 1 / 2, 0.0, 1 / 3]]


def given(shape: str, pair: str, n_vocab: int) -> Any:
    """A tree, and the target and draft models."""
    return shapes()[shape], *models(pair, n_vocab, with_core=False)


def ordered_trial(shape: str, n_vocab: int, verify: Rule) -> None:
    """Run a trial in which every node has its own distribution."""
    parents, target, draft = given(shape, "plain", n_vocab)
    prove(verify, parents, target, draft, proposal=unlike(parents, n_vocab), order=REVERSED[: len(parents)])


def chosen_above_drawn(verify: Rule) -> None:
    """A chain of two tokens: a chosen one and a drawn one."""
    parents, target, draft = given("chain2", "plain", 3)
    mixed = alternating(chosen(parents, draft), independent(parents, draft))
    prove(verify, parents, target, draft, proposal=mixed, rule="traversal")


TRIALS: dict[str, list[Callable[[Rule], None]]] = {
    rule: [lambda verify, case=case, rule=rule: prove(verify, *given(*case), rule=rule) for case in cases]
    for rule, cases in EXPOSING.items()
} | {
    "lenient": [
        lambda verify, case=case, lenience=lenience: prove_bound(verify, *given(*case), lenience=lenience)
        for case in LENIENT
        for lenience in (0.5, 0.3)
    ],
    "mixed": [chosen_above_drawn],
    "order": [partial(ordered_trial, "three", 3), partial(ordered_trial, "both", 2)],
    "coupled": [
        *(
            lambda verify, case=case: prove_coupled(verify, *given(*case, 3))
            for case in (("chain2", "plain"), ("both", "plain"), ("both", "zeros"))
        ),
        *(lambda verify, target=target: prove_race(verify, np.array(target)) for target in RACES),
    ],
}


# By trial: passages of the reference ("- "), and for each what may be wrong and what replaces it then
# ("+ "); further lines of a replacement follow a "| ".
FAULTS = r"""
[rejection]
- return float(target[token] / draft[token])
+ accepts with draft / target: return float(draft[token] / max(target[token], 1e-9))
+ accepts only above half: return float(target[token] >= 0.5 * draft[token])
+ a threshold off by 1e-9: return float(target[token] / draft[token]) * (1 - 1e-9)
- if uniform < accept_probability(left, draft, token):
+ accepts always: if True:
+ accepts never: if False:
+ accepts what a sample of the target equals: if sample(left, uniform) == token:
- if uniform < accept_probability(
+ accepts at equality: if uniform <= accept_probability(
- left = np.maximum(0.0, target - draft)\n    mass
+ residual not subtracted: left = np.maximum(0.0, target)\n    mass
+ residual the wrong way round: left = np.maximum(0.0, draft - target)\n    mass
+ residual not cut at zero: left = np.abs(target - draft)\n    mass
+ residual by rank instead of by id: order = np.argsort(-target)
|     left = np.zeros(len(target))
|     left[order] = np.maximum(0.0, target[order] - np.sort(draft)[::-1])
|     mass
- return left / mass if mass > 0 else target
+ residual not normalized: return left if mass > 0 else target
- return None, left / left.sum() if lenience < 1 else left
+ samples the target after a rejection: return None, target
- sample(otherwise, uniforms[len(tokens)]), betas
+ bonus token of the draft: sample(otherwise if nodes else draft_probs[last], uniforms[len(tokens)]), betas
-         if accepted is None:
+ bonus token missing:         if accepted is None and last and not nodes:
|             return path_to(last, parents)[:-1], tokens[last], betas
|         if accepted is None:
- target = target_probs[min(row)]
+ bonus token from one node too early: target = target_probs[last if last in parents else parents[last]]
+ target row of the node before: target = target_probs[max(min(row) - 1, 0)]
+ target row of the parent: target = target_probs[max(parents[min(row)], 0)]
- draft_probs[node], uniforms[node])
+ uniforms shifted down: draft_probs[node], uniforms[node - 1])
+ uniforms shifted up: draft_probs[node], uniforms[node + 1])
- sample(otherwise, uniforms[len(tokens)])
+ one uniform for two decisions: sample(otherwise, uniforms[len(tokens) - 1])
- Candidate(tokens[node], draft_probs[node],
+ draft row of the first sibling's parent: Candidate(tokens[node], draft_probs[max(parents[node], 1)],
-         left = residual(left, draft) if lenience == 1 else lenient_residual(left, draft)
+ second child held against the whole target:
- left = residual(left, draft) if
+ second child forgets the first: left = residual(target, draft) if
- in enumerate(candidates):\n        if uniform <
+ second child never tried: in enumerate(candidates[:1]):\n        if uniform <
- last, depth = nodes[accepted], depth + 1
+ descends into the last child: last, depth = nodes[-1], depth + 1
-         candidates = [Candidate(
+ merges equal siblings first:         nodes = [n for n in nodes if n ==
|                  min(m for m in nodes if tokens[m] == tokens[n])]
|         candidates = [Candidate(
+ siblings by their probability:         nodes.sort(key=lambda node: -target[tokens[node]])
|         candidates = [Candidate(
- row = [node for node in nodes if tokens[node] == tokens[last]]
+ children of duplicates are lost: row = [last]
+ any sibling is a duplicate: row = nodes
+ path through a duplicate: row = [node for node in nodes if tokens[node] == tokens[last]]
|         last = row[-1]
- side="right"
+ draws a token of no mass at 0: side="left"
- np.searchsorted(np.cumsum(probs), uniform, side="right")
+ sampling skips the first token: 1 + np.searchsorted(
|         np.cumsum(probs[1:]) / max(probs[1:].sum(), 1e-9), uniform, side="right")
[order]
- nodes.sort(key=lambda node: order[node])
+ ignored: pass
- order[node])
+ descending: -order[node])
- Candidate(tokens[node], draft_probs[node], uniforms[node]) for node in nodes]
+ draft rows stay in node order: Candidate(tokens[node], draft_probs[other], uniforms[node])
|         for node, other in zip(nodes, sorted(nodes), strict=True)]
[lenient]
- if lenience == 1 else lenient_residual(left, draft)
+ residual normalized, which breaks the bound: if True else None
- return left / rejected if rejected > 0
+ residual not divided by the chance of a rejection: return left if rejected > 0
- else lenient_residual(left, draft)
+ residual of the target, not of target / l: else lenient_residual(left * lenience, draft)
+ second child held against target / l again: else target / lenience
- left = target / lenience
+ lenient with acceptance alone: left = target / lenience if not len(candidates) else target / lenience**2
+ lenience forgotten: left = target
+ lenience the wrong way round: left = target * lenience
- if uniform < accept_probability(
+ accepts at equality: if uniform <= accept_probability(
[greedy]
- best = int(np.argmax(target))\n    for
+ the draft's argmax: best = int(np.argmax(candidates[0].draft if candidates else target))\n    for
+ the highest id of a tie: best = int(len(target) - 1 - np.argmax(target[::-1]))\n    for
- token == best or (lenience < 1 and
+ any token of a tie: token == best or (
- return None, point(best, len(target))
+ the token of a sibling: return None, target
- in enumerate(candidates):\n        if token == best
+ looks at the first child alone: in enumerate(candidates[:1]):\n        if token == best
[coupled]
- noise=noise[depth]
+ the noise of the row before: noise=noise[max(depth - 1, 0)]
+ one noise for all rows: noise=noise[0]
- return int(np.argmin(np.where(target > 0,
+ the largest clock: return int(np.argmax(np.where(target > 0,
- -np.log1p(-noise) / target
+ the logarithm of the number itself: noise / target
- np.where(target > 0, -np.log1p(-noise) / target, np.inf)
+ a Gumbel number added to probabilities: np.where(target > 0, -(target - np.log(-np.log1p(-noise))), np.inf)
- target > 0, -np.log1p
+ tokens without mass take part: target >= 0, -np.log1p
- if token == winner:
+ accepts by the standard rule: if token == winner or noise[token] < target[token]:
- in enumerate(candidates):\n        if token == winner
+ only the first candidate may be it: in enumerate(candidates[:1]):\n        if token == winner
- return None, point(winner, len(target))
+ a fresh sample after a rejection: return None, target
[block]
- if uniforms[i] < h:
+ accepts at equality: if uniforms[i] <= h:
- p.append(min(1.0, p[i - 1] * target
+ p is not capped: p.append((p[i - 1] * target
- min(1.0, p[i - 1] * target_probs
+ p forgets the tokens before: min(1.0, target_probs
-     if tau == gamma or
+ residual of the standard rule:     rest = [
|         np.maximum(0.0, t - d) for t, d in zip(target_probs, draft_probs[1:])]
|     if tau == gamma or
- return tau, rest[tau] / rest[tau].sum()
+ residual of the position before: return tau, rest[tau - 1] / rest[tau - 1].sum()
- - draft_probs[i + 1]) for i in range(gamma)]
+ residual against the draft before: - draft_probs[max(i, 1)]) for i in range(gamma)]
- h = mass / (mass + (1 - p[i])) if
+ h without the mass of the rest: h = p[i] if
+ h with 1 for 1 - p: h = mass / (mass + 1) if
-         if i == gamma:\n            h = p[i]
+ the last draft as the others:         if i == gamma:\n            h = 0.9 * p[i]
-             tau = i
+ stops at the first rejection:             tau = i
|         else:
|             break
+ the first prefix that is kept, not the longest:             tau = i\n            break
- if tau == gamma or not rest[tau].any():
+ bonus token missing: if tau == gamma:
|         tau -= 1
|     if not rest[tau].any():
[traversal]
- chance = min(1.0, p * left
+ chance is not capped: chance = (p * left
+ chance forgets the rows above: chance = min(1.0, left
- equal = [other for other in nodes if tokens[other] == tokens[child]]
+ rows of equal tokens are not merged: equal = [child]
- if equal[0] != child:
+ only the first child is tried: if nodes[0] != child:
- draft[tokens[child]] == 1 and all_chosen(equal):
+ drawn tokens are decided at once: True:
- rest = np.maximum(0.0, p * left - draft)
+ residual forgets the rows above: rest = np.maximum(0.0, left - draft)
+ residual forgets the tokens before: rest = np.maximum(0.0, p * target_probs[min(row)] - draft)
- left = rest / mass if mass > 0 else left
+ residual not used: pass
- p = mass / (mass + (1 - p)) if
+ chance of the row is not changed: p = p if
+ chance of the row forgets the rows above: p = 1.0 if
- if uniforms[node] < p else None
+ never ends at a row with draft tokens: if uniforms[node] < p and (not nodes or node == 0) else None
[mixed]
- and all_chosen(equal):
+ a chosen token above drawn ones is decided at once: and True:
[k-sequential]
- if uniform * draft[token] * rho < target[token]:
+ accepts at equality: if uniform * draft[token] * rho <= target[token]:
-     return high
+ rho too small:     return max(1.0, 0.9 * high)
+ rho too large:     return min(float(k), 1.1 * high)
- rho = smallest_rho(target, draft, k)
+ rho is one: rho = 1.0
+ rho is k: rho = float(k)
+ rho for one draft more: rho = smallest_rho(target, draft, k + 1)
- residual(target, common * (1 - (1 - b) ** k) / b if b > 0 else common)
+ residual of the standard rule: residual(target, draft)
+ residual of the whole target: target
- (1 - (1 - b) ** k) / b
+ residual as after one draft: 1.0
- in enumerate(candidates):\n        if uniform * draft[token] * rho
+ only the first child is tried: in enumerate(candidates[:1]):\n        if uniform * draft[token] * rho
[classical]
- if uniform < target[token] / (bound
+ accepts at equality: if uniform <= target[token] / (bound
- target[token] / (bound * draft[token])
+ accepts with target / draft: target[token] / draft[token]
-     return None, target\n\n\ndef point
+ samples the residual:     return None, residual(target, draft) if candidates else target\n\n\ndef point
- np.max(np.where(
+ a bound of the drafted token alone: np.mean(np.where(
- np.where(target > 0, target / draft, 0.0)
+ mass outside the draft forgotten: np.where(draft > 0, target / draft, 0.0)
"""


def cases() -> Iterator[Any]:
    """Each fault of `FAULTS`: its trial, the passage and the replacement."""
    trial = old = ""
    found: list[list[str]] = []
    for line in FAULTS.strip().splitlines():
        text = line[2:].replace("\\n", "\n")
        if line[0] == "[":
            trial = line[1:-1]
        elif line[0] == "-":
            old = text
        elif line[0] == "+":
            name, _, new = text.partition(":")
            found.append([f"{trial}: {name}", trial, old, new[1:]])
        else:
            found[-1][-1] += f"\n{text}"
    for name, *values in found:
        yield pytest.param(*values, id=name)


def mutated(old: str, new: str) -> types.ModuleType:
    """The rules' module with one passage of its source replaced."""
    source = inspect.getsource(rules)
    assert source.count(old) == 1, f"the reference has {source.count(old)} passages that read {old!r}"
    module = types.ModuleType("specdec.reference.rules_mutated")
    exec(compile(source.replace(old, new), str(Path(rules.__file__)), "exec"), module.__dict__)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("trial", "old", "new"), list(cases()))
def test_the_proof_catches_a_broken_rule(trial: str, old: str, new: str) -> None:
    verify = mutated(old, new).verify
    with np.errstate(all="ignore"):
        for run in TRIALS[trial]:
            try:
                run(verify)
            except DisprovedError:
                return
    pytest.fail("no trial disproved it")


@pytest.mark.slow
@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("verify", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_unbroken_rules_pass_where_broken_ones_fail(verify: Rule, trial: str) -> None:
    for run in TRIALS[trial]:
        run(verify)


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal", "k-sequential", "classical"])
@pytest.mark.parametrize("verify", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_the_proof_catches_a_draft_that_was_not_standardized(verify: Rule, rule: str) -> None:
    """Drafts are drawn with top-k, but the rule is given the distribution before it."""
    target = table(4, 1, standardize(False))
    drawn = table(4, 2, standardize(False, top_k=2, temperature=0.7))
    before = table(4, 2, standardize(False))
    with pytest.raises(DisprovedError):
        prove(verify, shapes()["chain2"], target, drawn, reported=before, rule=rule)
