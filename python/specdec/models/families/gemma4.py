"""Gemma 4: heads, windows and RoPE by layer, shared keys and values, per-layer embeddings."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any

from specdec.fields import REQUIRED
from specdec.models.families.config_reader import MAX_D_HEAD, ConfigReader
from specdec.models.families.family import SEEING, Family, Named, absent, named
from specdec.models.families.llama import LLAMA, llama_like
from specdec.models.families.moe import experts, mixture

_LAYER = "model.layers.{i}"

_TENSORS = experts(
    f"{_LAYER}.experts", "gate_proj", "up_proj", "down_proj", f"{_LAYER}.experts", stacked_first=True
) | LLAMA | named(
    _LAYER, attn_post_norm=".post_attention_layernorm", mlp_norm=".pre_feedforward_layernorm",
    mlp_post_norm=".post_feedforward_layernorm", layer_scale=".layer_scalar",
    per_layer_embedding="model.embed_tokens_per_layer.weight",
    per_layer_projection="model.per_layer_model_projection",
    per_layer_projection_norm="model.per_layer_projection_norm", per_layer_gate=".per_layer_input_gate",
    per_layer_out=".per_layer_projection", per_layer_post_norm=".post_per_layer_input_norm",
    dense_post_norm=".post_feedforward_layernorm_1", experts_norm=".pre_feedforward_layernorm_2",
    experts_post_norm=".post_feedforward_layernorm_2", router=".router.proj",
    expert_scale=".router.per_expert_scale",
) | {"router_norm": Named(f"{_LAYER}.router.scale", suffixes={".weight": ""})}  # fmt: skip

_FULL = "full_attention"


def _heads(
    reader: ConfigReader, sizes: dict[str, Any], layer_types: Sequence[str], *, k_eq_v: bool
) -> list[tuple[int, int]]:
    """Return KV heads and head size of each layer; those of full attention have their own."""
    fields, all_layers = reader.fields, (sizes["n_kv_head"], sizes["d_head"])
    if not fields.has("per_layer_config"):
        name = "num_global_key_value_heads"
        own = fields.raw(name) is not None and k_eq_v
        full = reader.sizes(
            n_kv_head=name if own else "num_key_value_heads", absent_kv_head=4, d_head="global_head_dim",
            default_d_head=512,
        )  # fmt: skip
        of_full = full["n_kv_head"], full["d_head"]
        return [of_full if layer_type == _FULL else all_layers for layer_type in layer_types]
    # As transformers writes it, which then ignores these.
    fields.skip("num_global_key_value_heads", "global_head_dim")
    given = fields.object("per_layer_config") or fields.empty("per_layer_config")
    names = {int(name): name for name in given.as_dict() if name.isdecimal()}  # such as "05"
    none = given.empty("")
    of_each = [given.object(names.get(i, "")) or none for i in range(len(layer_types))]
    found = [
        (
            one.integer("num_key_value_heads", default=all_layers[0]),
            one.integer("head_dim", minimum=2, maximum=MAX_D_HEAD, default=all_layers[1]),
        )
        for one in of_each
    ]
    if unknown := given.unread():
        raise fields.unsupported("per_layer_config", f"num_key_value_heads or head_dim, not {unknown[0]}")
    if len({*zip(layer_types, found, strict=True)}) > len({*layer_types}):
        raise fields.unsupported("per_layer_config", "the same heads in all layers of a type")
    return found


def _experts(reader: ConfigReader) -> dict[str, Any]:
    """Read experts in parallel with the dense MLP."""
    fields = reader.fields
    if not fields.boolean("enable_moe_block", default=False):
        fields.skip("moe_intermediate_size", "num_experts", "top_k_experts")
        return {}
    return {
        "dense_with_experts": True,
        "router_renormalize": True,
        **mixture(reader, n_experts=REQUIRED, n_chosen=REQUIRED, d_expert="moe_intermediate_size"),
    }


def _shared(reader: ConfigReader, layer_types: Sequence[str], d_ff: int) -> dict[str, Any]:
    """Read which layers use keys and values of earlier ones, and the widths of MLPs, doubled there."""
    fields, n_layer = reader.fields, len(layer_types)
    n_own = n_layer - fields.integer("num_kv_shared_layers", minimum=0, maximum=n_layer - 1, default=0)
    is_wide = fields.boolean("use_double_wide_mlp", default=False)
    if n_own == n_layer:
        return {}
    last = {layer_type: i for i, layer_type in enumerate(layer_types[:n_own])}
    if not last.keys() >= {*layer_types}:
        raise fields.unsupported("num_kv_shared_layers", "a layer of each type that is not shared")
    kv_layers = [i if i < n_own else last[layer_type] for i, layer_type in enumerate(layer_types)]
    widths = [d_ff if i < n_own else 2 * d_ff for i in range(n_layer)]
    return {"kv_layers": kv_layers} | ({"d_ffs": widths} if is_wide else {})


def _per_layer(reader: ConfigReader, n_vocab: int) -> dict[str, Any]:
    """Read per-layer embeddings."""
    fields = reader.fields
    name, of_vocab = "hidden_size_per_layer_input", "vocab_size_per_layer_input"
    width = fields.integer(name, minimum=0, default=0)
    if not width:
        fields.skip(of_vocab)
        return {}
    if fields.integer(of_vocab, default=n_vocab) != n_vocab:
        raise fields.unsupported(of_vocab, f"{n_vocab}, the vocab_size")
    return {"d_per_layer": width}


def _settled(config: dict[str, Any], tensors: MutableMapping[str, Any]) -> dict[str, Any]:
    """Drop keys and values that no layer uses, as transformers does."""
    for i, kv_layer in enumerate(config.get("kv_layers", ())):
        for part in ("k_proj", "v_proj", "k_norm") if kv_layer != i else ():
            tensors.pop(f"model.layers.{i}.self_attn.{part}.weight", None)
    return config


def _gemma4(reader: ConfigReader, *, window: int = 512) -> dict[str, Any]:
    """Read Gemma 4; the last layer always has full attention."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=4, default_d_head=256)
    n_layer = sizes["n_layer"]
    layer_types = [*reader.layer_types(n_layer, 6)[:-1], _FULL]
    shared = _shared(reader, layer_types, sizes["d_ff"])
    kv_layers = shared.get("kv_layers", range(n_layer))
    k_eq_v = fields.boolean("attention_k_eq_v", default=False)
    heads = _heads(reader, sizes, layer_types, k_eq_v=k_eq_v)
    n_kv_heads, d_heads = zip(*heads, strict=True)
    sizes |= {"n_kv_head": n_kv_heads[-1], "d_head": d_heads[-1]}
    if len({*heads}) > 1:
        sizes |= {"n_heads": [sizes["n_head"]] * n_layer, "n_kv_heads": [*n_kv_heads], "d_heads": [*d_heads]}
    turning = [reader.rotation(d_heads[-1], layer_type=_FULL, theta=1_000_000.0)]
    if "sliding_attention" in layer_types:
        d_head = d_heads[layer_types.index("sliding_attention")]
        turning.append(reader.rotation(d_head, layer_type="sliding_attention", scaled=False))
    return llama_like(
        reader, sizes=sizes, tied=True, bias=False, embedding_scale=math.sqrt(sizes["d_model"]),
        turning=tuple(turning),
        rotations=[int(layer_type != _FULL) for layer_type in layer_types],
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        norm_position="both", qk_norm="head", v_norm=True, score_scales=[1.0] * n_layer, layer_scale=True,
        values_from_keys=[
            int(k_eq_v and layer_type == _FULL and kv_layers[i] == i)
            for i, layer_type in enumerate(layer_types)
        ],
        logit_softcap=reader.optional_number("final_logit_softcapping"),
        **reader.windows(layer_types, default=window), **shared, **_per_layer(reader, sizes["n_vocab"]),
        **_experts(reader),
    )  # fmt: skip


_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
_UNIFIED_ABSENT = absent(2304, 9216, 30, 8, 262144, 262144) | {"rope_parameters": _ROPE}
_ABSENT = _UNIFIED_ABSENT | {"max_position_embeddings": 131072, "hidden_size_per_layer_input": 256}
_SEEING = SEEING | {
    "settled": _settled,
    "left_out": (
        "model.audio_tower.", "model.embed_audio.", "model.embed_vision.", "model.vision_embedder.",
        "model.vision_tower.",
    ),
    "harmless": (
        *SEEING["harmless"], "audio_config", "audio_token_id", "boa_token_id", "eoa_token_id",
        "eoa_token_index", "video_token_id", "vision_soft_tokens_per_image",
    ),
}  # fmt: skip
_unified = partial(_gemma4, window=1024)
_IMAGES: dict[str, Any] = {"bidirectional": ("vision",)}  # within images alone

FAMILIES = {
    "Gemma4ForCausalLM": Family(_gemma4, _TENSORS, "gemma4_text", _ABSENT, settled=_settled, **_IMAGES),
    "Gemma4ForConditionalGeneration": Family(_gemma4, _TENSORS, "", _ABSENT, **_SEEING, **_IMAGES),
    "Gemma4UnifiedForCausalLM": Family(_unified, _TENSORS, "gemma4_unified_text", _UNIFIED_ABSENT, **_IMAGES),
    "Gemma4UnifiedForConditionalGeneration": Family(
        _unified, _TENSORS, "", _UNIFIED_ABSENT, **_SEEING, **_IMAGES
    ),
}


def _assistant(reader: ConfigReader, *, window: int = 512) -> dict[str, Any]:
    """Read the layers of an assistant, whose keys and values are those of its target."""
    fields = reader.fields
    n_layer = fields.integer("num_hidden_layers")
    if fields.raw("num_kv_shared_layers") not in (None, 0, n_layer):
        raise fields.unsupported("num_kv_shared_layers", f"{n_layer}, all layers")
    if fields.raw("hidden_size_per_layer_input") not in (None, 0):
        raise fields.unsupported("hidden_size_per_layer_input", "0: an assistant has no such embeddings")
    for name in ("enable_moe_block", "use_double_wide_mlp"):
        fields.require(name, False, because="an assistant has plain MLPs")
    fields.require("tie_word_embeddings", True, because="an assistant's head is its embedding")
    own = fields.replaced(num_kv_shared_layers=0, hidden_size_per_layer_input=0)
    config = _gemma4(ConfigReader(own), window=window)
    del config["values_from_keys"]
    return config | {"tied": False, "logit_softcap": 0.0}  # its class ignores final_logit_softcapping


_ASSISTANT = _TENSORS | named(
    head="model.embed_tokens.weight", feature_projection="pre_projection", feature_output="post_projection",
    head_centroids="masked_embedding.centroids",
)  # fmt: skip
_ASSISTING: dict[str, Any] = _IMAGES | {
    "text_field": "text_config",
    "renamed": {f"{name}.": f"{name}." for name in ("pre_projection", "post_projection", "masked_embedding")},
}

ASSISTANTS = {
    "Gemma4AssistantForCausalLM": Family(
        _assistant, _ASSISTANT, absent=_ABSENT | {"backbone_hidden_size": 1536}, **_ASSISTING
    ),
    "Gemma4UnifiedAssistantForCausalLM": Family(
        partial(_assistant, window=1024), _ASSISTANT,
        absent=_UNIFIED_ABSENT | {"backbone_hidden_size": 3840}, **_ASSISTING,
    ),
}  # fmt: skip
"""Drafts that read keys and values of a Gemma 4, by their name in ``architectures``."""
