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

import math
from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, named
from specdec.models.families.gpt import gpt_like
from specdec.models.families.llama import LLAMA_TENSORS

__all__ = ["FAMILIES", "bucket_starts"]

_TENSORS = LLAMA_TENSORS | named(relative_bias="model.relative_attention_bias.weight")


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


def _read_lamda(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes()
    n_buckets = fields.integer("relative_attention_num_buckets", minimum=2, maximum=65_536, default=32)
    furthest = fields.integer(
        "relative_attention_max_distance", minimum=n_buckets // 2 + 1, maximum=1 << 20, default=128
    )
    starts = bucket_starts(n_buckets, furthest)
    if len(starts) != n_buckets:
        raise fields.error("relative_attention_max_distance", "a distance that leaves no bucket empty")
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
        relative_buckets=starts,
    )


FAMILIES = {"LamdaForCausalLM": Family(_read_lamda, _TENSORS)}
