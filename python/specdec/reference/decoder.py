"""The forward pass: logits after each token of a sequence or each node of a tree, and encoder output."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specdec.reference.activations import ACTIVATIONS, sigmoid, softcap, softmax
from specdec.reference.blocks import BLOCK_TYPES
from specdec.reference.formats import dequantize, product, quantize_activations, round_bf16, stored
from specdec.reference.recurrence import delta_rule, mamba2

Array = NDArray[Any]
Formats = str | Mapping[str, str]


def encode(
    config: Mapping[str, Any], tensors: Mapping[str, Array], source: Sequence[int], *,
    dtype: DTypeLike = np.float64, format: Formats = "exact", cache_format: str = "exact",
) -> Array:  # fmt: skip
    """Return the encoder's output, [n_source, d_model], which the decoder attends to.

    Parameters as in `logits`, for the whole model: ``config["encoder"]`` configures the encoder, and its
    tensors begin with "encoder.".
    """
    encoder = config["encoder"]
    own = {name.removeprefix("encoder."): x for name, x in tensors.items() if name.startswith("encoder.")}
    if encoder.get("shared_embedding", False):
        own["token_embedding"] = tensors["token_embedding"]
    if not isinstance(format, str):
        named = {**format, "encoder.token_embedding": format["token_embedding"], **format}
        format = {name[8:]: row_format for name, row_format in named.items() if name.startswith("encoder.")}
    numbers = (dtype, format, cache_format)
    return _Forward(encoder, own, _chain(len(source)), numbers, bidirectional=True).hidden_states(source)


def logits(
    config: Mapping[str, Any], tensors: Mapping[str, Array], ids: Sequence[int], *,
    source: Sequence[int] | None = None, dtype: DTypeLike = np.float64, format: Formats = "exact",
    cache_format: str = "exact",
) -> Array:  # fmt: skip
    """Return the logits after every token of a sequence, [n_tokens, n_vocab].

    Parameters
    ----------
    config : mapping
        The canonical configuration (``specdec.Model.config``).
    tensors : mapping of str to ndarray
        Canonical name to weights; matrices are [n_out, n_in].
    ids : sequence of int, [n_tokens]
    source : sequence of int, [n_source], optional
        Input of the encoder of an encoder-decoder.
    dtype : numpy dtype
        Type of all arithmetic; float64 for an oracle.
    format : {"exact", "f32", "bf16", "int8", "int4"}, or mapping of str to str
        Number format of the matrices, whose products follow `product`; "exact": in `dtype`. Embeddings, which
        are read by row, are rounded to bf16 in the last three. A mapping has the format of each matrix and of
        the embedding table by canonical name, including block types (such as "q4_k"), whose tensors are uint8
        [n_out, bytes of a row].
    cache_format : {"exact", "f32", "bf16", "int8"}
        "bf16" rounds queries, keys and values; "int8" quantizes them.
    """
    forward = _Forward(config, tensors, _chain(len(ids)), (dtype, format, cache_format), source)
    return forward.logits(ids)


def tree_logits(
    config: Mapping[str, Any], tensors: Mapping[str, Array], prefix: Sequence[int], tokens: Sequence[int],
    parents: Sequence[int], *, source: Sequence[int] | None = None, skip_attn: Collection[int] = (),
    skip_mlp: Collection[int] = (), dtype: DTypeLike = np.float64, format: Formats = "exact",
    cache_format: str = "exact",
) -> Array:  # fmt: skip
    """Return the logits [n_nodes, n_vocab] after every node of a tree that follows a possibly empty `prefix`.

    A node attends to the prefix, its ancestors and itself; its position is ``len(prefix)`` plus its depth.

    Parameters
    ----------
    tokens, parents : sequence of int, [n_nodes]
        A parent is an earlier node; -1, the parent of node 0, is the end of the prefix.
    skip_attn, skip_mlp : collection of int
        Layers whose attention (and cross-attention) or MLP the nodes skip, keeping the hidden state. The
        prefix passes through all layers, and the nodes attend to its keys and values.
    config, tensors, source, dtype, format, cache_format
        As in `logits`.
    """
    n_prefix = len(prefix)
    hung = _chain(n_prefix) + [n_prefix + parent for parent in parents]
    forward = _Forward(config, tensors, hung, (dtype, format, cache_format), source)
    forward.skip(n_prefix, skip_attn, skip_mlp)
    return forward.logits([*prefix, *tokens])[n_prefix:]


def _chain(n_rows: int) -> list[int]:
    return list(range(-1, n_rows - 1))


class _Forward:
    """A forward pass over the rows of a tree; a sequence is a tree with one child per node.

    `numbers` are the dtype, the format of matrices and that of caches, as in `logits`. Rows attend to the
    encoded `source` if the model has an encoder. An encoder is `bidirectional`: each row attends to all rows,
    and there is no head.
    """

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Array], parents: Sequence[int],
        numbers: tuple[DTypeLike, Formats, str], source: Sequence[int] | None = None, *,
        bidirectional: bool = False,
    ) -> None:  # fmt: skip
        self.dtype, self.format, self.cache_format = numbers
        self.tensors = tensors
        self.settings: dict[str, Any] = {**_DEFAULTS, **config}
        self.n_rows, self.n_layer = len(parents), config["n_layer"]
        if not bidirectional and (source is None) != (config.get("encoder") is None):
            raise ValueError("source is required for models with an encoder, and for no others")
        self.encoded: Array | None = None
        if source is not None:
            dtype, format, cache_format = numbers
            self.encoded = encode(
                config, tensors, source, dtype=dtype, format=format, cache_format=cache_format
            )
        self.kept: dict[int, tuple[Array, Array]] = {}
        self.per_layer: Array | None = None
        self._set_positions(parents, bidirectional)
        self._lay_out_layers()
        self.skip(0, (), ())

    def skip(self, n_whole: int, attn: Collection[int], mlp: Collection[int]) -> None:
        """Let the rows from `n_whole` on skip the attention of layers `attn` and the MLP of layers `mlp`."""
        self.passing = np.arange(self.n_rows)[:, None] >= n_whole
        self.skip_attn, self.skip_mlp = attn, mlp

    def _set_positions(self, parents: Sequence[int], bidirectional: bool) -> None:
        """Compute positions, distances and visibility."""
        self.parents = parents
        # visible[i, j]: row i attends to row j, an ancestor or itself.
        self.visible, self.position = np.eye(self.n_rows, dtype=bool), np.zeros(self.n_rows, dtype=int)
        for row, parent in enumerate(parents):
            if parent >= 0:
                self.visible[row] |= self.visible[parent]
                self.position[row] = self.position[parent] + 1
        self.visible |= bidirectional
        self.distance = self.position[:, None] - self.position
        self.bucket = np.zeros_like(self.distance)
        if buckets := self.settings["relative_buckets"]:
            nearness = np.abs(self.distance) if bidirectional else np.maximum(self.distance, 0)
            self.bucket = np.searchsorted(buckets, nearness, side="right") - 1
            self.bucket += len(buckets) * (bidirectional & (self.distance < 0))

    def _lay_out_layers(self) -> None:
        """Expand the settings that may differ by layer."""
        own, n = self.settings, self.n_layer
        self.n_heads = own["n_heads"] or [own["n_head"]] * n
        self.n_kv_heads = own["n_kv_heads"] or [own["n_kv_head"]] * n
        self.d_heads = own["d_heads"] or [own["d_head"]] * n
        self.kv_layers = own["kv_layers"] or list(range(n))
        self.windows = own["windows"] or [own["sliding_window"]] * n
        self.rotations = own["rotations"] or [0] * n
        self.values_from_keys = own["values_from_keys"] or [0] * n
        self.mixers = own["mixers"] or ["attention"] * n
        self.d_ffs = own["d_ffs"] or [own["d_ff"]] * n
        self.mixtures = own["mixtures"] or [own["n_experts"] > 0] * n
        self.score_scales = own["score_scales"] or [1.0 / math.sqrt(size) for size in self.d_heads]

    # ------------------------------------------------------------------------------------- the whole

    def logits(self, ids: Sequence[int]) -> Array:
        """Return logits after every row, [n_rows, n_vocab]."""
        own = self.settings
        y = self.times(self.hidden_states(ids), "token_embedding" if own["tied"] else "head")
        if own["head_bias"]:
            y = y + self.tensor("head_bias")
        return softcap(own["logit_scale"] * y, own["logit_softcap"])

    def hidden_states(self, ids: Sequence[int]) -> Array:
        """Return hidden states after the final norm, if any, [n_rows, d_model]."""
        x = self.embed(ids)
        if self.settings["d_per_layer"]:
            self.per_layer = self.embed_per_layer(x, ids)
        for i in range(self.n_layer):
            x = self.layer(x, i)
        return self.norm(x, "output_norm") if self.settings["output_norm"] else x

    def embed(self, ids: Sequence[int]) -> Array:
        own = self.settings
        x = self.table_rows("token_embedding", ids) * own["embedding_scale"]
        if own["position"] == "learned":
            x = x + self.tensor("position_embedding")[self.position]
        return self.norm(x, "embedding_norm") if own["embedding_norm"] else x

    def table_rows(self, name: str, ids: Sequence[int]) -> Array:
        """Return rows of an embedding table, [n_rows, n]."""
        row_format, rows = self.format_of(name), self.tensors[name][np.asarray(ids, dtype=int)]
        if row_format in BLOCK_TYPES:
            rows = stored(rows, row_format)
        elif row_format in ("bf16", "int8", "int4"):
            rows = round_bf16(rows)
        numbers: Array = rows.astype(self.dtype)
        return numbers

    def embed_per_layer(self, x: Array, ids: Sequence[int]) -> Array:
        """Return the vectors of per-layer embeddings, [n_rows, n_layer, d_per_layer]; x: the embeddings."""
        projected = self.linear(x, "per_layer_projection") / math.sqrt(x.shape[1])
        shape = self.n_rows, self.n_layer, self.settings["d_per_layer"]
        rows = self.table_rows("per_layer_embedding", ids).reshape(shape)
        normed = self.norm(projected.reshape(shape), "per_layer_projection_norm")
        return (normed + math.sqrt(shape[2]) * rows) * math.sqrt(0.5)

    def layer(self, x: Array, i: int) -> Array:
        """Return the residual stream after a layer."""
        ours, stream = f"layers.{i}", x
        attended = self.mixed_rows(x, i)
        if self.encoded is not None:
            crossed = self.cross_attention(self.before(attended, f"{ours}.cross_norm"), self.encoded, i)
            attended = self.added(attended, crossed, f"{ours}.cross_post_norm")
        skips = i in self.skip_attn or self.kv_layers[i] in self.skip_attn
        x = np.where(self.passing & skips, x, attended)
        if self.settings["parallel"] == "no":
            stream = x
        y = x
        if self.mixtures[i] or self.d_ffs[i]:
            y = self.added(
                x, self.fed_forward(stream, i), f"{ours}.mlp_post_norm", self.settings["mlp_down_scale"]
            )
        if self.per_layer is not None:
            gate = ACTIVATIONS[self.settings["activation"]](self.linear(y, f"{ours}.per_layer_gate"))
            out = self.linear(gate * self.per_layer[:, i], f"{ours}.per_layer_out")
            y = self.added(y, out, f"{ours}.per_layer_post_norm")
        y = np.where(self.passing & (i in self.skip_mlp), x, y)
        if not self.settings["layer_scale"]:
            return y
        whole = self.passing & (skips and i in self.skip_mlp)
        return np.where(whole, y, y * self.tensor(f"{ours}.layer_scale"))

    def mixed_rows(self, x: Array, i: int) -> Array:
        """Return the stream after the first half of a layer: a mixer, attention, both or none."""
        mixers = {
            "mamba2": self.mamba2, "delta": self.delta, "convolution": self.short_convolution,
            "attention": self.attention,
        }  # fmt: skip
        mixed = x
        for name, mix in mixers.items():
            if name in self.mixers[i].split("+"):
                h = self.before(x, f"layers.{i}.attn_norm")
                scale = self.settings["attn_out_scale" if name == "attention" else "mixer_out_scale"]
                mixed = self.added(mixed, mix(h, i), f"layers.{i}.attn_post_norm", scale)
        return mixed

    def before(self, x: Array, name: str) -> Array:
        return self.norm(x, name) if self.settings["norm_position"] in ("before", "both") else x

    def added(self, x: Array, y: Array, name: str, scale: float = 1.0) -> Array:
        """Add an output y of a layer, times a factor, to the residual stream x."""
        where = self.settings["norm_position"]
        if where in ("after", "both"):
            y = self.norm(y, name)
        total: Array = x + self.settings["residual_scale"] * scale * y
        return self.norm(total, name) if where == "residual" else total

    # ------------------------------------------------------------------------------------- attention

    def attention(self, h: Array, i: int) -> Array:
        own, ours = self.settings, f"layers.{i}"
        q = self.query_or_key(h, "q", i)
        if self.kv_layers[i] == i:
            v = self.heads(self.linear(h, f"{ours}.attn_{'k' if self.values_from_keys[i] else 'v'}"), i)
            if own["v_norm"]:
                v = v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + own["norm_eps"])
            self.kept[i] = self.query_or_key(h, "k", i), v
        k, v = self.kept[self.kv_layers[i]]
        if own["query_growth"]:
            growth = 1.0 + own["query_growth"] * np.log1p(self.position // own["query_span"])
            q = q * growth[:, None, None].astype(self.dtype)
        q, k, v = self.cached(q, k, v, i)
        scores = softcap(np.einsum("ihd,jhd->hij", q, k) * self.score_scales[i], own["attn_softcap"])
        if own["alibi"]:
            scores = scores - np.asarray(own["alibi"], self.dtype)[:, None, None] * self.distance
        if own["relative_buckets"]:
            name = f"{ours}.relative_bias" if own["relative_bias_by_layer"] else "relative_bias"
            scores = scores + self.tensor(name)[self.bucket].transpose(2, 0, 1)
        window = self.windows[i]
        seen = self.visible & (self.distance < window) if window else self.visible
        sinks = self.tensor(f"{ours}.attn_sinks") if own["attn_sinks"] else None
        weights = softmax(np.where(seen, scores, -np.inf), sinks)
        return self.linear(self.gated(self.mixed(weights, v), h, i), f"{ours}.attn_out")

    def query_or_key(self, h: Array, part: str, i: int) -> Array:
        """Return queries ("q") or keys ("k"), normalized and rotated."""
        x, norm = self.linear(h, f"layers.{i}.attn_{part}"), f"layers.{i}.attn_{part}_norm"
        if self.settings["qk_norm"] == "whole":
            x = self.norm(x, norm)
        return self.turned(self.heads(x, i), norm, i)

    def gated(self, attended: Array, h: Array, i: int) -> Array:
        """Multiply the output of attention by its gates."""
        if self.settings["attn_gate"] == "none":
            return attended
        function = self.softplus if self.settings["attn_gate_softplus"] else self.sigmoid
        gate = function(self.linear(h, f"layers.{i}.attn_gate"))
        if self.settings["attn_gate"] == "head":
            gate = np.repeat(gate, self.d_heads[i], axis=1)
        return attended * gate

    def sigmoid(self, x: Array) -> Array:
        return sigmoid(x)

    def softplus(self, x: Array) -> Array:
        return np.logaddexp(x, 0.0).astype(x.dtype)

    def cross_attention(self, h: Array, encoded: Array, i: int) -> Array:
        """Attend to all rows of the source, without relative positions."""
        ours, size = f"layers.{i}", self.d_heads[i]
        q = self.linear(h, f"{ours}.cross_q").reshape(self.n_rows, -1, size)
        k, v = (self.linear(encoded, f"{ours}.cross_{part}").reshape(len(encoded), -1, size) for part in "kv")
        q, k, v = self.cached(q, k, v, i)
        weights = softmax(np.einsum("ihd,jhd->hij", q, k) * self.score_scales[i])
        return self.linear(self.mixed(weights, v), f"{ours}.cross_out")

    def mixed(self, weights: Array, values: Array) -> Array:
        mixed: Array = np.einsum("hij,jhd->ihd", weights, values)
        return mixed.reshape(self.n_rows, -1)

    def cached(self, q: Array, k: Array, v: Array, i: int) -> tuple[Array, Array, Array]:
        """Round to the cache's format; repeat keys and values for each query head."""
        if self.cache_format == "bf16":
            q, k, v = (round_bf16(part).astype(self.dtype) for part in (q, k, v))
        elif self.cache_format == "int8":
            rows = [part.reshape(-1, part.shape[-1]) for part in (q, k, v)]
            rows = [dequantize(*quantize_activations(rows[0])), *(stored(part, "int8") for part in rows[1:])]
            q, k, v = (y.reshape(x.shape).astype(self.dtype) for x, y in zip((q, k, v), rows, strict=True))
        group = self.n_heads[i] // self.n_kv_heads[i]
        return q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)

    def heads(self, x: Array, i: int) -> Array:
        if limit := self.settings["qkv_limit"]:
            x = np.clip(x, -limit, limit)
        return x.reshape(len(x), -1, self.d_heads[i])

    def turned(self, x: Array, name: str, i: int) -> Array:
        """Normalize and rotate queries or keys."""
        if self.settings["qk_norm_rotated"]:
            return self.normed_heads(self.rotate(x, self.rotations[i]), name)
        return self.rotate(self.normed_heads(x, name), self.rotations[i])

    def normed_heads(self, x: Array, name: str) -> Array:
        """Normalize queries or keys head by head."""
        qk_norm, size = self.settings["qk_norm"], x.shape[-1]
        if qk_norm in ("none", "whole"):
            return x
        return self.norm(x, name, (1, size) if qk_norm == "head" else (-1, size))

    def rotate(self, x: Array, rotation: int) -> Array:
        """Rotate each pair (x[i], x[i + n]) of n frequencies by the angle position * inv_freq[i]."""
        own = self.settings
        if own["position"] != "rotary" or rotation < 0:
            return x
        inv_freq = [own["inv_freq"], *own["more_inv_freq"]][rotation]
        factor = own["rotary_factors"][rotation] if own["rotary_factors"] else 1.0
        cos, sin = self.turns(inv_freq, factor)
        first, second, rest = np.split(x, [len(inv_freq), 2 * len(inv_freq)], axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def turns(self, inv_freq: Sequence[float], factor: float) -> tuple[Array, Array]:
        """Return cosines and sines of all positions' angles, times a factor, [n_rows, 1, n]."""
        angle = self.position[:, None, None] * np.asarray(inv_freq, dtype=np.float64)
        return (factor * np.cos(angle)).astype(self.dtype), (factor * np.sin(angle)).astype(self.dtype)

    # ---------------------------------------------------------------------------------- convolutions

    def short_convolution(self, h: Array, i: int) -> Array:
        """Return the gated short convolution of LFM2."""
        b, c, x = np.split(self.linear(h, f"layers.{i}.mixer_in"), 3, axis=-1)
        return self.linear(c * self.convolved(b * x, i), f"layers.{i}.mixer_out")

    def delta(self, h: Array, i: int) -> Array:
        """Return the gated delta rule's outputs, each head normalized and gated."""
        ours = f"layers.{i}"
        decay, beta = (self.in_f32(h, f"{ours}.mixer_{part}.weight") for part in ("decay", "beta"))
        decay = self.scales()[4] * decay
        out = self.rule(*self.queries_keys_values(h, i), decay, beta, ours)
        out = self.head_norm(out.reshape(-1, out.shape[-1]), self.tensor(f"{ours}.mixer_norm.weight"))
        return self.linear(out.reshape(self.n_rows, -1) * self.mixer_gate(h, ours), f"{ours}.mixer_out")

    def mixer_gate(self, h: Array, ours: str) -> Array:
        return self.silu(self.scales()[3] * self.linear(h, f"{ours}.mixer_gate"))

    def scales(self) -> Array:
        """Return the factors of queries, keys, values, gates and decays."""
        return np.asarray(self.settings["mixer_scales"] or [1.0] * 5, self.dtype)

    def mamba2(self, h: Array, i: int) -> Array:
        """Return the outputs of Mamba-2, gated and normalized in groups."""
        ours, groups = f"layers.{i}", self.settings["n_mixer_norm_groups"]
        time = self.scales()[4] * self.in_f32(h, f"{ours}.mixer_decay.weight")
        out = self.scan(*self.queries_keys_values(h, i), time, ours).reshape(self.n_rows, -1)
        gate = self.mixer_gate(h, ours)
        if not self.settings["mixer_norm_first"]:
            out = out * gate
        if groups:
            weight = np.tile(self.tensor(f"{ours}.mixer_norm.weight").reshape(groups, -1), (self.n_rows, 1))
            out = self.head_norm(out.reshape(weight.shape), weight).reshape(out.shape)
        if self.settings["mixer_norm_first"]:
            out = out * gate
        return self.linear(out, f"{ours}.mixer_out")

    def queries_keys_values(self, h: Array, i: int) -> tuple[Array, Array, Array]:
        """Return the inputs of a recurrence, [n_rows, heads, dimensions] each."""
        own, n_key, n_value = (
            self.settings, self.settings["n_mixer_key_head"], self.settings["n_mixer_value_head"]
        )  # fmt: skip
        keys, values = n_key * own["d_mixer_key"], n_value * own["d_mixer_value"]
        x = self.linear(h, f"layers.{i}.mixer_in") * np.repeat(self.scales()[:3], [keys, keys, values])
        x = self.silu(self.convolved(x, i))
        query, key, value = np.split(x, [keys, 2 * keys], axis=-1)
        query, key = (part.reshape(self.n_rows, n_key, -1) for part in (query, key))
        if own["mixer_grouped"]:
            query, key = (np.repeat(part, n_value // n_key, axis=1) for part in (query, key))
        return query, key, value.reshape(self.n_rows, n_value, -1)

    def rule(self, query: Array, key: Array, value: Array, decay: Array, beta: Array, ours: str) -> Array:
        rate = self.tensor(f"{ours}.mixer_decay.rate")
        decay = np.exp(rate * np.logaddexp(0, decay + self.tensor(f"{ours}.mixer_decay.bias")))
        return delta_rule(query, key, value, decay, sigmoid(beta), self.parents)[0]

    def scan(self, query: Array, key: Array, value: Array, time: Array, ours: str) -> Array:
        time = np.logaddexp(0, time + self.tensor(f"{ours}.mixer_decay.bias"))
        decay = np.exp(self.tensor(f"{ours}.mixer_decay.rate") * time)
        return mamba2(query, key, value, decay, time, self.tensor(f"{ours}.mixer_skip"), self.parents)[0]

    def head_norm(self, x: Array, weight: Array) -> Array:
        scale: Array = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.settings["norm_eps"])
        return x / scale * weight

    def in_f32(self, x: Array, name: str) -> Array:
        """Return the product with a matrix that has no number format."""
        return x @ self.tensor(name).T

    def convolved(self, x: Array, i: int) -> Array:
        """Convolve each channel of x with those of the row's ancestors, which are 0 before the text."""
        name, y = f"layers.{i}.mixer_conv", np.zeros_like(x)
        if self.settings["conv_bias"]:
            y = y + self.tensor(f"{name}_bias")
        weights = self.tensor(name)
        for back, weight in zip(range(len(weights) - 1, -1, -1), weights, strict=True):
            ancestor: Array = self.visible & (self.distance == back)
            exists = np.any(ancestor, axis=1)[:, None]
            rows = np.where(exists, x[ancestor.argmax(axis=1)], np.zeros((), x.dtype))
            y = self.fused(rows, weight, y)
        return y

    def fused(self, x: Array, y: Array, z: Array) -> Array:
        """Return x * y + z, in float32 rounded once by `specdec.reference.exact_logits`."""
        return x * y + z

    # ------------------------------------------------------------------------------------------ MLPs

    def mlp(self, h: Array, ours: str) -> Array:
        own, up = self.settings, self.linear(h, f"{ours}.mlp_up")
        if own["activation"] == "silu_clamped":
            limit = own["activation_limit"]
            gate = np.minimum(own["mlp_gate_scale"] * self.linear(h, f"{ours}.mlp_gate"), limit)
            hidden = gate * sigmoid(1.702 * gate) * (np.clip(up, -limit, limit) + 1)
        elif own["activation"] == "xielu":
            factors, low = self.tensor(f"{ours}.mlp_xielu"), np.minimum(up, 0)
            above, below = self.softplus(factors[:2])
            hidden = above * np.maximum(up, 0) ** 2 + factors[2] * up
            hidden += (below + factors[2]) * (np.expm1(low) - low)
        elif own["gated"]:
            hidden = self.activation(own["mlp_gate_scale"] * self.linear(h, f"{ours}.mlp_gate")) * up
        else:
            hidden = self.activation(up)
        return self.linear(hidden, f"{ours}.mlp_down")

    def activation(self, x: Array) -> Array:
        name = self.settings["activation"]
        return self.silu(x) if name == "silu" else ACTIVATIONS[name](x)

    def silu(self, x: Array) -> Array:
        return x * self.sigmoid(x)

    def fed_forward(self, x: Array, i: int) -> Array:
        """Return the output of a layer's second half, which reads the stream x."""
        ours, shares_norm = f"layers.{i}", self.settings["parallel"] == "one_norm"
        h = self.before(x, f"{ours}.{'attn' if shares_norm else 'mlp'}_norm")
        if not self.mixtures[i]:
            return self.mlp(h, ours)
        return self.with_dense(x, h, i) if self.settings["dense_with_experts"] else self.mixture(h, i)

    def with_dense(self, x: Array, h: Array, i: int) -> Array:
        """Return the sum of MLP and experts, which read norms of their own of the stream x (Gemma 4)."""
        ours = f"layers.{i}"
        dense = self.norm(self.mlp(h, ours), f"{ours}.dense_post_norm")
        routed = self.norm(x, f"{ours}.router_norm") * self.settings["d_model"] ** -0.5
        mixed = self.mixture(self.norm(x, f"{ours}.experts_norm"), i, routed)
        return dense + self.norm(mixed, f"{ours}.experts_post_norm")

    def mixture(self, h: Array, i: int, routed: Array | None = None) -> Array:
        """Apply to each row its chosen experts, times their weights; `routed`: the router's input, if not h.

        The router's matrix has no number format.
        """
        own, ours = self.settings, f"layers.{i}"
        logits = (h if routed is None else routed) @ self.tensor(f"{ours}.router.weight").T
        if own["router_bias"]:
            logits = logits + self.tensor(f"{ours}.router.bias")
        y = np.zeros_like(h)
        scores = {"softmax": softmax, "sigmoid": sigmoid}.get(own["router"], np.asarray)(logits)
        ranks = scores + self.tensor(f"{ours}.router_correction") if own["router_correction"] else logits
        for row in range(self.n_rows):
            chosen = self.chosen(ranks[row])
            weights = self.expert_weights(scores[row, chosen])
            if own["dense_with_experts"]:
                weights = weights * self.tensor(f"{ours}.expert_scale")[chosen]
            for expert, weight in zip(chosen, weights, strict=True):
                y[row] += weight * self.mlp(h[row : row + 1], f"{ours}.experts.{expert}")[0]
        if own["d_shared_expert"]:
            shared = self.mlp(h, f"{ours}.shared_expert")
            if own["shared_expert_gate"]:
                shared = shared * sigmoid(h @ self.tensor(f"{ours}.shared_gate.weight").T)
            y = y + shared
        return y

    def chosen(self, ranks: Array) -> Array:
        """Return the experts of largest rank, in groups with the largest sums of two; ties: the first."""
        own = self.settings
        if n_groups := own["n_expert_groups"]:
            groups = ranks.reshape(n_groups, -1)
            order = np.argsort(-np.sort(groups, axis=1)[:, -2:].sum(axis=1), kind="stable")
            dropped = np.isin(np.arange(n_groups), order[own["n_groups_per_token"] :])
            ranks = np.where(dropped[:, None], -np.inf, groups).reshape(-1)
        return np.argsort(-ranks, kind="stable")[: own["n_experts_per_token"]]

    def expert_weights(self, scores: Array) -> Array:
        """Return the weights of a row's chosen experts."""
        own = self.settings
        weights = softmax(scores) if own["router"] == "softmax_chosen" else scores
        if own["router_renormalize"]:
            weights = weights / (weights.sum() + own["router_eps"])
        scaled: Array = own["routed_scale"] * weights
        return scaled

    # ---------------------------------------------------------------------------------------- layers

    def tensor(self, name: str) -> Array:
        return self.tensors[name].astype(self.dtype)

    def format_of(self, name: str) -> str:
        return self.format if isinstance(self.format, str) else self.format[name]

    def times(self, x: Array, name: str) -> Array:
        row_format = self.format_of(name)
        if row_format == "exact":
            return x @ self.tensor(name).T
        return product(x, self.tensors[name], row_format).astype(self.dtype)

    def linear(self, x: Array, name: str) -> Array:
        y = self.times(x, f"{name}.weight")
        return y + self.tensor(f"{name}.bias") if f"{name}.bias" in self.tensors else y

    def norm(self, x: Array, name: str, shape: tuple[int, ...] = (-1,)) -> Array:
        """Apply RMSNorm; LayerNorm centers the row first and adds a bias."""
        if self.settings["norm"] == "layer":
            x = x - np.mean(x, axis=-1, keepdims=True)
        scale: Array = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.settings["norm_eps"])
        y = x / scale
        if f"{name}.weight" in self.tensors:
            y = y * self.tensor(f"{name}.weight").reshape(shape)
        return y + self.tensor(f"{name}.bias") if f"{name}.bias" in self.tensors else y


_DEFAULTS: Final[Mapping[str, Any]] = {
    "norm_position": "before", "qk_norm": "none", "qk_norm_rotated": False,
    "attn_gate": "none", "attn_gate_softplus": False, "v_norm": False, "parallel": "no", "head_bias": False,
    "embedding_scale": 1.0, "embedding_norm": False, "residual_scale": 1.0, "logit_scale": 1.0,
    "logit_softcap": 0.0, "attn_softcap": 0.0, "attn_sinks": False, "qkv_limit": 0.0, "activation_limit": 0.0,
    "query_growth": 0.0, "query_span": 0, "alibi": (), "relative_buckets": (), "output_norm": True,
    "relative_bias_by_layer": False, "more_inv_freq": (), "rotary_factors": (), "n_heads": (),
    "n_kv_heads": (), "d_heads": (), "kv_layers": (), "d_per_layer": 0, "mixers": (), "conv_bias": False,
    "mixer_grouped": False, "windows": (), "rotations": (), "score_scales": (), "mixtures": (),
    "values_from_keys": (), "layer_scale": False, "dense_with_experts": False,
    "n_mixer_norm_groups": 0, "mixer_norm_first": False, "mixer_scales": (), "d_ffs": (),
    "attn_out_scale": 1.0, "mixer_out_scale": 1.0, "mlp_down_scale": 1.0, "mlp_gate_scale": 1.0,
    "n_experts": 0, "n_experts_per_token": 0, "d_shared_expert": 0, "shared_expert_gate": False,
    "router": "softmax", "router_bias": False, "router_correction": False, "n_expert_groups": 0,
    "n_groups_per_token": 0, "router_renormalize": False, "router_eps": 0.0, "routed_scale": 1.0,
}  # fmt: skip
"""Defaults of settings that a plain decoder omits."""
