"""Nemotron, Arcee and Jais 2: Llama's attention, and a squared ReLU without gate."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, absent, named, plus_one
from specdec.models.families.llama import LLAMA, llama_like

_NEMOTRON = LLAMA | named(
    "model.layers.{i}", plus_one, output_norm="model.norm", attn_norm=".input_layernorm",
    mlp_norm=".post_attention_layernorm",
)  # fmt: skip


def _ungated(reader: ConfigReader, *, bias: bool = False, **switches: Any) -> dict[str, Any]:
    """Read a block without gate; ``bias``: default of all biases."""
    return llama_like(
        reader, bias=bias, mlp_bias=reader.fields.boolean("mlp_bias", default=bias), gated=False,
        activation=reader.activation("hidden_act", "relu2"), **switches,
    )  # fmt: skip


def _nemotron(reader: ConfigReader) -> dict[str, Any]:
    """Read Nemotron: LayerNorm with weights stored minus 1, rotary positions in a part of each head."""
    sizes = reader.sizes()
    turning = (reader.rotation(sizes["d_head"], partial=True, fraction=0.5),)
    return _ungated(reader, sizes=sizes, turning=turning, norm="layer", eps_field="norm_eps", norm_eps=1e-5)


def _arcee(reader: ConfigReader) -> dict[str, Any]:
    return _ungated(reader, norm_eps=1e-5)


def _jais2(reader: ConfigReader) -> dict[str, Any]:
    return _ungated(reader, bias=True, norm="layer", eps_field="layer_norm_eps", norm_eps=1e-5)


FAMILIES = {
    "NemotronForCausalLM": Family(
        _nemotron, _NEMOTRON, "nemotron", absent(6144, 24576, 32, 48, 256000, 4096),
        harmless=("kv_channels", "rope_percent"),  # head_dim and partial_rotary_factor decide
    ),
    "ArceeForCausalLM": Family(_arcee, LLAMA, "arcee", absent(2560, 18432, 32, 32, 32000, 4096)),
    "Jais2ForCausalLM": Family(_jais2, LLAMA, "jais2", absent(3328, 26624, 32, 26, 150272, 8192)),
}  # fmt: skip
