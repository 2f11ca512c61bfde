"""A decoder in the manner of LaMDA (arXiv 2201.08239): relative positions as in T5, a gated GELU.

No class of transformers has it; the fields and tensors have the names of T5 and Llama. A config.json::

    {
        "architectures": ["LamdaForCausalLM"],
        "vocab_size": ...,
        "hidden_size": ...,
        "intermediate_size": ...,
        "num_hidden_layers": ...,
        "num_attention_heads": ...,
        "head_dim": ...,
        "max_position_embeddings": ...,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    }

and beside Llama's tensors ``model.relative_attention_bias.weight``, [buckets, heads], for all layers.
"""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, named
from specdec.models.families.gpt import gpt_like
from specdec.models.families.llama import LLAMA_TENSORS
from specdec.models.families.t5 import relative_buckets

__all__ = ["FAMILIES"]

_TENSORS = LLAMA_TENSORS | named(relative_bias="model.relative_attention_bias.weight")


def _read_lamda(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes()
    return gpt_like(
        sizes,
        n_ctx=reader.context(),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        activation=reader.activation("hidden_act", "gelu_new"),
        gated=True,
        tied=fields.boolean("tie_word_embeddings", default=True),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        score_scales=[1.0] * sizes["n_layer"],
        relative_buckets=relative_buckets(fields),
    )


FAMILIES = {"LamdaForCausalLM": Family(_read_lamda, _TENSORS)}
