"""T5, mT5, UMT5: encoder-decoders with relative positions in buckets, unscaled scores, RMSNorm, no biases."""

from __future__ import annotations

import math
from typing import Any, Final

from specdec.fields import Fields
from specdec.models.families.config_reader import ACTIVATIONS, ConfigReader
from specdec.models.families.encoder_decoder import of_encoder, settle_tables, with_encoder
from specdec.models.families.family import Config, Family, Named, named

__all__ = ["FAMILIES", "bucket_starts", "relative_buckets"]

_N_CTX: Final = 2048
"""Relative positions have no end; the files say no length that transformers keeps to."""


def bucket_starts(n_buckets: int, max_distance: int) -> list[int]:
    """The first distance of each of T5's buckets, of a decoder: one for each of the first half, then growing.

    Buckets that no distance falls into are left out.
    """
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
    """``relative_attention_num_buckets`` and ``relative_attention_max_distance`` as first distances.

    ``sides`` 2: half of the buckets are for keys before a row, half for keys behind it.
    """
    n_buckets = fields.integer("relative_attention_num_buckets", minimum=2, maximum=65_536, default=32)
    if n_buckets % (2 * sides):
        raise fields.error("relative_attention_num_buckets", f"a multiple of {2 * sides}")
    n_buckets //= sides
    furthest = fields.integer(
        "relative_attention_max_distance", minimum=n_buckets // 2 + 1, maximum=1 << 20, default=128
    )
    starts = bucket_starts(n_buckets, furthest)
    if len(starts) != n_buckets:
        raise fields.error("relative_attention_max_distance", "a distance that leaves no bucket empty")
    return starts


def _tensors(config: Config) -> dict[str, Named]:
    """Of both sides; the layers of a decoder have three parts, those of an encoder two."""
    first = "{i}" if config["relative_bias_by_layer"] else "0"

    def side(name: str, mlp: int) -> dict[str, Named]:
        parts = f"{name}.block.{{i}}.layer"
        return named(
            relative_bias=f"{name}.block.{first}.layer.0.SelfAttention.relative_attention_bias.weight",
            attn_norm=f"{parts}.0.layer_norm",
            attn_q=f"{parts}.0.SelfAttention.q",
            attn_k=f"{parts}.0.SelfAttention.k",
            attn_v=f"{parts}.0.SelfAttention.v",
            attn_out=f"{parts}.0.SelfAttention.o",
            mlp_norm=f"{parts}.{mlp}.layer_norm",
            mlp_gate=f"{parts}.{mlp}.DenseReluDense.wi_0",
            mlp_up=f"{parts}.{mlp}.DenseReluDense.wi" + ("_1" if config["gated"] else ""),
            mlp_down=f"{parts}.{mlp}.DenseReluDense.wo",
            output_norm=f"{name}.final_layer_norm",
        )

    cross = named(
        cross_norm="decoder.block.{i}.layer.1.layer_norm",
        cross_q="decoder.block.{i}.layer.1.EncDecAttention.q",
        cross_k="decoder.block.{i}.layer.1.EncDecAttention.k",
        cross_v="decoder.block.{i}.layer.1.EncDecAttention.v",
        cross_out="decoder.block.{i}.layer.1.EncDecAttention.o",
        token_embedding="shared.weight",
        head="lm_head.weight",
    )
    encoder = side("encoder", 1) | named(token_embedding="encoder.embed_tokens.weight")
    return {**side("decoder", 2), **cross, **of_encoder(encoder)}


def _feed_forward(fields: Fields, default: str) -> dict[str, Any]:
    """``feed_forward_proj``, and the fields that transformers makes of it, which count if they are there."""
    kind = fields.choice(
        "feed_forward_proj",
        {name: name for act in ACTIVATIONS for name in (act, f"gated-{act}")},
        default=default,
    )
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    return {
        "activation": fields.choice("dense_act_fn", ACTIVATIONS, default=activation),
        "gated": fields.boolean("is_gated_act", default=kind.startswith("gated-")),
    }


def _read(reader: ConfigReader, *, feed_forward: str, scaled: bool, by_layer: bool = False) -> dict[str, Any]:
    """``scaled``: logits have a factor of 1 / sqrt(d_model)."""
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
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
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
    """Original T5 scales what its tied head reads; T5 1.1, which has a head of its own, does not.

    Files say it by ``scale_decoder_outputs``, or, as transformers 4 wrote them, by ``tie_word_embeddings``.
    """
    fields = reader.fields
    scaled = fields.boolean(
        "scale_decoder_outputs", default=fields.boolean("tie_word_embeddings", default=True)
    )
    return _read(reader, feed_forward="relu", scaled=scaled)


def _read_mt5(reader: ConfigReader) -> dict[str, Any]:
    return _read(reader, feed_forward="gated-gelu", scaled=False)


def _read_umt5(reader: ConfigReader) -> dict[str, Any]:
    """Each layer has relative positions of its own. Logits are scaled where the file ties the head."""
    scaled = reader.fields.boolean("tie_word_embeddings", default=True)
    return _read(reader, feed_forward="gated-gelu", scaled=scaled, by_layer=True)


def _settled(config: dict[str, Any], tensors: Any) -> dict[str, Any]:
    """All of T5 is tied where there is no head, whatever the file says."""
    return settle_tables(config | {"tied": True}, tensors)


# A table that files of the first T5 have and that nothing reads.
_UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",)


def _family(read: Any, *harmless: str) -> Family:
    # n_positions: relative positions have no end
    return Family(
        read, _tensors, prefix="", left_out=_UNUSED, harmless=("n_positions", *harmless), settled=_settled
    )


FAMILIES = {
    "T5ForConditionalGeneration": _family(_read_t5),
    "MT5ForConditionalGeneration": _family(_read_mt5),
    "UMT5ForConditionalGeneration": _family(_read_umt5, "scale_decoder_outputs"),
}
