"""Random numbers as a pure function of their purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PURPOSE_DRAFT, PURPOSE_ACCEPT, PURPOSE_SAMPLE, PURPOSE_NOISE = 0, 1, 2, 4


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random 32-bit words from a counter of four and a key of two.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product2 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = product2 >> 32 ^ c1 ^ k0, product2 & low, product0 >> 32 ^ c3 ^ k1, product0 & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return c0, c1, c2, c3


def uniform(seed: int, sequence: int, position: int, purpose: int, index: int) -> float:
    """Return the random number of one decision, a multiple of 2**-53 in [0, 1).

    It depends only on its key, so neither batching nor the order of computation can change it: the 64-bit
    `seed`; and in 32 bits each the `sequence`, the `position` (tokens in the text when the round began), the
    `purpose` (``PURPOSE_DRAFT``, ``PURPOSE_ACCEPT`` or ``PURPOSE_SAMPLE``), and the `index` of the node that
    is drafted or accepted, 0 for the round's final token.
    """
    x0, x1, _, _ = philox4x32((position, index, purpose, sequence), _key(seed))
    return _fraction(x0, x1)


def noise(seed: int, sequence: int, position: int, n_vocab: int) -> NDArray[np.float64]:
    """Return the random numbers of one token for the rule "coupled": a uniform in [0, 1) per id, [n_vocab].

    Two ids share a block of random words. The numbers do not depend on drafts, so every method of decoding
    gets the same ones. `position`: tokens before the new one; the others as in `uniform`.
    """
    blocks = [
        philox4x32((position, pair, PURPOSE_NOISE, sequence), _key(seed))
        for pair in range((n_vocab + 1) // 2)
    ]
    numbers = [number for x0, x1, x2, x3 in blocks for number in (_fraction(x0, x1), _fraction(x2, x3))]
    return np.array(numbers[:n_vocab])


def _key(seed: int) -> tuple[int, int]:
    return seed & 0xFFFFFFFF, seed >> 32


def _fraction(high: int, low: int) -> float:
    """Convert 53 bits of two words to a fraction of 2**53."""
    return ((high >> 5) * 2**26 + (low >> 6)) / 2**53
