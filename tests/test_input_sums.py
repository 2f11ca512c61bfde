"""Sums of squares of the inputs of matrices: equal to NumPy's, however a text is split."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from allocations import fail_each_allocation, needs_hooks, nothing_leaks
from compiled import Decoder, Model, tensor_shapes
from worlds.canonical import LLAMA, MIXTURES, SWITCHES, VARIANTS, build, random_tensors

# Tables, and matrices that no number format rounds.
UNCOUNTED = re.compile(
    r"embedding$|relative_bias$|(router|shared_gate|mixer_decay|mixer_beta)\.weight$|mixer_conv$"
)

CONFIGS = VARIANTS | MIXTURES | {"parallel-two-norms": SWITCHES["parallel-two-norms"]}
SOON = {"llama", "gpt-tanh", "parallel-one-norm-without-bias", "parallel-two-norms", *list(MIXTURES)[:2]}

IDS = np.random.default_rng(2).integers(0, 101, 70).tolist()


def matrices(config: dict[str, Any]) -> list[str]:
    shapes = tensor_shapes(config)
    return [name for name, shape in shapes.items() if len(shape) == 2 and not UNCOUNTED.search(name)]


def sums_of(model: Model, names: list[str], together: int) -> list[tuple[np.ndarray, int]]:
    """Sums of a text read in forward passes of `n` tokens."""
    decoder = Decoder(model, capacity=len(IDS), max_nodes=together, input_sums=True)
    for first in range(0, len(IDS), together):
        piece = IDS[first : first + together]
        decoder.forward(piece, range(-1, len(piece) - 1))
        decoder.keep(range(len(piece)))
    return [decoder.input_sums(name) for name in names]


def test_inputs_of_a_single_token() -> None:
    """Its attention gives the values of the token itself."""
    config, token = LLAMA | {"n_layer": 1, "n_kv_head": 6}, 17
    tensors = random_tensors(config)
    decoder = Decoder(build(config, tensors), capacity=1, input_sums=True, captures=[0, 1, 2])
    decoder.prefill([token], logits=True)

    def w(name: str) -> np.ndarray:
        return tensors[f"layers.0.{name}.weight"].astype(np.float64)

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2) + config["norm_eps"]) * weight

    stream = tensors["token_embedding"][token].astype(np.float64)
    read = norm(stream, w("attn_norm"))
    values = w("attn_v") @ read
    stream = stream + w("attn_out") @ values
    hidden = norm(stream, w("mlp_norm"))
    gate = w("mlp_gate") @ hidden
    activated = gate / (1 + np.exp(-gate)) * (w("mlp_up") @ hidden)
    ended = norm(stream + w("mlp_down") @ activated, tensors["output_norm.weight"].astype(np.float64))
    expected = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v"), read), "attn_out": values,
        "mlp_gate": hidden, "mlp_up": hidden, "mlp_down": activated,
    }  # fmt: skip
    for name, x in expected.items():
        squares, n_rows = decoder.input_sums(f"layers.0.{name}.weight")
        assert n_rows == 1
        np.testing.assert_allclose(squares, x**2, rtol=1e-4, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(decoder.input_sums("head")[0], ended**2, rtol=1e-4, atol=1e-9)
    captured = decoder.captured(2)[0].astype(np.float64)
    np.testing.assert_array_equal(decoder.input_sums("head")[0], captured**2)


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS]
)
def test_any_division_of_a_text_has_the_same_sums(name: str) -> None:
    """Rows are in bands, and experts' rows are gathered. Each row counts once for each matrix it passes."""
    config = CONFIGS[name]
    names = matrices(config)
    model = build(config, random_tensors(config), dtype="int8" if "gated" in name else "f32")
    alone, together = (sums_of(model, names, n) for n in (1, 64))
    for name, (one, n_one), (other, n_other) in zip(names, alone, together, strict=True):
        assert n_one == n_other, name
        np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=name)
        if ".experts." not in name:
            assert n_one == len(IDS), name
    chosen = [n for name, (_, n) in zip(names, alone, strict=True) if ".experts." in name]
    if config.get("n_experts"):
        per_layer = config["n_experts_per_token"] * len(IDS)
        n_mixtures = sum(config.get("mixtures") or [1] * config["n_layer"])
        n_matrices = 3 if config["gated"] else 2
        assert sum(chosen) == n_matrices * n_mixtures * per_layer
        assert (len(set(chosen)) > 1) == (config["n_experts_per_token"] < config["n_experts"])


def test_what_is_refused() -> None:
    model = build(LLAMA, random_tensors(LLAMA))
    with pytest.raises(ValueError, match="n_threads is 2, expected 1 with input_sums"):
        Decoder(model, capacity=1, n_threads=2, input_sums=True)
    decoder = Decoder(model, capacity=1, input_sums=True)
    for name in ("layers.0.attn_norm.weight", "layers.9.attn_q.weight", "position_embedding"):
        with pytest.raises(ValueError, match=f"tensor {name}: no sums are kept, expected a matrix"):
            decoder.input_sums(name)
    with pytest.raises(ValueError, match="no sums are kept, expected a matrix, with input_sums"):
        Decoder(model, capacity=1).input_sums("head")


@needs_hooks
def test_memory() -> None:
    model = build(LLAMA, random_tensors(LLAMA))
    with nothing_leaks():
        fail_each_allocation(lambda: Decoder(model, capacity=4, input_sums=True))
