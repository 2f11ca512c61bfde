"""Proofs of the rules by exact integration: output distribution and acceptance rates.

The expected acceptance probabilities follow the theorems directly and share no code with the rules under
test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import scipy

from exact import (
    LARGEST,
    N_STEPS,
    Conditional,
    DisprovedError,
    Drafts,
    Probs,
    Proposal,
    RoundDistribution,
    Rule,
    Tokens,
    chain_distribution,
    decisions,
    depths,
    drafts,
    first_tokens,
    independent,
    pieces,
    question,
    round_distribution,
    rows_after,
)

# --------------------------------------------------------------------- how often nodes are accepted

Chances = Callable[[Probs, Sequence[Probs], Sequence[int]], Iterable[float]]
"""From T, the rows D of the candidates and their tokens to the chance that each is accepted when tried."""
Expected = Callable[[Drafts, Sequence[int], Probs, Sequence[int]], Probs]
"""From drafts, parents, target_probs and the order of decision to the chance of each node to be on the
path, [n_nodes]."""


def rejection_chances(lenience: float = 1.0) -> Chances:
    """Theorem 3.5 and A.5, candidate by candidate: min(W, D) / D, with W = T / l minus the mass used."""

    def chances(target: Probs, rows: Sequence[Probs], tokens: Sequence[int]) -> Iterable[float]:
        left = target / lenience
        for row, token in zip(rows, tokens, strict=True):
            both = np.minimum(left, row)
            yield both[token] / row[token]
            if both.sum() >= 1:
                return
            left = (left - both) / (1 - both.sum())

    return chances


def greedy_chances(lenience: float = 1.0) -> Chances:
    """Accept the argmax and, with lenience, tokens at least l times as probable."""

    def chances(target: Probs, rows: Sequence[Probs], tokens: Sequence[int]) -> Iterable[float]:
        best = int(np.argmax(target))
        return [float(x == best or (lenience < 1 and target[x] >= lenience * max(target))) for x in tokens]

    return chances


def k_sequential_chances(target: Probs, rows: Sequence[Probs], tokens: Sequence[int]) -> Iterable[float]:
    """SpecTr: T / (rho D), rho the root of 1 - (1 - b(rho))**k = rho b(rho)."""

    def excess(rho: float) -> float:
        b = np.minimum(rows[0], target / rho).sum()
        return float(rho * b - (1 - (1 - b) ** len(rows)))

    rho = 1.0
    if excess(rho) < -1e-15:
        rho = scipy.optimize.brentq(excess, 1.0, len(rows), xtol=1e-15, rtol=1e-15)
    return [min(1.0, target[x] / (rho * row[x])) for row, x in zip(rows, tokens, strict=True)]


def classical_chances(target: Probs, rows: Sequence[Probs], tokens: Sequence[int]) -> Iterable[float]:
    """A.2: T / (M D), M = max T / D over all tokens."""
    for row, token in zip(rows, tokens, strict=True):
        outside = target[row == 0].sum() > 0
        yield 0.0 if outside else target[token] / row[token] / max(target[row > 0] / row[row > 0])


def walking(chances: Chances) -> Expected:
    """Walk down the tree row by row; nodes with equal tokens from the root share a row."""

    def expected(tree: Drafts, parents: Sequence[int], target_probs: Probs, decided: Sequence[int]) -> Probs:
        on_path = np.zeros(len(parents))

        def visit(last: int, probability: float) -> None:
            """Walk on from `last`, the last accepted node; the other nodes of its row continue with it."""
            candidates = [node for node in decided if tree.prefixes[node][:-1] == tree.prefixes[last]]
            if candidates:
                rows, tokens = tree.probs[candidates], [tree.tokens[node] for node in candidates]
                for node, chance in zip(candidates, chances(target_probs[last], rows, tokens), strict=False):
                    if probability > 0 and chance > 0:
                        visit(node, probability * chance)
                    probability *= 1 - chance
            while last > 0:
                on_path[last] += probability
                last = parents[last]

        visit(0, 1.0)
        return on_path

    return expected


def block_acceptance(
    tree: Drafts, parents: Sequence[int], target_probs: Probs, decided: Sequence[int]
) -> Probs:
    """Sun et al. 2024: x_1 ... x_i are accepted with p_i = min(1, p_(i-1) T(x_i) / D(x_i))."""
    p = [1.0]
    for i in range(1, len(parents)):
        p.append(min(1.0, p[-1] * target_probs[i - 1][tree.tokens[i]] / tree.probs[i][tree.tokens[i]]))
    return np.array([0.0, *p[1:]])


def traversal_acceptance(
    tree: Drafts, parents: Sequence[int], target_probs: Probs, decided: Sequence[int]
) -> Probs:
    """Weng et al. 2025: a row reached with chance p gives the output with probability p.

    A candidate takes min(p T, D) of it on average over the drafts, and the next one has the rest.
    """
    on_path = np.zeros(len(parents))

    def visit(last: int, p: float, reached: float) -> float:
        """Return how often the round continues elsewhere when the row is `reached`."""
        left, tried = target_probs[last], set()
        for node in [node for node in decided if tree.prefixes[node][:-1] == tree.prefixes[last]]:
            token, both = tree.tokens[node], np.minimum(p * left, tree.probs[node])
            if token not in tried and both[token] > 0:
                reached = visit(node, both[token] / tree.probs[node][token], reached)
            tried.add(token)
            if both.sum() >= 1 or reached == 0:
                return 0.0
            left, p = (p * left - both) / max(p - both.sum(), 1e-300), (p - both.sum()) / (1 - both.sum())
        node = last
        while node > 0:
            on_path[node] += reached * p
            node = parents[node]
        return reached * (1 - p)

    visit(0, 1.0, 1.0)
    return on_path


EXPECTED: dict[str, Expected] = {
    "rejection": walking(rejection_chances()), "greedy": walking(greedy_chances()), "block": block_acceptance,
    "traversal": traversal_acceptance, "k-sequential": walking(k_sequential_chances),
    "classical": walking(classical_chances),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ the proofs

TOLERANCE = 1e-12


def prove(
    verify: Rule, parents: Sequence[int], target: Conditional, draft: Conditional, *, rule: str = "rejection",
    order: Sequence[float] | None = None, proposal: Proposal | None = None,
    reported: Conditional | None = None,
) -> RoundDistribution:  # fmt: skip
    """Contract 1 for one rule, one shape of tree and one pair of models, or DisprovedError.

    1. The first 1, 2, ..., depth + 1 tokens have the distribution of plain sampling, to 1e-12; under the
       greedy rule, that of plain greedy decoding.
    2. No token of target probability 0 has any probability at all, not even 2**-53.
    3. Each node is accepted as often as the theorems promise: a rule that wastes drafts, or the bonus token
       after them, has the right distribution too.

    `order` holds the keys by which siblings are tried; `proposal`, `reported` as in `round_distribution`.
    """
    decided = decisions(parents, order)
    if rule == "block":  # the longest accepted prefix decides alone
        decided.reverse()
    options = {} if order is None else {"order": np.array(order, dtype=float)}
    judge = partial(verify, **options | ({} if rule == "rejection" else {"rule": rule}))
    how = {"proposal": proposal, "reported": reported, "decided": decided}
    found = round_distribution(judge, parents, target, draft, **how)
    sampled = most_probable(target) if rule == "greedy" else target
    for length in range(1, max(depths(parents)) + 2):
        plain = chain_distribution(sampled, length)
        speculative = first_tokens(found.outputs, sampled, length)
        for tokens in sorted(plain.keys() | speculative.keys()):
            want, got = plain.get(tokens, 0.0), speculative.get(tokens, 0.0)
            if got > 0 and want == 0:
                raise DisprovedError(f"{tokens} has probability {got:.3g} and is impossible under the target")
            if not abs(got - want) <= TOLERANCE:
                raise DisprovedError(f"P{tokens} is {got:.15f}, the target's is {want:.15f}")
    proposal = proposal or independent(parents, draft)
    prove_acceptance(found, expected_acceptance(EXPECTED[rule], parents, target, proposal, decided))
    return found


def prove_bound(
    verify: Rule, parents: Sequence[int], target: Conditional, draft: Conditional, *, lenience: float,
    proposal: Proposal | None = None,
) -> RoundDistribution:  # fmt: skip
    """A.5 for one shape of tree and one pair of models, or DisprovedError.

    No first token has a probability above T / l, and so no n first tokens one above T / l**n; tokens of
    probability 0 stay impossible; nodes are accepted as often as with T / l instead of T.
    """
    proposal = proposal or independent(parents, draft)
    judge = partial(verify, lenience=lenience)
    found = round_distribution(judge, parents, target, draft, proposal=proposal)
    for length in range(1, max(depths(parents)) + 2):
        plain = chain_distribution(target, length)
        for tokens, got in first_tokens(found.outputs, target, length).items():
            bound = plain.get(tokens, 0.0) / lenience**length
            if not got <= (bound + TOLERANCE if bound > 0 else 0):
                raise DisprovedError(f"P{tokens} is {got:.15f}, its bound {bound:.15f}")
    if not abs(sum(found.outputs.values()) - 1) <= TOLERANCE:
        raise DisprovedError(f"the probabilities sum to {sum(found.outputs.values()):.15f}")
    walk = walking(rejection_chances(lenience))
    prove_acceptance(found, expected_acceptance(walk, parents, target, proposal, decisions(parents)))
    return found


def prove_acceptance(found: RoundDistribution, expected: Probs) -> None:
    """Check that each node is on the path with its expected probability; raises DisprovedError."""
    if not np.abs(found.accepted - expected).max() <= TOLERANCE:
        raise DisprovedError(f"nodes are accepted with {found.accepted}, expected {expected}")


def expected_acceptance(
    expected: Expected, parents: Sequence[int], target: Conditional, proposal: Proposal,
    decided: Sequence[int],
) -> Probs:  # fmt: skip
    """Probability [n_nodes] of each node to be on the path, over all draft trees."""
    on_path = np.zeros(len(parents))
    for tree in drafts(parents, proposal):
        on_path += tree.probability * expected(tree, parents, rows_after(tree, target), decided)
    return on_path


def most_probable(target: Conditional) -> Conditional:
    """Temperature 0: all mass on the argmax."""

    def conditional(prefix: Tokens) -> Probs:
        probs = target(prefix)
        return np.eye(len(probs))[np.argmax(probs)]

    return conditional


# ---------------------------------------------------------------------------------------- coupled


def plain_race(target: Conditional, noise: Probs) -> Tokens:
    """Plain sampling with shared noise, by the Gumbel-max trick: argmax of ln T - ln(-ln(1 - noise))."""
    prefix: Tokens = ()
    with np.errstate(divide="ignore", invalid="ignore"):
        for row in noise:
            probs = target(prefix)
            scores = np.where(probs > 0, np.log(probs) - np.log(-np.log1p(-row)), -np.inf)
            prefix = (*prefix, int(np.argmax(scores)))
    return prefix


def prove_coupled(
    verify: Rule, parents: Sequence[int], target: Conditional, draft: Conditional, *,
    proposal: Proposal | None = None, seed: int = 0,
) -> None:  # fmt: skip
    """Check that, with any noise, every draft tree gives plain sampling's output, as long as drafts allow."""
    rng = np.random.default_rng(seed)
    n_places, n_vocab = max(depths(parents)) + 1, len(target(()))
    for tree in drafts(parents, proposal or independent(parents, draft)):
        noise = rng.integers(N_STEPS, size=(n_places, n_vocab)) / N_STEPS
        noise[rng.random(noise.shape) < 0.1] = 0.0  # where a clock rings immediately
        uniforms = rng.random(len(parents) + 1)
        asked = question(tree, parents, target)
        path, token, _ = verify(*asked, uniforms, rule="coupled", noise=noise)
        plain = plain_race(target, noise)
        got = (*(tree.tokens[node] for node in path), token)
        if got != plain[: len(got)]:
            raise DisprovedError(f"the drafts {tree.prefixes} give {got}, plain sampling {plain}")
        if got in tree.prefixes:
            raise DisprovedError(f"the drafts {tree.prefixes} have {got}, whose last token was not accepted")


def prove_race(verify: Rule, target: Probs) -> None:
    """Integrated over its noise, the coupled rule samples `target`; DisprovedError if not.

    Token x wins if every other token's number is above a threshold that depends on that of x, and the
    threshold is found by bisection. Where every probability is 1 / integer or 0, the product of the
    thresholds' complements is a polynomial of that number, and Gauss's quadrature is exact.
    """
    n_vocab = len(target)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    for x in range(n_vocab):
        total = 0.0
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            above = 1.0
            for other in set(range(n_vocab)) - {x}:

                def wins(step: int, other: int = other, node: float = node, x: int = x) -> bool:
                    noise = np.full((1, n_vocab), LARGEST)
                    noise[0, [x, other]] = node, step / N_STEPS
                    rows = np.array([target])
                    token = verify([0], [-1], rows, 0 * rows, np.zeros(2), rule="coupled", noise=noise)[1]
                    return bool(token == x)

                above *= sum(stop - start for start, stop, won in pieces(wins) if won) / N_STEPS
            total += weight * above
        if abs(total - target[x]) > TOLERANCE:
            raise DisprovedError(f"token {x} wins with probability {total:.15f}, not {target[x]:.15f}")
