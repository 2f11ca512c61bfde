"""The forward pass bit for bit: operations in the core's order, rounded where stated.

For decoders with Llama's layout: RMSNorm before each half of a layer, rotary positions, gated SiLU, dense or
with experts, each matrix in a number format or GGUF type. `specdec.reference.logits` specifies all other
models, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.reference.decoder import _Forward
from specdec.reference.formats import BLOCK, fma, product, quantize, round_bf16

Array = NDArray[Any]

LANES = 16
"""Partial sums along a row: element i is added to lane i % 16."""

_F = np.float32


def exact_logits(
    config: Mapping[str, Any], tensors: Mapping[str, Array], ids: Sequence[int], *,
    formats: str | Mapping[str, str] = "f32", cache_format: str = "f32",
    low_rank: Mapping[str, tuple[Array, Array]] | None = None,
) -> Array:  # fmt: skip
    """Return the logits after every token, float32 [n_tokens, n_vocab], with the core's exact bits.

    Parameters
    ----------
    config, tensors, ids
        As in `specdec.reference.logits`, with Llama's layout; else ValueError.
    formats : str, or mapping of str to str
        Number format of all matrices, or of each and of the token embedding: "f32", "bf16", "int8", "int4" or
        a block type.
    cache_format : {"f32", "bf16", "int8"}
    low_rank : mapping of str to (ndarray, ndarray), optional
        LoRA weights (arXiv 2106.09685): canonical name to `down` [rank, n_in] and `up` [n_out, rank],
        float32, the scale in the latter. Adds up · (down · x), two f32 products of the unrounded row, to the
        product with the matrix in its format.
    """
    _check(config)
    return _Exact(config, tensors, len(ids), formats, cache_format, low_rank or {}).logits(ids)


class _Exact(_Forward):
    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Array], n_rows: int,
        formats: str | Mapping[str, str], cache_format: str, low_rank: Mapping[str, tuple[Array, Array]],
    ) -> None:  # fmt: skip
        super().__init__(config, tensors, list(range(-1, n_rows - 1)), (_F, formats, cache_format))
        self.low_rank = low_rank

    def times(self, x: Array, name: str) -> Array:
        y = product(x, self.tensors[name], self.format_of(name))
        if name not in self.low_rank:
            return y
        down, up = self.low_rank[name]
        return y + product(product(x, down, "f32"), up, "f32")

    def norm(self, x: Array, name: str, shape: tuple[int, ...] = (-1,)) -> Array:
        return self.head_norm(x, self.tensor(f"{name}.weight"))

    def turns(self, inv_freq: Sequence[float], factor: float) -> tuple[Array, Array]:
        angles = [[int(position) * frequency for frequency in inv_freq] for position in self.position]
        cosine, sine = ([[turn(angle) for angle in row] for row in angles] for turn in (math.cos, math.sin))
        return np.array(cosine).astype(_F)[:, None], np.array(sine).astype(_F)[:, None]

    def attention(self, h: Array, i: int) -> Array:
        d_head, layer, window = self.d_heads[i], f"layers.{i}", self.windows[i]
        q, k, v = (self.heads(self.times(h, f"{layer}.attn_{part}.weight"), i) for part in "qkv")
        q, k = self.rotate(q, 0), self.rotate(k, 0)
        codes, scales = self.values(v)
        group, scale = self.n_heads[i] // self.n_kv_heads[i], _F(1) / np.sqrt(_F(d_head))
        out, rows = np.zeros_like(q), np.arange(self.n_rows)
        ages = rows[:, None] - rows
        seen = (ages >= 0) & (ages < (window or self.n_rows))
        for head in range(self.n_heads[i]):
            scores = product(q[:, head], k[:, head // group], self.cache_format)
            largest = np.where(seen, scores, -np.inf).max(axis=1, keepdims=True)
            weights = exp(np.minimum(scores - largest, 0) * scale)  # those unseen are not used
            lanes, total = np.zeros((self.n_rows, LANES), _F), np.zeros((self.n_rows, d_head), _F)
            for position in range(self.n_rows):
                now, at = seen[:, position], (position, head // group)
                lanes[now, position % LANES] += weights[now, position]
                total[now] = fma(weights[now, position, None] * scales[at], codes[at], total[now])
            out[:, head] = total * (_F(1) / tree_sum(lanes))[:, None]
        return self.times(self.gated(out.reshape(self.n_rows, -1), h, i), f"{layer}.attn_out.weight")

    def sigmoid(self, x: Array) -> Array:
        return sigmoid(x)

    def values(self, v: Array) -> tuple[Array, Array]:
        """Return cached values and the factors of their weights, [n_rows, n_kv_head, d_head] each."""
        if self.cache_format == "int8":
            codes, scales = quantize(v.reshape(-1, v.shape[-1]), "int8")
            scales = np.repeat(scales.astype(_F), BLOCK, axis=-1)[:, : v.shape[-1]]
            return codes.astype(_F).reshape(v.shape), scales.reshape(v.shape)
        return round_bf16(v) if self.cache_format == "bf16" else v, np.ones_like(v)

    def rule(self, query: Array, key: Array, value: Array, decay: Array, beta: Array, ours: str) -> Array:
        bias, rate = (self.tensor(f"{ours}.mixer_decay.{part}") for part in ("bias", "rate"))
        gates = exact_decay(decay, bias, rate), sigmoid(beta)
        return exact_delta_rule(query, key, value, *gates, self.parents)[0]

    def scan(self, query: Array, key: Array, value: Array, time: Array, ours: str) -> Array:
        bias, rate = (self.tensor(f"{ours}.mixer_decay.{part}") for part in ("bias", "rate"))
        gates = exact_decay(time, bias, rate), softplus(time + bias)
        return exact_mamba2(query, key, value, *gates, self.tensor(f"{ours}.mixer_skip"), self.parents)[0]

    def head_norm(self, x: Array, weight: Array) -> Array:
        factor = _F(1) / np.sqrt(lane_sum(x, x) / _F(x.shape[-1]) + _F(self.settings["norm_eps"]))
        normed: Array = x * factor[:, None] * weight
        return normed

    def fused(self, x: Array, y: Array, z: Array) -> Array:
        return fma(x, y, z)

    def in_f32(self, x: Array, name: str) -> Array:
        return product(x, self.tensors[name], "f32")

    def mlp(self, h: Array, ours: str) -> Array:
        gate, up = self.times(h, f"{ours}.mlp_gate.weight"), self.times(h, f"{ours}.mlp_up.weight")
        gate = gate * _F(self.settings["mlp_gate_scale"])
        return self.times(self.silu(gate) * up, f"{ours}.mlp_down.weight")

    def mixture(self, h: Array, i: int, routed: Array | None = None) -> Array:
        """Add experts in ascending order; each product with a weight and each sum is rounded."""
        logits = product(h if routed is None else routed, self.tensors[f"layers.{i}.router.weight"], "f32")
        correction = self.tensors.get(f"layers.{i}.router_correction")
        update, weights, used = np.zeros_like(h), np.zeros_like(logits), np.zeros(logits.shape, bool)
        for row in range(self.n_rows):
            chosen, weights[row, chosen] = route(self.settings, logits[row], correction)
            used[row, chosen] = True
        for expert in np.flatnonzero(used.any(axis=0)):
            rows = used[:, expert]
            update[rows] += self.mlp(h[rows], f"layers.{i}.experts.{expert}") * weights[rows, expert, None]
        return update


def route(
    config: Mapping[str, Any], logits: Array, correction: Array | None = None
) -> tuple[list[int], Array]:
    """Return a row's experts, ascending, and their weights; logits, correction [n_experts]."""
    scores = {"softmax": _softmax, "sigmoid": sigmoid}.get(config["router"], np.asarray)(logits)
    ranks = logits if correction is None else scores + correction
    if n_groups := config.get("n_expert_groups"):
        best = np.sort(ranks.reshape(n_groups, -1), axis=1)
        groups = np.argsort(-(best[:, -1] + best[:, -2]), kind="stable")[: config["n_groups_per_token"]]
        kept = np.isin(np.arange(len(ranks)) // (len(ranks) // n_groups), groups)
        ranks = np.where(kept, ranks, -np.inf)
    chosen = sorted(np.argsort(-ranks, kind="stable")[: config["n_experts_per_token"]].tolist())
    weights = _softmax(logits[chosen]) if config["router"] == "softmax_chosen" else scores[chosen]
    if config["router_renormalize"]:
        total = _F(0)
        for weight in weights:
            total += weight
        weights = weights / (total + _F(config.get("router_eps", 0.0)))
    return chosen, weights * _F(config["routed_scale"])


def lane_sum(x: Array, y: Array | None = None) -> Array:
    """Sum rows [n_rows, n], or their products with rows y, each by a fused multiply-add."""
    lanes = np.zeros((len(x), LANES), _F)
    for first in range(0, x.shape[1], LANES):
        some = x[:, first : first + LANES]
        here = lanes[:, : some.shape[1]]
        here[:] = here + some if y is None else fma(some, y[:, first : first + LANES], here)
    return tree_sum(lanes)


def tree_sum(lanes: Array) -> Array:
    """Add lanes [n_rows, 16] as a tree of halves."""
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


def softplus(x: ArrayLike) -> Array:
    """Return ln(1 + exp(x)) = max(x, 0) + 2 artanh(e / (2 + e)) with e = exp(-|x|), by its series."""
    x = np.asarray(x, _F)
    e = exp(_F(0) - np.abs(x))
    s = e / (_F(2) + e)
    z = s * s
    p = np.full_like(z, 1 / 15)
    for odd in (13, 11, 9, 7, 5, 3):
        p = fma(p, z, _F(1 / odd))
    p = fma(p * z, s, s)
    total: Array = np.maximum(x, _F(0)) + (p + p)
    return total


def exact_decay(x: Array, bias: Array, rate: Array) -> Array:
    """Return the gates exp(rate · softplus(x + bias)) of the gated delta rule, with the core's exact bits."""
    return exp(rate * softplus(x + bias))


def _by_value_head(query: Array, key: Array, n_head: int) -> tuple[Array, Array, Array]:
    """Return queries and keys [n_rows, n_head, d_key, 1] of each value head, and their products."""
    rows, d_key = len(query), key.shape[2]
    product = lane_sum(query.reshape(-1, d_key), key.reshape(-1, d_key)).reshape(rows, -1, 1)
    head = np.arange(n_head) % key.shape[1]
    return query[:, head, :, None], key[:, head, :, None], product[:, head]


def exact_delta_rule(
    query: Array, key: Array, value: Array, decay: Array, beta: Array,
    parents: Sequence[int] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return what `delta_rule` does, float32, with the core's exact bits.

    Both sums read the state before the row, so the update is elementwise. They are chains over i from +0:

        delta = (value - decay · Σ_i S[i] key[i]) · beta
        out   = fma(query · key, delta, decay · Σ_i S[i] query[i])
        S[i]  ← fma(key[i], delta, decay · S[i])
    """
    n_rows, n_head, d_value = value.shape
    scale = _F(1) / np.sqrt(_F(key.shape[2]))
    query = _unit_length(query, scale)
    key = _unit_length(key, _F(1))
    query, key, product = _by_value_head(query, key, n_head)
    states = np.zeros((n_rows + 1, n_head, key.shape[2], d_value), _F)  # the last one stays 0
    out = np.zeros_like(value)
    for row in range(n_rows):
        before = states[row - 1 if parents is None else parents[row]]
        gate = decay[row, :, None]
        remembered, read = np.zeros((2, n_head, d_value), _F)
        for i in range(key.shape[2]):
            remembered = fma(before[:, i], key[row, :, i], remembered)
            read = fma(before[:, i], query[row, :, i], read)
        delta = (value[row] - gate * remembered) * beta[row, :, None]
        out[row] = fma(product[row], delta, gate * read)
        states[row] = fma(key[row], delta[:, None], gate[:, None] * before)
    return out, states[:-1]


def exact_mamba2(
    query: Array, key: Array, value: Array, decay: Array, time: Array, skip: Array,
    parents: Sequence[int] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return what `mamba2` does, float32, with the core's exact bits.

    The sum reads the state before the row and is a chain over i from +0:

        delta = value · time
        out   = fma(skip, value, fma(query · key, delta, decay · Σ_i S[i] query[i]))
        S[i]  ← fma(key[i], delta, decay · S[i])
    """
    n_rows, n_head, d_value = value.shape
    query, key, product = _by_value_head(query, key, n_head)
    states = np.zeros((n_rows + 1, n_head, key.shape[2], d_value), _F)  # the last one stays 0
    out = np.zeros_like(value)
    for row in range(n_rows):
        before, gate = states[row - 1 if parents is None else parents[row]], decay[row, :, None]
        read = np.zeros((n_head, d_value), _F)
        for i in range(key.shape[2]):
            read = fma(before[:, i], query[row, :, i], read)
        delta = value[row] * time[row, :, None]
        out[row] = fma(skip[:, None], value[row], fma(product[row], delta, gate * read))
        states[row] = fma(key[row], delta[:, None], gate[:, None] * before)
    return out, states[:-1]


def _unit_length(x: Array, scale: np.float32) -> Array:
    rows = x.reshape(-1, x.shape[-1])
    factor = _F(1) / np.sqrt(lane_sum(rows, rows) + _F(1e-6)) * scale
    scaled: Array = (rows * factor[:, None]).reshape(x.shape)
    return scaled


def _softmax(x: Array) -> Array:
    weights = exp(x - x.max())
    result: Array = weights / lane_sum(weights[None])
    return result


_LAYOUT = {"norm": "rms", "position": "rotary", "activation": "silu", "gated": True}
_WITHOUT = (
    "qkv_bias", "out_bias", "mlp_bias", "head_bias", "v_norm", "embedding_norm", "attn_sinks", "qkv_limit",
    "attn_softcap", "logit_softcap", "query_growth", "alibi", "relative_buckets", "windows", "rotations",
    "score_scales", "rotary_factors", "d_shared_expert", "router_bias", "mixtures", "n_heads", "n_kv_heads",
    "d_heads", "encoder", "layer_scale", "values_from_keys", "kv_layers", "d_per_layer",
    "dense_with_experts",
)  # fmt: skip
_PLAIN = {
    "norm_position": "before", "qk_norm": "none", "parallel": "no", "output_norm": True, "norm_weight": True,
    "embedding_scale": 1.0, "residual_scale": 1.0, "logit_scale": 1.0,
}  # fmt: skip


def _check(config: Mapping[str, Any]) -> None:
    wanted = _LAYOUT | {name: value for name, value in _PLAIN.items() if name in config}
    other = [name for name, value in wanted.items() if config[name] != value]
    other += [name for name in _WITHOUT if config.get(name)]
    if other:
        raise ValueError(f"{other[0]} is {config[other[0]]!r}; expected Llama's layout")
