"""EOS and initial tokens from a folder's configuration, for models without tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from worlds.families import ENCODER_DECODERS

pytestmark = pytest.mark.oracle

PROMPT = [3, 17, 5, 9]
N_NEW = 24


@pytest.fixture(scope="module", autouse=True)
def oracle() -> None:
    """Import the libraries lazily, because that takes seconds."""
    global torch, transformers
    import torch
    import transformers


def saved(folder: Path, network: Any, seed: int) -> Path:
    """Save a random network of transformers that generates long varied texts."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    network.save_pretrained(folder)
    return folder


def decoder(folder: Path, seed: int = 3) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return saved(folder, transformers.LlamaForCausalLM(config), seed)


def encoder_decoder(folder: Path, name: str, seed: int) -> Path:
    model_class = getattr(transformers, name)
    return saved(
        folder, model_class._from_config(ENCODER_DECODERS[name](), attn_implementation="eager"), seed
    )


def late_token(text: list[int]) -> int | None:
    """Return a token that first occurs after four others; None if the text is too uniform."""
    return next((token for i, token in enumerate(text) if i > 3 and token not in text[:i]), None)


def write_fields(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> None:
    """Set fields of config.json, and write or remove generation_config.json."""
    whole = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(whole | config))
    file = folder / "generation_config.json"
    file.unlink(missing_ok=True)
    if generation is not None:
        file.write_text(json.dumps(generation))


def theirs(folder: Path, prompt: list[int]) -> list[int]:
    """Return transformers' greedy text with all initial tokens except a decoder's prompt."""
    config = transformers.AutoConfig.from_pretrained(folder)
    task = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
    auto = getattr(transformers, f"AutoModelFor{task}")
    network = auto.from_pretrained(folder, attn_implementation="eager").float().eval()
    found = network.generate(torch.tensor([prompt]), max_new_tokens=N_NEW, do_sample=False)[0].tolist()
    return found if config.is_encoder_decoder else found[len(prompt) :]


def ours(folder: Path, prompt: list[int]) -> list[int]:
    model = specdec.load(folder, tokenizer=False)
    n_forced = max(0, len(model.decoder_start) - 1)  # new tokens to transformers
    result = specdec.generate(model, None, prompt, max_new_tokens=N_NEW - n_forced, temperature=0)
    return [*model.decoder_start, *result.tokens]


@pytest.mark.parametrize("where", ["config", "generation", "list", "both"])
def test_a_decoder_ends_where_transformers_ends(tmp_path: Path, where: str) -> None:
    folder = decoder(tmp_path)
    write_fields(folder, {}, None)
    free = ours(folder, PROMPT)
    assert len(free) == N_NEW and free == theirs(folder, PROMPT)
    end = late_token(free)
    other = next(token for token in range(61) if token not in free)
    config, generation = {
        "config": ({"eos_token_id": end}, None),
        "generation": ({}, {"eos_token_id": end}),
        "list": ({}, {"eos_token_id": [other, end]}),
        "both": ({"eos_token_id": other}, {"eos_token_id": end}),
    }[where]
    write_fields(folder, config, generation)
    found = ours(folder, PROMPT)
    assert end is not None and found == theirs(folder, PROMPT) == free[: free.index(end) + 1]
    model = specdec.load(folder, tokenizer=False)
    assert end in model.eos_ids
    result = specdec.generate(model, None, PROMPT, max_new_tokens=N_NEW, temperature=0, ignore_eos=True)
    assert list(result.tokens) == free
    beams = specdec.beam_search(model, None, PROMPT, width=1, max_new_tokens=N_NEW).beams
    assert list(beams[0].tokens) == found


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("fields", ["start", "bos alone", "forced"])
def test_an_encoder_decoder_begins_and_ends_where_transformers_does(
    tmp_path: Path, name: str, fields: str
) -> None:
    start: dict[str, Any] = {
        "start": {"decoder_start_token_id": 2, "bos_token_id": 7},
        "bos alone": {"decoder_start_token_id": None, "bos_token_id": 7},
        "forced": {"decoder_start_token_id": 2, "forced_bos_token_id": 9},
    }[fields]
    nothing = dict.fromkeys(("eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "bos_token_id"))
    end, free = None, [0]
    for seed in range(20):
        folder = encoder_decoder(tmp_path, name, seed)
        write_fields(folder, nothing | start, None)
        free = ours(folder, PROMPT)
        if (end := late_token(free)) is not None:
            break
    assert end is not None and free == theirs(folder, PROMPT) and len(free) == N_NEW + 1
    write_fields(folder, nothing | start | {"eos_token_id": end}, None)
    found = ours(folder, PROMPT)
    assert found == theirs(folder, PROMPT) == free[: free.index(end) + 1]
    write_fields(folder, {"eos_token_id": None}, start | {"eos_token_id": [end]})
    assert ours(folder, PROMPT) == theirs(folder, PROMPT) == found


def test_a_copy_of_the_model_ends_alike(tmp_path: Path) -> None:
    """Packed files, chat templates and GGUF files keep the configuration's ids."""
    folder = decoder(tmp_path / "folder")
    write_fields(folder, {"eos_token_id": [4, 6], "bos_token_id": 5}, None)
    model = specdec.load(folder, tokenizer=False)
    assert (model.bos_id, model.eos_ids) == (5, (4, 6))
    specdec.convert(folder, tmp_path / "packed.specdec", tokenizer=False)
    specdec.convert(folder, tmp_path / "model.gguf", "F32", tokenizer=False)
    specdec.convert(tmp_path / "model.gguf", tmp_path / "back")
    paths = [tmp_path / name for name in ("packed.specdec", "model.gguf", "back")]
    copies = [model.with_chat_template("x"), *map(specdec.load, paths)]
    assert [(copy.bos_id, copy.eos_ids) for copy in copies] == [(5, (4, 6))] * 4
    write_fields(folder, {}, {"do_sample": False})  # config.json counts where the other file is silent
    assert specdec.load(folder, tokenizer=False).eos_ids == (4, 6)
    assert np.isfinite(specdec.load(folder, tokenizer=False).score([[1, 2, 3]], rolling=True)[0].total)
