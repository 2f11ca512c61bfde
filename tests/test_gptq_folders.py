"""GPTQ, AWQ and AutoRound folders, packed here from the definitions of their layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec.errors import CheckpointError, UnsupportedModelError, UnusedFieldWarning
from tensor_files import write_tensors
from worlds.folders import write_hf
from worlds.gptq import LAYOUTS, N_IN, Array, in_layers, quantized

IDS = [1, 2, 3, 4, 5, 6, 7]
UP = "model.layers.0.mlp.up_proj"


def folder_of(
    folder: Path, name: str, parts: Mapping[str, Array | None] | None = None, **fields: Any
) -> Path:
    """Write a Llama of a layout; `parts` of UP and fields change, None removes a part."""
    config, held, _ = quantized(LAYOUTS[name])
    changed = {f"{UP}.{part}": value for part, value in (parts or {}).items()}
    made = write_hf(folder, config, {})
    kept = {key: value for key, value in (held | changed).items() if value is not None}
    write_tensors(made / "model.safetensors", kept, format="pt")
    config["quantization_config"] |= fields
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_exact(tmp_path: Path, name: str) -> None:
    """With one unquantized matrix."""
    config, held, numbers = quantized(LAYOUTS[name], lambda one: in_layers(one) and "1.mlp.down" not in one)
    folder = write_hf(tmp_path / "codes", config, {})
    write_tensors(folder / "model.safetensors", held, format="pt")
    plain = {field: value for field, value in config.items() if field != "quantization_config"}
    model, values = specdec.load(folder), specdec.load(write_hf(tmp_path / "values", plain, numbers))
    for matrix, number_format in model.formats.items():
        is_plain = not matrix.startswith("layers") or matrix == "layers.1.mlp_down.weight"
        assert number_format == ("f32" if is_plain else LAYOUTS[name].type)
        if matrix != "token_embedding":
            assert np.array_equal(model.core.matrix(matrix), values.core.matrix(matrix))
    assert np.array_equal(specdec.load(folder, "f32").logits(IDS), values.logits(IDS))
    made = specdec.convert(folder, tmp_path / "made.gguf", "F32")
    assert np.array_equal(specdec.load(made).logits(IDS), values.logits(IDS))


def test_zeros_as_biases(tmp_path: Path) -> None:
    """As the first GPTQ programs wrote them for every matrix."""
    sound = specdec.load(folder_of(tmp_path / "sound", "gptq"))
    folder = folder_of(tmp_path / "zeros", "gptq", {"bias": np.zeros(96, np.float16)})
    assert np.array_equal(specdec.load(folder).logits(IDS), sound.logits(IDS))
    folder = folder_of(tmp_path / "ones", "gptq", {"bias": np.ones(96, np.float16)})
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
        specdec.load(folder_of(tmp_path, name, parts))


def test_a_matrix_of_another_shape(tmp_path: Path) -> None:
    parts, _ = LAYOUTS["gptq"].make((96, 32), np.random.default_rng(1))
    with pytest.raises(CheckpointError, match=r"up_proj.weight' has shape \[96, 32\]; expected \[96, 64\]"):
        specdec.load(folder_of(tmp_path, "gptq", parts))


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
        specdec.load(folder_of(tmp_path, name, **{field: value}))


def test_other_fields(tmp_path: Path) -> None:
    """An unknown field; an order of inputs without its tensor; excluded modules."""
    with pytest.warns(UnusedFieldWarning, match="'quantization_config.invented'"):
        specdec.load(folder_of(tmp_path, "gptq", invented=1, dynamic={"-:lm_head": {}}))
    with pytest.raises(CheckpointError, match="has no '.*g_idx'; expected the group of each input"):
        specdec.load(folder_of(tmp_path, "gptq", {"g_idx": None}, desc_act=True))
    specdec.load(folder_of(tmp_path, "gptq", {"g_idx": None}))
