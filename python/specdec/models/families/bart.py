"""BART, mBART, Marian, M2M-100, NLLB: the encoder-decoder of the original transformer, and its variants."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

import numpy as np

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.encoder_decoder import of_encoder, settle_tables, with_encoder
from specdec.models.families.family import Array, Computed, Config, Family, Named, Offset, Row, Shape, named
from specdec.models.families.gpt import gpt_like

__all__ = ["FAMILIES"]

_BIAS = "final_logits_bias"

# No tensor of the file says how long a table is that is computed here.
_MOST_POSITIONS = 1 << 15


def _side(name: str, config: Config) -> dict[str, Named]:
    """The tensors of one side, less its tables; norms by where they stand."""
    layer, place = f"model.{name}.layers.{{i}}", "_post_norm" if _after(config) else "_norm"
    table = named(
        embedding_norm=f"model.{name}.layernorm_embedding",
        attn_q=f"{layer}.self_attn.q_proj",
        attn_k=f"{layer}.self_attn.k_proj",
        attn_v=f"{layer}.self_attn.v_proj",
        attn_out=f"{layer}.self_attn.out_proj",
        cross_q=f"{layer}.encoder_attn.q_proj",
        cross_k=f"{layer}.encoder_attn.k_proj",
        cross_v=f"{layer}.encoder_attn.v_proj",
        cross_out=f"{layer}.encoder_attn.out_proj",
        mlp_up=f"{layer}.fc1",
        mlp_down=f"{layer}.fc2",
        output_norm=f"model.{name}.layer_norm",
    )
    return table | {
        "attn" + place: Named(f"{layer}.self_attn_layer_norm"),
        "cross" + place: Named(f"{layer}.encoder_attn_layer_norm"),
        "mlp" + place: Named(f"{layer}.final_layer_norm"),
    }


def _after(config: Config) -> bool:
    return bool(config["norm_place"] == "residual")


def _tensors(config: Config, positions: dict[str, Named]) -> dict[str, Named]:
    decoder = _side("decoder", config) | {
        **named(token_embedding="model.shared.weight", head="lm_head.weight"),
        "position_embedding": positions["decoder"],
        "head_bias": Row(_BIAS),
    }
    encoder = _side("encoder", config) | {
        **named(token_embedding="model.encoder.embed_tokens.weight"),
        "position_embedding": positions["encoder"],
    }
    return {**decoder, **of_encoder(encoder)}


_SIDES = ("encoder", "decoder")


def _bart_tensors(config: Config) -> dict[str, Named]:
    """The first two rows of the tables of positions stand for nothing."""
    return _tensors(config, {side: Offset(f"model.{side}.embed_positions.weight", 2) for side in _SIDES})


def _marian_tensors(config: Config) -> dict[str, Named]:
    return _tensors(config, dict.fromkeys(_SIDES, Computed("", _marian_positions)))


def _m2m_tensors(config: Config) -> dict[str, Named]:
    return _tensors(config, dict.fromkeys(_SIDES, Computed("", _m2m_positions)))


def _marian_positions(shape: Shape) -> Array:
    """Sines of all frequencies, then their cosines (section 3.5 of arXiv 1706.03762, in another order)."""
    n_rows, width = shape
    column = np.arange(width)
    angles = np.arange(n_rows)[:, None] / 10_000.0 ** (2 * (column // 2) / width)
    return np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1).astype(np.float32)


_M2M_FIRST = 2  # the position of the first token; earlier ones belong to padding


def _m2m_positions(shape: Shape) -> Array:
    """Sines, then cosines, of angles in float32, as fairseq has them."""
    n_rows, half = shape[0], shape[1] // 2
    step = np.float32(-math.log(10_000) / (half - 1))
    frequencies = np.exp(np.arange(half, dtype=np.float32) * step)
    angles = np.arange(_M2M_FIRST, _M2M_FIRST + n_rows, dtype=np.float32)[:, None] * frequencies
    table = np.zeros(shape, np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


def _read(
    reader: ConfigReader,
    *,
    n_ctx: int | None = None,
    activation: str = "gelu",
    scaled: bool = False,
    shared: bool = True,
    **switches: Any,
) -> dict[str, Any]:
    """``n_ctx``: of the decoder, where positions can be cut; ``scaled``: what an absent field means."""
    fields = reader.fields
    n_positions = fields.integer("max_position_embeddings", default=1024, maximum=_MOST_POSITIONS)

    def side(name: str, context: int) -> dict[str, Any]:
        sizes = reader.sizes(
            d_model="d_model", n_head=f"{name}_attention_heads", n_layer=f"{name}_layers", n_kv_head=None,
            d_ff=f"{name}_ffn_dim", d_head=None,
        )  # fmt: skip
        width = sizes["d_model"]
        factor = math.sqrt(width) if fields.boolean("scale_embedding", default=scaled) else 1.0
        return gpt_like(
            sizes,
            n_ctx=context,
            position="learned",
            norm_eps=1e-5,
            activation=reader.activation("activation_function", activation),
            embedding_scale=factor,
            **switches,
        )

    decoder = side("decoder", reader.whole_context("max_position_embeddings") if n_ctx is None else n_ctx)
    decoder["tied"] = fields.boolean("tie_word_embeddings", default=True)
    return with_encoder(decoder, side("encoder", n_positions), shared=shared)


def _read_bart(reader: ConfigReader) -> dict[str, Any]:
    return _with_bias(_read(reader, embedding_norm=True, norm_place="residual", output_norm=False))


def _read_mbart(reader: ConfigReader) -> dict[str, Any]:
    return _with_bias(_read(reader, embedding_norm=True, norm_place="before"))


def _read_marian(reader: ConfigReader) -> dict[str, Any]:
    """With vocabularies of both sides where ``share_encoder_decoder_embeddings`` is false."""
    fields = reader.fields
    shared = fields.boolean("share_encoder_decoder_embeddings", default=True)
    config = _read(
        reader,
        n_ctx=reader.context(default=1024, maximum=_MOST_POSITIONS),
        norm_place="residual",
        output_norm=False,
        shared=shared,
    )
    if not shared:
        config["n_vocab"] = fields.integer("decoder_vocab_size", default=config["n_vocab"])
    return _with_bias(config)


def _read_m2m(reader: ConfigReader) -> dict[str, Any]:
    """NLLB too. A padding token in a text has a position like any other, as in a text without padding."""
    fields = reader.fields
    fields.require("pad_token_id", 1, because="positions begin behind it")
    if fields.integer("d_model") < 4:
        raise fields.error("d_model", "at least 4: positions have two frequencies or more")
    return _read(
        reader,
        n_ctx=reader.context(default=1024, maximum=_MOST_POSITIONS),
        activation="relu",
        scaled=True,
        norm_place="before",
    )


def _with_bias(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"head_bias": True}


def _settled(config: dict[str, Any], tensors: MutableMapping[str, Any]) -> dict[str, Any]:
    """A file may lack the bias of the logits, which is then none."""
    config = settle_tables(config, tensors, "model.")
    return config | {"head_bias": _BIAS in tensors}


# Sinusoidal tables and a version that files of former versions of transformers hold.
_UNUSED = tuple(f"model.{side}.{name}" for side in _SIDES for name in ("version", "embed_positions."))
_LEARNED_UNUSED = tuple(f"model.{side}.version" for side in _SIDES)
_ITSELF = {_BIAS: _BIAS}

# Switches of former versions of the classes, whose values the architectures imply.
_HARMLESS = (
    "add_bias_logits",
    "add_final_layer_norm",
    "decoder_vocab_size",  # of Marian with one vocabulary
    "extra_pos_embeddings",
    "force_bos_token_to_be_generated",
    "normalize_before",
    "normalize_embedding",
    "num_hidden_layers",
    "replacing_rate",
    "static_position_embeddings",
    "student_decoder_layers",
    "student_encoder_layers",
)


def _family(read: Any, tensors: Any, unused: tuple[str, ...]) -> Family:
    return Family(read, tensors, renamed=_ITSELF, left_out=unused, harmless=_HARMLESS, settled=_settled)


FAMILIES = {
    "BartForConditionalGeneration": _family(_read_bart, _bart_tensors, _LEARNED_UNUSED),
    "MBartForConditionalGeneration": _family(_read_mbart, _bart_tensors, _LEARNED_UNUSED),
    "MarianMTModel": _family(_read_marian, _marian_tensors, _UNUSED),
    "M2M100ForConditionalGeneration": _family(_read_m2m, _m2m_tensors, _UNUSED),
}
