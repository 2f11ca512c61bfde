"""XGLM and BioGPT: decoders of fairseq without an encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.encoder_decoder import MOST_POSITIONS, m2m_positions, side
from specdec.models.families.family import Config, Family, Named, absent, named, offset
from specdec.models.families.gpt import gpt_like


def _xglm_tensors(config: Config) -> Mapping[str, Named]:
    return side("model", config) | {
        **named(token_embedding="model.embed_tokens.weight", head="lm_head.weight"),
        "position_embedding": Named("", keeps_rows=False, make=m2m_positions),
    }


def _biogpt_tensors(config: Config) -> Mapping[str, Named]:
    return side("biogpt", config) | {
        **named(token_embedding="biogpt.embed_tokens.weight", head="output_projection.weight"),
        "position_embedding": offset("biogpt.embed_positions.weight", 2),
    }


def _read(reader: ConfigReader, sizes: dict[str, Any], activation: str, **switches: Any) -> dict[str, Any]:
    """Read the fields that both share; `activation` is the name of its field."""
    scaled = reader.fields.boolean("scale_embedding", default=True)
    return gpt_like(
        sizes,
        position="learned",
        norm_eps=1e-5,
        norm_position="before",
        embedding_scale=math.sqrt(sizes["d_model"]) if scaled else 1.0,
        activation=reader.activation(activation, "gelu"),
        tied=reader.fields.boolean("tie_word_embeddings", default=True),
        **switches,
    )


def _xglm(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    if type(padding := fields.raw("pad_token_id")) is int and padding > 1:  # position + 2
        raise fields.unsupported("pad_token_id", "null, 0 or 1: a larger one has the embedding of a position")
    sizes = reader.sizes(
        d_model=reader.name("d_model", "hidden_size"),
        n_head=reader.name("attention_heads", "num_attention_heads"),
        n_layer=reader.name("num_layers", "num_hidden_layers"),
        n_kv_head=None, d_ff="ffn_dim", d_head=None,
    )  # fmt: skip
    n_ctx = reader.context(maximum=MOST_POSITIONS)
    return _read(reader, sizes, "activation_function", n_ctx=n_ctx)


def _biogpt(reader: ConfigReader) -> dict[str, Any]:
    return _read(
        reader, reader.sizes(n_kv_head=None, d_head=None), "hidden_act",
        n_ctx=reader.whole_context("max_position_embeddings"),
    )  # fmt: skip


_XGLM_ABSENT = {
    "d_model": 1024, "ffn_dim": 4096, "num_layers": 24, "attention_heads": 16, "vocab_size": 256008,
    "max_position_embeddings": 2048,
}  # fmt: skip

FAMILIES = {
    "XGLMForCausalLM": Family(
        _xglm, _xglm_tensors, "xglm", _XGLM_ABSENT, left_out=("model.embed_positions.",),
        harmless=("decoder_start_token_id",),
    ),
    "BioGptForCausalLM": Family(
        _biogpt, _biogpt_tensors, "biogpt", absent(1024, 4096, 24, 16, 42384, 1024), prefix="biogpt.",
        head="output_projection", harmless=("layer_norm_eps",),  # not used by the class
    ),
}  # fmt: skip
