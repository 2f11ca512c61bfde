"""What a draft takes in memory beside its target."""

from __future__ import annotations

from typing import Final

from specdec import _core
from specdec.drafts import Draft, Eagle, Ensemble, ModelDraft, Online, SuffixMemory
from specdec.models.model_config import ModelConfig

__all__ = ["cache_bytes_of", "weight_bytes_of"]


def weight_bytes_of(draft: Draft) -> int:
    """Bytes of the packed weights of models and heads that draft, and of what a memory remembers.

    0 for drafts that have none, as those that work with the target's own layers. Tables of n-grams and
    documents are not counted.
    """
    if isinstance(draft, Ensemble):
        return sum(map(weight_bytes_of, draft.drafts))
    if isinstance(draft, ModelDraft):
        return draft.model.n_bytes + (0 if draft.draft is None else weight_bytes_of(draft.draft))
    if isinstance(draft, Online):
        return weight_bytes_of(draft.draft)
    if isinstance(draft, SuffixMemory):
        return draft.n_bytes
    core = getattr(draft, "core", None)
    if isinstance(core, _core.Eagle):
        return core.model.n_bytes
    return core.n_bytes if isinstance(core, _core.Heads | _core.Recurrent) else 0


def cache_bytes_of(draft: Draft) -> int:
    """Bytes of keys and values that the draft's own models keep for each token of a text.

    Layers with a window keep no more than that. 0 for drafts without a cache of their own.
    """
    if isinstance(draft, Ensemble):
        return sum(map(cache_bytes_of, draft.drafts))
    if isinstance(draft, ModelDraft):
        own = _token_bytes(draft.model.config, draft.model.cache_dtype)
        return own + (0 if draft.draft is None else cache_bytes_of(draft.draft))
    if isinstance(draft, Online):
        return cache_bytes_of(draft.draft)
    if isinstance(draft, Eagle):
        model = draft.core.model
        return _token_bytes(ModelConfig.from_canonical(model.config), model.cache_dtype)
    return 0


_PANEL: Final = 32  # columns of values that lie together (csrc/model/cache/cache.h)


def _token_bytes(config: ModelConfig, cache_dtype: str) -> int:
    n_kv_heads = config.n_kv_heads or (config.n_kv_head,) * config.n_layer
    d_heads = config.d_heads or (config.d_head,) * config.n_layer
    numbers = sum(
        heads * (width + -(-width // _PANEL) * _PANEL)
        for heads, width in zip(n_kv_heads, d_heads, strict=True)
    )
    return numbers * (4 if cache_dtype == "f32" else 2)
