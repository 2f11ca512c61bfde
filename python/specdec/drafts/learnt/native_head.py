"""Native heads for multi-token prediction: MiMo's (``model.mtp_layers.0.*`` in the target's own folder)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.drafts.learnt.published import (
    Entry,
    PublishedDraft,
    block_config,
    entries_of,
    joined_config,
    matched,
)
from specdec.errors import UnsupportedModelError
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints.safetensors_file import open_weights
from specdec.models.model import Model

__all__ = ["open_native_head"]

_NATIVE: Final = {"MiMoForCausalLM": "model.mtp_layers.0."}
"""Families that bring a head for multi-token prediction: architecture, and where its tensors are."""


def open_native_head(target: Model) -> PublishedDraft:
    """The head for multi-token prediction in the target's own folder.

    Raises
    ------
    UnsupportedModelError
        The target's family has none that is read, or several.
    CheckpointError
        The folder is damaged.
    """
    path, prefix = target.path, _NATIVE.get(target.architecture)
    file = path / "config.json"
    if prefix is None:
        raise UnsupportedModelError(
            f"{path} is a {target.architecture}, which has no head for multi-token prediction that is read; "
            f"expected one of {', '.join(_NATIVE)}"
        )
    fields = Fields(read_json_object(file), file)
    n_heads = fields.integer("num_nextn_predict_layers", minimum=0, default=0)
    if n_heads != 1:
        raise fields.unsupported("num_nextn_predict_layers", "1: one head, which reads what it wrote")
    config = block_config(fields.replaced(num_hidden_layers=1), target.architecture)
    config |= joined_config(target) | {"feature_norms": True, "shared_embedding": True}
    held = {
        name.removeprefix(prefix): tensor
        for name, tensor in open_weights(path).items()
        if name.startswith(prefix)
    }
    held = {_in_layer(name): tensor for name, tensor in held.items()}
    table = {
        "token_norm": "token_layernorm",
        "feature_norm": "hidden_layernorm",
        "output_norm": "final_layernorm",
        "feature_projection": "input_proj",
    }
    entries = entries_of(path, config, table, {})
    projection = entries["feature_projection.weight"]
    entries["feature_projection.weight"] = Entry(projection.names, projection.shapes, _swapped)
    layers = (target.config.n_layer + 1,)
    return matched(path, "MTP", config, entries, held, layers, None, normed_feedback=True)


def _in_layer(name: str) -> str:
    """A name of the head's block as one of a layer."""
    own = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
    return name if name.startswith(own) else f"layers.0.{name}"


def _swapped(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Columns for feature and embedding in the order of the core: the embedding's first."""
    half = arrays[0].shape[1] // 2
    return np.concatenate([arrays[0][:, half:], arrays[0][:, :half]], axis=1)
