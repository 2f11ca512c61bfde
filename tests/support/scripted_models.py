"""Models that write a given greedy text, in files that every library reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chat_templates import library_tokenizer
from worlds.folders import write_hf


def write_scripted_model(
    folder: Path, prompt: str, text: str, specials: Sequence[str], end: str, n_ctx: int = 128, **settings: Any
) -> Path:
    """A GPT-2 over bytes: continues prompts as long as `prompt` with `text`, then with `end` forever.

    Its blocks add nothing and its positions are unit vectors, so that the head alone decides by position.
    Names of the special tokens, `specials`, are these tokens; `settings` are further entries of
    tokenizer_config.json.
    """
    tokenizer = library_tokenizer(list(specials))
    n_prompt, ids = len(tokenizer.encode(prompt).ids), tokenizer.encode(text).ids
    n_vocab, end_id = tokenizer.get_vocab_size(), tokenizer.token_to_id(end)
    head = np.zeros((n_vocab, n_ctx), np.float32)
    for at in range(n_ctx):
        new = at + 1 - n_prompt
        head[ids[new] if 0 <= new < len(ids) else end_id, at] = 9.0
    sizes = {
        "ln_1.weight": n_ctx, "ln_1.bias": n_ctx, "ln_2.weight": n_ctx, "ln_2.bias": n_ctx,
        "attn.c_attn.weight": (n_ctx, 3 * n_ctx), "attn.c_attn.bias": 3 * n_ctx,
        "attn.c_proj.weight": (n_ctx, n_ctx), "attn.c_proj.bias": n_ctx,
        "mlp.c_fc.weight": (n_ctx, 32), "mlp.c_fc.bias": 32,
        "mlp.c_proj.weight": (32, n_ctx), "mlp.c_proj.bias": n_ctx,
    }  # fmt: skip
    tensors = {f"transformer.h.0.{name}": np.zeros(size, np.float32) for name, size in sizes.items()}
    tensors |= {
        "transformer.wte.weight": np.full((n_vocab, n_ctx), 1e-5, np.float32),
        "transformer.wpe.weight": np.eye(n_ctx, dtype=np.float32) * 9,
        "transformer.ln_f.weight": np.ones(n_ctx, np.float32),
        "transformer.ln_f.bias": np.zeros(n_ctx, np.float32),
        "lm_head.weight": head,
    }
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": n_vocab, "n_layer": 1,
        "n_positions": n_ctx, "n_embd": n_ctx, "n_inner": 32, "n_head": 1, "tie_word_embeddings": False,
        "bos_token_id": end_id, "eos_token_id": end_id,
    }  # fmt: skip
    write_hf(folder, config, tensors)
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder
