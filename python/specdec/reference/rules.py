"""Verification rules: which draft tokens are accepted, and the distribution after a rejection.

A rule for one position maps the target's distribution T and the candidates for the next token to the accepted
candidate, or to None and the distribution of the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probs = NDArray[np.float64]


class Candidate(NamedTuple):
    """A draft token for the next position."""

    token: int
    draft: Probs
    """[n_vocab], the distribution D that it was drawn from."""
    uniform: float
    """Its own random number in [0, 1)."""


Choice = tuple[int | None, Probs]
"""(accepted candidate or None, distribution of the next token if None, [n_vocab])."""


# ------------------------------------------------------------------------------------------------ sampling


def sample(probs: ArrayLike, uniform: float) -> int:
    """Return the first token, in order of id, whose cumulative mass exceeds `uniform`.

    A token without mass is never drawn. If rounding leaves the total at or below `uniform`, the last token
    with mass is drawn.
    """
    probs = np.asarray(probs, dtype=np.float64)
    token = np.searchsorted(np.cumsum(probs), uniform, side="right")
    return int(token) if token < len(probs) else int(np.flatnonzero(probs)[-1])


# ------------------------------------------------------------------------------- the standard rule (2.3, A.5)


def accept_probability(target: Probs, draft: Probs, token: int) -> float:
    """min(1, target / draft) of a token drawn from `draft` (Leviathan, section 2.3)."""
    if target[token] >= draft[token]:
        return float(target[token] > 0)
    return float(target[token] / draft[token])


def residual(target: Probs, draft: Probs) -> Probs:
    """norm(max(0, target - draft)), the distribution after a rejection, or `target` if that is empty.

    It is empty only for equal distributions, which reject a draft token only by rounding.
    """
    left = np.maximum(0.0, target - draft)
    mass = left.sum()
    return left / mass if mass > 0 else target


def lenient_residual(target: Probs, draft: Probs) -> Probs:
    """max(0, target - draft) / P(rejection), for a `target` of mass 1 or more.

    This keeps the bound: a token has min(target, draft) by acceptance, plus P(rejection) times its value
    here.
    """
    rejected = 1.0 - np.minimum(target, draft).sum()
    left = np.maximum(0.0, target - draft)
    return left / rejected if rejected > 0 and left.any() else target


def rejection(target: Probs, candidates: Sequence[Candidate], *, lenience: float = 1.0) -> Choice:
    """Iterative speculative sampling: each candidate against the residual of those before it.

    Stratos' note, section 2; with one candidate it is Leviathan's rule, section 2.3. With lenience l < 1
    (appendix A.5) the target is T / l, which bounds every token's probability.
    """
    left = target / lenience
    for i, (token, draft, uniform) in enumerate(candidates):
        if uniform < accept_probability(left, draft, token):
            return i, target
        left = residual(left, draft) if lenience == 1 else lenient_residual(left, draft)
    return None, left / left.sum() if lenience < 1 else left


# ------------------------------------------------------------------------------------------ the other rules


def greedy(target: Probs, candidates: Sequence[Candidate], *, lenience: float = 1.0) -> Choice:
    """The most probable token y; with lenience l < 1, any token with at least l times its probability.

    Stratos' note, appendix A; lenience as in Leviathan, A.5, whose printed T(x) <= l T(y) would accept all
    but the best.
    """
    best = int(np.argmax(target))
    for i, (token, _, _) in enumerate(candidates):
        if token == best or (lenience < 1 and target[token] >= lenience * target[best]):
            return i, target
    return None, point(best, len(target))


def coupled(target: Probs, candidates: Sequence[Candidate], *, noise: Probs) -> Choice:
    """The token that plain sampling of the target draws with the same noise, if it is a candidate."""
    winner = race(target, noise)
    for i, (token, _, _) in enumerate(candidates):
        if token == winner:
            return i, target
    return None, point(winner, len(target))


def race(target: Probs, noise: Probs) -> int:
    """Sample `target` by a race of independent exponential clocks, token x at rate target(x).

    The clocks are -ln(1 - noise) / target; their negated logarithms are log-probabilities plus Gumbel noise,
    so this is the Gumbel-max trick. Ties go to the lowest id.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return int(np.argmin(np.where(target > 0, -np.log1p(-noise) / target, np.inf)))


def k_sequential(target: Probs, candidates: Sequence[Candidate]) -> Choice:
    """SpecTr's k-sequential selection (Sun et al. 2023, arXiv 2310.15141) among k draws from one D.

    Each is accepted with min(1, T / (rho D)), so one of them is with probability 1 - (1 - b)**k, where b =
    sum(min(D, T / rho)). The token x then has min(D, T / rho)(x) / b times that, and the residual is the rest
    of T. rho is the smallest value that leaves a nonnegative rest.
    """
    if not candidates:
        return None, target
    k, draft = len(candidates), candidates[0].draft
    rho = smallest_rho(target, draft, k)
    for i, (token, _, uniform) in enumerate(candidates):
        if uniform * draft[token] * rho < target[token]:
            return i, target
    common = np.minimum(draft, target / rho)
    b = common.sum()
    return None, residual(target, common * (1 - (1 - b) ** k) / b if b > 0 else common)


def smallest_rho(target: Probs, draft: Probs, k: int) -> float:
    """The smallest rho in [1, k] with 1 - (1 - b)**k <= rho b, by bisection.

    The difference of the sides grows with rho, and rho = k suffices. Any larger rho is exact too. 1e-14
    absorbs rounding: with T = D both sides are 1 within rho - 1 squared, and the root is 1.
    """

    def enough(rho: float) -> bool:
        b = np.minimum(draft, target / rho).sum()
        return bool(1 - (1 - b) ** k <= rho * b + 1e-14)

    low, high = 1.0, float(k)
    if enough(low):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def classical(target: Probs, candidates: Sequence[Candidate]) -> Choice:
    """Textbook rejection sampling, once per candidate (Leviathan, A.2: for comparison)."""
    for i, (token, draft, uniform) in enumerate(candidates):
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.max(np.where(target > 0, target / draft, 0.0))  # M, infinite if T has mass outside D
        if uniform < target[token] / (bound * draft[token]):
            return i, target
    return None, target


def point(token: int, n_vocab: int) -> Probs:
    """A distribution with all mass on one token."""
    mass: Probs = np.eye(n_vocab)[token]
    return mass


# --------------------------------------------------------------------------------------- a chain, a tree


def block(
    tokens: Sequence[int], target_probs: Probs, draft_probs: Probs, uniforms: Sequence[float] | Probs
) -> tuple[int, Probs]:
    """Block verification of a chain (Sun et al. 2024, arXiv 2403.10444, Algorithm 2).

    Returns tau, the length of the longest accepted prefix of the chain, and the distribution of the next
    token, [n_vocab].
    """
    gamma = len(tokens) - 1
    p = [1.0]
    for i in range(1, gamma + 1):
        p.append(min(1.0, p[i - 1] * target_probs[i - 1][tokens[i]] / draft_probs[i][tokens[i]]))
    rest = [np.maximum(0.0, p[i] * target_probs[i] - draft_probs[i + 1]) for i in range(gamma)]
    tau = 0
    for i in range(1, gamma + 1):
        if i == gamma:
            h = p[i]
        else:
            mass = rest[i].sum()
            h = mass / (mass + (1 - p[i])) if mass > 0 or p[i] < 1 else 1.0
        if uniforms[i] < h:
            tau = i
    if tau == gamma or not rest[tau].any():
        return tau, target_probs[tau]
    return tau, rest[tau] / rest[tau].sum()


def traversal(
    tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs,
    uniforms: Sequence[float] | Probs, order: Sequence[float] | Probs | None,
) -> tuple[int, Probs]:  # fmt: skip
    """Traversal Verification of a tree (Weng et al. 2025, arXiv 2505.12398).

    A row with chance p gives the output with probability p. Rows are judged from the leaves to the root: the
    row itself gets the part of p T that its draft tokens do not use. Where p is 1, a chosen draft token with
    only chosen ones below is decided by itself, as under rejection, with the same result.

    Returns the last node of the accepted path and the distribution of the next token, [n_vocab].
    """

    def all_chosen(row: Sequence[int]) -> bool:
        below = children(row, parents)
        chosen = all(draft_probs[node][tokens[node]] == 1 for node in below)
        return chosen and (not below or all_chosen(below))

    def visit(row: Sequence[int], node: int, p: float) -> tuple[int, Probs] | None:
        """`node` is the first of the row that is tried; None if the row does not give the output."""
        left, nodes = target_probs[min(row)], children(row, parents, order)
        for child in nodes:
            equal = [other for other in nodes if tokens[other] == tokens[child]]
            draft = draft_probs[child]
            chance = min(1.0, p * left[tokens[child]] / draft[tokens[child]])
            if equal[0] != child:
                chance = 0.0  # the first of them is rejected
            elif p == 1 and draft[tokens[child]] == 1 and all_chosen(equal):
                chance = float(uniforms[child] < chance)
            if chance > 0:
                output = visit(equal, child, chance)
                if output is not None:
                    return output
            rest = np.maximum(0.0, p * left - draft)
            mass = rest.sum()
            left = rest / mass if mass > 0 else left
            p = mass / (mass + (1 - p)) if mass > 0 or p < 1 else 1.0
        return (node, left) if uniforms[node] < p else None

    output = visit([0], 0, 1.0)
    assert output is not None, "the root has the chance 1"
    return output


def verify(
    tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs,
    uniforms: Sequence[float] | Probs, *, rule: str = "rejection", lenience: float = 1.0,
    order: Sequence[float] | Probs | None = None, noise: Probs | None = None,
) -> tuple[list[int], int, list[float]]:  # fmt: skip
    """Apply a rule to a draft tree from the root down: SpecInfer's walk (Stratos' note, section 2.1).

    A *row* of the tree is a token sequence from the root with all nodes that share it (`Round.rows`). At each
    row the children of all its nodes are the candidates. The walk continues at the row of an accepted
    candidate. If none is accepted, the rule gives the distribution to sample from; at a leaf it is the
    target's (the bonus token). On a chain with "rejection" this is Algorithm 1.

    Parameters
    ----------
    tokens, parents : sequence of int, [n_nodes]
        Node 0 is the root, the last committed token (``tokens[0]`` unused, ``parents[0] == -1``); every other
        node follows its parent.
    target_probs, draft_probs : ndarray of float64, [n_nodes, n_vocab]
        The target's distribution after each node, and the distribution that drew each node (row 0 unused).
    uniforms : sequence of float, [n_nodes + 1]
        In [0, 1): entry i decides node i, the last one draws the final token, entry 0 is unused.
    rule : {"rejection", "greedy", "coupled", "block", "traversal", "k-sequential", "classical"}
        "block" takes chains only; "k-sequential" needs candidates of a row drawn from one distribution.
    lenience : float
        In (0, 1]; for "rejection" and "greedy".
    order : sequence of float, [n_nodes], optional
        Candidates are tried by ascending key, then by index; keys must not depend on the tokens.
    noise : ndarray of float64, [max_depth + 1, n_vocab]
        For "coupled": row d has the numbers in [0, 1) for the token after d accepted ones.

    Returns
    -------
    path : list of int
        Accepted nodes from the root (excluded) down.
    token : int
        The next token: recovered or bonus.
    betas : list of float
        Acceptance probability at each visited row with candidates, root included; see `specdec.Round.betas`.
    """
    if rule == "block":
        tau, rest = block(tokens, target_probs, draft_probs, uniforms)
        passed = range(min(tau + 1, len(tokens) - 1))
        betas = [float(np.minimum(target_probs[i], draft_probs[i + 1]).sum()) for i in passed]
        return list(range(1, tau + 1)), sample(rest, uniforms[len(tokens)]), betas
    if rule == "traversal":
        end, rest = traversal(tokens, parents, target_probs, draft_probs, uniforms, order)
        path, row = path_to(end, parents), [0]
        betas = []
        for last in [*path, None]:
            nodes = children(row, parents)
            if len(nodes) == 1:
                betas.append(overlap(target_probs[min(row)], draft_probs[nodes[0]], rule, lenience))
            elif nodes:
                betas.append(float(last is not None))
            row = [node for node in nodes if last is not None and tokens[node] == tokens[last]]
        return path, sample(rest, uniforms[len(tokens)]), betas

    row, last, depth = [0], 0, 0  # nodes of the row; last accepted node; accepted so far
    betas = []
    while True:
        target = target_probs[min(row)]
        nodes = children(row, parents, order)
        candidates = [Candidate(tokens[node], draft_probs[node], uniforms[node]) for node in nodes]
        accepted, otherwise = choose(rule, target, candidates, lenience, noise, depth)
        if len(nodes) == 1 and rule != "coupled":
            betas.append(overlap(target, draft_probs[nodes[0]], rule, lenience))
        elif nodes:
            betas.append(float(accepted is not None))
        if accepted is None:
            return path_to(last, parents), sample(otherwise, uniforms[len(tokens)]), betas
        last, depth = nodes[accepted], depth + 1
        row = [node for node in nodes if tokens[node] == tokens[last]]


def choose(
    rule: str, target: Probs, candidates: Sequence[Candidate], lenience: float, noise: Probs | None,
    depth: int,
) -> Choice:  # fmt: skip
    """Apply a rule at one row."""
    if rule in ("rejection", "greedy"):
        return (rejection if rule == "rejection" else greedy)(target, candidates, lenience=lenience)
    if rule == "coupled" and noise is not None:
        return coupled(target, candidates, noise=noise[depth])
    if rule == "k-sequential":
        return k_sequential(target, candidates)
    if rule == "classical":
        return classical(target, candidates)
    raise ValueError(f"rule is {rule!r}, with{'out' if noise is None else ''} noise")


def overlap(target: Probs, draft: Probs, rule: str, lenience: float) -> float:
    """Probability that a token drawn from `draft` is accepted, as reported by `verify`.

    sum(min(target / lenience, draft)) (Leviathan, Theorem 3.5 and A.5); for "greedy", the mass of `draft` on
    accepted tokens; for "classical", 1 / max(target / draft) (A.2).
    """
    if rule == "classical":
        ratios = np.divide(draft, target, out=np.full(target.shape, np.inf), where=target > 0)
        return float(min(1.0, ratios.min()))
    if rule == "greedy":
        best = int(np.argmax(target))
        accepted = target >= lenience * target[best] if lenience < 1 else np.arange(len(target)) == best
        return float(draft[accepted].sum())
    return float(np.minimum(target / (lenience if rule == "rejection" else 1.0), draft).sum())


def children(
    row: Sequence[int], parents: Sequence[int], order: Sequence[float] | Probs | None = None
) -> list[int]:
    """Candidates of a row: the children of its nodes, in the order in which they are tried."""
    nodes = [node for node in range(1, len(parents)) if parents[node] in row]
    if order is not None:
        nodes.sort(key=lambda node: order[node])
    return nodes


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Nodes from the root (excluded) down to `node`."""
    return [*path_to(parents[node], parents), node] if node > 0 else []
