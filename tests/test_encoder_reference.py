"""The specification of encoder-decoders against one row and one head at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specdec import reference

Tensors = dict[str, np.ndarray]

SIZES: dict[str, Any] = {
    "n_vocab": 13, "n_ctx": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 4, "d_model": 12, "d_head": 5,
    "d_ff": 18, "norm_eps": 1e-5, "inv_freq": [], "sliding_window": 0,
}  # fmt: skip
RELATIVE: dict[str, Any] = SIZES | {
    "norm": "rms", "position": "none", "activation": "relu", "gated": True, "tied": True, "qkv_bias": False,
    "out_bias": False, "mlp_bias": False, "score_scales": [1.0, 1.0], "relative_buckets": [0, 1, 2, 4],
    "logit_scale": 12**-0.5,
}  # fmt: skip
LEARNED: dict[str, Any] = SIZES | {
    "norm": "layer", "position": "learned", "activation": "relu2", "gated": False, "tied": False,
    "qkv_bias": True, "out_bias": True, "mlp_bias": True, "norm_place": "residual", "output_norm": False,
    "embedding_norm": True, "embedding_scale": 3.0, "head_bias": True,
}  # fmt: skip
BEFORE = LEARNED | {"norm_place": "before", "output_norm": True, "residual_scale": 0.5, "n_kv_head": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    "shared-embedding-relative-positions": RELATIVE
    | {"encoder": RELATIVE | {"n_layer": 3, "score_scales": [1.0] * 3, "shared_embedding": True}},
    "relative-positions-by-layer": RELATIVE
    | {
        "relative_bias_by_layer": True,
        "encoder": RELATIVE | {"n_vocab": 7, "relative_bias_by_layer": True, "relative_buckets": [0, 1, 3]},
    },
    "norms-of-the-stream": LEARNED | {"encoder": LEARNED | {"d_model": 10, "n_head": 2, "n_kv_head": 2}},
    "norms-before-each-half": BEFORE | {"encoder": BEFORE | {"shared_embedding": True}},
}


def random_tensors(config: dict[str, Any]) -> Tensors:
    """By name, with nothing that the configuration does not ask for."""
    rng = np.random.default_rng(1)
    tensors: Tensors = {}

    def normal(name: str, *shape: int) -> None:
        tensors[name] = rng.standard_normal(shape).astype(np.float32)

    def linear(name: str, n_out: int, n_in: int, bias: bool) -> None:
        normal(f"{name}.weight", n_out, n_in)
        tensors[f"{name}.weight"] /= np.float32(math.sqrt(n_in))
        if bias:
            normal(f"{name}.bias", n_out)

    def stack(c: dict[str, Any], prefix: str, d_source: int) -> None:
        d, d_q, d_kv = c["d_model"], c["n_head"] * c["d_head"], c["n_kv_head"] * c["d_head"]
        place, n_tables = c.get("norm_place", "before"), 1 if d_source else 2

        def norm(name: str) -> None:
            normal(f"{prefix}{name}.weight", d)
            if c["norm"] == "layer":
                normal(f"{prefix}{name}.bias", d)

        if not c.get("shared_embedding"):
            normal(f"{prefix}token_embedding", c["n_vocab"], d)
        if c["position"] == "learned":
            normal(f"{prefix}position_embedding", c["n_ctx"], d)
        if c.get("embedding_norm"):
            norm("embedding_norm")
        for i in range(c["n_layer"]):
            for part in ["attn", "cross", "mlp"] if d_source else ["attn", "mlp"]:
                ours = f"{prefix}layers.{i}.{part}"
                norm(f"layers.{i}.{part}_{'post_norm' if place == 'residual' else 'norm'}")
                if part == "mlp":
                    for name in ["gate", "up"] if c["gated"] else ["up"]:
                        linear(f"{ours}_{name}", c["d_ff"], d, c["mlp_bias"])
                    linear(f"{ours}_down", d, c["d_ff"], c["mlp_bias"])
                else:
                    read = d_source if part == "cross" else d
                    linear(f"{ours}_q", d_q, d, c["qkv_bias"])
                    linear(f"{ours}_k", d_kv, read, c["qkv_bias"])
                    linear(f"{ours}_v", d_kv, read, c["qkv_bias"])
                    linear(f"{ours}_out", d, d_q, c["out_bias"])
            if c.get("relative_bias_by_layer"):
                rows = n_tables * len(c["relative_buckets"])
                normal(f"{prefix}layers.{i}.relative_bias", rows, c["n_head"])
        if c.get("relative_buckets") and not c.get("relative_bias_by_layer"):
            normal(f"{prefix}relative_bias", n_tables * len(c["relative_buckets"]), c["n_head"])
        if c.get("output_norm", True):
            norm("output_norm")

    stack(config, "", config["encoder"]["d_model"])
    stack(config["encoder"], "encoder.", 0)
    if not config["tied"]:
        normal("head", config["n_vocab"], config["d_model"])
    if config.get("head_bias"):
        normal("head_bias", config["n_vocab"])
    return tensors


class Stack:
    """An encoder, or a decoder of what an encoder gave: rows and heads in loops."""

    def __init__(self, config: dict[str, Any], tensors: Tensors, prefix: str, source: np.ndarray | None):
        self.c, self.prefix, self.source = config, prefix, source
        self.tensors = {name: x.astype(np.float64) for name, x in tensors.items()}
        if config.get("shared_embedding"):
            self.tensors[f"{prefix}token_embedding"] = self.tensors["token_embedding"]

    def get(self, name: str) -> np.ndarray:
        return self.tensors[self.prefix + name]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        bias = self.tensors.get(f"{self.prefix}{name}.bias", 0.0)
        return np.array([np.dot(row, x) for row in self.get(f"{name}.weight")]) + bias

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centre = x.mean() if self.c["norm"] == "layer" else 0.0
        y = (x - centre) / math.sqrt(np.square(x - centre).mean() + self.c["norm_eps"])
        return y * self.get(f"{name}.weight") + self.tensors.get(f"{self.prefix}{name}.bias", 0.0)

    def bias(self, layer: int, head: int, query: int, key: int) -> float:
        starts = self.c.get("relative_buckets")
        if not starts:
            return 0.0
        table = self.get(f"layers.{layer}." * bool(self.c.get("relative_bias_by_layer")) + "relative_bias")
        bucket = max(b for b, start in enumerate(starts) if start <= abs(query - key))
        return float(table[bucket + len(starts) * (key > query), head])

    def attend(self, q: np.ndarray, keys: list[Any], values: list[Any], layer: int, biases: Any) -> Any:
        size = self.c["d_head"]
        group = self.c["n_head"] // self.c["n_kv_head"]
        scale = self.c.get("score_scales", [size**-0.5] * self.c["n_layer"])[layer]
        mixed: list[float] = []
        for head in range(self.c["n_head"]):
            ours = slice(head // group * size, (head // group + 1) * size)
            scores = [scale * float(q[head * size : (head + 1) * size] @ k[ours]) for k in keys]
            weights = [math.exp(s + biases(head, at)) for at, s in enumerate(scores)]
            mixed.extend(sum(w * v[ours] for w, v in zip(weights, values, strict=True)) / sum(weights))
        return np.array(mixed)

    def part(self, x: np.ndarray, name: str, inner: Any) -> np.ndarray:
        """What follows a part of a layer: by its norm before, or of the sum."""
        scale, after = self.c.get("residual_scale", 1.0), self.c.get("norm_place") == "residual"
        if after:
            return np.array(
                [self.norm(row + y, f"{name}_post_norm") for row, y in zip(x, inner(x), strict=True)]
            )
        return x + scale * np.array(inner([self.norm(row, f"{name}_norm") for row in x]))

    def run(self, ids: list[int]) -> np.ndarray:
        c = self.c
        x = self.get("token_embedding")[ids] * c.get("embedding_scale", 1.0)
        if c["position"] == "learned":
            x = x + self.get("position_embedding")[: len(ids)]
        if c.get("embedding_norm"):
            x = np.array([self.norm(row, "embedding_norm") for row in x])
        for i in range(c["n_layer"]):
            ours = f"layers.{i}"

            def attention(rows: Any, i: int = i, ours: str = ours) -> list[np.ndarray]:
                keys, values = ([self.linear(r, f"{ours}.attn_{kv}") for r in rows] for kv in "kv")
                out = []
                for at, row in enumerate(rows):
                    end = len(rows) if self.source is None else at + 1
                    q = self.linear(row, f"{ours}.attn_q")
                    biases = lambda head, key, at=at: self.bias(i, head, at, key)  # noqa: E731
                    mixed = self.attend(q, keys[:end], values[:end], i, biases)
                    out.append(self.linear(mixed, f"{ours}.attn_out"))
                return out

            def cross(rows: Any, i: int = i, ours: str = ours) -> list[np.ndarray]:
                keys, values = ([self.linear(r, f"{ours}.cross_{kv}") for r in self.source] for kv in "kv")
                queries = [self.linear(row, f"{ours}.cross_q") for row in rows]
                mixed = [self.attend(q, keys, values, i, lambda head, key: 0.0) for q in queries]
                return [self.linear(row, f"{ours}.cross_out") for row in mixed]

            def mlp(rows: Any, ours: str = ours) -> list[np.ndarray]:
                return [self.linear(self.hidden(row, ours), f"{ours}.mlp_down") for row in rows]

            x = self.part(x, f"{ours}.attn", attention)
            if self.source is not None:
                x = self.part(x, f"{ours}.cross", cross)
            x = self.part(x, f"{ours}.mlp", mlp)
        return np.array([self.norm(row, "output_norm") for row in x]) if c.get("output_norm", True) else x

    def hidden(self, row: np.ndarray, ours: str) -> np.ndarray:
        up = self.linear(row, f"{ours}.mlp_up")
        gate = self.linear(row, f"{ours}.mlp_gate") if self.c["gated"] else up
        act = np.array([max(v, 0.0) ** (2 if self.c["activation"] == "relu2" else 1) for v in gate])
        return act * up if self.c["gated"] else act


@pytest.fixture(params=CONFIGS)
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Tensors, list[int], list[int]]:
    config = CONFIGS[request.param]
    rng = np.random.default_rng(2)
    source = rng.integers(min(config["n_vocab"], config["encoder"]["n_vocab"]), size=9).tolist()
    return config, random_tensors(config), source, rng.integers(config["n_vocab"], size=7).tolist()


def test_encoder_and_logits_by_rows_and_heads_in_loops(case: Any) -> None:
    config, tensors, source, ids = case
    encoded = Stack(config["encoder"], tensors, "encoder.", None).run(source)
    np.testing.assert_allclose(reference.encode(config, tensors, source), encoded, rtol=1e-9, atol=1e-11)
    rows = Stack(config, tensors, "", encoded).run(ids)
    head = tensors["token_embedding" if config["tied"] else "head"].astype(np.float64)
    expected = config.get("logit_scale", 1.0) * (rows @ head.T + tensors.get("head_bias", 0.0))
    found = reference.logits(config, tensors, ids, source=source)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_each_node_of_a_tree_attends_to_the_whole_source(case: Any) -> None:
    config, tensors, source, ids = case
    parents = [-1, 0, 0, 1, 2]
    found = reference.tree_logits(config, tensors, ids, [1, 2, 3, 4, 5], parents, source=source)
    for node, path in enumerate([[1], [1, 2], [1, 3], [1, 2, 4], [1, 3, 5]]):
        expected = reference.logits(config, tensors, ids + path, source=source)[-1]
        np.testing.assert_allclose(found[node], expected, rtol=1e-9, atol=1e-11)


def test_a_layer_whose_attention_is_skipped_does_not_see_the_source(case: Any) -> None:
    config, tensors, source, ids = case
    every = range(config["n_layer"])
    one, other = (
        reference.tree_logits(config, tensors, [], ids, [-1, 0, 1, 2, 3, 4, 5], source=text, skip_attn=every)
        for text in (source, source[:4])
    )
    assert np.array_equal(one, other)


def test_a_source_is_given_to_models_with_an_encoder_and_no_others(case: Any) -> None:
    config, tensors, source, ids = case
    with pytest.raises(ValueError, match="has a source"):
        reference.logits(config, tensors, ids)
    with pytest.raises(ValueError, match="encoder"):
        reference.logits({n: v for n, v in config.items() if n != "encoder"}, tensors, ids, source=source)
