"""The forward pass: logits after every token of a sequence, or every node of a tree."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specdec.reference.formats import product, round_bf16

Array = NDArray[Any]


def logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    *,
    dtype: DTypeLike = np.float64,
    format: str = "exact",
    cache_format: str = "exact",
) -> Array:
    """Logits after every token of a sequence.

    Parameters
    ----------
    config : mapping
        The canonical configuration (``specdec.Model.config``).
    tensors : mapping of str to ndarray
        Canonical name to weights; matrices are [n_out, n_in].
    ids : sequence of int, [n_tokens]
    dtype : numpy dtype
        Everything is computed in it; float64 for an oracle.
    format : {"exact", "f32", "bf16", "int8", "int4"}
        Number format of the matrices, whose products are then those of `product`; "exact": in `dtype`.
        Embeddings, which are read by row, are rounded to bf16 in the last three.
    cache_format : {"exact", "f32", "bf16"}
        Queries, keys and values are rounded to bf16 in the last.

    Returns
    -------
    ndarray, [n_tokens, n_vocab]
    """
    return _forward(config, tensors, ids, _chain(len(ids)), dtype, format, cache_format)


def tree_logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    prefix: Sequence[int],
    tokens: Sequence[int],
    parents: Sequence[int],
    *,
    skip_attn: Collection[int] = (),
    skip_mlp: Collection[int] = (),
    dtype: DTypeLike = np.float64,
    format: str = "exact",
    cache_format: str = "exact",
) -> Array:
    """Logits after every node of a tree that hangs on `prefix`.

    A node attends to the prefix, to its ancestors and to itself; its position is ``len(prefix)`` plus its
    depth.

    Parameters
    ----------
    prefix : sequence of int
        The committed tokens; may be empty.
    tokens, parents : sequence of int, [n_nodes]
        A parent is an earlier node; -1, the parent of node 0, is the end of the prefix.
    skip_attn, skip_mlp : collection of int
        Layers whose attention or MLP the nodes pass by: the hidden state stays what it is. The prefix goes
        through all of them, and the nodes attend to its keys and values.
    dtype, format, cache_format
        As in `logits`.

    Returns
    -------
    ndarray, [n_nodes, n_vocab]
    """
    n_prefix = len(prefix)
    hung = _chain(n_prefix) + [n_prefix + parent for parent in parents]
    forward = _forward(
        config, tensors, [*prefix, *tokens], hung, dtype, format, cache_format, n_prefix, skip_attn, skip_mlp
    )
    return forward[n_prefix:]


def _chain(n_rows: int) -> list[int]:
    return list(range(-1, n_rows - 1))


def _forward(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    parents: Sequence[int],
    dtype: DTypeLike,
    format: str,
    cache_format: str,
    n_whole: int = 0,
    skip_attn: Collection[int] = (),
    skip_mlp: Collection[int] = (),
) -> Array:
    """The one forward: a sequence is a tree whose every node has one child.

    The rows from `n_whole` on pass the attention of the layers `skip_attn` by, and the MLP of `skip_mlp`.
    """
    n_rows, n_head, n_kv_head = len(ids), config["n_head"], config["n_kv_head"]

    # visible[i, j]: row i attends to row j, which is an ancestor of it or itself.
    visible, position = np.eye(n_rows, dtype=bool), np.zeros(n_rows, dtype=int)
    for row, parent in enumerate(parents):
        if parent >= 0:
            visible[row] |= visible[parent]
            position[row] = position[parent] + 1
    if config["sliding_window"]:
        visible &= position[:, None] - position < config["sliding_window"]

    def tensor(name: str) -> Array:
        return tensors[name].astype(dtype)

    def times(x: Array, name: str) -> Array:
        return x @ tensor(name).T if format == "exact" else product(x, tensors[name], format).astype(dtype)

    def linear(x: Array, name: str) -> Array:
        y = times(x, f"{name}.weight")
        return y + tensor(f"{name}.bias") if f"{name}.bias" in tensors else y

    def norm(x: Array, name: str) -> Array:
        """RMSNorm; LayerNorm is that of the centred row, and a bias."""
        if config["norm"] == "layer":
            x = x - np.mean(x, axis=-1, keepdims=True)
        scale: Array = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config["norm_eps"])
        y = x / scale * tensor(f"{name}.weight")
        return y + tensor(f"{name}.bias") if config["norm"] == "layer" else y

    def heads(x: Array) -> Array:
        return x.reshape(n_rows, -1, config["d_head"])

    def rotate(x: Array) -> Array:
        """Turn each pair (x[i], x[i + d_head / 2]) by the angle position * inv_freq[i]."""
        if config["position"] != "rotary":
            return x
        angle = position[:, None, None] * np.asarray(config["inv_freq"], dtype=np.float64)
        cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    activation = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}[config["activation"]]

    x = tensor("token_embedding")[np.asarray(ids, dtype=int)]
    if format in ("bf16", "int8", "int4"):
        x = round_bf16(x).astype(dtype)
    if config["position"] == "learned":
        x = x + tensor("position_embedding")[position]
    for i in range(config["n_layer"]):
        h = norm(x, f"layers.{i}.attn_norm")
        q = rotate(heads(linear(h, f"layers.{i}.attn_q")))
        k = rotate(heads(linear(h, f"layers.{i}.attn_k")))
        v = heads(linear(h, f"layers.{i}.attn_v"))
        if cache_format == "bf16":
            q, k, v = (round_bf16(part).astype(dtype) for part in (q, k, v))
        k, v = (np.repeat(kv, n_head // n_kv_head, axis=1) for kv in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(config["d_head"])
        weights = _softmax(np.where(visible, scores, -np.inf))
        mixed = np.einsum("hij,jhd->ihd", weights, v).reshape(n_rows, -1)
        passing = np.arange(n_rows)[:, None] >= n_whole
        x = np.where(passing & (i in skip_attn), x, x + linear(mixed, f"layers.{i}.attn_out"))

        h = norm(x, f"layers.{i}.mlp_norm")
        up = linear(h, f"layers.{i}.mlp_up")
        hidden = activation(linear(h, f"layers.{i}.mlp_gate")) * up if config["gated"] else activation(up)
        x = np.where(passing & (i in skip_mlp), x, x + linear(hidden, f"layers.{i}.mlp_down"))
    return times(norm(x, "output_norm"), "token_embedding" if config["tied"] else "head")


def _softmax(x: Array) -> Array:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = x.sum(axis=-1, keepdims=True)
    return x / total


def _silu(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(x / 2))


def _gelu(x: Array) -> Array:
    erf: Array = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
    return x * (0.5 + 0.5 * erf)


def _gelu_tanh(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
