"""Types of the tensors of GGUF files that are written: which one a tensor has, and its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError
from specdec.models.checkpoints.gguf_file import type_sizes
from specdec.models.number_formats import rounded_to_bf16

__all__ = ["FILE_TYPES", "encoded", "file_type", "type_of"]

FILE_TYPES: Final[Mapping[str, int]] = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2}
"""What a file can be asked for, and the number that ``general.file_type`` has for it."""

# Matrices that are never rounded: the end of their names, less ".weight".
_KEPT: Final = ("position_embd", "ffn_gate_inp", "ffn_gate_inp_shexp", "attn_rel_b")


def file_type(kind: str) -> int:
    """``general.file_type`` of a kind of file."""
    return FILE_TYPES[kind]


def type_of(kind: str, name: str, shape: tuple[int, ...]) -> str:
    """The type of a tensor.

    Parameters
    ----------
    kind : str
        One of `FILE_TYPES`.
    name : str
        The file's.
    shape : tuple of int
        Rows first.
    """
    base = name.removesuffix(".weight")
    if len(shape) < 2 or base == name or base.endswith(_KEPT) or "norm" in base.rsplit(".", 1)[-1]:
        return "F32"
    return "F16" if shape[-1] % type_sizes()[kind][1][0] else kind


def encoded(array: NDArray[np.float32], kind: str, what: str) -> NDArray[Any]:
    """The bytes of a tensor in a type.

    Parameters
    ----------
    array : ndarray of float32
    kind : str
    what : str
        File and tensor, for messages.

    Raises
    ------
    CheckpointError
        A value that is not finite, or too large for the type.
    """
    if not np.isfinite(array).all():
        raise CheckpointError(f"{what} has values that are not finite; expected finite numbers")
    if kind == "F32":
        return array
    if kind in ("F16", "BF16"):
        with np.errstate(over="ignore"):
            half: NDArray[Any] = array.astype(np.float16) if kind == "F16" else rounded_to_bf16(array)
        large = np.isinf(half) if kind == "F16" else (half & 0x7FFF) == 0x7F80
        if large.any():
            raise CheckpointError(f"{what} has values that are too large for {kind}; expected smaller ones")
        return half
    from gguf import GGMLQuantizationType, quants

    blocks: NDArray[np.uint8] = quants.quantize(array, GGMLQuantizationType[kind])
    return blocks
