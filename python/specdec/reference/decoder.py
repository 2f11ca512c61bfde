"""The forward pass: logits after every token of a sequence, or every node of a tree; an encoder's output."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specdec.reference.blocks import BLOCK_TYPES
from specdec.reference.formats import product, round_bf16, stored

Array = NDArray[Any]
Formats = str | Mapping[str, str]


def encode(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    source: Sequence[int],
    *,
    dtype: DTypeLike = np.float64,
    format: Formats = "exact",
    cache_format: str = "exact",
) -> Array:
    """What the encoder of an encoder-decoder makes of a source: what its decoder attends to.

    Parameters
    ----------
    config : mapping
        The canonical configuration of the whole, with that of the encoder as ``config["encoder"]``.
    tensors : mapping of str to ndarray
        Of the whole; those of the encoder begin with "encoder.".
    source : sequence of int, [n_source]
    dtype, format, cache_format
        As in `logits`.

    Returns
    -------
    ndarray, [n_source, d_model]
        Behind the encoder's last norm, where it has one.
    """
    encoder = config["encoder"]
    own = {name.removeprefix("encoder."): x for name, x in tensors.items() if name.startswith("encoder.")}
    if encoder.get("shared_embedding", False):
        own["token_embedding"] = tensors["token_embedding"]
    if not isinstance(format, str):
        named = {**format, "encoder.token_embedding": format["token_embedding"], **format}
        format = {name[8:]: form for name, form in named.items() if name.startswith("encoder.")}
    parents = _chain(len(source))
    return _forward(encoder, own, source, parents, dtype, format, cache_format, bidirectional=True)


def logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    dtype: DTypeLike = np.float64,
    format: Formats = "exact",
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
    source : sequence of int, [n_source], optional
        What the encoder of an encoder-decoder reads.
    dtype : numpy dtype
        Everything is computed in it; float64 for an oracle.
    format : {"exact", "f32", "bf16", "int8", "int4"}, or mapping of str to str
        Number format of the matrices, whose products are then those of `product`; "exact": in `dtype`.
        Embeddings, which are read by row, are rounded to bf16 in the last three. Or the format of each
        matrix, and of the table of embeddings, by canonical name, types of blocks (such as "q4_k") among
        them: their tensors are uint8 [n_out, bytes of a row].
    cache_format : {"exact", "f32", "bf16"}
        Queries, keys and values are rounded to bf16 in the last.

    Returns
    -------
    ndarray, [n_tokens, n_vocab]
    """
    encoded = (
        None
        if source is None
        else encode(config, tensors, source, dtype=dtype, format=format, cache_format=cache_format)
    )
    return _forward(config, tensors, ids, _chain(len(ids)), dtype, format, cache_format, encoded)


def tree_logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    prefix: Sequence[int],
    tokens: Sequence[int],
    parents: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    skip_attn: Collection[int] = (),
    skip_mlp: Collection[int] = (),
    dtype: DTypeLike = np.float64,
    format: Formats = "exact",
    cache_format: str = "exact",
) -> Array:
    """Logits after every node of a tree that follows `prefix`.

    A node attends to the prefix, to its ancestors and to itself; its position is ``len(prefix)`` plus its
    depth.

    Parameters
    ----------
    prefix : sequence of int
        The committed tokens; may be empty.
    tokens, parents : sequence of int, [n_nodes]
        A parent is an earlier node; -1, the parent of node 0, is the end of the prefix.
    source
        As in `logits`.
    skip_attn, skip_mlp : collection of int
        Layers whose attention, to the source too, or MLP the nodes pass by: the hidden state stays what it
        is. The prefix goes through all of them, and the nodes attend to its keys and values.
    dtype, format, cache_format
        As in `logits`.

    Returns
    -------
    ndarray, [n_nodes, n_vocab]
    """
    n_prefix = len(prefix)
    hung = _chain(n_prefix) + [n_prefix + parent for parent in parents]
    encoded = (
        None
        if source is None
        else encode(config, tensors, source, dtype=dtype, format=format, cache_format=cache_format)
    )
    ids = [*prefix, *tokens]
    skipped = n_prefix, skip_attn, skip_mlp
    return _forward(config, tensors, ids, hung, dtype, format, cache_format, encoded, *skipped)[n_prefix:]


def _chain(n_rows: int) -> list[int]:
    return list(range(-1, n_rows - 1))


def _forward(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    parents: Sequence[int],
    dtype: DTypeLike,
    format: Formats,
    cache_format: str,
    encoded: Array | None = None,
    n_whole: int = 0,
    skip_attn: Collection[int] = (),
    skip_mlp: Collection[int] = (),
    *,
    bidirectional: bool = False,
) -> Array:
    """The one forward: a sequence is a tree whose every node has one child.

    Rows attend to `encoded` [n_source, d_encoder] too, where the model has an encoder. The rows from
    `n_whole` on pass the attention of the layers `skip_attn` by, and the MLP of `skip_mlp`. An encoder is
    `bidirectional`: each row attends to all rows, and there is no head.
    """
    if not bidirectional and (encoded is None) != (config.get("encoder") is None):
        raise ValueError("a model with an encoder, and no other, has a source")
    n_rows, n_layer = len(ids), config["n_layer"]
    settings: dict[str, Any] = {**_DEFAULTS, **config}

    # visible[i, j]: row i attends to row j, which is an ancestor of it or itself.
    visible, position = np.eye(n_rows, dtype=bool), np.zeros(n_rows, dtype=int)
    for row, parent in enumerate(parents):
        if parent >= 0:
            visible[row] |= visible[parent]
            position[row] = position[parent] + 1
    visible |= bidirectional
    distance = position[:, None] - position

    bucket = np.zeros_like(distance)
    if settings["relative_buckets"]:
        nearness = np.abs(distance) if bidirectional else np.maximum(distance, 0)
        bucket = np.searchsorted(settings["relative_buckets"], nearness, side="right") - 1
        bucket += len(settings["relative_buckets"]) * (bidirectional & (distance < 0))

    # What may differ from layer to layer.
    n_heads = settings["n_heads"] or [config["n_head"]] * n_layer
    n_kv_heads = settings["n_kv_heads"] or [config["n_kv_head"]] * n_layer
    d_heads = settings["d_heads"] or [config["d_head"]] * n_layer
    windows = settings["windows"] or [config["sliding_window"]] * n_layer
    rotations = settings["rotations"] or [0] * n_layer
    mixtures = settings["mixtures"] or [settings["n_experts"] > 0] * n_layer
    score_scales = settings["score_scales"] or [1.0 / math.sqrt(size) for size in d_heads]

    def tensor(name: str) -> Array:
        return tensors[name].astype(dtype)

    def times(x: Array, name: str) -> Array:
        form = format if isinstance(format, str) else format[name]
        return x @ tensor(name).T if form == "exact" else product(x, tensors[name], form).astype(dtype)

    def linear(x: Array, name: str) -> Array:
        y = times(x, f"{name}.weight")
        return y + tensor(f"{name}.bias") if f"{name}.bias" in tensors else y

    def norm(x: Array, name: str, shape: tuple[int, ...] = (-1,)) -> Array:
        """RMSNorm; LayerNorm is that of the centred row, and a bias."""
        if config["norm"] == "layer":
            x = x - np.mean(x, axis=-1, keepdims=True)
        scale: Array = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config["norm_eps"])
        y = x / scale
        if f"{name}.weight" in tensors:
            y = y * tensor(f"{name}.weight").reshape(shape)
        return y + tensor(f"{name}.bias") if f"{name}.bias" in tensors else y

    def heads(x: Array, i: int) -> Array:
        if settings["qkv_limit"]:
            x = np.clip(x, -settings["qkv_limit"], settings["qkv_limit"])
        return x.reshape(len(x), -1, d_heads[i])

    def normed_heads(x: Array, name: str) -> Array:
        """Queries or keys, normalised head by head."""
        kind, size = settings["qk_norm"], x.shape[-1]
        if kind in ("none", "whole"):
            return x
        return norm(x, name, (1, size) if kind == "head" else (-1, size))

    def rotate(x: Array, rotation: int) -> Array:
        """Turn each pair (x[i], x[i + n]) of n frequencies by the angle position * inv_freq[i]."""
        if config["position"] != "rotary" or rotation < 0:
            return x
        inv_freq = [config["inv_freq"], *settings["more_inv_freq"]][rotation]
        factor = settings["rotary_factors"][rotation] if settings["rotary_factors"] else 1.0
        angle = position[:, None, None] * np.asarray(inv_freq, dtype=np.float64)
        cos, sin = (factor * np.cos(angle)).astype(dtype), (factor * np.sin(angle)).astype(dtype)
        first, second, rest = np.split(x, [len(inv_freq), 2 * len(inv_freq)], axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def attention(h: Array, i: int) -> Array:
        q, k = linear(h, f"layers.{i}.attn_q"), linear(h, f"layers.{i}.attn_k")
        if settings["qk_norm"] == "whole":
            q, k = norm(q, f"layers.{i}.attn_q_norm"), norm(k, f"layers.{i}.attn_k_norm")
        q, k = heads(q, i), heads(k, i)
        v = heads(linear(h, f"layers.{i}.attn_v"), i)
        q = rotate(normed_heads(q, f"layers.{i}.attn_q_norm"), rotations[i])
        k = rotate(normed_heads(k, f"layers.{i}.attn_k_norm"), rotations[i])
        if settings["v_norm"]:
            v = v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + config["norm_eps"])
        if settings["query_growth"]:
            growth = 1.0 + settings["query_growth"] * np.log1p(position // settings["query_span"])
            q = q * growth[:, None, None].astype(dtype)
        if cache_format == "bf16":
            q, k, v = (round_bf16(part).astype(dtype) for part in (q, k, v))
        k, v = (np.repeat(kv, n_heads[i] // n_kv_heads[i], axis=1) for kv in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * score_scales[i]
        scores = _softcap(scores, settings["attn_softcap"])
        if settings["alibi"]:
            scores = scores - np.asarray(settings["alibi"], dtype)[:, None, None] * distance
        if settings["relative_buckets"]:
            name = f"layers.{i}.relative_bias" if settings["relative_bias_by_layer"] else "relative_bias"
            scores = scores + tensor(name)[bucket].transpose(2, 0, 1)
        seen = visible & (distance < windows[i]) if windows[i] else visible
        sinks = np.full(n_heads[i], -np.inf, dtype)
        if settings["attn_sinks"]:
            sinks = tensor(f"layers.{i}.attn_sinks")
        weights = _softmax(np.where(seen, scores, -np.inf), sinks)
        return linear(np.einsum("hij,jhd->ihd", weights, v).reshape(n_rows, -1), f"layers.{i}.attn_out")

    def cross_attention(h: Array, encoded: Array, i: int) -> Array:
        """To all rows of the source; their distance from a row of the text has no meaning."""
        q = linear(h, f"layers.{i}.cross_q").reshape(n_rows, -1, d_heads[i])
        k, v = (
            linear(encoded, f"layers.{i}.cross_{part}").reshape(len(encoded), -1, d_heads[i]) for part in "kv"
        )
        if cache_format == "bf16":
            q, k, v = (round_bf16(part).astype(dtype) for part in (q, k, v))
        k, v = (np.repeat(kv, n_heads[i] // n_kv_heads[i], axis=1) for kv in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * score_scales[i]
        weights = _softmax(scores, np.full(n_heads[i], -np.inf, dtype))
        return linear(np.einsum("hij,jhd->ihd", weights, v).reshape(n_rows, -1), f"layers.{i}.cross_out")

    def block(h: Array, ours: str) -> Array:
        up = linear(h, f"{ours}.mlp_up")
        if config["activation"] == "silu_clamped":
            limit = settings["activation_limit"]
            gate = np.minimum(linear(h, f"{ours}.mlp_gate"), limit)
            hidden = gate * _sigmoid(1.702 * gate) * (np.clip(up, -limit, limit) + 1)
        elif config["gated"]:
            hidden = _ACTIVATIONS[config["activation"]](linear(h, f"{ours}.mlp_gate")) * up
        else:
            hidden = _ACTIVATIONS[config["activation"]](up)
        return linear(hidden, f"{ours}.mlp_down")

    def mixture(h: Array, i: int) -> Array:
        """Each row through the experts of its largest router logits, times their weights.

        The router's matrix is in no number format.
        """
        ours, n_chosen = f"layers.{i}", settings["n_experts_per_token"]
        logits = h @ tensor(f"{ours}.router.weight").T
        if settings["router_bias"]:
            logits = logits + tensor(f"{ours}.router.bias")
        y = np.zeros_like(h)
        for row in range(n_rows):
            chosen = np.argsort(-logits[row], kind="stable")[:n_chosen]  # of equal logits the first
            if settings["router"] == "softmax":
                weights = _softmax1(logits[row])[chosen]
            elif settings["router"] == "softmax_chosen":
                weights = _softmax1(logits[row][chosen])
            else:
                weights = _sigmoid(logits[row][chosen])
            if settings["router_renormalise"]:
                weights = weights / weights.sum()
            for expert, weight in zip(chosen, settings["routed_scale"] * weights, strict=True):
                y[row] += weight * block(h[row : row + 1], f"{ours}.experts.{expert}")[0]
        if settings["d_shared_expert"]:
            shared = block(h, f"{ours}.shared_expert")
            if settings["shared_expert_gate"]:
                shared = shared * _sigmoid(h @ tensor(f"{ours}.shared_gate.weight").T)
            y = y + shared
        return y

    def feed_forward(h: Array, i: int) -> Array:
        return mixture(h, i) if mixtures[i] else block(h, f"layers.{i}")

    place = settings["norm_place"]

    def before(x: Array, name: str) -> Array:
        return norm(x, name) if place in ("before", "both") else x

    def added(x: Array, y: Array, name: str) -> Array:
        """The stream x and what a part of a layer adds to it, y."""
        if place in ("after", "both"):
            y = norm(y, name)
        total: Array = x + settings["residual_scale"] * y
        return norm(total, name) if place == "residual" else total

    rows: Array = tensors["token_embedding"][np.asarray(ids, dtype=int)]
    form = format if isinstance(format, str) else format["token_embedding"]
    if form in BLOCK_TYPES:
        rows = stored(rows, form)
    elif form in ("bf16", "int8", "int4"):
        rows = round_bf16(rows)
    x = rows.astype(dtype)
    x = x * settings["embedding_scale"]
    if config["position"] == "learned":
        x = x + tensor("position_embedding")[position]
    if settings["embedding_norm"]:
        x = norm(x, "embedding_norm")
    passing = np.arange(n_rows)[:, None] >= n_whole
    for i in range(n_layer):
        ours, stream = f"layers.{i}", x
        h = before(stream, f"{ours}.attn_norm")
        attended = added(x, attention(h, i), f"{ours}.attn_post_norm")
        if encoded is not None:
            crossed = cross_attention(before(attended, f"{ours}.cross_norm"), encoded, i)
            attended = added(attended, crossed, f"{ours}.cross_post_norm")
        x = np.where(passing & (i in skip_attn), x, attended)
        if settings["parallel"] == "no":
            stream = x
        if settings["parallel"] != "one_norm":
            h = before(stream, f"{ours}.mlp_norm")
        ended = added(x, feed_forward(h, i), f"{ours}.mlp_post_norm")
        x = np.where(passing & (i in skip_mlp), x, ended)
    if settings["output_norm"]:
        x = norm(x, "output_norm")
    if bidirectional:
        return x
    y = times(x, "token_embedding" if config["tied"] else "head")
    if settings["head_bias"]:
        y = y + tensor("head_bias")
    return _softcap(settings["logit_scale"] * y, settings["logit_softcap"])


_DEFAULTS: Final[Mapping[str, Any]] = {
    "norm_place": "before",
    "qk_norm": "none",
    "v_norm": False,
    "parallel": "no",
    "head_bias": False,
    "embedding_scale": 1.0,
    "embedding_norm": False,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "logit_softcap": 0.0,
    "attn_softcap": 0.0,
    "attn_sinks": False,
    "qkv_limit": 0.0,
    "activation_limit": 0.0,
    "query_growth": 0.0,
    "query_span": 0,
    "alibi": (),
    "relative_buckets": (),
    "relative_bias_by_layer": False,
    "output_norm": True,
    "more_inv_freq": (),
    "rotary_factors": (),
    "n_heads": (),
    "n_kv_heads": (),
    "d_heads": (),
    "windows": (),
    "rotations": (),
    "score_scales": (),
    "n_experts": 0,
    "n_experts_per_token": 0,
    "d_shared_expert": 0,
    "shared_expert_gate": False,
    "router": "softmax",
    "router_bias": False,
    "router_renormalise": False,
    "routed_scale": 1.0,
    "mixtures": (),
}
"""Switches that a plain decoder leaves out."""


def _softmax(x: Array, sinks: Array) -> Array:
    """Along the last axis of x [n_head, n_rows, n_rows]; a head's sink takes part and is left out."""
    largest = np.maximum(x.max(axis=-1, keepdims=True), sinks[:, None, None])
    x = np.exp(x - largest)
    total: Array = x.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - largest)
    return x / total


def _softmax1(x: Array) -> Array:
    x = np.exp(x - x.max())
    total: float = x.sum()
    return x / total


def _softcap(x: Array, cap: float) -> Array:
    return cap * np.tanh(x / cap) if cap else x


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(x / 2)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _relu2(x: Array) -> Array:
    return np.maximum(x, 0) ** 2


def _gelu(x: Array) -> Array:
    erf: Array = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
    return x * (0.5 + 0.5 * erf)


def _gelu_tanh(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
}
