"""Architectures of GGUF files: metadata as fields of a config.json, and back; names of tensors.

Each architecture maps its metadata to the fields of an architecture in transformers, so that a family is
described once. Keys are written from the canonical configuration, and from config.json where the
configuration has only derived values. Written metadata are read back and compared before any tensor is
written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.models.families import hybrid, mamba, mtp
from specdec.models.families.encoder_decoder import of_encoder
from specdec.models.families.family import (
    Array,
    Config,
    Either,
    Family,
    Named,
    fused_row,
    halves,
    interleaved,
    interleaved_norms,
    named,
    rows_of_heads,
    turned,
)
from specdec.models.families.gguf_metadata import KV_HEADS, Metadata
from specdec.models.families.moe import stacked
from specdec.models.families.rotary import rotary_frequencies, yarn_attention_factor

# -------------------------------------------------------------------------------------------- tensors


_BLOCK = "blk.{i}"
_PARTS = ("gate", "up", "down")

_TENSORS: Final[dict[str, Named | Either]] = {
    **named(
        _BLOCK, token_embedding="token_embd.weight", position_embedding="position_embd.weight",
        embedding_norm="token_embd_norm", attn_norm=".attn_norm", attn_post_norm=".post_attention_norm",
        attn_q_norm=".attn_q_norm", attn_k_norm=".attn_k_norm", attn_out=".attn_output",
        mlp_norm=".ffn_norm", mlp_post_norm=".post_ffw_norm", mlp_gate=".ffn_gate", mlp_up=".ffn_up",
        mlp_down=".ffn_down", router=".ffn_gate_inp", router_correction=".exp_probs_b.bias",
        shared_gate=".ffn_gate_inp_shexp",
        output_norm="output_norm", head="output.weight", head_bias="output.bias",
    ),
    **{
        f"attn_{role}": Either((Named(f"{_BLOCK}.attn_{role}"), fused_row(f"{_BLOCK}.attn_qkv", part)))
        for part, role in enumerate("qkv")
    },
    **{f"experts.mlp_{part}": stacked(f"{_BLOCK}.ffn_{part}_exps", suffixes={}) for part in _PARTS},
    **{f"shared_expert.mlp_{part}": Named(f"{_BLOCK}.ffn_{part}_shexp") for part in _PARTS},
}  # fmt: skip
# Queries and keys with interleaved RoPE.
_TURNED = _TENSORS | named(_BLOCK, interleaved, attn_q=".attn_q", attn_k=".attn_k")
_COHERE = _TURNED | named(_BLOCK, interleaved_norms, attn_q_norm=".attn_q_norm", attn_k_norm=".attn_k_norm")
_FUSED_TURNED = {
    f"attn_{role}": Either(
        (interleaved(f"{_BLOCK}.attn_{role}"), turned(fused_row(f"{_BLOCK}.attn_qkv", part)))
    )
    for part, role in enumerate("qk")
}
_GLM = _TENSORS | _FUSED_TURNED | halves(f"{_BLOCK}.ffn_up")
_STABLELM = _TENSORS | named(_BLOCK, rows_of_heads, attn_q_norm=".attn_q_norm", attn_k_norm=".attn_k_norm")
_PHI3 = _TENSORS | halves(f"{_BLOCK}.ffn_up")
_GLM4_MOE = _TENSORS | named(_BLOCK, mlp_norm=".post_attention_norm")
_QWEN3_5 = _GLM4_MOE | hybrid.of_gguf(_BLOCK)
_QWEN3_NEXT = _QWEN3_5 | hybrid.of_grouped_gguf(_BLOCK)
_AFMOE = _TENSORS | named(_BLOCK, attn_gate=".attn_gate")
_GPT_OSS = _GLM4_MOE | named(_BLOCK, attn_sinks=".attn_sinks.weight")
_LFM2 = _TENSORS | {
    **named(_BLOCK, output_norm="token_embd_norm", mixer_in=".shortconv.in_proj"),
    **named(_BLOCK, mixer_out=".shortconv.out_proj"),
    "mixer_conv": hybrid.convolution(f"{_BLOCK}.shortconv.conv.weight", of_gguf=True),
}
_GEMMA4 = _TENSORS | {
    **named(
        _BLOCK, layer_scale=".layer_output_scale.weight", dense_post_norm=".post_ffw_norm_1",
        experts_norm=".pre_ffw_norm_2", experts_post_norm=".post_ffw_norm_2",
        expert_scale=".ffn_down_exps.scale", per_layer_embedding="per_layer_token_embd.weight",
        per_layer_projection="per_layer_model_proj", per_layer_projection_norm="per_layer_proj_norm",
        per_layer_gate=".inp_gate", per_layer_out=".proj", per_layer_post_norm=".post_norm",
    ),
    "router_norm": Named(f"{_BLOCK}.ffn_gate_inp", suffixes={".weight": ".scale"}),
    **{
        f"experts.mlp_{name}": Either((
            stacked(f"{_BLOCK}.ffn_gate_up_exps", part=part, suffixes={}),
            stacked(f"{_BLOCK}.ffn_{name}_exps", suffixes={}),
        ))
        for part, name in enumerate(("gate", "up"))
    },
}  # fmt: skip
_GRANITE_HYBRID = _TURNED | mamba.of_gguf(_BLOCK)
_WITH_MAMBA = _TENSORS | mamba.of_gguf(_BLOCK)
# llama.cpp names this norm without ".weight".
_FALCON_H1 = _WITH_MAMBA | {"mlp_norm": Named(f"{_BLOCK}.ffn_norm", suffixes={".weight": ""})}
_NEMOTRON_H = _WITH_MAMBA | named(_BLOCK, mlp_norm=".attn_norm")
_FALCON_TWO_NORMS = _TENSORS | named(_BLOCK, attn_norm=".attn_norm_2", mlp_norm=".attn_norm")


def _t5_tensors(config: Config) -> dict[str, Named]:
    first = "{i}" if config["relative_bias_by_layer"] else "0"

    def side(name: str) -> dict[str, Named]:
        return named(
            f"{name}.blk.{{i}}", relative_bias=f"{name}.blk.{first}.attn_rel_b.weight",
            attn_norm=".attn_norm", attn_q=".attn_q", attn_k=".attn_k", attn_v=".attn_v", attn_out=".attn_o",
            mlp_norm=".ffn_norm", mlp_gate=".ffn_gate", mlp_up=".ffn_up", mlp_down=".ffn_down",
            output_norm=f"{name}.output_norm",
        )  # fmt: skip

    cross = named(
        "dec.blk.{i}", token_embedding="token_embd.weight", head="output.weight",
        cross_norm=".cross_attn_norm", cross_q=".cross_attn_q", cross_k=".cross_attn_k",
        cross_v=".cross_attn_v", cross_out=".cross_attn_o",
    )  # fmt: skip
    return side("dec") | cross | of_encoder(side("enc"))


# ------------------------------------------------------------------------- metadata as fields of config.json

_SIZES: Final = (
    "attention.head_count", "block_count", "context_length", "embedding_length", "feed_forward_length"
)  # fmt: skip
_EPSILON: Final = "attention.layer_norm_epsilon"
_WINDOW: Final = "attention.sliding_window"
_SHARED_WIDTH: Final = "expert_shared_feed_forward_length"
_ORIGINAL: Final = "rope.scaling.original_context_length"
_RECURRENT: Final = "attention.recurrent_layers"

Rows = dict[str, str | Callable[[Metadata], Any]]
"""Field of a config.json to its key, or to a function. Sizes and epsilons are required."""


def _block(m: Metadata) -> dict[str, Any]:
    n_head = m.integer("attention.head_count")
    fields = {
        "hidden_size": m.integer("embedding_length"),
        "num_hidden_layers": m.n_layer,
        "num_attention_heads": n_head,
        "num_key_value_heads": m.get("attention.head_count_kv", n_head),
        "intermediate_size": (m.get if m.has("expert_count") else m.integer)("feed_forward_length"),
        "max_position_embeddings": m.integer("context_length"),
        "head_dim": m.d_head,
        "rms_norm_eps": m.amount("attention.layer_norm_rms_epsilon", None),
        "layer_norm_eps": m.amount(_EPSILON, None),
        "rope_theta": m.amount("rope.freq_base", 10_000.0),
        "rope_scaling": _scaling(m),
    }
    n_turned = m.get("rope.dimension_count", m.d_head)
    if n_turned != m.d_head:
        if not isinstance(n_turned, int) or not 0 < n_turned < m.d_head:
            raise m.error("rope.dimension_count", f"an integer up to {m.d_head}, the head size")
        # The reader multiplies and rounds down.
        fields["partial_rotary_factor"] = math.nextafter(n_turned / m.d_head, 2.0)
    return {name: value for name, value in fields.items() if value is not None}


def _scaling(m: Metadata) -> dict[str, Any] | None:
    """Return the RoPE scaling except for ``rope_freqs.weight``; a factor without type is linear."""
    factor = m.amount("rope.scaling.factor", m.amount("rope.scale_linear", None))
    rope_type = m.get("rope.scaling.type", "linear")
    if m.name == "phi3" and "rope_factors_long.weight" in m.tensors:
        rope_type = "longrope"  # whatever name the file gives it
    if rope_type == "none" or (rope_type == "linear" and factor in (None, 0.0, 1.0)):
        return None
    if rope_type == "linear":
        return {"rope_type": "linear", "factor": factor}
    if rope_type not in ("yarn", "longrope"):
        raise m.unsupported("rope.scaling.type", "none, linear, yarn or longrope")
    fields = {"factor": factor, "original_max_position_embeddings": m.get(_ORIGINAL)}
    fields |= _yarn(m, factor) if rope_type == "yarn" else _longrope(m)
    return {"rope_type": rope_type} | {name: value for name, value in fields.items() if value is not None}


def _yarn(m: Metadata, factor: float | None) -> dict[str, Any]:
    ext = m.get("rope.scaling.yarn_ext_factor", 1.0)
    if ext != 1.0 and not (isinstance(ext, float) and ext < 0.0):  # negative: unset
        raise m.unsupported("rope.scaling.yarn_ext_factor", "1 or no such field: fast frequencies are kept")
    attention = m.amount("rope.scaling.yarn_attn_factor", None)
    of_all = m.amount("rope.scaling.yarn_log_multiplier", 0.0)
    if of_all and attention is None and factor is not None and factor > 1.0:
        growth = 0.1 * math.log(factor)
        attention = (growth + 1.0) / (of_all * growth + 1.0)
    betas = {f"beta_{end}": m.get(f"rope.scaling.yarn_beta_{end}") for end in ("fast", "slow")}
    return betas | {"attention_factor": attention}


def _longrope(m: Metadata) -> dict[str, Any]:
    names = [f"rope_factors_{length}.weight" for length in ("short", "long")]
    short, long = map(m.numbers_of, names)
    if short is None or long is None:
        expected = f"another type, or tensors {names[0]!r} and {names[1]!r}"
        raise m.unsupported("rope.scaling.type", expected)
    attention = m.amount("rope.scaling.attn_factor", None)
    return {"short_factor": short, "long_factor": long, "attention_factor": attention}


def _windows(m: Metadata) -> dict[str, Any]:
    """Return the window, and its layers if the file lists them."""
    fields: dict[str, Any] = {"sliding_window": m.get(_WINDOW)}
    windowed = m.pattern("attention.sliding_window_pattern", m.n_layer)
    if fields["sliding_window"] and windowed is not None:
        fields["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in windowed]
    return fields


def _llama(m: Metadata) -> dict[str, Any]:
    if not (n_experts := m.get("expert_count")):
        return {}
    return {"num_local_experts": n_experts, "num_experts_per_tok": m.get("expert_used_count")}


def _granite(m: Metadata) -> dict[str, Any]:
    fields = {
        "attention_multiplier": m.get("attention.scale") or m.d_head**-0.5,
        "embedding_multiplier": m.get("embedding_scale"),
        "residual_multiplier": m.get("residual_scale"),
        "logits_scaling": m.get("logit_scale"),
    }
    return {name: value for name, value in fields.items() if value}


def _lfm2(m: Metadata) -> dict[str, Any]:
    return {
        "layer_types": ["full_attention" if attends else "conv" for attends in m.attending()],
        "conv_L_cache": m.integer("shortconv.l_cache"),
        "norm_eps": m.amount("attention.layer_norm_rms_epsilon"),
    }


def _granite_moe(m: Metadata) -> dict[str, Any]:
    n_shared = m.get(_SHARED_WIDTH)
    return _granite(m) | _llama(m) | ({"shared_intermediate_size": n_shared} if n_shared else {})


def _value_heads(m: Metadata) -> tuple[int, int]:
    """Return the number of value heads of a recurrent layer and the size of all of them."""
    n_head, n_values = m.integer("ssm.time_step_rank"), m.integer("ssm.inner_size")
    if n_values % n_head:
        raise m.error("ssm.inner_size", f"a multiple of ssm.time_step_rank, which is {n_head}")
    return n_head, n_values


def _mamba(m: Metadata) -> dict[str, Any]:
    """Return the sizes of Mamba-2."""
    n_head, n_values = _value_heads(m)
    width = m.integer("embedding_length")
    return {
        "mamba_n_heads": n_head,
        "mamba_d_head": n_values // n_head,
        "mamba_n_groups": m.integer("ssm.group_count"),
        "mamba_d_state": m.integer("ssm.state_size"),
        "mamba_d_conv": m.integer("ssm.conv_kernel"),
        # A half more: the product with the width is rounded down.
        "mamba_expand": n_values // width if n_values % width == 0 else (n_values + 0.5) / width,
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in m.tensors),
    }


def _falcon_h1(m: Metadata) -> dict[str, Any]:
    """Return the sizes of Mamba-2 next to attention; the factors of projections are in the weights."""
    return _mamba(m) | {
        "mamba_d_ssm": m.integer("ssm.inner_size"),
        "mamba_rms_norm": any(name.endswith(".ssm_norm.weight") for name in m.tensors),
        "mamba_norm_before_gate": False,
    }


def _mamba_like(m: Metadata, n_head: str, d_head: str, d_state: str) -> dict[str, Any]:
    """Return the fields that Mamba-2 and Nemotron-H share, and sizes by their names."""
    sizes = _mamba(m)
    return {
        "hidden_size": m.integer("embedding_length"),
        "num_hidden_layers": m.n_layer,
        "layer_norm_epsilon": m.amount("attention.layer_norm_rms_epsilon", None) or m.amount(_EPSILON),
        n_head: sizes["mamba_n_heads"],
        d_head: sizes["mamba_d_head"],
        d_state: sizes["mamba_d_state"],
        "n_groups": sizes["mamba_n_groups"],
        "conv_kernel": sizes["mamba_d_conv"],
        "use_conv_bias": sizes["mamba_conv_bias"],
        "expand": sizes["mamba_expand"],
    }


def _mamba2(m: Metadata) -> dict[str, Any]:
    for key in ("attention.head_count", KV_HEADS, "feed_forward_length"):
        if m.get(key, 0) != 0:
            raise m.unsupported(key, "0: all layers are Mamba-2")
    return _mamba_like(m, "num_heads", "head_dim", "state_size")


def _nemotron_h(m: Metadata) -> dict[str, Any]:
    """Return one block for each layer; there are no positions, whatever their keys say."""
    m.skip("rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned")
    wide = "E" if m.get("expert_count") else "-"
    layers = zip(m.attending(), m.by_layer("feed_forward_length"), strict=True)
    return _mamba_like(m, "mamba_num_heads", "mamba_head_dim", "ssm_state_size") | {
        "num_attention_heads": m.integer("attention.head_count"),
        "num_key_value_heads": m.get(KV_HEADS),
        "head_dim": m.d_head,
        "intermediate_size": m.get("feed_forward_length"),
        "max_position_embeddings": m.integer("context_length"),
        "hybrid_override_pattern": "".join("*" if attends else wide if n else "M" for attends, n in layers),
    }


def _granite_hybrid(m: Metadata) -> dict[str, Any]:
    """Return Granite's block with Mamba-2, and positions if "rope.scaling.finetuned" says so."""
    width = m.get(_SHARED_WIDTH) or m.integer("feed_forward_length")
    return _granite(m) | _mamba(m) | {
        "num_local_experts": m.get("expert_count", 0),
        "num_experts_per_tok": m.get("expert_used_count", 0),
        "shared_intermediate_size": width,
        "layer_types": ["attention" if attends else "mamba" for attends in m.attending()],
        "position_embedding_type": "rope" if m.boolean("rope.scaling.finetuned", default=False) else "nope",
    }  # fmt: skip


def _rope_parameters(m: Metadata, **fields: Any) -> dict[str, Any]:
    """Return a block with RoPE in ``rope_parameters``, together with more fields."""
    block = _block(m)
    rope = block.pop("rope_scaling", {"rope_type": "default"})
    return block | {"rope_parameters": rope | fields | {"rope_theta": block["rope_theta"]}}


def _mistral3(m: Metadata) -> dict[str, Any]:
    beta = m.get("attention.temperature_scale")
    return _rope_parameters(m, **({"llama_4_scaling_beta": beta} if beta else {}))


def _gpt_oss(m: Metadata) -> dict[str, Any]:
    scaling = _scaling(m)
    is_yarn = scaling is not None and scaling["rope_type"] == "yarn"
    return _rope_parameters(m, **({"truncate": False} if is_yarn else {}))


def _gemma2_scale(m: Metadata) -> int:
    """Return ``query_pre_attn_scalar``; 27B models use d_model / n_head instead of the head size."""
    width, n_head, n_layer = (m.integer(_SIZES[i]) for i in (3, 0, 1))
    return int(width // n_head if n_layer == (46 if m.name == "gemma2" else 62) else m.d_head)


def _gemma3(m: Metadata) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "rope_local_base_freq": m.amount("rope.freq_base_swa", 10_000.0),
        "rope_theta": m.amount("rope.freq_base", 1_000_000.0),
    }
    if not m.get(_WINDOW):
        fields["layer_types"] = ["full_attention"] * m.n_layer
    return fields


def _gemma4(m: Metadata) -> dict[str, Any]:
    """Return a block with heads and RoPE by type of layer."""
    windowed = m.pattern("attention.sliding_window_pattern", m.n_layer)
    if windowed is None:
        raise m.error("attention.sliding_window_pattern", f"{m.n_layer} values, one per layer")
    size = m.integer("attention.key_length_swa", default=m.d_head)
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if m.get(key, size) != size:
            raise m.unsupported(key, f"{size}, the size of keys")
    types = ["sliding_attention" if flag else "full_attention" for flag in windowed]
    values = [f"blk.{i}.attn_v.weight" in m.tensors for i, flag in enumerate(windowed) if not flag]
    block = _rope_parameters(m, **_turned_part(m))
    if n_experts := m.get("expert_count"):
        block |= {
            "enable_moe_block": True, "num_experts": n_experts, "top_k_experts": m.get("expert_used_count"),
            "moe_intermediate_size": m.get("expert_feed_forward_length"),
        }  # fmt: skip
    n_shared = m.integer("attention.shared_kv_layers", minimum=0, maximum=m.n_layer, default=0)
    widths = m.by_layer("feed_forward_length")
    is_wide = widths[0] != widths[-1]
    if is_wide and widths != [widths[0]] * (m.n_layer - n_shared) + [2 * widths[0]] * n_shared:
        expected = f"the same value, or twice as much in the last {n_shared} layers, which share keys"
        raise m.unsupported("feed_forward_length", expected)
    return block | {
        "layer_types": types,
        "use_double_wide_mlp": is_wide,
        "sliding_window": m.get(_WINDOW),
        "per_layer_config": {
            str(i): {"head_dim": size if flag else m.d_head, "num_key_value_heads": n_heads}
            for i, (flag, n_heads) in enumerate(zip(windowed, m.by_layer(KV_HEADS), strict=True))
        },
        "rope_parameters": {
            "full_attention": block["rope_parameters"],
            "sliding_attention": {
                "rope_type": "default", "rope_theta": m.amount("rope.freq_base_swa", 10_000.0)
            },
        },
        "attention_k_eq_v": not any(values),
        "final_logit_softcapping": m.get("final_logit_softcapping"),
        "num_kv_shared_layers": n_shared,
        "hidden_size_per_layer_input": m.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": None,
    }  # fmt: skip


def _turned_part(m: Metadata) -> dict[str, Any]:
    """Return proportional RoPE if the tensor of factors leaves out the last pairs."""
    factors = m.numbers_of("rope_freqs.weight") or []
    n_turned = sum(factor == 1.0 for factor in factors)
    if not 0 < n_turned < len(factors) or min(factors[n_turned:]) < _NO_TURN:
        return {}
    fraction = n_turned / len(factors)
    if int(fraction * 2 * len(factors) // 2) != n_turned:  # the reader multiplies and rounds down
        fraction = math.nextafter(fraction, 2.0)
    return {"rope_type": "proportional", "partial_rotary_factor": fraction}


def _partly_turned(m: Metadata) -> dict[str, Any]:
    """Return a block with ``partial_rotary_factor``, whose default is below 1 in its readers."""
    return {"partial_rotary_factor": 1.0} | _block(m)


def _glm(m: Metadata) -> dict[str, Any]:
    if m.has("rope.dimension_sections"):  # whose files have rows of queries and keys in another order
        raise m.unsupported("rope.dimension_sections", "no such field: positions are numbers")
    return _partly_turned(m)


def _stablelm(m: Metadata) -> dict[str, Any]:
    m.skip("use_parallel_residual")  # implied by the absence of a second norm
    return {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in m.tensors,
        "qk_layernorm": _has_qk_norm(m),
    }


def _has_qk_norm(m: Metadata) -> bool:
    return "blk.0.attn_q_norm.weight" in m.tensors


def _neox(m: Metadata) -> dict[str, Any]:
    fields = _partly_turned(m)
    return fields | {
        "rotary_pct": fields["partial_rotary_factor"],
        "rotary_emb_base": fields["rope_theta"],
        "use_parallel_residual": m.get("use_parallel_residual"),
    }


def _mpt_attention(m: Metadata) -> dict[str, Any]:
    most = m.amount("attention.max_alibi_bias", 8.0)
    whole = int(most) if most == int(most) else most
    return {"alibi": most > 0.0, "alibi_bias_max": whole, "clip_qkv": m.get("attention.clamp_kqv")}


def _falcon(m: Metadata) -> dict[str, Any]:
    n_kv, n_head = m.get("attention.head_count_kv", 1), m.integer("attention.head_count")
    two_norms = "blk.0.attn_norm_2.weight" in m.tensors
    return {
        "num_kv_heads": n_kv,
        "ffn_hidden_size": m.integer("feed_forward_length"),
        "multi_query": n_kv == 1,
        "new_decoder_architecture": two_norms or n_kv not in (1, n_head),
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "layer_norm_epsilon": m.amount(_EPSILON),
    }


def _hybrid(m: Metadata) -> dict[str, Any]:
    """Return a block with the sizes and layers of the delta rule."""
    m.skip("rope.dimension_sections")  # of images; all of a text's positions are equal
    n_head, n_values = _value_heads(m)
    fields = {
        "linear_conv_kernel_dim": m.integer("ssm.conv_kernel"),
        "linear_key_head_dim": m.integer("ssm.state_size"),
        "linear_num_key_heads": m.integer("ssm.group_count"),
        "linear_num_value_heads": n_head,
        "linear_value_head_dim": n_values // n_head,
        "full_attention_interval": m.get("full_attention_interval", 4),
    }
    recurrent = m.pattern(_RECURRENT, m.n_layer)
    if recurrent is not None:
        fields["layer_types"] = ["linear_attention" if flag else "full_attention" for flag in recurrent]
    return _partly_turned(m) | fields


# ---------------------------------------------------------------------------------------------- writing

Keys = dict[str, Any]
"""Metadata without the architecture prefix."""
Fields = Mapping[str, Any]
"""The decoder's fields of a config.json; empty without such a file."""
WrittenRows = dict[str, str | Callable[[Config, Fields], Any]]
"""Key to the canonical field, written unless 0, or to a function that returns the value or None."""

_ROUNDED: Final = 7  # digits of a computed RoPE base
_NO_TURN: Final = 1e30  # factor of frequencies that are 0


def _sizes(config: Config, fields: Fields) -> Keys:
    return {
        "vocab_size": config["n_vocab"],
        "context_length": fields.get("max_position_embeddings") or config["n_ctx"],
        "embedding_length": config["d_model"],
        "block_count": config["n_layer"],
        "feed_forward_length": config["d_ff"],
        "attention.head_count": config["n_head"],
        "attention.head_count_kv": config["n_kv_head"],
        "attention.layer_norm_rms_epsilon" if config["norm"] == "rms" else _EPSILON: config["norm_eps"],
    }


def _base_of(frequencies: list[float], *named: Any) -> float:
    """Return the base of unscaled frequencies: one of those named, else computed."""
    size = 2 * len(frequencies)
    for base in named:
        if isinstance(base, int | float) and rotary_frequencies(size, float(base)) == frequencies:
            return float(base)
    if size == 2:
        return 10_000.0
    base = math.log(frequencies[-1]) * -size / (size - 2)
    return float(f"{math.exp(base):.{_ROUNDED - 1}g}")


def _scaling_of(fields: Fields) -> dict[str, Any]:
    """Return ``rope_parameters`` or ``rope_scaling``, for full attention if they differ by layer type."""
    scaling = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    scaling = scaling.get("full_attention", scaling)
    return dict(scaling) if isinstance(scaling, Mapping) else {}


def _rotation_keys(config: Config, fields: Fields) -> tuple[Keys, dict[str, Array]]:
    """Return keys and tensors of RoPE."""
    if config["position"] != "rotary":
        return {}, {}
    size = 2 * len(config["inv_freq"])
    scaling = _scaling_of(fields)
    rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    named = [scaling.get("rope_theta"), fields.get("rope_theta"), fields.get("rotary_emb_base")]
    if rope_type == "dynamic" and scaling.get("alpha") is not None:
        rope_type, stretch = "default", scaling["alpha"] ** (size / (size - 2))
        named = [base * stretch for base in named if isinstance(base, int | float)]
    if rope_type == "default":
        base = _base_of(config["inv_freq"], *named, 10_000.0)
    else:
        base = next((float(base) for base in named if isinstance(base, int | float)), 10_000.0)
    found: Keys = {
        "attention.key_length": config["d_head"],
        "attention.value_length": config["d_head"],
        "rope.dimension_count": size,
        "rope.freq_base": base,
    }
    if rope_type == "linear":
        return found | {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}, {}
    if rope_type == "yarn":
        return found | _yarn_keys(scaling, _attention_factor(config)), {}
    if rope_type in ("longrope", "su"):
        return found | _longrope_keys(scaling, fields), {
            f"rope_factors_{part}.weight": np.array(scaling[f"{part}_factor"], np.float32)
            for part in ("short", "long")
        }
    plain = rotary_frequencies(size, base)
    if plain == config["inv_freq"]:
        return found, {}
    factors = [a / b if b else _NO_TURN for a, b in zip(plain, config["inv_freq"], strict=True)]
    return found, {"rope_freqs.weight": np.array(factors, np.float32)}


def _attention_factor(config: Config) -> float:
    """Return the factor of cosines and sines."""
    return float((config.get("rotary_factors") or [1.0])[0])


def _yarn_keys(scaling: Mapping[str, Any], attention_factor: float) -> Keys:
    names = {"factor": "factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    keys: Keys = {
        f"rope.scaling.{key}": float(scaling[name])
        for name, key in names.items()
        if scaling.get(name) is not None
    }
    if scaling.get("original_max_position_embeddings") is not None:
        keys[_ORIGINAL] = scaling["original_max_position_embeddings"]
    if attention_factor != yarn_attention_factor(scaling.get("factor", 1.0)):
        keys["rope.scaling.yarn_attn_factor"] = attention_factor
    return {"rope.scaling.type": "yarn"} | keys


def _longrope_keys(scaling: Mapping[str, Any], fields: Fields) -> Keys:
    name = "original_max_position_embeddings"
    keys: Keys = {"rope.scaling.type": "longrope"}
    if original := scaling.get(name) or fields.get(name):
        growth = fields["max_position_embeddings"] / original
        factor = math.sqrt(1.0 + math.log(growth) / math.log(original)) if growth > 1.0 else 1.0
        keys[_ORIGINAL] = original
        keys["rope.scaling.attn_factor"] = float(scaling.get("attention_factor") or factor)
    return keys


def _yarn_log_multiplier(config: Config, fields: Fields) -> float | None:
    scaling = _scaling_of(fields)
    if scaling.get("factor", 1.0) <= 1.0 or scaling.get("rope_type") != "yarn":
        return None
    # The factor of cosines and sines: (growth + 1) / (of_all · growth + 1).
    growth = 0.1 * math.log(scaling["factor"])
    return float(((growth + 1.0) / _attention_factor(config) - 1.0) / growth)


def _pattern(config: Config, fields: Fields) -> list[bool] | None:
    return [window > 0 for window in config["windows"]] if config.get("windows") else None


def _gemma3_pattern(config: Config, fields: Fields) -> list[bool]:
    return _pattern(config, fields) or [config.get("sliding_window", 0) > 0] * config["n_layer"]


def _kv_heads(config: Config, fields: Fields) -> list[int]:
    return [config["n_kv_head"] if "attention" in mixer else 0 for mixer in config["mixers"]]


def _widths(config: Config, fields: Fields) -> list[int]:
    """Return the width of each layer's MLP or experts."""
    mixtures = config.get("mixtures") or [0] * config["n_layer"]
    widths = zip(mixtures, config["d_ffs"], strict=True)
    return [config["d_expert"] if mixture else d_ff for mixture, d_ff in widths]


def _interval(config: Config, fields: Fields) -> int:
    """Return the period of attention, for programs that do not read a list of layers."""
    given = fields.get("full_attention_interval")
    mixers = config["mixers"]
    return given if isinstance(given, int) else mixers.index("attention") + 1 if "attention" in mixers else 4


def _sections(config: Config, fields: Fields) -> Array:
    """Return the parts of rotated pairs for the positions of images."""
    given = _scaling_of(fields).get("mrope_section")
    return np.array([*(given if isinstance(given, list) else (11, 11, 10)), 0], np.int32)


def _any_pattern(config: Config, fields: Fields) -> list[bool] | None:
    return _gemma3_pattern(config, fields) if config["sliding_window"] else None


def _first_mixture(config: Config, fields: Fields) -> int:
    mixtures = config.get("mixtures") or [1]
    return mixtures.index(1) if 1 in mixtures else len(mixtures)


def _alibi_bias(config: Config, fields: Fields) -> float:
    return float((fields.get("attn_config") or {}).get("alibi_bias_max", 8))


def _start(config: Config, fields: Fields) -> int | None:
    token = fields.get("decoder_start_token_id")
    return token if isinstance(token, int) else None


def _local_base(config: Config, fields: Fields) -> float | None:
    local, rope = config.get("more_inv_freq"), fields.get("rope_parameters") or {}
    named = [rope.get("sliding_attention", {}).get("rope_theta"), fields.get("rope_local_base_freq")]
    return _base_of(local[0], *named, 10_000.0) if local else None


def _n_shared(config: Config, fields: Fields) -> int:
    """Return the number of layers with keys and values of earlier ones."""
    return sum(i != kv_layer for i, kv_layer in enumerate(config.get("kv_layers", ())))


def _of_windows(config: Config, fields: Fields) -> int:
    """Return the head size of layers with a window."""
    sizes = dict(zip(config["windows"], config.get("d_heads", ()), strict=False))
    return int(next((size for window, size in sizes.items() if window), config["d_head"]))


def _t5_architecture(m: Metadata) -> str:
    by_layer = "dec.blk.1.attn_rel_b.weight" in m.tensors
    return "UMT5ForConditionalGeneration" if by_layer else "T5ForConditionalGeneration"


# -------------------------------------------------------------------------------------- architectures


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    `name`: The equivalent architecture in transformers. `parts`: Rows of, or functions to, the fields of its
    config.json, except ``vocab_size`` and ``tie_word_embeddings``. `tensors`: As in `Family`. `written`: Keys
    besides sizes and positions. `fused`: Write queries, keys and values as one matrix. `also`: Other
    architectures of transformers that are written as this one. `chosen`: From the metadata to another `name`.
    `with_experts`: Architecture of models with experts, if it has another name. `folds`: The weights
    of files are multiplied by the factors of projections.
    """

    name: str
    parts: tuple[Rows | Callable[[Metadata], dict[str, Any]], ...] = (_block,)
    tensors: Mapping[str, Named | Either] | Callable[[Config], Mapping[str, Any]] = dataclasses.field(
        default_factory=lambda: _TENSORS
    )
    written: WrittenRows = dataclasses.field(default_factory=dict)
    fused: bool = False
    also: tuple[str, ...] = ()
    chosen: Callable[[Metadata], str] | None = None
    with_experts: str = ""
    folds: bool = False

    def architecture(self, metadata: Metadata) -> str:
        """Return the architecture's name in transformers."""
        return self.name if self.chosen is None else self.chosen(metadata)

    def fields(self, metadata: Metadata) -> dict[str, Any]:
        """Return the fields of a config.json."""
        found: dict[str, Any] = {}
        typed: dict[Any, Any] = {_EPSILON: metadata.amount} | dict.fromkeys(_SIZES, metadata.integer)
        for part in self.parts:
            if not isinstance(part, Mapping):
                found |= part(metadata)
                continue
            for name, row in part.items():
                found[name] = row(metadata) if callable(row) else typed.get(row, metadata.get)(row)
        return found

    def family(self, like: Family) -> Family:
        """Return a family with the configuration of `like` and the tensor names of GGUF."""
        own: dict[str, Any] = {"prefix": "", "head": "output", "renamed": {}, "left_out": (), "settled": None}
        block = mtp.GGUF
        if like.mtp is not None:
            block = dataclasses.replace(block, dense=like.mtp.dense, first=like.mtp.first)
        return dataclasses.replace(like, tensors=self.tensors, mtp=block, **own)


_HYBRID_KEYS: WrittenRows = {
    "ssm.conv_kernel": "conv_width", "ssm.state_size": "d_mixer_key", "ssm.group_count": "n_mixer_key_head",
    "ssm.time_step_rank": "n_mixer_value_head",
    "ssm.inner_size": lambda config, _: config["n_mixer_value_head"] * config["d_mixer_value"],
    _RECURRENT: lambda config, _: [mixer == "delta" for mixer in config["mixers"]],
    "full_attention_interval": _interval,
}  # fmt: skip
_MAMBA_KEYS: WrittenRows = {
    f"ssm.{name}": _HYBRID_KEYS[f"ssm.{name}"]
    for name in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
}  # fmt: skip
_MAMBA2_KEYS = _MAMBA_KEYS | {
    "attention.head_count": lambda config, _: 0, "attention.head_count_kv": lambda config, _: 0,
}  # fmt: skip
_NEMOTRON_H_KEYS: WrittenRows = _MAMBA_KEYS | {
    "attention.head_count_kv": _kv_heads, "feed_forward_length": _widths, "attention.key_length": "d_head",
    "attention.value_length": "d_head", _EPSILON: "norm_eps",
}  # fmt: skip
_QWEN3_5_KEYS = _HYBRID_KEYS | {"rope.dimension_sections": _sections}


def _experts(
    count: str = "num_experts", chosen: str = "num_experts_per_tok", width: str = "moe_intermediate_size",
    **more: str | Callable[[Metadata], Any],
) -> Rows:  # fmt: skip
    """Return the rows of the number of experts, of those chosen, and of their width, by their fields."""
    sizes = {count: "expert_count", chosen: "expert_used_count", width: "expert_feed_forward_length"}
    return {**sizes, **more}


_QWEN_MOE = _experts(
    shared_expert_intermediate_size=_SHARED_WIDTH,
    norm_topk_prob=lambda m: m.get("expert_weights_norm", m.name != "qwen2moe"),
)
_CLIPPED: Rows = {"clip_qkv": "attention.clamp_kqv"}
_OLMOE: Rows = _CLIPPED | {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "norm_topk_prob": lambda m: m.get("expert_weights_norm", False),
}  # fmt: skip
_CORRECTED = _experts(
    "n_routed_experts", first_k_dense_replace=lambda m: m.get("leading_dense_block_count", 0),
    n_group=lambda m: m.get("expert_group_count") or 1,
    topk_group=lambda m: m.get("expert_group_used_count") or 1,
    norm_topk_prob=lambda m: m.get("expert_weights_norm", False),
    routed_scaling_factor=lambda m: m.get("expert_weights_scale") or 1.0,
)  # fmt: skip
_N_DENSE, _SCALE = _CORRECTED["first_k_dense_replace"], _CORRECTED["routed_scaling_factor"]
_DEEPSEEK = _CORRECTED | {"n_shared_experts": lambda m: m.get("expert_shared_count", 0)}
_N_SHARED = _DEEPSEEK["n_shared_experts"]
_NEMOTRON_H_MOE: Rows = {
    **{name: row for name, row in _CORRECTED.items() if name != "first_k_dense_replace"},
    "moe_shared_expert_intermediate_size": _SHARED_WIDTH,
}  # fmt: skip
_EXAONE_MOE = _CORRECTED | {"num_shared_experts": _N_SHARED}
_ERNIE_MOE = _experts(
    "moe_num_experts", "moe_k", moe_num_shared_experts=_N_SHARED, moe_layer_start_index=_N_DENSE,
    moe_layer_interval=lambda m: m.get("interleave_moe_layer_step") or 1,
)  # fmt: skip
_AFMOE_ROWS = _experts(
    num_dense_layers=_N_DENSE, num_shared_experts=_N_SHARED, route_scale=_SCALE, mup_enabled=lambda m: True
)
_LFM2_MOE = _experts(num_dense_layers=_N_DENSE, routed_scaling_factor=_SCALE)
_GPT_OSS_ROWS = _experts("num_local_experts", width="intermediate_size")
_GEMMA: Rows = {
    "query_pre_attn_scalar": _gemma2_scale, "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip
_SOME_WINDOW: Rows = {"sliding_window": lambda m: m.get(_WINDOW) or None}
_STARCODER2 = _SOME_WINDOW | {"norm_epsilon": _EPSILON}
_PHI3_ROWS = _SOME_WINDOW | {
    "original_max_position_embeddings": lambda m: m.get(_ORIGINAL, m.integer("context_length"))
}
_GPT: Rows = {
    "n_head": "attention.head_count", "n_layer": "block_count", "n_inner": "feed_forward_length",
    "layer_norm_epsilon": _EPSILON,
}  # fmt: skip
_GPT2: Rows = _GPT | {
    "n_embd": "embedding_length", "n_positions": "context_length",
    "multi_query": lambda m: m.get("attention.head_count_kv", 1) == 1,
}  # fmt: skip
_BLOOM: Rows = _GPT | {"hidden_size": "embedding_length", "seq_length": "context_length"}
_MPT: Rows = {
    "d_model": "embedding_length", "n_heads": "attention.head_count", "n_layers": "block_count",
    "d_ff": "feed_forward_length", "max_seq_len": "context_length", "layer_norm_epsilon": _EPSILON,
    "no_bias": lambda m: "blk.0.attn_qkv.bias" not in m.tensors, "attn_config": _mpt_attention,
}  # fmt: skip
_T5: Rows = {
    "d_model": "embedding_length", "num_heads": "attention.head_count", "num_layers": "block_count",
    "num_decoder_layers": "decoder_block_count", "d_ff": "feed_forward_length", "d_kv": lambda m: m.d_head,
    "layer_norm_epsilon": lambda m: m.amount("attention.layer_norm_rms_epsilon"),
    "relative_attention_num_buckets": "attention.relative_buckets_count",
    "feed_forward_proj": lambda m: "gated-gelu" if "enc.blk.0.ffn_gate.weight" in m.tensors else "relu",
}  # fmt: skip

_WINDOWED: WrittenRows = {_WINDOW: "sliding_window"}
_CLAMPED: WrittenRows = {"attention.clamp_kqv": "qkv_limit"}
_MIXED: WrittenRows = {"expert_count": "n_experts", "expert_used_count": "n_experts_per_token"}
_EXPERTS: WrittenRows = _MIXED | {
    "expert_feed_forward_length": "d_expert", _SHARED_WIDTH: "d_shared_expert"
}  # fmt: skip
_LFM2_KEYS: WrittenRows = {"attention.head_count_kv": _kv_heads, "shortconv.l_cache": "conv_width"}
_GATING: Final = {"softmax": 1, "sigmoid": 2}
_CORRECTED_KEYS: WrittenRows = _MIXED | {
    "expert_feed_forward_length": "d_expert", "leading_dense_block_count": _first_mixture,
    "expert_shared_count": lambda config, _: config.get("d_shared_expert", 0) // config["d_expert"],
    "expert_gating_func": lambda config, _: _GATING[config.get("router", "softmax")],
    "expert_group_count": "n_expert_groups", "expert_group_used_count": "n_groups_per_token",
    "expert_weights_norm": "router_renormalize", "expert_weights_scale": "routed_scale",
}  # fmt: skip
_NEMOTRON_H_MOE_KEYS: WrittenRows = _NEMOTRON_H_KEYS | {
    **{key: row for key, row in _CORRECTED_KEYS.items() if key != "leading_dense_block_count"},
    "expert_shared_count": lambda config, _: 1, _SHARED_WIDTH: "d_shared_expert",
}  # fmt: skip
_ERNIE_MOE_KEYS: WrittenRows = _CORRECTED_KEYS | {
    "interleave_moe_layer_step": lambda _, fields: fields.get("moe_layer_interval", 1)
}  # fmt: skip
_EXAONE_MOE_KEYS = _CORRECTED_KEYS | _WINDOWED | {"attention.sliding_window_pattern": _pattern}
_CAPPED: WrittenRows = _WINDOWED | {
    "attn_logit_softcapping": "attn_softcap", "final_logit_softcapping": "logit_softcap"
}  # fmt: skip
_GEMMA3_KEYS: WrittenRows = _CAPPED | {
    "attention.sliding_window_pattern": _gemma3_pattern, "rope.freq_base_swa": _local_base
}  # fmt: skip
_GEMMA4_KEYS: WrittenRows = _GEMMA3_KEYS | _EXPERTS | {
    "attention.head_count_kv": lambda config, _: config.get("n_kv_heads") or config["n_kv_head"],
    "attention.key_length_swa": _of_windows, "attention.value_length_swa": _of_windows,
    "rope.dimension_count_swa": _of_windows, "attention.shared_kv_layers": _n_shared,
    "embedding_length_per_layer_input": lambda config, _: config.get("d_per_layer", 0),
    "feed_forward_length": lambda config, _: config.get("d_ffs") or config["d_ff"],
}  # fmt: skip
_GRANITE_KEYS: WrittenRows = {
    "attention.scale": lambda config, _: config["score_scales"][0], "embedding_scale": "embedding_scale",
    "residual_scale": "residual_scale", "logit_scale": lambda config, _: 1.0 / config["logit_scale"],
}  # fmt: skip
_SCALED: WrittenRows = _WINDOWED | {"logit_scale": "logit_scale"}
_MISTRAL3_KEYS: WrittenRows = {
    "attention.temperature_scale": "query_growth", "rope.scaling.yarn_log_multiplier": _yarn_log_multiplier
}  # fmt: skip
_PARALLEL: WrittenRows = {"use_parallel_residual": lambda config, _: config.get("parallel", "no") != "no"}
_MPT_KEYS: WrittenRows = _CLAMPED | {"attention.max_alibi_bias": _alibi_bias}
_T5_KEYS: WrittenRows = {
    "block_count": lambda config, _: config["encoder"]["n_layer"], "decoder_block_count": "n_layer",
    "attention.key_length": "d_head", "attention.value_length": "d_head", _EPSILON: "norm_eps",
    "attention.relative_buckets_count": lambda _, fields: fields.get("relative_attention_num_buckets", 32),
    "decoder_start_token_id": _start,
}  # fmt: skip

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(
        "LlamaForCausalLM", (_block, _llama), _TURNED, _MIXED,
        chosen=lambda m: "MixtralForCausalLM" if m.get("expert_count") else "LlamaForCausalLM",
        also=(
            "MistralForCausalLM", "MixtralForCausalLM", "InternLM3ForCausalLM", "IQuestCoderForCausalLM"
        ),
    ),
    "mistral3": Architecture("Ministral3ForCausalLM", (_mistral3,), _TURNED, _MISTRAL3_KEYS),
    "smollm3": Architecture("SmolLM3ForCausalLM", tensors=_TURNED),
    "granite": Architecture("GraniteForCausalLM", (_block, _granite), _TURNED, _GRANITE_KEYS),
    "seed_oss": Architecture("SeedOssForCausalLM", tensors=_GLM4_MOE),
    "exaone": Architecture("ExaoneForCausalLM"),
    "exaone4": Architecture(
        "Exaone4ForCausalLM", (_block, _windows, _SOME_WINDOW),
        written=_WINDOWED | {"attention.sliding_window_pattern": _any_pattern},
    ),
    "chatglm": Architecture("GlmForCausalLM", (_glm,), _GLM),
    "glm4": Architecture("Glm4ForCausalLM", (_glm,), _GLM),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", tensors=_TURNED),
    "nemotron": Architecture("NemotronForCausalLM", (_partly_turned, {"norm_eps": _EPSILON})),
    "arcee": Architecture("ArceeForCausalLM", tensors=_TURNED),
    "jais2": Architecture("Jais2ForCausalLM"),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
    "lfm2": Architecture(
        "Lfm2ForCausalLM", (_block, _lfm2, {"block_auto_adjust_ff_dim": lambda m: False}), _LFM2, _LFM2_KEYS
    ),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM", (_block, _lfm2, _LFM2_MOE), _LFM2, _CORRECTED_KEYS | _LFM2_KEYS
    ),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", (_block, _QWEN_MOE), written=_EXPERTS),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", (_block, _QWEN_MOE), written=_EXPERTS),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM", (_hybrid,), _QWEN3_5, _QWEN3_5_KEYS, also=("Qwen3_5ForConditionalGeneration",)
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM", (_hybrid, _QWEN_MOE), _QWEN3_5, _EXPERTS | _QWEN3_5_KEYS,
        also=("Qwen3_5MoeForConditionalGeneration",),
    ),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM", (_hybrid, _QWEN_MOE), _QWEN3_NEXT, _EXPERTS | _HYBRID_KEYS, fused=True
    ),
    "olmoe": Architecture("OlmoeForCausalLM", (_block, _OLMOE), written=_EXPERTS | _CLAMPED),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM", (_partly_turned, _DEEPSEEK, {"use_qk_norm": _has_qk_norm}), _GLM4_MOE,
        _CORRECTED_KEYS, also=("SolarOpenForCausalLM",),
    ),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM", (_block, _ERNIE_MOE), _TURNED, _ERNIE_MOE_KEYS
    ),
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM", (_partly_turned, _GPT_OSS_ROWS), written=_CORRECTED_KEYS
    ),
    "dots1": Architecture("Dots1ForCausalLM", (_block, _DEEPSEEK, _SOME_WINDOW), written=_CORRECTED_KEYS),
    "exaone-moe": Architecture(
        "ExaoneMoeForCausalLM", (_block, _EXAONE_MOE, _windows), written=_EXAONE_MOE_KEYS
    ),
    "afmoe": Architecture(
        "AfmoeForCausalLM", (_block, _AFMOE_ROWS, _windows), _AFMOE, _EXAONE_MOE_KEYS
    ),
    "hunyuan-moe": Architecture("HunYuanMoEV1ForCausalLM", (_block, _GPT_OSS_ROWS), written=_EXPERTS),
    "granitemoe": Architecture(
        "GraniteMoeForCausalLM", (_block, _granite_moe), _TURNED, _GRANITE_KEYS | _MIXED |
        {_SHARED_WIDTH: "d_shared_expert"}, also=("GraniteMoeSharedForCausalLM",),
        chosen=lambda m: "GraniteMoeSharedForCausalLM" if m.get(_SHARED_WIDTH) else "GraniteMoeForCausalLM",
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM", (_block, _granite_hybrid), _GRANITE_HYBRID,
        _GRANITE_KEYS | _MIXED | _MAMBA_KEYS | {
            "attention.head_count_kv": _kv_heads,
            _SHARED_WIDTH: lambda config, _: config.get("d_shared_expert") or config["d_ff"],
            "rope.scaling.finetuned": lambda config, _: config["position"] == "rotary",
        },
    ),
    "falcon-h1": Architecture(
        "FalconH1ForCausalLM", (_block, _falcon_h1), _FALCON_H1, _MAMBA_KEYS, folds=True
    ),
    "mamba2": Architecture("Mamba2ForCausalLM", (_mamba2,), _WITH_MAMBA, _MAMBA2_KEYS),
    "nemotron_h_moe": Architecture(
        "NemotronHForCausalLM", (_nemotron_h, _NEMOTRON_H_MOE), _NEMOTRON_H, _NEMOTRON_H_MOE_KEYS
    ),
    "nemotron_h": Architecture(
        "NemotronHForCausalLM", (_nemotron_h,), _NEMOTRON_H, _NEMOTRON_H_KEYS, with_experts="nemotron_h_moe"
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", (_gpt_oss, _GPT_OSS_ROWS, _windows), _GPT_OSS, _WINDOWED | _EXPERTS
    ),
    "phi2": Architecture("PhiForCausalLM", (_partly_turned,), fused=True),
    "phi3": Architecture("Phi3ForCausalLM", (_block, _PHI3_ROWS), _PHI3, _WINDOWED, fused=True),
    "gemma": Architecture("GemmaForCausalLM"),
    "gemma2": Architecture("Gemma2ForCausalLM", (_block, _GEMMA, _windows), written=_CAPPED),
    "gemma3": Architecture("Gemma3ForCausalLM", (_block, _GEMMA, _windows, _gemma3), written=_GEMMA3_KEYS),
    "gemma4": Architecture(
        "Gemma4ForCausalLM", (_gemma4,), _GEMMA4, _GEMMA4_KEYS, also=(
            "Gemma4ForConditionalGeneration", "Gemma4UnifiedForCausalLM",
            "Gemma4UnifiedForConditionalGeneration",
        ),
    ),
    "olmo": Architecture("OlmoForCausalLM", (_block, _CLIPPED), _TURNED, _CLAMPED),
    "olmo2": Architecture(
        "Olmo2ForCausalLM", (_block, _windows), also=("Olmo3ForCausalLM",),
        chosen=lambda m: "Olmo3ForCausalLM" if m.get(_WINDOW) else "Olmo2ForCausalLM",
        written=_WINDOWED | {"attention.sliding_window_pattern": _pattern},
    ),
    "stablelm": Architecture("StableLmForCausalLM", (_partly_turned, _stablelm), _STABLELM, _PARALLEL),
    "starcoder": Architecture("GPTBigCodeForCausalLM", (_GPT2,), fused=True),
    "starcoder2": Architecture("Starcoder2ForCausalLM", (_block, _STARCODER2), written=_WINDOWED),
    "command-r": Architecture(
        "CohereForCausalLM", (_block, {"logit_scale": "logit_scale", "use_qk_norm": _has_qk_norm}), _COHERE,
        _SCALED,
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM", (_block, _windows, {"logit_scale": "logit_scale"}), _COHERE, _SCALED
    ),
    "gpt2": Architecture("GPT2LMHeadModel", (_GPT2,), fused=True),
    "gptneox": Architecture("GPTNeoXForCausalLM", (_neox,), written=_PARALLEL, fused=True),
    "bloom": Architecture("BloomForCausalLM", (_BLOOM,), fused=True),
    "mpt": Architecture("MptForCausalLM", (_MPT,), written=_MPT_KEYS, fused=True),
    "falcon": Architecture(
        "FalconForCausalLM", (_block, _falcon),
        lambda config: _FALCON_TWO_NORMS if config["parallel"] == "two_norms" else _TENSORS, fused=True,
    ),
    "t5": Architecture(
        "T5ForConditionalGeneration", (_T5,), _t5_tensors, _T5_KEYS,
        chosen=_t5_architecture,
        also=("MT5ForConditionalGeneration", "UMT5ForConditionalGeneration"),
    ),
}  # fmt: skip
"""Supported values of ``general.architecture``."""

MTP_BLOCKS: Final = ("glm4moe", "qwen35", "qwen35moe", "exaone-moe")
"""Architectures whose files may hold a multi-token prediction block for llama.cpp."""

WRITTEN: Final[Mapping[str, str]] = {
    name: ggml for ggml, one in ARCHITECTURES.items() for name in (one.name, *one.also)
}
"""Architectures of transformers to their names in GGUF files."""


def architecture_of(name: Any, file: Path) -> Architecture:
    """Return the architecture that a file names."""
    field, noun = "general.architecture", "metadata field"
    if not isinstance(name, str) or not name:
        raise CheckpointError.of(file, field, name, "the name of an architecture", noun=noun)
    if name not in ARCHITECTURES:
        expected = f"one of {', '.join(sorted(ARCHITECTURES))}"
        raise UnsupportedModelError.of(file, field, name, expected, noun=noun)
    return ARCHITECTURES[name]


def settled(config: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """Return the configuration completed by the file's tensors: biases, head, frequency factors."""
    tensors = metadata.tensors
    config = config | {"tied": "output.weight" not in tensors}
    if config.get("router_correction"):
        config["router_correction"] = any(name.endswith(".exp_probs_b.bias") for name in tensors)
    if config.get("encoder") is None:
        config["qkv_bias"] = "blk.0.attn_qkv.bias" in tensors or "blk.0.attn_q.bias" in tensors
        config["out_bias"] = "blk.0.attn_output.bias" in tensors
        config["head_bias"] = "output.bias" in tensors
        if not config.get("n_experts"):
            config["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    if config["position"] == "rotary":
        factors = metadata.numbers_of("rope_freqs.weight", len(config["inv_freq"]))
        if factors is not None:
            pairs = zip(config["inv_freq"], factors, strict=True)
            config["inv_freq"] = [a / b if b < _NO_TURN else 0.0 for a, b in pairs]
    return config


def metadata_of(architecture: str, config: Config, fields: Fields) -> tuple[str, Keys, dict[str, Array]]:
    """Return ``general.architecture``, metadata, and f32 tensors; `fields` are those of config.json."""
    name = WRITTEN[architecture]
    if config.get("n_experts"):
        name = ARCHITECTURES[name].with_experts or name
    rotation, tensors = _rotation_keys(config, fields)
    keys = _sizes(config, fields) | rotation
    for key, row in ARCHITECTURES[name].written.items():
        value = (config.get(row) or None) if isinstance(row, str) else row(config, fields)
        if value is not None:
            keys[key] = value
    return name, keys, tensors
