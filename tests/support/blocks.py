"""Random rows of GGUF block types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TYPES = {
    "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
    "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "iq4_nl": (32, 18), "iq4_xs": (256, 136), "mxfp4": (32, 17),
}  # fmt: skip
"""Numbers and bytes of a block."""

_F16 = {"q4_1": (0, 2), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2),
        "q6_k": (208,), "mxfp4": ()}  # fmt: skip


def f16_bytes(kind: str) -> NDArray[np.bool_]:
    """Return which bytes of a block belong to f16 numbers."""
    found = np.zeros(TYPES[kind][1], bool)
    for at in _F16.get(kind, (0,)):
        found[at : at + 2] = True
    return found


def random_blocks(
    rng: np.random.Generator, kind: str, n_out: int, n_in: int, scales: NDArray[np.float16] | None = None
) -> NDArray[np.uint8]:
    """Draw rows [n_out, bytes] of random codes. `scales`: values of the f16 numbers; default: normal."""
    size, n_bytes = TYPES[kind]
    raw = rng.integers(0, 256, (n_out, n_in // size, n_bytes), dtype=np.uint8)
    for at in _F16.get(kind, (0,)):
        drawn = (
            rng.standard_normal(raw.shape[:2]) * 0.01 if scales is None else rng.choice(scales, raw.shape[:2])
        )
        raw[..., at : at + 2] = drawn.astype(np.float16)[..., None].view(np.uint8)
    if kind == "mxfp4":
        raw[..., 0] = (
            rng.integers(110, 130, raw.shape[:2]) if scales is None else rng.integers(0, 4, raw.shape[:2])
        )
    return raw.reshape(n_out, -1)


def awkward_rows(rng: np.random.Generator, n_rows: int, n_in: int) -> NDArray[np.float32]:
    """Make rows of edge cases: blocks of one element, of zeros, of tiny and of large numbers, and ties."""
    x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
    x[:, ::7] = np.round(x[:, ::7] * 4) / 4
    for i, scale in enumerate((0.0, 3e-6, 1e-8, 2e4)):
        x[i % n_rows, 32 * i : 32 * i + 32] *= np.float32(scale)
    return x
