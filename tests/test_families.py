"""Every architecture against transformers: tiny random models, saved by it and loaded here.

The oracle runs in float32 with "eager" attention, one sequence without padding at a time. Weights are larger
than at initialization, so that attention is far from uniform and any error shows.
"""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from lazily import torch, transformers
from specdec import reference
from specdec.checkpoints import open_checkpoint
from specdec.errors import CheckpointError
from worlds.canonical import step_by_step
from worlds.families import (
    ARCHITECTURES,
    CASES,
    CONFIGS,
    ENCODER_DECODERS,
    GIVEN,
    MODEL_TYPES,
    SIZES,
    read_config,
)
from worlds.mixtures import mxfp4_values

pytestmark = pytest.mark.oracle

N_TOKENS = 60
RELATIVE = 2e-5
"""Of the largest logit."""

# The eager attention of transformers 5.23 adds Falcon's ALiBi biases twice.
ATTENTION = {"FalconForCausalLM alibi": "sdpa"}

# Models that are compared beyond the context before scaling: the context to load, and the prompts' length.
LONG = {
    "LlamaForCausalLM dynamic": 96,
    "Phi3ForCausalLM longrope": 64,
    "Phi3ForCausalLM partial longrope": 64,
}


def build(config: Any, folder: Path, attention: str = "eager", dtype: str = "float32", **options: Any) -> Any:
    """Save a random model with no initial values, in ``dtype``; return it in float32, with stored values."""
    torch.manual_seed(7)
    model_class = getattr(transformers, config.architectures[0]) if config.architectures else None
    make = model_class._from_config if model_class else transformers.AutoModelForCausalLM.from_config
    network = make(config, attn_implementation=attention).float().eval()
    with torch.no_grad():
        buffers = [(name, buffer) for name, buffer in network.named_buffers() if buffer.is_floating_point()]
        corrections = [(name, buffer) for name, buffer in buffers if name.endswith(("bias", "layer_scalar"))]
        for part, parameter in [*network.named_parameters(), *corrections]:
            if parameter.ndim == 1 or "norm" in part:  # norms and biases, which start as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:  # with larger weights the two paths of transformers differ more than the bound
                parameter.copy_(torch.randn_like(parameter) * (0.1 if "linear_attn" in part else 0.3))
            parameter.copy_(parameter.to(getattr(torch, dtype)))
    copy.deepcopy(network).to(getattr(torch, dtype)).save_pretrained(folder, **options)
    return network


class Case:
    """A model of transformers, and its saved folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.network = build(CASES[name](), folder, ATTENTION.get(name, "eager"))
        self.model = specdec.load(folder)

    def prompt(self, n_tokens: int, seed: int = 3) -> np.ndarray:
        return np.random.default_rng(seed).integers(3, self.model.config.n_vocab, n_tokens)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("model"))


def batch_of(ids: np.ndarray) -> Any:
    return torch.from_numpy(ids.astype(np.int64))[None]


def oracle_logits(network: Any, ids: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
    """Return logits [n_tokens, n_vocab], f32."""
    names = {"input_ids": ids} if source is None else {"input_ids": source, "decoder_input_ids": ids}
    with torch.no_grad():
        found = network(**{name: batch_of(given) for name, given in names.items()}, use_cache=False)
    return found.logits[0].numpy()


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.05 * np.abs(expected).max()  # logits that vary
    np.testing.assert_allclose(found, expected, rtol=0, atol=RELATIVE * np.abs(expected).max())


def test_logits_equal_transformers(case):
    """Beyond windows and, without length-dependent scaling, beyond the original context."""
    model = case.model
    assert model.architecture == case.name.split()[0]
    ids = case.prompt(min(N_TOKENS, model.config.n_ctx))
    found = model.logits(ids)
    assert_near(found, oracle_logits(case.network, ids))
    assert np.array_equal(step_by_step(model.core, ids), found)


@pytest.mark.parametrize("case", LONG, indirect=True)
def test_longer_contexts_than_before_scaling(case):
    model, ids = specdec.load(case.folder, n_ctx=LONG[case.name]), case.prompt(LONG[case.name])
    assert_near(model.logits(ids), oracle_logits(case.network, ids))


def test_greedy_texts_equal_transformers(case):
    """Prompts of different lengths in one batch: each token is the best one after the text before it."""
    prompts = [case.prompt(n, seed=n).tolist() for n in (2, 9, 14)]
    n_new = min(24, case.model.config.n_ctx - 14)
    found = specdec.generate(
        case.model, None, prompts, max_new_tokens=n_new, temperature=0.0, ignore_eos=True
    )
    for prompt, result in zip(prompts, found, strict=True):
        logits = oracle_logits(case.network, np.array([*prompt, *result.tokens]))
        assert list(result.tokens) == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_every_architecture_has_a_case():
    elsewhere = {*COMPARED_BELOW, *(name.split()[0] for name in ENCODER_DECODERS)}
    assert {name.split()[0] for name in CASES} == set(ARCHITECTURES) - elsewhere


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "OlmoeForCausalLM"])
def test_experts_stacked_as_transformers_5_has_them(name, tmp_path):
    network = build(CASES[name](), tmp_path / "published")
    copy.deepcopy(network).save_pretrained(tmp_path / "stacked", save_original_format=False)
    ids = np.random.default_rng(5).integers(3, 211, 40)
    model = specdec.load(tmp_path / "stacked")
    assert b"mlp.experts.gate_up_proj" in (tmp_path / "stacked" / "model.safetensors").read_bytes()
    assert np.array_equal(model.logits(ids), specdec.load(tmp_path / "published").logits(ids))


def test_mxfp4_is_that_of_transformers():
    """The formula that tests of folders use."""
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    rng = np.random.default_rng(6)
    blocks = rng.integers(0, 256, (3, 64, 2, 16), dtype=np.uint8)
    scales = rng.integers(100, 140, (3, 64, 2), dtype=np.uint8)
    expected = _convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    assert np.array_equal(mxfp4_values(blocks, scales).swapaxes(1, 2), expected.float().numpy())


COMPARED_BELOW = (
    "LamdaForCausalLM", "MiMoForCausalLM", "Gemma3ForConditionalGeneration",
    "Lfm2VlForConditionalGeneration", "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Mistral3ForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)  # fmt: skip


_QWEN_VISION = {"depth": 1, "num_heads": 2, "out_hidden_size": 48, "num_position_embeddings": 4}
SEEING = {
    "Gemma3": ("Gemma3ForCausalLM", {"mm_tokens_per_image": 4}, {}),
    "Gemma4": ("Gemma4ForCausalLM", {}, {"head_dim": 8, "num_key_value_heads": 2}),
    "Gemma4Unified": ("Gemma4UnifiedForCausalLM", {}, {"output_proj_dims": 48}),
    "Mistral3": ("Ministral3ForCausalLM", {}, {"model_type": "pixtral", "head_dim": 8}),
    "Lfm2Vl": ("Lfm2ForCausalLM", {}, {}),
    "Qwen3_5": ("Qwen3_5ForCausalLM", {}, _QWEN_VISION),
    "Qwen3_5Moe": ("Qwen3_5MoeForCausalLM", {}, _QWEN_VISION),
}


@pytest.mark.parametrize("name", SEEING)
def test_the_decoder_of_a_model_that_sees(tmp_path, name):
    decoder, settings, own = SEEING[name]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=CASES[decoder]().to_dict() | {"pad_token_id": 0}, vision_config=vision | own, **settings
    )
    config.architectures = [f"{name}ForConditionalGeneration"]
    network = build(config, tmp_path)
    model = specdec.load(tmp_path)
    assert model.architecture == config.architectures[0]
    ids = np.random.default_rng(5).integers(3, 211, N_TOKENS)
    assert_near(model.logits(ids), oracle_logits(network, ids))


def test_mimo_is_a_qwen_2(tmp_path):
    """transformers lacks it; its published code derives from Qwen 2. test_eagle.py has its head."""
    settings = CASES["Qwen2ForCausalLM"]().to_dict() | {"tie_word_embeddings": False}
    network = build(transformers.Qwen2Config(**settings), tmp_path)
    file = tmp_path / "config.json"
    fields = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    ids = np.random.default_rng(5).integers(3, 211, 40)
    assert_near(specdec.load(tmp_path).logits(ids), oracle_logits(network, ids))


# ------------------------------------------------------------------------------------- numbers and files


IDS = np.random.default_rng(3).integers(3, 61, 40)


def llama(folder: Path, name: str = "LlamaForCausalLM", **options: Any) -> np.ndarray:
    """Return transformers' logits of a saved model."""
    return oracle_logits(build(CASES[name](), folder, **options), IDS)


def test_shards_written_by_transformers(tmp_path):
    expected = llama(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_near(specdec.load(tmp_path).logits(IDS), expected)


# --------------------------------------------------------------------------------- models with an encoder


# Tokens of sources and texts: one, some, and more than the furthest distance that a bucket begins at.
LENGTHS = [(1, 5), (60, 1), (9, 44), (70, 60)]
FAR = [(150, 20), (20, 150)]


def build_sides(name: str, folder: Path) -> Any:
    """Save a random encoder-decoder with no parameter at its initial value."""
    torch.manual_seed(7)
    model_class = getattr(transformers, name.split()[0])
    network = model_class._from_config(ENCODER_DECODERS[name](), attn_implementation="eager").float().eval()
    if "own head" in name:
        network.lm_head.weight = torch.nn.Parameter(torch.zeros_like(network.lm_head.weight))
    with torch.no_grad():
        for part, parameter in network.named_parameters():
            if "embed_positions" in part and name.startswith("Marian"):
                continue  # sines
            if parameter.ndim == 1 or "norm" in part:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * scale(part, name))
        if "final_logits_bias" in dict(network.named_buffers()):
            network.final_logits_bias.copy_(torch.randn_like(network.final_logits_bias) * 0.1)
        if name.startswith("M2M100"):
            network.get_input_embeddings().weight[1] = 0.0  # so that no text has padding
    if "begun" in name:
        network.generation_config.forced_bos_token_id = 7
    network.generation_config.forced_eos_token_id = None  # warned of, see test_unused_fields.py
    copy.deepcopy(network).save_pretrained(folder)
    return network


def scale(part: str, name: str) -> float:
    """Return a weight scale of a part that avoids repeated tokens.

    Components shared by all tokens, such as the source, must not dominate. T5's scores are unscaled.
    """
    if "T5" in name:
        return 0.1 if ".q." in part else 0.2
    if "embed_positions" in part:
        return 1.0
    if "encoder_attn" in part:
        return 0.1
    return 0.2 if "shared" in part or "embed" in part else 0.3


class Sides:
    """A model with an encoder: transformers' network, its files, and the loaded model."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.network = build_sides(name, folder)
        self.checkpoint = open_checkpoint(folder)
        self.config = self.checkpoint.config
        self.model = specdec.load(folder)
        self.tensors = {name: array for name, array, _ in self.checkpoint.tensors()}
        self.lengths = LENGTHS + (FAR if self.config["position"] == "none" else [])

    def source(self, n: int) -> np.ndarray:
        return np.random.default_rng(n).integers(3, self.config["encoder"]["n_vocab"], n)

    def text(self, n: int) -> np.ndarray:
        """Return a text without padding tokens, which M2M-100 gives no position."""
        return np.random.default_rng(n + 1).integers(3, self.config["n_vocab"], n)


@pytest.fixture(scope="module", params=ENCODER_DECODERS)
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(request.param, tmp_path_factory.mktemp("model"))


def test_every_architecture_with_an_encoder_has_a_case() -> None:
    with_encoder = {name for name, config in CONFIGS.items() if read_config(config, name).get("encoder")}
    assert {name.split()[0] for name in ENCODER_DECODERS} == with_encoder


def test_encoders_equal_transformers(sides: Sides) -> None:
    """By the reference, the core, and the core with OpenBLAS."""
    assert sides.checkpoint.architecture == sides.name.split()[0]
    blas = specdec.load(sides.folder, "f32", prefill="blas")
    for n_source, _ in sides.lengths:
        source = sides.source(n_source)
        with torch.no_grad():
            expected = sides.network.get_encoder()(input_ids=batch_of(source)).last_hidden_state[0].numpy()
        assert_near(reference.encode(sides.config, sides.tensors, source.tolist()), expected)
        for model in (sides.model, blas):
            assert_near(model.core.encode(source), expected)


def test_logits_with_sources_equal_transformers(sides: Sides) -> None:
    """Whole prompts and token by token, with OpenBLAS, and by the reference."""
    blas = specdec.load(sides.folder, "f32", prefill="blas")
    for n_source, n_text in sides.lengths:
        source, ids = sides.source(n_source), sides.text(n_text)
        expected = oracle_logits(sides.network, ids, source)
        found = sides.model.logits(ids, source)
        assert_near(found, expected)
        assert np.array_equal(step_by_step(sides.model.core, ids, source), found)
        assert_near(blas.logits(ids, source), expected)
        near = reference.logits(sides.config, sides.tensors, ids.tolist(), source=source.tolist())
        assert_near(near, expected)


def oracle_texts(sides: Sides, source: list[int], n_new: int, **options: Any) -> Any:
    """Return what ``generate`` of transformers gives for a source, with scores, beyond EOS."""
    named = sides.network.generation_config
    with torch.no_grad():
        return sides.network.generate(
            torch.tensor([source]), max_new_tokens=n_new + len(sides.model.decoder_start) - 1,
            do_sample=False, eos_token_id=None, forced_eos_token_id=None, pad_token_id=named.pad_token_id,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip


def test_greedy_texts_with_sources_equal_transformers(sides: Sides) -> None:
    """Sources of different lengths in one batch, with and without speculation."""
    sources = [sides.source(n).tolist() for n in (3, 21, 40)]
    named = sides.network.generation_config
    start = [named.decoder_start_token_id, named.forced_bos_token_id]
    assert list(sides.model.decoder_start) == [token for token in start if token is not None]
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    found = specdec.generate(sides.model, None, sources, **options)
    speculative = specdec.generate(sides.model, sides.model, sources, gamma=3, **options)
    for source, result, other in zip(sources, found, speculative, strict=True):
        expected = oracle_texts(sides, source, 24).sequences[0].tolist()
        assert [*sides.model.decoder_start, *result.tokens] == expected
        assert other.tokens == result.tokens


def test_beams_equal_transformers(sides: Sides) -> None:
    """If scores differ by more than the error of float32 log-probability sums."""
    source = sides.source(17).tolist()
    found = specdec.beam_search(sides.model, None, source, width=4, max_new_tokens=10, ignore_eos=True)
    theirs = oracle_texts(sides, source, 10, num_beams=4, num_return_sequences=4, length_penalty=0.0)
    scores = [beam.score for beam in found.beams]
    np.testing.assert_allclose(scores, theirs.sequences_scores.numpy(), rtol=0, atol=1e-3)
    assert min(np.diff(sorted(scores))) > 1e-4
    for beam, expected in zip(found.beams, theirs.sequences, strict=True):
        assert [*sides.model.decoder_start, *beam.tokens] == expected.tolist()


# ---------------------------------------------------------------------------------------- absent fields


def as_written(config: Any, name: str) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False)) | {"architectures": [name]}


def meaning(fields: dict[str, Any]) -> dict[str, Any] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a field that takes no part without another
        try:
            return read_config(fields)
        except CheckpointError:
            return None


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - set(COMPARED_BELOW)))
def test_an_absent_field_has_the_default_of_the_class(name: str) -> None:
    """Each field removed: specdec reads what transformers completes."""
    config_class = transformers.CONFIG_MAPPING[MODEL_TYPES[name]]
    whole = as_written(config_class(**GIVEN.get(name, {})), name)
    assert meaning(whole) is not None
    for absent in set(whole) - {"architectures", "model_type"}:
        rest = {field: value for field, value in whole.items() if field != absent}
        completed = as_written(config_class.from_dict(config_class._decode_special_floats(rest)), name)
        assert meaning(rest) == meaning(completed), absent
    named = {"architectures": [name], "model_type": whole["model_type"]} | GIVEN.get(name, {})
    assert meaning(named) == meaning(whole)


@pytest.mark.parametrize("inner", ["Gemma3TextConfig", "MistralConfig", "Ministral3Config"])
def test_absent_fields_of_an_inner_configuration(inner: str) -> None:
    name = f"{'Gemma' if inner.startswith('Gemma') else 'Mistral'}3ForConditionalGeneration"
    config = getattr(transformers, inner)()
    fields = {"architectures": [name], "text_config": {"model_type": config.model_type}}
    whole = {"architectures": [name], "text_config": as_written(config, name)}
    assert meaning(fields) == meaning(whole)


TIED = {"Qwen3Config": {"head_dim": 8}, "LlamaConfig": {}, "Gemma2Config": {"head_dim": 8}}


@pytest.mark.parametrize("config_class", TIED)
@pytest.mark.parametrize("held", ["both", "equal", "table", "head"])
@pytest.mark.parametrize("tied", [True, False])
def test_which_head_counts(tmp_path: Path, config_class: str, held: str, tied: bool) -> None:
    """Embedding and head in one folder, with each value of ``tie_word_embeddings``."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(3)
    config = getattr(transformers, config_class)(**SIZES, **TIED[config_class], tie_word_embeddings=False)
    network = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    network.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    if held == "equal":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    elif held != "both":
        del tensors["lm_head.weight" if held == "table" else "model.embed_tokens.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    fields = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    if not tied and held in ("table", "head"):  # transformers takes random numbers, with a warning
        with pytest.raises(CheckpointError, match="is missing"):
            specdec.load(tmp_path)
        return
    ids = np.arange(3, 40)
    with torch.no_grad():
        network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
        expected = network.float()(torch.from_numpy(ids)[None]).logits[0].numpy()
    model = specdec.load(tmp_path)
    assert model.config.tied == (tied and held != "both")
    np.testing.assert_allclose(model.logits(ids), expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    if held == "both" and config_class != "Gemma2Config":
        again = specdec.load(specdec.convert(tmp_path, tmp_path / "model.gguf", "F32"))
        assert np.array_equal(again.logits(ids), model.logits(ids))
        folder = specdec.load(specdec.convert(tmp_path, tmp_path / "folder", "F32"))
        assert np.array_equal(folder.logits(ids), model.logits(ids))
