"""Folders and numbers against Hugging Face transformers: formats, shards, tied matrices, scores.

Tiny random models; `test_families.py` compares the architectures.

The oracle runs in float32 with its "eager" attention. Weights are made larger than its initialisation would
have them, so that attention is far from uniform and an error in any part shows in the logits.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import _core
from specdec.models.checkpoints.safetensors_file import read_safetensors
from worlds.canonical import step_by_step

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", autouse=True)
def oracle() -> None:
    """The libraries, imported only when these tests run: to import them takes seconds."""
    global torch, transformers
    import torch
    import transformers


N_TOKENS = 40


def llama(**changes: Any) -> Any:
    settings = {
        "vocab_size": 211,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return transformers.LlamaConfig(**{**settings, **changes})


def mistral(**changes: Any) -> Any:
    settings = {
        "vocab_size": 211,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "max_position_embeddings": 64,
        "sliding_window": 7,
    }
    return transformers.MistralConfig(**{**settings, **changes})


def gpt2(**changes: Any) -> Any:
    settings = {"vocab_size": 211, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    return transformers.GPT2Config(**{**settings, "bos_token_id": 0, "eos_token_id": 0, **changes})


MODELS = {
    "llama": lambda: llama(),
    "llama tied": lambda: llama(tie_word_embeddings=True),
    "mistral window": lambda: mistral(),
    "mistral window of one": lambda: mistral(sliding_window=1),
    "gpt2": lambda: gpt2(),
}


def build(config: Any, folder: Path, *, dtype: Any = None, **options: Any) -> Any:
    """A random model, every parameter away from its initial value, saved by transformers in ``dtype``.

    What is returned computes in float32, from the values that the file holds.
    """
    dtype = dtype or torch.float32
    torch.manual_seed(7)
    network = (
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    )
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:  # norms and biases, which start as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.to(dtype))
    copy.deepcopy(network).to(dtype).save_pretrained(folder, **options)
    return network


def oracle_logits(network: Any, ids: np.ndarray) -> np.ndarray:
    """[n_tokens, n_vocab] f32."""
    with torch.no_grad():
        return network(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()


def random_prompt(n_vocab: int = 211) -> np.ndarray:
    return np.random.default_rng(3).integers(0, n_vocab, N_TOKENS)


@pytest.mark.parametrize("name", ["mistral window", "mistral window of one"])
def test_prefill_then_steps(tmp_path, name):
    network = build(MODELS[name](), tmp_path)
    model, ids = specdec.load(tmp_path), random_prompt()
    expected = oracle_logits(network, ids)
    decoder = _core.Decoder(model.core, capacity=N_TOKENS, n_threads=2)
    decoder.prefill(ids[:23].astype(np.int32))
    for at in range(23, N_TOKENS):
        row = decoder.forward([int(ids[at])], [-1])[0]
        np.testing.assert_allclose(row, expected[at], rtol=0, atol=1e-4)
        decoder.keep([0])
    assert decoder.n_committed == N_TOKENS


@pytest.mark.parametrize(("dtype", "file_dtype"), [("bfloat16", "BF16"), ("float16", "F16")])
def test_half_precision_checkpoints(tmp_path, dtype, file_dtype):
    """The file's values are used as they are: f32 from them equals transformers doing the same."""
    network = build(MODELS["llama tied"](), tmp_path, dtype=getattr(torch, dtype))
    assert {t.kind for t in read_safetensors(tmp_path / "model.safetensors").values()} == {file_dtype}
    ids = random_prompt()
    np.testing.assert_allclose(
        specdec.load(tmp_path, "f32").logits(ids), oracle_logits(network, ids), rtol=0, atol=1e-4
    )


# Root mean square of the logits' errors over that of the logits about their mean, with some room: what
# rounding activations to bf16, and blocks of weights and activations to 8 or 4 bits, makes of random layers.
RELATIVE_ERROR = {"bf16": 0.03, "int8": 0.1, "int4": 0.7}


@pytest.mark.parametrize("dtype", RELATIVE_ERROR)
@pytest.mark.parametrize("name", ["llama tied", "mistral window", "gpt2"])
def test_other_formats_are_near_transformers(tmp_path, name, dtype):
    network = build(MODELS[name](), tmp_path, dtype=torch.bfloat16)
    ids = random_prompt()
    expected = oracle_logits(network, ids)
    model = specdec.load(tmp_path, dtype)
    for found in (model.logits(ids), step_by_step(model.core, ids)):
        error = np.sqrt(np.square(found - expected).mean()) / expected.std()
        assert 0.05 * RELATIVE_ERROR[dtype] < error < RELATIVE_ERROR[dtype]


def test_shards_written_by_transformers(tmp_path):
    network = build(MODELS["llama"](), tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ids = random_prompt()
    np.testing.assert_allclose(
        specdec.load(tmp_path).logits(ids), oracle_logits(network, ids), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", ["llama tied", "gpt2"])
def test_a_tied_matrix_may_have_the_name_of_either_use(tmp_path, name):
    """As some folders are saved; transformers reads them too."""
    from safetensors.torch import load_file, save_file

    network = build(MODELS[name](), tmp_path)
    file, ids = tmp_path / "model.safetensors", random_prompt()
    tensors = load_file(file)
    embedding = next(name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight")))
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors.pop(embedding)
    save_file(tensors, file, {"format": "pt"})
    found = specdec.load(tmp_path).logits(ids)
    np.testing.assert_allclose(found, oracle_logits(network, ids), rtol=0, atol=1e-4)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    np.testing.assert_allclose(found, oracle_logits(theirs, ids), rtol=0, atol=1e-4)


def test_a_small_gpt2_as_transformers_saves_it(tmp_path):
    """It names 50256 as BOS and EOS, whatever the vocabulary; that is said and left out."""
    config = transformers.GPT2Config(vocab_size=211, n_embd=48, n_layer=1, n_head=4, n_positions=64)
    network = build(config, tmp_path)
    with pytest.warns(UserWarning) as caught:
        model = specdec.load(tmp_path)
    messages = [str(warning.message) for warning in caught]
    wanted = f"{tmp_path}: 'bos_token_id' is 50256, 'eos_token_id' is 50256; expected ids from 0 to 210"
    assert any(message.startswith(wanted) for message in messages), messages
    ids = random_prompt()
    np.testing.assert_allclose(model.logits(ids), oracle_logits(network, ids), rtol=0, atol=1e-4)


def test_score_equals_transformers(tmp_path):
    network = build(MODELS["gpt2"](), tmp_path)
    ids = random_prompt()
    log_probs = torch.from_numpy(oracle_logits(network, ids)).double().log_softmax(-1).numpy()
    expected = log_probs[np.arange(N_TOKENS - 1), ids[1:]]
    np.testing.assert_allclose(specdec.load(tmp_path).score(ids), expected, rtol=0, atol=1e-4)
