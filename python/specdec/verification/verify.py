"""The rules of verification and the distributions they compare, for callers with models of their own."""

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
"""How far the sum of a distribution may be from 1."""


Seed: TypeAlias = int | np.random.Generator | np.random.BitGenerator | np.random.SeedSequence | None
"""What the random numbers of a call come from."""


class Verification(NamedTuple):
    """What a rule made of a tree of drafts."""

    path: list[int]
    """Accepted nodes from the root (excluded) down; a chain that is accepted whole is 1, 2, ..., n_drafts."""
    token: int
    """The token after them, drawn from the target's distribution or from what rejections left of it."""
    betas: list[float]
    """Chance that a draft is accepted, at each position passed that has drafts; see `specdec.Round.betas`."""
    tokens: list[int]
    """The new tokens: those of the path, then `token`."""


def verify(
    tokens: Sequence[int] | NDArray[np.integer], target_probs: ArrayLike, draft_probs: ArrayLike, *,
    parents: Sequence[int] | NDArray[np.integer] | None = None, rule: Rule = "rejection",
    lenience: float = 1.0, order: ArrayLike | Literal["random"] | None = None,
    uniforms: ArrayLike | None = None, noise: ArrayLike | None = None, seed: Seed = None,
) -> Verification:  # fmt: skip
    """Accept or reject drafts so that what comes out is distributed exactly as the target.

    The drafts and node 0, the last known token, make a tree: node i is ``tokens[i - 1]``. From the root down,
    a rule accepts one of the drafts for the next token, or gives that token itself and ends. With T and D the
    target's and the draft's distributions there:

    - "rejection": a draft x is accepted with probability min(1, T(x) / D(x)), and after a rejection the next
      token comes from norm(max(0, T - D)) (Leviathan et al., Algorithm 1). Of several drafts for one
      position, each is held against what the rejected ones before it left of the target (SpecInfer, arXiv
      2305.09781).
    - "greedy": the most probable token of T, whether drafted or not.
    - "coupled": the token that T gives under `noise`, whether drafted or not: by an exponential race, which
      is Gumbel-max. Equal noise, equal tokens, for every draft and for none.
    - "block": a chain is judged as a whole; the expected number of accepted drafts is never below that of
      "rejection" (Sun et al. 2024, arXiv 2403.10444, Algorithm 2).
    - "k-sequential": SpecTr's selection from k independent draws of one D (Sun et al. 2023, arXiv
      2310.15141).
    - "classical": rejection sampling without its loop, T(x) / (M D(x)) with M = max T / D (appendix A.2):
      exact, and worse than "rejection"; there to compare with.

    Nodes with the same tokens from the root are one position: the drafts after it are the children of all of
    them. So K sequences need not be merged, and each counts as a draw.

    Parameters
    ----------
    tokens : sequence of int, [n_drafts]
        The drafts. May be empty: then one token is drawn from the target.
    target_probs : array_like, [n_drafts + 1, n_vocab]
        Row i is the target's distribution after node i.
    draft_probs : array_like, [n_drafts, n_vocab]
        Row i is the very distribution that ``tokens[i]`` was drawn from, after any temperature, top-k or
        nucleus. Drafts for one position are drawn independently of each other; or, with "rejection" and in
        the order of drawing, each given those before it, as without replacement. A draft that was chosen, not
        drawn, is a point mass.
    parents : sequence of int, [n_drafts], optional
        Parent node of each draft, 0 for the last known token; parents come before their children. By default
        every draft follows the one before it.
    rule : {"rejection", "greedy", "coupled", "block", "k-sequential", "classical"}
    lenience : float, default 1.0
        l of appendix A.5, in (0, 1]; below 1 for "rejection" and "greedy" only. Rejection holds x against
        T(x) / l: no token gets more than T(x) / l, whatever the number of drafts. Greedy accepts x if
        T(x) >= l max T (the paper prints <=, which cannot be meant).
    order : "random" or array_like, [n_drafts], optional
        Drafts for one position are tried in ascending order of these numbers, by default in that of the
        nodes. "random" draws them (SpecInfer's order). They must not depend on the tokens.
    uniforms : array_like, [n_drafts + 1], optional
        Random numbers in [0, 1): entry i decides ``tokens[i]``, the last one draws the final token. They must
        not have been used to draw the drafts.
    noise : array_like, [max_depth + 1, n_vocab], optional
        For "coupled": uniforms in [0, 1), a row for each position from the root on.
    seed : int, or Generator, BitGenerator or SeedSequence of numpy.random, optional
        Where the random numbers come from that are not given: ``numpy.random.default_rng(seed)``.
        Over several rounds pass one generator, not the same number again.

    Returns
    -------
    Verification
        ``path``, ``token``, ``betas`` and ``tokens``.

    Raises
    ------
    InputError
        If an argument is none of what it may be, shapes disagree, a row is no distribution (negative, not
        finite, or its sum more than 1e-9 from 1), a draft has probability 0 where it was drawn from, or
        `seed` is given and nothing is left to draw.

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
            expected = f"an earlier node than {i + 1}, which draft {i} is"
            raise InputError.of(f"parents[{i}]", int(nodes[i]), expected)
        if draft[i, drafts[i]] == 0:
            expected = f"more: token {drafts[i]} was drawn from this row"
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

    # The core's arrays have a row for the root as well, which was not drafted.
    path, token, betas = _core.verify(
        [0, *drafts.tolist()], [-1, *nodes.tolist()], target, np.vstack([np.zeros((1, n_vocab)), draft]),
        np.concatenate([[0.0], numbers]), rule=rule, lenience=lenience,
        order=None if order is None else np.concatenate([[0.0], keys]), noise=noises,
    )  # fmt: skip
    return Verification(path, token, betas, [*(int(drafts[node - 1]) for node in path), token])


def _uniforms(
    given: ArrayLike | None, name: str, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Numbers in [0, 1), checked, or drawn where none are given."""
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
    """Probabilities that sampling with these settings gives to each token, of the shape of `logits`.

    Softmax, then top-k, then nucleus on what top-k left, then min-p, so that every way of sampling is plain
    sampling from the result (Leviathan et al., section 2.2). Ties go to the lowest id.

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
    min_p : float, optional
        Keep the tokens that are at least this times as probable as the most probable one.

    Raises
    ------
    InputError
        If a setting is out of range, or a row has NaN, +inf or no finite entry.
    """
    settings = Sampling(temperature, top_k, top_p, min_p).core()
    options = {name: settings[name] for name in ("temperature", *TRUNCATIONS)}
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        rows = check_real("logits", logits).astype(np.float32)
    if rows.ndim not in (1, 2) or rows.shape[-1] == 0:
        raise _of_shape("logits", rows, "(n_vocab,) or (n_rows, n_vocab), n_vocab >= 1")
    if np.any(np.isnan(rows)) or np.any(rows == np.inf):
        raise InputError.of("logits", rows, "numbers below infinity", "NaN or +inf (as float32)", "has")
    if np.any(np.all(rows == -np.inf, axis=-1)):
        raise InputError.of("logits", rows, "one at least", "a row without any finite entry", "has")
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
    """Rows of probabilities, [n_rows, n_vocab], checked."""
    rows = check_real(name, values)
    if shape is not None and shape[0] == 0 and rows.size == 0:
        return np.empty(shape)
    if shape is not None and rows.shape != shape:
        raise _of_shape(name, rows, f"{shape}, as target_probs has one row more")
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
    """`values` as [length] integers of low <= value < stop."""
    array = check_array(name, values, "integers")
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputError.of(name, values, "integers", str(array.dtype), "has dtype")
    if array.shape != (length,):
        raise _of_shape(name, array, f"({length},), as target_probs has {length + 1} rows")
    bad = np.flatnonzero((array < low) | (array >= stop))
    if len(bad):
        raise InputError.of(f"{name}[{bad[0]}]", int(array[bad[0]]), f"{what} ({low} to {stop - 1})")
    return array.astype(np.int64)
