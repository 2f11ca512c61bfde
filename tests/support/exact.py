"""Exact integration of a verification rule over its random numbers and draft trees.

A rule is a function with the signature of ``specdec.reference.verify``, treated as a black box. Its outcome
is piecewise constant in every uniform random number. Bisection finds the boundaries of the pieces to the last
bit of the numbers that the package draws, the multiples of 2**-53. So the proof covers the compiled rule,
rounding included, not a copy of its formulas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float64]
Rule = Callable[..., tuple[list[int], int, list[float]]]
Outcome = TypeVar("Outcome")
Tokens = tuple[int, ...]
Conditional = Callable[[Tokens], Probs]
"""From the new tokens so far to the distribution of the next, [n_vocab]."""
Proposal = Callable[[int, Sequence[Tokens]], Probs]
"""From a node, and the new tokens down to each earlier node, to the node's distribution."""

N_STEPS = 1 << 53
LARGEST = 1 - 1 / N_STEPS


class DisprovedError(AssertionError):
    """A rule violates the theorems."""


# ------------------------------------------------------------------- integration over the uniforms


@dataclass(frozen=True)
class Cell:
    """Box of uniforms, in steps of 2**-53, with a constant outcome."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    path: tuple[int, ...]
    token: int

    @property
    def probability(self) -> float:
        sides = ((high - low) / N_STEPS for low, high in zip(self.low, self.high, strict=True))
        return float(np.prod(list(sides)))

    def __contains__(self, steps: Sequence[int]) -> bool:
        return all(low <= step < high for low, step, high in zip(self.low, steps, self.high, strict=True))


def decisions(parents: Sequence[int], order: Sequence[float] | None = None) -> list[int]:
    """Nodes in the order in which a walk from the root decides them: by depth, then as siblings are tried."""
    depth = depths(parents)
    return sorted(
        range(1, len(parents)), key=lambda node: (depth[node], 0 if order is None else order[node], node)
    )


def depths(parents: Sequence[int]) -> list[int]:
    depth = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depth[node] = depth[parent] + 1
    return depth


def cells(
    rule: Rule, tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs,
    decided: Sequence[int] | None = None,
) -> list[Cell]:  # fmt: skip
    """All boxes of constant outcome: the thresholds of the nodes, then the cuts of the last uniform.

    Nodes are divided in the order in which they are `decided`; undecided ones have the largest uniform, which
    rejects if possible. So the effect of a uniform shows at once.
    """
    n_nodes = len(tokens)
    dimensions = [*(decisions(parents) if decided is None else decided), n_nodes]
    uniforms = np.full(n_nodes + 1, LARGEST)
    low, high = [0] * (n_nodes + 1), [N_STEPS] * (n_nodes + 1)
    found: list[Cell] = []

    def divide(rank: int) -> None:
        index = dimensions[rank]

        def outcome(step: int) -> tuple[tuple[int, ...], int]:
            uniforms[index] = step / N_STEPS
            path, token, _ = rule(tokens, parents, target_probs, draft_probs, uniforms)
            return tuple(path), token

        for low[index], high[index], (path, token) in pieces(outcome):
            if index == n_nodes:
                found.append(Cell(tuple(low), tuple(high), path, token))
                continue
            uniforms[index] = (low[index] + high[index]) // 2 / N_STEPS
            divide(rank + 1)
        uniforms[index] = LARGEST

    divide(0)
    return found


def pieces(value_at: Callable[[int], Outcome]) -> list[tuple[int, int, Outcome]]:
    """The pieces (start, stop, value) of a function of 0 ... 2**53 - 1 that never returns to a value."""
    found: list[tuple[int, Outcome]] = [(0, value_at(0))]

    def bisect(start: int, first: Outcome, last_step: int, last: Outcome) -> None:
        if first == last:
            return
        if last_step - start == 1:
            found.append((last_step, last))
            return
        middle = (start + last_step) // 2
        value = value_at(middle)
        bisect(start, first, middle, value)
        bisect(middle, value, last_step, last)

    bisect(0, found[0][1], N_STEPS - 1, value_at(N_STEPS - 1))
    stops = [start for start, _ in found[1:]] + [N_STEPS]
    return [(start, stop, value) for (start, value), stop in zip(found, stops, strict=True)]


def probe(
    rule: Rule, tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs,
    boxes: Sequence[Cell], rng: np.random.Generator,
) -> None:  # fmt: skip
    """One random point: the rule's outcome there must be that of the box that holds it.

    Over many drafts this tests the assumptions of the bisection: no value returns, decisions come in the
    given order, ``uniforms[0]`` has no influence.
    """
    steps = [int(step) for step in rng.integers(N_STEPS, size=len(tokens) + 1)]
    path, token, _ = rule(tokens, parents, target_probs, draft_probs, np.array(steps) / N_STEPS)
    held = [(box.path, box.token) for box in boxes if steps in box]
    if held != [(tuple(path), token)]:
        raise DisprovedError(f"at {steps} / 2**53 the outcome is {path}, {token}; its boxes have {held}")


def outcome_distribution(
    rule: Rule, tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs
) -> dict[tuple[tuple[int, ...], int], float]:
    """Exact probability of every (path, token) for one draft tree."""
    found: dict[tuple[tuple[int, ...], int], float] = defaultdict(float)
    for box in cells(rule, tokens, parents, target_probs, draft_probs):
        found[box.path, box.token] += box.probability
    return dict(found)


# --------------------------------------------------------------------- integration over the drafts


@dataclass(frozen=True)
class RoundDistribution:
    """Sum one round over all draft trees and outcomes."""

    outputs: dict[Tokens, float]
    """Probability of each sequence of new tokens: those of the accepted path, then the final one."""
    accepted: Probs
    """[n_nodes] probability that each node is on the accepted path; 0 for the root."""


@dataclass(frozen=True)
class Drafts:
    """Draft tree of positive probability."""

    tokens: list[int]
    prefixes: list[Tokens]
    """[n_nodes] the new tokens down to each node."""
    probs: Probs
    """[n_nodes, n_vocab] the distribution that each node was drawn from."""
    probability: float


def drafts(parents: Sequence[int], proposal: Proposal) -> Iterator[Drafts]:
    """Enumerate every possible draft tree of this shape."""

    def grow(prefixes: list[Tokens], rows: list[Probs], probability: float) -> Iterator[Drafts]:
        node = len(prefixes)
        if node == len(parents):
            tokens = [prefix[-1] if prefix else 0 for prefix in prefixes]
            yield Drafts(tokens, prefixes, np.array([np.zeros_like(rows[-1]), *rows[1:]]), probability)
            return
        row = proposal(node, prefixes)
        for token in np.flatnonzero(row):
            extended = [*prefixes, (*prefixes[parents[node]], int(token))]
            yield from grow(extended, [*rows, row], probability * float(row[token]))

    root = np.zeros_like(proposal(1, [()])) if len(parents) > 1 else np.zeros(1)
    yield from grow([()], [root], 1.0)


def prefixes_of(tokens: Sequence[int], parents: Sequence[int]) -> list[Tokens]:
    """New tokens down to each node of a tree, the root first; tokens and parents exclude the root."""
    prefixes: list[Tokens] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        prefixes.append((*prefixes[parent], token))
    return prefixes


def independent(parents: Sequence[int], draft: Conditional) -> Proposal:
    """Draw every node from the draft's distribution after its parent."""
    return lambda node, prefixes: draft(prefixes[parents[node]])


def without_replacement(parents: Sequence[int], draft: Conditional) -> Proposal:
    """Like `independent`, but siblings differ: each is drawn from the remaining distribution."""

    def proposal(node: int, prefixes: Sequence[Tokens]) -> Probs:
        row = draft(prefixes[parents[node]]).copy()
        row[[prefixes[other][-1] for other in range(1, node) if parents[other] == parents[node]]] = 0.0
        return row / row.sum()

    return proposal


def chosen(parents: Sequence[int], draft: Conditional) -> Proposal:
    """Choose nodes without sampling: child k of a node is the k-th most probable token, a point mass."""

    def proposal(node: int, prefixes: Sequence[Tokens]) -> Probs:
        row = draft(prefixes[parents[node]])
        rank = list(parents[:node]).count(parents[node])
        return np.eye(len(row))[np.argsort(-row, kind="stable")[rank % len(row)]]

    return proposal


def alternating(first: Proposal, second: Proposal) -> Proposal:
    """Draw nodes of odd index from one draft, the others from another: two drafts in one tree."""
    return lambda node, prefixes: (first if node % 2 else second)(node, prefixes)


def round_distribution(
    rule: Rule, parents: Sequence[int], target: Conditional, draft: Conditional, *,
    proposal: Proposal | None = None, reported: Conditional | None = None,
    decided: Sequence[int] | None = None, seed: int = 0,
) -> RoundDistribution:  # fmt: skip
    """Sum over every tree of this shape, weighted by its draft probabilities, and over every outcome.

    `proposal` is what the drafts are drawn from, if that is not ``independent(parents, draft)``; `reported`
    is the distribution that the rule is given, if that is not the true one; `decided` as in `cells`.
    """
    rng = np.random.default_rng(seed)
    outputs: dict[Tokens, float] = defaultdict(float)
    accepted = np.zeros(len(parents))
    for tree in drafts(parents, proposal or independent(parents, draft)):
        arguments = question(tree, parents, target, reported)
        boxes = cells(rule, *arguments, decided)
        probe(rule, *arguments, boxes, rng)
        for box in boxes:
            probability = tree.probability * box.probability
            outputs[(*(tree.tokens[node] for node in box.path), box.token)] += probability
            accepted[list(box.path)] += probability
    return RoundDistribution(dict(outputs), accepted)


def question(
    tree: Drafts, parents: Sequence[int], target: Conditional, reported: Conditional | None = None
) -> tuple[list[int], Sequence[int], Probs, Probs]:
    """Inputs of a rule: tokens, parents, target_probs, draft_probs."""
    target_probs = rows_after(tree, target)
    draft_probs = tree.probs if len(parents) > 1 else np.zeros_like(target_probs)
    if reported:
        draft_probs = np.array([reported(prefix[:-1]) for prefix in tree.prefixes])
    return tree.tokens, parents, target_probs, draft_probs


def rows_after(tree: Drafts, target: Conditional) -> Probs:
    """Target distributions [n_nodes, n_vocab] after each node."""
    return np.array([target(prefix) for prefix in tree.prefixes])


def first_tokens(outputs: dict[Tokens, float], target: Conditional, length: int) -> dict[Tokens, float]:
    """Distribution of the first `length` tokens when a shorter output is continued by sampling the target."""
    found: dict[Tokens, float] = defaultdict(float)
    for output, weight in outputs.items():
        for tokens, probability in chain_distribution(target, length, output[:length]).items():
            found[tokens] += weight * probability
    return dict(found)


def chain_distribution(target: Conditional, length: int, prefix: Tokens = ()) -> dict[Tokens, float]:
    """Distribution of the first `length` tokens of plain sampling that starts with `prefix`."""
    found = {prefix: 1.0}
    for _ in range(length - len(prefix)):
        found = {
            (*tokens, token): weight * float(probability)
            for tokens, weight in found.items()
            for token, probability in enumerate(target(tokens))
            if probability > 0
        }
    return found
