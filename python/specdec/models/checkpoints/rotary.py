"""Inverse frequencies of rotary positions (RoFormer, arXiv 2104.09864), with the scalings specdec knows."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["linear_scaled", "llama3_scaled", "rotary_frequencies"]


def rotary_frequencies(d_head: int, theta: float) -> list[float]:
    """theta^(-2i / d_head) for i in 0 … d_head/2 - 1, in radians per position.

    Rounded to float32: that is what the checkpoints were trained with, and at position 100,000 the difference
    between the rounded and the ideal frequency is a visible angle.
    """
    exponents = np.arange(0, d_head, 2, dtype=np.float64) / d_head
    return _as_float32(theta**-exponents)


def linear_scaled(frequencies: list[float], factor: float) -> list[float]:
    """Position interpolation (arXiv 2306.15595): every frequency divided by ``factor``."""
    return _as_float32(np.asarray(frequencies) / factor)


def llama3_scaled(
    frequencies: list[float],
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_n_ctx: int,
) -> list[float]:
    """Llama 3.1's scaling: long wavelengths divided by ``factor``, short ones kept, a linear blend between.

    A wavelength (2 pi / frequency, in positions) is long above ``original_n_ctx / low_freq_factor`` and short
    below ``original_n_ctx / high_freq_factor``.
    """
    plain = np.asarray(frequencies)
    turns = original_n_ctx * plain / (2.0 * math.pi)  # full turns within the original context
    keep = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return _as_float32(keep * plain + (1.0 - keep) * plain / factor)


def _as_float32(frequencies: np.ndarray) -> list[float]:
    return [float(frequency) for frequency in frequencies.astype(np.float32)]
