"""Keys of a GGUF file's model that its architecture does not read: harmless, refused, or warned of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from specdec.models.families.family import Config
from specdec.models.families.gguf_metadata import Metadata

__all__ = ["check_keys", "warn_of_unread"]

# Keys that the shapes of tensors repeat, that describe how a file was made, or that only embeddings need.
_HARMLESS: Final = frozenset(
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


def _same_as(key: str, default: float | None = None) -> Callable[[Metadata, Any], bool]:
    return lambda m, value: value == m.get(key, default)


def _usual_scale(m: Metadata, value: Any) -> bool:
    return value == 0 or math.isclose(value, m.d_head**-0.5, rel_tol=1e-6)


def _no_window(m: Metadata, value: Any) -> bool:
    return bool(value == 0 or value >= m.integer("context_length"))


def _is_softmax(m: Metadata, value: Any) -> bool:
    """Softmax of all logits, or of the chosen ones, which is the same once weights are made to sum to 1."""
    return value in (0, 1) or (value == 3 and m.name in ("llama", "gpt-oss"))


_OFF = _one_of(0)
_ONE = _one_of(0, 1)
_D_HEAD: Final = "attention.key_length"

# Keys that change the computation, where an architecture does not read them: whether a value changes nothing.
_COMPUTED: Final[Mapping[str, Callable[[Metadata, Any], bool]]] = {
    "attention.causal": _one_of(True),
    "attention.clamp_kqv": _OFF,
    "attention.key_length_swa": _same_as(_D_HEAD),
    "attention.kv_lora_rank": _OFF,
    "attention.max_alibi_bias": _OFF,
    "attention.output_scale": _ONE,
    "attention.q_lora_rank": _OFF,
    "attention.relative_buckets_count": _OFF,
    "attention.scale": _usual_scale,
    "attention.shared_kv_layers": _OFF,
    "attention.sliding_window": _no_window,
    "attention.temperature_length": _OFF,
    "attention.temperature_scale": _OFF,
    "attention.value_length_swa": _same_as(_D_HEAD),
    "attn_logit_softcapping": _OFF,
    "embedding_scale": _ONE,
    "expert_count": _OFF,
    "expert_gating_func": _is_softmax,
    "expert_group_count": _ONE,
    "expert_group_used_count": _ONE,
    "expert_shared_count": _ONE,
    "expert_used_count": _OFF,
    "expert_weights_norm": _one_of(True),
    "expert_weights_scale": _ONE,
    "final_logit_softcapping": _OFF,
    "interleave_moe_layer_step": _ONE,
    "leading_dense_block_count": _OFF,
    "logit_scale": _ONE,
    "moe_every_n_layers": _ONE,
    "nextn_predict_layers": _OFF,
    "residual_scale": _ONE,
    "rope.dimension_count_swa": _same_as("rope.dimension_count"),
    "rope.freq_base_swa": _same_as("rope.freq_base", 10_000.0),
    "rope.scaling.alpha": _OFF,
    "rope.scaling.attn_factor": _ONE,
    "rope.scaling.yarn_attn_factor": _ONE,
    "rope.scaling.yarn_ext_factor": lambda m, value: value < 0 or value == 1,
    "rope.scaling.yarn_log_multiplier": _OFF,
    "router_logit_softcapping": _OFF,
}


# Sizes that some readers of configurations imply, and files give nevertheless.
_SIZES: Final = {
    "attention.head_count": "n_head",
    "attention.head_count_kv": "n_kv_head",
    "attention.key_length": "d_head",
    "attention.value_length": "d_head",
}


def check_keys(metadata: Metadata, config: Config) -> None:
    """Refuse keys that change the computation and that the architecture does not read.

    ``config`` is the canonical configuration that was read.

    Raises
    ------
    UnsupportedModelError
        There is one whose value is not neutral, or a size that the architecture takes from elsewhere.
    """
    for name, field in _SIZES.items():
        value = metadata.get(name)
        if value is not None and value != config[field]:
            raise metadata.unsupported(name, f"{config[field]}, as {metadata.name!r} implies")
    parallel = metadata.get("use_parallel_residual")
    if parallel is not None and bool(parallel) != (config.get("parallel", "no") != "no"):
        raise metadata.unsupported("use_parallel_residual", f"{not parallel}, as the tensors show")
    for key in metadata.unread(_HARMLESS):
        name = key.removeprefix(f"{metadata.name}.")
        if name in _COMPUTED:
            value = metadata.get(name)
            if not isinstance(value, int | float) or not _COMPUTED[name](metadata, value):
                raise metadata.unsupported(name, f"nothing, as {metadata.name!r} is read without it")
    pattern = "attention.sliding_window_pattern"
    if not metadata.get("attention.sliding_window"):
        metadata.skip(pattern)  # of no window
    elif f"{metadata.name}.{pattern}" in metadata.unread():
        raise metadata.unsupported(pattern, "nothing: all layers have the window")


def warn_of_unread(metadata: Metadata) -> None:
    """Warn of unknown keys."""
    metadata.warn_of_unread(_HARMLESS)
