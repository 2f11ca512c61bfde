"""Beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike


def beam_search(
    logits_of: Callable[[list[int]], ArrayLike], prompt: Sequence[int], width: int, n: int,
    stop_ids: Sequence[int] = (),
) -> list[tuple[list[int], float, bool]]:  # fmt: skip
    """Plain beam search: each step keeps the `width` most probable hypotheses.

    `logits_of` maps a list of ids to the logits [n_vocab] of the next token. Each of `n` steps adds a token
    to the hypotheses; one that reaches a stop id keeps its score and is not continued. Returns (tokens,
    score, ended) of each beam, best first: new tokens, sum of their ln p, whether they end with a stop id.
    Ties go to the continuation of the better hypothesis, then to the lower token.
    """
    beams: list[tuple[list[int], float, bool]] = [([], 0.0, False)]
    for _ in range(n):
        candidates = []
        for tokens, score, ended in beams:
            if ended:
                candidates.append((tokens, score, True))
                continue
            row = np.asarray(logits_of([*prompt, *tokens]), np.float64)
            row = row - row.max()
            for token, ln_p in enumerate(row - np.log(np.exp(row).sum())):
                candidates.append(([*tokens, token], score + float(ln_p), token in stop_ids))
        beams = sorted(candidates, key=lambda candidate: -candidate[1])[:width]  # stable
    return beams
