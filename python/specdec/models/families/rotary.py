"""Inverse frequencies of RoPE (arXiv 2104.09864) and its scalings."""

from __future__ import annotations

import math

import numpy as np


def rotary_frequencies(d_head: int, theta: float) -> list[float]:
    """Return theta^(-2i/d_head) for i in 0 … d_head/2 - 1, in radians per position, rounded to float32."""
    exponents = np.arange(0, d_head, 2, dtype=np.float64) / d_head
    return _as_float32(theta**-exponents)


def linear_scaled(frequencies: list[float], factor: float | list[float]) -> list[float]:
    """Divide frequencies by ``factor`` (arXiv 2306.15595), or one each (LongRoPE, arXiv 2402.13753)."""
    return _as_float32(np.asarray(frequencies) / np.asarray(factor))


def llama3_scaled(
    frequencies: list[float],
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_n_ctx: int,
) -> list[float]:
    """Scale as Llama 3.1: divide long wavelengths by ``factor``, keep short ones, interpolate between."""
    plain = np.asarray(frequencies)
    turns = original_n_ctx * plain / (2.0 * math.pi)  # full turns within the original context
    keep = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return _as_float32(keep * plain + (1.0 - keep) * plain / factor)


def yarn_scaled(
    d_rotary: int,
    theta: float,
    *,
    factor: float,
    original_n_ctx: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> list[float]:
    """Scale as YaRN (arXiv 2309.00071): divide slow frequencies by ``factor``, keep fast, interpolate."""
    plain = theta ** -(np.arange(0, d_rotary, 2, dtype=np.float64) / d_rotary)

    def pair_with(n_turns: float) -> float:
        return d_rotary * math.log(original_n_ctx / (n_turns * 2.0 * math.pi)) / (2.0 * math.log(theta))

    low, high = pair_with(beta_fast), pair_with(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d_rotary - 1)
    if low == high:
        high += 0.001
    slow = np.clip((np.arange(d_rotary // 2) - low) / (high - low), 0.0, 1.0)
    return _as_float32(plain / factor * slow + plain * (1.0 - slow))


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's factor of cosines and sines."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def dynamic_scaled(
    d_rotary: int, theta: float, *, factor: float, original_n_ctx: int, n_ctx: int
) -> list[float]:
    """Scale as dynamic NTK for ``n_ctx`` tokens: a larger base beyond the original context."""
    stretch = factor * max(n_ctx, original_n_ctx) / original_n_ctx - (factor - 1.0)
    return rotary_frequencies(d_rotary, theta * stretch ** (d_rotary / (d_rotary - 2)))


def proportional_frequencies(d_head: int, theta: float, fraction: float) -> list[float]:
    """Return the head's frequencies with all but the first ``fraction`` set to 0."""
    plain = rotary_frequencies(d_head, theta)
    n_turning = int(fraction * d_head // 2)
    return plain[:n_turning] + [0.0] * (len(plain) - n_turning)


def _as_float32(frequencies: np.ndarray) -> list[float]:
    return [float(frequency) for frequency in frequencies.astype(np.float32)]
