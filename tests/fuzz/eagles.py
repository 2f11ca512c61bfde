"""Random drafts of EAGLE for any target, in files as they are published."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.draws import Draws
from fuzz.files import safetensors
from specdec import drafts
from specdec.models.model import Model

__all__ = ["draw_eagle", "make_eagle"]

Description = dict[str, Any]


def draw_eagle(draws: Draws, n_layer: int, n_vocab: int) -> Description:
    """A description of a random draft for a target of so many layers and tokens."""
    found: Description = {
        "kind": "eagle", "seed": draws.randint(0, 99),
        "dtype": draws.one("f32", "f32", "bf16", "int8", "int4"), "d_ff": draws.randint(1, 40),
        "n_head": draws.randint(1, 3), "d_head": draws.one(2, 4, 10),
        "own_table": draws.chance(0.5),
    }  # fmt: skip
    if draws.chance(0.4):
        return found | {"taps": [n_layer + 1]}
    flags = [name for name in ("norm_before_residual", "norm_output") if draws.chance(0.5)]
    flags += [draws.one("fc_norm", "norm_before_fc")] if draws.chance(0.5) else []
    return found | {
        "taps": [draws.randint(0, n_layer) for _ in range(draws.randint(1, 4))], "flags": flags,
        "n_draft": draws.randint(1, n_vocab) if draws.chance(0.5) else None,
        "d_model": draws.randint(3, 40) if draws.chance(0.3) else None,
    }  # fmt: skip


def make_eagle(d: Description, target: Model, tree: Any = None) -> drafts.Eagle:
    """The draft of a description for a target."""
    rng, third = np.random.default_rng(d["seed"]), "flags" in d
    width, n_vocab = target.config.d_model, target.config.n_vocab
    d_model = d.get("d_model") or width
    fields: dict[str, Any] = {
        "architectures": ["Eagle3LlamaForCausalLM" if third else "LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": n_vocab, "hidden_size": d_model, "intermediate_size": d["d_ff"],
        "num_hidden_layers": 1, "num_attention_heads": d["n_head"], "num_key_value_heads": 1,
        "head_dim": d["d_head"], "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    inputs, d_q, d_kv = (2 if third else 1) * d_model, d["n_head"] * d["d_head"], d["d_head"]
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (d_q, inputs), "self_attn.k_proj": (d_kv, inputs),
        "self_attn.v_proj": (d_kv, inputs), "self_attn.o_proj": (d_model, d_q),
        "mlp.gate_proj": (d["d_ff"], d_model), "mlp.up_proj": (d["d_ff"], d_model),
        "mlp.down_proj": (d_model, d["d_ff"]), "post_attention_layernorm": (d_model,),
    }  # fmt: skip
    if third:
        shapes |= {"input_layernorm": (d_model,), "hidden_norm": (d_model,)}
    shapes = {f"layers.0.{name}": shape for name, shape in shapes.items()}
    n_taps, n_draft = len(d["taps"]), d.get("n_draft") or n_vocab
    tensors: dict[str, np.ndarray] = {}
    if third:
        fields |= {"draft_vocab_size": n_draft, **dict.fromkeys(d["flags"], True)}
        fields |= {"eagle_aux_hidden_state_layer_ids": d["taps"], "target_hidden_size": width}
        shapes |= {"fc": (d_model, n_taps * width), "norm": (d_model,), "lm_head": (n_draft, d_model)}
        if "norm_before_fc" in d["flags"]:
            shapes["input_norm"] = (n_taps * width,)
        if "fc_norm" in d["flags"]:
            shapes |= {f"fc_norm.{i}": (width,) for i in range(n_taps)}
        ids = np.sort(rng.permutation(n_vocab)[:n_draft])
        tensors["d2t"] = (ids - np.arange(n_draft)).astype("<i8")
    else:
        shapes |= {"fc": (d_model, 2 * d_model)}
    if d["own_table"] or d_model != width:
        shapes["embed_tokens"] = (n_vocab, d_model)
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = rng.normal(0.0, 0.3, shape).astype("<f4")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        (Path(folder) / "model.safetensors").write_bytes(safetensors(tensors))
        return drafts.Eagle(folder, target, tree=tree, dtype=d["dtype"], n_threads=1)
