"""Prompts, scores and sources with OpenBLAS (f32 models) or tiles (other formats).

Both are close to the row kernels but have different bits; those of tiles are equal on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from allocations import fail_each_allocation, needs_hooks, nothing_leaks
from compiled import (
    Model,
    fastest_prefill,
    in_instruction_sets,
    product,
    prompt_logits,
    score,
    scores_of,
    token_logits,
)
from refusals import refuses
from specdec import reference
from specdec.errors import InputError
from worlds.canonical import (
    ENCODER_DECODERS,
    IN_F32,
    LLAMA,
    MIXTURES,
    VARIANTS,
    build,
    random_source,
    random_tensors,
)
from worlds.folders import llama_config, write_hf

SLICE = 256
"""Tokens of a slice of a prompt."""
# Sums so long that OpenBLAS takes them in parts: its bits then differ from the row kernels'.
WIDE = LLAMA | {"n_ctx": 1100, "d_ff": 1300}
LONG = LLAMA | {"n_ctx": 400}
DENSE = {name: config | {"n_ctx": 1100} for name, config in VARIANTS.items() if name not in MIXTURES}
DENSE_ENCODERS = {name: config for name, config in ENCODER_DECODERS.items() if "mixture" not in name}
OF_TILES = ("bf16", "int8", "int4")
IN_EACH_FORMAT = pytest.mark.parametrize("dtype", OF_TILES)
SOURCES = [
    *((name, "f32", n) for name in DENSE_ENCODERS for n in (1, 2, 31, 33, 75)),
    *((name, dtype, 75) for name in ENCODER_DECODERS for dtype in OF_TILES),
]


def ids_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


def model_of(config: dict[str, Any], tensors: Any = None, dtype: str = "bf16", prefill: str = "") -> Model:
    """A model that uses, by default, OpenBLAS in f32 and tiles in other formats."""
    tensors = random_tensors(config) if tensors is None else tensors
    is_f32 = dtype == "f32"
    prefill = prefill or ("blas" if is_f32 else "tiles")
    return build(config, tensors, dtype=dtype, cache_dtype="f32" if is_f32 else "bf16", prefill=prefill)


def both(config: dict[str, Any], dtype: str = "f32", tensors: Any = None) -> tuple[Model, Model]:
    """A model that reads prompts with the row kernels, and one that does not."""
    tensors = random_tensors(config) if tensors is None else tensors
    return model_of(config, tensors, dtype, "rows"), model_of(config, tensors, dtype)


def in_bf16(config: dict[str, Any], tensors: dict[str, Any], dtype: str) -> Model:
    """A bf16 model with the rounded matrices of an int8 or int4 model."""
    held = dict(tensors)
    if config["tied"]:
        config, held["head"] = config | {"tied": False}, tensors["token_embedding"]
    for name, tensor in held.items():
        is_matrix = tensor.ndim == 2 and name.endswith((".weight", "head"))
        if is_matrix and not name.endswith(IN_F32):  # which are in f32
            held[name] = reference.stored(tensor, dtype)
    return model_of(config, held)


def assert_near(found: NDArray[Any], expected: NDArray[Any], tolerance: float = 2e-5) -> None:
    """Compare up to rounding of sums in another order."""
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


# -------------------------------------------------------------------------------------- OpenBLAS


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
    # one token at a time, as in decoding, both use the row kernels
    assert np.array_equal(token_logits(rows, 5), token_logits(blas, 5))


def test_scores_are_near_and_do_not_depend_on_threads() -> None:
    rows, blas = both(WIDE)
    ids = ids_of(600)
    found = score(blas, ids)
    np.testing.assert_allclose(found, score(rows, ids), atol=1e-4)
    assert np.array_equal(found, score(blas, ids, n_threads=3))


def test_a_source_of_several_slices() -> None:
    config = ENCODER_DECODERS["norms-before-rotary-wide-head"]
    config |= {"encoder": config["encoder"] | {"n_ctx": 700, "d_ff": 1300}}
    source = random_source(config, 600)
    rows, blas = both(config)
    found, expected = blas.encode(source), rows.encode(source)
    assert_near(found, expected)
    assert not np.array_equal(found, expected)
    assert np.array_equal(found, blas.encode(source, n_threads=2))


def test_memory_of_models() -> None:
    """A decoder's matrices count twice, an untied head too; matrices used by sources alone count once."""
    filled = LLAMA | {"n_head": 8, "n_kv_head": 4, "d_ff": 96}  # matrices that fill their panels
    for config in (filled, filled | {"tied": True}, *DENSE_ENCODERS.values()):
        tensors = random_tensors(config)
        rows, blas = (model.n_bytes for model in both(config, "f32", tensors))
        if config.get("encoder"):
            assert blas <= rows
            continue
        matrices = sum(t.nbytes for name, t in tensors.items() if t.ndim == 2 and name.startswith("layers."))
        head = 0 if config["tied"] else tensors["head"].nbytes
        assert blas - rows == matrices + head


# -------------------------------------------------------------------------------------- tiles


ATTENTION: dict[str, Any] = LLAMA | {
    "n_layer": 1, "n_head": 4, "n_kv_head": 2, "d_head": 24, "d_model": 64, "n_ctx": 400, "inv_freq": [1.0],
    "rotations": [-1], "norm_eps": 1e-30, "output_norm": False,
}  # fmt: skip


@pytest.mark.parametrize("cache", ["bf16", "int8"])
@pytest.mark.parametrize("n_ids", [70, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "switches",
    [{}, {"sliding_window": 40}, {"alibi": [0.5, 0.25, 0.125, 0.0625], "score_scales": [0.4]}],
    ids=str,
)
def test_attention_has_the_bits_of_the_order(switches: dict[str, Any], n_ids: int, cache: str) -> None:
    """The norm leaves embeddings at ±1; after the attention come an MLP that adds nothing and no norm."""
    config = ATTENTION | switches
    tensors = random_tensors(config)
    tensors["token_embedding"] = np.sign(tensors["token_embedding"])
    tensors["layers.0.attn_norm.weight"] = np.ones(64, np.float32)
    tensors["layers.0.mlp_down.weight"] = np.zeros_like(tensors["layers.0.mlp_down.weight"])
    rng = np.random.default_rng(3)
    for part, deviation in (("attn_q", 0.5), ("attn_k", 0.5), ("attn_v", 1.0)):  # scores of deviation 80
        weights = tensors[f"layers.0.{part}.weight"]
        tensors[f"layers.0.{part}.weight"] = rng.normal(0, deviation, weights.shape).astype(np.float32)
    ids = ids_of(n_ids)

    def times(x: NDArray[Any], name: str) -> NDArray[Any]:
        return reference.product(x, tensors[f"{name}.weight"], "bf16", "tiles")

    x = tensors["token_embedding"][ids]
    q, k, v = (times(x, f"layers.0.attn_{part}").reshape(n_ids, -1, 24) for part in "qkv")
    k, v = (reference.formats.stored(part.reshape(-1, 24), cache).reshape(part.shape) for part in (k, v))
    distance = np.subtract.outer(np.arange(n_ids), np.arange(n_ids))
    seen = (distance >= 0) & (distance < (config["sliding_window"] or n_ids))
    scale = config.get("score_scales", [24**-0.5])[0]
    attended = np.empty((n_ids, 4, 24), np.float32)
    for head in range(4):
        slope = np.float32(config["alibi"][head]) if "alibi" in config else None
        biases = None if slope is None else -(slope * distance.astype(np.float32))
        qkv = q[:, head], k[:, head // 2], v[:, head // 2]
        attended[:, head] = reference.attention_in_tiles(*qkv, seen, scale, biases)
    x = x + times(attended.reshape(n_ids, -1), "layers.0.attn_out")
    expected = reference.product(x, tensors["head"], "bf16", "tiles")
    model = build(config, tensors, dtype="bf16", cache_dtype=cache, prefill="tiles")
    assert np.array_equal(prompt_logits(model, ids), expected)


def test_attention_of_a_cache_in_f32_rounds_what_it_reads() -> None:
    """So it has the bits of a bf16 cache; texts with a common prefix are branches of a tree."""
    tensors, texts = random_tensors(LONG), [ids_of(90) + ids_of(n, seed=n) for n in (40, 70)]
    own: dict[str, Any] = {"dtype": "bf16", "prefill": "tiles"}
    models = [build(LONG, tensors, cache_dtype=cache, **own) for cache in ("bf16", "f32")]
    assert np.array_equal(*(scores_of(model, texts)[0] for model in models))
    assert np.array_equal(*(prompt_logits(model, texts[1]) for model in models))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", VARIANTS)
def test_codes_in_tiles_are_multiplied_as_their_values_in_bf16(name: str, dtype: str) -> None:
    tensors, ids = random_tensors(VARIANTS[name]), ids_of(150)
    found = prompt_logits(model_of(VARIANTS[name], tensors, dtype), ids)
    assert np.array_equal(found, prompt_logits(in_bf16(VARIANTS[name], tensors, dtype), ids))


@IN_EACH_FORMAT
@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_of_a_prompt_depends_on_the_tokens_before_it_alone(name: str, dtype: str) -> None:
    """It depends neither on prompt slices nor on threads, and is near the row kernels'."""
    (rows, tiles), ids = both(VARIANTS[name], dtype), ids_of(150)
    assert (rows.prefill, tiles.prefill) == ("rows", "tiles")
    found = prompt_logits(tiles, ids)
    expected = prompt_logits(rows, ids)
    if name not in MIXTURES and dtype == "bf16":  # a router may choose another expert
        assert_near(found, expected, 0.03)
    assert not np.array_equal(found, expected)
    assert np.array_equal(found, prompt_logits(tiles, ids, n_threads=3))
    assert np.array_equal(found, prompt_logits(tiles, ids, pieces=(1, 18, 33, 34, 99)))
    assert np.array_equal(found[:40], prompt_logits(tiles, ids[:40]))


# -------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize(("name", "dtype", "n"), SOURCES)
def test_sources_are_near_those_of_the_row_kernels(name: str, dtype: str, n: int) -> None:
    config = ENCODER_DECODERS[name]
    tensors, source = random_tensors(config), random_source(config, n)
    rows, other = both(config, dtype, tensors)
    found, expected = other.encode(source), rows.encode(source)
    assert np.array_equal(found, other.encode(source, n_threads=3))
    if dtype == "f32":
        assert_near(found, expected)
        for tensor in ("encoder.layers.0.mlp_up.weight", "layers.0.cross_k.weight"):
            assert np.array_equal(other.matrix(tensor), tensors[tensor])
        assert_near(*(prompt_logits(model, [1, 2, 3, 4], source=source) for model in (other, rows)))
        return
    assert not np.array_equal(found, expected) and other.n_bytes == rows.n_bytes
    if "mixture" not in name and dtype == "bf16":  # a router may choose another expert
        assert_near(found, expected, 0.05)
    if dtype != "bf16":
        assert np.array_equal(found, in_bf16(config, tensors, dtype).encode(source))


@pytest.mark.parametrize("n", [200, 400])
@pytest.mark.parametrize("name", ["shared-embedding-relative-positions", "biases-by-layer-other-sizes"])
def test_long_sources_are_near_those_of_the_row_kernels(name: str, n: int) -> None:
    """Rows attend to spans of positions before and after them, with distance biases."""
    config = ENCODER_DECODERS[name]
    config = config | {"encoder": config["encoder"] | {"n_ctx": n}}
    tensors, source = random_tensors(config), random_source(config, n)
    for part in ("relative_bias", "encoder.relative_bias", "encoder.layers.0.relative_bias"):
        if part in tensors:
            tensors[part] = 3 * tensors[part] / np.abs(tensors[part]).max()
    rows, tiles = both(config, "bf16", tensors)
    found = tiles.encode(source)
    assert_near(found, rows.encode(source), 0.05)
    assert np.array_equal(found, tiles.encode(source, n_threads=3))


# -------------------------------------------------------------------------------------- the rest


BLAS = """
import hashlib
from test_prefill import WIDE, both, ids_of, prompt_logits
print(hashlib.sha256(prompt_logits(both(WIDE)[1], ids_of(300)).tobytes()).hexdigest())
"""
TILES = """
import hashlib
from test_prefill import ENCODER_DECODERS, LONG, OF_TILES, ids_of, model_of, prompt_logits, random_source
config = ENCODER_DECODERS["norms-of-the-stream"]
digest = hashlib.sha256()
for dtype in OF_TILES:
    digest.update(model_of(config, dtype=dtype).encode(random_source(config, 75)).tobytes())
    digest.update(prompt_logits(model_of(LONG, dtype=dtype), ids_of(150)).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_no_instruction_set_changes_a_bit() -> None:
    """With OpenBLAS prompts: the same OpenBLAS kernels with the first instruction set and with "ref"."""
    assert len(set(in_instruction_sets(TILES).values())) == 1
    kernels = {specdec.available_kernels()[0], "ref"}
    assert len(set(in_instruction_sets(BLAS, kernels=kernels).values())) == 1


SETS = ("ref", "avx2", "avxvnni", "avx512f", "avx512vnni", "avx512", "amx", "neon")


@pytest.mark.parametrize("kernels", SETS)
def test_what_auto_means(kernels: str) -> None:
    """Tiles on AMX for every format except f32, and rows elsewhere: the choice decides bits."""
    assert set(specdec.available_kernels()) <= set(SETS)
    tiled = {*OF_TILES, "file"} if kernels == "amx" else set()
    for dtype in ("f32", *OF_TILES, "file"):
        assert fastest_prefill(kernels, dtype) == ("tiles" if dtype in tiled else "rows")


@pytest.mark.parametrize("kernels", ["amx", "avx512"])
def test_auto_is_resolved_once(kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with these kernels; files and pickles keep what decides bits."""
    monkeypatch.setattr("specdec._core.kernels", lambda: kernels)
    folder, ids = write_hf(tmp_path / "model", llama_config(), seed=0), [3, 7, 5] * 13
    for dtype in ("f32", *OF_TILES):
        auto, method = specdec.load(folder, dtype), fastest_prefill(kernels, dtype)
        assert auto.prefill == auto.origin.arguments["prefill"] == method and f"in {method}" in repr(auto)
        named = specdec.load(folder, dtype, prefill=method)
        assert np.array_equal(auto.logits(ids), named.logits(ids))
    method = fastest_prefill(kernels, "int8")
    packed = specdec.convert(folder, tmp_path / "model.specdec", "int8")
    mapped = specdec.load(packed)
    assert b'"prefill": "rows"' in packed.read_bytes()  # the same file on every processor
    assert mapped.prefill == mapped.origin.arguments["prefill"] == method
    specdec.load(folder, "f32", prefill="blas", cache=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    assert specdec.load(cached).prefill == "blas"  # its layout has no other
    for prefill, of_draft in (("rows", "rows"), ("auto", method)):  # a portable target has a portable draft
        target = specdec.load(folder, "int8", prefill=prefill)  # type: ignore[arg-type]
        for draft in (specdec.drafts.named(str(packed), target), specdec.drafts.load(packed, target)):
            assert draft.model.prefill == of_draft  # type: ignore[attr-defined]


def test_unsupported_models_are_refused(tmp_path: Path) -> None:
    tensors, mixture = random_tensors(LLAMA), MIXTURES["mixture-softmax"]
    for dtype in OF_TILES:
        with pytest.raises(InputError, match=f"needs weights in f32, not {dtype}"):
            build(LLAMA, tensors, dtype=dtype, prefill="blas")
    with pytest.raises(InputError, match="needs weights in bf16, int8 or int4, not f32"):
        build(LLAMA, tensors, dtype="f32", prefill="tiles")
    with pytest.raises(InputError, match="does not support mixtures of experts"):
        build(mixture, random_tensors(mixture), prefill="blas")
    with pytest.raises(ValueError, match='prefill is "mkl", expected "rows", "tiles" or "blas"'):
        build(LLAMA, tensors, prefill="mkl")
    with pytest.raises(ValueError, match="expected 'bf16', 'int8' or 'int4' for the engine 'tiles'"):
        product(np.ones((1, 4), np.float32), np.ones((1, 4), np.float32), "f32", engine="tiles")
    with pytest.raises(ValueError, match="expected 'bf16', 'int8' or 'int4' for tile order"):
        reference.product([[1.0]], [[1.0]], "f32", "tiles")
    folder = write_hf(tmp_path, llama_config(), seed=0)
    with refuses("prefill", "mkl"):
        specdec.load(folder, prefill="mkl")  # type: ignore[arg-type]
    for dtype in ("f32", *OF_TILES):
        prefill: Any = "blas" if dtype == "f32" else "tiles"
        rows, model = (specdec.load(folder, dtype, prefill=how) for how in ("rows", prefill))
        assert (rows.prefill, model.prefill) == ("rows", prefill)
        assert {"blas": "by OpenBLAS", "tiles": "tiles"}[prefill] in repr(model)
        assert_near(model.logits([1, 2, 3]), rows.logits([1, 2, 3]), 2e-5 if dtype == "f32" else 0.1)


@pytest.mark.slow
@needs_hooks
def test_an_allocation_that_fails() -> None:
    both(WIDE)  # the library is loaded once
    config = DENSE_ENCODERS["biases-by-layer-other-sizes"]
    tensors, source = random_tensors(config), random_source(config, 20)
    assert fail_each_allocation(lambda: model_of(config, tensors, "f32").encode(source)) > 3
    model = model_of(LLAMA, dtype="f32")
    with nothing_leaks():
        prompt_logits(model, ids_of(40))
    assert fail_each_allocation(lambda: prompt_logits(model, ids_of(40))) > 1
