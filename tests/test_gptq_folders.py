"""GPTQ, AWQ and AutoRound folders, packed here from the definitions of their layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec.errors import CheckpointError, UnsupportedModelError, UnusedFieldWarning
from tensor_files import write_tensors
from worlds.families import CONFIGS, random_weights
from worlds.folders import write_hf

Array = np.ndarray
IDS = [1, 2, 3, 4, 5, 6, 7]
N_IN, UP = 64, "model.layers.0.mlp.up_proj"
COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of AWQ's words


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


def quantized(
    folder: Path, layout: Layout, *, matrices: Callable[[str], bool] = lambda name: ".layers." in name,
    parts: Mapping[str, Array | None] | None = None, **fields: Any,
) -> Path:  # fmt: skip
    """Write a Llama with quantized matrices, and beside it one with their values; `parts` of UP change."""
    config = CONFIGS["LlamaForCausalLM"] | {"hidden_size": N_IN, "intermediate_size": 96, "head_dim": 32}
    config = {name: value for name, value in config.items() if name != "rope_scaling"}
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    weights, rng = random_weights("LlamaForCausalLM", config), np.random.default_rng(3)
    held: dict[str, Array] = {}
    for name, array in weights.items():
        if array.ndim == 2 and matrices(name):
            made, weights[name] = layout.make(array.shape, rng)
            held |= {f"{name.removesuffix('weight')}{part}": value for part, value in made.items()}
        else:
            held[name] = array
    held |= {f"{UP}.{part}": value for part, value in (parts or {}).items() if value is not None}
    gone = {f"{UP}.{part}" for part, value in (parts or {}).items() if value is None}
    write_hf(folder / "values", config, weights)
    made = write_hf(folder / "codes", config, {})
    write_tensors(made / "model.safetensors", {k: v for k, v in held.items() if k not in gone}, format="pt")
    described = {k: v for k, v in (layout.config() | fields).items() if v is not ...}
    (made / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    return made


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_exact(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    chosen = lambda name: ".layers." in name and "1.mlp.down" not in name  # noqa: E731
    folder = quantized(tmp_path, layout, matrices=chosen)
    model, values = specdec.load(folder), specdec.load(tmp_path / "values")
    for matrix, number_format in model.formats.items():
        plain = not matrix.startswith("layers") or matrix == "layers.1.mlp_down.weight"
        assert number_format == ("f32" if plain else layout.type)
        if matrix != "token_embedding":
            assert np.array_equal(model.core.matrix(matrix), values.core.matrix(matrix))
    assert np.array_equal(specdec.load(folder, "f32").logits(IDS), values.logits(IDS))
    made = specdec.convert(folder, tmp_path / "made.gguf", "F32")
    assert np.array_equal(specdec.load(made).logits(IDS), values.logits(IDS))


def test_zeros_as_biases(tmp_path: Path) -> None:
    """As the first programs wrote them for every matrix."""
    folder = quantized(tmp_path, LAYOUTS["gptq"], parts={"bias": np.zeros(96, np.float16)})
    values = specdec.load(tmp_path / "values")
    assert np.array_equal(specdec.load(folder, "f32").logits(IDS), values.logits(IDS))
    folder = quantized(tmp_path, LAYOUTS["gptq"], parts={"bias": np.ones(96, np.float16)})
    with pytest.raises(UnsupportedModelError, match=f"does not use: '{UP}.bias'"):
        specdec.load(folder)


ZEROS = np.full((2, 12), 0x77777777, np.int32)
ONE_MORE, ALL_ONES = ZEROS.copy(), np.full((2, 12), -1, np.int32)
ONE_MORE[1, 3] += 16
ORDER = np.arange(N_IN, dtype=np.int32) // 32


@pytest.mark.parametrize(
    ("name", "parts", "error", "message"),
    [
        ("gptq", {"qzeros": None}, CheckpointError, "has no '.*up_proj.qzeros'; expected all three"),
        ("awq", {"scales": None}, CheckpointError, "has no '.*up_proj.scales'; expected all three"),
        ("gptq", {"qzeros": ONE_MORE}, CheckpointError, "has other zero points; expected 8 in every group"),
        ("gptq asymmetric", {"qzeros": ALL_ONES}, UnsupportedModelError, "has the zero point 15; expected"),
        ("gptq", {"g_idx": ORDER[::-1].copy()}, UnsupportedModelError, r"g_idx' reorders inputs.*'desc_act'"),
        ("gptq", {"g_idx": ORDER[:9]}, CheckpointError, r"shape \[9\]; expected I32 \[64\]"),
        ("gptq", {"scales": np.ones((4, 96), np.float16)}, CheckpointError, r"\[2, 96\] for groups of 32"),
        ("awq", {"qzeros": np.zeros((2, 9), np.int32)}, CheckpointError, r"\[2, 12\] for groups of 32 of"),
        ("gptq", {"qweight": np.zeros((8, 96), np.int64)}, UnsupportedModelError, "dtype I64; expected I32"),
        ("gptq", {"qweight": np.zeros(8, np.int32)}, CheckpointError, "expected a matrix"),
        ("gptq", {"qweight": np.zeros((6, 96), np.int32)}, UnsupportedModelError, "multiple of 32 inputs"),
        ("gptq", {"scales": np.ones((2, 96), np.int32)}, CheckpointError, "has dtype I32; expected F32"),
        ("gptq", {"weight": np.ones((96, 64), np.float32)}, CheckpointError, "holds both '.*weight' and"),
        ("gptq", {"scales": np.full((2, 96), 0.1, np.float32)}, UnsupportedModelError, "f16 cannot hold"),
    ],
    ids=range(14),
)  # fmt: skip
def test_parts_that_are_refused(
    tmp_path: Path, name: str, parts: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        specdec.load(quantized(tmp_path, LAYOUTS[name], parts=parts))


def test_a_matrix_of_another_shape(tmp_path: Path) -> None:
    parts, _ = LAYOUTS["gptq"].make((96, 32), np.random.default_rng(1))
    with pytest.raises(CheckpointError, match=r"up_proj.weight' has shape \[96, 32\]; expected \[96, 64\]"):
        specdec.load(quantized(tmp_path, LAYOUTS["gptq"], parts=parts))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gptq", "bits", 3), ("gptq", "checkpoint_format", "marlin"), ("gptq", "is_marlin_format", True),
        ("gptq", "pack_dtype", "int16"), ("gptq", "group_size", 48), ("gptq", "quant_method", "hqq"),
        ("gptq 8 bits", "sym", False), ("gptq", "dynamic", {"+:down": {"bits": 8}}),
        ("awq", "version", "gemv"), ("awq", "zero_point", False), ("awq", "bits", 8),
        ("auto-round", "packing_format", "auto_round:llm_compressor"), ("auto-round", "act_bits", 8),
        ("auto-round", "extra_config", {"lm_head": {"bits": 8}}), ("auto-round", "data_type", "fp"),
    ],
)  # fmt: skip
def test_fields_that_are_refused(tmp_path: Path, name: str, field: str, value: Any) -> None:
    what = {"quant_method": "quantization_config' is", "bits": "bits"}.get(field, field)
    with pytest.raises(UnsupportedModelError, match=what):
        specdec.load(quantized(tmp_path, LAYOUTS[name], **{field: value}))


def test_other_fields(tmp_path: Path) -> None:
    """An unknown field; the order of inputs without a tensor that says it; excluded modules."""
    with pytest.warns(UnusedFieldWarning, match="'quantization_config.invented'"):
        specdec.load(quantized(tmp_path, LAYOUTS["gptq"], invented=1, dynamic={"-:lm_head": {}}))
    with pytest.raises(CheckpointError, match="has no '.*g_idx'; expected the group of each input"):
        specdec.load(quantized(tmp_path, LAYOUTS["gptq"], parts={"g_idx": None}, desc_act=True))
    specdec.load(quantized(tmp_path, LAYOUTS["gptq"], parts={"g_idx": None}))
