"""LoRA adapters created and saved by PEFT: its logits, unmerged and merged, against specdec's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from lazily import peft, torch, transformers
from specdec.errors import UnsupportedModelError
from worlds.families import CASES, SIZES

pytestmark = pytest.mark.oracle


IDS = [int(token) for token in np.random.default_rng(3).integers(3, 61, 30)]


def saved(model: Any, folder: Path, *, seed: int = 1, **settings: Any) -> tuple[Path, Path, Any]:
    """Save a base and an adapter without zero values, and return PEFT's models of both."""
    model.eval()
    with torch.no_grad():  # attention is far from uniform
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 3
    model.save_pretrained(folder / "base")
    settings = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", **settings}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**settings))
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.15)
    adapted.eval().save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter", adapted


def logits_of(model: Any, ids: list[int] = IDS) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([ids])).logits[0].numpy()
    return found


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(found - wanted).max() < 2e-5 * max(1.0, np.abs(wanted).max())


FAMILIES = [
    "Llama", "Phi3", "Gemma2", "GPTNeoX", "GPTJ", "Falcon", "GPTBigCode", "OPT", "Bloom", "Mpt", "Cohere",
    "Mixtral",
]  # fmt: skip
"""One for each way in which files hold matrices: in one, by heads, turned, in another order."""


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", *(f"{name}ForCausalLM" for name in FAMILIES)])
def test_every_family(tmp_path: Path, name: str) -> None:
    """All matrices that PEFT finds; in mixtures only attention's, because experts share one parameter."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(CASES[name](), attn_implementation="eager")
        modules = ["q_proj", "k_proj", "v_proj", "o_proj"] if name.startswith("Mixtral") else "all-linear"
        base, adapter, adapted = saved(model, tmp_path, target_modules=modules)
        wanted = logits_of(adapted)
        plain = specdec.load(base, "f32", tokenizer=False)
        merged = specdec.load(base, "f32", tokenizer=False, adapter=adapter)
        whole = logits_of(adapted.merge_and_unload())
    assert np.abs(plain.logits(IDS) - wanted).max() > 1e-3
    for found in (merged.logits(IDS), plain.with_adapter(adapter).logits(IDS)):
        assert_near(found, wanted)
        assert_near(found, whole)


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": 61, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | changes))


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True, "r": 7},
        {"rank_pattern": {"q_proj": 9, "layers.1.mlp.down_proj": 2}, "alpha_pattern": {r".*\.1\..*": 1}},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "norm"]},
        {"target_modules": ["embed_tokens", "o_proj"], "r": 3},
        {"init_lora_weights": "gaussian", "layers_to_transform": [1], "target_modules": ["up_proj"]},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings(tmp_path: Path, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns that embeddings are saved with the adapter
        base, adapter, adapted = saved(llama(), tmp_path, **settings)
    if "modules_to_save" in settings:
        move(adapted, "modules_to_save", adapter)
    wanted = logits_of(adapted)
    assert_near(specdec.load(base, tokenizer=False, adapter=adapter).logits(IDS), wanted)
    if not {"modules_to_save"} & settings.keys() and "embed_tokens" not in settings.get("target_modules", ()):
        assert_near(specdec.load(base, tokenizer=False).with_adapter(adapter).logits(IDS), wanted)


def move(adapted: Any, name: str, folder: Path) -> None:
    """Change the parameters with a name, and save again."""
    with torch.no_grad():
        for full_name, parameter in adapted.named_parameters():
            if name in full_name and parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
    adapted.save_pretrained(folder)


@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "GPTNeoXForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM"]
)
@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_dora_and_biases_are_merged(tmp_path: Path, name: str, bias: str) -> None:
    """With transposed, head-fused and half-fused matrices and biases."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CASES[name](), attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base, adapter, adapted = saved(
            model, tmp_path, use_dora=bias != "lora_only", use_rslora=True, bias=bias
        )
        move(adapted, "bias", adapter)
    wanted = logits_of(adapted)
    assert_near(specdec.load(base, "f32", tokenizer=False, adapter=adapter).logits(IDS), wanted)
    if bias == "lora_only" and name == "Phi3ForCausalLM":
        return  # it has no biases
    with pytest.raises(UnsupportedModelError, match="expected .*merge it"):
        specdec.load(base, tokenizer=False).with_adapter(adapter)


def test_an_encoder_decoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    base, adapter, adapted = saved(
        transformers.T5ForConditionalGeneration(config), tmp_path, target_modules=["q", "v", "wo"]
    )
    merged = specdec.load(base, tokenizer=False, adapter=adapter)
    source, text = IDS[:12], [0, *IDS[12:20]]
    with torch.no_grad():
        wanted = adapted(torch.tensor([source]), decoder_input_ids=torch.tensor([text])).logits[0].numpy()
    assert_near(merged.logits(text, source), wanted)
    with pytest.raises(UnsupportedModelError, match="which has an encoder"):
        specdec.load(base, tokenizer=False).with_adapter(adapter)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Phi3ForCausalLM", "CohereForCausalLM"])
def test_over_a_gguf_file(tmp_path: Path, name: str) -> None:
    """An adapter fits the GGUF file made from its base, whose rows are permuted."""
    model = transformers.AutoModelForCausalLM.from_config(CASES[name](), attn_implementation="eager")
    base, adapter, adapted = saved(model, tmp_path)
    path = specdec.convert(base, tmp_path / "model.gguf", "F32")
    gguf = specdec.load(path, tokenizer=False)
    for found in (gguf.with_adapter(adapter), specdec.load(path, "f32", tokenizer=False, adapter=adapter)):
        assert_near(found.logits(IDS), logits_of(adapted))
