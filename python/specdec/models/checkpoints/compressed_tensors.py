"""Quantized matrices in Hugging Face folders, in the layout of compressed-tensors 0.9 to 0.20.

``X.weight`` holds codes, ``X.weight_scale`` one scale per row and group of inputs. Codes packed into 32-bit
words are ``X.weight_packed``, with ``X.weight_shape``. A value is code · scale; groups of 32 with f16 scales
are Q8_0 and Q4_0, the core's int8 and int4. With zero points, ``X.weight_zero_point``, a value is
(code - zero point) · scale, in Q5_0. The library itself needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.fields import Fields, as_json
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.checkpoints.safetensors_file import StoredTensor
from specdec.models.number_formats import widened

METHOD: Final = "compressed-tensors"
"""The ``quant_method`` of a config.json."""

CODE_TYPES: Final[Mapping[int, str]] = {8: "Q8_0", 4: "Q4_0"}
"""Bits of a code to the ggml type with such codes."""

GROUP: Final = 32
"""Inputs of a block."""

CodesReader: TypeAlias = Callable[[Mapping[str, StoredTensor]], dict[str, FileTensor]]
"""From the tensors of a folder, by name, to those with the parts of each quantized matrix combined."""

_FORMATS: Final = ("pack-quantized", "int-quantized")
_ACTIVATIONS: Final = ("input_activations", "output_activations")
_PACKED, _SCALE, _SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"
_ZEROS: Final = ".weight_zero_point"
# Accepted values of a scheme's weights.
_WEIGHTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "num_bits": tuple(CODE_TYPES), "type": ("int",), "symmetric": (True, False, None),
    "dynamic": (False, None), "strategy": ("group", "channel"),
    "actorder": (None, False, "static", "weight"),
}  # fmt: skip
# Tensors of unsupported layouts.
_OTHERS: Final = (".weight_g_idx", ".weight_global_scale", ".input_scale")


# ------------------------------------------------------------------------------------------- reading


def reader_of(config: Fields) -> CodesReader:
    """Return what combines the tensors; refuse a ``quantization_config`` with other values than above."""
    symmetric: set[bool] = set()
    given = config.raw("format")
    _require(config, "format", (*_FORMATS, "mixed-precision"))
    _require(config, "quantization_status", ("compressed", None))
    for name in ("kv_cache_scheme", "transform_config"):
        _require(config, name, (None, {}), "nothing")
    config.skip("global_compression_ratio", "version")
    sparsity = config.object("sparsity_config")
    if sparsity is not None:
        _require(sparsity, "format", ("dense",))
        sparsity.skip()
    groups = config.object("config_groups")
    if groups is None:
        raise config.error("config_groups", "an object with a scheme")
    for name in groups.as_dict():
        scheme = groups.object(name)
        if scheme is None:
            raise groups.error(name, "a scheme")
        _require(scheme, "format", (*_FORMATS, None) if given in _FORMATS else _FORMATS)
        for activations in _ACTIVATIONS:
            _require(scheme, activations, (None,), "nothing, weights alone being quantized")
        scheme.skip("targets")
        weights = scheme.inner("weights")
        weights.skip("group_size", "block_structure", "scale_dtype", "zp_dtype")
        weights.skip("observer", "observer_kwargs")
        for field, values in _WEIGHTS.items():
            _require(weights, field, values)
        symmetric.add(weights.raw("symmetric") is not False)
        if len(symmetric) > 1 or (symmetric == {False} and weights.raw("num_bits") != 4):
            raise weights.unsupported("symmetric", "true, or false in all schemes with 4 bits")
    return partial(with_codes, asymmetric=symmetric == {False})


def _require(fields: Fields, name: str, values: tuple[Any, ...], expected: str = "") -> None:
    if fields.raw(name) not in values:
        raise fields.unsupported(name, expected or _listed(values))


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(as_json(value) for value in values if value is not None)


@dataclass(frozen=True)
class Codes(FileTensor):
    """A matrix of codes and scales; scales are f16, bf16 or f32, [n_out, n_groups].

    Codes are int8, or packed with an offset into int32, [n_out, n_in · bits / 32], lowest bits first. So are
    zero points of 4 bits, if any, [n_out / 8, n_groups].
    """

    codes: StoredTensor
    scales: StoredTensor
    zeros: StoredTensor | None

    @property
    def files(self) -> set[Path]:
        """Paths of all parts; see `FileTensor`."""
        return {part.file for part in self._parts}

    @property
    def _parts(self) -> list[StoredTensor]:
        return [part for part in (self.codes, self.scales, self.zeros) if part is not None]

    @property
    def is_coded(self) -> bool:
        """True; see `FileTensor`."""
        return True

    def check(self, numbers: str = "") -> None:
        """Refuse reading as bytes; see `FileTensor`."""
        if numbers:
            raise self.error("is quantized", numbers, UnsupportedModelError)

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the pieces of all parts; see `FileTensor`."""
        for part in self._parts:
            yield from part.pieces()

    def file_rows(self, index: int | None = None) -> None:
        """Return None, as the file has another layout; see `FileTensor`."""

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[np.float32]:
        """Return the values, f32, rounded once; see `FileTensor`."""
        self.check(numbers)
        n_out, n_in = self.shape
        scales = self.scale_numbers()
        codes = self.signed().reshape(n_out, scales.shape[1], -1)
        with np.errstate(all="ignore"):  # damaged scales; the core refuses values that are not finite
            values = (codes * scales[..., None]).reshape(n_out, n_in)
        return values if index is None else values[index]

    def blocks(self, index: int | None = None) -> NDArray[np.uint8]:
        """Return blocks of Q8_0, Q4_0 or Q5_0; see `FileTensor`."""
        n_out, n_in = self.shape
        n_blocks = n_in // GROUP
        scales = self._halves()
        scales = np.repeat(scales, n_blocks // scales.shape[1], axis=1)
        head = scales.view(np.uint8).reshape(n_out, n_blocks, 2)
        if self.dtype == "Q4_0":
            codes = _halves_apart(self.code_bytes().reshape(n_out, n_blocks, GROUP // 2))
        else:
            codes = self.signed().view(np.uint8).reshape(n_out, n_blocks, GROUP)
            codes = _fifth_bits_apart(codes) if self.dtype == "Q5_0" else codes
        rows = np.concatenate([head, codes], axis=2).reshape(n_out, -1)
        return rows if index is None else rows[index]

    def _halves(self) -> NDArray[np.float16]:
        """Return the scales in f16, which must hold them exactly."""
        exact = self.scale_numbers()
        with np.errstate(over="ignore"):
            halves = exact.astype("<f2")
        if (lost := (halves != exact) & ~np.isnan(exact)).any():
            expected = "scales that fit f16; load the model with dtype 'bf16' or 'f32' instead"
            found = f"has the scale {exact[lost][0]:g}, which f16 cannot hold"
            raise self.scales.error(found, expected, UnsupportedModelError)
        return halves

    def scale_numbers(self) -> NDArray[np.float32]:
        """Return the scales, f32 [n_out, n_groups]."""
        return widened(self.scales.array(), self.scales.format)

    def code_bytes(self) -> NDArray[np.uint8]:
        """Return the codes as stored, or packed with an offset, in rows of inputs."""
        return self.codes.read()

    def signed(self) -> NDArray[np.int8]:
        """Return the factors of the scales, int8 [n_out, n_in] in any shape."""
        if self.dtype == "Q5_0":
            zeros = self.zero_points()
            grouped = self.unsigned().reshape(*zeros.shape, -1).view(np.int8)
            grouped -= zeros.view(np.int8)[..., None]
            return grouped
        data = self.code_bytes()
        if self.codes.dtype == "I8":
            return data.view(np.int8)
        if self.dtype == "Q8_0":
            return (data ^ np.uint8(0x80)).view(np.int8)
        return self.unsigned().view(np.int8) - np.int8(8)

    def unsigned(self) -> NDArray[np.uint8]:
        """Return codes of 4 bits with their offset, [n_out, n_in] in any shape."""
        return nibbles(self.code_bytes())

    def zero_points(self) -> NDArray[np.uint8]:
        """Return zero points with the offset of `unsigned`, [n_out, n_groups]."""
        assert self.zeros is not None
        words = self.zeros.read().view("<u4").reshape(self.zeros.shape)
        shifts = np.arange(0, 32, 4, dtype=np.uint32)[:, None]
        codes = (words[:, None] >> shifts & np.uint32(15)).astype(np.uint8)
        return codes.reshape(-1, words.shape[1])[: self.shape[0]]


def nibbles(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the two 4-bit codes of each byte, low half first."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


def _halves_apart(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reorder adjacent pairs of 4-bit codes as in Q4_0: code i shares a byte with code i + 16."""
    first, second = codes[..., :8], codes[..., 8:]
    made = np.empty_like(codes)
    made[..., 0::2] = (first & 15) | second << 4
    made[..., 1::2] = first >> 4 | (second & 0xF0)
    return made


def _fifth_bits_apart(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack factors -16 … 15, int8 as bytes [..., 32], as in Q5_0: fifth bits of all, then four bits."""
    raised = codes + np.uint8(16)
    high = np.packbits(raised >> 4, axis=-1, bitorder="little")
    return np.concatenate([high, (raised[..., :16] & 15) | raised[..., 16:] << 4], axis=-1)


def _side_by_side(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Invert `_halves_apart`."""
    even, odd = codes[..., 0::2], codes[..., 1::2]
    return np.concatenate([(even & 15) | odd << 4, even >> 4 | (odd & 0xF0)], axis=-1)


def with_codes(held: Mapping[str, StoredTensor], *, asymmetric: bool) -> dict[str, FileTensor]:
    """Return the tensors of a folder by name, with the parts of each quantized matrix combined."""
    tensors: dict[str, FileTensor] = {}
    parts: set[str] = set()  # scales and shapes of matrices
    others = _OTHERS if asymmetric else (*_OTHERS, _ZEROS)
    for name, tensor in held.items():
        if name.endswith(others):
            expected = "symmetric weight-only quantization with inputs in their order"
            raise tensor.error("is present", expected, UnsupportedModelError)
        is_packed = name.endswith(_PACKED)
        if is_packed or (name.endswith(".weight") and tensor.dtype == "I8"):
            base = name.removesuffix(_PACKED if is_packed else ".weight")
            if is_packed and f"{base}.weight" in held:
                raise CheckpointError(f"{tensor.file}: holds both '{base}.weight' and '{name}'; expected one")
            tensors[f"{base}.weight"] = _matrix(base, tensor, held, asymmetric)
            parts |= {base + _SCALE, base + _SHAPE, base + _ZEROS}
        else:
            tensors[name] = tensor
    return {name: tensor for name, tensor in tensors.items() if name not in parts}


def _matrix(base: str, codes: StoredTensor, held: Mapping[str, StoredTensor], asymmetric: bool) -> Codes:
    scales = held.get(f"{base}{_SCALE}")
    if scales is None:
        raise codes.error(f"has no '{base}{_SCALE}'", "a tensor of scales")
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise codes.shape_error("a matrix", UnsupportedModelError)
    shape, bits = (codes.shape, 8) if codes.dtype == "I8" else _packed_shape(base, codes, held)
    scales.check()
    n_out, n_in = shape
    if len(scales.shape) != 2 or scales.shape[0] != n_out or not 0 < scales.shape[1] <= n_in:
        raise scales.shape_error(f"[{n_out}, groups] for codes of [{n_out}, {n_in}]")
    size, rest = divmod(n_in, scales.shape[1])
    if rest or size % GROUP:
        expected = f"a group size that is a multiple of {GROUP}"
        raise scales.error(f"has {scales.shape[1]} groups of {n_in} inputs", expected, UnsupportedModelError)
    zeros = held.get(f"{base}{_ZEROS}")
    if asymmetric:
        if zeros is None or bits != 4:
            expected = f"4-bit codes with '{base}{_ZEROS}'"
            raise codes.error(f"has {bits}-bit codes" if zeros else "has no zero points", expected)
        if zeros.dtype != "I32" or zeros.shape != (-(-n_out // 8), scales.shape[1]):
            raise zeros.shape_error(f"I32 [{-(-n_out // 8)}, {scales.shape[1]}]", UnsupportedModelError)
    dtype = "Q5_0" if asymmetric else CODE_TYPES[bits]
    n_bytes = codes.n_bytes + scales.n_bytes + (0 if zeros is None else zeros.n_bytes)
    return Codes(codes.opened, f"{base}.weight", dtype, shape, codes.start, n_bytes, codes, scales, zeros)


def _packed_shape(
    base: str, codes: StoredTensor, held: Mapping[str, StoredTensor]
) -> tuple[tuple[int, int], int]:
    """Return the shape of a packed matrix and the bits per code."""
    stated = held.get(f"{base}{_SHAPE}")
    if codes.dtype != "I32":
        raise codes.error(f"has dtype {codes.dtype}", "I32", UnsupportedModelError)
    if stated is None or stated.shape != (2,):
        raise codes.error(f"has no '{base}{_SHAPE}' of two integers", "its shape")
    n_out, n_in = map(int, stated.integers())
    bits = next((bits for bits in CODE_TYPES if codes.shape == (n_out, -(-n_in * bits // 32))), None)
    if bits is None or n_in < 1:
        expected = f"codes of {_listed(tuple(CODE_TYPES))} bits for a matrix of [{n_out}, {n_in}]"
        raise codes.shape_error(expected, UnsupportedModelError)
    return (n_out, n_in), bits


# ------------------------------------------------------------------------------------------- writing


def quantization_config(bits: int, ignored: list[str]) -> dict[str, Any]:
    """Return the ``quantization_config`` of packed codes of 8 or 4 bits, without `ignored` modules."""
    weights = {
        "num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP,
        "dynamic": False,
    }  # fmt: skip
    scheme = {"targets": ["Linear"], "weights": weights} | dict.fromkeys(_ACTIVATIONS)
    return {
        "quant_method": METHOD, "format": _FORMATS[0], "quantization_status": "compressed",
        "config_groups": {"group_0": scheme}, "ignore": ignored, "kv_cache_scheme": None,
    }  # fmt: skip


def packed(blocks: NDArray[np.uint8], bits: int, shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a matrix [n_out, n_in] in Q8_0 or Q4_0 blocks, by the suffix of their names."""
    n_out, n_in = shape
    blocks = blocks.reshape(n_out, n_in // GROUP, -1)
    codes = blocks[..., 2:] ^ np.uint8(0x80) if bits == 8 else _side_by_side(blocks[..., 2:])
    return {
        _PACKED: np.ascontiguousarray(codes).reshape(n_out, -1).view("<i4"),
        _SCALE: np.ascontiguousarray(blocks[..., :2]).view("<f2").reshape(n_out, -1),
        _SHAPE: np.array(shape, np.int64),
    }


def packed_shapes(bits: int, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each tensor of `packed`."""
    n_out, n_in = shape
    return {
        _PACKED: ("int32", (n_out, n_in * bits // 32)),
        _SCALE: ("float16", (n_out, n_in // GROUP)),
        _SHAPE: ("int64", (2,)),
    }
