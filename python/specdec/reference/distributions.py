"""From logits to the distribution that is sampled (Leviathan, section 2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probs = NDArray[np.float64]


def distribution(logits: ArrayLike, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Probs:
    """Standardised probabilities: every way of sampling as plain sampling from an adjusted distribution.

    Leviathan, section 2.2. The order is softmax, then top-k, then nucleus on what top-k left; ties go to the
    lowest id throughout.

    Parameters
    ----------
    logits : array_like, [n_vocab]
        -inf for an excluded token; at least one finite.
    temperature : float
        Divides the logits; 0 puts all mass on the largest logit.
    top_k : int
        Exactly this many tokens are kept; 0 for all.
    top_p : float
        The smallest set of most probable tokens whose mass is at least this is kept; 1 for all.

    Returns
    -------
    ndarray of float64, [n_vocab]
    """
    logits = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        point = np.zeros(len(logits))
        point[np.argmax(logits)] = 1.0
        return point
    with np.errstate(over="ignore"):  # -inf is what a small temperature means
        exponents = (logits - logits.max()) / temperature
    probs: Probs = np.exp(exponents)
    probs /= probs.sum()
    most_probable = np.argsort(-logits, kind="stable")
    if top_k > 0:
        probs[most_probable[top_k:]] = 0.0
        probs /= probs.sum()
    if top_p < 1:
        n_kept = np.searchsorted(np.cumsum(probs[most_probable]), top_p) + 1
        probs[most_probable[n_kept:]] = 0.0
    probs /= probs.sum()
    return probs
