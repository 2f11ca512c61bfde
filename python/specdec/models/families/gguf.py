"""Architectures of GGUF files: their metadata as the fields of a config.json, their names of tensors.

A GGUF file describes a model by keys of its own. Each architecture here says which architecture of
transformers it stands for, and gives the fields that the reader of that one expects; so a family is described
once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.fields import as_json
from specdec.models.families.encoder_decoder import of_encoder
from specdec.models.families.family import (
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
)
from specdec.models.families.gguf_metadata import Metadata
from specdec.models.families.moe import Stacked

# -------------------------------------------------------------------------------------------- tensors


class Experts(Stacked):
    """One expert of a tensor that holds those of a layer, under names with suffixes."""

    def stored_names(self, suffix: str, config: Config) -> list[str]:
        """The file's name; see `Named`."""
        return [self.name + suffix]


_BLOCK = "blk.{i}"
_QKV = f"{_BLOCK}.attn_qkv"

_TENSORS: Final[dict[str, Named | Either]] = {
    **named(
        token_embedding="token_embd.weight",
        position_embedding="position_embd.weight",
        embedding_norm="token_embd_norm",
        attn_norm=f"{_BLOCK}.attn_norm",
        attn_post_norm=f"{_BLOCK}.post_attention_norm",
        attn_q_norm=f"{_BLOCK}.attn_q_norm",
        attn_k_norm=f"{_BLOCK}.attn_k_norm",
        attn_out=f"{_BLOCK}.attn_output",
        mlp_norm=f"{_BLOCK}.ffn_norm",
        mlp_post_norm=f"{_BLOCK}.post_ffw_norm",
        mlp_gate=f"{_BLOCK}.ffn_gate",
        mlp_up=f"{_BLOCK}.ffn_up",
        mlp_down=f"{_BLOCK}.ffn_down",
        router=f"{_BLOCK}.ffn_gate_inp",
        output_norm="output_norm",
        head="output.weight",
        head_bias="output.bias",
    ),
    **{
        f"attn_{role}": Either((Named(f"{_BLOCK}.attn_{role}"), fused_row(_QKV, part)))
        for part, role in enumerate("qkv")
    },
    **{f"experts.mlp_{part}": Experts(f"{_BLOCK}.ffn_{part}_exps") for part in ("gate", "up", "down")},
    **{f"shared_expert.mlp_{part}": Named(f"{_BLOCK}.ffn_{part}_shexp") for part in ("gate", "up", "down")},
    "shared_gate": Named(f"{_BLOCK}.ffn_gate_inp_shexp"),
}
# Queries and keys in the order in which neighbouring dimensions turn.
_TURNED = {
    "attn_q": interleaved(f"{_BLOCK}.attn_q"),
    "attn_k": interleaved(f"{_BLOCK}.attn_k"),
}


def _t5_side(side: str, first: str) -> dict[str, Named]:
    block = f"{side}.blk.{{i}}"
    return named(
        relative_bias=f"{side}.blk.{first}.attn_rel_b.weight",
        attn_norm=f"{block}.attn_norm",
        attn_q=f"{block}.attn_q",
        attn_k=f"{block}.attn_k",
        attn_v=f"{block}.attn_v",
        attn_out=f"{block}.attn_o",
        mlp_norm=f"{block}.ffn_norm",
        mlp_gate=f"{block}.ffn_gate",
        mlp_up=f"{block}.ffn_up",
        mlp_down=f"{block}.ffn_down",
        output_norm=f"{side}.output_norm",
    )


def _t5_tensors(config: Config) -> dict[str, Named]:
    first = "{i}" if config["relative_bias_by_layer"] else "0"
    cross = named(
        cross_norm="dec.blk.{i}.cross_attn_norm",
        cross_q="dec.blk.{i}.cross_attn_q",
        cross_k="dec.blk.{i}.cross_attn_k",
        cross_v="dec.blk.{i}.cross_attn_v",
        cross_out="dec.blk.{i}.cross_attn_o",
        token_embedding="token_embd.weight",
        head="output.weight",
    )
    return {**_t5_side("dec", first), **cross, **of_encoder(_t5_side("enc", first))}


# ------------------------------------------------------------------------------------------- metadata


def _block(m: Metadata) -> dict[str, Any]:
    n_head = m.integer("attention.head_count")
    fields = {
        "hidden_size": m.integer("embedding_length"),
        "num_hidden_layers": m.integer("block_count"),
        "num_attention_heads": n_head,
        "num_key_value_heads": m.get("attention.head_count_kv", n_head),
        "intermediate_size": m.integer("feed_forward_length"),
        "max_position_embeddings": m.integer("context_length"),
        "head_dim": m.d_head,
        "rms_norm_eps": m.amount("attention.layer_norm_rms_epsilon", None),
        "layer_norm_eps": m.amount("attention.layer_norm_epsilon", None),
        "rope_theta": m.amount("rope.freq_base", 10_000.0),
        "rope_scaling": _scaling(m),
    }
    n_turned = m.get("rope.dimension_count", m.d_head)
    if n_turned != m.d_head:
        if not isinstance(n_turned, int) or not 0 < n_turned < m.d_head:
            raise m.error("rope.dimension_count", f"a whole number up to {m.d_head}, the size of a head")
        # The reader multiplies and rounds down.
        fields["partial_rotary_factor"] = math.nextafter(n_turned / m.d_head, 2.0)
    return {name: value for name, value in fields.items() if value is not None}


def _scaling(m: Metadata) -> dict[str, Any] | None:
    """The scaling of rotary frequencies, less that of ``rope_freqs.weight``.

    A factor without a type is linear, as in llama.cpp; ``rope.scale_linear`` is its former name.
    """
    former = m.amount("rope.scale_linear", None)
    factor = m.amount("rope.scaling.factor", former)
    kind = m.get("rope.scaling.type", "linear")
    if m.name == "phi3" and "rope_factors_long.weight" in m.tensors:
        kind = "longrope"  # whatever the file calls it
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind not in ("yarn", "longrope"):
        raise m.unsupported("rope.scaling.type", "none, linear, yarn or longrope")
    fields = {"factor": factor, "original_max_position_embeddings": m.get(_ORIGINAL)}
    fields |= _yarn(m, factor) if kind == "yarn" else _longrope(m)
    return {"rope_type": kind} | {name: value for name, value in fields.items() if value is not None}


_ORIGINAL: Final = "rope.scaling.original_context_length"


def _yarn(m: Metadata, factor: float | None) -> dict[str, Any]:
    ext = m.get("rope.scaling.yarn_ext_factor", 1.0)
    if ext != 1.0 and not (isinstance(ext, float) and ext < 0.0):  # negative: not given
        raise m.unsupported("rope.scaling.yarn_ext_factor", "1 or nothing: fast frequencies are kept")
    attention = m.amount("rope.scaling.yarn_attn_factor", None)
    of_all = m.amount("rope.scaling.yarn_log_multiplier", 0.0)
    if of_all and attention is None and factor is not None and factor > 1.0:
        growth = 0.1 * math.log(factor)
        attention = (growth + 1.0) / (of_all * growth + 1.0)
    return {
        "beta_fast": m.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": m.get("rope.scaling.yarn_beta_slow"),
        "attention_factor": attention,
    }


def _longrope(m: Metadata) -> dict[str, Any]:
    short, long = (m.numbers_of(f"rope_factors_{length}.weight") for length in ("short", "long"))
    if short is None or long is None:
        raise m.unsupported(
            "rope.scaling.type",
            "another one, or tensors 'rope_factors_short.weight' and 'rope_factors_long.weight'",
        )
    return {
        "short_factor": short,
        "long_factor": long,
        "attention_factor": m.amount("rope.scaling.attn_factor", None),
    }


def _windows(m: Metadata) -> dict[str, Any]:
    """The window, and the layers that have it if the file lists them."""
    fields: dict[str, Any] = {"sliding_window": m.get("attention.sliding_window")}
    windowed = m.pattern("attention.sliding_window_pattern", m.integer("block_count"))
    if fields["sliding_window"] and windowed is not None:
        fields["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in windowed]
    return fields


def _llama(m: Metadata) -> dict[str, Any]:
    if not m.get("expert_count"):
        return _block(m)
    return _block(m) | {
        "num_local_experts": m.get("expert_count"),
        "num_experts_per_tok": m.get("expert_used_count"),
    }


def _granite(m: Metadata) -> dict[str, Any]:
    fields = {
        "attention_multiplier": m.get("attention.scale") or m.d_head**-0.5,
        "embedding_multiplier": m.get("embedding_scale"),
        "residual_multiplier": m.get("residual_scale"),
        "logits_scaling": m.get("logit_scale"),
    }
    return _block(m) | {name: value for name, value in fields.items() if value}


def _mistral3(m: Metadata) -> dict[str, Any]:
    fields = _block(m)
    rope = fields.pop("rope_scaling", {"rope_type": "default"})
    if m.get("attention.temperature_scale"):
        rope["llama_4_scaling_beta"] = m.get("attention.temperature_scale")
    return fields | {"rope_parameters": rope | {"rope_theta": fields["rope_theta"]}}


def _qwen_moe(m: Metadata) -> dict[str, Any]:
    return _block(m) | {
        "num_experts": m.get("expert_count"),
        "num_experts_per_tok": m.get("expert_used_count"),
        "moe_intermediate_size": m.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": m.get("expert_shared_feed_forward_length"),
        "norm_topk_prob": m.get("expert_weights_norm", m.name == "qwen3moe"),
    }


def _olmoe(m: Metadata) -> dict[str, Any]:
    return _block(m) | {
        "num_experts": m.get("expert_count"),
        "num_experts_per_tok": m.get("expert_used_count"),
        "norm_topk_prob": m.get("expert_weights_norm", False),
        "clip_qkv": m.get("attention.clamp_kqv"),
    }


def _gpt_oss(m: Metadata) -> dict[str, Any]:
    fields = _block(m)
    rope = fields.pop("rope_scaling", {"rope_type": "default"})
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False
    return fields | {
        "intermediate_size": m.get("expert_feed_forward_length"),
        "num_local_experts": m.get("expert_count"),
        "num_experts_per_tok": m.get("expert_used_count"),
        **_windows(m),
        "rope_parameters": rope | {"rope_theta": fields["rope_theta"]},
    }


def _gemma2(m: Metadata) -> dict[str, Any]:
    width, n_head, n_layer = (
        m.integer(key) for key in ("embedding_length", "attention.head_count", "block_count")
    )
    largest = n_layer == (46 if m.name == "gemma2" else 62)  # 27B scales by the width that a head would have
    return _block(m) | {
        "query_pre_attn_scalar": width // n_head if largest else m.d_head,
        "attn_logit_softcapping": m.get("attn_logit_softcapping"),
        "final_logit_softcapping": m.get("final_logit_softcapping"),
        **_windows(m),
    }


def _gemma3(m: Metadata) -> dict[str, Any]:
    fields = _gemma2(m) | {"rope_local_base_freq": m.amount("rope.freq_base_swa", 10_000.0)}
    fields["rope_theta"] = m.amount("rope.freq_base", 1_000_000.0)
    if not m.get("attention.sliding_window"):
        fields["layer_types"] = ["full_attention"] * m.integer("block_count")
    return fields


def _olmo(m: Metadata) -> dict[str, Any]:
    return _block(m) | {"clip_qkv": m.get("attention.clamp_kqv")}


def _windowed(m: Metadata) -> dict[str, Any]:
    return _block(m) | _windows(m)


def _phi3(m: Metadata) -> dict[str, Any]:
    return _block(m) | {
        "original_max_position_embeddings": m.get(_ORIGINAL, m.integer("context_length")),
        "sliding_window": m.get("attention.sliding_window") or None,
    }


def _partly_turned(m: Metadata) -> dict[str, Any]:
    """The fields of a block whose readers take an absent ``partial_rotary_factor`` for less than 1."""
    return {"partial_rotary_factor": 1.0} | _block(m)


def _stablelm(m: Metadata) -> dict[str, Any]:
    m.skip("use_parallel_residual")  # without a norm of its own the second half reads what the first does
    return _partly_turned(m) | {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in m.tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in m.tensors,
    }


def _starcoder2(m: Metadata) -> dict[str, Any]:
    return _block(m) | {
        "norm_epsilon": m.amount("attention.layer_norm_epsilon"),
        "sliding_window": m.get("attention.sliding_window") or None,
    }


def _cohere(m: Metadata) -> dict[str, Any]:
    return _block(m) | {
        "logit_scale": m.get("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in m.tensors,
    }


def _cohere2(m: Metadata) -> dict[str, Any]:
    return _block(m) | _windows(m) | {"logit_scale": m.get("logit_scale")}


def _neox(m: Metadata) -> dict[str, Any]:
    fields = _partly_turned(m)
    return fields | {
        "rotary_pct": fields["partial_rotary_factor"],
        "rotary_emb_base": fields["rope_theta"],
        "use_parallel_residual": m.get("use_parallel_residual"),
    }


def _gpt_sizes(m: Metadata) -> dict[str, Any]:
    return {
        "n_head": m.integer("attention.head_count"),
        "n_layer": m.integer("block_count"),
        "n_inner": m.integer("feed_forward_length"),
        "layer_norm_epsilon": m.amount("attention.layer_norm_epsilon"),
    }


def _gpt2(m: Metadata) -> dict[str, Any]:
    return _gpt_sizes(m) | {
        "n_embd": m.integer("embedding_length"),
        "n_positions": m.integer("context_length"),
        "multi_query": m.get("attention.head_count_kv", 1) == 1,
    }


def _bloom(m: Metadata) -> dict[str, Any]:
    return _gpt_sizes(m) | {
        "hidden_size": m.integer("embedding_length"),
        "seq_length": m.integer("context_length"),
    }


def _mpt(m: Metadata) -> dict[str, Any]:
    most = m.amount("attention.max_alibi_bias", 8.0)
    return {
        "d_model": m.integer("embedding_length"),
        "n_heads": m.integer("attention.head_count"),
        "n_layers": m.integer("block_count"),
        "d_ff": m.integer("feed_forward_length"),
        "max_seq_len": m.integer("context_length"),
        "layer_norm_epsilon": m.amount("attention.layer_norm_epsilon"),
        "no_bias": "blk.0.attn_qkv.bias" not in m.tensors,
        "attn_config": {
            "alibi": most > 0.0,
            "alibi_bias_max": int(most) if most == int(most) else most,
            "clip_qkv": m.get("attention.clamp_kqv"),
        },
    }


def _falcon(m: Metadata) -> dict[str, Any]:
    n_kv, n_head = m.get("attention.head_count_kv", 1), m.integer("attention.head_count")
    two_norms = "blk.0.attn_norm_2.weight" in m.tensors
    return _block(m) | {
        "num_kv_heads": n_kv,
        "ffn_hidden_size": m.integer("feed_forward_length"),
        "multi_query": n_kv == 1,
        "new_decoder_architecture": two_norms or n_kv not in (1, n_head),
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "layer_norm_epsilon": m.amount("attention.layer_norm_epsilon"),
    }


def _falcon_tensors(config: Config) -> dict[str, Named | Either]:
    if config["parallel"] != "two_norms":
        return _TENSORS
    return _TENSORS | named(attn_norm=f"{_BLOCK}.attn_norm_2", mlp_norm=f"{_BLOCK}.attn_norm")


def _t5(m: Metadata) -> dict[str, Any]:
    gated = "enc.blk.0.ffn_gate.weight" in m.tensors
    return {
        "d_model": m.integer("embedding_length"),
        "num_heads": m.integer("attention.head_count"),
        "num_layers": m.integer("block_count"),
        "num_decoder_layers": m.get("decoder_block_count"),
        "d_ff": m.integer("feed_forward_length"),
        "d_kv": m.d_head,
        "layer_norm_epsilon": m.amount("attention.layer_norm_rms_epsilon"),
        "relative_attention_num_buckets": m.get("attention.relative_buckets_count"),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
    }


# -------------------------------------------------------------------------------------- architectures


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    `name`: The architecture of transformers; or, from the metadata, that. `fields`: From the metadata to the
    fields of a config.json, less ``vocab_size`` and ``tie_word_embeddings``. `tensors`: As of `Family`.
    `fused`: Files are written with queries, keys and values in one matrix.
    """

    name: str | Callable[[Metadata], str]
    fields: Callable[[Metadata], dict[str, Any]] = _block
    tensors: Mapping[str, Named | Either] | Callable[[Config], Mapping[str, Any]] = dataclasses.field(
        default_factory=lambda: _TENSORS
    )
    fused: bool = False

    def architecture(self, metadata: Metadata) -> str:
        """The name of the architecture of transformers."""
        return self.name if isinstance(self.name, str) else self.name(metadata)

    def family(self, like: Family) -> Family:
        """How files are read: the configuration as one of transformers, tensors by their names here."""
        return dataclasses.replace(
            like, tensors=self.tensors, prefix="", head="output", renamed={}, left_out=(), settled=None
        )


def _is_mixture(m: Metadata) -> str:
    return "MixtralForCausalLM" if m.get("expert_count") else "LlamaForCausalLM"


def _olmo2_or_3(m: Metadata) -> str:
    return "Olmo3ForCausalLM" if m.get("attention.sliding_window") else "Olmo2ForCausalLM"


def _t5_kind(m: Metadata) -> str:
    by_layer = "dec.blk.1.attn_rel_b.weight" in m.tensors
    return "UMT5ForConditionalGeneration" if by_layer else "T5ForConditionalGeneration"


_COHERE_TENSORS = _TENSORS | {
    **_TURNED,
    "attn_q_norm": interleaved_norms(f"{_BLOCK}.attn_q_norm"),
    "attn_k_norm": interleaved_norms(f"{_BLOCK}.attn_k_norm"),
}
_STABLELM_TENSORS = _TENSORS | {
    "attn_q_norm": rows_of_heads(f"{_BLOCK}.attn_q_norm"),
    "attn_k_norm": rows_of_heads(f"{_BLOCK}.attn_k_norm"),
}
_PHI3_TENSORS = _TENSORS | halves(f"{_BLOCK}.ffn_up")
_GPT_OSS_TENSORS = _TENSORS | named(
    mlp_norm=f"{_BLOCK}.post_attention_norm", attn_sinks=f"{_BLOCK}.attn_sinks.weight"
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(_is_mixture, _llama, _TENSORS | _TURNED),
    "mistral3": Architecture("Ministral3ForCausalLM", _mistral3, _TENSORS | _TURNED),
    "smollm3": Architecture("SmolLM3ForCausalLM", _block, _TENSORS | _TURNED),
    "granite": Architecture("GraniteForCausalLM", _granite, _TENSORS | _TURNED),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _qwen_moe),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _qwen_moe),
    "olmoe": Architecture("OlmoeForCausalLM", _olmoe),
    "gpt-oss": Architecture("GptOssForCausalLM", _gpt_oss, _GPT_OSS_TENSORS),
    "phi2": Architecture("PhiForCausalLM", _partly_turned, fused=True),
    "phi3": Architecture("Phi3ForCausalLM", _phi3, _PHI3_TENSORS, fused=True),
    "gemma": Architecture("GemmaForCausalLM"),
    "gemma2": Architecture("Gemma2ForCausalLM", _gemma2),
    "gemma3": Architecture("Gemma3ForCausalLM", _gemma3),
    "olmo": Architecture("OlmoForCausalLM", _olmo, _TENSORS | _TURNED),
    "olmo2": Architecture(_olmo2_or_3, _windowed),
    "stablelm": Architecture("StableLmForCausalLM", _stablelm, _STABLELM_TENSORS),
    "starcoder": Architecture("GPTBigCodeForCausalLM", _gpt2, fused=True),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _starcoder2),
    "command-r": Architecture("CohereForCausalLM", _cohere, _COHERE_TENSORS),
    "cohere2": Architecture("Cohere2ForCausalLM", _cohere2, _COHERE_TENSORS),
    "gpt2": Architecture("GPT2LMHeadModel", _gpt2, fused=True),
    "gptneox": Architecture("GPTNeoXForCausalLM", _neox, fused=True),
    "bloom": Architecture("BloomForCausalLM", _bloom, fused=True),
    "mpt": Architecture("MptForCausalLM", _mpt, fused=True),
    "falcon": Architecture("FalconForCausalLM", _falcon, _falcon_tensors, fused=True),
    "t5": Architecture(_t5_kind, _t5, _t5_tensors),
}
"""What ``general.architecture`` may be."""


def architecture_of(name: Any, file: Path) -> Architecture:
    """The architecture that a file names."""
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{file}: metadata field 'general.architecture' is {as_json(name)}; expected the name of one"
        )
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(
            f"{file}: metadata field 'general.architecture' is {as_json(name)}; expected one of {known}"
        )
    return ARCHITECTURES[name]


def settled(config: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """The configuration with what the tensors of the file say: biases, the head, factors of frequencies."""
    tensors = metadata.tensors
    config = config | {"tied": "output.weight" not in tensors}
    if config.get("encoder") is None:
        fused = "blk.0.attn_qkv.bias" in tensors
        config["qkv_bias"] = fused or "blk.0.attn_q.bias" in tensors
        config["out_bias"] = "blk.0.attn_output.bias" in tensors
        config["head_bias"] = "output.bias" in tensors
        if not config.get("n_experts"):
            config["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    if config["position"] == "rotary":
        factors = metadata.numbers_of("rope_freqs.weight", len(config["inv_freq"]))
        if factors is not None:
            config["inv_freq"] = [
                frequency / factor for frequency, factor in zip(config["inv_freq"], factors, strict=True)
            ]
    return config
