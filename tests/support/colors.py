"""Colors as seen with color blindness, and distances between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Color = Sequence[float]
"""Red, green, blue in [0, 1], encoded as sRGB."""

VISIONS = {
    "normal": np.eye(3),
    # Machado, Oliveira and Fernandes 2009 (IEEE TVCG 15), severity 1, on linear RGB.
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE = _XYZ.sum(axis=1)


def linear(color: Color) -> NDArray[np.float64]:
    encoded = np.asarray(color, dtype=np.float64)
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: Color, other: Color) -> float:
    """Contrast ratio of WCAG 2.1: 1 for equal colors, 21 for black on white."""
    darker, lighter = sorted(float(_XYZ[1] @ linear(color)) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def distance(one: Color, other: Color, vision: str) -> float:
    """Distance of two colors in CIELAB (CIE76) as seen with this vision; 2.3 is just noticeable."""
    return float(np.linalg.norm(_lab(one, vision) - _lab(other, vision)))


def least_distance(colors: Iterable[Color]) -> float:
    """Return the smallest distance between two colors, over all types of vision."""
    pairs = list(combinations(colors, 2))
    return min(distance(one, other, vision) for one, other in pairs for vision in VISIONS)


def over(color: Color, opacity: float, back: Color) -> list[float]:
    """Blend a translucent color with a background."""
    return [opacity * c + (1.0 - opacity) * b for c, b in zip(color, back, strict=True)]


def _lab(color: Color, vision: str) -> NDArray[np.float64]:
    seen = np.clip(VISIONS[vision] @ linear(color), 0.0, 1.0)
    x, y, z = (
        np.cbrt(value) if value > 216 / 24389 else (24389 / 27 * value + 16) / 116
        for value in _XYZ @ seen / _WHITE
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
