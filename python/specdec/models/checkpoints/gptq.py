"""Quantized matrices of GPTQ, AWQ and AutoRound folders.

``X.qweight`` packs codes into 32-bit words, inputs first, ``X.qzeros`` zero points; ``X.scales`` has one
scale per group of inputs and output. A value is (code - zero point) · scale. With the middle code as zero
point that is Q4_0 or Q8_0, else Q5_0. The layouts are those of AutoGPTQ 0.7, GPTQModel 2 and AutoAWQ 0.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.fields import Fields
from specdec.models.checkpoints.compressed_tensors import CODE_TYPES, GROUP, Codes, CodesReader, nibbles
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.checkpoints.safetensors_file import StoredTensor
from specdec.models.number_formats import widened

_CODES, _ZEROS, _SCALES, _ORDER = ".qweight", ".qzeros", ".scales", ".g_idx"
_AWQ_COLUMNS: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of each code in a word of AWQ, lowest bits first."""

# Calibration, kernels, and names of modules: the tensors show which are quantized.
_HARMLESS: Final = """
    act_group_aware amp autoround_version backend batch_size block_name_to_quantize cache_block_outputs
    damp_auto_increment damp_percent dataset disable_exllama enable_minmax_tuning enable_norm_bias_tuning
    enable_quanted_input exllama_config fuse_max_seq_len gradient_accumulate_steps hyb_act iters lm_head
    low_gpu_mem_usage lr lr_scheduler max_input_length meta minmax_lr model_file_base_name
    model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize
    modules_to_fuse mse nsamples offload_to_disk offload_to_disk_path pad_token_id provider sampler
    scale_dtype seqlen static_groups super_bits super_group_size supported_bits to_quant_block_names tokenizer
    true_sequential use_cuda_fp16 use_exllama
""".split()


@dataclass(frozen=True)
class Scheme:
    """How codes are stored; `group`: inputs per scale, -1 for all; `offset`: added to stored zero points."""

    bits: int
    group: int
    symmetric: bool
    offset: int = 0
    by_columns: bool = False  # AWQ: a word has codes of eight outputs
    reordered: bool = False  # whether inputs may be in another order


# --------------------------------------------------------------------------------------------- config.json


def _scheme(config: Fields, *, symmetric: bool, **more: Any) -> Scheme:
    """Read what all methods share."""
    bits = config.integer(_named(config, "bits", "w_bit"), default=4)
    if bits not in CODE_TYPES or (bits == 8 and not symmetric):
        expected = "4, or 8 with symmetric codes" if bits == 8 else "4 or 8"
        raise config.unsupported(_named(config, "bits", "w_bit"), expected)
    name = _named(config, "group_size", "q_group_size")
    group = config.integer(name, minimum=-1, default=128)
    if group != -1 and (group == 0 or group % GROUP):
        raise config.unsupported(name, f"-1 or a multiple of {GROUP}")
    config.require("pack_dtype", "int32", because="codes lie in 32-bit words")
    config.require("is_marlin_format", False, because="codes lie in the layout of GPTQ")
    config.require("data_type", "int", because="codes are integers")
    for name in ("act_bits", "act_group_size", "act_dynamic", "act_sym", "act_data_type"):
        if name == "act_bits" and config.raw(name) not in (None, 16, 32):
            raise config.unsupported(name, "16 or nothing: activations are not quantized")
        config.skip(name)
    config.skip(*_HARMLESS)
    return Scheme(bits, group, symmetric, **more)


def _named(config: Fields, *names: str) -> str:
    """Return which of several names of a field the file uses, else the first."""
    return next((name for name in names if config.has(name)), names[0])


def _gptq(config: Fields) -> Scheme:
    layout = _named(config, "checkpoint_format", "format")
    offset = config.choice(layout, {"gptq": "1", "gptq_v2": "0"}, default="gptq")
    dynamic = config.object("dynamic") or config.empty("dynamic")
    for rule in dynamic.as_dict():
        if not rule.startswith("-:"):
            raise dynamic.unsupported(rule, "no module with another scheme")
    dynamic.skip()
    return _scheme(
        config, symmetric=config.boolean("sym", default=True), offset=int(offset),
        reordered=config.boolean("desc_act", default=False),
    )  # fmt: skip


def _awq(config: Fields) -> Scheme:
    config.choice(_named(config, "version", "format"), {"gemm": "gemm", "GEMM": "gemm"}, default="gemm")
    config.require("zero_point", True, because="the layout has zero points")
    config.require(_named(config, "bits", "w_bit"), 4, because="the layout has eight codes in a word")
    return _scheme(config, symmetric=False, by_columns=True)


def _auto_round(config: Fields) -> Scheme:
    layouts = {
        "auto_round:auto_gptq": "1", "auto_round:gptqmodel": "0", "auto_round": "0", "auto_round:auto_awq": ""
    }  # fmt: skip
    offset = config.choice("packing_format", layouts)
    others = config.object("extra_config") or config.empty("extra_config")
    for module in others.as_dict():
        of_module = others.inner(module)
        if of_module.raw("bits") not in (16, 32):
            raise of_module.unsupported("bits", "16: no module with another scheme")
        of_module.skip()
    if not offset:
        return _awq(config)
    return _scheme(config, symmetric=config.boolean("sym", default=True), offset=int(offset))


READERS: Final[Mapping[str, Callable[[Fields], CodesReader]]] = {
    "gptq": lambda config: partial(_with_codes, _gptq(config)),
    "awq": lambda config: partial(_with_codes, _awq(config)),
    "auto-round": lambda config: partial(_with_codes, _auto_round(config)),
}
"""By ``quant_method``: from a ``quantization_config`` to the reader of its folder; refuse other schemes."""


# ------------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class TurnedCodes(Codes):
    """A matrix [n_out, n_in] whose file has inputs first; zero points [n_groups, n_out · bits / 32]."""

    scheme: Scheme

    def scale_numbers(self) -> NDArray[np.float32]:
        """Return the scales, f32 [n_out, n_groups]."""
        return np.ascontiguousarray(widened(self.scales.array(), self.scales.format).T)

    def code_bytes(self) -> NDArray[np.uint8]:
        """Return the codes of symmetric schemes in rows [n_out, bytes]."""
        middle = 1 << self.scheme.bits - 1
        if (self.zero_points() != middle).any():
            assert self.zeros is not None
            expected = f"{middle} in every group, as 'sym' is true in config.json"
            raise self.zeros.error("has other zero points", expected)
        return np.ascontiguousarray(_words(self.codes).T).view(np.uint8)

    def unsigned(self) -> NDArray[np.uint8]:
        """Return codes of 4 bits, [n_out, n_in]."""
        if self.scheme.by_columns:
            return _of_columns(self.codes)
        return nibbles(np.ascontiguousarray(_words(self.codes).T).view(np.uint8))

    def zero_points(self) -> NDArray[np.uint8]:
        """Return the zero points, [n_out, n_groups]."""
        assert self.zeros is not None
        if self.scheme.by_columns:
            return _of_columns(self.zeros)
        stored = _words(self.zeros).view(np.uint8)
        stored = nibbles(stored) if self.scheme.bits == 4 else stored
        most = (1 << self.scheme.bits) - 1
        if self.scheme.offset and (stored == most).any():
            expected = "smaller ones: programs differ in what it means"
            raise self.zeros.error(f"has the zero point {most}", expected, UnsupportedModelError)
        return np.ascontiguousarray(stored.T) + np.uint8(self.scheme.offset)


def _words(tensor: StoredTensor) -> NDArray[np.uint32]:
    return tensor.read().view("<u4").reshape(tensor.shape)


def _of_columns(tensor: StoredTensor) -> NDArray[np.uint8]:
    """Return the codes of AWQ's words, [rows, n / 8], turned, [n, rows]."""
    words = np.ascontiguousarray(_words(tensor).T)
    codes = np.empty((len(words), 8, words.shape[1]), np.uint8)
    for i, column in enumerate(_AWQ_COLUMNS):
        codes[:, column] = words >> np.uint32(4 * i) & np.uint32(15)
    return codes.reshape(-1, words.shape[1])


def _with_codes(scheme: Scheme, held: Mapping[str, StoredTensor]) -> dict[str, FileTensor]:
    """Return the tensors of a folder by name, with the parts of each quantized matrix combined."""
    tensors: dict[str, FileTensor] = {}
    parts: set[str] = set()
    for name, tensor in held.items():
        if not name.endswith(_CODES):
            tensors[name] = tensor
            continue
        base = name.removesuffix(_CODES)
        if f"{base}.weight" in held:
            raise CheckpointError(f"{tensor.file}: holds both '{base}.weight' and '{name}'; expected one")
        tensors[f"{base}.weight"] = _matrix(base, tensor, held, scheme)
        parts |= {base + _ZEROS, base + _SCALES, base + _ORDER}
    return {name: tensor for name, tensor in tensors.items() if name not in parts}


def _matrix(base: str, codes: StoredTensor, held: Mapping[str, StoredTensor], scheme: Scheme) -> TurnedCodes:
    zeros, scales = (held.get(base + suffix) for suffix in (_ZEROS, _SCALES))
    if zeros is None or scales is None:
        raise codes.error(f"has no '{base}{_ZEROS if zeros is None else _SCALES}'", "all three tensors")
    for words in (codes, zeros):
        if words.dtype != "I32":
            raise words.error(f"has dtype {words.dtype}", "I32", UnsupportedModelError)
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise codes.shape_error("a matrix")
    scales.check()
    per_word = 32 // scheme.bits
    n_in, n_out = codes.shape
    n_in, n_out = (n_in, n_out * per_word) if scheme.by_columns else (n_in * per_word, n_out)
    size = n_in if scheme.group == -1 else scheme.group
    if n_in % size or size % GROUP:
        expected = f"a multiple of {size} inputs, not {n_in}, in groups of a multiple of {GROUP}"
        raise codes.shape_error(expected, UnsupportedModelError)
    n_groups = n_in // size
    for tensor, width in ((scales, n_out), (zeros, -(-n_out // per_word))):
        if tensor.shape != (n_groups, width):
            raise tensor.shape_error(f"[{n_groups}, {width}] for groups of {size} of [{n_in}, {n_out}]")
    if n_out % per_word:
        raise codes.shape_error(f"a multiple of {per_word} outputs", UnsupportedModelError)
    _check_order(base, codes, held, scheme, n_in, size)
    dtype = CODE_TYPES[scheme.bits] if scheme.symmetric else "Q5_0"
    n_bytes = codes.n_bytes + scales.n_bytes + zeros.n_bytes
    where = codes.opened, f"{base}.weight", dtype, (n_out, n_in), codes.start, n_bytes
    return TurnedCodes(*where, codes, scales, zeros, scheme)


def _check_order(
    base: str, codes: StoredTensor, held: Mapping[str, StoredTensor], scheme: Scheme, n_in: int, size: int
) -> None:
    """Refuse inputs in another order than that of their groups."""
    order = held.get(base + _ORDER)
    if order is None:
        if scheme.reordered:
            raise codes.error(f"has no '{base}{_ORDER}'", "the group of each input, as 'desc_act' is true")
        return
    if order.dtype != "I32" or order.shape != (n_in,):
        raise order.error(f"has dtype {order.dtype} and shape {list(order.shape)}", f"I32 [{n_in}]")
    if not np.array_equal(_words(order), np.arange(n_in, dtype=np.uint32) // np.uint32(size)):
        expected = "inputs in the order of their groups ('desc_act' false)"
        raise order.error("reorders inputs", expected, UnsupportedModelError)


def drop_zero_biases(tensors: MutableMapping[str, FileTensor], used: set[str]) -> None:
    """Remove zeros that the first GPTQ programs wrote as biases of quantized matrices without one."""
    for name in [name for name in tensors if name.endswith(".bias") and name not in used]:
        matrix = tensors.get(f"{name.removesuffix('.bias')}.weight")
        if matrix is not None and matrix.is_coded and not tensors[name].array().any():
            del tensors[name]
