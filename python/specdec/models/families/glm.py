"""GLM, ERNIE 4.5 and Helium: Llama blocks with interleaved rotary positions."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, absent, halves, interleaved, named
from specdec.models.families.llama import LLAMA, llama_like

_LAYER = "model.layers.{i}"

INTERLEAVED = LLAMA | named(_LAYER, interleaved, attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj")
_GLM = INTERLEAVED | halves(f"{_LAYER}.mlp.gate_up_proj")
_GLM4 = _GLM | named(_LAYER, attn_post_norm=".post_self_attn_layernorm", mlp_post_norm=".post_mlp_layernorm")


def _glm(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    """Read GLM: rotary positions in half of each head, gate and up in one matrix."""
    sizes = reader.sizes(absent_kv_head=2, default_d_head=128)
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.5),),
        norm_eps=1.5625e-7,
        qkv_bias=reader.fields.boolean("attention_bias", default=True),
        **switches,
    )


def _glm4(reader: ConfigReader) -> dict[str, Any]:
    return _glm(reader, norm_position="both")


def _ernie(reader: ConfigReader) -> dict[str, Any]:
    """Read ERNIE 4.5: one field for all biases."""
    fields = reader.fields
    fields.require("compression_ratio", 1, because="positions are not compressed")
    fields.require("use_rmsnorm", True, because="norms are RMSNorms")
    return llama_like(
        reader, sizes=reader.sizes(absent_kv_head=2), theta=500_000.0, norm_eps=1e-5, tied=True,
        **reader.attention_bias("use_bias", mlp=True),
    )  # fmt: skip


def _helium(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=20, default_d_head=128)
    if sizes["n_head"] * sizes["d_head"] != sizes["d_model"]:
        raise fields.error("head_dim", f"hidden_size / num_attention_heads of {sizes['d_model']}")
    return llama_like(
        reader,
        sizes=sizes,
        theta=100_000.0,
        norm_eps=1e-8,
        qkv_bias=fields.boolean("attention_bias", default=False),
        mlp_bias=fields.boolean("mlp_bias", default=False),
    )


_GLM_ABSENT = absent(4096, 13696, 40, 32, 151552, 131072)

FAMILIES = {
    "GlmForCausalLM": Family(_glm, _GLM, "glm", _GLM_ABSENT),
    "Glm4ForCausalLM": Family(_glm4, _GLM4, "glm4", _GLM_ABSENT),
    "Ernie4_5ForCausalLM": Family(
        _ernie, INTERLEAVED, "ernie4_5", absent(1024, 3072, 18, 16, 103424, 131072) | {"head_dim": 128},
    ),
    "HeliumForCausalLM": Family(_helium, INTERLEAVED, "helium", absent(2560, 7040, 24, 20, 48000, 4096)),
}  # fmt: skip
