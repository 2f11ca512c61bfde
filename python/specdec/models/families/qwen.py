"""Qwen 2, 2.5 and 3, MiMo: biases of queries, keys and values; or norms of queries and keys."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family
from specdec.models.families.llama import LLAMA_TENSORS, llama_like

__all__ = ["FAMILIES"]


def _windows(reader: ConfigReader, n_layer: int) -> dict[str, Any]:
    """Windows from ``max_window_layers`` on, if they are used at all."""
    fields = reader.fields
    if not fields.boolean("use_sliding_window", default=False):
        return reader.without_windows()
    first = fields.integer("max_window_layers", minimum=0, default=28)
    kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(n_layer)]
    return reader.windows(reader.layer_types(n_layer, kinds), default=4096)


def _read_qwen2(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=32)
    return llama_like(reader, sizes=sizes, qkv_bias=True, **_windows(reader, sizes["n_layer"]))


def _read_mimo(reader: ConfigReader) -> dict[str, Any]:
    """The block of Qwen 2. `specdec.drafts.MTP` reads its head for multi-token prediction."""
    reader.fields.require("attention_bias", True, because="queries, keys and values have biases")
    return _read_qwen2(reader)


def _read_qwen3(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=32, default_d_head=128)
    bias = reader.fields.boolean("attention_bias", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head",
        **_windows(reader, sizes["n_layer"]),
    )


FAMILIES = {
    "MiMoForCausalLM": Family(
        _read_mimo, LLAMA_TENSORS, left_out=("model.mtp_layers.",), harmless=("num_nextn_predict_layers",)
    ),
    "Qwen2ForCausalLM": Family(_read_qwen2, LLAMA_TENSORS),
    "Qwen3ForCausalLM": Family(_read_qwen3, LLAMA_TENSORS),
}
