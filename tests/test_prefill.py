"""Prompts, scores and sources that OpenBLAS multiplies: near the row kernels, with bits of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from allocations import fail_each_allocation, needs_hooks, nothing_leaks
from compiled import Model, in_instruction_sets, prompt_logits, score, token_logits
from refusals import refuses
from specdec.errors import InputError, NotFiniteError
from worlds.canonical import ENCODER_DECODERS, LLAMA, MIXTURES, VARIANTS, build, random_source, random_tensors
from worlds.folders import llama_config, write_hf


def ids_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


SLICE = 256
"""Tokens of a slice of a prompt."""

LONG = {"n_ctx": 1100}
# Sums so long that OpenBLAS takes them in parts: its bits are then others than those of the row kernels.
WIDE = LLAMA | LONG | {"d_ff": 1300}
DENSE = {name: config | LONG for name, config in VARIANTS.items() if name not in MIXTURES}
DENSE_ENCODERS = {name: config for name, config in ENCODER_DECODERS.items() if "mixture" not in name}


def both(config: dict[str, Any]) -> tuple[Model, Model]:
    """A model whose prompts the row kernels multiply, and one whose prompts OpenBLAS does."""
    tensors = random_tensors(config)
    return build(config, tensors), build(config, tensors, prefill="blas")


def assert_near(found: NDArray[Any], expected: NDArray[Any], tolerance: float = 2e-5) -> None:
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


# -------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("name", DENSE)
def test_prompts_are_near_those_of_the_row_kernels(name: str) -> None:
    rows, blas = both(DENSE[name])
    assert (rows.prefill, blas.prefill) == ("rows", "blas")
    for n in (1, 33, 2 * SLICE + 40):
        ids = ids_of(n)
        found = prompt_logits(blas, ids)
        assert_near(found, prompt_logits(rows, ids))
        assert np.array_equal(found, prompt_logits(blas, ids, n_threads=3))


def test_it_is_openblas_that_multiplies() -> None:
    rows, blas = both(WIDE)
    ids = ids_of(300)
    assert not np.array_equal(prompt_logits(rows, ids), prompt_logits(blas, ids))
    # a token at a time, as texts go on, is computed by the row kernels of both
    assert np.array_equal(token_logits(rows, 5), token_logits(blas, 5))


def test_scores_are_near_and_do_not_depend_on_threads() -> None:
    rows, blas = both(WIDE)
    ids = ids_of(600)
    found = score(blas, ids)
    np.testing.assert_allclose(found, score(rows, ids), atol=1e-4)
    assert np.array_equal(found, score(blas, ids, n_threads=3))


# -------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("name", DENSE_ENCODERS)
@pytest.mark.parametrize("n", [1, 2, 31, 33, 75])
def test_sources_are_near_those_of_the_row_kernels(name: str, n: int) -> None:
    config = DENSE_ENCODERS[name]
    tensors, source = random_tensors(config), random_source(config, n)
    rows, blas = build(config, tensors), build(config, tensors, prefill="blas")
    found = blas.encode(source)
    assert_near(found, rows.encode(source))
    assert np.array_equal(found, blas.encode(source, n_threads=3))
    for tensor in ("encoder.layers.0.mlp_up.weight", "layers.0.cross_k.weight"):
        assert np.array_equal(blas.matrix(tensor), tensors[tensor])
    expected, logits = (prompt_logits(model, [1, 2, 3, 4], source=source) for model in (rows, blas))
    assert_near(logits, expected)


def test_a_source_of_several_slices() -> None:
    config = ENCODER_DECODERS["norms-before-rotary-wide-head"]
    config |= {"encoder": config["encoder"] | {"n_ctx": 700, "d_ff": 1300}}
    source = random_source(config, 600)
    rows, blas = both(config)
    found, expected = blas.encode(source), rows.encode(source)
    assert_near(found, expected)
    assert not np.array_equal(found, expected)
    assert np.array_equal(found, blas.encode(source, n_threads=2))


def test_what_it_takes_of_memory() -> None:
    """Matrices of a decoder twice, an untied head too; those that sources alone go through once."""
    filled = LLAMA | {"n_head": 8, "n_kv_head": 4, "d_ff": 96}  # matrices that fill their panels
    for config in (filled, filled | {"tied": True}, *DENSE_ENCODERS.values()):
        tensors = random_tensors(config)
        rows, blas = (build(config, tensors, prefill=prefill).n_bytes for prefill in ("rows", "blas"))
        if config.get("encoder"):
            assert blas <= rows
            continue
        matrices = sum(t.nbytes for name, t in tensors.items() if t.ndim == 2 and name.startswith("layers."))
        head = 0 if config["tied"] else tensors["head"].nbytes
        assert blas - rows == matrices + head


# -------------------------------------------------------------------------------------- the rest


INSTRUCTION_SETS = """
import hashlib
from test_prefill import WIDE, both, ids_of, prompt_logits
print(hashlib.sha256(prompt_logits(both(WIDE)[1], ids_of(300)).tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_the_row_kernels_instruction_set_changes_no_bit() -> None:
    """With the same kernels of OpenBLAS."""
    kernels = {specdec.available_kernels()[0], "ref"}
    assert len(set(in_instruction_sets(INSTRUCTION_SETS, kernels=kernels).values())) == 1


def test_a_number_that_overflows_is_named() -> None:
    tensors = random_tensors(WIDE)
    tensors["layers.1.mlp_down.weight"] = tensors["layers.1.mlp_down.weight"] * np.float32(3e38)
    tensors["layers.1.mlp_up.weight"] = tensors["layers.1.mlp_up.weight"] * np.float32(1e10)
    finite = {name: np.clip(tensor, -np.float32(3e38), np.float32(3e38)) for name, tensor in tensors.items()}
    model = build(WIDE, finite, prefill="blas")
    with pytest.raises(NotFiniteError, match="the output of layer 1 "):
        score(model, ids_of(300))


def test_weights_that_are_not_finite_are_named() -> None:
    config = DENSE_ENCODERS["norms-of-the-stream"]
    tensors = random_tensors(config)
    tensors["encoder.layers.0.attn_q.weight"][5, 7] = np.nan
    with pytest.raises(ValueError, match=r"encoder.layers.0.attn_q.weight: element \[5, 7\] is nan"):
        build(config, tensors, prefill="blas")


def test_what_it_is_not_for_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    for dtype in ("bf16", "int8", "int4"):
        with pytest.raises(InputError, match=f"is for models in f32, not in {dtype}"):
            build(LLAMA, tensors, dtype=dtype, prefill="blas")
    mixture = MIXTURES["mixture-softmax"]
    with pytest.raises(InputError, match="not for mixtures of experts"):
        build(mixture, random_tensors(mixture), prefill="blas")
    with pytest.raises(ValueError, match='prefill is "mkl", expected "rows", "tiles" or "blas"'):
        build(LLAMA, tensors, prefill="mkl")
    folder = write_hf(tmp_path, llama_config(), seed=0)
    with refuses("prefill", "mkl"):
        specdec.load(folder, prefill="mkl")  # type: ignore[arg-type]
    model = specdec.load(folder, "f32", prefill="blas")
    assert model.prefill == "blas"
    assert specdec.load(folder, "f32").prefill == "rows"
    assert_near(model.logits([1, 2, 3]), specdec.load(folder, "f32").logits([1, 2, 3]))


@pytest.mark.slow
@needs_hooks
def test_an_allocation_that_fails() -> None:
    both(WIDE)  # the library is loaded once
    config = DENSE_ENCODERS["biases-by-layer-other-sizes"]
    tensors, source = random_tensors(config), random_source(config, 20)
    assert fail_each_allocation(lambda: build(config, tensors, prefill="blas").encode(source)) > 3
    model = build(LLAMA, random_tensors(LLAMA), prefill="blas")
    with nothing_leaks():
        prompt_logits(model, ids_of(40))
    assert fail_each_allocation(lambda: prompt_logits(model, ids_of(40))) > 1
