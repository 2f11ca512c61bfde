"""The whole forward pass of Llama, to read in one sitting; `logits` has every other architecture.

Shapes: T tokens, D = d_model, H query heads and K key/value heads of size S, F = d_ff, V = n_vocab. Matrices
are [n_out, n_in].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def llama_logits(config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], ids: Sequence[int]) -> Array:
    """Return the logits after every token of a sequence, float64 [n_tokens, n_vocab].

    Parameters
    ----------
    config : mapping
        ``specdec.Model.config`` of a model with Llama's layout.
    tensors : mapping of str to ndarray
        Canonical name to weights.
    ids : sequence of int, [n_tokens]
    """
    w: dict[str, Array] = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
    eps = config["norm_eps"]
    x: Array = w["token_embedding"][np.asarray(ids)]  # the residual stream, [T, D]
    for i in range(config["n_layer"]):
        layer = f"layers.{i}"
        x = x + attention(rms_norm(x, w[f"{layer}.attn_norm.weight"], eps), w, layer, config)
        x = x + mlp(rms_norm(x, w[f"{layer}.mlp_norm.weight"], eps), w, layer)
    x = rms_norm(x, w["output_norm.weight"], eps)
    head = w["token_embedding"] if config["tied"] else w["head"]  # [V, D]
    return x @ head.T


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Divide each row by its root mean square, and scale each column by a weight; x [T, D]."""
    scale: Array = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)
    return x / scale * weight


def attention(x: Array, w: Mapping[str, Array], layer: str, config: Mapping[str, Any]) -> Array:
    """Causal attention; each key/value head serves H / K consecutive query heads. x [T, D]."""
    n_tokens, size = len(x), config["d_head"]
    q = rotate((x @ w[f"{layer}.attn_q.weight"].T).reshape(n_tokens, -1, size), config)  # [T, H, S]
    k = rotate((x @ w[f"{layer}.attn_k.weight"].T).reshape(n_tokens, -1, size), config)  # [T, K, S]
    v = (x @ w[f"{layer}.attn_v.weight"].T).reshape(n_tokens, -1, size)  # [T, K, S]
    group = config["n_head"] // config["n_kv_head"]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)  # [T, H, S]
    scores = np.einsum("ihs,jhs->hij", q, k) / np.sqrt(size)  # [H, T, T]
    future = np.triu(np.ones((n_tokens, n_tokens), bool), k=1)
    weights = softmax(np.where(future, -np.inf, scores))
    mixed = np.einsum("hij,jhs->ihs", weights, v).reshape(n_tokens, -1)  # [T, H * S]
    y: Array = mixed @ w[f"{layer}.attn_out.weight"].T
    return y


def rotate(x: Array, config: Mapping[str, Any]) -> Array:
    """Rotate pairs (x[i], x[i + S / 2]) of heads by the angles position * inv_freq[i]; x [T, heads, S]."""
    angle = np.arange(len(x))[:, None, None] * np.asarray(config["inv_freq"])  # [T, 1, S / 2]
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def mlp(x: Array, w: Mapping[str, Array], layer: str) -> Array:
    """SwiGLU: silu(gate) * up, projected back; x [T, D], intermediate [T, F]."""
    gate, up = x @ w[f"{layer}.mlp_gate.weight"].T, x @ w[f"{layer}.mlp_up.weight"].T
    y: Array = (gate / (1 + np.exp(-gate)) * up) @ w[f"{layer}.mlp_down.weight"].T
    return y


def softmax(x: Array) -> Array:
    """Softmax along the last axis."""
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = x.sum(axis=-1, keepdims=True)
    return x / total
