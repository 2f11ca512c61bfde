"""Nemotron, Arcee, Jais 2 and Apertus: Llama's attention, and an activation without gate."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec.errors import UnsupportedModelError
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Array, Config, Family, Named, Shape, absent, named, plus_one
from specdec.models.families.llama import LLAMA, llama_like
from specdec.models.number_formats import widened

_NEMOTRON = LLAMA | named(
    "model.layers.{i}", plus_one, output_norm="model.norm", attn_norm=".input_layernorm",
    mlp_norm=".post_attention_layernorm",
)  # fmt: skip


class _Xielu(Named):
    """The factors of an xIELU: two learned numbers and beta; eps, a guard of its rounding, is not needed."""

    def stored_names(self, suffix: str, config: Config) -> list[str]:
        """Return the names of the file's tensors."""
        return [f"{self.name}.{part}" for part in ("alpha_p", "alpha_n", "beta", "eps")]

    def stored_shapes(self, suffix: str, shape: Shape, config: Config) -> list[Shape]:
        """Return the shapes of the file's tensors."""
        return [(1,), (1,), (), ()]

    def canonical(
        self, arrays: list[Array], number_format: str, shape: Shape, config: Config
    ) -> tuple[Array, str]:
        """Return the tensor in f32; see `Named`."""
        formats = ["bf16" if array.dtype == np.uint16 else "f32" for array in arrays]
        numbers = [widened(array, one).reshape(()) for array, one in zip(arrays, formats, strict=True)]
        if not -_LARGEST_EPS <= numbers[3] <= 0.0:
            found = f"tensor '{self.name}.eps' is {float(numbers[3]):g}"
            raise UnsupportedModelError(f"{found}; expected {-_LARGEST_EPS:g} to 0")
        return np.array(numbers[:3], np.float32), "f32"

    def store(self, stored: list[Array], array: Array, shape: Shape, config: Config) -> None:
        """Write the numbers; see `Named`."""
        for whole, number in zip(stored, (*array, np.float32(-1e-6)), strict=True):
            whole[...] = number


_LARGEST_EPS = 1e-5
_APERTUS = LLAMA | {
    **named("model.layers.{i}", attn_norm=".attention_layernorm", mlp_norm=".feedforward_layernorm"),
    "mlp_xielu": _Xielu("model.layers.{i}.mlp.act_fn"),
}


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


def _apertus(reader: ConfigReader) -> dict[str, Any]:
    """Read Apertus: xIELU with learned factors, norms of queries and keys by head."""
    fields = reader.fields
    fields.require("qk_norm", True, because="queries and keys are normalized")
    fields.require("post_norm", False, because="norms are before each half of a layer")
    return llama_like(
        reader, bias=False, gated=False, qk_norm="head", theta=12_000_000.0, norm_eps=1e-5,
        activation=fields.choice("hidden_act", {"xielu": "xielu"}, default="xielu"),
    )  # fmt: skip


_APERTUS_ROPE = {
    "rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip

FAMILIES = {
    "ApertusForCausalLM": Family(
        _apertus, _APERTUS, "apertus",
        absent(4096, 14336, 32, 32, 131072, 65536) | {"rope_parameters": _APERTUS_ROPE},
    ),
    "NemotronForCausalLM": Family(
        _nemotron, _NEMOTRON, "nemotron", absent(6144, 24576, 32, 48, 256000, 4096),
        harmless=("kv_channels", "rope_percent"),  # head_dim and partial_rotary_factor decide
    ),
    "ArceeForCausalLM": Family(_arcee, LLAMA, "arcee", absent(2560, 18432, 32, 32, 32000, 4096)),
    "Jais2ForCausalLM": Family(_jais2, LLAMA, "jais2", absent(3328, 26624, 32, 26, 150272, 8192)),
}  # fmt: skip
