"""Quantized Hugging Face folders in the layout of compressed-tensors: writing, reading, rejections."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from compiled import quantized
from refusals import refuses, refuses_field
from specdec import reference
from specdec.checkpoints import open_checkpoint
from specdec.errors import CheckpointError, InputError, UnsupportedModelError
from tensor_files import tensors_in, write_tensors
from trained import TARGET
from worlds.families import CONFIGS, random_weights
from worlds.folders import write_hf, write_llama2c

IDS = [1, 2, 3, 4, 5, 6, 7]
SOURCE = [3, 4, 5, 6] * 3
BITS = {"int8": 8, "int4": 4}
# Sizes that are multiples of a block, by the names that families have for them.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 96),
    **dict.fromkeys(("n_inner", "ffn_hidden_size", "block_ff_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "head_dim", "d_kv"), 32),
}
UP = "model.layers.0.mlp.up_proj"

Tensors = dict[str, np.ndarray]


def folder_of(folder: Path, name: str, **changes: Any) -> Path:
    """Write a folder of a family whose matrix rows are multiples of 32."""
    config = {**CONFIGS[name], "architectures": [name]}
    config |= {key: size for key, size in SIZES.items() if config.get(key)} | changes
    config = {key: value for key, value in config.items() if value is not ...}
    return write_hf(folder, config, random_weights(name, config))


def llama(folder: Path, **changes: Any) -> Path:
    return folder_of(folder, "LlamaForCausalLM", **{"rope_scaling": ..., "model_type": "llama", **changes})


def same_logits(one: Path, other: Path, *dtype: str) -> bool:
    """Return whether a folder as stored has the logits of another one in a number format."""
    a, b = specdec.load(one), specdec.load(other, *dtype)
    source = None if a.config.encoder is None else SOURCE
    return np.array_equal(a.logits(IDS, source), b.logits(IDS, source))


def codes_of(packed: np.ndarray, bits: int, n_in: int) -> np.ndarray:
    """Unpack codes: code i is in bits bits·i … of a row's words, with an offset of half the range."""
    words = packed.astype(np.int64) & 0xFFFFFFFF
    at = bits * np.arange(n_in)
    return (words[:, at // 32] >> at % 32 & (1 << bits) - 1) - (1 << bits - 1)


# ------------------------------------------------------------------------------------------- written


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_is_the_model_in_this_format(tmp_path: Path, dtype: str, tied: bool) -> None:
    folder = llama(tmp_path / "folder", tie_word_embeddings=tied)
    made = specdec.convert(folder, tmp_path / "made", dtype.upper())
    assert same_logits(made, folder, dtype)
    model, other = specdec.load(made), specdec.load(folder, dtype)
    assert model.dtype == "file" and set(model.formats.values()) == {"bf16", dtype}
    assert not model.config.tied and np.array_equal(
        model.core.matrix("head"), other.core.matrix("token_embedding" if tied else "head")
    )
    held, whole = tensors_in(made), tensors_in(folder)
    bits, rows = BITS[dtype], whole[f"{UP}.weight"].array()
    codes, scales = reference.formats.quantize(rows, dtype)
    assert held[f"{UP}.weight_shape"].integers().tolist() == list(rows.shape)
    packed = held[f"{UP}.weight_packed"].integers()
    assert np.array_equal(codes_of(packed, bits, rows.shape[1]), codes)
    assert np.array_equal(held[f"{UP}.weight_scale"].array(), scales)


FUSED = (
    "GPTBigCodeForCausalLM",
    "GPTNeoXForCausalLM",
    "Qwen2MoeForCausalLM",
    "OPTForCausalLM",
    "Qwen3_5ForCausalLM",
)
NOT_LINEAR = {
    "GptOssForCausalLM": "which is quantized in mxfp4",
    "GraniteMoeForCausalLM": "has more or less than one row per output",
    "GraniteMoeSharedForCausalLM": "has more or less than one row per output",
    "GraniteMoeSWAForCausalLM": "has more or less than one row per output",
    "GraniteMoeHybridForCausalLM": "has rows that stay in f32",
    "BambaForCausalLM": "has rows that stay in f32",
    "FalconH1ForCausalLM": "has rows that stay in f32",
    "Mamba2ForCausalLM": "has rows that stay in f32",
    "NemotronHForCausalLM": "has rows that stay in f32",
}
NAMES = [name for name in CONFIGS if name not in NOT_LINEAR and "text_config" not in CONFIGS[name]]


@pytest.mark.parametrize(
    "name", [name if name in FUSED else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_families(tmp_path: Path, name: str) -> None:
    """Fused matrices, experts, and tied heads of encoder-decoders, which stay the embedding."""
    changes = {"rope_scaling": ...} if name == "Phi3ForCausalLM" else {}
    changes |= {"global_head_dim": 16} if name.startswith("Gemma4") else {}  # whole blocks of 32 inputs
    folder = folder_of(tmp_path / "folder", name, **changes)
    made = specdec.convert(folder, tmp_path / "made", "int8")
    config = specdec.load(folder).config
    assert same_logits(made, folder, "int8") != (config.encoder is not None and config.tied)


@pytest.mark.parametrize(("name", "why"), NOT_LINEAR.items())
def test_matrices_that_are_no_linear_layers(tmp_path: Path, name: str, why: str) -> None:
    changes = {"expand": 0.5} if name == "Mamba2ForCausalLM" else {}  # as many values, in a wider model
    folder = folder_of(tmp_path / "folder", name, **changes)
    with pytest.raises(UnsupportedModelError, match=why):
        specdec.convert(folder, tmp_path / "made", "int8")
    assert not (tmp_path / "made").exists()


def test_rows_that_are_no_multiple_of_a_block(tmp_path: Path) -> None:
    """They stay unquantized and are listed as ignored."""
    folder = llama(tmp_path / "folder", intermediate_size=88)
    made = specdec.convert(folder, tmp_path / "made", "int4")
    ignored = json.loads((made / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == [f"model.layers.{i}.mlp.down_proj" for i in range(len(ignored))] and ignored
    model = specdec.load(made)
    assert model.formats["layers.0.mlp_down.weight"] == "f32"
    assert model.formats["layers.0.mlp_up.weight"] == "int4"


def test_other_files_of_the_folder(tmp_path: Path) -> None:
    made = specdec.convert(TARGET, tmp_path / "made", "int8")
    assert (made / "tokenizer.json").read_bytes() == (TARGET / "tokenizer.json").read_bytes()
    assert specdec.load(made).default_sampling == specdec.load(TARGET).default_sampling
    bare = specdec.convert(TARGET, tmp_path / "bare", "int8", tokenizer=False)
    assert {file.name for file in bare.iterdir()} == {"config.json", "model.safetensors"}


def test_numbers_of_a_folder(tmp_path: Path) -> None:
    """Conversion between unquantized formats, and dequantization, which warns."""
    folder = llama(tmp_path / "folder")
    assert same_logits(specdec.convert(folder, tmp_path / "f32"), folder)
    half = specdec.convert(folder, tmp_path / "bf16", "BF16")
    assert specdec.load(half).dtype == "bf16" and same_logits(half, folder, "bf16")
    codes = specdec.convert(folder, tmp_path / "codes", "int4")
    with pytest.warns(UserWarning, match=r"is quantized \(Q4_0, BF16\); writing .*F32, exactly"):
        wide = specdec.convert(codes, tmp_path / "wide")
    assert specdec.load(wide).dtype == "f32" and same_logits(codes, wide, "int4")
    with pytest.warns(UserWarning, match="weights, F16, rounded"):
        specdec.convert(codes, tmp_path / "narrow", "F16")
    assert same_logits(specdec.convert(codes, tmp_path / "again", "int4"), codes)


@pytest.mark.parametrize("ggml_type", ["Q8_0", "Q4_0"])
def test_codes_stay_as_they_are(tmp_path: Path, ggml_type: str) -> None:
    """From GGUF to folder and back, also for codes that quantization would not produce."""
    dtype = {"Q8_0": "int8", "Q4_0": "int4"}[ggml_type]
    path = specdec.convert(llama(tmp_path / "folder"), tmp_path / "model.gguf", ggml_type)
    tensor = tensors_in(path)["blk.0.attn_q.weight"]
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    blocks = tensor.blocks().reshape(-1, tensor.block[1]).copy()
    blocks[:, 2:] = rng.integers(0, 256, blocks[:, 2:].shape)
    data[tensor.start : tensor.start + tensor.n_bytes] = blocks.tobytes()
    path.write_bytes(data)
    made = specdec.convert(path, tmp_path / "made", dtype)
    assert same_logits(made, path)
    back = tensors_in(specdec.convert(made, tmp_path / "back.gguf", ggml_type))
    for name, held in tensors_in(path).items():
        if name != "token_embd.weight":
            assert np.array_equal(held.blocks(), back[name].blocks()), name
    assert np.array_equal(back["blk.0.attn_q.weight"].blocks().reshape(blocks.shape), blocks)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    folder = llama(tmp_path / "folder")
    with refuses("type", "Q8_0"):
        specdec.convert(folder, tmp_path / "made", "q8_0")
    with pytest.raises(InputError, match="expected a new or empty folder"):
        specdec.convert(folder, folder, "int8")
    llama2c = write_llama2c(tmp_path / "model.bin")
    with pytest.raises(InputError, match="model.bin: is a llama2.c file; expected a folder or a GGUF"):
        specdec.convert(llama2c, tmp_path / "made", tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    weights = random_weights("LlamaForCausalLM", config)
    weights[f"{UP}.weight"][1, 2] = 1e9
    large = write_hf(tmp_path / "large", config, weights)
    with pytest.raises(CheckpointError, match=r"up_proj.weight': row 1 has a value too large for q8_0"):
        specdec.convert(large, tmp_path / "made", "int8")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("ggml_type", "dtype"), [("q8_0", "int8"), ("q4_0", "int4")])
def test_quantizing_to_blocks(ggml_type: str, dtype: str) -> None:
    """Codes and scales follow the specification, with several threads and incomplete panels."""
    rows = np.random.default_rng(2).standard_normal((70, 96)).astype(np.float32)
    rows[3, :32], rows[4, 5] = 0.0, 40.0
    codes, scales = reference.formats.quantize(rows, dtype)
    codes = codes.reshape(70, 3, 32)
    if ggml_type == "q4_0":
        codes = (codes[..., :16] + 8) | (codes[..., 16:] + 8) << 4
    blocks = np.concatenate([scales[..., None].view(np.uint8), codes.view(np.uint8)], axis=-1)
    for n_threads in (1, 2):
        assert quantized(rows, ggml_type, n_threads=n_threads).tobytes() == blocks.tobytes()


# ---------------------------------------------------------------------------------------------- read


def rewritten(folder: Path, change: Mapping[str, np.ndarray | None], **config: Any) -> None:
    """Change tensors of a quantized folder (None removes one) or fields of quantization_config."""
    held: dict[str, Any] = {
        name: tensor.integers() if tensor.dtype in ("I32", "I64") else tensor.array()
        for name, tensor in tensors_in(folder).items()
    }
    kept = {name: array for name, array in (held | change).items() if array is not None}
    write_tensors(folder / "model.safetensors", kept, format="pt")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] |= config
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in int4, with rows of 128."""
    folder = tmp_path_factory.mktemp("sound")
    return specdec.convert(llama(folder / "whole", hidden_size=128), folder / "codes", "int4")


@pytest.fixture
def codes(tmp_path: Path, sound: Path) -> Path:
    """Return a copy of `sound`."""
    return Path(shutil.copytree(sound, tmp_path / "codes"))


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.grid
@pytest.mark.parametrize("n_groups", [1, 2, 4])
@pytest.mark.parametrize("numbers", ["f16", "bf16", "f32"])
def test_larger_groups_and_other_scales(codes: Path, n_groups: int, numbers: str) -> None:
    """Groups of 32, 64 and 128 inputs; scales that f16 holds exactly, in any dtype."""
    rng = np.random.default_rng(1)
    n_out = tensors_in(codes)[f"{UP}.weight_packed"].shape[0]
    scales = bf16(rng.uniform(0.01, 0.02, (n_out, n_groups)))
    wide = (scales.astype(np.uint32) << 16).view(np.float32)
    stored = {"f16": wide.astype(np.float16), "bf16": scales, "f32": wide}[numbers]
    rewritten(codes, {f"{UP}.weight_scale": stored})
    found = codes_of(tensors_in(codes)[f"{UP}.weight_packed"].integers(), 4, 128)
    expected = (found * np.repeat(wide, 128 // n_groups, axis=1)).astype(np.float32)
    name = "layers.0.mlp_up.weight"
    assert np.array_equal(specdec.load(codes).core.matrix(name), expected)
    assert specdec.load(codes).formats[name] == "int4"
    assert np.array_equal(specdec.load(codes, "f32").core.matrix(name), expected)


def test_codes_that_are_not_packed(codes: Path) -> None:
    """int8 tensors: the int-quantized layout."""
    held = tensors_in(codes)
    numbers = codes_of(held[f"{UP}.weight_packed"].integers(), 4, 128).astype(np.int8)
    expected = specdec.load(codes).core.matrix("layers.0.mlp_up.weight")
    dropped = {f"{UP}.weight_packed": None, f"{UP}.weight_shape": None}
    groups = json.loads((codes / "config.json").read_text())["quantization_config"]["config_groups"]
    groups["group_0"]["format"] = "int-quantized"
    changed = {**dropped, f"{UP}.weight": numbers}
    rewritten(codes, changed, format="mixed-precision", config_groups=groups)
    model = specdec.load(codes)
    assert model.formats["layers.0.mlp_up.weight"] == "int8"
    assert np.array_equal(model.core.matrix("layers.0.mlp_up.weight"), expected)


def test_a_scale_that_f16_does_not_hold(codes: Path) -> None:
    scales = tensors_in(codes)[f"{UP}.weight_scale"].array().astype(np.float32)
    scales[3, 1] = 0.1
    rewritten(codes, {f"{UP}.weight_scale": scales})
    with pytest.raises(UnsupportedModelError, match=r"up_proj.weight_scale' has the scale 0.1, which f16"):
        specdec.load(codes)
    found = specdec.load(codes, "f32").core.matrix("layers.0.mlp_up.weight")
    block = found[3, 32:64]
    assert block.any() and np.array_equal(block, np.rint(block / 0.1) * scales[3, 1])


N_OUT = 96  # of up_proj


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight_scale": None}, CheckpointError, r"has no '.*up_proj.weight_scale'; expected a tensor"),
        ({"weight_shape": None}, CheckpointError, r"has no '.*up_proj.weight_shape' of two integers"),
        ({"weight_shape": np.array([3])}, CheckpointError, "of two integers"),
        ({"weight_shape": np.array([N_OUT, 32])}, CheckpointError, "codes of 8 or 4 bits"),
        ({"weight_shape": np.array([N_OUT, -1])}, UnsupportedModelError, "expected codes of 8 or 4 bits"),
        ({"weight_packed": np.zeros((N_OUT, 12), np.int32)}, UnsupportedModelError, "codes of 8 or 4 bits"),
        ({"weight_packed": np.zeros((N_OUT, 16), np.int64)}, CheckpointError, "dtype I64; expected I32"),
        ({"weight_packed": np.zeros((2, 2, 2), np.int32)}, UnsupportedModelError, "expected a matrix"),
        ({"weight_scale": np.zeros((N_OUT, 8), np.float16)}, CheckpointError, "has 8 groups of 128 inputs"),
        ({"weight_scale": np.zeros((N_OUT, 3), np.float16)}, CheckpointError, "has 3 groups of 128 inputs"),
        ({"weight_scale": np.zeros((4, 4), np.float16)}, CheckpointError, r"expected \[96, groups\]"),
        ({"weight_scale": np.zeros(N_OUT, np.float16)}, CheckpointError, r"expected \[96, groups\]"),
        ({"weight_scale": np.zeros((N_OUT, 4), np.int32)}, CheckpointError, "has dtype I32; expected F32"),
        ({"weight": np.zeros((N_OUT, 128), np.float32)}, CheckpointError, "holds both '.*weight' and"),
        ({"weight_zero_point": np.zeros((4, 4), np.int32)}, CheckpointError, "symmetric weight-only"),
        ({"weight_g_idx": np.zeros(128, np.int32)}, UnsupportedModelError, "inputs in their order"),
        ({"weight_scale": np.full((N_OUT, 4), np.inf, np.float16)}, CheckpointError, "mlp_up.weight: "),
    ],
)  # fmt: skip
def test_damaged_tensors(codes: Path, change: Tensors, error: type[Exception], message: str) -> None:
    rewritten(codes, {f"{UP}.{end}": array for end, array in change.items()})
    with pytest.raises(error, match=message):
        specdec.load(codes)


def scheme(**changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights | changes}}}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"quant_method": "hqq"}, ""),
        ({"format": "nvfp4-pack-quantized"}, "format"),
        ({"quantization_status": "frozen"}, "quantization_status"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ({"transform_config": {"a": 1}}, "transform_config"),
        ({"sparsity_config": {"format": "2of4"}}, "sparsity_config.format"),
        ({"config_groups": {}}, "config_groups"), ({"config_groups": {"a": 3}}, "config_groups.a"),
        ({"config_groups": {"a": {}}}, "config_groups.a"),
        ({"format": "mixed-precision"}, "config_groups.group_0.format"),
        ({"config_groups": {"a": {"input_activations": {"b": 8}}}}, "config_groups.a.input_activations"),
        ({"config_groups": {"a": {"targets": []}}}, "config_groups.a.weights"),
        *((scheme(**{field: value}), f"config_groups.group_0.weights.{field}") for field, value in
          {"num_bits": 3, "type": "float", "symmetric": "no", "strategy": "block", "dynamic": True,
           "actorder": "group"}.items()),
        (scheme(symmetric=False, num_bits=8), "config_groups.group_0.weights.symmetric"),
    ],
)  # fmt: skip
def test_other_quantizations(codes: Path, config: dict[str, Any], field: str) -> None:
    rewritten(codes, {}, **config)
    with refuses_field(codes / "config.json", f"quantization_config.{field}".rstrip("."), CheckpointError):
        specdec.load(codes)


def test_zero_points_that_are_refused(codes: Path) -> None:
    asymmetric = scheme(symmetric=False)
    rewritten(codes, {}, **asymmetric)
    with pytest.raises(
        CheckpointError, match=r"has no zero points; expected 4-bit codes with '.*zero_point'"
    ):
        specdec.load(codes)
    for name in [name for name in tensors_in(codes) if name.endswith("weight_packed")]:
        rewritten(codes, {name.replace("packed", "zero_point"): np.zeros((3, 4), np.int32)})
    with pytest.raises(CheckpointError, match=r"zero_point' has shape \[3, 4\]; expected I32 \["):
        specdec.load(codes)
    groups = asymmetric["config_groups"] | {"b": scheme()["config_groups"]["group_0"]}
    rewritten(codes, {}, config_groups=groups)
    with refuses_field(codes / "config.json", "quantization_config.config_groups.b.weights.symmetric"):
        specdec.load(codes)


# ------------------------------------------------------------------------------------------- oracles


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", BITS)
def test_transformers_reads_the_same_weights(tmp_path: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = llama(tmp_path / "folder", num_hidden_layers=2, tie_word_embeddings=True)
    made = specdec.convert(folder, tmp_path / "made", dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
        with torch.no_grad():
            # codes become numbers at the first forward
            logits = theirs(torch.tensor([IDS])).logits[0].numpy()
    ours = {name: array for name, array, _ in open_checkpoint(made, tokenizer=False).tensors()}
    block = theirs.model.layers[1]
    for name, module in (
        ("layers.1.attn_q.weight", block.self_attn.q_proj),
        ("layers.1.mlp_down.weight", block.mlp.down_proj),
        ("head", theirs.lm_head),
    ):
        assert np.array_equal(module.weight.detach().numpy(), ours[name])
    np.testing.assert_allclose(specdec.load(made, "f32").logits(IDS), logits, atol=2e-5)


@pytest.mark.oracle
def test_transformers_reads_inputs_in_the_order_of_the_folder(tmp_path: Path) -> None:
    """Of the matrix that reads the heads of the delta rule, which are in another order here."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = folder_of(tmp_path / "folder", "Qwen3_5ForCausalLM", model_type="qwen3_5_text")
    made = specdec.convert(folder, tmp_path / "made", "int8")
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    with torch.no_grad():
        logits = theirs(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(specdec.load(made, "f32").logits(IDS), logits, atol=2e-5)


@pytest.mark.oracle
@pytest.mark.parametrize(("bits", "symmetric"), [(8, True), (4, True), (4, False)])
@pytest.mark.parametrize("size", [32, 128])
def test_codes_that_the_library_packs(codes: Path, bits: int, size: int, symmetric: bool) -> None:
    """Its own compressor, with bf16 scales, gives our values; differences of 8-bit codes have 9 bits."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=size)
    layer = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn(N_OUT, 128, generator=torch.Generator().manual_seed(1))
    most = weight.reshape(N_OUT, -1, size).abs().amax(-1)
    scale = (most / (2 ** (bits - 1) - 1)).to(torch.bfloat16)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    state = {"weight": weight, "weight_scale": scale}
    if not symmetric:
        state["weight_zero_point"] = torch.randint(-8, 8, scale.shape).to(torch.int8)
    state = compressor.compress(state, layer)
    stored = {name: array.numpy() for name, array in state.items() if name != "weight_scale"}
    stored["weight_scale"] = scale.view(torch.uint16).numpy()
    held = tensors_in(codes)
    zeros = {
        name.replace("weight_packed", "weight_zero_point"): np.full(
            (-(-len(tensor.integers()) // 8), tensor.shape[1] // 4), -0x77777778, np.int32
        )
        for name, tensor in held.items()
        if name.endswith("weight_packed") and not symmetric
    }
    config = {} if symmetric else scheme(symmetric=False)
    rewritten(codes, zeros | {f"{UP}.{end}": array for end, array in stored.items()}, **config)
    state["weight_scale"] = scale.float()
    expected = compressor.decompress(state, layer)["weight"].numpy()
    assert np.array_equal(specdec.load(codes).core.matrix("layers.0.mlp_up.weight"), expected)


def test_files_of_a_folder_have_a_size(tmp_path: Path) -> None:
    """A larger tensor gets its own file; the model equals that of one file."""
    folder = llama(tmp_path / "folder")
    one = specdec.convert(folder, tmp_path / "one", "int4")
    total = (one / "model.safetensors").stat().st_size
    for size, least in ((total // 3, 3), (1, 10)):
        made = specdec.convert(folder, tmp_path / f"by{size}", "int4", max_shard_size=size)
        files = sorted(made.glob("*.safetensors"))
        index = json.loads((made / "model.safetensors.index.json").read_text())
        assert len(files) >= least and set(index["weight_map"].values()) == {file.name for file in files}
        assert size == 1 or all(file.stat().st_size < size + 8192 for file in files)  # and a header
        assert np.array_equal(specdec.load(made).logits(IDS), specdec.load(one).logits(IDS))
    with refuses("max_shard_size", 0):
        specdec.convert(folder, tmp_path / "none", max_shard_size=0)
    with refuses("max_shard_size", 9):
        specdec.convert(folder, tmp_path / "model.gguf", "F32", max_shard_size=9)
