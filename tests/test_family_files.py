"""The families without transformers: every architecture opens and computes as in the reference."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import reference
from specdec.checkpoints import open_checkpoint
from specdec.errors import CheckpointError, InputError, UnsupportedModelError
from tensor_files import canonical
from worlds.canonical import IN_F32
from worlds.families import ARCHITECTURES, CONFIGS, random_weights, read_config, tiny_folder
from worlds.folders import write_hf


def write(folder: Path, architecture: str, **changes: Any) -> Path:
    return tiny_folder(folder / "model", architecture, **changes)


def tiny(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a config.json and weights for it."""
    config = CONFIGS[name] | changes | {"architectures": [name]}
    return config, random_weights(name, config)


def read_as(architecture: str, config: dict[str, Any], n_ctx: int | None = None) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fields that the family does not have
        return read_config(config, architecture, n_ctx)


def source_for(model: specdec.Model) -> list[int] | None:
    """Return a source beyond the last bucket's distance, or None for a model without encoder."""
    encoder = model.config.encoder
    return None if encoder is None else np.random.default_rng(3).integers(0, encoder.n_vocab, 29).tolist()


def test_every_architecture_has_a_folder_and_a_row_on_its_page() -> None:
    assert set(CONFIGS) == set(ARCHITECTURES)
    others = ("MptForCausalLM", "MPTForCausalLM", "mpt"), ("ExaoneForCausalLM", "LlamaForCausalLM", "exaone")
    for name, other, model_type in (*others, ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "ernie4_5")):
        former = CONFIGS[name] | {"architectures": [other], "model_type": model_type}
        assert read_as("", former) == read_as(name, former)
    page = (Path(__file__).parents[1] / "docs" / "MODELS.md").read_text()
    assert sorted(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE)) == sorted(ARCHITECTURES)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_are_those_of_the_reference(tmp_path: Path, architecture: str) -> None:
    """Core and reference get the same loaded model; beyond windows."""
    folder = write(tmp_path, architecture)
    model, config = specdec.load(folder), open_checkpoint(folder).config
    ids = np.random.default_rng(2).integers(0, config["n_vocab"], min(24, model.config.n_ctx))
    source = source_for(model)
    expected = reference.logits(config, canonical(folder), ids.tolist(), source=source)
    found = model.logits(ids, source)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("architecture", CONFIGS)
def test_bf16_files_give_the_same_model_as_their_values_in_f32(tmp_path: Path, architecture: str) -> None:
    """For every transformation of tensors, such as adding 1 to norms."""
    config, weights = tiny(architecture)
    halves = {name: (a.view("<u4") >> 16 << 16).view("<f4") for name, a in weights.items()}
    ids = list(range(12))
    one = specdec.load(write_hf(tmp_path / "f32", config, halves), "f32")
    other = specdec.load(write_hf(tmp_path / "bf16", config, halves, dtype="BF16"), "f32")
    source = source_for(one)
    assert np.array_equal(one.logits(ids, source), other.logits(ids, source))


@pytest.mark.parametrize(
    "architecture",
    ["LamdaForCausalLM", "Qwen2MoeForCausalLM", "GptOssForCausalLM", "MarianMTModel",
     "UMT5ForConditionalGeneration"],
)  # fmt: skip
def test_what_a_format_costs_is_said_of_matrices_alone(tmp_path: Path, architecture: str) -> None:
    """Not for embeddings; routers and shared-expert gates are not quantized."""
    model = specdec.load(write(tmp_path, architecture), "int8")
    report = model.quantization_report([1, 2, 3, 4], source_for(model))
    assert report.n_tokens == 3
    tables = ("relative_bias", "position_embedding", "encoder.token_embedding")
    assert not [matrix.name for matrix in report.matrices if matrix.name.endswith(tables)]
    for matrix in report.matrices:
        kept = matrix.name.endswith(IN_F32)
        assert (matrix.relative_error == 0.0) == kept and (matrix.bits_per_weight == 32) == kept


# The same model with the names of transformers 4 and 5.
FORMER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("LlamaForCausalLM", {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
     {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}, "rope_scaling": None}),
    ("Phi3ForCausalLM",
     {"rope_theta": 1e4, "rope_scaling": {"type": "su", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}},
     {"rope_scaling": None, "partial_rotary_factor": None,
      "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                          "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}}),
    ("Gemma3ForCausalLM",
     {"rope_parameters": None, "layer_types": None, "sliding_window_pattern": 2, "rope_theta": 1e4,
      "rope_local_base_freq": 1e2, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {}),
    ("Olmo3ForCausalLM",
     {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {k: v for k, v in {
         "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}.items()}}, {}),
    ("GPTNeoXForCausalLM", {"rotary_emb_base": 5e3, "rotary_pct": 0.5},
     {"rotary_pct": None,
      "rope_parameters": {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 0.5}}),
    ("StableLmForCausalLM", {"partial_rotary_factor": 0.25, "rope_theta": 1e4},
     {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}),
    ("Cohere2ForCausalLM", {"layer_types": None, "sliding_window_pattern": 2}, {}),
    ("GemmaForCausalLM", {"hidden_act": "gelu"}, {"hidden_activation": "gelu_pytorch_tanh"}),
    ("BloomForCausalLM", {"hidden_size": ..., "n_embed": 16}, {}),
    ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
     {"dense_act_fn": "gelu_new", "is_gated_act": True, "scale_decoder_outputs": False,
      "tie_word_embeddings": False}),
    ("MT5ForConditionalGeneration", {}, {"dense_act_fn": "gelu_new", "is_gated_act": True}),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "former", "present"), FORMER)
def test_names_of_transformers_4_and_5(
    architecture: str, former: dict[str, Any], present: dict[str, Any]
) -> None:
    def read(changes: dict[str, Any]) -> dict[str, Any]:
        config = CONFIGS[architecture] | changes
        return read_as(architecture, {name: value for name, value in config.items() if value is not ...})

    assert read(former) == read(present)


def test_contexts(tmp_path: Path) -> None:
    """With and without length-dependent scalings."""
    phi = write(tmp_path, "Phi3ForCausalLM")
    assert specdec.load(phi).config.n_ctx == 16
    short, long = specdec.load(phi, n_ctx=9), specdec.load(phi, n_ctx=30)
    assert (short.config.n_ctx, long.config.n_ctx) == (9, 30)
    assert short.config.inv_freq == specdec.load(phi).config.inv_freq != long.config.inv_freq
    for n_ctx in (0, 33):
        with refuses("n_ctx", n_ctx):
            specdec.load(phi, n_ctx=n_ctx)
    name, config = "LlamaForCausalLM", CONFIGS["LlamaForCausalLM"]
    stretched = read_as(name, config, 64)
    assert stretched["n_ctx"] == 64
    assert stretched["inv_freq"][1] < read_as(name, config)["inv_freq"][1]
    with refuses("n_ctx", 16):
        read_as("GPT2LMHeadModel", CONFIGS["GPT2LMHeadModel"], 16)


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("architecture", "changes", "error", "message"),
    [
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"]}, CheckpointError, "one name for each of 2"),
        ("Gemma3ForCausalLM", {"layer_types": ["a", "b"]}, UnsupportedModelError, "names among"),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [None]}, UnsupportedModelError, r"'moe_topk' is \[null\]"),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [1, 2]}, UnsupportedModelError, "value for all layers"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, UnsupportedModelError, "is causal"),
        ("Gemma4ForCausalLM", {"hidden_size_per_layer_input": ...}, CheckpointError, "per_layer.weight' is"),
        ("Gemma4ForCausalLM", {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9},
         UnsupportedModelError, "17, the vocab_size"),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 1}, UnsupportedModelError, "that is not shared"),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 2}, CheckpointError, "'num_kv_shared_layers' is 2"),
        ("Gemma4ForCausalLM", {"enable_moe_block": True}, CheckpointError, "is missing"),
        ("Gemma4ForCausalLM", {"use_bidirectional_attention": "all"}, UnsupportedModelError, "is causal"),
        ("LlamaForCausalLM", {"use_bidirectional_attention": "vision"}, UnsupportedModelError, "is causal"),
        ("Gemma4ForCausalLM", {"per_layer_config": {"01": {"sliding_window": 3}}}, UnsupportedModelError,
         "not per_layer_config.01.sliding_window"),
        ("Gemma4ForCausalLM", {"per_layer_config": {"2": {"head_dim": 4}}}, UnsupportedModelError,
         "not per_layer_config.2"),
        ("Gemma4ForCausalLM", {"per_layer_config": {"1": {"head_dim": 4}}, "num_hidden_layers": 3,
         "layer_types": ["full_attention"] * 3}, UnsupportedModelError, "in all layers of a type"),
        ("Gemma3ForConditionalGeneration", {"text_config": ...}, CheckpointError, "'text_config' is missing"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 2.0}, CheckpointError, "at most 1"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.4}, CheckpointError, "dimensions, not 3 of 8"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear"}}, UnsupportedModelError, "'rope_scaling"),
        ("Phi3ForCausalLM", {"original_max_position_embeddings": 1}, CheckpointError, "at least 2"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 1e308}}, CheckpointError, "most"),
        ("LlamaForCausalLM", {"rope_scaling": {**YARN, "beta_fast": 1e308}}, CheckpointError, "at most 1e"),
        ("LlamaForCausalLM", {"rope_scaling": {**YARN, "rope_theta": 1.0}}, CheckpointError, "more than 1"),
        ("MixtralForCausalLM", {"num_local_experts": 65536}, CheckpointError, "from 1 to 16384"),
        ("PhiForCausalLM", {"qk_layernorm": True}, UnsupportedModelError, "'qk_layernorm' is true"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, CheckpointError, "0 or 1 for each of 2 layers"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": "10"}, CheckpointError, "0 or 1 for each of 2 layers"),
        ("GPTNeoForCausalLM", {"attention_types": [["global", 2]]}, CheckpointError, "'attention_types'"),
        ("GPTNeoForCausalLM", {"attention_types": 3}, CheckpointError, "'attention_types'"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global"], 10**9]]}, CheckpointError, "'attention_t"),
        ("OPTForCausalLM", {"word_embed_proj_dim": 8}, CheckpointError, "lm_head.weight' is missing"),
        ("OPTForCausalLM", {"do_layer_norm_before": False}, UnsupportedModelError, "final_layer_norm"),
        ("MptForCausalLM", {"attn_config": {"alibi": False}}, UnsupportedModelError, "'attn_config.alibi'"),
        ("FalconForCausalLM", {"parallel_attn": False}, UnsupportedModelError, "is parallel"),
        ("GPTJForCausalLM", {"rotary_dim": 3}, CheckpointError, "'rotary_dim' is 3; expected an even number"),
        ("LamdaForCausalLM", {"relative_attention_max_distance": 5}, CheckpointError, "no bucket empty"),
        ("GraniteForCausalLM", {"logits_scaling": 0}, CheckpointError, "'logits_scaling' is 0"),
        ("BambaForCausalLM", {"time_step_limit": [0.0, 0.1]}, UnsupportedModelError, "have no limits"),
        ("BambaForCausalLM", {"partial_rotary_factor": 0.25}, UnsupportedModelError, "is 0.25; expected 0.5"),
        ("FalconH1ForCausalLM", {"projectors_bias": True}, UnsupportedModelError, "have no biases"),
        ("FalconH1ForCausalLM", {"attention_bias": True}, UnsupportedModelError, "attention_in_multi"),
        ("FalconH1ForCausalLM", {"ssm_multipliers": [1.0]}, CheckpointError, "a list of 5 items"),
        ("Mamba2ForCausalLM", {"expand": 3}, CheckpointError, "num_heads.* expected 48 / head_dim"),
        ("Mamba2ForCausalLM", {"expand": 1e308}, CheckpointError, "'expand' is 1e.308; expected .* at most"),
        ("NemotronHForCausalLM", {"moe_latent_size": 8}, UnsupportedModelError, "experts read the stream"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "MX"}, CheckpointError, r"M, E, \* or -"),
        ("NemotronHForCausalLM", {"layers_block_type": ["conv"]}, CheckpointError, "names among"),
        ("NemotronHForCausalLM", {"num_hidden_layers": 9}, CheckpointError, "4, the number of blocks"),
        ("BambaForCausalLM", {"time_step_limit": 3}, UnsupportedModelError, "'time_step_limit' is 3"),
        ("LagunaForCausalLM", {"gating": False}, UnsupportedModelError, "'gating' is false"),
        ("LagunaForCausalLM", {"gating": ["per-head"]}, UnsupportedModelError, "'per-head' or 'per-element'"),
        ("Lfm2ForCausalLM", {"conv_L_cache": 17}, CheckpointError, "'conv_L_cache' is 17; .* from 1 to 16"),
        ("Lfm2ForCausalLM",
         {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1e308}, CheckpointError, "at most"),
        ("T5ForConditionalGeneration", {"relative_attention_num_buckets": 6}, CheckpointError, "multiple of"),
        ("T5ForConditionalGeneration", {"relative_attention_max_distance": 5}, CheckpointError, "no bucket"),
        ("T5ForConditionalGeneration", {"feed_forward_proj": "gated"}, UnsupportedModelError, "gated-gelu"),
        ("T5ForConditionalGeneration", {"d_kv": 4}, CheckpointError, r"SelfAttention.q.weight' has shape"),
        ("T5ForConditionalGeneration", {"num_decoder_layers": 3}, CheckpointError, "block.1.* is missing"),
        ("BartForConditionalGeneration", {"tie_word_embeddings": False}, CheckpointError, "lm_head.weight'"),
        ("BartForConditionalGeneration", {"encoder_layers": 2}, CheckpointError, "layers.1.* is missing"),
        ("MarianMTModel", {"decoder_vocab_size": 12}, CheckpointError, "'model.shared.weight' has shape"),
        ("M2M100ForConditionalGeneration", {"pad_token_id": 0}, UnsupportedModelError, "start after it"),
        ("MarianMTModel", {"max_position_embeddings": 10**9}, CheckpointError, "from 1 to 32768"),
        ("LamdaForCausalLM", {"hidden_size": ...}, CheckpointError, "'hidden_size' is missing"),
        ("Mistral3ForConditionalGeneration", {"text_config": {"model_type": "x"}}, CheckpointError, "text"),
        ("Olmo2ForCausalLM", {"num_key_value_heads": 2}, CheckpointError, r"k_proj.* has shape \[8, 16\]"),
        ("FalconForCausalLM", {"num_kv_heads": 2}, CheckpointError, "query_key_value.weight' has shape"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, architecture: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        specdec.load(write(tmp_path, architecture, **changes))


def opt_350m() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return configuration and weights of a tiny OPT-350M, with embeddings of 6 numbers."""
    config, weights = tiny("OPTForCausalLM", do_layer_norm_before=False)
    rng, prefix = np.random.default_rng(4), "model.decoder"
    weights |= {
        f"{prefix}.{name}.weight": rng.normal(0.0, 0.3, shape).astype("<f4")
        for name, shape in (("embed_tokens", (17, 6)), ("project_in", (16, 6)), ("project_out", (6, 16)))
    }
    return config | {"word_embed_proj_dim": 6}, weights


@pytest.mark.parametrize("own_head", [False, True])
def test_projected_embeddings(tmp_path: Path, own_head: bool) -> None:
    """Products are those of the factors; the head is the file's, if it has one."""
    config, weights = opt_350m()
    table = outer = weights["model.decoder.embed_tokens.weight"]
    if own_head:
        outer = weights["lm_head.weight"] = np.random.default_rng(8).normal(0.0, 0.3, (17, 6)).astype("<f4")
    folder = write_hf(tmp_path / "model", config, weights)
    found = canonical(folder)
    for name, expected in (
        ("token_embedding", table @ weights["model.decoder.project_in.weight"].T),
        ("head", outer @ weights["model.decoder.project_out.weight"]),
    ):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6)
    expected = reference.logits(open_checkpoint(folder).config, found, list(range(12)))
    logits = specdec.load(folder).logits(range(12))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed_tokens": ()}, "embed_tokens.weight' has shape"),
        ({"embed_tokens": (17, 0)}, r"has shape \[17, 0\]; expected \[17, 1\]"),
        ({"project_out": (6, 15)}, r"project_out.weight' has shape \[6, 15\]; expected \[6, 16\]"),
        ({"project_out": None}, "embed_tokens.weight' has shape|lm_head.weight' is missing"),
    ],
)
def test_projections_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config, weights = opt_350m()
    for name, shape in changes.items():
        if shape is None:
            del weights[f"model.decoder.{name}.weight"]
        else:
            weights[f"model.decoder.{name}.weight"] = np.ones(shape, "<f4")
    with pytest.raises(CheckpointError, match=message):
        specdec.load(write_hf(tmp_path / "model", config, weights))


def t5_logits(folder: Path, **options: Any) -> np.ndarray:
    return specdec.load(folder, **options).logits([0, 5, 6], [3, 4, 1])


def test_tables_that_a_file_names_more_than_once(tmp_path: Path) -> None:
    """As in files of transformers 4, with an unused table; and a file without the shared name."""
    config, weights = tiny("T5ForConditionalGeneration")
    expected = t5_logits(write_hf(tmp_path / "one", config, weights))
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    unused = {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.ones((8, 2), "<f4")
    }
    many = weights | dict.fromkeys(copies, weights["shared.weight"]) | unused
    assert np.array_equal(t5_logits(write_hf(tmp_path / "many", config, many)), expected)
    only = {key: array for key, array in weights.items() if key != "shared.weight"}
    only |= dict.fromkeys(copies[:2], weights["shared.weight"])
    assert np.array_equal(t5_logits(write_hf(tmp_path / "only", config, only)), expected)
    other = many | {"encoder.embed_tokens.weight": weights["shared.weight"][::-1]}
    model = specdec.load(write_hf(tmp_path / "other", config, other))
    assert not model.config.encoder.shared_embedding
    turned = model.logits([0, 5, 6], [16 - token for token in (3, 4, 1)])
    assert np.array_equal(turned, expected)


def test_a_head_counts_where_it_is_there_and_scaling_is_a_field_of_its_own(tmp_path: Path) -> None:
    """T5 1.1 as written by transformers 4, with ``tie_word_embeddings`` false, and by 5."""
    former, weights = tiny("T5ForConditionalGeneration", tie_word_embeddings=False)
    assert "lm_head.weight" in weights
    one = specdec.load(write_hf(tmp_path / "former", former, weights))
    present = former | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    other = specdec.load(write_hf(tmp_path / "present", present, weights))
    assert one.config == other.config
    assert (one.config.tied, one.config.logit_scale) == (False, 1.0)
    scaled = former | {"tie_word_embeddings": True}
    assert specdec.load(write_hf(tmp_path / "scaled", scaled, weights)).config.logit_scale == 16**-0.5
    no_head = {key: array for key, array in weights.items() if key != "lm_head.weight"}
    assert specdec.load(write_hf(tmp_path / "tied", former, no_head)).config.tied


def test_a_bart_without_a_bias_of_logits(tmp_path: Path) -> None:
    config, weights = tiny("BartForConditionalGeneration")
    zeros = np.zeros_like(weights.pop("final_logits_bias"))
    one = specdec.load(write_hf(tmp_path / "zeros", config, weights | {"final_logits_bias": zeros}))
    other = specdec.load(write_hf(tmp_path / "absent", config, weights))
    assert (one.config.head_bias, other.config.head_bias) == (True, False)
    assert np.array_equal(one.logits([2, 3], [4, 5]), other.logits([2, 3], [4, 5]))


def test_a_t5_reads_as_far_as_it_is_asked_to(tmp_path: Path) -> None:
    folder = write(tmp_path, "T5ForConditionalGeneration")
    model = specdec.load(folder)
    assert model.config.n_ctx == model.config.encoder.n_ctx == 2048
    assert "2 layers of an encoder, 1 of a decoder, d_model 16, n_vocab 17, n_ctx 2048" in repr(model)
    short = specdec.load(folder, n_ctx=9)
    assert short.config.encoder.n_ctx == 9
    with pytest.raises(InputError, match="source has 10 token ids; expected at most 9, the context"):
        short.logits([0], [3] * 10)
    assert specdec.load(folder, n_ctx=5000).logits([0], [3] * 4999).shape == (1, 17)


def test_what_a_decoder_begins_with(tmp_path: Path) -> None:
    """generation_config.json takes precedence over config.json; settings are defaults, not applied."""
    for start in (..., 17):  # without a first token, which is absent or no id here, a second is no beginning
        folder = write(tmp_path, "M2M100ForConditionalGeneration", decoder_start_token_id=start)
        with nullcontext() if start is ... else pytest.warns(match="'decoder_start_token_id' is 17"):
            assert specdec.load(folder).decoder_start == ()
    folder = write(tmp_path, "M2M100ForConditionalGeneration")
    assert specdec.load(folder).decoder_start == (2, 3)
    said = {"decoder_start_token_id": 4, "forced_bos_token_id": 5, "bad_words_ids": [[1], [2, 3], [99]]}
    for least, found in ((3, {"min_tokens": 2}), (1, {})):  # the forced token is a new one in these files
        (folder / "generation_config.json").write_text(json.dumps(said | {"min_new_tokens": least}))
        model = specdec.load(folder)
        assert model.decoder_start == (4, 5)
        assert model.default_sampling == {"logit_bias": {1: -np.inf}, "bad_words": [[2, 3]], **found}
    with pytest.raises(InputError, match="has no tokenizer for sources"):
        model.with_languages(src_lang="en")


def test_bytes_as_tokens(tmp_path: Path) -> None:
    """ByT5 has no vocabulary file; sources end with EOS, outputs start as the files say."""
    folder = write_hf(tmp_path / "model", *tiny("T5ForConditionalGeneration", vocab_size=384))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    model = specdec.load(folder)
    assert model.source_ids("é a").tolist() == [198, 172, 35, 100, 1]
    assert model.check_ids("é").tolist() == [0, 198, 172]
    assert model.tokenizer.decode([0, 198, 172, 1, 300]) == "é"
    found = specdec.generate(model, None, "é a", decoder_prompt="b", max_new_tokens=3, ignore_eos=True)
    assert (found.prompt_ids, found.source_ids) == ([0, 101], [198, 172, 35, 100, 1])
    row = model.logits("b", "é a")[-1]
    assert found.tokens[0] == int(row.argmax())


def test_older_names_and_mtp_blocks_of_nemotron_h(tmp_path: Path) -> None:
    """The pattern of blocks as a string or a list, older names of fields, and tensors that are not read."""
    config, weights = tiny("NemotronHForCausalLM")
    expected = specdec.load(write_hf(tmp_path / "folder", config, weights))
    older = {"n_groups": "mamba_n_groups", "head_dim": "attention_head_dim"}
    config = {older.get(name, name): value for name, value in config.items()}
    del config["hybrid_override_pattern"]
    config["layers_block_type"] = ["mamba", "mlp", "full_attention", "moe"]
    weights |= {"mtp.layers.0.norm.weight": np.ones(16, "f4")}
    found = specdec.load(write_hf(tmp_path / "other", config, weights))
    assert found.config == expected.config
    assert np.array_equal(found.logits([3, 5, 9]), expected.logits([3, 5, 9]))


def test_a_delta_rule_in_one_matrix(tmp_path: Path) -> None:
    """Some folders hold the four projections of Qwen3.5 one after the other."""
    name = "Qwen3_5ForCausalLM"
    folder = tiny_folder(tmp_path / "four", name)
    tensors = random_weights(name, CONFIGS[name])
    of_layer = "model.layers.0.linear_attn.in_proj"
    four = [tensors.pop(f"{of_layer}_{part}.weight") for part in ("qkv", "z", "b", "a")]
    tensors[f"{of_layer}.weight"] = np.concatenate(four)
    one = write_hf(tmp_path / "one", CONFIGS[name] | {"architectures": [name]}, tensors)
    ids = list(range(3, 17))
    assert np.array_equal(specdec.load(one).logits(ids), specdec.load(folder).logits(ids))


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "HunYuanDenseV1ForCausalLM"])
def test_dynamic_scaling_of_one_pair(name: str) -> None:
    """Its exponent, size / (size - 2), does not exist."""
    scaling = {"type": "dynamic", "factor": 2.0} | ({"alpha": 50.0} if name != "LlamaForCausalLM" else {})
    config = CONFIGS[name] | {"architectures": [name], "head_dim": 2, "rope_scaling": scaling}
    with pytest.raises(CheckpointError, match="'head_dim' .*more than 2 rotated dimensions"):
        read_config(config)


@pytest.mark.parametrize(
    ("name", "field"), [("Lfm2ForCausalLM", "full_attn_idxs"), ("Dots1ForCausalLM", "mlp_layer_types")]
)
def test_lists_of_layers_that_are_none(name: str, field: str) -> None:
    config = CONFIGS[name] | {"architectures": [name], field: [[1], 2]}
    with pytest.raises(CheckpointError, match=rf"'{field}(\[0\])?' is"):
        read_config(config)
