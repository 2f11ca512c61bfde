"""Llama, and families with its block: Mistral, Ministral, SmolLM3, Granite."""

from __future__ import annotations

from typing import Any

from specdec.models.families.absent_fields import ABSENT
from specdec.models.families.config_reader import ConfigReader, Rotation
from specdec.models.families.family import SEEING, Family, named

__all__ = ["FAMILIES", "LLAMA_TENSORS", "llama_like", "rotary"]

LLAMA_TENSORS = named(
    token_embedding="model.embed_tokens.weight",
    attn_norm="model.layers.{i}.input_layernorm",
    attn_q="model.layers.{i}.self_attn.q_proj",
    attn_k="model.layers.{i}.self_attn.k_proj",
    attn_v="model.layers.{i}.self_attn.v_proj",
    attn_q_norm="model.layers.{i}.self_attn.q_norm",
    attn_k_norm="model.layers.{i}.self_attn.k_norm",
    attn_out="model.layers.{i}.self_attn.o_proj",
    mlp_norm="model.layers.{i}.post_attention_layernorm",
    mlp_gate="model.layers.{i}.mlp.gate_proj",
    mlp_up="model.layers.{i}.mlp.up_proj",
    mlp_down="model.layers.{i}.mlp.down_proj",
    output_norm="model.norm",
    head="lm_head.weight",
)


def rotary(*rotations: Rotation) -> dict[str, Any]:
    """The canonical fields of rotary positions."""
    found: dict[str, Any] = {
        "n_ctx": rotations[0].n_ctx,
        "position": "rotary",
        "inv_freq": rotations[0].inv_freq,
    }
    if len(rotations) > 1:
        found["more_inv_freq"] = [rotation.inv_freq for rotation in rotations[1:]]
    if any(rotation.factor != 1.0 for rotation in rotations):
        found["rotary_factors"] = [rotation.factor for rotation in rotations]
    return found


def llama_like(
    reader: ConfigReader,
    *,
    sizes: dict[str, Any] | None = None,
    turning: tuple[Rotation, ...] | None = None,
    eps_field: str | None = "rms_norm_eps",
    norm_eps: float = 1e-6,
    tied: bool = False,
    **switches: Any,
) -> dict[str, Any]:
    """A Llama block: RMSNorm before each half, rotary positions, a gated feed-forward; with other switches.

    ``turning`` are the frequencies of rotary positions; ``eps_field`` is the field of the norms' epsilon, if
    there is one; ``norm_eps`` and ``tied`` are what absent fields mean.
    """
    fields = reader.fields
    sizes = sizes or reader.sizes()
    if turning is None:
        if sizes["d_head"] % 2:
            raise fields.error(
                "head_dim", f"an even number, not {sizes['d_head']}: rotary positions turn pairs"
            )
        turning = (reader.rotation(sizes["d_head"]),)
    config = {
        **sizes,
        **rotary(*turning),
        "norm": "rms",
        "norm_eps": fields.number(eps_field, default=norm_eps) if eps_field else norm_eps,
        "activation": "silu",
        "gated": True,
        "tied": fields.boolean("tie_word_embeddings", default=tied),
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "sliding_window": 0,
    }
    if "activation" not in switches:
        switches["activation"] = reader.activation("hidden_act", "silu")
    return config | switches


def _same_attention_in_all_layers(reader: ConfigReader) -> None:
    kinds = reader.fields.raw("layer_types")
    if isinstance(kinds, list):
        if not all(isinstance(kind, str) for kind in kinds):
            raise reader.fields.error("layer_types", "a list of names")
        if len(set(kinds)) > 1:
            raise reader.fields.unsupported("layer_types", "one kind of attention in all layers")


def _read_llama(reader: ConfigReader) -> dict[str, Any]:
    bias = reader.fields.boolean("attention_bias", default=False)
    _same_attention_in_all_layers(reader)
    return llama_like(
        reader, qkv_bias=bias, out_bias=bias, mlp_bias=reader.fields.boolean("mlp_bias", default=False)
    )


def _without_biases(reader: ConfigReader, family: str) -> None:
    for name in ("attention_bias", "mlp_bias"):
        reader.fields.require(name, False, because=f"{family} has no biases")


def _read_mistral(reader: ConfigReader) -> dict[str, Any]:
    _without_biases(reader, "MistralForCausalLM")
    _same_attention_in_all_layers(reader)
    return llama_like(
        reader,
        sizes=reader.sizes(absent_kv_head=8),
        **reader.windows(["sliding_attention"], default=4096),
    )


def _read_ministral(reader: ConfigReader) -> dict[str, Any]:
    """Windows by layer."""
    _without_biases(reader, "MinistralForCausalLM")
    sizes = reader.sizes(absent_kv_head=8)
    kinds = reader.layer_types(sizes["n_layer"], ["sliding_attention"] * sizes["n_layer"])
    return llama_like(reader, sizes=sizes, **reader.windows(kinds, default=4096))


def _read_ministral3(reader: ConfigReader) -> dict[str, Any]:
    """YaRN, and queries that grow with the position."""
    _without_biases(reader, "Ministral3ForCausalLM")
    sizes = reader.sizes(absent_kv_head=8, default_d_head=128)
    rope = reader.fields.object("rope_parameters")
    if rope is None:
        raise reader.fields.error("rope_parameters", "an object")
    growth: dict[str, Any] = {}
    if rope.raw("llama_4_scaling_beta") is not None:
        growth["query_growth"] = rope.number("llama_4_scaling_beta")
        growth["query_span"] = rope.integer("original_max_position_embeddings")
    return llama_like(reader, sizes=sizes, norm_eps=1e-5, **reader.windows(["sliding_attention"]), **growth)


def _read_mistral3(reader: ConfigReader) -> dict[str, Any]:
    """The decoder of a model that also sees."""
    readers = {"mistral": _read_mistral, "ministral3": _read_ministral3}
    kind = reader.fields.choice("model_type", {name: name for name in readers}, default="mistral")
    if kind == "ministral3":
        reader = reader.with_absent(ABSENT["Ministral3ForCausalLM"])
    return readers[kind](reader)


def _read_smollm3(reader: ConfigReader) -> dict[str, Any]:
    """No positions in every fourth layer."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=4)
    n_layer = sizes["n_layer"]
    turns = fields.raw("no_rope_layers")
    if turns is None:
        interval = fields.integer("no_rope_layer_interval", default=4)
        turns = [int((i + 1) % interval != 0) for i in range(n_layer)]
    if not isinstance(turns, list) or len(turns) != n_layer or not all(turn in (0, 1) for turn in turns):
        raise fields.error("no_rope_layers", f"0 or 1 for each of {n_layer} layers")
    fields.skip("no_rope_layer_interval", "max_window_layers")
    windowed = fields.boolean("use_sliding_window", default=False)
    kinds = reader.layer_types(
        n_layer, ["sliding_attention" if windowed and not turn else "full_attention" for turn in turns]
    )
    bias = fields.boolean("attention_bias", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], theta=2_000_000.0),),
        tied=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", default=False),
        rotations=[0 if turn else -1 for turn in turns],
        **reader.windows(kinds),
    )


def _read_granite(reader: ConfigReader) -> dict[str, Any]:
    """Four factors: of embeddings, scores, what is added to the stream, and logits."""
    fields, sizes = reader.fields, reader.sizes()
    bias = fields.boolean("attention_bias", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", default=False),
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        logit_scale=1.0 / fields.number("logits_scaling", default=1.0),
        score_scales=[fields.number("attention_multiplier", default=1.0)] * sizes["n_layer"],
    )


FAMILIES = {
    "LlamaForCausalLM": Family(_read_llama, LLAMA_TENSORS),
    "MistralForCausalLM": Family(_read_mistral, LLAMA_TENSORS),
    "MinistralForCausalLM": Family(_read_ministral, LLAMA_TENSORS),
    "Ministral3ForCausalLM": Family(_read_ministral3, LLAMA_TENSORS),
    "Mistral3ForConditionalGeneration": Family(_read_mistral3, LLAMA_TENSORS, **SEEING),
    "SmolLM3ForCausalLM": Family(_read_smollm3, LLAMA_TENSORS),
    "GraniteForCausalLM": Family(_read_granite, LLAMA_TENSORS),
}
