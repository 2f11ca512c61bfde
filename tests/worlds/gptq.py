"""Llamas in the layouts of GPTQ, AWQ and AutoRound, packed from the definitions with NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from worlds.families import CONFIGS, random_weights

Array = np.ndarray
N_IN = 64
COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Of the codes in AWQ's words."""


@dataclass(frozen=True)
class Layout:
    """A quantization: its fields, and how the parts of a matrix are made."""

    fields: Mapping[str, Any]
    bits: int = 4
    group: int = 32
    symmetric: bool = True
    stored_less: int = 1  # subtracted from stored zero points
    awq: bool = False
    type: str = "int4"
    more: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        group = -1 if self.group == N_IN and self.bits == 4 else self.group
        sym = {} if self.awq else {"sym": self.symmetric}
        return {"bits": self.bits, "group_size": group} | sym | dict(self.fields)

    def words(self, codes: Array, by_columns: bool) -> Array:
        """Pack codes [rows, columns] along columns or rows into int32."""
        n = 32 // self.bits
        rows, columns = codes.shape
        packed = np.zeros((rows, columns // n) if by_columns else (rows // n, columns), np.uint32)
        for i in range(n):
            at = COLUMNS[i] if self.awq else i
            part = codes[:, at::n] if by_columns else codes[i::n]
            packed |= part.astype(np.uint32) << np.uint32(self.bits * i)
        return packed.view(np.int32)

    def make(self, shape: tuple[int, int], rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
        """Return the parts of a matrix [n_out, n_in], and its values."""
        n_out, n_in = shape
        size = n_in if self.group == N_IN else self.group
        n_groups, n_codes = n_in // size, 1 << self.bits
        codes = rng.integers(0, n_codes, (n_in, n_out))
        zeros = np.full((n_groups, n_out), n_codes // 2)
        if not self.symmetric:
            zeros = rng.integers(self.stored_less, n_codes, zeros.shape)
        scales = (rng.uniform(0.01, 0.03, zeros.shape) * rng.choice([-1, 1], zeros.shape)).astype(np.float16)
        of = np.arange(n_in) // size
        values = ((codes - zeros[of]) * scales[of].astype(np.float32)).astype(np.float32).T
        parts = {
            "qweight": self.words(codes, self.awq), "scales": scales,
            "qzeros": self.words(zeros - self.stored_less, True), "g_idx": of.astype(np.int32),
        }  # fmt: skip
        if self.awq:
            del parts["g_idx"]
        return parts, values


GPTQ = {"quant_method": "gptq", "desc_act": False}
AUTO = {"quant_method": "auto-round", "data_type": "int", "autoround_version": "0.8", "iters": 200}
LAYOUTS = {
    "gptq": Layout(GPTQ | {"damp_percent": 0.1, "true_sequential": True, "lm_head": False}),
    "gptq v2, all inputs": Layout(GPTQ | {"checkpoint_format": "gptq_v2"}, group=N_IN, stored_less=0),
    "gptq asymmetric": Layout(GPTQ | {"checkpoint_format": "gptq"}, symmetric=False, type="q5_0"),
    "gptq v2 asymmetric": Layout(GPTQ | {"format": "gptq_v2"}, symmetric=False, stored_less=0, type="q5_0"),
    "gptq 8 bits": Layout(GPTQ, bits=8, type="int8"),
    "gptq of auto-round": Layout(GPTQ | {"provider": "auto-round", "data_type": "int"}),
    "awq": Layout({"quant_method": "awq", "zero_point": True, "version": "gemm", "modules_to_not_convert":
        ["lm_head"]}, symmetric=False, stored_less=0, awq=True, type="q5_0"),
    "auto-round": Layout(AUTO | {"packing_format": "auto_round:auto_gptq", "extra_config": {"lm_head":
        {"bits": 16, "act_bits": 16}}}),
    "auto-round v2": Layout(AUTO | {"packing_format": "auto_round:gptqmodel"}, symmetric=False,
        stored_less=0, type="q5_0"),
    "auto-round awq": Layout(AUTO | {"packing_format": "auto_round:auto_awq"}, symmetric=False,
        stored_less=0, awq=True, type="q5_0"),
}  # fmt: skip
"""By name; those of one method begin with it."""


def in_layers(name: str) -> bool:
    """Whether a matrix is in a layer."""
    return ".layers." in name


def quantized(
    layout: Layout, matrices: Callable[[str], bool] = in_layers
) -> tuple[dict[str, Any], dict[str, Array], dict[str, Array]]:
    """Return config.json, the tensors with some matrices quantized, and all values."""
    config = CONFIGS["LlamaForCausalLM"] | {"hidden_size": N_IN, "intermediate_size": 96, "head_dim": 32}
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_scaling": None}
    values, rng = random_weights("LlamaForCausalLM", config), np.random.default_rng(3)
    held: dict[str, Array] = {}
    for name, array in values.items():
        if array.ndim == 2 and matrices(name):
            made, values[name] = layout.make(array.shape, rng)
            held |= {f"{name.removesuffix('weight')}{part}": value for part, value in made.items()}
        else:
            held[name] = array
    return config | {"quantization_config": layout.config()}, held, values
