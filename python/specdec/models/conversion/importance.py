"""How much the errors of each input of a matrix count, when the matrix is quantised."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_path
from specdec.errors import CheckpointError
from specdec.models.checkpoints.gguf_file import read_gguf

__all__ = ["read_importance"]

_SUMS: Final = ".in_sum2"

Array = NDArray[Any]


def read_importance(path: str | os.PathLike[str] | None) -> dict[str, Array]:
    """Mean squares of the inputs of matrices, by the names of these."""
    if path is None:
        return {}
    place = check_path("importance", path, CheckpointError)
    file, held = read_gguf(place)
    found: dict[str, Array] = {}
    for name, tensor in held.items():
        if not name.endswith(_SUMS) or (counts := held.get(name.removesuffix(_SUMS) + ".counts")) is None:
            continue
        if len(tensor.shape) != 2 or tensor.shape[0] != 1:  # sums for each expert
            continue
        means = tensor.numbers()[0] / max(float(counts.numbers().reshape(-1)[0]), 1.0)
        if not np.isfinite(means).all() or (means < 0.0).any():
            raise CheckpointError(f"{place}: tensor '{name}' has other numbers than sums of squares")
        found[name.removesuffix(_SUMS)] = np.ascontiguousarray(means, np.float32)
    if not found:
        raise file.error(f"has no tensors '...{_SUMS}' with '....counts'; expected what llama-imatrix writes")
    return found
