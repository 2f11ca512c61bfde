"""The executable specification against oracles that share no formula with it."""

from __future__ import annotations

import cmath
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from proofs import prove
from specdec import reference
from tables import shapes, table

# --------------------------------------------------------------------------------- the decoder

BASE: dict[str, Any] = {
    "n_vocab": 11,
    "n_ctx": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_kv_head": 2,
    "d_model": 12,
    "d_head": 6,
    "d_ff": 20,
    "norm": "rms",
    "norm_eps": 1e-5,
    "position": "rotary",
    "inv_freq": [1.0, 0.3, 0.05],
    "activation": "silu",
    "gated": True,
    "tied": False,
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "sliding_window": 0,
}
GPT: dict[str, Any] = {
    **BASE,
    "n_kv_head": 4,
    "norm": "layer",
    "position": "learned",
    "inv_freq": [],
    "activation": "gelu_tanh",
    "gated": False,
    "tied": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "mistral": {**BASE, "sliding_window": 3, "n_kv_head": 1},
    "window-of-one": {**BASE, "sliding_window": 1},
    "tied-with-biases": {**BASE, "tied": True, "qkv_bias": True, "n_kv_head": 4},
    "gpt2": GPT,
    "gpt-exact-gelu": {**GPT, "activation": "gelu", "norm_eps": 1e-3},
    "layer-norm-rotary-gated-gelu": {**BASE, "norm": "layer", "activation": "gelu", "mlp_bias": True},
    "one-layer-one-head": {**BASE, "n_layer": 1, "n_head": 1, "n_kv_head": 1},
}


def random_tensors(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Weights of an ordinary scale for every canonical name of a configuration."""
    rng = np.random.default_rng(seed)
    d_model, d_head, d_ff = config["d_model"], config["d_head"], config["d_ff"]
    tensors: dict[str, np.ndarray] = {}

    def matrix(name: str, n_out: int, n_in: int, bias: bool = False) -> None:
        tensors[f"{name}.weight"] = rng.standard_normal((n_out, n_in)) / math.sqrt(n_in)
        if bias:
            tensors[f"{name}.bias"] = rng.standard_normal(n_out)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = 1 + 0.2 * rng.standard_normal(d_model)
        if config["norm"] == "layer":
            tensors[f"{name}.bias"] = 0.2 * rng.standard_normal(d_model)

    tensors["token_embedding"] = rng.standard_normal((config["n_vocab"], d_model))
    if config["position"] == "learned":
        tensors["position_embedding"] = rng.standard_normal((config["n_ctx"], d_model))
    if not config["tied"]:
        tensors["head"] = rng.standard_normal((config["n_vocab"], d_model))
    for layer in (f"layers.{i}" for i in range(config["n_layer"])):
        norm(f"{layer}.attn_norm")
        matrix(f"{layer}.attn_q", config["n_head"] * d_head, d_model, config["qkv_bias"])
        matrix(f"{layer}.attn_k", config["n_kv_head"] * d_head, d_model, config["qkv_bias"])
        matrix(f"{layer}.attn_v", config["n_kv_head"] * d_head, d_model, config["qkv_bias"])
        matrix(f"{layer}.attn_out", d_model, config["n_head"] * d_head, config["out_bias"])
        norm(f"{layer}.mlp_norm")
        if config["gated"]:
            matrix(f"{layer}.mlp_gate", d_ff, d_model, config["mlp_bias"])
        matrix(f"{layer}.mlp_up", d_ff, d_model, config["mlp_bias"])
        matrix(f"{layer}.mlp_down", d_model, d_ff, config["mlp_bias"])
    norm("output_norm")
    return {name: array.astype(np.float32) for name, array in tensors.items()}


class OneByOne:
    """The decoder in another manner: a token at a time, heads in a loop, lists as the cache, rotation by
    complex numbers, and the normal distribution for the exact GELU."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self.config = config
        self.tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.keys: list[list[list[np.ndarray]]] = [[] for _ in range(config["n_layer"])]
        self.values: list[list[list[np.ndarray]]] = [[] for _ in range(config["n_layer"])]

    def times(self, x: np.ndarray, name: str) -> np.ndarray:
        return np.array([np.dot(row, x) for row in self.tensors[name]])

    def embed(self, token: int) -> np.ndarray:
        return self.tensors["token_embedding"][token].copy()

    def kept(self, head: np.ndarray) -> np.ndarray:
        return head

    def linear(self, x: np.ndarray, name: str, bias: bool) -> np.ndarray:
        y = self.times(x, f"{name}.weight")
        return y + self.tensors[f"{name}.bias"] if bias else y

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = self.tensors[f"{name}.weight"]
        if self.config["norm"] == "rms":
            return weight * x * (np.dot(x, x) / len(x) + self.config["norm_eps"]) ** -0.5
        return (x - x.mean()) * (x.var() + self.config["norm_eps"]) ** -0.5 * weight + self.tensors[
            f"{name}.bias"
        ]

    def rotate(self, head: np.ndarray, position: int) -> np.ndarray:
        if self.config["position"] == "learned":
            return head
        half = len(head) // 2
        turned = [
            complex(head[i], head[i + half]) * cmath.exp(1j * position * self.config["inv_freq"][i])
            for i in range(half)
        ]
        return np.array([z.real for z in turned] + [z.imag for z in turned])

    def activate(self, x: np.ndarray) -> np.ndarray:
        functions = {
            "silu": lambda v: v / (1 + math.exp(-v)),
            "gelu": lambda v: v * NormalDist().cdf(v),
            "gelu_tanh": lambda v: (
                v / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)))
            ),
        }
        return np.array([functions[self.config["activation"]](float(v)) for v in x])

    def step(self, token: int) -> np.ndarray:
        config, position = self.config, len(self.keys[0])
        d_head, group = config["d_head"], config["n_head"] // config["n_kv_head"]
        x = self.embed(token)
        if config["position"] == "learned":
            x += self.tensors["position_embedding"][position]
        for i in range(config["n_layer"]):
            h = self.norm(x, f"layers.{i}.attn_norm")
            q, k, v = (self.linear(h, f"layers.{i}.attn_{name}", config["qkv_bias"]) for name in "qkv")
            kv_heads = [slice(j * d_head, (j + 1) * d_head) for j in range(config["n_kv_head"])]
            self.keys[i].append([self.kept(self.rotate(k[part], position)) for part in kv_heads])
            self.values[i].append([self.kept(v[part]) for part in kv_heads])
            first = max(0, position + 1 - config["sliding_window"]) if config["sliding_window"] else 0
            mixed: list[float] = []
            for head in range(config["n_head"]):
                query = self.kept(self.rotate(q[head * d_head : (head + 1) * d_head], position))
                weights = [
                    math.exp(float(np.dot(query, keys[head // group])) / d_head**0.5)
                    for keys in self.keys[i][first:]
                ]
                total = sum(
                    w * values[head // group]
                    for w, values in zip(weights, self.values[i][first:], strict=True)
                )
                mixed.extend(total / sum(weights))
            x = x + self.linear(np.array(mixed), f"layers.{i}.attn_out", config["out_bias"])
            h = self.norm(x, f"layers.{i}.mlp_norm")
            hidden = self.linear(h, f"layers.{i}.mlp_up", config["mlp_bias"])
            if config["gated"]:
                hidden = hidden * self.activate(self.linear(h, f"layers.{i}.mlp_gate", config["mlp_bias"]))
            else:
                hidden = self.activate(hidden)
            x = x + self.linear(hidden, f"layers.{i}.mlp_down", config["mlp_bias"])
        return self.times(self.norm(x, "output_norm"), "token_embedding" if config["tied"] else "head")


class InFormat(OneByOne):
    """The same in a number format; what its products are is test_formats.py's to say."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray], format: str) -> None:
        super().__init__(config, tensors)
        self.format = format

    def times(self, x: np.ndarray, name: str) -> np.ndarray:
        return reference.product(x[None], self.tensors[name], self.format)[0].astype(np.float64)

    def embed(self, token: int) -> np.ndarray:
        row = self.tensors["token_embedding"][token]
        return row.copy() if self.format == "f32" else reference.round_bf16(row).astype(np.float64)

    def kept(self, head: np.ndarray) -> np.ndarray:
        return reference.round_bf16(head).astype(np.float64)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_logits_equal_a_decoder_that_takes_one_token_at_a_time(config: dict[str, Any]) -> None:
    tensors = random_tensors(config, seed=1)
    ids = np.random.default_rng(2).integers(config["n_vocab"], size=9).tolist()
    decoder = OneByOne(config, tensors)
    expected = np.array([decoder.step(token) for token in ids])
    got = reference.logits(config, tensors, ids)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    single = reference.logits(config, tensors, ids, dtype=np.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("format", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_logits_in_number_formats(config: dict[str, Any], format: str) -> None:
    tensors = random_tensors(config, seed=1)
    ids = np.random.default_rng(2).integers(config["n_vocab"], size=9).tolist()
    decoder = InFormat(config, tensors, format)
    expected = np.array([decoder.step(token) for token in ids])
    got = reference.logits(config, tensors, ids, format=format, cache_format="bf16")
    # Only the order of sums in norms and attention differs, in double precision.
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(got - reference.logits(config, tensors, ids)).max() > 1e-4


@pytest.mark.parametrize("n_prefix", [0, 1, 5])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_each_node_of_a_tree_has_the_logits_of_its_own_sequence(
    config: dict[str, Any], n_prefix: int
) -> None:
    tensors = random_tensors(config, seed=3)
    rng = np.random.default_rng(4)
    prefix = rng.integers(config["n_vocab"], size=n_prefix).tolist()
    parents = [-1, 0, 0, 1, 1, 2, 4, 3]
    tokens = rng.integers(config["n_vocab"], size=len(parents)).tolist()
    got = reference.tree_logits(config, tensors, prefix, tokens, parents)
    assert got.shape == (len(parents), config["n_vocab"])
    for node in range(len(parents)):
        sequence, ancestor = [], node
        while ancestor >= 0:
            sequence.insert(0, tokens[ancestor])
            ancestor = parents[ancestor]
        decoder = OneByOne(config, tensors)
        expected = [decoder.step(token) for token in prefix + sequence][-1]
        np.testing.assert_allclose(got[node], expected, rtol=1e-10, atol=1e-12)


# --------------------------------------------------------------------------- distributions

QUARTERS = np.log([0.25, 0.125, 0.5, 0.125])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [1 / 4, 1 / 8, 1 / 2, 1 / 8]),
        ({"temperature": 0.5}, [4 / 22, 1 / 22, 16 / 22, 1 / 22]),
        ({"temperature": 0.0}, [0, 0, 1, 0]),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.1}, [0, 0, 1, 0]),
        ({"temperature": 1.0, "top_k": 1}, [0, 0, 1, 0]),
        ({"temperature": 1.0, "top_k": 2}, [1 / 3, 0, 2 / 3, 0]),
        ({"temperature": 1.0, "top_k": 3}, [2 / 7, 1 / 7, 4 / 7, 0]),
        ({"temperature": 1.0, "top_k": 9}, [1 / 4, 1 / 8, 1 / 2, 1 / 8]),
        ({"temperature": 1.0, "top_p": 0.49}, [0, 0, 1, 0]),
        ({"temperature": 1.0, "top_p": 0.51}, [1 / 3, 0, 2 / 3, 0]),
        ({"temperature": 1.0, "top_p": 0.76}, [2 / 7, 1 / 7, 4 / 7, 0]),
        ({"temperature": 1.0, "top_p": 0.88}, [1 / 4, 1 / 8, 1 / 2, 1 / 8]),
        # The largest has 1/2 of the whole but 2/3 of what top-k left, of which the nucleus is taken.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.66}, [0, 0, 1, 0]),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.67}, [1 / 3, 0, 2 / 3, 0]),
        ({"temperature": 1.0, "top_p": 1e-9}, [0, 0, 1, 0]),
    ],
)
def test_distribution_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    np.testing.assert_allclose(reference.distribution(QUARTERS, **settings), expected, rtol=0, atol=1e-15)


def test_ties_go_to_the_lowest_id() -> None:
    level = np.zeros(6)
    assert reference.distribution(level, 0.0).tolist() == [1, 0, 0, 0, 0, 0]
    assert reference.distribution(level, 1.0, top_k=2).tolist() == [0.5, 0.5, 0, 0, 0, 0]
    assert reference.distribution(level, 1.0, top_p=0.4).tolist() == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3, 0, 0, 0]
    )
    assert reference.distribution([0.0, 3.0, 1.0, 3.0], 0.0).tolist() == [0, 1, 0, 0]


def test_the_nucleus_is_the_smallest_set_with_enough_mass() -> None:
    """A token whose predecessors reach top_p exactly is not needed: powers of two make the sums exact."""
    halves = np.log2([0.5, 0.25, 0.125, 0.125]) * math.log(2)
    kept = np.flatnonzero(reference.distribution(halves, 1.0, top_p=0.5 - 1e-12))
    assert kept.tolist() == [0]
    assert np.flatnonzero(reference.distribution([0.0, 0.0, 0.0, 0.0], 1.0, top_p=0.5)).tolist() == [0, 1]
    assert np.flatnonzero(reference.distribution([0.0, 0.0, 0.0, 0.0], 1.0, top_p=0.75)).tolist() == [0, 1, 2]


def test_extreme_logits_and_temperatures() -> None:
    assert reference.distribution([-np.inf, 0.0, -np.inf], 1.0).tolist() == [0, 1, 0]
    assert reference.distribution([1e38, -1e38, 3e38], 1e-30).tolist() == [0, 0, 1]
    assert reference.distribution([5.0], 0.7, 1, 0.1).tolist() == [1]
    np.testing.assert_allclose(reference.distribution([1.0, 2.0, 3.0], 1e30), [1 / 3] * 3, rtol=1e-15)


# -------------------------------------------------------------------- speculative sampling


def test_sample_inverts_the_cumulative_distribution() -> None:
    probs = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    just_below = np.nextafter
    assert [
        reference.sample(probs, u) for u in (0.0, just_below(0.25, 0), 0.25, just_below(0.75, 0), 0.75)
    ] == [1, 1, 3, 3, 4]
    assert reference.sample(probs, just_below(1.0, 0)) == 4


def test_sample_never_draws_a_token_without_mass() -> None:
    """Ten tenths make less than one in doubles; the largest uniform lies above their sum."""
    probs = np.array([0.1] * 10 + [0.0, 0.0])
    largest = 1 - 2**-53
    assert np.cumsum(probs)[-1] <= largest
    assert reference.sample(probs, largest) == 9
    assert reference.sample(np.array([0.0, 0.0, 1.0]), 0.0) == 2


def test_accept_probability_and_residual_by_hand() -> None:
    target, draft = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.25, 0.0, 0.25, 0.5])
    assert [reference.accept_probability(target, draft, x) for x in range(4)] == [1, 1, 0, 0]
    assert reference.accept_probability(draft, target, 0) == 0.5
    assert reference.residual(target, draft).tolist() == [1 / 3, 2 / 3, 0, 0]
    assert reference.residual(target, target) is target


@pytest.mark.parametrize("shape", ["chain2", "two", "left"])
def test_the_reference_samples_exactly_the_target(shape: str) -> None:
    """A short proof here; ``test_verify`` has the long one, of the reference and of the C core alike."""
    target = table(3, 5, lambda logits: reference.distribution(logits, 0.9))
    draft = table(3, 6, lambda logits: reference.distribution(logits, 1.3, top_k=2))
    prove(reference.verify, shapes()[shape], target, draft)
