"""The rejection rule and the distributions it compares, for callers with models of their own.

The rule knows no model: distributions and random numbers go in, an accepted path and a token come out. So it
serves whatever runs ahead on a cheap guess of an expensive distribution: stochastic speculative execution
(Leviathan et al., arXiv 2211.17192, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec import _core
from specdec.errors import InputError
from specdec.sampling import Sampling

__all__ = ["SUM_TOLERANCE", "Verification", "distribution", "verify"]

SUM_TOLERANCE = 1e-9
"""How far the sum of a distribution may be from 1."""


class Verification(NamedTuple):
    """What the rejection rule made of a tree of drafts."""

    path: list[int]
    """Accepted nodes from the root (excluded) down; a chain that is accepted whole is 1, 2, ..., n_drafts."""
    token: int
    """The token after them, drawn from the target's distribution or from what rejections left of it."""
    betas: list[float]
    """Chance of acceptance of the first child of every node passed that has children:
    sum(min(target, draft)) (Leviathan, Theorem 3.5)."""
    tokens: list[int]
    """The new tokens: those of the path, then `token`."""


def verify(
    tokens: Sequence[int] | NDArray[np.integer],
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    *,
    parents: Sequence[int] | NDArray[np.integer] | None = None,
    uniforms: ArrayLike | None = None,
    seed: int | np.random.Generator | None = None,
) -> Verification:
    """Accept or reject drafts so that what comes out is distributed exactly as the target.

    A draft is accepted with probability min(1, target / draft), and after a rejection the next token comes
    from norm(max(0, target - draft)) (Leviathan et al., Algorithm 1). Of several drafts for one position,
    each is held against what the rejected ones before it left of the target (SpecInfer, arXiv 2305.09781).

    The drafts and node 0, the last known token, make a tree: node i is ``tokens[i - 1]``.

    Parameters
    ----------
    tokens : sequence of int, [n_drafts]
        The drafts. May be empty: then one token is drawn from the target.
    target_probs : array_like, [n_drafts + 1, n_vocab]
        Row i is the target's distribution after node i.
    draft_probs : array_like, [n_drafts, n_vocab]
        Row i is the distribution that ``tokens[i]`` was drawn from, after any temperature, top-k or nucleus.
        The result is exact only if it is that very one, and if drafts for one position were drawn
        independently of each other. A draft that was chosen, not drawn, is a point mass.
    parents : sequence of int, [n_drafts], optional
        Parent node of each draft, 0 for the last known token; parents come before their children, and the
        children of one node are tried in this order. By default every draft follows the one before it.
    uniforms : array_like, [n_drafts + 1], optional
        Random numbers in [0, 1): entry i decides ``tokens[i]``, the last one draws the final token. They must
        not have been used to draw the drafts.
    seed : int or numpy.random.Generator, optional
        Where the random numbers come from when `uniforms` is not given: ``numpy.random.default_rng(seed)``.
        Over several rounds pass one generator, not the same number again.

    Returns
    -------
    Verification
        ``path``, ``token``, ``betas`` and ``tokens``.

    Raises
    ------
    InputError
        If shapes disagree, a token or parent is out of range, a row is no distribution (negative, not finite,
        or its sum more than 1e-9 from 1), a draft has probability 0 in the distribution it was drawn from,
        a uniform is outside [0, 1), or both `uniforms` and `seed` are given.

    Examples
    --------
    >>> import specdec
    >>> target, draft = [[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0]]
    >>> specdec.verify([0], target, draft, uniforms=[0.3, 0.9])
    Verification(path=[1], token=1, betas=[0.5], tokens=[0, 1])
    >>> specdec.verify([0], target, draft, uniforms=[0.6, 0.9])
    Verification(path=[], token=1, betas=[0.5], tokens=[1])
    """
    target = _probabilities(target_probs, "target_probs")
    n_drafts, n_vocab = len(target) - 1, target.shape[1]
    drafts = _integers(tokens, "tokens", n_drafts, 0, n_vocab, "ids below n_vocab")
    if parents is None:
        nodes = np.arange(n_drafts)
    else:
        nodes = _integers(parents, "parents", n_drafts, 0, max(n_drafts, 1), "nodes")
    draft = _probabilities(draft_probs, "draft_probs", shape=(n_drafts, n_vocab))

    for i in range(n_drafts):
        if nodes[i] > i:
            raise InputError(
                f"parents[{i}] is {nodes[i]}; draft {i} is node {i + 1} and its parent must come before"
            )
        if draft[i, drafts[i]] == 0:
            raise InputError(
                f"draft_probs[{i}, {drafts[i]}] is 0, but token {drafts[i]} was drawn from this row"
            )

    if uniforms is None:
        numbers = _generator(seed).random(n_drafts + 1)
    elif seed is not None:
        raise InputError("both uniforms and seed are given; expected one of them")
    else:
        numbers = _real(uniforms, "uniforms")
        if numbers.shape != (n_drafts + 1,):
            raise InputError(
                f"uniforms has shape {numbers.shape}; expected ({n_drafts + 1},), one more than tokens"
            )
        outside = np.flatnonzero(~((numbers >= 0) & (numbers < 1)))
        if len(outside):
            raise InputError(f"uniforms[{outside[0]}] is {numbers[outside[0]]}; expected a number in [0, 1)")

    # The core's arrays have a row for the root as well, which was not drafted.
    path, token, betas = _core.verify(
        [0, *drafts.tolist()],
        [-1, *nodes.tolist()],
        target,
        np.vstack([np.zeros((1, n_vocab)), draft]),
        np.concatenate([[0.0], numbers]),
    )
    return Verification(path, token, betas, [*(int(drafts[node - 1]) for node in path), token])


def distribution(
    logits: ArrayLike, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> NDArray[np.float64]:
    """Probabilities that sampling with these settings gives to each token.

    Softmax, then top-k, then nucleus on what top-k left, so that every way of sampling is plain sampling from
    the result (Leviathan et al., section 2.2). Ties go to the lowest id.

    Parameters
    ----------
    logits : array_like, [n_vocab] or [n_rows, n_vocab]
        Used in float32. -inf excludes a token.
    temperature : float
        Divides the logits; 0 puts all mass on the largest.
    top_k : int, optional
        Keep exactly this many most probable tokens.
    top_p : float, optional
        Keep the smallest set of most probable tokens whose mass is at least this.

    Returns
    -------
    ndarray of float64, of the shape of `logits`
        Every row sums to 1.

    Raises
    ------
    InputError
        If a setting is out of range, or a row has NaN, +inf or no finite entry.
    """
    temperature, core_top_k, core_top_p = Sampling(temperature, top_k, top_p).core()
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        rows = _real(logits, "logits").astype(np.float32)
    if rows.ndim not in (1, 2) or rows.shape[-1] == 0:
        raise InputError(
            f"logits has shape {rows.shape}; expected (n_vocab,) or (n_rows, n_vocab), n_vocab >= 1"
        )
    if np.any(np.isnan(rows)) or np.any(rows == np.inf):
        raise InputError("logits has NaN or +inf (as float32)")
    if np.any(np.all(rows == -np.inf, axis=-1)):
        raise InputError("logits has a row without any finite entry")
    probs = np.empty(rows.shape)
    for row in np.ndindex(rows.shape[:-1]):
        probs[row] = _core.distribution(
            rows[row], temperature=temperature, top_k=core_top_k, top_p=core_top_p
        )
    return probs


def _generator(seed: int | np.random.Generator | None) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise InputError(f"seed is {seed!r}; expected an integer, 0 or more, or a Generator") from error


def _real(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """`values` as a contiguous array of float64; complex numbers, text and ragged lists are refused."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} is not a rectangular array: {error}") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} has dtype {array.dtype}; expected real numbers")
    return np.asarray(array, dtype=np.float64, order="C")


def _probabilities(values: ArrayLike, name: str, shape: tuple[int, int] | None = None) -> NDArray[np.float64]:
    """Rows of probabilities, [n_rows, n_vocab], checked."""
    rows = _real(values, name)
    if shape is not None and shape[0] == 0 and rows.size == 0:
        return np.empty(shape)
    if shape is not None and rows.shape != shape:
        raise InputError(f"{name} has shape {rows.shape}; expected {shape}, as target_probs has one row more")
    if rows.ndim != 2 or 0 in rows.shape:
        raise InputError(f"{name} has shape {rows.shape}; expected (n_rows, n_vocab), both at least 1")
    for i, row in enumerate(rows):
        if not np.all(np.isfinite(row)):
            raise InputError(f"{name}[{i}] has NaN or infinite entries; expected probabilities")
        if np.any(row < 0):
            token = int(np.argmin(row))
            raise InputError(f"{name}[{i}, {token}] is {row[token]}; expected probabilities, 0 or more")
        if abs(row.sum() - 1) > SUM_TOLERANCE:
            raise InputError(
                f"{name}[{i}] sums to {row.sum():.12g}; expected 1 within {SUM_TOLERANCE} (in float64)"
            )
    return rows


def _integers(values: object, name: str, length: int, low: int, stop: int, what: str) -> NDArray[np.int64]:
    """`values` as [length] integers of low <= value < stop."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} has dtype {array.dtype}; expected integers")
    if array.shape != (length,):
        raise InputError(
            f"{name} has shape {array.shape}; expected ({length},), as target_probs has {length + 1} rows"
        )
    bad = np.flatnonzero((array < low) | (array >= stop))
    if len(bad):
        raise InputError(f"{name}[{bad[0]}] is {array[bad[0]]}; expected {what} ({low} to {stop - 1})")
    return array.astype(np.int64)
