"""Types of the tensors of GGUF files that are written: which one a tensor has, and its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.errors import CheckpointError
from specdec.models.checkpoints.gguf_file import type_sizes
from specdec.models.checkpoints.weighted_blocks import WEIGHTED, weighted_blocks
from specdec.models.number_formats import rounded_to_bf16

__all__ = ["FILE_TYPES", "WEIGHED", "encoded", "type_of"]

FILE_TYPES: Final[Mapping[str, int]] = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    "Q8_0": 7,
    "Q4_0": 2,
    "Q4_K": 14,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K": 16,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
}
"""What a file can be asked for, and the number that ``general.file_type`` has for it."""

MIXTURES: Final = ("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M")
"""Those whose matrices have several types, chosen as llama.cpp chooses them."""

WEIGHED: Final = ("Q4_0", *(f"Q{bits}_K" for bits in (4, 5, 6)), *MIXTURES)
"""Those that weigh the errors of inputs by their importance."""

_LEAST: Final = 1e-4  # of the importance of an input, in multiples of the mean
_K_TYPES: Final = ("Q4_K", "Q5_K", "Q6_K")
# What a matrix gets whose rows are no multiple of a type's block; F16, where that has such blocks too.
_LESS: Final[Mapping[str, str]] = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Matrices that are never rounded: the end of their names, less ".weight".
_KEPT: Final = ("position_embd", "ffn_gate_inp", "ffn_gate_inp_shexp", "attn_rel_b")


def type_of(
    kind: str, name: str, shape: tuple[int, ...], n_layer: int, *, has_head: bool, is_falcon: bool = False
) -> str:
    """The type of a tensor.

    Parameters
    ----------
    kind : str
        One of `FILE_TYPES`.
    name : str
        The file's.
    shape : tuple of int
        Rows first.
    n_layer : int
        Of mixtures: layers.
    has_head : bool
        Whether the file has ``output.weight``; else the table of tokens is the head.
    is_falcon : bool
        Its matrices have types of their own in mixtures.
    """
    base = name.removesuffix(".weight")
    if len(shape) < 2 or base == name or base.endswith(_KEPT) or "norm" in base.rsplit(".", 1)[-1]:
        return "F32"
    wanted = _mixed(kind, base, n_layer, has_head, is_falcon) if kind in MIXTURES else kind
    while shape[-1] % type_sizes()[wanted][1][0]:
        wanted = _LESS.get(wanted, "F16")
    return wanted


def _mixed(kind: str, base: str, n_layer: int, has_head: bool, is_falcon: bool) -> str:
    """The type of a matrix in a mixture."""
    plain, size = kind[:4], kind[-1]
    part = base.rsplit(".", 1)[-1]
    if base == "output" or (base == "token_embd" and not has_head):
        return "Q8_0" if is_falcon else "Q6_K"
    if not base.startswith("blk."):
        return plain
    layer = int(base.split(".")[1])
    eighth = n_layer // 8
    important = layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2
    if size == "S":
        if kind == "Q4_K_S" and part in ("attn_v", "ffn_down", "ffn_down_exps"):
            return "Q5_K" if layer < (4 if part == "attn_v" else eighth) else plain
        return plain
    if part == "attn_qkv":
        return {"Q4_K": "Q5_K", "Q5_K": "Q6_K"}[plain]
    if part == "attn_v":
        return "Q6_K" if important else plain
    if part in ("ffn_down", "ffn_down_exps"):
        if is_falcon and plain == "Q4_K":
            return "Q6_K" if layer < n_layer // 16 else "Q5_K" if important else plain
        return "Q6_K" if important else plain
    return plain


def _relative(importance: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Importance of inputs in multiples of its mean; None if there is none.

    Inputs that a text never used keep a little: another text may use them.
    """
    mean = importance.mean(dtype=np.float64)
    return np.maximum(importance / mean, _LEAST).astype(np.float32) if mean > 0.0 else None


def encoded(
    array: NDArray[np.float32],
    kind: str,
    what: str,
    importance: NDArray[np.float32] | None = None,
    n_threads: int = 1,
) -> NDArray[Any]:
    """The bytes of a tensor in a type.

    Parameters
    ----------
    what : str
        File and tensor, for messages.
    importance : ndarray of float32, [n_in] or [n_experts, n_in], optional
        Of the types of blocks of 256, Q4_0 and Q5_0: weights of the inputs' errors. All zeros: none.
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
    if kind not in (*_K_TYPES, *WEIGHTED):
        importance = None
    if importance is not None and importance.ndim == 2:
        experts = zip(array, importance, strict=True)
        parts = [encoded(part, kind, what, means, n_threads) for part, means in experts]
        return np.concatenate([part.reshape(-1) for part in parts])
    if importance is not None:
        importance = _relative(importance)
    if importance is not None and kind in WEIGHTED:
        return weighted_blocks(array.reshape(-1, array.shape[-1]), kind, importance)
    if kind in _K_TYPES:
        rows = np.ascontiguousarray(array.reshape(-1, array.shape[-1]))
        packed = _core.quantise(rows, kind.lower(), importance=importance, n_threads=n_threads)
        return np.frombuffer(packed, np.uint8)
    from gguf import GGMLQuantizationType, quants

    blocks: NDArray[np.uint8] = quants.quantize(array, GGMLQuantizationType[kind])
    return blocks
