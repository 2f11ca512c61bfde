"""Folders of mixtures of experts: separate or stacked tensors, MXFP4, and rejections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses_field
from specdec import CheckpointError, UnsupportedModelError, reference
from specdec.checkpoints import open_checkpoint
from tensor_files import canonical
from worlds.folders import write_hf
from worlds.mixtures import (
    N_EXPERTS,
    gpt_oss_config,
    gpt_oss_tensors,
    mxfp4_values,
    qwen3_moe_config,
    qwen3_moe_tensors,
    stacked,
    unpacked,
)

IDS = np.random.default_rng(4).integers(0, 61, 40)


def reference_logits(folder: Path) -> np.ndarray:
    return reference.logits(open_checkpoint(folder).config, canonical(folder), IDS.tolist())


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    config = qwen3_moe_config()
    return write_hf(tmp_path_factory.mktemp("published"), config, qwen3_moe_tensors(config))


def test_experts_under_names_of_their_own_and_stacked_are_one_model(published, tmp_path):
    config = qwen3_moe_config()
    together = stacked(qwen3_moe_tensors(config), config["num_hidden_layers"], N_EXPERTS)
    models = [specdec.load(published), specdec.load(write_hf(tmp_path / "stacked", config, together))]
    for model in models:
        assert model.config.n_experts == N_EXPERTS and model.config.mixtures == (1, 1)
    found, other = (model.logits(IDS) for model in models)
    assert np.array_equal(found, other)
    np.testing.assert_allclose(found, reference_logits(published), atol=2e-4)


def test_names_of_transformers_5(published, tmp_path):
    """`num_local_experts` in place of `num_experts`, rotary positions in `rope_parameters`."""
    config = qwen3_moe_config(num_experts=..., rope_theta=..., num_local_experts=N_EXPERTS)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    folder = write_hf(tmp_path / "named", config, qwen3_moe_tensors(qwen3_moe_config()))
    assert np.array_equal(specdec.load(folder).logits(IDS), specdec.load(published).logits(IDS))


@pytest.mark.parametrize(("low", "high"), [(120, 130), (1, 3), (250, 251)])
def test_mxfp4_is_what_its_formula_says(tmp_path, low, high):
    """Including subnormal and the largest bf16 numbers, as read from files."""
    config, rng = gpt_oss_config(), np.random.default_rng(6)
    tensors = gpt_oss_tensors(config)
    for name, array in tensors.items():
        if name.endswith("_scales"):
            tensors[name] = rng.integers(low, high, array.shape, dtype=np.uint8)
    found = canonical(write_hf(tmp_path / "model", config, tensors))
    name = "model.layers.1.mlp.experts.down_proj"
    wanted = mxfp4_values(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])
    for expert, values in enumerate(wanted):
        assert np.array_equal(found[f"layers.1.experts.{expert}.mlp_down.weight"], values)


def test_non_finite_scales_are_refused(tmp_path):
    config = gpt_oss_config()
    for value in (255, 254):
        tensors = gpt_oss_tensors(config)
        tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 0] = value
        tensors["model.layers.1.mlp.experts.down_proj_blocks"][2, 3, 0] = 0x77
        with pytest.raises(CheckpointError, match=r"layers.1.experts.2.mlp_down.weight: element \[3, 0\]"):
            specdec.load(write_hf(tmp_path / str(value), config, tensors))


@pytest.mark.parametrize("dtype", ["bf16", "f32", "int4"])
def test_gpt_oss_in_mxfp4_is_the_model_of_its_numbers(tmp_path, dtype):
    config = gpt_oss_config()
    quantized = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    tensors = gpt_oss_tensors(config)
    packed = write_hf(tmp_path / "packed", config | {"quantization_config": quantized}, tensors, dtype="BF16")
    plain = write_hf(tmp_path / "plain", config, unpacked(tensors), dtype="BF16")
    found, wanted = specdec.load(packed, dtype), specdec.load(plain, dtype)
    assert np.array_equal(found.logits(IDS), wanted.logits(IDS))
    assert specdec.load(packed).dtype == "bf16"
    if dtype == "f32":
        np.testing.assert_allclose(found.logits(IDS), reference_logits(packed), atol=2e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 6}, "n_experts_per_token is 6, expected 1 to 5"),
        ({"num_experts": 10**8}, "num_experts.* is 100000000; expected a whole number from 1 to"),
        ({"num_experts": 6}, "tensor 'model.layers.0.mlp.gate.weight' has shape"),
        ({"mlp_only_layers": [0]}, "tensor 'model.layers.0.mlp.gate_proj.weight' is missing"),
        ({"mlp_only_layers": "none"}, "field 'mlp_only_layers' is"),
        ({"moe_intermediate_size": 25}, "has shape"),
        (
            {"quantization_config": {"quant_method": "mxfp4"}},
            "no such field, or quant_method 'compressed-tensors'",
        ),
    ],
)
def test_configurations_that_do_not_fit_the_weights(changes: dict[str, Any], message: str, tmp_path):
    tensors = qwen3_moe_tensors(qwen3_moe_config())
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        specdec.load(write_hf(tmp_path / "odd", qwen3_moe_config(**changes), tensors))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("swiglu_alpha", 1.5), ("hidden_act", "gelu"), ("quantization_config", {"quant_method": "awq"}),
        ("quantization_config", "mxfp4"),
    ],
)  # fmt: skip
def test_configurations_of_gpt_oss_that_are_refused(field: str, value: Any, tmp_path):
    tensors = gpt_oss_tensors(gpt_oss_config())
    folder = write_hf(tmp_path / "odd", gpt_oss_config(**{field: value}), tensors)
    with refuses_field(folder / "config.json", field, CheckpointError):
        specdec.load(folder)


def test_damaged_mxfp4(tmp_path):
    config = gpt_oss_config()
    tensors = gpt_oss_tensors(config)
    scales, blocks = (f"model.layers.0.mlp.experts.gate_up_proj_{part}" for part in ("scales", "blocks"))
    for changed, message in (
        ({scales: tensors[scales].astype(np.float32)}, "dtype F32; expected U8"),
        ({blocks: tensors[blocks][..., :8]}, "has shape"),
        ({scales: None}, "is missing"),
    ):
        given = {name: array for name, array in (tensors | changed).items() if array is not None}
        with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
            specdec.load(write_hf(tmp_path / "damaged", config, given))
