"""`verify` and `distribution`: the verification rules, for callers with their own models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec import _core
from specdec.checks import as_integer, check_array, check_real
from specdec.errors import InputError, shown
from specdec.verification.rules import RULES, Rule, check_rule
from specdec.verification.sampling import TRUNCATIONS, Sampling

SUM_TOLERANCE = 1e-9
"""Tolerance of a distribution's sum around 1."""


Seed: TypeAlias = int | np.random.Generator | np.random.BitGenerator | np.random.SeedSequence | None
"""Source of a call's random numbers."""


class Verification(NamedTuple):
    """Outcome of a rule on a tree of draft tokens."""

    path: list[int]
    """Accepted nodes from the root (excluded) down; a fully accepted chain is 1, 2, ..., n_drafts."""
    token: int
    """The next token: the bonus token, or the recovered token drawn from the residual distribution."""
    betas: list[float]
    """Acceptance probability at each visited position with draft tokens; see `specdec.Round.betas`."""
    tokens: list[int]
    """New tokens: those of the path, then `token`."""


def verify(
    tokens: Sequence[int] | NDArray[np.integer], target_probs: ArrayLike, draft_probs: ArrayLike, *,
    parents: Sequence[int] | NDArray[np.integer] | None = None, rule: Rule = "rejection",
    lenience: float = 1.0, order: ArrayLike | Literal["random"] | None = None,
    uniforms: ArrayLike | None = None, noise: ArrayLike | None = None, seed: Seed = None,
) -> Verification:  # fmt: skip
    """Accept or reject draft tokens so that the output has exactly the target's distribution.

    The draft tokens and node 0, the last known token, are a tree: node i is ``tokens[i - 1]``. From the root
    down, a rule accepts one of the draft tokens, or draws the next token itself and stops. With T and D the
    target's and the draft's distributions at a position:

    - "rejection": a draft token x is accepted with probability min(1, T(x) / D(x)); after a rejection the
      next token comes from norm(max(0, T - D)) (Leviathan et al., Algorithm 1). Several draft tokens for one
      position are tried in order, each against the residual left by the rejected ones (SpecInfer, arXiv
      2305.09781).
    - "greedy": the argmax of T, drafted or not.
    - "coupled": the token that T draws under `noise`, drafted or not, by an exponential race (Gumbel-max).
      The same noise gives the same tokens for every draft, and without one.
    - "block": judges a chain as a whole; accepts at least as many tokens on average as "rejection" (Sun et
      al. 2024, arXiv 2403.10444, Algorithm 2).
    - "traversal": judges a tree from its leaves to its root (Weng et al. 2025, arXiv 2505.12398); on a chain
      it is "block", and where the draft chooses its tokens instead of drawing them "rejection".
    - "k-sequential": SpecTr's selection among k independent draws from one D (Sun et al. 2023, arXiv
      2310.15141).
    - "classical": rejection sampling without iteration, T(x) / (M D(x)) with M = max T / D (appendix A.2):
      exact, and worse than "rejection"; for comparison.

    Nodes with the same tokens from the root are one position, and the children of all of them are its draft
    tokens. So K sampled sequences need no merging, and each counts as a draw.

    Parameters
    ----------
    tokens : sequence of int, [n_drafts]
        The draft tokens. May be empty: then one token is drawn from the target.
    target_probs : array_like, [n_drafts + 1, n_vocab]
        Row i is the target's distribution after node i.
    draft_probs : array_like, [n_drafts, n_vocab]
        Row i is exactly the distribution that ``tokens[i]`` was drawn from, after any temperature, top-k or
        nucleus. Draft tokens for one position are independent draws. With "rejection" and "traversal" each
        may also be conditional on earlier ones, in draw order, as in sampling without replacement. A token
        that was chosen, not drawn, has a point mass.
    parents : sequence of int, [n_drafts], optional
        Parent node of each draft token, 0 for the last known token; parents precede their children. By
        default a chain.
    rule : {"rejection", "greedy", "coupled", "block", "traversal", "k-sequential", "classical"}
    lenience : float, default 1.0
        l of appendix A.5, in (0, 1]; below 1 for "rejection" and "greedy" only. "rejection" compares with
        T(x) / l: no token is more probable than T(x) / l, whatever the number of draft tokens. "greedy"
        accepts x if T(x) >= l max T (the paper prints <=, a misprint).
    order : "random" or array_like, [n_drafts], optional
        Draft tokens for one position are tried in ascending order of these numbers, by default in node order.
        "random" draws them (SpecInfer's order). They must not depend on the tokens.
    uniforms : array_like, [n_drafts + 1], optional
        Random numbers in [0, 1): entry i decides ``tokens[i]``, the last one draws the final token. They must
        be independent of those that drew the draft tokens.
    noise : array_like, [max_depth + 1, n_vocab], optional
        For "coupled": uniforms in [0, 1), one row per position from the root.
    seed : int, or Generator, BitGenerator or SeedSequence of numpy.random, optional
        Source of random numbers that are not given: ``numpy.random.default_rng(seed)``. Over several rounds
        pass one generator, not the same number repeatedly.

    Returns
    -------
    Verification
        ``path``, ``token``, ``betas`` and ``tokens``.

    Raises
    ------
    InputError
        If an argument is invalid, shapes disagree, a row is not a distribution (negative, not finite, or its
        sum more than 1e-9 from 1), a draft token has probability 0 where it was drawn from, or `seed` is
        given and nothing is left to draw.

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
    nodes = np.arange(n_drafts)
    if parents is not None:
        nodes = _integers(parents, "parents", n_drafts, 0, max(n_drafts, 1), "nodes")
    draft = _probabilities(draft_probs, "draft_probs", shape=(n_drafts, n_vocab))

    depths = np.zeros(n_drafts + 1, dtype=int)
    for i in range(n_drafts):
        if nodes[i] > i:
            expected = f"a node before {i + 1}"
            raise InputError.of(f"parents[{i}]", int(nodes[i]), expected)
        if draft[i, drafts[i]] == 0:
            expected = f"above 0: token {drafts[i]} was drawn from this row"
            raise InputError.of(f"draft_probs[{i}, {drafts[i]}]", 0, expected)
        depths[i + 1] = depths[nodes[i]] + 1
    check_rule("rule", rule, lenience, RULES)
    if noise is not None and rule != "coupled":
        raise InputError.of("noise", noise, f"None with rule={shown(rule)}", "given")
    if isinstance(order, str) and order != "random":
        raise InputError.of("order", order, "'random', numbers, or None")

    needs_noise, draws_order = rule == "coupled", isinstance(order, str)
    draws_something = uniforms is None or (needs_noise and noise is None) or draws_order
    if seed is not None and not draws_something:
        raise InputError("both uniforms and seed are given; expected one of them")
    generator = _generator(seed)
    numbers = _uniforms(uniforms, "uniforms", (n_drafts + 1,), generator)
    noises = None
    if needs_noise:
        noises = _uniforms(noise, "noise", (depths.max() + 1, n_vocab), generator)
    if draws_order:
        keys = generator.random(n_drafts)
    elif order is not None:
        keys = check_real("order", order)
        if keys.shape != (n_drafts,) or np.any(np.isnan(keys)):
            raise _of_shape("order", keys, f"({n_drafts},), and no NaN")

    # The core's arrays have a row for the root too, which was not drafted.
    path, token, betas = _core.verify(
        [0, *drafts.tolist()], [-1, *nodes.tolist()], target, np.vstack([np.zeros((1, n_vocab)), draft]),
        np.concatenate([[0.0], numbers]), rule=rule, lenience=lenience,
        order=None if order is None else np.concatenate([[0.0], keys]), noise=noises,
    )  # fmt: skip
    return Verification(path, token, betas, [*(int(drafts[node - 1]) for node in path), token])


def _uniforms(
    given: ArrayLike | None, name: str, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Check given numbers in [0, 1), or draw them."""
    if given is None:
        return generator.random(shape)
    numbers = check_real(name, given)
    if numbers.shape != shape:
        raise _of_shape(name, numbers, str(shape))
    outside = np.argwhere(~((numbers >= 0) & (numbers < 1)))
    if len(outside):
        where = ", ".join(map(str, outside[0]))
        raise InputError.of(f"{name}[{where}]", float(numbers[tuple(outside[0])]), "a number in [0, 1)")
    return numbers


def distribution(
    logits: ArrayLike, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
    min_p: float | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return each token's probability under these sampling settings, in the shape of `logits`.

    Applies softmax, top-k, nucleus on the rest, and min-p, so sampling reduces to drawing from the result
    (Leviathan et al., section 2.2). Ties go to the lowest id.

    Parameters
    ----------
    logits : array_like, [n_vocab] or [n_rows, n_vocab]
        Converted to float32. -inf excludes a token.
    temperature : float
        Divides the logits; 0 puts all mass on the largest.
    top_k, top_p, min_p : number, optional
        See `specdec.Sampling`.

    Raises
    ------
    InputError
        If a setting is out of range, or a row has NaN, +inf or no finite entry.
    """
    settings = Sampling(temperature, top_k, top_p, min_p).core()
    options = {name: settings[name] for name in ("temperature", *TRUNCATIONS)}
    with np.errstate(over="ignore"):  # infinities are refused below
        rows = check_real("logits", logits).astype(np.float32)
    if rows.ndim not in (1, 2) or rows.shape[-1] == 0:
        raise _of_shape("logits", rows, "(n_vocab,) or (n_rows, n_vocab), n_vocab >= 1")
    if np.any(np.isnan(rows)) or np.any(rows == np.inf):
        raise InputError.of("logits", rows, "numbers below infinity", "NaN or +inf (as float32)", "has")
    if np.any(np.all(rows == -np.inf, axis=-1)):
        raise InputError.of("logits", rows, "at least one finite entry per row", "a row without any", "has")
    probs = np.empty(rows.shape)
    for row in np.ndindex(rows.shape[:-1]):
        probs[row] = _core.distribution(rows[row], **options)
    return probs


def _generator(seed: Seed) -> np.random.Generator:
    random = np.random
    if seed is None or isinstance(seed, random.Generator | random.BitGenerator | random.SeedSequence):
        return random.default_rng(seed)
    number = as_integer(seed)
    if number is None or number < 0:
        expected = "an integer, 0 or more, or a Generator, BitGenerator or SeedSequence of NumPy"
        raise InputError.of("seed", seed, expected)
    return random.default_rng(number)


def _probabilities(values: ArrayLike, name: str, shape: tuple[int, int] | None = None) -> NDArray[np.float64]:
    """Check rows of probabilities, [n_rows, n_vocab]."""
    rows = check_real(name, values)
    if shape is not None and shape[0] == 0 and rows.size == 0:
        return np.empty(shape)
    if shape is not None and rows.shape != shape:
        raise _of_shape(name, rows, f"{shape}, one row fewer than target_probs")
    if rows.ndim != 2 or 0 in rows.shape:
        raise _of_shape(name, rows, "(n_rows, n_vocab), both at least 1")
    for i, row in enumerate(rows):
        if not np.all(np.isfinite(row)):
            raise InputError.of(f"{name}[{i}]", row, "probabilities", "NaN or infinite entries", "has")
        if np.any(row < 0):
            token = int(np.argmin(row))
            raise InputError.of(f"{name}[{i}, {token}]", float(row[token]), "probabilities, 0 or more")
        if abs(row.sum() - 1) > SUM_TOLERANCE:
            expected = f"1 within {SUM_TOLERANCE} (in float64)"
            raise InputError.of(f"{name}[{i}]", row, expected, f"{row.sum():.12g}", "sums to")
    return rows


def _of_shape(name: str, array: NDArray[Any], expected: str) -> InputError:
    return InputError.of(name, array, expected, str(array.shape), "has shape")


def _integers(values: object, name: str, length: int, low: int, stop: int, what: str) -> NDArray[np.int64]:
    """Check `values` as [length] integers with low <= value < stop."""
    array = check_array(name, values, "integers")
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputError.of(name, values, "integers", str(array.dtype), "has dtype")
    if array.shape != (length,):
        raise _of_shape(name, array, f"({length},), one fewer than the rows of target_probs")
    bad = np.flatnonzero((array < low) | (array >= stop))
    if len(bad):
        raise InputError.of(f"{name}[{bad[0]}]", int(array[bad[0]]), f"{what} ({low} to {stop - 1})")
    return array.astype(np.int64)
