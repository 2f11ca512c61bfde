"""Speculative decoding: Algorithm 1 of Leviathan, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec.reference.distributions import distribution
from specdec.reference.random import PURPOSE_ACCEPT, PURPOSE_DRAFT, PURPOSE_SAMPLE, uniform
from specdec.reference.rules import accept_probability, residual, sample

Model = Callable[[Sequence[int]], NDArray[np.floating]]
"""A model: token ids, [n], to logits, [n, n_vocab]; row i predicts the token after ids[: i + 1]."""

Allowed = Callable[[Sequence[int]], NDArray[np.bool_] | None]
"""Maps the new tokens to the allowed next tokens, [n_vocab]; None: the text is complete."""


def decode(
    target: Model, draft: Model, prompt: Sequence[int], n_new: int, gamma: int, *, temperature: float = 1.0,
    seed: int = 0, sequence: int = 0,
) -> list[int]:  # fmt: skip
    """Sample `n_new` tokens from the target's distribution, up to `gamma` + 1 per target forward pass.

    `target` and `draft` are M_p and M_q of the paper, `prompt` has at least one token, gamma 0 is plain
    decoding, the temperature applies to both models, and (`seed`, `sequence`) is the key of the random
    numbers.
    """
    text, end = list(prompt), len(prompt) + n_new
    while len(text) < end:
        begun = len(text)  # position of this round's random numbers
        n_drafted = min(gamma, end - begun - 1)

        # Sample x_1, ..., x_gamma from the draft autoregressively.
        x: list[int] = []
        q = []
        for i in range(1, n_drafted + 1):
            q.append(distribution(draft(text + x)[-1], temperature))
            x.append(sample(q[-1], uniform(seed, sequence, begun, PURPOSE_DRAFT, i)))

        # Run the target once, in parallel: p_1(x), ..., p_(gamma + 1)(x).
        p = [distribution(row, temperature) for row in target(text + x)[begun - 1 :]]

        # Determine the number of accepted draft tokens n.
        n = 0
        while n < n_drafted:
            if uniform(seed, sequence, begun, PURPOSE_ACCEPT, n + 1) >= accept_probability(p[n], q[n], x[n]):
                break
            n += 1

        # Adjust the target's distribution if a token was rejected, and sample one more token from it.
        rest = residual(p[n], q[n]) if n < n_drafted else p[n]
        text += [*x[:n], sample(rest, uniform(seed, sequence, begun, PURPOSE_SAMPLE, 0))]
    return text[len(prompt) :]


def decode_constrained(
    target: Model, draft: Model, prompt: Sequence[int], n_new: int, gamma: int, allowed: Allowed, *,
    temperature: float = 1.0, seed: int = 0, sequence: int = 0,
) -> list[int]:  # fmt: skip
    """Decode under a constraint: both models' logits of forbidden tokens are -inf.

    Random numbers belong to positions, so whatever `decode` does after the text is complete does not affect
    it.
    """

    def masked(model: Model) -> Model:
        def logits(ids: Sequence[int]) -> NDArray[np.floating]:
            rows = np.array(model(ids))
            for i in range(len(prompt) - 1, len(ids)):
                mask = allowed(ids[len(prompt) : i + 1])
                if mask is None:
                    break
                rows[i, ~mask] = -np.inf
            return rows

        return logits

    new = decode(
        masked(target), masked(draft), prompt, n_new, gamma,
        temperature=temperature, seed=seed, sequence=sequence,
    )  # fmt: skip
    complete = (n for n in range(len(new) + 1) if allowed(new[:n]) is None)
    return new[: next(complete, len(new))]
