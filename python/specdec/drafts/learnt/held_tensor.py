"""Tensors of a learnt draft, in memory or in its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.models.checkpoints.safetensors_file import StoredTensor

__all__ = ["Held", "HeldTensor"]


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in memory, with what is asked of one in a file.

    Attributes
    ----------
    values : ndarray
        float32, float16, uint16 with the bits of bf16, or integers.
    format : str
        "f32", "f16" or "bf16"; of integers "".
    """

    values: NDArray[Any]
    format: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.values.shape

    def array(self) -> NDArray[np.generic]:
        """The numbers."""
        return self.values

    def integers(self) -> NDArray[np.integer[Any]]:
        """The numbers of a tensor of integers."""
        return self.values


Held: TypeAlias = HeldTensor | StoredTensor
