"""Every architecture against transformers: tiny random models, saved by it and loaded as they are.

The oracle runs in float32 with its "eager" attention. Weights are larger than its initialisation would have
them, so that attention is far from uniform and an error in any part shows in the logits.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from lazily import torch, transformers
from worlds.canonical import step_by_step
from worlds.families import ARCHITECTURES, CASES, ENCODER_DECODERS
from worlds.folders import write_hf
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
    """A random model, every parameter away from its initial value, saved by transformers in ``dtype``.

    What is returned computes in float32, from the values that the file holds.
    """
    torch.manual_seed(7)
    kind = getattr(transformers, config.architectures[0]) if config.architectures else None
    make = kind._from_config if kind else transformers.AutoModelForCausalLM.from_config
    network = make(config, attn_implementation=attention).float().eval()
    with torch.no_grad():
        for part, parameter in network.named_parameters():
            if parameter.ndim == 1 or "norm" in part:  # norms and biases, which start as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.to(getattr(torch, dtype)))
    copy.deepcopy(network).to(getattr(torch, dtype)).save_pretrained(folder, **options)
    return network


class Case:
    """A model of transformers, and the folder that it was saved to."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.network = build(CASES[name](), folder, ATTENTION.get(name, "eager"))
        self.model = specdec.load(folder)

    def prompt(self, n_tokens: int, seed: int = 3) -> np.ndarray:
        return np.random.default_rng(seed).integers(3, self.model.config.n_vocab, n_tokens)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("model"))


def oracle_logits(network: Any, ids: np.ndarray) -> np.ndarray:
    """[n_tokens, n_vocab] f32."""
    with torch.no_grad():
        return network(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].numpy()


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.05 * np.abs(expected).max()  # logits with something in them
    np.testing.assert_allclose(found, expected, rtol=0, atol=RELATIVE * np.abs(expected).max())


def test_logits_equal_transformers(case):
    """Past windows and, where scaling does not depend on the length of a text, past the context before it."""
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
    """Prompts of unequal lengths in one batch."""
    prompts = [case.prompt(n, seed=n).tolist() for n in (2, 9, 14)]
    n_new = min(24, case.model.config.n_ctx - 14)
    found = specdec.generate(
        case.model, None, prompts, max_new_tokens=n_new, temperature=0.0, ignore_eos=True
    )
    for prompt, result in zip(prompts, found, strict=True):
        with torch.no_grad():
            options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
            tokens = case.network.generate(torch.tensor([prompt]), max_new_tokens=n_new, **options)
        assert list(result.tokens) == tokens[0, len(prompt) :].tolist()


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
    """The formula that tests of folders compare with."""
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    rng = np.random.default_rng(6)
    blocks = rng.integers(0, 256, (3, 64, 2, 16), dtype=np.uint8)
    scales = rng.integers(100, 140, (3, 64, 2), dtype=np.uint8)
    expected = _convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    assert np.array_equal(mxfp4_values(blocks, scales).swapaxes(1, 2), expected.float().numpy())


COMPARED_BELOW = (
    "LamdaForCausalLM", "MiMoForCausalLM", "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
)  # fmt: skip


SEEING = {
    "Gemma3": ("Gemma3ForCausalLM", {"mm_tokens_per_image": 4}, {}),
    "Mistral3": ("Ministral3ForCausalLM", {}, {"model_type": "pixtral", "head_dim": 8}),
}


@pytest.mark.parametrize("name", SEEING)
def test_the_decoder_of_a_model_that_sees(tmp_path, name):
    decoder, settings, own = SEEING[name]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=CASES[decoder]().to_dict(), vision_config=vision | own, **settings
    )
    config.architectures = [f"{name}ForConditionalGeneration"]
    network = build(config, tmp_path)
    model = specdec.load(tmp_path)
    assert model.architecture == config.architectures[0]
    ids = np.random.default_rng(5).integers(3, 211, N_TOKENS)
    assert_near(model.logits(ids), oracle_logits(network, ids))


def test_mimo_is_a_qwen_2_with_a_head_beside(tmp_path):
    """No class has it; its published code derives from that of Qwen 2. The head by its layer."""
    settings = CASES["Qwen2ForCausalLM"]().to_dict() | {"tie_word_embeddings": False}
    network = build(transformers.Qwen2Config(**settings), tmp_path)
    config = network.config
    layer = transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer(config, 0)
    norms = {
        name: torch.nn.RMSNorm(48, eps=config.rms_norm_eps)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    head = torch.nn.ModuleDict(norms | {"input_proj": torch.nn.Linear(96, 48, bias=False), "layer": layer})
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
    stored = {
        f"model.mtp_layers.0.{n.removeprefix('layer.')}": x.numpy() for n, x in head.state_dict().items()
    }
    stored |= {name: x.numpy() for name, x in network.state_dict().items()}
    settings = json.loads((tmp_path / "config.json").read_text())
    settings |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    model = specdec.load(write_hf(tmp_path, settings, stored), tokenizer=False)
    ids = np.random.default_rng(5).integers(3, 211, 40)
    assert_near(model.logits(ids), oracle_logits(network, ids))

    text = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        features = head["hidden_layernorm"](network.model(text).last_hidden_state[:, :-1])
        embedded = head["token_layernorm"](network.model.embed_tokens(text[:, 1:]))
        x = head["input_proj"](torch.cat([features, embedded], dim=-1))
        turned = network.model.rotary_emb(x, torch.arange(39)[None])
        mask = torch.full((39, 39), -torch.inf).triu(1)[None, None]
        out = head["layer"](x, attention_mask=mask, position_embeddings=turned)
        logits = network.lm_head(head["final_layernorm"](out[0] if isinstance(out, tuple) else out))[0]
    draft = specdec.drafts.MTP(model)
    for n in (2, 3, 17, 40):
        result = specdec.generate(model, draft, ids[:n].tolist(), max_new_tokens=2, gamma=1, ignore_eos=True)
        assert result.trace.rounds[0].drafted == (int(logits[n - 2].argmax()),)


# ------------------------------------------------------------------------------------- numbers and files


IDS = np.random.default_rng(3).integers(3, 61, 40)


def llama(folder: Path, name: str = "LlamaForCausalLM", **options: Any) -> np.ndarray:
    """The logits of a saved model by transformers."""
    return oracle_logits(build(CASES[name](), folder, **options), IDS)


@pytest.mark.parametrize(("dtype", "file_dtype"), [("bfloat16", "BF16"), ("float16", "F16")])
def test_half_precision_checkpoints(tmp_path, dtype, file_dtype):
    """The file's values are used as they are: f32 from them equals transformers doing the same."""
    expected = llama(tmp_path, "LlamaForCausalLM tied", dtype=dtype)
    assert b'"dtype":"%b"' % file_dtype.encode() in (tmp_path / "model.safetensors").read_bytes()
    assert_near(specdec.load(tmp_path, "f32").logits(IDS), expected)


# Root mean square of the logits' errors over that of the logits about their mean, with some room: what
# rounding activations to bf16, and blocks of weights and activations to 8 or 4 bits, makes of random layers.
RELATIVE_ERROR = {"bf16": 0.03, "int8": 0.15, "int4": 0.8}


@pytest.mark.parametrize("dtype", RELATIVE_ERROR)
@pytest.mark.parametrize("name", ["LlamaForCausalLM tied", "MistralForCausalLM", "GPT2LMHeadModel"])
def test_other_formats_are_near_transformers(tmp_path, name, dtype):
    expected = llama(tmp_path, name, dtype="bfloat16")
    model = specdec.load(tmp_path, dtype)
    for found in (model.logits(IDS), step_by_step(model.core, IDS)):
        error = np.sqrt(np.square(found - expected).mean()) / expected.std()
        assert 0.05 * RELATIVE_ERROR[dtype] < error < RELATIVE_ERROR[dtype]


def test_shards_written_by_transformers(tmp_path):
    expected = llama(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_near(specdec.load(tmp_path).logits(IDS), expected)


@pytest.mark.parametrize("name", ["LlamaForCausalLM tied", "GPT2LMHeadModel"])
def test_a_tied_matrix_may_have_the_name_of_either_use(tmp_path, name):
    """As some folders are saved; transformers reads them too."""
    from safetensors.torch import load_file, save_file

    expected = llama(tmp_path, name)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    embedding = next(name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight")))
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors.pop(embedding)
    save_file(tensors, file, {"format": "pt"})
    found = specdec.load(tmp_path).logits(IDS)
    assert_near(found, expected)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_near(found, oracle_logits(theirs, IDS))


def test_score_equals_transformers(tmp_path):
    log_probs = torch.from_numpy(llama(tmp_path, "GPT2LMHeadModel")).double().log_softmax(-1).numpy()
    expected = log_probs[np.arange(len(IDS) - 1), IDS[1:]]
    np.testing.assert_allclose(specdec.load(tmp_path).score(IDS), expected, rtol=0, atol=1e-4)
