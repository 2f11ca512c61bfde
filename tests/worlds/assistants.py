"""Tiny random Gemma 4 models with assistants, in two folders each."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from specdec import _core, drafts
from specdec.drafts.learned.eagle.published import PublishedDraft
from worlds.eagles import may_have_mtp, random
from worlds.families import random_weights
from worlds.folders import write_hf

_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
}
WINDOW = 9
_LAYERS: dict[str, Any] = {
    "vocab_size": 256, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24,
    "sliding_window": WINDOW, "max_position_embeddings": 160, "hidden_size_per_layer_input": 0,
    "rope_parameters": _ROPE, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
_SMALL = _LAYERS | {
    "model_type": "gemma4_text", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 2, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
_LARGE = _LAYERS | {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 48,
    "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_OF_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
_UNIFIED = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")


def _unified(fields: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in fields.items() if name not in _UNIFIED}
    return found | {"model_type": "gemma4_unified_text"}


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "centroids": (  # as E2B and E4B: shared keys and values, per-layer embeddings, a head in clusters
        _LARGE | {"num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
                  "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 12,
                  "vocab_size_per_layer_input": 256, "final_logit_softcapping": 3.0},
        {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
         "backbone_hidden_size": 48, "use_ordered_embeddings": True, "num_centroids": 8,
         "centroid_intermediate_top_k": 3, "tie_word_embeddings": True,
         "text_config": _SMALL | {"final_logit_softcapping": 3.0}},
    ),
    "dense": (  # as 31B: values of full attention are keys
        _LARGE | _OF_VALUES,
        {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
         "backbone_hidden_size": 48, "tie_word_embeddings": True, "text_config": _SMALL | _OF_VALUES},
    ),
    "unified": (  # as 12B
        _unified(_LARGE | _OF_VALUES | {"architectures": ["Gemma4UnifiedForCausalLM"]}),
        {"architectures": ["Gemma4UnifiedAssistantForCausalLM"], "model_type": "gemma4_unified_assistant",
         "backbone_hidden_size": 48, "tie_word_embeddings": True,
         "text_config": _unified(_SMALL | _OF_VALUES)},
    ),
}  # fmt: skip


def assistant_tensors(config: dict[str, Any], seed: int = 1) -> dict[str, np.ndarray]:
    """Draw the tensors of an assistant's file."""
    text, width, rng = config["text_config"], config["backbone_hidden_size"], np.random.default_rng(seed)
    d, f, v = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "pre_projection.weight": (d, 2 * width), "post_projection.weight": (width, d),
        "model.embed_tokens.weight": (v, d), "model.norm.weight": (d,),
    }  # fmt: skip
    for i, layer_type in enumerate(text["layer_types"]):
        size = text["global_head_dim" if layer_type == "full_attention" else "head_dim"]
        d_q = size * text["num_attention_heads"]
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (d_q, d), "self_attn.q_norm": (size,), "self_attn.o_proj": (d, d_q),
            "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f),
        } | dict.fromkeys(
            ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
             "post_feedforward_layernorm"), (d,),
        )  # fmt: skip
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    groups = config.get("num_centroids", 0)
    if groups:
        shapes["masked_embedding.centroids.weight"] = (groups, d)
    tensors: dict[str, np.ndarray] = random(rng, shapes)
    for i in range(len(text["layer_types"])):
        tensors[f"model.layers.{i}.layer_scalar"] = np.array([0.7 + 0.1 * i], np.float32)
    if groups:
        tensors["masked_embedding.token_ordering"] = rng.permutation(v).astype(np.int64)
    return tensors


def write_assistant(folder: Path, config: dict[str, Any], seed: int = 1, dtype: str = "F32") -> Path:
    """Write an assistant's folder."""
    tensors = assistant_tensors(config, seed)
    dtypes = dict.fromkeys(tensors, dtype) | {"masked_embedding.token_ordering": "I64"}
    return write_hf(folder, config, tensors, dtype=dtypes)


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a target and its assistant; return their folders."""
    target, assistant = PAIRS[name]
    weights = random_weights(target["architectures"][0], target)
    write_hf(folder / "target", target, weights)
    return folder / "target", write_assistant(folder / "assistant", assistant)


@functools.cache
def assisted() -> tuple[specdec.Model, Path]:
    """A target whose assistant has centroids, and the assistant's folder."""
    target, assistant = write_pair(Path(tempfile.mkdtemp()), "centroids")
    return specdec.load(target, tokenizer=False), assistant


def may_be_assisted(config: specdec.ModelConfig) -> bool:
    """Whether a target's layers may be those of an assistant."""
    return may_have_mtp(config) and not config.alibi and not config.relative_buckets


def random_assistant(
    target: specdec.Model, seed: int = 0, *, tree: Any = None, dtype: Any = None
) -> drafts.Assistant:
    """A random assistant for any such target, which needs no files; with centroids if the sizes allow."""
    of, rng = target.config, np.random.default_rng(seed)
    lenders = [i for i in range(of.n_layer) if of.attends[i] and (not of.kv_layers or of.kv_layers[i] == i)]
    lender = lenders[seed % len(lenders)]
    config = of.alone(lender) | {
        "features": "joined", "feature_width": of.d_model, "feature_output": True, "borrows_kv": True,
        "kv_layers": (lender,), "shared_embedding": True, "shared_head": False, "tied": False,
        "head_bias": False, "logit_scale": 1.0, "logit_softcap": 0.0, "output_norm": True,
        "values_from_keys": (), "d_model": 24, "mixers": (), "d_ffs": (), "d_ff": 40,
    }  # fmt: skip
    tokens = None
    if of.n_vocab % 32 == 0:
        n_clusters = of.n_vocab // 32
        config |= {"n_clusters": n_clusters, "n_chosen_clusters": -(-n_clusters // 2)}
        tokens = rng.permutation(of.n_vocab).astype(np.int32)
    tensors = random(rng, _core.tensor_shapes(config))
    published = PublishedDraft(
        target.path, "assistant", config, lambda: ((name, array, "f32") for name, array in tensors.items()),
        dtype or "f32", (), (of.n_layer + 1,), tokens, True,
    )  # fmt: skip
    draft = object.__new__(drafts.Assistant)
    draft._take(published, target, tree, None, None, 1)
    return draft
