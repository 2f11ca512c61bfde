"""GPT-2 and families with its block: LayerNorm, biases, and learned, rotary or ALiBi positions."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import (
    NO_BIASES,
    Array,
    Config,
    Family,
    Named,
    Shape,
    absent,
    absent_gpt,
    absent_neo,
    fused_heads,
    fused_rows,
    interleaved,
    named,
    offset,
    transposed,
    turned,
    wrong_shape,
)
from specdec.models.families.llama import LLAMA, rotary
from specdec.models.families.rotary import rotary_frequencies
from specdec.models.number_formats import rounded_to_bf16, widened

_H = "transformer.h.{i}"

_GPT = named(
    _H, token_embedding="transformer.wte.weight", position_embedding="transformer.wpe.weight",
    attn_norm=".ln_1", mlp_norm=".ln_2", mlp_up=".mlp.c_fc", mlp_down=".mlp.c_proj",
    output_norm="transformer.ln_f", head="lm_head.weight",
)  # fmt: skip
_GPT2 = _GPT | {
    **fused_rows(f"{_H}.attn.c_attn", turned=True),
    **named(_H, transposed, attn_out=".attn.c_proj", mlp_up=".mlp.c_fc", mlp_down=".mlp.c_proj"),
}
_BIGCODE = _GPT | fused_heads(f"{_H}.attn.c_attn") | named(_H, attn_out=".attn.c_proj")
_NEO = _GPT | named(
    f"{_H}.attn.attention", attn_q=".q_proj", attn_k=".k_proj", attn_v=".v_proj", attn_out=".out_proj"
)
_GPTJ = _GPT | {
    **named(_H, interleaved, attn_q=".attn.q_proj", attn_k=".attn.k_proj"),
    **named(
        _H, attn_v=".attn.v_proj", attn_out=".attn.out_proj", mlp_up=".mlp.fc_in", mlp_down=".mlp.fc_out",
        head_bias="lm_head.bias",
    ),
}  # fmt: skip
_OPT = named(
    "model.decoder.layers.{i}", token_embedding="model.decoder.embed_tokens.weight",
    attn_norm=".self_attn_layer_norm", attn_post_norm=".self_attn_layer_norm",
    attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj", attn_v=".self_attn.v_proj",
    attn_out=".self_attn.out_proj", mlp_norm=".final_layer_norm", mlp_post_norm=".final_layer_norm",
    mlp_up=".fc1", mlp_down=".fc2", output_norm="model.decoder.final_layer_norm", head="lm_head.weight",
) | {"position_embedding": offset("model.decoder.embed_positions.weight", 2)}  # fmt: skip
_NEOX_LAYER = "gpt_neox.layers.{i}"
_NEOX = fused_heads(f"{_NEOX_LAYER}.attention.query_key_value") | named(
    _NEOX_LAYER, token_embedding="gpt_neox.embed_in.weight", attn_norm=".input_layernorm",
    attn_out=".attention.dense", mlp_norm=".post_attention_layernorm", mlp_up=".mlp.dense_h_to_4h",
    mlp_down=".mlp.dense_4h_to_h", output_norm="gpt_neox.final_layer_norm", head="embed_out.weight",
)  # fmt: skip
_PHI = LLAMA | named(
    "model.layers.{i}", attn_out=".self_attn.dense", mlp_up=".mlp.fc1", mlp_down=".mlp.fc2",
    output_norm="model.final_layernorm", head_bias="lm_head.bias",
)  # fmt: skip
_BLOOM = fused_heads(f"{_H}.self_attention.query_key_value") | named(
    _H, token_embedding="transformer.word_embeddings.weight",
    embedding_norm="transformer.word_embeddings_layernorm", attn_norm=".input_layernorm",
    attn_out=".self_attention.dense", mlp_norm=".post_attention_layernorm", mlp_up=".mlp.dense_h_to_4h",
    mlp_down=".mlp.dense_4h_to_h", output_norm="transformer.ln_f", head="lm_head.weight",
)  # fmt: skip
_FALCON_TWO_NORMS = _BLOOM | named(_H, attn_norm=".ln_attn", mlp_norm=".ln_mlp")
_MPT_LAYER = "transformer.blocks.{i}"
_MPT = fused_rows(f"{_MPT_LAYER}.attn.Wqkv") | named(
    _MPT_LAYER, token_embedding="transformer.wte.weight", attn_norm=".norm_1", attn_out=".attn.out_proj",
    mlp_norm=".norm_2", mlp_up=".ffn.up_proj", mlp_down=".ffn.down_proj", output_norm="transformer.norm_f",
    head="lm_head.weight",
)  # fmt: skip


def gpt_like(sizes: dict[str, Any], **switches: Any) -> dict[str, Any]:
    """Return a GPT block (pre-LayerNorm, biases, ungated MLP) with other switches."""
    return {
        **sizes,
        "norm": "layer",
        "position": "none",
        "inv_freq": [],
        "gated": False,
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
        "sliding_window": 0,
        **switches,
    }


def _read(
    reader: ConfigReader,
    sizes: dict[str, Any],
    *,
    learned: str = "",
    eps_field: str = "layer_norm_epsilon",
    activation_field: tuple[str, str] | None = None,
    tied: bool = True,
    **switches: Any,
) -> dict[str, Any]:
    """Read a GPT block; `learned` is the field of learned positions, `tied` a default."""
    if learned:
        switches |= {"n_ctx": reader.whole_context(learned), "position": "learned"}
    if activation_field is not None:
        switches["activation"] = reader.activation(*activation_field)
    return gpt_like(
        sizes,
        norm_eps=reader.fields.number(eps_field, default=1e-5),
        tied=reader.fields.boolean("tie_word_embeddings", default=tied),
        **switches,
    )


# ---------------------------------------------------------------------------------------- learned positions


_GPT2_SIZES: dict[str, Any] = {
    "d_model": "n_embd", "n_head": "n_head", "n_layer": "n_layer", "n_kv_head": None, "d_ff": "n_inner",
    "default_d_ff": 4, "d_head": None,
}  # fmt: skip


def _read_gpt2(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    fields.require("scale_attn_weights", True, because="attention is scaled by 1/sqrt(d_head)")
    fields.require("reorder_and_upcast_attn", False, because="the order of computation is fixed")
    sizes = reader.sizes(**_GPT2_SIZES)
    scales: dict[str, Any] = {}
    if fields.boolean("scale_attn_by_inverse_layer_idx", default=False):
        scales["score_scales"] = [sizes["d_head"] ** -0.5 / (i + 1) for i in range(sizes["n_layer"])]
    return _read(
        reader, sizes, learned="n_positions", activation_field=("activation_function", "gelu_new"), **scales
    )


def _read_bigcode(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(**_GPT2_SIZES)
    fields.require("scale_attn_weights", True, because="attention is scaled by 1/sqrt(d_head)")
    if fields.boolean("multi_query", default=True):
        sizes["n_kv_head"] = 1
    activation = ("activation_function", "gelu_pytorch_tanh")
    return _read(reader, sizes, learned="n_positions", activation_field=activation)


def _neo_windows(reader: ConfigReader, n_layer: int) -> list[int]:
    """Read ``attention_types``: groups of "global" or "local" and their repetitions."""
    fields = reader.fields
    groups: Any = fields.raw("attention_types")
    names: list[str] = []
    if groups is None:
        groups = [[["global", "local"], n_layer // 2]]
    try:
        for layer_types, times in groups:
            if not isinstance(times, int) or times * len(layer_types) > n_layer:
                raise ValueError
            names += list(layer_types) * times
        if len(names) != n_layer or not set(names) <= {"global", "local"}:
            raise ValueError
    except (TypeError, ValueError) as error:
        expected = f'groups of "global" and "local" for {n_layer} layers'
        raise fields.error("attention_types", expected) from error
    window = fields.integer("window_size", default=256)
    return [window if name == "local" else 0 for name in names]


def _read_neo(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(
        n_head="num_heads", n_layer="num_layers", n_kv_head=None, default_d_ff=4, d_head=None
    )
    windows = _neo_windows(reader, sizes["n_layer"])
    return _read(
        reader, sizes, learned="max_position_embeddings",
        activation_field=("activation_function", "gelu_new"), qkv_bias=False,
        score_scales=[1.0] * sizes["n_layer"], sliding_window=max(windows), windows=windows,
    )  # fmt: skip


def _read_opt(reader: ConfigReader) -> dict[str, Any]:
    """Read OPT; OPT-350M has post-norms of the residual stream and projected embeddings."""
    fields = reader.fields
    before = fields.boolean("do_layer_norm_before", default=True)
    affine = fields.boolean("layer_norm_elementwise_affine", default=True)
    sizes = reader.sizes(n_kv_head=None, d_ff="ffn_dim", d_head=None)
    projected = fields.integer("word_embed_proj_dim", default=sizes["d_model"]) != sizes["d_model"]
    tied = fields.boolean("tie_word_embeddings", default=True)
    fields.skip("_remove_final_layer_norm")  # irrelevant without final norm
    return gpt_like(
        sizes,
        n_ctx=reader.whole_context("max_position_embeddings"),
        position="learned",
        norm_eps=1e-5,
        norm_weight=affine,
        norm_bias=affine,
        norm_position="before" if before else "residual",
        output_norm=before and not fields.boolean("_remove_final_layer_norm", default=False),
        activation=reader.activation("activation_function", "relu"),
        tied=tied and not projected,
        **reader.attention_bias("enable_bias", default=True, mlp=True),
    )


@dataclass(frozen=True)
class ProjectedTable(FileTensor):
    """A table [n_vocab, width] times a projection [d_model, width], or ``transposed``, by the row kernels."""

    table: FileTensor
    projection: FileTensor
    transposed: bool = False

    @classmethod
    def of(cls, table: FileTensor, projection: FileTensor, transposed: bool = False) -> ProjectedTable:
        """Return the product of two tensors."""
        shape = table.shape[0], projection.shape[1 if transposed else 0]
        n_bytes = table.n_bytes + projection.n_bytes
        location = table.opened, table.name, "F32", shape, table.start, n_bytes
        return cls(*location, table, projection, transposed)

    @property
    def files(self) -> set[Path]:
        """Paths of both tensors."""
        return {self.file, self.projection.file}

    def check(self, numbers: str = "") -> None:
        """Refuse factors other than f32, f16 and bf16."""
        self.table.check(numbers)
        self.projection.check(numbers)

    def file_rows(self, index: int | None = None) -> None:
        """Return None, as the file does not hold the product; see `FileTensor`."""

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[np.float32]:
        """Return the product."""
        projection = _f32(self.projection)
        if self.transposed:
            projection = np.ascontiguousarray(projection.T)
        return _core.product(_f32(self.table), projection, "f32")


def _settled_opt(config: dict[str, Any], tensors: MutableMapping[str, Any]) -> dict[str, Any]:
    """Replace token embedding and head by projected tables, if the files hold projections."""
    names = ("embed_tokens", "project_in", "project_out")
    table, into, out = (f"model.decoder.{name}.weight" for name in names)
    head = "lm_head.weight"
    if config["tied"] or not all(name in tensors for name in (table, into, out)):
        return config
    held = tensors[table]
    outer, after, before = tensors.get(head, held), tensors.pop(into), tensors.pop(out)
    width, d_model = max(1, *held.shape[-1:], 1), config["d_model"]
    shapes = (config["n_vocab"], width), (config["n_vocab"], width), (d_model, width), (width, d_model)
    for tensor, shape in zip((held, outer, after, before), shapes, strict=True):
        if tensor.shape != shape:
            more = f", with embeddings of {width} numbers"
            raise wrong_shape(tensor.file, tensor.name, tensor.shape, shape, more)
    tensors[table] = ProjectedTable.of(held, after)
    tensors[head] = ProjectedTable.of(outer, before, transposed=True)
    return config


def _f32(tensor: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(widened(tensor.array(), tensor.format))


# ----------------------------------------------------------------------------------------- rotary positions


def _read_neox(reader: ConfigReader) -> dict[str, Any]:
    """Read GPT-NeoX: parallel attention and MLP, RoPE on part of each head."""
    fields, sizes = reader.fields, reader.sizes(n_kv_head=None, d_head=None)
    turning = reader.rotation(
        sizes["d_head"], theta_name="rotary_emb_base", partial=True, fraction=0.25, fraction_name="rotary_pct"
    )
    parallel = fields.boolean("use_parallel_residual", default=True)
    return _read(
        reader, sizes, **rotary(turning), eps_field="layer_norm_eps", activation_field=("hidden_act", "gelu"),
        tied=False, parallel="two_norms" if parallel else "no", **reader.attention_bias(default=True),
    )  # fmt: skip


def _read_gptj(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(**_GPT2_SIZES)
    d_rotary = fields.integer("rotary_dim", minimum=2, maximum=sizes["d_head"], default=64)
    if d_rotary % 2:
        raise fields.error("rotary_dim", "an even number: RoPE rotates pairs")
    return _read(
        reader, sizes, n_ctx=reader.context("n_positions"), position="rotary",
        inv_freq=rotary_frequencies(d_rotary, 10_000.0), activation_field=("activation_function", "gelu_new"),
        tied=False, qkv_bias=False, out_bias=False, head_bias=True, parallel="one_norm",
    )  # fmt: skip


def _codegen(role: str) -> Named:
    """Return the entry of queries, values or keys in four pieces of such rows each."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        pieces = array.reshape(4, 3, shape[0] // 4, *array.shape[1:])
        return pieces[:, "qvk".index(role)].reshape(shape)

    return Named(f"{_H}.attn.qkv_proj", view, lambda shape, _: (3 * shape[0], *shape[1:]))


_CODEGEN = _GPTJ | {
    "attn_q": turned(_codegen("q")), "attn_k": turned(_codegen("k")), "attn_v": _codegen("v")
}  # fmt: skip


def _read_codegen(reader: ConfigReader) -> dict[str, Any]:
    config = _read_gptj(reader)
    if config["d_model"] % 4:
        raise reader.fields.error("n_embd", "a multiple of 4, the pieces of a matrix")
    return config


def _read_phi(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes()
    fields.require("qk_layernorm", False, because="norms of queries and keys have no biases")
    return _read(
        reader, sizes, **rotary(reader.rotation(sizes["d_head"], partial=True, fraction=0.5)),
        eps_field="layer_norm_eps", activation_field=("hidden_act", "gelu_new"), tied=False, head_bias=True,
        parallel="one_norm",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- ALiBi


def _slopes(n_head: int) -> list[float]:
    """Return ALiBi's slopes (arXiv 2108.12409): a geometric series, or two if not a power of two."""
    power = 2 ** math.floor(math.log2(n_head))
    base = 2.0 ** -(8.0 / power)
    slopes = [base**i for i in range(1, power + 1)]
    between = 2.0 ** -(4.0 / power)
    return slopes + [between**i for i in range(1, 2 * (n_head - power), 2)]


def _mpt_slopes(n_head: int, bias_max: int) -> list[float]:
    """Return MPT's slopes: the series of the next power of two, odd indices first."""
    power = 2 ** math.ceil(math.log2(n_head))
    slopes = [2.0 ** -(i * bias_max / power) for i in range(1, power + 1)]
    return slopes if power == n_head else (slopes[1::2] + slopes[::2])[:n_head]


def _read_bloom(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    because = "the residual is taken before the norm"
    fields.require("apply_residual_connection_post_layernorm", False, because=because)
    names = {
        "d_model": reader.name("hidden_size", "n_embed"),
        "n_head": reader.name("n_head", "num_attention_heads"),
        "n_layer": reader.name("n_layer", "num_hidden_layers"),
    }
    sizes = reader.sizes(**_GPT2_SIZES | names)
    return _read(
        reader, sizes, n_ctx=reader.context("seq_length", default=2048), activation="gelu_tanh",
        embedding_norm=True, alibi=_slopes(sizes["n_head"]),
    )  # fmt: skip


def _read_mpt(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    attention = ConfigReader(fields.object("attn_config") or fields.empty("attn_config"))
    inner = attention.fields
    inner.require("alibi", True, because="positions are those of ALiBi")
    inner.require("attn_type", "multihead_attention", because="each head has its own keys and values")
    inner.require("qk_ln", False, because="queries and keys have no norms")
    inner.require("prefix_lm", False, because="attention is causal")
    fields.require("no_bias", True, because="MPT has no biases")
    fields.require("logit_scale", None, because="logits are not scaled")
    fields.require("expansion_ratio", 4, because="the feed-forward is four times as wide")
    names = {"d_model": "d_model", "n_head": "n_heads", "n_layer": "n_layers", "d_ff": "d_ff"}
    sizes = reader.sizes(**_GPT2_SIZES | names)
    scale = attention.optional_number("softmax_scale")
    scales: dict[str, Any] = {"score_scales": [scale] * sizes["n_layer"]} if scale else {}
    return _read(
        reader, sizes, n_ctx=reader.context("max_seq_len", default=2048), activation="gelu", **NO_BIASES,
        norm_bias=False, alibi=_mpt_slopes(sizes["n_head"], inner.integer("alibi_bias_max", default=8)),
        qkv_limit=attention.optional_number("clip_qkv"), **scales,
    )  # fmt: skip


def _falcon_parallel(reader: ConfigReader) -> str:
    fields = reader.fields
    new = fields.boolean("new_decoder_architecture", default=False)
    fields.skip("num_ln_in_parallel_attn", "multi_query")  # other fields may decide
    if not fields.boolean("parallel_attn", default=True):
        if new:
            raise fields.unsupported("parallel_attn", "true: the new architecture is parallel")
        return "no"
    n_norms = fields.integer("num_ln_in_parallel_attn", maximum=2, default=2 if new else 1)
    if n_norms == 2 and not new:
        raise fields.unsupported("num_ln_in_parallel_attn", "1, or the new architecture")
    return "two_norms" if n_norms == 2 else "one_norm"


def _read_falcon(reader: ConfigReader) -> dict[str, Any]:
    """Read Falcon, with RoPE or, in the first models, ALiBi."""
    fields = reader.fields
    sizes = reader.sizes(
        d_model=reader.name("hidden_size", "n_embed"),
        n_kv_head="num_kv_heads",
        d_ff="ffn_hidden_size",
        default_d_ff=4,
        d_head=None,
    )
    if not fields.boolean("new_decoder_architecture", default=False):
        one = fields.boolean("multi_query", default=True)
        sizes["n_kv_head"] = 1 if one else sizes["n_head"]
    if fields.boolean("alibi", default=False):
        fields.skip("rope_parameters", "rope_scaling", "rope_theta")
        # transformers rounds the slopes to bf16 and scales them as scores.
        rounded = widened(rounded_to_bf16(np.array(_slopes(sizes["n_head"]), np.float32)), "bf16").tolist()
        positions: dict[str, Any] = {
            "n_ctx": reader.context(default=2048),
            "alibi": [slope * sizes["d_head"] ** -0.5 for slope in rounded],
        }
    else:
        positions = rotary(reader.rotation(sizes["d_head"]))
    return _read(
        reader,
        sizes,
        **positions,
        activation_field=("activation", "gelu"),
        parallel=_falcon_parallel(reader),
        **reader.attention_bias("bias", mlp=True),
    )


_MPT_HARMLESS = (
    "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "is_encoder_decoder",  # of attn_config
    "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "norm_type", "tokenizer_name",
    "verbose",
)  # fmt: skip
_BIGCODE_HARMLESS = (
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    "num_key_value_heads",  # multi_query decides
)  # fmt: skip
_BLOOM_HARMLESS = (
    "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi",
    "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
)  # fmt: skip

_GPT2_ABSENT = absent_gpt(768, 12, 12, 50257, 1024)
_OPT_ABSENT = absent(768, None, 12, 12, 50272, 2048) | {"ffn_dim": 3072}
_NEOX_ABSENT = absent(6144, 24576, 44, 64, 50432, 2048)
_BLOOM_ABSENT = {"hidden_size": 64, "n_layer": 2, "n_head": 8, "vocab_size": 250880}
_MPT_ABSENT = {"d_model": 2048, "n_layers": 24, "n_heads": 16, "vocab_size": 50368}

_transformer = partial(Family, prefix="transformer.")

FAMILIES = {
    "GPT2LMHeadModel": _transformer(_read_gpt2, _GPT2, "gpt2", _GPT2_ABSENT, harmless=("n_ctx",)),
    "GPTBigCodeForCausalLM": _transformer(
        _read_bigcode, _BIGCODE, "gpt_bigcode", _GPT2_ABSENT, harmless=_BIGCODE_HARMLESS
    ),
    "GPTNeoForCausalLM": _transformer(
        _read_neo, _NEO, "gpt_neo", absent_neo(2048, 24, 16, 50257, 2048), harmless=("attention_layers",)
    ),
    "OPTForCausalLM": Family(
        _read_opt, _OPT, "opt", _OPT_ABSENT, renamed={"decoder.": "model.decoder."}, settled=_settled_opt
    ),
    "GPTNeoXForCausalLM": Family(
        _read_neox, _NEOX, "gpt_neox", _NEOX_ABSENT, prefix="gpt_neox.", head="embed_out"
    ),
    "GPTJForCausalLM": _transformer(
        _read_gptj, _GPTJ, "gptj", absent_gpt(4096, 28, 16, 50400, 2048),
        harmless=("n_ctx", "rotary", "scale_attn_weights"),
    ),
    "CodeGenForCausalLM": _transformer(
        _read_codegen, _CODEGEN, "codegen", absent_gpt(4096, 28, 16, 50400, 2048),
        harmless=("n_ctx", "scale_attn_weights"),
    ),
    "PhiForCausalLM": Family(_read_phi, _PHI, "phi", absent(2048, 8192, 24, 32, 51200, 2048)),
    "BloomForCausalLM": _transformer(_read_bloom, _BLOOM, "bloom", _BLOOM_ABSENT, harmless=_BLOOM_HARMLESS),
    "MptForCausalLM": _transformer(_read_mpt, _MPT, "mpt", _MPT_ABSENT, harmless=_MPT_HARMLESS),
    "FalconForCausalLM": _transformer(
        _read_falcon, lambda config: _FALCON_TWO_NORMS if config["parallel"] == "two_norms" else _BLOOM,
        "falcon", absent(4544, None, 32, 71, 65024, 2048),
        harmless=("apply_residual_connection_post_layernorm",),
    ),
}  # fmt: skip
