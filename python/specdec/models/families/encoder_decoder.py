"""Encoder-decoder families: T5, mT5, UMT5, BART, mBART, Marian, M2M-100, NLLB; and LaMDA's decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final

import numpy as np

from specdec.fields import Fields
from specdec.models.families.config_reader import ACTIVATIONS, ConfigReader
from specdec.models.families.family import (
    ENCODER,
    NO_BIASES,
    Array,
    Config,
    Family,
    Named,
    Shape,
    absent_bart,
    absent_t5,
    named,
    offset,
    row,
)
from specdec.models.families.gpt import gpt_like
from specdec.models.families.llama import LLAMA


def of_encoder(table: Mapping[str, Named]) -> dict[str, Named]:
    """Return a table's entries under the names of an encoder."""
    return {ENCODER + name: entry for name, entry in table.items()}


def with_encoder(decoder: dict[str, Any], encoder: dict[str, Any], *, shared: bool = True) -> dict[str, Any]:
    """Return the configuration of an encoder-decoder; ``shared``: one token embedding for both."""
    return decoder | {"encoder": encoder | {"tied": False, "shared_embedding": shared}}


def settle_tables(
    config: dict[str, Any], tensors: MutableMapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Return the configuration with the embeddings and head that the files hold.

    Files have up to four: shared, encoder and decoder embeddings, and the head. As in transformers, an absent
    one is the shared one. Afterwards the decoder's embedding has the shared name; encoder embedding and head
    keep theirs if they differ from it.
    """
    shared_name, head_name = f"{prefix}shared.weight", "lm_head.weight"
    encoder_name = f"{prefix}encoder.embed_tokens.weight"
    shared = tensors.pop(shared_name, None)
    ours = tensors.pop(f"{prefix}decoder.embed_tokens.weight", shared)
    theirs = tensors.pop(encoder_name, shared)
    head = tensors.pop(head_name, None)
    if ours is None and config["tied"]:
        ours = head
    if ours is not None:
        tensors[shared_name] = ours
    own_table = theirs is not None and not _same(theirs, ours)
    if own_table:
        tensors[encoder_name] = theirs
    own_head = head is not None and not _same(head, ours)
    if own_head:
        tensors[head_name] = head
    tied = not own_head and (config["tied"] or head is not None)
    encoder = config["encoder"] | {"shared_embedding": not own_table}
    return config | {"encoder": encoder, "tied": tied}


def _same(one: Any, other: Any) -> bool:
    return one is other or (other is not None and one.same_as(other))


_N_CTX: Final = 2048
"""Default context: relative positions are unbounded, and files name no length that transformers enforces."""


def _bucket_starts(n_buckets: int, max_distance: int) -> list[int]:
    """Return the first distance of each non-empty T5 bucket; the first half hold one distance each."""
    n_exact = n_buckets // 2
    starts: dict[int, int] = {}
    for distance in range(max_distance + 1):
        bucket = distance
        if distance >= n_exact:
            far = math.log(distance / n_exact) / math.log(max_distance / n_exact) * (n_buckets - n_exact)
            bucket = min(n_exact + int(far), n_buckets - 1)
        starts.setdefault(bucket, distance)
    return [starts[bucket] for bucket in sorted(starts)]


def relative_buckets(fields: Fields, *, sides: int = 1) -> list[int]:
    """Read ``relative_attention_*`` as first distances of buckets; ``sides`` 2: half for later keys."""
    n_buckets = fields.integer("relative_attention_num_buckets", minimum=2, maximum=65_536, default=32)
    if n_buckets % (2 * sides):
        raise fields.error("relative_attention_num_buckets", f"a multiple of {2 * sides}")
    n_buckets //= sides
    furthest = fields.integer(
        "relative_attention_max_distance", minimum=n_buckets // 2 + 1, maximum=1 << 20, default=128
    )
    starts = _bucket_starts(n_buckets, furthest)
    if len(starts) != n_buckets:
        raise fields.error("relative_attention_max_distance", "a distance that leaves no bucket empty")
    return starts


def _t5_tensors(config: Config) -> dict[str, Named]:
    """Return the tensors of both sides; decoder layers have three sublayers, encoder layers two."""
    first = "{i}" if config["relative_bias_by_layer"] else "0"

    up = "wi_1" if config["gated"] else "wi"

    def side(name: str, mlp: int) -> dict[str, Named]:
        return named(
            f"{name}.block.{{i}}.layer", output_norm=f"{name}.final_layer_norm",
            relative_bias=f"{name}.block.{first}.layer.0.SelfAttention.relative_attention_bias.weight",
            attn_norm=".0.layer_norm", attn_q=".0.SelfAttention.q", attn_k=".0.SelfAttention.k",
            attn_v=".0.SelfAttention.v", attn_out=".0.SelfAttention.o", mlp_norm=f".{mlp}.layer_norm",
            mlp_gate=f".{mlp}.DenseReluDense.wi_0", mlp_up=f".{mlp}.DenseReluDense.{up}",
            mlp_down=f".{mlp}.DenseReluDense.wo",
        )  # fmt: skip

    cross = named(
        "decoder.block.{i}.layer.1", token_embedding="shared.weight", head="lm_head.weight",
        cross_norm=".layer_norm", cross_q=".EncDecAttention.q", cross_k=".EncDecAttention.k",
        cross_v=".EncDecAttention.v", cross_out=".EncDecAttention.o",
    )  # fmt: skip
    encoder = side("encoder", 1) | named(token_embedding="encoder.embed_tokens.weight")
    return side("decoder", 2) | cross | of_encoder(encoder)


def _feed_forward(fields: Fields, default: str) -> dict[str, Any]:
    """Read ``feed_forward_proj``; fields that transformers derives from it take precedence."""
    feed_forward = fields.choice(
        "feed_forward_proj",
        {name: name for act in ACTIVATIONS for name in (act, f"gated-{act}")},
        default=default,
    )
    activation = "gelu_new" if feed_forward == "gated-gelu" else feed_forward.removeprefix("gated-")
    return {
        "activation": fields.choice("dense_act_fn", ACTIVATIONS, default=activation),
        "gated": fields.boolean("is_gated_act", default=feed_forward.startswith("gated-")),
    }


def _read_t5_like(
    reader: ConfigReader, *, feed_forward: str, scaled: bool, by_layer: bool = False
) -> dict[str, Any]:
    """Read T5's configuration; ``scaled``: logits have a factor of 1 / sqrt(d_model)."""
    fields = reader.fields
    sizes = reader.sizes(
        d_model="d_model", n_head="num_heads", n_layer="num_layers", n_kv_head=None, d_ff="d_ff",
        d_head="d_kv", default_d_head=64,
    )  # fmt: skip
    n_layer = fields.integer("num_decoder_layers", maximum=10_000, default=sizes["n_layer"])
    block = {
        **sizes,
        **_feed_forward(fields, feed_forward),
        "n_ctx": reader.free_context(_N_CTX),
        "norm": "rms",
        "norm_eps": fields.number("layer_norm_epsilon", default=1e-6),
        "position": "none",
        "inv_freq": [],
        **NO_BIASES,
        "sliding_window": 0,
        "relative_bias_by_layer": by_layer,
    }
    decoder = block | {
        "n_layer": n_layer,
        "tied": fields.boolean("tie_word_embeddings", default=True),
        "score_scales": [1.0] * n_layer,
        "relative_buckets": relative_buckets(fields),
        "logit_scale": sizes["d_model"] ** -0.5 if scaled else 1.0,
    }
    encoder = block | {
        "score_scales": [1.0] * sizes["n_layer"],
        "relative_buckets": relative_buckets(fields, sides=2),
    }
    return with_encoder(decoder, encoder)


def _read_t5(reader: ConfigReader) -> dict[str, Any]:
    """Read T5, which scales the input of a tied head; T5 1.1 has an untied head without scale."""
    tied = reader.fields.boolean("tie_word_embeddings", default=True)
    scaled = reader.fields.boolean("scale_decoder_outputs", default=tied)
    return _read_t5_like(reader, feed_forward="relu", scaled=scaled)


_read_mt5 = partial(_read_t5_like, feed_forward="gated-gelu", scaled=False)


def _read_umt5(reader: ConfigReader) -> dict[str, Any]:
    """Read UMT5: relative positions per layer; logits are scaled if the head is tied."""
    scaled = reader.fields.boolean("tie_word_embeddings", default=True)
    return _read_t5_like(reader, feed_forward="gated-gelu", scaled=scaled, by_layer=True)


# An unused table in files of the first T5.
_T5_UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",)


def _t5_family(read: Any, model_type: str, sizes: tuple[int, ...], *harmless: str) -> Family:
    return Family(
        read, _t5_tensors, model_type, absent_t5(*sizes), prefix="", left_out=_T5_UNUSED,
        harmless=("n_positions", *harmless),  # relative positions are unbounded
        # T5 is tied if there is no head, whatever the file says.
        settled=lambda config, tensors: settle_tables(config | {"tied": True}, tensors),
    )  # fmt: skip


_MT5_SIZES = (512, 1024, 8, 6, 250112)
_T5 = {
    "T5ForConditionalGeneration": _t5_family(_read_t5, "t5", (512, 2048, 6, 8, 32128)),
    "MT5ForConditionalGeneration": _t5_family(_read_mt5, "mt5", _MT5_SIZES),
    "UMT5ForConditionalGeneration": _t5_family(_read_umt5, "umt5", _MT5_SIZES, "scale_decoder_outputs"),
}


_BIAS = "final_logits_bias"

# Bound for computed tables, whose length no tensor confirms.
MOST_POSITIONS = 1 << 15


def side(name: str, config: Config) -> dict[str, Named]:
    """Return the tensors of a decoder or encoder without embeddings, with norms by their position."""
    position = "post_norm" if config["norm_position"] == "residual" else "norm"
    parts = {"attn": ".self_attn", "cross": ".encoder_attn", "mlp": ".final"}
    norms: Any = {f"{part}_{position}": f"{of}_layer_norm" for part, of in parts.items()}
    return named(
        f"{name}.layers.{{i}}", embedding_norm=f"{name}.layernorm_embedding",
        attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj", attn_v=".self_attn.v_proj",
        attn_out=".self_attn.out_proj", cross_q=".encoder_attn.q_proj", cross_k=".encoder_attn.k_proj",
        cross_v=".encoder_attn.v_proj", cross_out=".encoder_attn.out_proj", mlp_up=".fc1", mlp_down=".fc2",
        output_norm=f"{name}.layer_norm", **norms,
    )  # fmt: skip


def _bart_like_tensors(config: Config, positions: Callable[[Shape], Array] | None) -> dict[str, Named]:
    """Return BART's tensors; ``positions`` computes position tables, else files have them at offset 2."""

    def table(side: str) -> Named:
        if positions is None:
            return offset(f"model.{side}.embed_positions.weight", 2)
        return Named("", keeps_rows=False, make=positions)

    decoder = side("model.decoder", config) | {
        **named(token_embedding="model.shared.weight", head="lm_head.weight"),
        "position_embedding": table("decoder"),
        "head_bias": row(_BIAS),
    }
    encoder = side("model.encoder", config) | {
        **named(token_embedding="model.encoder.embed_tokens.weight"),
        "position_embedding": table("encoder"),
    }
    return decoder | of_encoder(encoder)


def _marian_positions(shape: Shape) -> Array:
    """Return sines of all frequencies, then cosines (section 3.5 of arXiv 1706.03762, reordered)."""
    n_rows, width = shape
    column = np.arange(width)
    angles = np.arange(n_rows)[:, None] / 10_000.0 ** (2 * (column // 2) / width)
    return np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1).astype(np.float32)


_M2M_FIRST = 2  # position of the first token, after padding


def m2m_positions(shape: Shape) -> Array:
    """Return sines, then cosines, of float32 angles, as in fairseq."""
    n_rows, half = shape[0], shape[1] // 2
    step = np.float32(-math.log(10_000) / (half - 1))
    frequencies = np.exp(np.arange(half, dtype=np.float32) * step)
    angles = np.arange(_M2M_FIRST, _M2M_FIRST + n_rows, dtype=np.float32)[:, None] * frequencies
    table = np.zeros(shape, np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


def _read_bart_like(
    reader: ConfigReader,
    *,
    n_ctx: int | None = None,
    activation: str = "gelu",
    scaled: bool = False,
    shared: bool = True,
    head_bias: bool = False,
    **switches: Any,
) -> dict[str, Any]:
    """Read BART's configuration; ``n_ctx``: decoder context; ``scaled``: default of ``scale_embedding``."""
    fields = reader.fields
    n_positions = fields.integer("max_position_embeddings", default=1024, maximum=MOST_POSITIONS)

    def side(name: str, context: int) -> dict[str, Any]:
        sizes = reader.sizes(
            d_model="d_model", n_head=f"{name}_attention_heads", n_layer=f"{name}_layers", n_kv_head=None,
            d_ff=f"{name}_ffn_dim", d_head=None,
        )  # fmt: skip
        width = sizes["d_model"]
        factor = math.sqrt(width) if fields.boolean("scale_embedding", default=scaled) else 1.0
        return gpt_like(
            sizes, n_ctx=context, position="learned", norm_eps=1e-5, embedding_scale=factor,
            activation=reader.activation("activation_function", activation), **switches,
        )  # fmt: skip

    decoder = side("decoder", reader.whole_context("max_position_embeddings") if n_ctx is None else n_ctx)
    decoder["tied"] = fields.boolean("tie_word_embeddings", default=True)
    if head_bias:
        decoder["head_bias"] = True
    return with_encoder(decoder, side("encoder", n_positions), shared=shared)


_AFTER: dict[str, Any] = {"norm_position": "residual", "output_norm": False}
_read_bart = partial(_read_bart_like, head_bias=True, embedding_norm=True, **_AFTER)
_read_mbart = partial(_read_bart_like, head_bias=True, embedding_norm=True, norm_position="before")


def _read_marian(reader: ConfigReader) -> dict[str, Any]:
    """Read Marian, with two vocabularies if ``share_encoder_decoder_embeddings`` is false."""
    fields = reader.fields
    shared = fields.boolean("share_encoder_decoder_embeddings", default=True)
    n_ctx = reader.context(default=1024, maximum=MOST_POSITIONS)
    config = _read_bart_like(reader, n_ctx=n_ctx, head_bias=True, shared=shared, **_AFTER)
    if not shared:
        config["n_vocab"] = fields.integer("decoder_vocab_size", default=config["n_vocab"])
    return config


def _read_m2m(reader: ConfigReader) -> dict[str, Any]:
    """Read M2M-100 and NLLB. Padding tokens in a sequence have ordinary positions."""
    fields = reader.fields
    fields.require("pad_token_id", 1, because="positions start after it")
    if fields.integer("d_model") < 4:
        raise fields.error("d_model", "at least 4: positions need two frequencies")
    n_ctx = reader.context(default=1024, maximum=MOST_POSITIONS)
    return _read_bart_like(reader, n_ctx=n_ctx, activation="relu", scaled=True, norm_position="before")


def _settled(config: dict[str, Any], tensors: MutableMapping[str, Any]) -> dict[str, Any]:
    """Settle the embeddings, and drop the logit bias if the file lacks it."""
    config = settle_tables(config, tensors, "model.")
    return config | {"head_bias": _BIAS in tensors}


# Sinusoidal tables and a version number in files of old versions of transformers.
_VERSIONS = ("model.encoder.version", "model.decoder.version")
_UNUSED = (*_VERSIONS, "model.encoder.embed_positions.", "model.decoder.embed_positions.")

# Switches of old class versions, implied by the architecture.
_HARMLESS = (
    "add_bias_logits", "add_final_layer_norm", "extra_pos_embeddings", "force_bos_token_to_be_generated",
    "normalize_before", "normalize_embedding", "num_hidden_layers", "replacing_rate",
    "static_position_embeddings", "student_decoder_layers", "student_encoder_layers",
    "decoder_vocab_size",  # of Marian with one vocabulary
)  # fmt: skip


def _bart_family(read: Any, positions: Any, model_type: str, n_vocab: int) -> Family:
    unused = _VERSIONS if positions is None else _UNUSED
    tensors = partial(_bart_like_tensors, positions=positions)
    absent = absent_bart(1024, *(12, 16, 4096) * 2, n_vocab, 1024)
    more: dict[str, Any] = {"left_out": unused, "harmless": _HARMLESS, "settled": _settled}
    return Family(read, tensors, model_type, absent, renamed={_BIAS: _BIAS}, **more)


_BART = {
    "BartForConditionalGeneration": _bart_family(_read_bart, None, "bart", 50265),
    "MBartForConditionalGeneration": _bart_family(_read_mbart, None, "mbart", 50265),
    "MarianMTModel": _bart_family(_read_marian, _marian_positions, "marian", 58101),
    "M2M100ForConditionalGeneration": _bart_family(_read_m2m, m2m_positions, "m2m_100", 128112),
}


_LAMDA_TENSORS = LLAMA | named(relative_bias="model.relative_attention_bias.weight")


def _read_lamda(reader: ConfigReader) -> dict[str, Any]:
    """Read a LaMDA-like decoder (arXiv 2201.08239): T5's relative positions and a gated GELU.

    Not in transformers. Its config.json has Llama's fields and T5's "relative_attention_num_buckets" and
    "relative_attention_max_distance"; besides Llama's tensors it has
    ``model.relative_attention_bias.weight``, [buckets, heads], for all layers.
    """
    fields, sizes = reader.fields, reader.sizes()
    return gpt_like(
        sizes, n_ctx=reader.context(), norm="rms", norm_eps=fields.number("rms_norm_eps", default=1e-6),
        activation=reader.activation("hidden_act", "gelu_new"), gated=True, **NO_BIASES,
        tied=fields.boolean("tie_word_embeddings", default=True), score_scales=[1.0] * sizes["n_layer"],
        relative_buckets=relative_buckets(fields),
    )  # fmt: skip


FAMILIES = _T5 | _BART | {"LamdaForCausalLM": Family(_read_lamda, _LAMDA_TENSORS)}
