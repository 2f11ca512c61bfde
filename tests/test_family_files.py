"""The families without transformers: every architecture opens, and computes as the reference says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from fuzz.family_files import CONFIGS, random_weights
from specdec import reference
from specdec.checkpoints import open_checkpoint
from specdec.errors import CheckpointError, InputError, UnsupportedModelError
from specdec.models.families import FAMILIES, ConfigReader
from specdec.models.json_fields import Fields
from tiny_models import write_hf


def write(folder: Path, architecture: str, **changes: Any) -> Path:
    """The folder of an architecture; a change to ``...`` leaves a field out."""
    config = CONFIGS[architecture]
    weights = random_weights(architecture, config)
    changed = {name: value for name, value in (config | changes).items() if value is not ...}
    return write_hf(folder / "model", changed | {"architectures": [architecture]}, weights)


def canonical(architecture: str, config: dict[str, Any], n_ctx: int | None = None) -> dict[str, Any]:
    family = FAMILIES[architecture]
    fields = Fields(config, Path("config.json"))
    return family.read_config(ConfigReader(family.decoder_fields(fields), n_ctx))


def test_the_former_name_of_an_architecture(tmp_path: Path) -> None:
    config = CONFIGS["MptForCausalLM"]
    weights = random_weights("MptForCausalLM", config)
    folder = write_hf(tmp_path / "model", config | {"architectures": ["MPTForCausalLM"]}, weights)
    assert specdec.load(folder).architecture == "MptForCausalLM"


def test_every_architecture_has_a_folder() -> None:
    assert set(CONFIGS) == set(FAMILIES)


def test_the_page_of_the_families_lists_every_architecture() -> None:
    page = (Path(__file__).parents[1] / "docs" / "FAMILIES.md").read_text()
    assert sorted(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE)) == sorted(FAMILIES)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_are_those_of_the_reference(tmp_path: Path, architecture: str) -> None:
    """Read by the loader as the core and the reference both get it; past windows."""
    folder = write(tmp_path, architecture)
    model = specdec.load(folder)
    checkpoint = open_checkpoint(folder)
    tensors = {name: array for name, array, _ in checkpoint.tensors()}
    ids = np.random.default_rng(2).integers(0, 17, min(24, model.config.n_ctx)).tolist()
    expected = reference.logits(checkpoint.config, tensors, ids)
    np.testing.assert_allclose(model.logits(ids), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("architecture", CONFIGS)
def test_bf16_files_give_the_same_model_as_their_values_in_f32(tmp_path: Path, architecture: str) -> None:
    """Whatever is done to the tensors on the way, such as adding 1 to norms."""
    config = CONFIGS[architecture] | {"architectures": [architecture]}
    weights = random_weights(architecture, config)
    halves = {name: (a.view("<u4") >> 16 << 16).view("<f4") for name, a in weights.items()}
    ids = list(range(12))
    one = specdec.load(write_hf(tmp_path / "f32", config, halves), "f32")
    other = specdec.load(write_hf(tmp_path / "bf16", config, halves, dtype="BF16"), "f32")
    assert np.array_equal(one.logits(ids), other.logits(ids))


@pytest.mark.parametrize("architecture", ["LamdaForCausalLM", "Qwen2MoeForCausalLM", "GptOssForCausalLM"])
def test_what_a_format_costs_is_said_of_matrices_alone(tmp_path: Path, architecture: str) -> None:
    """Not of tables; routers and gates of shared experts are not quantised."""
    report = specdec.load(write(tmp_path, architecture), "int8").quantization_report([1, 2, 3, 4])
    assert "relative_bias" not in {matrix.name for matrix in report.matrices}
    for matrix in report.matrices:
        kept = matrix.name.endswith(("router.weight", "shared_gate.weight"))
        assert (matrix.relative_error == 0.0) == kept and (matrix.bits_per_weight == 32) == kept


def test_a_lamda_like_decoder_is_sampled_from_its_top_40(tmp_path: Path) -> None:
    """As LaMDA is in section 4 of the paper (arXiv 2211.17192)."""
    name = "LamdaForCausalLM"
    config = CONFIGS[name] | {"vocab_size": 61, "architectures": [name]}
    weights = random_weights(name, config)
    target = specdec.load(write_hf(tmp_path / "target", config, weights))
    draft = specdec.load(
        write_hf(tmp_path / "draft", config, {n: a * np.float32(0.9) for n, a in weights.items()})
    )
    options: dict[str, Any] = {"temperature": 1.0, "top_k": 40, "verify": "coupled", "max_new_tokens": 20}
    for seed in range(5):
        plain = specdec.generate(target, None, [1, 2, 3], seed=seed, logits=True, ignore_eos=True, **options)
        found = specdec.generate(target, draft, [1, 2, 3], seed=seed, ignore_eos=True, **options)
        assert found.tokens == plain.tokens and len(found.tokens) == 20
        ranks = [int((row > row[token]).sum()) for row, token in zip(plain.logits, plain.tokens, strict=True)]
        assert max(ranks) < 40
        assert any(round_.accepted for round_ in found.trace.rounds)


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
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "former", "present"), FORMER)
def test_names_of_transformers_4_and_5(
    architecture: str, former: dict[str, Any], present: dict[str, Any]
) -> None:
    def read(changes: dict[str, Any]) -> dict[str, Any]:
        config = CONFIGS[architecture] | changes
        return canonical(architecture, {name: value for name, value in config.items() if value is not ...})

    assert read(former) == read(present)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_layer_norm_has_no_field_of_an_rms_norm(architecture: str) -> None:
    plain = canonical(architecture, CONFIGS[architecture])
    expected = plain if plain["norm"] == "layer" else plain | {"norm_eps": 0.25}
    nested = FAMILIES[architecture].text_field
    changed = CONFIGS[architecture] | {"rms_norm_eps": 0.25}
    if nested:
        changed = CONFIGS[architecture] | {nested: CONFIGS[architecture][nested] | {"rms_norm_eps": 0.25}}
    assert canonical(architecture, changed) == expected


def test_contexts(tmp_path: Path) -> None:
    """Of scalings that depend on the length of a text, and of others."""
    phi = write(tmp_path, "Phi3ForCausalLM")
    assert specdec.load(phi).config.n_ctx == 16
    short, long = specdec.load(phi, n_ctx=9), specdec.load(phi, n_ctx=30)
    assert (short.config.n_ctx, long.config.n_ctx) == (9, 30)
    assert short.config.inv_freq == specdec.load(phi).config.inv_freq != long.config.inv_freq
    with pytest.raises(InputError, match="n_ctx is 33; expected 1 to 32, the longest that the model has"):
        specdec.load(phi, n_ctx=33)
    with pytest.raises(InputError, match="n_ctx is 0"):
        specdec.load(phi, n_ctx=0)
    stretched = canonical("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"], 64)
    assert stretched["n_ctx"] == 64
    assert (
        stretched["inv_freq"][1] < canonical("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"])["inv_freq"][1]
    )
    with pytest.raises(InputError, match="expected None or 32: the positions are learned"):
        canonical("GPT2LMHeadModel", CONFIGS["GPT2LMHeadModel"], 16)


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("architecture", "changes", "error", "message"),
    [
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"]}, CheckpointError, "one name for each of 2"),
        ("Gemma3ForCausalLM", {"layer_types": ["a", "b"]}, UnsupportedModelError, "names among"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, UnsupportedModelError, "came before"),
        ("Gemma3ForConditionalGeneration", {"text_config": ...}, CheckpointError, "'text_config' is missing"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 2.0}, CheckpointError, "at most 1"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.4}, CheckpointError, "an even number, not 3 of 8"),
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
        ("OPTForCausalLM", {"word_embed_proj_dim": 8}, UnsupportedModelError, "not projected"),
        ("OPTForCausalLM", {"do_layer_norm_before": False}, UnsupportedModelError, "before each half"),
        ("MptForCausalLM", {"attn_config": {"alibi": False}}, UnsupportedModelError, "'attn_config.alibi'"),
        ("FalconForCausalLM", {"parallel_attn": False}, UnsupportedModelError, "is parallel"),
        ("GPTJForCausalLM", {"rotary_dim": 3}, CheckpointError, "'rotary_dim' is 3; expected an even number"),
        ("LamdaForCausalLM", {"relative_attention_max_distance": 5}, CheckpointError, "no bucket empty"),
        ("GraniteForCausalLM", {"logits_scaling": 0}, CheckpointError, "'logits_scaling' is 0"),
        ("Ministral3ForCausalLM", {"rope_parameters": ...}, CheckpointError, "'rope_parameters' is missing"),
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
