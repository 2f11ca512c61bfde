"""The compiled rules on a session's inputs: unnormalized weights and point masses.

A session does not normalize a row of weights: its largest weight is 1, and the row has a factor. A point mass
has no row at all. `specdec.verify` takes probabilities and has neither, so proofs with probabilities do not
cover them. `verify_weights` takes a session's inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core

Probs = NDArray[np.float64]


def points_of(rows: Probs) -> list[int]:
    """Return for each row the token with all mass, or -1."""
    return [int(np.argmax(row)) if np.count_nonzero(row) == 1 else -1 for row in rows]


def weights_of(rows: Probs, points: Sequence[int]) -> Probs:
    """Convert rows to a session's weights: the largest is 1; a point mass has none, here NaN."""
    weights = np.full(rows.shape, np.nan)
    for i, (row, point) in enumerate(zip(rows, points, strict=True)):
        if point < 0:
            weights[i] = row / (row.max() or 1.0)
    return weights


class VerifyWeights:
    """A rule with the signature of ``specdec.reference.verify``: `_core.verify` on weights and point masses.

    `chosen` has the token of a node that was chosen, -1 for a draw; by default a node is chosen if it was
    drawn from one token. `points`: rows with one token are point masses, or weights with one that is not 0,
    as of top-k of 1.
    """

    def __init__(self, chosen: Sequence[int] | None = None, *, points: bool = True) -> None:
        self._chosen, self._points = chosen, points
        self._given: tuple[Any, Any] = (None, None)
        self._rows: dict[str, Any] = {}

    def __call__(
        self, tokens: Sequence[int], parents: Sequence[int], target_probs: Probs, draft_probs: Probs,
        uniforms: Any, **options: Any,
    ) -> tuple[list[int], int, list[float]]:  # fmt: skip
        if target_probs is not self._given[0] or draft_probs is not self._given[1]:
            self._given = target_probs, draft_probs
            none = [-1] * len(tokens)
            of_target = points_of(target_probs) if self._points else none
            of_draft = points_of(draft_probs) if self._points else none
            of_draft = of_draft if self._chosen is None else list(self._chosen)
            self._rows = {
                "target_probs": weights_of(target_probs, of_target),
                "draft_probs": weights_of(draft_probs, of_draft),
                "points": (of_target, of_draft),
            }
        return _core.verify(tokens, parents, uniforms=uniforms, **self._rows, **options)


verify_weights = VerifyWeights()
verify_dense = VerifyWeights(points=False)

verify_core = _core.verify
"""A rule on probabilities, as `specdec.reference.verify`."""

distribution, noise, uniform = _core.distribution, _core.noise, _core.uniform
"""Of one row of logits; of the rule "coupled" at a position; of a key: as in `specdec.reference`."""
