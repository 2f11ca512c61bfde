"""Writing GGUF files: tensor types, encoding, and the container."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.atomic_file import replacing
from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints.gguf_file import MAGIC, type_sizes
from specdec.models.number_formats import rounded_to_bf16

WEIGHTED: Final[Mapping[str, int]] = {"Q4_0": 8, "Q5_0": 16}
"""Block types with weighted quantization in this module, and the offset of their codes."""
_BLOCK: Final = 32
_TOGETHER: Final = 1 << 14  # blocks per batch
_TRIALS: Final = np.arange(-9, 10, dtype=np.float32) / np.float32(10)


def weighted_blocks(
    rows: NDArray[np.float32], ggml_type: str, importance: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Quantize rows [n_rows, n_in], n_in a multiple of 32, by the best-fitting scale of some twenty grids."""
    most = WEIGHTED[ggml_type]
    squares = np.mean(np.square(rows, dtype=np.float64), axis=1, keepdims=True).astype(np.float32)
    made: list[NDArray[np.uint8]] = []
    step = max(1, _TOGETHER * _BLOCK // rows.shape[1])
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        weights = importance * np.sqrt(squares[first : first + step] + some * some)
        x, w = some.reshape(-1, _BLOCK), weights.reshape(-1, _BLOCK)
        d = _best_scale(x, w, np.float32(most)).astype(np.float16)
        codes = (_codes(x, _inverse(d.astype(np.float32)), most) + most).astype(np.uint8)
        # scale; fifth bits (Q5_0); low nibbles for the first half, high nibbles for the second
        low = codes[:, : _BLOCK // 2] & 15 | (codes[:, _BLOCK // 2 :] & 15) << 4
        fifth = [np.packbits(codes >> 4, axis=1, bitorder="little")] if ggml_type == "Q5_0" else []
        made.append(np.concatenate([d[:, None].view(np.uint8), *fifth, low], axis=1).reshape(-1))
    return np.concatenate(made)


def _codes(x: NDArray[np.float32], steps: NDArray[np.float32], most: int) -> NDArray[Any]:
    codes: NDArray[Any] = np.clip(np.rint(x * steps[:, None]), -most, most - 1)
    return codes


def _inverse(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 / x, or 0 where x is 0."""
    result: NDArray[np.float32] = np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)
    return result


def _best_scale(x: NDArray[np.float32], w: NDArray[np.float32], most: np.float32) -> NDArray[np.float32]:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    inverse = _inverse(extreme)
    scale, gain = np.zeros_like(extreme), np.zeros_like(extreme)
    for trial in _TRIALS:
        q = _codes(x, -(most + trial) * inverse, int(most))
        fit, size = (w * q * x).sum(axis=1), (w * q * q).sum(axis=1)
        better = fit * fit * _inverse(size)
        scale = np.where(better > gain, fit * _inverse(size), scale)
        gain = np.maximum(better, gain)
    return scale


FILE_TYPES: Final[Mapping[str, int]] = {
    "F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K": 16,
    "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
}  # fmt: skip
"""Types that a file can have, and their ``general.file_type``."""

MIXTURES: Final = ("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M")
"""File types with mixed matrix types, chosen as llama.cpp does."""

WEIGHED: Final = ("Q4_0", *(f"Q{bits}_K" for bits in (4, 5, 6)), *MIXTURES)
"""File types that weight quantization errors by importance."""

_LEAST: Final = 1e-4  # minimum importance of an input, relative to the mean
_K_TYPES: Final = ("Q4_K", "Q5_K", "Q6_K")
# Fallback types for rows that are not a multiple of the block size, before F16.
_LESS: Final[Mapping[str, str]] = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Name suffixes, without ".weight", of matrices that stay in F32.
_KEPT: Final = (
    "position_embd", "ffn_gate_inp", "ffn_gate_inp_shexp", "attn_rel_b", "ssm_conv1d", "ssm_alpha",
    "ssm_beta", "ssm_ba", "shortconv.conv",
)  # fmt: skip


def type_of(
    ggml_type: str,
    name: str,
    shape: tuple[int, ...],
    n_layer: int,
    *,
    has_head: bool,
    is_falcon: bool = False,
) -> str:
    """Return the type of a tensor; without `has_head` (``output.weight``), the embedding is the head."""
    base = name.removesuffix(".weight")
    if len(shape) < 2 or base == name or base.endswith(_KEPT) or "norm" in base.rsplit(".", 1)[-1]:
        return "F32"
    wanted = _mixed(ggml_type, base, n_layer, has_head, is_falcon) if ggml_type in MIXTURES else ggml_type
    while shape[-1] % type_sizes()[wanted][1][0]:
        wanted = _LESS.get(wanted, "F16")
    return wanted


def _mixed(ggml_type: str, base: str, n_layer: int, has_head: bool, is_falcon: bool) -> str:
    """Return the type of a matrix in a mixed file type."""
    plain, part = ggml_type[:4], base.rsplit(".", 1)[-1]
    if base == "output" or (base == "token_embd" and not has_head):
        return "Q8_0" if is_falcon else "Q6_K"
    if not base.startswith("blk."):
        return plain
    layer = int(base.split(".")[1])
    eighth = n_layer // 8
    important = layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2
    is_down = part in ("ffn_down", "ffn_down_exps")
    if ggml_type.endswith("_S"):
        first = 4 if part == "attn_v" else eighth if is_down else 0
        return "Q5_K" if ggml_type == "Q4_K_S" and layer < first else plain
    if part == "attn_qkv":
        return {"Q4_K": "Q5_K", "Q5_K": "Q6_K"}[plain]
    if is_down and is_falcon and plain == "Q4_K":
        return "Q6_K" if layer < n_layer // 16 else "Q5_K" if important else plain
    return "Q6_K" if important and (is_down or part == "attn_v") else plain


def _relative(importance: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return importance relative to its mean, with a small minimum; None if all is 0."""
    mean = importance.mean(dtype=np.float64)
    return np.maximum(importance / mean, _LEAST).astype(np.float32) if mean > 0.0 else None


def encoded(
    array: NDArray[np.float32], ggml_type: str, what: str, importance: NDArray[np.float32] | None = None,
    n_threads: int = 1,
) -> NDArray[Any]:  # fmt: skip
    """Encode a tensor, weighted by `importance` [n_in] or [n_experts, n_in]; messages name `what`."""
    if not np.isfinite(array).all():
        raise CheckpointError(f"{what} has values that are not finite; expected finite numbers")
    if ggml_type == "F32":
        return array
    if ggml_type in ("F16", "BF16"):
        with np.errstate(over="ignore"):
            half: NDArray[Any] = array.astype(np.float16) if ggml_type == "F16" else rounded_to_bf16(array)
        large = np.isinf(half) if ggml_type == "F16" else (half & 0x7FFF) == 0x7F80
        if large.any():
            raise CheckpointError(f"{what} has values too large for {ggml_type}; expected another type")
        return half
    rows = np.ascontiguousarray(array.reshape(-1, array.shape[-1]))
    if importance is not None and importance.ndim == 2 and ggml_type in (*_K_TYPES, *WEIGHTED):
        experts = zip(array, importance, strict=True)
        parts = [encoded(part, ggml_type, what, means, n_threads).reshape(-1) for part, means in experts]
        return np.concatenate(parts)
    if ggml_type in _K_TYPES:
        weights = None if importance is None else _relative(importance)
        packed = _core.quantize(rows, ggml_type.lower(), importance=weights, n_threads=n_threads)
        return np.frombuffer(packed, np.uint8)
    if ggml_type in WEIGHTED and importance is not None and (weights := _relative(importance)) is not None:
        return weighted_blocks(rows, ggml_type, weights)
    from gguf import GGMLQuantizationType, quants

    blocks: NDArray[np.uint8] = quants.quantize(array, GGMLQuantizationType[ggml_type])
    return blocks


_VERSION: Final = 3
_ALIGNMENT: Final = 32
_STRING, _ARRAY = 8, 9
# Scalar types: id in the format, and `struct` code.
_SCALARS: Final = {"uint32": (4, "I"), "int32": (5, "i"), "float32": (6, "f"), "bool": (7, "?")}
_ITEMS: Final = {name: number for name, (number, _) in _SCALARS.items()} | {"uint8": 0}


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write: `shape` rows first, `type` by ggml's name."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        _, (elements, size) = type_sizes()[self.type]
        return int(np.prod(self.shape, dtype=object)) // elements * size


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: list[NewTensor], data: Iterator[NDArray[Any]]
) -> None:
    """Write a file of version 3, atomically: `metadata` by full keys, and the `data` of `tensors`."""
    with replacing(path) as file:
        file.write(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_string(key) + _value(key, value))
        offset = 0
        for tensor in tensors:
            number, _ = type_sizes()[tensor.type]
            shape = tuple(reversed(tensor.shape))
            file.write(
                _string(tensor.name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)
            )
            offset += tensor.n_bytes + -tensor.n_bytes % _ALIGNMENT
        _pad(file)
        for tensor in tensors:
            array = next(data)
            assert array.nbytes == tensor.n_bytes, tensor.name
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            del array
            _pad(file)


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, np.ndarray):
        head = struct.pack("<IIQ", _ARRAY, _ITEMS[value.dtype.name], len(value))
        return head + value.astype(value.dtype.newbyteorder("<")).tobytes()
    if not isinstance(value, bool | int | float):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
    name = {bool: "bool", float: "float32"}.get(type(value), "int32" if value < 0 else "uint32")
    number, code = _SCALARS[name]
    try:
        return struct.pack(f"<I{code}", number, value)
    except struct.error as error:
        raise InputError(f"metadata field {key!r} is {value}; expected a 32-bit number") from error
