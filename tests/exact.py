"""Exact integration of a verification rule over its random numbers and its drafts.

A rule is a function with the signature of ``specdec.reference.verify``. It is taken as a black box: its
outcome is piecewise constant in every uniform, and the ends of the pieces are found by bisection to the last
bit of the numbers that the package draws, the multiples of 2**-53. So what is proven is the rule as compiled,
rounding included, not a copy of its formulae.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float64]
Rule = Callable[..., tuple[list[int], int, list[float]]]
Conditional = Callable[[tuple[int, ...]], Probs]
"""From the new tokens so far to the distribution of the next, [n_vocab]."""

N_STEPS = 1 << 53
TOLERANCE = 1e-12


class DisprovedError(AssertionError):
    """The rule does not do what the theorems say."""


# ------------------------------------------------------------------- integration over the uniforms


@dataclass(frozen=True)
class Cell:
    """A box of uniforms, in steps of 2**-53, on which the outcome is constant."""

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


def cells(
    rule: Rule, tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs
) -> list[Cell]:
    """All boxes of constant outcome: the accept thresholds in node order, then the cuts of the last uniform.

    Node order is the order of decision: children come after their parent and are tried in node order.
    """
    n_nodes = len(tokens)
    uniforms = np.full(n_nodes + 1, 0.5)
    low, high = [0] * (n_nodes + 1), [N_STEPS] * (n_nodes + 1)
    found: list[Cell] = []

    def outcome() -> tuple[list[int], int]:
        path, token, _ = rule(tokens, parents, target_probs, draft_probs, uniforms)
        return path, token

    def accepts(node: int) -> Callable[[int], bool]:
        def decide(step: int) -> bool:
            uniforms[node] = step / N_STEPS
            return node in outcome()[0]

        return decide

    def draws(step: int) -> tuple[tuple[int, ...], int]:
        uniforms[n_nodes] = step / N_STEPS
        path, token = outcome()
        return tuple(path), token

    def divide(index: int) -> None:
        if index == n_nodes:
            for low[index], high[index], (path, token) in pieces(draws):
                found.append(Cell(tuple(low), tuple(high), path, token))
            return
        for start, stop, _ in pieces(accepts(index)):
            low[index], high[index] = start, stop
            uniforms[index] = (start + stop) // 2 / N_STEPS
            divide(index + 1)

    divide(1)
    return found


def pieces(value_at: Callable[[int], object]) -> list[tuple[int, int, object]]:
    """The pieces (start, stop, value) of a function of 0 ... 2**53 - 1 that never returns to a value."""
    found: list[tuple[int, object]] = [(0, value_at(0))]

    def bisect(start: int, first: object, last_step: int, last: object) -> None:
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
    rule: Rule,
    tokens: Sequence[int],
    parents: Sequence[int],
    target_probs: Probs,
    draft_probs: Probs,
    boxes: Sequence[Cell],
    rng: np.random.Generator,
) -> None:
    """One random point: the rule's outcome there must be that of the box that holds it.

    Over many drafts this tests what the bisection takes for granted: that no value comes back, that decisions
    are in node order, that ``uniforms[0]`` has no influence.
    """
    steps = [int(step) for step in rng.integers(N_STEPS, size=len(tokens) + 1)]
    path, token, _ = rule(tokens, parents, target_probs, draft_probs, np.array(steps) / N_STEPS)
    held = [(box.path, box.token) for box in boxes if steps in box]
    if held != [(tuple(path), token)]:
        raise DisprovedError(f"at {steps} / 2**53 the outcome is {path}, {token}; its boxes have {held}")


def outcome_law(
    rule: Rule, tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs
) -> dict[tuple[tuple[int, ...], int], float]:
    """Exact probability of every (path, token) for one tree of drafts."""
    law: dict[tuple[tuple[int, ...], int], float] = defaultdict(float)
    for box in cells(rule, tokens, parents, target_probs, draft_probs):
        law[box.path, box.token] += box.probability
    return dict(law)


# --------------------------------------------------------------------- integration over the drafts


@dataclass(frozen=True)
class RoundLaw:
    """What one round does, summed over every tree of drafts and every outcome."""

    outputs: dict[tuple[int, ...], float]
    """Probability of each sequence of new tokens: those of the accepted path, then the final one."""
    accepted: Probs
    """[n_nodes] probability that each node is on the accepted path; 0 for the root."""


def round_law(
    rule: Rule,
    parents: Sequence[int],
    target: Conditional,
    draft: Conditional,
    *,
    reported: Conditional | None = None,
    seed: int = 0,
) -> RoundLaw:
    """Sum over every tree of this shape, weighted by its draft probabilities, and over every outcome.

    `reported` is what the rule is told the drafts were drawn from, if that is not the truth.
    """
    reported = reported or draft
    rng = np.random.default_rng(seed)
    outputs: dict[tuple[int, ...], float] = defaultdict(float)
    accepted = np.zeros(len(parents))
    for tokens, prefixes, weight in drafts(parents, draft):
        target_probs = np.array([target(prefix) for prefix in prefixes])
        draft_probs = np.array([reported(prefix[:-1]) for prefix in prefixes])
        arguments = (tokens, parents, target_probs, draft_probs)
        boxes = cells(rule, *arguments)
        probe(rule, *arguments, boxes, rng)
        for box in boxes:
            probability = weight * box.probability
            outputs[(*(tokens[node] for node in box.path), box.token)] += probability
            accepted[list(box.path)] += probability
    return RoundLaw(dict(outputs), accepted)


def drafts(
    parents: Sequence[int], draft: Conditional
) -> Iterator[tuple[list[int], list[tuple[int, ...]], float]]:
    """Every tree of drafts that can occur: (tokens, the new tokens down to each node, probability)."""

    def grow(
        tokens: list[int], prefixes: list[tuple[int, ...]], weight: float
    ) -> Iterator[tuple[list[int], list[tuple[int, ...]], float]]:
        if len(tokens) == len(parents):
            yield tokens, prefixes, weight
            return
        parent = prefixes[parents[len(tokens)]]
        for token, probability in enumerate(draft(parent)):
            if probability > 0:
                yield from grow([*tokens, token], [*prefixes, (*parent, token)], weight * float(probability))

    yield from grow([0], [()], 1.0)


def first_tokens(
    outputs: dict[tuple[int, ...], float], target: Conditional, length: int
) -> dict[tuple[int, ...], float]:
    """Law of the first `length` tokens when a shorter output is continued by sampling the target."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for output, weight in outputs.items():
        for tokens, probability in chain_law(target, length, output[:length]).items():
            law[tokens] += weight * probability
    return dict(law)


def chain_law(target: Conditional, length: int, prefix: tuple[int, ...] = ()) -> dict[tuple[int, ...], float]:
    """Law of the first `length` tokens of plain sampling that begins with `prefix`."""
    law = {prefix: 1.0}
    for _ in range(length - len(prefix)):
        law = {
            (*tokens, token): weight * float(probability)
            for tokens, weight in law.items()
            for token, probability in enumerate(target(tokens))
            if probability > 0
        }
    return law


def expected_acceptance(parents: Sequence[int], target: Conditional, draft: Conditional) -> Probs:
    """[n_nodes] probability that each node is on the accepted path, from Theorem 3.5 applied child by child.

    A child is accepted with token x with probability min(left(x), draft(x)), where `left` is the target's
    distribution that earlier, rejected children have left.
    """
    accepted = np.zeros(len(parents))

    def visit(node: int, prefix: tuple[int, ...], weight: float) -> None:
        left, proposal = target(prefix), draft(prefix)
        for child in (child for child, parent in enumerate(parents) if parent == node):
            overlap = np.minimum(left, proposal)
            accepted[child] += weight * overlap.sum()
            for token in np.flatnonzero(overlap):
                visit(child, (*prefix, int(token)), weight * float(overlap[token]))
            weight *= 1 - overlap.sum()
            rest = left - overlap
            if weight <= 0 or rest.sum() <= 0:
                break
            left = rest / rest.sum()

    visit(0, (), 1.0)
    return accepted


# ------------------------------------------------------------------------------------- the proof


def prove(
    rule: Rule,
    parents: Sequence[int],
    target: Conditional,
    draft: Conditional,
    *,
    reported: Conditional | None = None,
) -> None:
    """Contract 1 for one shape of tree and one pair of models, or DisprovedError.

    1. The first 1, 2, ..., depth + 1 tokens have the law of plain sampling, to 1e-12.
    2. No token of target probability 0 has any probability at all, not even 2**-53.
    3. Each node is accepted as often as the theorems promise: a rule that wastes drafts, or the bonus token
       after them, has the right law too.
    """
    law = round_law(rule, parents, target, draft, reported=reported)
    depth = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depth[node] = depth[parent] + 1
    for length in range(1, max(depth) + 2):
        plain = chain_law(target, length)
        speculative = first_tokens(law.outputs, target, length)
        for tokens in sorted(plain.keys() | speculative.keys()):
            want, got = plain.get(tokens, 0.0), speculative.get(tokens, 0.0)
            if (got > 0) and want == 0:
                raise DisprovedError(f"{tokens} has probability {got:.3g} and is impossible under the target")
            if abs(got - want) > TOLERANCE:
                raise DisprovedError(f"P{tokens} is {got:.15f}, the target's is {want:.15f}")
    want_accepted = expected_acceptance(parents, target, draft)
    if np.abs(law.accepted - want_accepted).max() > TOLERANCE:
        raise DisprovedError(f"nodes are accepted with {law.accepted}, expected {want_accepted}")


# --------------------------------------------------------------------------- small random models


def table(
    n_vocab: int, seed: int, standardise: Callable[[NDArray[np.float32]], Probs], *, kind: str = "random"
) -> Conditional:
    """A model over a few tokens: random logits for every prefix, standardised.

    `kind` says which: "random", "ties" (few distinct values), "zeros" (about half of the tokens excluded),
    "even" and "odd" (only tokens of this parity, so that the two have disjoint supports).
    """
    known: dict[tuple[int, ...], Probs] = {}

    def conditional(prefix: tuple[int, ...]) -> Probs:
        if prefix not in known:
            # One more than each id: trailing zeros would not change the generator.
            rng = np.random.default_rng([seed, n_vocab, *(token + 1 for token in prefix)])
            logits = (1.5 * rng.standard_normal(n_vocab)).astype(np.float32)
            token = np.arange(n_vocab)
            if kind == "ties":
                logits = np.round(logits)
            elif kind == "zeros":
                logits[(rng.random(n_vocab) < 0.5) & (token != rng.integers(n_vocab))] = -np.inf
            elif kind in ("even", "odd"):
                logits[token % 2 != (kind == "odd")] = -np.inf
            known[prefix] = standardise(logits)
        return known[prefix]

    return conditional


def shapes() -> dict[str, list[int]]:
    """Trees by name, as lists of parents."""
    return {
        "chain0": [-1],
        "chain1": [-1, 0],
        "chain2": [-1, 0, 1],
        "chain3": [-1, 0, 1, 2],
        "two": [-1, 0, 0],
        "three": [-1, 0, 0, 0],
        "left": [-1, 0, 0, 1],
        "right": [-1, 0, 0, 2],
        "both": [-1, 0, 0, 1, 2],
        "interleaved": [-1, 0, 1, 0, 1],
        "bushy": [-1, 0, 0, 1, 1, 2, 2],
    }
