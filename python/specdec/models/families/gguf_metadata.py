"""Metadata of a model in a GGUF file, and handling of unread keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from specdec.fields import MetadataFields
from specdec.models.families.family import Config, wrong_shape

# Longer arrays are not per-layer values, and as lists would take many times the memory of the file.
_MOST_LAYERS: Final = 10_000

KV_HEADS: Final = "attention.head_count_kv"
# Architectures with numbers of KV heads and widths of MLPs by layer.
_OWN_SIZES: Final = ("gemma4",)
# Architectures of which some layers have no attention.
_SOME_ATTEND: Final = ("lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe")
# Architectures of which some layers have no MLP.
_SOME_WIDE: Final = ("nemotron_h", "nemotron_h_moe")


class Metadata(MetadataFields):
    """Metadata of a model without the prefix of its architecture, and its tensors; `used` by `numbers_of`."""

    def __init__(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], file: Path) -> None:
        arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
        listed = {key: array.tolist() for key, array in arrays.items() if array.size <= _MOST_LAYERS}
        super().__init__({**values, **listed}, file, f"{name}.")
        self.name, self.tensors = name, tensors
        self.used: set[str] = set()

    def raw(self, name: str) -> Any:
        """Return a value, or the number that all layers of a list share; None if absent."""
        value = super().raw(name)
        if isinstance(value, np.ndarray):
            raise self.unsupported(name, f"at most {_MOST_LAYERS} values, one per layer")
        if not isinstance(value, list):
            return value
        if name == KV_HEADS and self.name in _OWN_SIZES:
            value = value[-1:]
        if name == "feed_forward_length" and self.name in _OWN_SIZES:
            value = value[:1]
        sparse = {KV_HEADS: _SOME_ATTEND, "feed_forward_length": _SOME_WIDE}
        if self.name in sparse.get(name, ()):  # 0: a layer without attention, or without an MLP
            value = [one for one in value if one != 0]
        if not value or any(one != value[0] for one in value[1:]):
            raise self.unsupported(name, "the same value for all layers")
        return value[0]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or ``default`` if absent."""
        value = self.raw(key)
        return default if value is None else value

    def by_layer(self, key: str) -> list[Any]:
        """Return the value of each layer."""
        value = super().raw(key)
        if not isinstance(value, list):
            return [value] * self.n_layer
        if len(value) != self.integer("block_count"):
            raise self.error(key, f"{self.integer('block_count')} values, one per layer")
        return value[: self.n_layer]

    def attending(self) -> list[bool]:
        """Return which layers have attention."""
        return [n_heads != 0 for n_heads in self.by_layer(KV_HEADS)]

    def pattern(self, key: str, n: int) -> list[bool] | None:
        """Return which of `n` layers have a window, from a list or period (last layer without), or None."""
        value = super().raw(key)
        if value is None:
            return None
        if type(value) is int and value > 0:
            return [i % value < value - 1 for i in range(n)]
        if not isinstance(value, list) or len(value) not in (n, self.integer("block_count")):
            raise self.error(key, f"{n} values, one per layer, or a period")
        return [bool(flag) for flag in value[:n]]

    def numbers_of(self, name: str, n: int | None = None) -> list[float] | None:
        """Return the `n` numbers of a vector in the configuration; None if there is no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        self.used.add(name)
        if n is not None and tensor.shape != (n,):
            raise wrong_shape(self.file, name, tensor.shape, (n,))
        return [float(number) for number in tensor.numbers().reshape(-1)]

    @property
    def n_mtp_blocks(self) -> int:
        """Number of multi-token prediction blocks, after the model's layers."""
        n_blocks, found = self.integer("block_count"), self.get("nextn_predict_layers", 0)
        if type(found) is not int or not 0 <= found < n_blocks:
            raise self.error("nextn_predict_layers", f"a whole number below {n_blocks}, the block count")
        return found

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(self.integer("block_count")) - self.n_mtp_blocks

    @property
    def d_head(self) -> int:
        """Head size."""
        if self.raw("attention.key_length") is None:
            n_head, width = self.integer("attention.head_count"), self.integer("embedding_length")
            if width % n_head:
                raise self.error("embedding_length", f"a multiple of the number of heads, {n_head}")
            return int(width // n_head)
        size: int = self.integer("attention.key_length")
        if self.get("attention.value_length", size) != size:
            raise self.unsupported("attention.value_length", f"{size}, the size of keys")
        return size


# ------------------------------------------------------------------------------------------ unread keys

# Keys that follow from tensor shapes, describe how a file was made, or matter only for embedding models.
HARMLESS: Final = frozenset(
    {
        "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon",
        "block_count", "classifier.output_labels", "context_length", "expert_feed_forward_length",
        "expert_shared_feed_forward_length", "pooling_type", "rope.scaling.finetuned",
        "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "tensor_data_layout", "vocab_size",
    }
)  # fmt: skip


def _one_of(*values: Any) -> Callable[[Metadata, Any], bool]:
    return lambda m, value: value in values


# Neutral values of keys that change the computation, where the architecture does not read them.
_VALUES: Final[Mapping[tuple[Any, ...], tuple[str, ...]]] = {
    (0,): (
        "attention.clamp_kqv", "attention.kv_lora_rank", "attention.max_alibi_bias", "attention.q_lora_rank",
        "attention.relative_buckets_count", "attention.shared_kv_layers", "attention.temperature_length",
        "attention.temperature_scale", "attn_logit_softcapping", "expert_count", "expert_used_count",
        "final_logit_softcapping", "leading_dense_block_count", "rope.scaling.alpha",
        "rope.scaling.yarn_log_multiplier", "router_logit_softcapping",
    ),
    (0, 1): (
        "attention.output_scale", "embedding_scale", "expert_group_count", "expert_group_used_count",
        "expert_shared_count", "expert_weights_scale", "interleave_moe_layer_step", "logit_scale",
        "moe_every_n_layers", "residual_scale", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
    ),
    (True,): ("attention.causal", "expert_weights_norm"),
}  # fmt: skip
# Values of "expert_gating_func" where they are not 0 or 1, softmax over all logits. Softmax over the chosen
# ones, 3, equals it after renormalization.
_GATING: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("llama", "gpt-oss"), (0, 1, 3)),
    **dict.fromkeys(
        ("glm4moe", "dots1", "minimax-m2", "exaone-moe", "afmoe", "lfm2moe", "nemotron_h_moe"), (0, 2)
    ),  # sigmoid
}
# The same as predicates.
_COMPUTED: Final[Mapping[str, Callable[[Metadata, Any], bool]]] = {
    **{key: _one_of(*values) for values, keys in _VALUES.items() for key in keys},
    "attention.key_length_swa": lambda m, value: value == m.get("attention.key_length"),
    "attention.scale": lambda m, value: value == 0 or math.isclose(value, m.d_head**-0.5, rel_tol=1e-6),
    "attention.sliding_window": lambda m, value: value == 0 or value >= m.integer("context_length"),
    "attention.value_length_swa": lambda m, value: value == m.get("attention.key_length"),
    "expert_gating_func": lambda m, value: value in _GATING.get(m.name, (0, 1)),
    "rope.dimension_count_swa": lambda m, value: value == m.get("rope.dimension_count"),
    "rope.freq_base_swa": lambda m, value: value == m.get("rope.freq_base", 10_000.0),
    "rope.scaling.yarn_ext_factor": lambda m, value: value < 0 or value == 1,
}


# Sizes that some readers imply and files state anyway.
_SIZES: Final = {
    "attention.head_count": "n_head",
    "attention.head_count_kv": "n_kv_head",
    "attention.key_length": "d_head",
    "attention.value_length": "d_head",
}


def check_keys(metadata: Metadata, config: Config) -> None:
    """Refuse keys that change the computation but are not part of the configuration."""
    for name, field in _SIZES.items():
        value = metadata.get(name)
        attends = any("attention" in mixer for mixer in config.get("mixers") or ["attention"])
        if value is not None and value != config[field] and (attends or value != 0):
            raise metadata.unsupported(name, f"{config[field]}, implied by {metadata.name!r}")
    parallel = metadata.get("use_parallel_residual")
    if parallel is not None and bool(parallel) != (config.get("parallel", "no") != "no"):
        raise metadata.unsupported("use_parallel_residual", f"{not parallel}, according to the tensors")
    for key in metadata.unread(HARMLESS):
        name = key.removeprefix(f"{metadata.name}.")
        if name in _COMPUTED:
            value = metadata.get(name)
            if not isinstance(value, int | float) or not _COMPUTED[name](metadata, value):
                raise metadata.unsupported(name, f"no such field, as {metadata.name!r} is read without it")
    pattern = "attention.sliding_window_pattern"
    if not metadata.get("attention.sliding_window"):
        metadata.skip(pattern)  # no window
    elif f"{metadata.name}.{pattern}" in metadata.unread():
        raise metadata.unsupported(pattern, "no such field: all layers have the window")
