"""Llama, and the families that are its block with other switches: of Mistral to StarCoder 2."""

from __future__ import annotations

import math
from typing import Any

from specdec.models.families.config_reader import ACTIVATIONS, ConfigReader, Rotation
from specdec.models.families.family import (
    SEEING,
    YARN,
    Family,
    HeadNorms,
    PlusOne,
    absent,
    fused_rows,
    halves,
    interleaved,
    interleaved_norms,
    named,
)

_LAYER = "model.layers.{i}"

LLAMA_TENSORS = named(
    token_embedding="model.embed_tokens.weight",
    attn_norm=f"{_LAYER}.input_layernorm",
    attn_q=f"{_LAYER}.self_attn.q_proj",
    attn_k=f"{_LAYER}.self_attn.k_proj",
    attn_v=f"{_LAYER}.self_attn.v_proj",
    attn_q_norm=f"{_LAYER}.self_attn.q_norm",
    attn_k_norm=f"{_LAYER}.self_attn.k_norm",
    attn_out=f"{_LAYER}.self_attn.o_proj",
    mlp_norm=f"{_LAYER}.post_attention_layernorm",
    mlp_gate=f"{_LAYER}.mlp.gate_proj",
    mlp_up=f"{_LAYER}.mlp.up_proj",
    mlp_down=f"{_LAYER}.mlp.down_proj",
    output_norm="model.norm",
    head="lm_head.weight",
)
_OLMO2_TENSORS = LLAMA_TENSORS | named(
    attn_post_norm=f"{_LAYER}.post_attention_layernorm", mlp_post_norm=f"{_LAYER}.post_feedforward_layernorm"
)
_PHI3_TENSORS = LLAMA_TENSORS | {
    **fused_rows(f"{_LAYER}.self_attn.qkv_proj"),
    **halves(f"{_LAYER}.mlp.gate_up_proj"),
}
_GEMMA_TENSORS = LLAMA_TENSORS | {
    "attn_norm": PlusOne(f"{_LAYER}.input_layernorm"),
    "mlp_norm": PlusOne(f"{_LAYER}.post_attention_layernorm"),
    "output_norm": PlusOne("model.norm"),
}
_GEMMA2_TENSORS = _GEMMA_TENSORS | {
    "attn_post_norm": PlusOne(f"{_LAYER}.post_attention_layernorm"),
    "mlp_norm": PlusOne(f"{_LAYER}.pre_feedforward_layernorm"),
    "mlp_post_norm": PlusOne(f"{_LAYER}.post_feedforward_layernorm"),
    "attn_q_norm": PlusOne(f"{_LAYER}.self_attn.q_norm"),
    "attn_k_norm": PlusOne(f"{_LAYER}.self_attn.k_norm"),
}
_COHERE_TENSORS = LLAMA_TENSORS | {
    "attn_q": interleaved(f"{_LAYER}.self_attn.q_proj"),
    "attn_k": interleaved(f"{_LAYER}.self_attn.k_proj"),
    "attn_q_norm": interleaved_norms(f"{_LAYER}.self_attn.q_norm"),
    "attn_k_norm": interleaved_norms(f"{_LAYER}.self_attn.k_norm"),
}
_STABLELM_TENSORS = LLAMA_TENSORS | {
    "attn_q_norm": HeadNorms(f"{_LAYER}.self_attn.q_layernorm.norms", heads="n_head"),
    "attn_k_norm": HeadNorms(f"{_LAYER}.self_attn.k_layernorm.norms", heads="n_kv_head"),
}
_STARCODER2_TENSORS = LLAMA_TENSORS | named(mlp_up=f"{_LAYER}.mlp.c_fc", mlp_down=f"{_LAYER}.mlp.c_proj")


def rotary(*rotations: Rotation) -> dict[str, Any]:
    """Return the canonical fields of rotary positions."""
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
    if "activation" not in switches:
        switches["activation"] = reader.activation("hidden_act", "silu")
    return {
        **sizes,
        **rotary(*turning),
        "norm": "rms",
        "norm_eps": fields.number(eps_field, default=norm_eps) if eps_field else norm_eps,
        "gated": True,
        "tied": fields.boolean("tie_word_embeddings", default=tied),
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "sliding_window": 0,
        **switches,
    }


# -------------------------------------------------------------------------------- Llama, Mistral, Granite


def _same_attention_in_all_layers(reader: ConfigReader) -> None:
    kinds = reader.fields.raw("layer_types")
    if isinstance(kinds, list):
        if not all(isinstance(kind, str) for kind in kinds):
            raise reader.fields.error("layer_types", "a list of names")
        if len(set(kinds)) > 1:
            raise reader.fields.unsupported("layer_types", "one kind of attention in all layers")


def _mlp_bias(reader: ConfigReader) -> dict[str, Any]:
    return {"mlp_bias": reader.fields.boolean("mlp_bias", default=False)}


def _read_llama(reader: ConfigReader) -> dict[str, Any]:
    _same_attention_in_all_layers(reader)
    return llama_like(reader, **reader.attention_bias(), **_mlp_bias(reader))


def _without_biases(reader: ConfigReader, family: str) -> None:
    for name in ("attention_bias", "mlp_bias"):
        reader.fields.require(name, False, because=f"{family} has no biases")


def _read_mistral(reader: ConfigReader) -> dict[str, Any]:
    _without_biases(reader, "MistralForCausalLM")
    _same_attention_in_all_layers(reader)
    windows = reader.windows(["sliding_attention"], default=4096)
    return llama_like(reader, sizes=reader.sizes(absent_kv_head=8), **windows)


def _read_ministral(reader: ConfigReader) -> dict[str, Any]:
    _without_biases(reader, "MinistralForCausalLM")
    sizes = reader.sizes(absent_kv_head=8)
    kinds = reader.layer_types(sizes["n_layer"], ["sliding_attention"] * sizes["n_layer"])
    return llama_like(reader, sizes=sizes, **reader.windows(kinds, default=4096))


def _read_ministral3(reader: ConfigReader) -> dict[str, Any]:
    """YaRN, and queries that grow with the position."""
    _without_biases(reader, "Ministral3ForCausalLM")
    sizes = reader.sizes(absent_kv_head=8, default_d_head=128)
    rope = reader.fields.inner("rope_parameters")
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
        reader = reader.with_absent(FAMILIES["Ministral3ForCausalLM"].absent)
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
    kinds = ["sliding_attention" if windowed and not turn else "full_attention" for turn in turns]
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], theta=2_000_000.0),),
        tied=True,
        rotations=[0 if turn else -1 for turn in turns],
        **reader.attention_bias(),
        **_mlp_bias(reader),
        **reader.windows(reader.layer_types(n_layer, kinds)),
    )


def _read_granite(reader: ConfigReader) -> dict[str, Any]:
    """Four factors: of embeddings, scores, what is added to the stream, and logits."""
    fields, sizes = reader.fields, reader.sizes()
    return llama_like(
        reader,
        sizes=sizes,
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        logit_scale=1.0 / fields.number("logits_scaling", default=1.0),
        score_scales=[fields.number("attention_multiplier", default=1.0)] * sizes["n_layer"],
        **reader.attention_bias(),
        **_mlp_bias(reader),
    )


# -------------------------------------------------------------------------------------- Qwen, OLMo, Phi 3


def _qwen_windows(reader: ConfigReader, n_layer: int) -> dict[str, Any]:
    """Windows from ``max_window_layers`` on, if they are used at all."""
    fields = reader.fields
    if not fields.boolean("use_sliding_window", default=False):
        return reader.without_windows()
    first = fields.integer("max_window_layers", minimum=0, default=28)
    kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(n_layer)]
    return reader.windows(reader.layer_types(n_layer, kinds), default=4096)


def _read_qwen2(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=32)
    return llama_like(reader, sizes=sizes, qkv_bias=True, **_qwen_windows(reader, sizes["n_layer"]))


def _read_mimo(reader: ConfigReader) -> dict[str, Any]:
    """The block of Qwen 2. `specdec.drafts.MTP` reads its head for multi-token prediction."""
    reader.fields.require("attention_bias", True, because="queries, keys and values have biases")
    return _read_qwen2(reader)


def _read_qwen3(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=32, default_d_head=128)
    windows = _qwen_windows(reader, sizes["n_layer"])
    return llama_like(reader, sizes=sizes, qk_norm="head", **reader.attention_bias(), **windows)


def _read_olmo(reader: ConfigReader) -> dict[str, Any]:
    """LayerNorm without weights."""
    return llama_like(
        reader,
        norm="layer",
        eps_field=None,
        norm_eps=1e-5,
        norm_weight=False,
        norm_bias=False,
        qkv_limit=reader.optional_number("clip_qkv"),
        **reader.attention_bias(),
    )


def _olmo2(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    """Norms of outputs, and of whole queries and keys."""
    switches |= reader.attention_bias()
    return llama_like(reader, norm_eps=1e-5, norm_place="after", qk_norm="whole", **switches)


def _read_olmo3(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes()
    kinds = reader.layer_types(sizes["n_layer"], reader.alternating(sizes["n_layer"], 4))
    theta, d_head = 500_000.0, sizes["d_head"]
    full = reader.rotation(d_head, layer_type="full_attention", theta=theta)
    sliding = reader.rotation(d_head, layer_type="sliding_attention", theta=theta, scaled=False)
    return _olmo2(
        reader,
        sizes=sizes,
        turning=(full, sliding),
        rotations=[0 if kind == "full_attention" else 1 for kind in kinds],
        **reader.windows(kinds, default=4096),
    )


def _read_phi3(reader: ConfigReader) -> dict[str, Any]:
    """Fused matrices, LongRoPE."""
    fields, sizes = reader.fields, reader.sizes()
    turning = reader.rotation(
        sizes["d_head"],
        partial=True,
        original_n_ctx=fields.integer("original_max_position_embeddings", default=4096),
        # Former files call LongRoPE "su" or "yarn".
        kinds={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
    )
    windows = reader.windows(["sliding_attention"])
    return llama_like(reader, sizes=sizes, turning=(turning,), norm_eps=1e-5, **windows)


# --------------------------------------------------------------------- Gemma, Cohere, StableLM, StarCoder 2


def _gemma(reader: ConfigReader, sizes: dict[str, Any], **switches: Any) -> dict[str, Any]:
    """What Gemma 1, 2 and 3 share: scaled embeddings, and norm weights stored less 1."""
    switches |= reader.attention_bias()
    return llama_like(reader, sizes=sizes, tied=True, embedding_scale=math.sqrt(sizes["d_model"]), **switches)


def _read_gemma(reader: ConfigReader) -> dict[str, Any]:
    # "gelu" in the first files means the tanh form, as hidden_activation, which came later, says.
    names = {**ACTIVATIONS, "gelu": "gelu_tanh"}
    name = "hidden_activation" if reader.fields.raw("hidden_activation") is not None else "hidden_act"
    reader.fields.skip("hidden_act", "hidden_activation")
    activation = reader.fields.choice(name, names, default="gelu")
    return _gemma(reader, reader.sizes(absent_kv_head=16, default_d_head=256), activation=activation)


def _gemma2(
    reader: ConfigReader,
    sizes: dict[str, Any],
    kinds: list[str],
    absent_softcaps: tuple[float, float] = (0.0, 0.0),
    **switches: Any,
) -> dict[str, Any]:
    """What Gemma 2 and 3 share; ``absent_softcaps`` of scores and logits are what absent fields mean."""
    of_scores, of_logits = absent_softcaps
    scale = reader.fields.number("query_pre_attn_scalar", default=256.0) ** -0.5
    return _gemma(
        reader,
        sizes,
        norm_place="both",
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        score_scales=[scale] * sizes["n_layer"],
        attn_softcap=reader.optional_number("attn_logit_softcapping", of_scores),
        logit_softcap=reader.optional_number("final_logit_softcapping", of_logits),
        **reader.windows(kinds, default=4096),
        **switches,
    )


def _read_gemma2(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=4, default_d_head=256)
    kinds = reader.layer_types(sizes["n_layer"], reader.alternating(sizes["n_layer"], 2))
    return _gemma2(reader, sizes, kinds, (50.0, 30.0))


def _read_gemma3(reader: ConfigReader) -> dict[str, Any]:
    """Frequencies of their own in the layers with windows; norms of queries and keys."""
    sizes = reader.sizes(absent_kv_head=4, default_d_head=256)
    n_layer, d_head = sizes["n_layer"], sizes["d_head"]
    period = reader.fields.integer("sliding_window_pattern", default=6)
    kinds = reader.layer_types(n_layer, reader.alternating(n_layer, period))
    full = reader.rotation(d_head, layer_type="full_attention", theta=1_000_000.0)
    sliding = reader.rotation(
        d_head, layer_type="sliding_attention", theta_name="rope_local_base_freq", scaled=False
    )
    return _gemma2(
        reader,
        sizes,
        kinds,
        qk_norm="head",
        turning=(full, sliding),
        rotations=[0 if kind == "full_attention" else 1 for kind in kinds],
    )


def _cohere(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    """Parallel halves, LayerNorm without biases, interleaved rotary positions."""
    switches |= reader.attention_bias()
    return llama_like(
        reader,
        tied=True,
        norm="layer",
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        norm_bias=False,
        parallel="one_norm",
        logit_scale=reader.fields.number("logit_scale", default=0.0625),
        **switches,
    )


def _read_cohere(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes()
    turning = (reader.rotation(sizes["d_head"], theta=500_000.0),)
    normed = reader.fields.boolean("use_qk_norm", default=False)
    return _cohere(reader, sizes=sizes, turning=turning, qk_norm="each_head" if normed else "none")


def _read_cohere2(reader: ConfigReader) -> dict[str, Any]:
    """Windows with rotary positions, and every fourth layer without either."""
    sizes = reader.sizes()
    period = reader.fields.integer("sliding_window_pattern", default=4)
    kinds = reader.layer_types(sizes["n_layer"], reader.alternating(sizes["n_layer"], period))
    rotations = [0 if kind == "sliding_attention" else -1 for kind in kinds]
    return _cohere(reader, sizes=sizes, rotations=rotations, **reader.windows(kinds, default=4096))


def _read_stablelm(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=32, d_head=None)
    parallel = fields.boolean("use_parallel_residual", default=False)
    per_head = fields.boolean("qk_layernorm", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.25),),
        norm="layer",
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        qkv_bias=fields.boolean("use_qkv_bias", default=False),
        qk_norm="each_head" if per_head else "none",
        parallel="one_norm" if parallel else "no",
    )


def _read_starcoder2(reader: ConfigReader) -> dict[str, Any]:
    return llama_like(
        reader,
        sizes=reader.sizes(absent_kv_head=2),
        tied=True,
        norm="layer",
        eps_field="norm_epsilon",
        norm_eps=1e-5,
        activation=reader.activation("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        **reader.attention_bias("use_bias", default=True, mlp=True),
        **reader.windows(["sliding_attention"]),
    )


_COHERE2_HARMLESS = (
    "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
    "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding",
)  # fmt: skip
# The class ignores these.
_STARCODER2_HARMLESS = (
    "activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
    "scale_attention_softmax_in_fp32", "scale_attn_weights",
)  # fmt: skip

_MINISTRAL3_ROPE = YARN | {
    "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip

FAMILIES = {
    "LlamaForCausalLM": Family(_read_llama, LLAMA_TENSORS, "llama", absent(4096, 11008, 32, 32, 32000, 2048)),
    "MistralForCausalLM": Family(
        _read_mistral, LLAMA_TENSORS, "mistral", absent(4096, 14336, 32, 32, 32000, 131072)
    ),
    "MinistralForCausalLM": Family(
        _read_ministral, LLAMA_TENSORS, "ministral", absent(4096, 14336, 32, 32, 32000, 131072)
    ),
    "Ministral3ForCausalLM": Family(
        _read_ministral3,
        LLAMA_TENSORS,
        "ministral3",
        absent(4096, 14336, 34, 32, 131072, 262144) | {"rope_parameters": _MINISTRAL3_ROPE},
    ),
    "Mistral3ForConditionalGeneration": Family(
        _read_mistral3, LLAMA_TENSORS, "", absent(4096, 14336, 32, 32, 32000, 131072), **SEEING
    ),
    "SmolLM3ForCausalLM": Family(
        _read_smollm3, LLAMA_TENSORS, "smollm3", absent(2048, 11008, 36, 16, 128256, 32768)
    ),
    "GraniteForCausalLM": Family(
        _read_granite, LLAMA_TENSORS, "granite", absent(4096, 11008, 32, 32, 32000, 2048)
    ),
    "MiMoForCausalLM": Family(
        _read_mimo,
        LLAMA_TENSORS,
        "mimo",
        left_out=("model.mtp_layers.",),
        harmless=("num_nextn_predict_layers",),
    ),
    "Qwen2ForCausalLM": Family(
        _read_qwen2, LLAMA_TENSORS, "qwen2", absent(4096, 22016, 32, 32, 151936, 32768)
    ),
    "Qwen3ForCausalLM": Family(
        _read_qwen3, LLAMA_TENSORS, "qwen3", absent(4096, 22016, 32, 32, 151936, 32768)
    ),
    "Phi3ForCausalLM": Family(
        _read_phi3,
        _PHI3_TENSORS,
        "phi3",
        absent(3072, 8192, 32, 32, 32064, 4096),
        harmless=("full_attn_mod", "interpolate_factor"),
    ),
    "GemmaForCausalLM": Family(
        _read_gemma, _GEMMA_TENSORS, "gemma", absent(3072, 24576, 28, 16, 256000, 8192)
    ),
    "Gemma2ForCausalLM": Family(
        _read_gemma2,
        _GEMMA2_TENSORS,
        "gemma2",
        absent(2304, 9216, 26, 8, 256000, 8192),
        harmless=("hidden_act",),
    ),
    "Gemma3ForCausalLM": Family(
        _read_gemma3,
        _GEMMA2_TENSORS,
        "gemma3_text",
        absent(2304, 9216, 26, 8, 262208, 131072),
        harmless=("_sliding_window_pattern",),
    ),
    "Gemma3ForConditionalGeneration": Family(
        _read_gemma3, _GEMMA2_TENSORS, "", absent(2304, 9216, 26, 8, 262208, 131072), **SEEING
    ),
    "OlmoForCausalLM": Family(_read_olmo, LLAMA_TENSORS, "olmo", absent(4096, 11008, 32, 32, 50304, 2048)),
    "Olmo2ForCausalLM": Family(_olmo2, _OLMO2_TENSORS, "olmo2", absent(4096, 11008, 32, 32, 50304, 2048)),
    "Olmo3ForCausalLM": Family(
        _read_olmo3, _OLMO2_TENSORS, "olmo3", absent(4096, 11008, 32, 32, 50304, 2048)
    ),
    "CohereForCausalLM": Family(
        _read_cohere, _COHERE_TENSORS, "cohere", absent(8192, 22528, 40, 64, 256000, 8192)
    ),
    "Cohere2ForCausalLM": Family(
        _read_cohere2,
        _COHERE_TENSORS,
        "cohere2",
        absent(8192, 22528, 40, 64, 256000, 8192),
        harmless=_COHERE2_HARMLESS,
    ),
    "StableLmForCausalLM": Family(
        _read_stablelm, _STABLELM_TENSORS, "stablelm", absent(2560, 6912, 32, 32, 50304, 4096)
    ),
    "Starcoder2ForCausalLM": Family(
        _read_starcoder2,
        _STARCODER2_TENSORS,
        "starcoder2",
        absent(3072, 12288, 30, 24, 49152, 4096),
        harmless=_STARCODER2_HARMLESS,
    ),
}
