"""Speculative decoding, whole: Algorithm 1 of Leviathan, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec.reference.distributions import distribution
from specdec.reference.random import PURPOSE_ACCEPT, PURPOSE_DRAFT, PURPOSE_SAMPLE, uniform
from specdec.reference.rules import accept_probability, residual, sample

Model = Callable[[Sequence[int]], NDArray[np.floating]]
"""A model: token ids, [n], to logits, [n, n_vocab]; row i is about the token after ids[: i + 1]."""


Allowed = Callable[[Sequence[int]], NDArray[np.bool_] | None]
"""From the new tokens so far to which tokens may come next; None: the text is complete."""


def masked(logits: NDArray[np.floating], mask: NDArray[np.bool_] | None) -> NDArray[np.floating]:
    """Logits, [n_vocab], with -inf for tokens that may not come."""
    return logits if mask is None else np.where(mask, logits, -np.inf)


def decode(
    target: Model,
    draft: Model,
    prompt: Sequence[int],
    n_new: int,
    gamma: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    sequence: int = 0,
    allowed: Allowed | None = None,
) -> list[int]:
    """`n_new` tokens of the target's own distribution, up to `gamma` of them for each run of the target.

    Parameters
    ----------
    target, draft : callable
        M_p and M_q of the paper.
    prompt : sequence of int
        At least one token.
    n_new : int
    gamma : int
        Guesses a round at most; 0 is plain decoding.
    temperature : float
        Of both models.
    seed, sequence : int
        Key of the random numbers.
    allowed : callable, optional
        Which tokens may come next, [n_vocab] bool, behind some new tokens: both models' logits of others are
        -inf. None where the text is complete, and ends.
    """
    text, end = list(prompt), len(prompt) + n_new

    def mask(tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        return None if allowed is None else allowed(tokens[len(prompt) :])

    def is_complete(tokens: Sequence[int]) -> bool:
        return allowed is not None and mask(tokens) is None

    while len(text) < end and not is_complete(text):
        begun = len(text)  # random numbers are those of this position
        n_guesses = min(gamma, end - begun - 1)

        # Sample guesses x_1, ..., x_gamma from the draft, each after those before it.
        guesses: list[int] = []
        draft_probs = []
        for i in range(1, n_guesses + 1):
            if is_complete(text + guesses):
                break
            draft_probs.append(
                distribution(masked(draft(text + guesses)[-1], mask(text + guesses)), temperature)
            )
            guesses.append(sample(draft_probs[-1], uniform(seed, sequence, begun, PURPOSE_DRAFT, i)))

        # Run the target once, on all guesses: p_1(x), ..., p_(gamma + 1)(x).
        n_guesses = len(guesses)
        rows = target(text + guesses)[begun - 1 :]
        target_probs = [
            distribution(masked(row, mask(text + guesses[:i])), temperature) for i, row in enumerate(rows)
        ]

        # Determine the number of accepted guesses n.
        n = 0
        while n < n_guesses:
            chance = accept_probability(target_probs[n], draft_probs[n], guesses[n])
            if uniform(seed, sequence, begun, PURPOSE_ACCEPT, n + 1) >= chance:
                break
            n += 1

        # Adjust the target's distribution if a guess was rejected, and sample one more token from it.
        if is_complete(text + guesses[:n]):
            text += guesses[:n]
            break
        rest = residual(target_probs[n], draft_probs[n]) if n < n_guesses else target_probs[n]
        text += [*guesses[:n], sample(rest, uniform(seed, sequence, begun, PURPOSE_SAMPLE, 0))]
    return text[len(prompt) :]
