"""Speculative sampling: which drafts are accepted, and what is sampled after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probs = NDArray[np.float64]


def sample(probs: ArrayLike, uniform: float) -> int:
    """The first token, in order of id, at which the cumulative mass exceeds `uniform`.

    A token without mass does not raise it, so it is never drawn. Where rounding lets the whole sum end at or
    below `uniform`, the last token that has mass is drawn.
    """
    probs = np.asarray(probs, dtype=np.float64)
    token = np.searchsorted(np.cumsum(probs), uniform, side="right")
    return int(token) if token < len(probs) else int(np.flatnonzero(probs)[-1])


def accept_probability(target: Probs, draft: Probs, token: int) -> float:
    """min(1, target / draft) of a token drawn from `draft` (Leviathan, section 2.3)."""
    if target[token] >= draft[token]:
        return float(target[token] > 0)
    return float(target[token] / draft[token])


def residual(target: Probs, draft: Probs) -> Probs:
    """norm(max(0, target - draft)), what is sampled after a rejection; `target` itself where nothing is left.

    Nothing is left only if the two are equal, and then no draft is rejected but for rounding.
    """
    left = np.maximum(0.0, target - draft)
    mass = left.sum()
    return left / mass if mass > 0 else target


def speculative_step(
    target: Callable[[list[int]], Probs],
    draft: Callable[[list[int]], Probs],
    prefix: Sequence[int],
    gamma: int,
    random: Callable[[], float],
) -> list[int]:
    """Leviathan's Algorithm 1, SpeculativeDecodingStep: `prefix` with 1 to gamma + 1 new tokens.

    Parameters
    ----------
    target, draft : callable
        From a list of token ids to the distribution of the next one, [n_vocab].
    prefix : sequence of int
    gamma : int
        Tokens to guess.
    random : callable
        Gives the next uniform of [0, 1): gamma for the guesses, gamma to accept them, one for the last token.
        Accepting asks for r < target / draft where the paper has r <= target / draft; the two differ with
        probability 0 for real numbers, but r of a computer can be 0, and a token of target probability 0
        must never be accepted.
    """
    # Sample gamma guesses x_1, ..., x_gamma from the draft autoregressively.
    x: list[int] = []
    q: list[Probs] = []
    for _ in range(gamma):
        q.append(draft([*prefix, *x]))
        x.append(sample(q[-1], random()))
    # Run the target in parallel.
    p = [target([*prefix, *x[:i]]) for i in range(gamma + 1)]
    # Determine the number of accepted guesses n.
    r = [random() for _ in range(gamma)]
    n = min([i for i in range(gamma) if not r[i] < accept_probability(p[i], q[i], x[i])] + [gamma])
    # Adjust the distribution from the target if needed.
    adjusted = residual(p[n], q[n]) if n < gamma else p[n]
    # Return one token from the target, and n tokens from the draft.
    return [*prefix, *x[:n], sample(adjusted, random())]


def verify(
    tokens: Sequence[int],
    parents: Sequence[int],
    target_probs: Probs,
    draft_probs: Probs,
    uniforms: Sequence[float] | Probs,
) -> tuple[list[int], int, list[float]]:
    """The rejection rule on a tree of drafts: iterative speculative sampling at each node from the root down.

    The children of a node are tried in node order, each against what the children before it left of the
    target's distribution. The first accepted child is descended into. When none is accepted, what is left is
    sampled; at a leaf nothing has been taken off and that is the bonus token. On a chain this is Algorithm 1.

    Parameters
    ----------
    tokens, parents : sequence of int, [n_nodes]
        Node 0 is the root, the last committed token (``tokens[0]`` unused, ``parents[0] == -1``); every other
        node comes after its parent.
    target_probs : ndarray of float64, [n_nodes, n_vocab]
        The target's distribution after each node.
    draft_probs : ndarray of float64, [n_nodes, n_vocab]
        Row i is the distribution that node i was drawn from; row 0 is unused.
    uniforms : sequence of float, [n_nodes + 1]
        In [0, 1): entry i decides node i, the last one draws the final token, entry 0 is unused.

    Returns
    -------
    path : list of int
        The accepted nodes from the root (excluded) down.
    token : int
        The token after them, from the target.
    betas : list of float
        sum(min(target, draft)), the chance of acceptance (Leviathan, Theorem 3.5), of the first child of
        each node of the path, root included, that has children.
    """
    n_nodes, node = len(tokens), 0
    path: list[int] = []
    betas: list[float] = []
    while True:
        target = target_probs[node]
        children = [child for child in range(1, n_nodes) if parents[child] == node]
        if children:
            betas.append(float(np.minimum(target, draft_probs[children[0]]).sum()))
        for child in children:
            if uniforms[child] < accept_probability(target, draft_probs[child], tokens[child]):
                path.append(child)
                node = child
                break
            target = residual(target, draft_probs[child])
        else:
            return path, sample(target, uniforms[n_nodes]), betas
