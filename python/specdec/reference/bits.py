"""The forward pass to the bit: every operation in the order of the core, rounded where it says so.

For decoders of the Llama layout: RMSNorm before each half of a layer, rotary positions, gated SiLU, dense or
with experts, each matrix in a number format or a type of GGUF files. `specdec.reference.logits` specifies
what all others compute, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.reference.blocks import BLOCK_TYPES
from specdec.reference.formats import fma, product, round_bf16, stored

Array = NDArray[Any]

LANES = 16
"""Partial sums along a row: element i is added to lane i % 16."""

_F = np.float32


def exact_logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    *,
    formats: str | Mapping[str, str] = "f32",
    cache_format: str = "f32",
    low_rank: Mapping[str, tuple[Array, Array]] | None = None,
) -> Array:
    """Logits after every token of a sequence, with the bits of the core.

    Parameters
    ----------
    config : mapping
        The canonical configuration.
    tensors : mapping of str to ndarray
        Canonical name to weights; of types of blocks uint8 [n_out, bytes of a row].
    ids : sequence of int, [n_tokens]
    formats : str, or mapping of str to str
        Number format of all matrices, or of each, and of the table of tokens: "f32", "bf16", "int8", "int4",
        or a type of blocks.
    cache_format : {"f32", "bf16"}
    low_rank : mapping of str to (ndarray, ndarray), optional
        Of an adapter beside the matrices (arXiv 2106.09685): canonical name to `down` [rank, n_in] and `up`
        [n_out, rank], float32, the scale in the latter. To the product with the matrix, in its format, comes
        up · (down · x): two products in f32 of the row as it is before any rounding.

    Returns
    -------
    ndarray of float32, [n_tokens, n_vocab]

    Raises
    ------
    ValueError
        A configuration of another layout.
    """
    _check(config)
    n, eps = len(ids), _F(config["norm_eps"])
    d_head, group = config["d_head"], config["n_head"] // config["n_kv_head"]
    scale = _F(1) / np.sqrt(_F(d_head))

    def format_of(name: str) -> str:
        return formats if isinstance(formats, str) else formats[name]

    def times(x: Array, name: str) -> Array:
        y = product(x, tensors[name], format_of(name))
        if low_rank is None or name not in low_rank:
            return y
        down, up = low_rank[name]
        return y + product(product(x, down, "f32"), up, "f32")

    def norm(x: Array, name: str) -> Array:
        factor = _F(1) / np.sqrt(lane_sum(x, squared=True) / _F(x.shape[-1]) + eps)
        return x * factor[:, None] * tensors[f"{name}.weight"].astype(_F)

    angles = [[position * frequency for frequency in config["inv_freq"]] for position in range(n)]
    cosine = np.array([[math.cos(angle) for angle in row] for row in angles]).astype(_F)
    sine = np.array([[math.sin(angle) for angle in row] for row in angles]).astype(_F)

    def rotate(x: Array) -> Array:
        """Pairs (x[i], x[i + n]) of heads [n_rows, d_head]; each product and each sum is rounded."""
        k = cosine.shape[1]
        a, b, rest = x[:, :k], x[:, k : 2 * k], x[:, 2 * k :]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], axis=1)

    def attention(h: Array, layer: str) -> Array:
        q, k, v = (times(h, f"{layer}.attn_{part}.weight") for part in "qkv")
        out = np.zeros_like(q)
        for head in range(config["n_head"]):
            own = slice(head * d_head, (head + 1) * d_head)
            shared = slice(head // group * d_head, (head // group + 1) * d_head)
            queries, keys, values = rotate(q[:, own]), rotate(k[:, shared]), v[:, shared]
            if cache_format == "bf16":
                values = round_bf16(values)
            scores = product(queries, keys, cache_format)
            for row in range(n):
                window = config["sliding_window"]
                first = max(0, row - window + 1) if window else 0
                some = scores[row, first : row + 1]
                weights = exp((some - some.max()) * scale)
                lanes = np.zeros(LANES, _F)
                total = np.zeros(d_head, _F)
                for position, weight in enumerate(weights, first):
                    lanes[position % LANES] += weight
                    total = fma(weight, values[position], total)
                out[row, own] = total * (_F(1) / tree_sum(lanes[None])[0])
        return times(out, f"{layer}.attn_out.weight")

    def block(h: Array, ours: str) -> Array:
        gate, up = times(h, f"{ours}.mlp_gate.weight"), times(h, f"{ours}.mlp_up.weight")
        return times(gate * sigmoid(gate) * up, f"{ours}.mlp_down.weight")

    def mixture(h: Array, ours: str) -> Array:
        """Experts ascend; each product with a weight and each sum is rounded."""
        logits = product(h, tensors[f"{ours}.router.weight"], "f32")
        update = np.zeros_like(h)
        for row in range(n):
            chosen, weights = route(config, logits[row])
            for expert, weight in zip(chosen, weights, strict=True):
                update[row] += block(h[row : row + 1], f"{ours}.experts.{expert}")[0] * weight
        return update

    table = tensors["token_embedding"][np.asarray(ids, int)]
    kind = format_of("token_embedding")
    if kind in BLOCK_TYPES:
        x = stored(table, kind)
    else:
        x = table.astype(_F) if kind == "f32" else round_bf16(table)
    for i in range(config["n_layer"]):
        ours = f"layers.{i}"
        x = x + attention(norm(x, f"{ours}.attn_norm"), ours)
        h = norm(x, f"{ours}.mlp_norm")
        x = x + (mixture(h, ours) if config.get("n_experts") else block(h, ours))
    return times(norm(x, "output_norm"), "token_embedding" if config["tied"] else "head")


def route(config: Mapping[str, Any], logits: Array) -> tuple[list[int], Array]:
    """The experts of a row, ascending, and their weights; logits [n_experts]."""
    chosen = sorted(np.argsort(-logits, kind="stable")[: config["n_experts_per_token"]].tolist())
    router = config.get("router", "softmax")
    if router == "softmax":
        weights = _softmax(logits)[chosen]
    elif router == "softmax_chosen":
        weights = _softmax(logits[chosen])
    else:
        weights = sigmoid(logits[chosen])
    if config.get("router_renormalise", False):
        total = _F(0)
        for weight in weights:
            total += weight
        weights = weights / total
    return chosen, weights * _F(config.get("routed_scale", 1.0))


def lane_sum(x: Array, *, squared: bool = False) -> Array:
    """Sums of rows [n_rows, n], or of their squares, each by one fused multiply-add."""
    lanes = np.zeros((len(x), LANES), _F)
    for first in range(0, x.shape[1], LANES):
        some = x[:, first : first + LANES]
        here = lanes[:, : some.shape[1]]
        lanes[:, : some.shape[1]] = fma(some, some, here) if squared else here + some
    return tree_sum(lanes)


def tree_sum(lanes: Array) -> Array:
    """Lanes [n_rows, 16] added as a tree of halves."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    sums: Array = lanes[:, 0]
    return sums


def exp(x: ArrayLike) -> Array:
    """exp of float32: x = n ln 2 + r, a polynomial in r (after Cephes), times 2^n; 0 below -87.3."""
    x = np.asarray(x, _F)
    lowest = _F(-87.3)
    clamped = np.minimum(np.maximum(x, lowest), _F(88))
    n = np.rint(clamped * _F(1.44269504))
    r = fma(n, _F(-0.693359375), clamped)
    r = fma(n, _F(2.12194440e-4), r)
    p = np.full_like(r, 1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, _F(coefficient))
    p = fma(p, r * r, r + _F(1))
    return np.where(x >= lowest, np.ldexp(p, n.astype(int)), _F(0)).astype(_F)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    result: Array = _F(1) / (_F(1) + exp(_F(0) - x))
    return result


def _softmax(x: Array) -> Array:
    weights = exp(x - x.max())
    result: Array = weights / lane_sum(weights[None])
    return result


_LAYOUT = {"norm": "rms", "position": "rotary", "activation": "silu", "gated": True}
_WITHOUT = (
    "qkv_bias", "out_bias", "mlp_bias", "head_bias", "v_norm", "embedding_norm", "attn_sinks", "qkv_limit",
    "attn_softcap", "logit_softcap", "query_growth", "alibi", "relative_buckets", "windows", "rotations",
    "score_scales", "rotary_factors", "d_shared_expert", "router_bias", "mixtures", "n_heads", "n_kv_heads",
    "d_heads", "encoder",
)  # fmt: skip
_PLAIN = {
    "norm_place": "before", "qk_norm": "none", "parallel": "no", "output_norm": True, "norm_weight": True,
    "embedding_scale": 1.0, "residual_scale": 1.0, "logit_scale": 1.0,
}  # fmt: skip


def _check(config: Mapping[str, Any]) -> None:
    wanted = _LAYOUT | {name: value for name, value in _PLAIN.items() if name in config}
    other = [name for name, value in wanted.items() if config[name] != value]
    other += [name for name in _WITHOUT if config.get(name)]
    if other:
        raise ValueError(f"{other[0]} is {config[other[0]]!r}, expected the layout of Llama")
