"""Formulas of the papers, as functions of numbers or arrays.

Sections, theorems and tables are those of Leviathan et al., arXiv 2211.17192. Arguments are numbers or arrays
that broadcast; numbers give a float, arrays an ndarray of float64. NaN gives NaN, except at gamma 0, where
plain decoding needs neither alpha nor cost. Values out of range and shapes that do not broadcast raise
`InputError`. Common arguments:

target_probs, draft_probs : array_like, [..., n_vocab]
    Distributions along the last axis, both standardized, with sum 1 within 1e-6. Results have the shape of
    the leading axes.
alpha : array_like, in [0, 1]
    The mean acceptance rate (Corollary 3.6).
gamma : array_like, at least 0
    Draft tokens per round; a mean over rounds need not be an integer.
cost : array_like, at least 0
    The cost coefficient c (Definition 3.7): time of a draft step over the time of a target forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.checks import check_array, check_integer, check_items, check_real
from specdec.errors import InputError

__all__ = [
    "acceptance_rate", "classical_acceptance_rate", "coupled_acceptance_rate", "divergence",
    "expected_block_tokens", "expected_operations", "expected_speedup", "expected_tokens",
    "expected_tree_tokens", "greedy_acceptance_rate", "improves", "least_speedup", "mean_acceptance_rate",
    "optimal_gamma", "oracle_speedup",
]  # fmt: skip

Array = NDArray[np.float64]

_MAX_GAMMA = 1_000_000  # limit for `optimal_gamma`, which evaluates all gammas at once
_SUM_TOLERANCE = 1e-6  # tolerance of a distribution's sum; float32 softmax rows pass


# ------------------------------------------------------------------------------- acceptance (3.2, A.2, A.5)


def acceptance_rate(
    target_probs: ArrayLike, draft_probs: ArrayLike, *, lenience: ArrayLike = 1.0
) -> float | Array:
    """Probability β that a token drawn from the draft is accepted, Theorem 3.5: Σ min(target, draft).

    With a `lenience` l in (0, 1], broadcast against the leading axes: Σ min(target / l, draft) (appendix
    A.5); 1 is the exact rule.
    """
    target, draft = _distributions(target_probs, draft_probs)
    leniences = _in_range("lenience", lenience, 0.0, 1.0, open_low=True)
    _together(target_probs=target[..., 0], lenience=leniences)
    with np.errstate(over="ignore"):  # a tiny lenience
        lenient = target / leniences[..., None]
    overlap = np.minimum(lenient, draft).sum(axis=-1)
    return _plain(np.minimum(1.0, overlap))  # rounding may exceed 1 for equal rows


def greedy_acceptance_rate(
    target_probs: ArrayLike, draft_probs: ArrayLike, *, lenience: float = 1.0
) -> float | Array:
    """Probability that a draft token is accepted when the target decodes by argmax (appendix A.5).

    Accepted are the target's argmax (the lowest id among equals) and, with a lenience l < 1, every token x
    with target(x) ≥ l · max(target). (A.5 prints ≤, a misprint: l = 1 must be the argmax alone.)
    `target_probs` are the target's distributions *before* the argmax, at temperature 1; `draft_probs` are
    point masses if the draft decodes by argmax too. `lenience` is one number in (0, 1].
    """
    target, draft = _distributions(target_probs, draft_probs)
    leniences = _in_range("lenience", lenience, 0.0, 1.0, open_low=True)
    if leniences.ndim:
        raise InputError.of("lenience", lenience, "one number", f"{leniences.shape}", "has shape")
    best = target.argmax(axis=-1)[..., None]
    accepted = np.arange(target.shape[-1]) == best
    if leniences < 1.0:
        accepted |= target >= leniences * np.take_along_axis(target, best, axis=-1)
    return _plain(np.minimum(1.0, np.where(accepted, draft, 0.0).sum(axis=-1)))


def classical_acceptance_rate(target_probs: ArrayLike, draft_probs: ArrayLike) -> float | Array:
    """Probability of acceptance under non-iterative classical rejection sampling, appendix A.2: 1 / M.

    M = max target(x) / draft(x), infinite if the target has mass outside the draft's. Never more than
    `acceptance_rate`.
    """
    target, draft = _distributions(target_probs, draft_probs)
    ratio = np.divide(draft, target, out=np.full(target.shape, np.inf), where=target > 0.0)
    return _plain(np.minimum(1.0, ratio.min(axis=-1)))


def coupled_acceptance_rate(target_probs: ArrayLike, draft_probs: ArrayLike) -> float | Array:
    """Probability that target and draft draw the same token with the same noise (`verify="coupled"`).

    Token x wins both exponential races, -ln(1 - v) over the probability, with probability
    1 / Σ_y max(target(y) / target(x), draft(y) / draft(x)); the rate is the sum over x. With β of Theorem 3.5
    it is between β / (2 - β) and β.
    """
    target, draft = _distributions(target_probs, draft_probs)
    both = (target > 0.0) & (draft > 0.0)
    ratio = np.divide(target, draft, out=np.where(target > 0.0, np.inf, 0.0), where=draft > 0.0)
    order = ratio.argsort(axis=-1)
    p, q = (np.take_along_axis(values, order, axis=-1) for values in (target, draft))
    both = np.take_along_axis(both, order, axis=-1)
    # In this order the ratio of the targets is larger for y from x on, that of the drafts before x.
    from_here = np.cumsum(p[..., ::-1], axis=-1)[..., ::-1]
    before = np.cumsum(q, axis=-1) - q
    sums = np.divide(from_here, p, out=np.full(p.shape, np.inf), where=both)
    sums += np.divide(before, q, out=np.zeros(p.shape), where=both)
    return _plain(np.minimum(1.0, (1.0 / sums).sum(axis=-1)))


def divergence(target_probs: ArrayLike, draft_probs: ArrayLike) -> float | Array:
    """D_LK of Definition 3.2: ``Σ |target − (target + draft) / 2|`` = 1 − Σ min(target, draft) (Lemma 3.3).

    In [0, 1]: 0 for equal distributions, 1 for those that share no token (Corollary 3.4).
    """
    target, draft = _distributions(target_probs, draft_probs)
    return _plain(np.minimum(1.0, 0.5 * np.abs(target - draft).sum(axis=-1)))


def mean_acceptance_rate(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """α of Corollary 3.6: the mean of `acceptance_rate` over all rows, at least one."""
    rates = np.asarray(acceptance_rate(target_probs, draft_probs))
    if not rates.size:
        raise InputError("target_probs has no rows; expected at least one")
    return float(rates.mean())


# ------------------------------------------------------------------------------------ accepted length (3.1)


def expected_tokens(alpha: ArrayLike, gamma: ArrayLike) -> float | Array:
    """Expected number of tokens per target forward pass, equation (1): (1 − α^(γ+1)) / (1 − α).

    The limit at alpha 1 is γ + 1.
    """
    alphas, gammas = _arguments(alpha=alpha, gamma=gamma)
    with np.errstate(divide="ignore", invalid="ignore"):  # alpha 0 and 1; expm1: no cancellation near 1
        tokens = -np.expm1((gammas + 1.0) * np.log(alphas)) / (1.0 - alphas)
    tokens = np.where(alphas == 1.0, gammas + 1.0, tokens)
    return _plain(np.where(gammas == 0.0, 1.0, tokens))


def expected_block_tokens(ratios: Sequence[ArrayLike], gamma: int) -> float:
    """Expected number of tokens per target forward pass under block verification of chains.

    Block verification (Sun et al. 2024, arXiv 2403.10444) keeps i draft tokens or more with E(p_i), p_i =
    min(1, p_(i-1) target / draft), over chains of the draft. Over texts of the target this is E(min(1, r_1,
    r_1 r_2, …, r_1 ⋯ r_i)) with r = draft / target of each token; Algorithm 1 has E(Π min(1, r)). At least
    `expected_tokens` of such texts, and at most gamma + 1.

    Parameters
    ----------
    ratios : sequence of array_like, [n_tokens] each
        Per text that the target sampled: the draft's over the target's probability of each token, at least 0.
    gamma : int
        At least 0. Rounds begin at every token with i - 1 tokens after it; NaN if no text is so long.
    """
    gamma = check_integer("gamma", gamma, 0)
    given = check_items("ratios", ratios, "arrays [n_tokens] of numbers, one for each text")
    texts = [_in_range(f"ratios[{i}]", text, 0.0) for i, text in enumerate(given)]
    for i, text in enumerate(texts):
        if text.ndim != 1:
            raise InputError.of(f"ratios[{i}]", text, "[n_tokens] numbers", str(text.shape), "has shape")
    if gamma > max(map(len, texts), default=0):
        return np.nan
    products = [np.ones(len(text)) for text in texts]  # r_1 ⋯ r_i, by the token where the round begins
    kept = [np.ones(len(text)) for text in texts]  # the least of them so far, at most 1
    tokens = 1.0
    for i in range(gamma):
        products = [p[: len(r) - i] * r[i:] for p, r in zip(products, texts, strict=True)]
        kept = [np.minimum(k[: len(p)], p) for k, p in zip(kept, products, strict=True)]
        n = sum(map(len, kept))
        tokens += sum(float(k.sum()) for k in kept) / n if n else np.nan
    return tokens


def expected_tree_tokens(
    alpha: ArrayLike, parents: Sequence[int] | NDArray[np.integer[Any]]
) -> float | Array:
    """Expected number of tokens per target forward pass with a draft tree.

    The children of a node are tried in order, each against the residual left by the rejected ones (SpecInfer,
    arXiv 2305.09781). The k-th is accepted with probability alpha[k] given that those before it were not,
    independently and identically at every node; the target's own token counts. A chain gives equation (1).

    Parameters
    ----------
    alpha : array_like, [] or [..., n_ranks]
        Acceptance rates in [0, 1], by rank among siblings; one number applies to every rank.
    parents : sequence of int, [n_drafts]
        Parent node of each draft token, as in `specdec.verify`.
    """
    rates = _in_range("alpha", alpha, 0.0, 1.0)
    nodes = check_array("parents", parents, "integers, [n_drafts]")
    if nodes.ndim != 1 or (nodes.size and nodes.dtype.kind not in "iu"):
        found = f"shape {nodes.shape} and dtype {nodes.dtype}"
        raise InputError.of("parents", parents, "integers, [n_drafts]", found, "has")
    ones = np.ones(rates.shape[:-1])
    reached = [ones]  # probability that a node is accepted
    left = [ones]  # and that all its children tried so far were rejected
    n_children = [0]
    for i, parent in enumerate(nodes.tolist()):
        if not 0 <= parent <= i:
            raise InputError.of(f"parents[{i}]", parent, f"0 to {i}, a node before node {i + 1}")
        rank = n_children[parent]
        if rates.ndim and rank >= rates.shape[-1]:
            found = f"{rates.shape[-1]} ranks"
            raise InputError.of("alpha", alpha, f"one for each child of node {parent}", found, "has")
        rate = rates[..., rank] if rates.ndim else rates
        reached.append(left[parent] * rate)
        left[parent] = left[parent] * (1.0 - rate)
        left.append(reached[-1])
        n_children[parent] += 1
        n_children.append(0)
    return _plain(np.sum(reached, axis=0))


# --------------------------------------------------------------------------- time and operations (3.3, 3.4)


def expected_speedup(
    alpha: ArrayLike, gamma: ArrayLike, cost: ArrayLike, verify_ratio: ArrayLike = 1.0
) -> float | Array:
    """Expected improvement factor in wall time, Theorem 3.8: (1 − α^(γ+1)) / ((1 − α)(γc + 1)).

    The theorem assumes i.i.d. acceptances, and a target that verifies γ + 1 positions in the time of one. A
    measured `verify_ratio`, t(γ + 1) / t(1) > 0, replaces the 1 in γc + 1 and removes the second assumption.
    It is ignored at gamma 0.
    """
    return speedup_of_tokens(expected_tokens(alpha, gamma), gamma, cost, verify_ratio)


def speedup_of_tokens(
    tokens: ArrayLike, gamma: ArrayLike, cost: ArrayLike, verify_ratio: ArrayLike = 1.0
) -> float | Array:
    """Like `expected_speedup`, for the expected `tokens` of a round by any rule: tokens / (γc + 1)."""
    expected, gammas, costs, ratios = _arguments(
        tokens=tokens, gamma=gamma, cost=cost, verify_ratio=verify_ratio
    )
    with np.errstate(over="ignore", invalid="ignore"):  # huge or infinite costs
        speedups = expected / (gammas * costs + ratios)
    return _plain(np.where(gammas == 0.0, expected, speedups))


def expected_operations(
    alpha: ArrayLike, gamma: ArrayLike, operations_cost: ArrayLike = 0.0
) -> float | Array:
    """Expected factor of increase in arithmetic operations, Theorem 3.11.

    (1 − α)(γĉ + γ + 1) / (1 − α^(γ+1)): operations per round, over its tokens and those of plain decoding.
    `operations_cost` is ĉ of Definition 3.10, at least 0: operations per token of the draft over the
    target's.
    """
    alphas, gammas, costs = _arguments(alpha=alpha, gamma=gamma, operations_cost=operations_cost)
    tokens = np.asarray(expected_tokens(alphas, gammas))
    with np.errstate(over="ignore", invalid="ignore"):  # huge or infinite costs
        operations = (gammas * costs + gammas + 1.0) / tokens
    return _plain(np.where(gammas == 0.0, 1.0, operations))


def improves(alpha: ArrayLike, cost: ArrayLike) -> bool | NDArray[np.bool_]:
    """Whether some gamma speeds up decoding, the condition of Corollary 3.9: α > c. False for NaN."""
    alphas, costs = _arguments(alpha=alpha, cost=cost)
    better = alphas > costs
    return better if np.ndim(better) else bool(better)


def least_speedup(alpha: ArrayLike, cost: ArrayLike) -> float | Array:
    """Lower bound of the best gamma's improvement factor, Corollary 3.9: (1 + α) / (1 + c) if α > c.

    It is Theorem 3.8 at γ = 1. If α ≤ c, the result is 1, plain decoding.
    """
    alphas, costs = _arguments(alpha=alpha, cost=cost)
    return _plain(np.maximum(1.0, (1.0 + alphas) / (1.0 + costs)))


# ----------------------------------------------------------------------------------------- choosing γ (3.5)


def optimal_gamma(
    alpha: ArrayLike, cost: ArrayLike, *, verify_ratios: ArrayLike | None = None, max_gamma: int = 256
) -> int | NDArray[np.int64]:
    """Gamma with the largest `expected_speedup` (section 3.5, Figure 3); the smallest of ties.

    Parameters
    ----------
    alpha, cost : array_like
        If one is NaN, the result is 0: plain decoding.
    verify_ratios : array_like, [..., n_rows], optional
        Measured t(M) / t(1) at entry M - 1, the target's time for M positions over that for one. Limits gamma
        to n_rows - 1. By default verification takes as long as one position (Theorem 3.8).
    max_gamma : int, default 256
        Largest gamma to consider, at most 1,000,000. It is the answer if more is always better (c = 0, or
        α = 1 > c).
    """
    alphas, costs = (array[..., None] for array in _arguments(alpha=alpha, cost=cost))
    max_gamma = check_integer("max_gamma", max_gamma, 0, _MAX_GAMMA)
    if verify_ratios is None:
        # Going from γ to γ + 1 pays while α^(γ+1) (γc + 1) > c E(tokens). The difference falls with γ, so the
        # answer is how often that holds; a maximum of quotients would drown in rounding.
        gammas = np.arange(max_gamma)
        tokens = expected_tokens(alphas, gammas)
        with np.errstate(over="ignore", invalid="ignore"):  # huge or infinite costs never pay
            pays = alphas ** (gammas + 1) * (gammas * costs + 1.0) > costs * tokens
        best = pays.sum(axis=-1)
    else:
        ratios = _in_range("verify_ratios", verify_ratios, 0.0, open_low=True)
        if not ratios.ndim or not ratios.shape[-1]:
            expected = "[..., n_rows], n_rows >= 1"
            raise InputError.of("verify_ratios", verify_ratios, expected, f"{ratios.shape}", "has shape")
        ratios = ratios[..., : max_gamma + 1]
        _together(alpha=alphas[..., 0], verify_ratios=ratios[..., 0])
        speedups = np.asarray(expected_speedup(alphas, np.arange(ratios.shape[-1]), costs, ratios))
        best = np.where(np.isnan(speedups), -np.inf, speedups).argmax(axis=-1)
    return best.astype(np.int64) if np.ndim(best) else int(best)


def oracle_speedup(alpha: ArrayLike, cost: ArrayLike = 0.0) -> float | Array:
    """Improvement factor of an oracle that drafts exactly the tokens to be accepted (section 3.5).

    E(tokens) = 1 / (1 − α), of which α / (1 − α) are drafted at cost c each, so the factor is 1 / (1 − α +
    αc), infinite at α = 1, c = 0. It exceeds the best fixed gamma by at most 58 % (the paper says ~60 %).
    """
    alphas, costs = _arguments(alpha=alpha, cost=cost)
    with np.errstate(divide="ignore"):
        return _plain(np.divide(1.0, 1.0 - alphas + alphas * costs))


# ------------------------------------------------------------------------------------------------ arguments


def _plain(values: Array) -> float | Array:
    """Return an array, or a float for a single number."""
    return values if np.ndim(values) else float(values)


def _together(**arrays: Array) -> tuple[Array, ...]:
    """Broadcast arrays named like the arguments."""
    try:
        return np.broadcast_arrays(*arrays.values())
    except (ValueError, RuntimeError):  # NumPy raises RuntimeError for many dimensions
        shapes = ", ".join(f"{name} has shape {array.shape}" for name, array in arrays.items())
        raise InputError(f"{shapes}; expected shapes that broadcast") from None


def _arguments(**values: ArrayLike) -> tuple[Array, ...]:
    """Check arguments by name, alpha to 1 and a ratio above 0, and broadcast them."""
    found = {
        name: _in_range(name, x, 0.0, 1.0 if name == "alpha" else np.inf, open_low=name == "verify_ratio")
        for name, x in values.items()
    }
    return _together(**found)


def _in_range(
    name: str, value: ArrayLike, low: float, high: float = np.inf, *, open_low: bool = False
) -> Array:
    """Check a range and convert to float64; NaN passes."""
    array = check_real(name, value)
    wrong = (array < low) | (array > high) | (open_low & (array == low))
    if wrong.any():
        bound = f"a number, {'above' if open_low else 'at least'} {low:g}"
        expected = bound if high == np.inf else f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"
        found = float(array[np.unravel_index(wrong.argmax(), wrong.shape)])
        raise InputError.of(name, found, expected)
    return array


def _distributions(target_probs: ArrayLike, draft_probs: ArrayLike) -> tuple[Array, Array]:
    arrays = []
    for name, probs in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        array = check_real(name, probs)
        if not array.ndim or not array.shape[-1]:
            raise InputError.of(name, probs, "[..., n_vocab], n_vocab >= 1", f"{array.shape}", "has shape")
        is_one = np.abs(array.sum(axis=-1) - 1.0) <= _SUM_TOLERANCE
        if not (np.all(array >= 0.0) and np.all(is_one)):
            found = "a row that is not a distribution"
            raise InputError.of(name, probs, "numbers >= 0 with sum 1", found, "has")
        arrays.append(array)
    n_tokens, n_drafted = (array.shape[-1] for array in arrays)
    if n_tokens != n_drafted:
        found = f"{n_drafted} tokens"
        raise InputError.of("draft_probs", draft_probs, f"{n_tokens}, as target_probs", found, "has")
    target, draft = _together(target_probs=arrays[0], draft_probs=arrays[1])
    return target, draft
