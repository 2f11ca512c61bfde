"""Writers of small model files for the tests, with NumPy only: no code of the loaders."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]


def _changed(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes to a configuration; ``...`` leaves a field out."""
    return {name: value for name, value in {**config, **changes}.items() if value is not ...}


def llama_config(**changes: Any) -> dict[str, Any]:
    """A config.json for LlamaForCausalLM, grouped-query attention. ``...`` leaves a field out."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 61, "hidden_size": 32,
        "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 48, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1,
        "eos_token_id": None,  # texts of random weights do not end early
    }  # fmt: skip
    return _changed(config, changes)


def mistral_config(**changes: Any) -> dict[str, Any]:
    """A config.json for MistralForCausalLM with a window of 8."""
    own = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}
    return llama_config(**{**own, "attention_bias": ..., "mlp_bias": ..., **changes})


def gpt2_config(**changes: Any) -> dict[str, Any]:
    """A config.json for GPT2LMHeadModel."""
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 61, "n_positions": 48,
        "n_embd": 32, "n_layer": 2, "n_head": 4, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": 0, "eos_token_id": None,
    }  # fmt: skip
    return _changed(config, changes)


def llama_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Random weights under Hugging Face's names, for Llama and Mistral."""
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    d_head = config.get("head_dim") or d // config["num_attention_heads"]
    d_q, d_kv = config["num_attention_heads"] * d_head, config["num_key_value_heads"] * d_head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (d,)
        shapes[layer + "post_attention_layernorm.weight"] = (d,)
        for name, n_out, n_in in (
            ("self_attn.q_proj", d_q, d), ("self_attn.k_proj", d_kv, d), ("self_attn.v_proj", d_kv, d),
            ("self_attn.o_proj", d, d_q), ("mlp.gate_proj", f, d), ("mlp.up_proj", f, d),
            ("mlp.down_proj", d, f),
        ):  # fmt: skip
            shapes[f"{layer}{name}.weight"] = (n_out, n_in)
            if config.get("mlp_bias" if name.startswith("mlp") else "attention_bias"):
                shapes[f"{layer}{name}.bias"] = (n_out,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (v, d)
    return _random(shapes, seed)


def gpt2_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Random weights under Hugging Face's names, matrices [n_in, n_out] as GPT-2's Conv1D stores them."""
    d, v = config["n_embd"], config["vocab_size"]
    f = config.get("n_inner") or 4 * d
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (v, d), "transformer.wpe.weight": (config["n_positions"], d),
        "transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,),
    }  # fmt: skip
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            shapes[f"{layer}{norm}.weight"] = shapes[f"{layer}{norm}.bias"] = (d,)
        matrices = ("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, f), ("mlp.c_proj", f, d)
        for name, n_in, n_out in matrices:
            shapes[f"{layer}{name}.weight"] = (n_in, n_out)
            shapes[f"{layer}{name}.bias"] = (n_out,)
    if config.get("tie_word_embeddings") is False:
        shapes["lm_head.weight"] = (v, d)
    return _random(shapes, seed)


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0.0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def tensors_for(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Random weights for any of the configs above."""
    return (gpt2_tensors if config["model_type"] == "gpt2" else llama_tensors)(config, seed)


def encode(array: NDArray[np.float32], dtype: str) -> bytes:
    """Encode an array as F32, F16, BF16 (rounded to nearest, ties to even), I64 or BOOL."""
    if dtype == "F32":
        return array.astype("<f4").tobytes()
    if dtype == "F16":
        return array.astype("<f2").tobytes()
    if dtype in ("I64", "BOOL"):
        return array.astype("<i8" if dtype == "I64" else "u1").tobytes()
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


_STORED = {"f2": "F16", "u1": "U8", "i1": "I8", "i4": "I32", "i8": "I64", "b1": "BOOL"}


def safetensors_bytes(
    tensors: Mapping[str, NDArray[Any]],
    dtype: str | Mapping[str, str] = "F32",
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Make a safetensors file; the dtype applies to all float32 arrays, or to named tensors, others F32."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    data = b""
    for name, array in tensors.items():
        named = {} if isinstance(dtype, str) else dtype
        stored = _STORED.get(array.dtype.str[1:])
        stored_dtype = named.get(name) or stored or (dtype if isinstance(dtype, str) else "F32")
        raw = array.tobytes() if stored_dtype == stored else encode(array, stored_dtype)
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": stored_dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    return raw_safetensors(header, data)


def raw_safetensors(header: Any, data: bytes, *, pad_to: int = 8) -> bytes:
    """Make a safetensors file with any header: an object, or raw bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad_to)
    return struct.pack("<Q", len(text)) + text + data


def write_hf(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]] | None = None, *,
    dtype: str | Mapping[str, str] = "F32", n_shards: int = 1, seed: int = 0,
) -> Path:  # fmt: skip
    """Write a Hugging Face folder; weights are random if not given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tensors_for(config, seed) if tensors is None else tensors
    if n_shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
        return folder
    names = sorted(tensors)
    weight_map = {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        held = {name: tensors[name] for name in names[shard::n_shards]}
        (folder / file).write_bytes(safetensors_bytes(held, dtype))
        weight_map.update(dict.fromkeys(held, file))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder


LLAMA2C_HEADER = (24, 40, 2, 4, 2, 19, 16)
"""dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len"""


def llama2c_tensors(header: tuple[int, ...] = LLAMA2C_HEADER, seed: int = 0) -> Tensors:
    """Random weights by llama2.c's names, in file order, with the true rotation tables."""
    dim, hidden, n, n_heads, n_kv, vocab, seq = header
    head = dim // n_heads
    shapes: dict[str, tuple[int, ...]] = {
        "token_embedding_table": (abs(vocab), dim), "rms_att_weight": (n, dim), "wq": (n, dim, dim),
        "wk": (n, n_kv * head, dim), "wv": (n, n_kv * head, dim), "wo": (n, dim, dim),
        "rms_ffn_weight": (n, dim), "w1": (n, hidden, dim), "w2": (n, dim, hidden), "w3": (n, hidden, dim),
        "rms_final_weight": (dim,), "freq_cis_real": (seq, head // 2), "freq_cis_imag": (seq, head // 2),
    }  # fmt: skip
    if vocab < 0:
        shapes["wcls"] = (-vocab, dim)
    tensors = _random(shapes, seed)
    angles = np.outer(np.arange(seq), 10000.0 ** (-np.arange(0, head, 2) / head))
    tensors["freq_cis_real"] = np.cos(angles).astype(np.float32)
    tensors["freq_cis_imag"] = np.sin(angles).astype(np.float32)
    return tensors


def write_llama2c(
    path: Path, header: tuple[int, ...] = LLAMA2C_HEADER, tensors: Tensors | None = None
) -> Path:
    """Write a llama2.c file of version 0."""
    tensors = llama2c_tensors(header) if tensors is None else tensors
    path.write_bytes(
        struct.pack("<7i", *header) + b"".join(a.astype("<f4").tobytes() for a in tensors.values())
    )
    return path


def write_llama2c_tokenizer(
    path: Path, tokens: list[tuple[bytes, float]], *, longest: int | None = None
) -> Path:
    """A llama2.c tokenizer file of (token, score) pairs."""
    longest = max(len(token) for token, _ in tokens) if longest is None else longest
    body = b"".join(struct.pack("<fi", score, len(token)) + token for token, score in tokens)
    path.write_bytes(struct.pack("<i", longest) + body)
    return path
