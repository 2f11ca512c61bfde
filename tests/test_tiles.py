"""Prompts, scores and sources in the order of tiles: bits of their own, the same on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from compiled import Model, in_instruction_sets, product, prompt_logits, score, scores_of, token_logits
from specdec import reference
from specdec.errors import InputError
from worlds.canonical import ENCODER_DECODERS, LLAMA, MIXTURES, VARIANTS, build, random_source, random_tensors
from worlds.folders import llama_config, write_hf


def ids_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


LONG = LLAMA | {"n_ctx": 400}
IN_EACH_FORMAT = pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])


def model_of(
    config: dict[str, Any], tensors: dict[str, Any] | None = None, dtype: str = "bf16", prefill: str = "tiles"
) -> Model:
    tensors = random_tensors(config) if tensors is None else tensors
    return build(config, tensors, dtype=dtype, cache_dtype="bf16", prefill=prefill)


def in_bf16(config: dict[str, Any], tensors: dict[str, Any], dtype: str) -> Model:
    """A model in bf16 whose matrices are those that a model in int8 or int4 holds, rounded."""
    held = dict(tensors)
    if config["tied"]:
        config, held["head"] = config | {"tied": False}, tensors["token_embedding"]
    for name, tensor in held.items():
        is_matrix = tensor.ndim == 2 and name.endswith((".weight", "head"))
        if is_matrix and not name.endswith(("router.weight", "shared_gate.weight")):  # which are in f32
            held[name] = reference.stored(tensor, dtype)
    return model_of(config, held)


def assert_near(found: NDArray[Any], expected: NDArray[Any], tolerance: float = 0.03) -> None:
    """Sums in another order are rounded to other numbers here and there."""
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


# -------------------------------------------------------------------------------------- prompts


@IN_EACH_FORMAT
def test_a_prompt_has_the_bits_of_the_order(dtype: str) -> None:
    """With layers that add nothing the head multiplies embeddings, which a norm leaves as they are: ±1."""
    tensors = random_tensors(LLAMA)
    for name, tensor in tensors.items():
        if name.endswith(("attn_out.weight", "mlp_down.weight")):
            tensors[name] = np.zeros_like(tensor)
    tensors["token_embedding"] = np.sign(tensors["token_embedding"])
    tensors["output_norm.weight"] = np.ones_like(tensors["output_norm.weight"])
    exponents = np.random.default_rng(1).integers(-9, 9, tensors["head"].shape)
    tensors["head"] = np.ldexp(tensors["head"], exponents)  # sums are rounded
    model = model_of(LLAMA | {"norm_eps": 1e-30}, tensors, dtype)
    ids = ids_of(70)
    rows = tensors["token_embedding"][ids]
    of_rows, of_tiles = (reference.product(rows, tensors["head"], dtype, by) for by in ("rows", "tiles"))
    assert not np.array_equal(of_rows, of_tiles)
    assert np.array_equal(prompt_logits(model, ids), of_tiles)
    assert np.array_equal(token_logits(model, ids[0]), of_rows[0])


ATTENTION: dict[str, Any] = LLAMA | {
    "n_layer": 1, "n_head": 4, "n_kv_head": 2, "d_head": 24, "d_model": 64, "n_ctx": 400, "inv_freq": [1.0],
    "rotations": [-1], "norm_eps": 1e-30, "output_norm": False,
}  # fmt: skip


@pytest.mark.parametrize("n_ids", [70, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "switches",
    [{}, {"sliding_window": 40}, {"alibi": [0.5, 0.25, 0.125, 0.0625], "score_scales": [0.4]}],
    ids=str,
)
def test_attention_has_the_bits_of_the_order(switches: dict[str, Any], n_ids: int) -> None:
    """A norm leaves embeddings as they are, ±1; an MLP that adds nothing and no norm follow the attention."""
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
    assert np.array_equal(prompt_logits(model_of(config, tensors), ids), expected)


def test_attention_of_a_cache_in_f32_rounds_what_it_reads() -> None:
    """So it has the bits of one in bf16; texts that begin alike are branches of a tree."""
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
    """Neither on the slices in which a prompt is read, nor on threads; and it is near the row kernels'."""
    tensors, ids = random_tensors(VARIANTS[name]), ids_of(150)
    rows, tiles = (model_of(VARIANTS[name], tensors, dtype, prefill) for prefill in ("rows", "tiles"))
    assert (rows.prefill, tiles.prefill) == ("rows", "tiles")
    found = prompt_logits(tiles, ids)
    expected = prompt_logits(rows, ids)
    if name not in MIXTURES and dtype == "bf16":  # a router may choose another expert
        assert_near(found, expected)
    assert not np.array_equal(found, expected)
    assert np.array_equal(found, prompt_logits(tiles, ids, n_threads=3))
    assert np.array_equal(found, prompt_logits(tiles, ids, pieces=(1, 18, 33, 34, 99)))
    assert np.array_equal(found[:40], prompt_logits(tiles, ids[:40]))


@IN_EACH_FORMAT
def test_scores_do_not_depend_on_the_texts_beside(dtype: str) -> None:
    """Texts that begin alike, and share their beginning's rows, have the scores that each has alone."""
    model = model_of(LONG, dtype=dtype)
    beginning = ids_of(90)
    texts = [beginning + ids_of(n, seed=n) for n in (1, 30, 70)] + [ids_of(5, seed=5), ids_of(200, seed=6)]
    alone = [score(model, text) for text in texts]
    assert np.array_equal(scores_of(model, texts)[0], np.concatenate(alone))
    for text, scores in zip(texts, alone, strict=True):
        assert np.array_equal(scores, score(model, text, n_threads=3))
        logits = prompt_logits(model, text)[:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        laws = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(scores, laws[np.arange(len(laws)), text[1:]], atol=1e-9)


# -------------------------------------------------------------------------------------- sources


@IN_EACH_FORMAT
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_sources_are_near_those_of_the_row_kernels(name: str, dtype: str) -> None:
    config = ENCODER_DECODERS[name]
    tensors, source = random_tensors(config), random_source(config, 75)
    rows, tiles = (model_of(config, tensors, dtype, prefill) for prefill in ("rows", "tiles"))
    found, expected = tiles.encode(source), rows.encode(source)
    assert not np.array_equal(found, expected)
    if "mixture" not in name and dtype == "bf16":  # a router may choose another expert
        assert_near(found, expected, 0.05)
    if dtype != "bf16":
        assert np.array_equal(found, in_bf16(config, tensors, dtype).encode(source))
    assert np.array_equal(found, tiles.encode(source, n_threads=3))
    assert tiles.n_bytes == rows.n_bytes


@pytest.mark.parametrize("n", [200, 400])
@pytest.mark.parametrize("name", ["shared-embedding-relative-positions", "biases-by-layer-other-sizes"])
def test_long_sources_are_near_those_of_the_row_kernels(name: str, n: int) -> None:
    """Rows attend to spans of positions before and behind them, whose distances have biases."""
    config = ENCODER_DECODERS[name]
    config = config | {"encoder": config["encoder"] | {"n_ctx": n}}
    tensors, source = random_tensors(config), random_source(config, n)
    for part in ("relative_bias", "encoder.relative_bias", "encoder.layers.0.relative_bias"):
        if part in tensors:
            tensors[part] = 3 * tensors[part] / np.abs(tensors[part]).max()
    rows, tiles = (model_of(config, tensors, prefill=prefill) for prefill in ("rows", "tiles"))
    found = tiles.encode(source)
    assert_near(found, rows.encode(source), 0.05)
    assert np.array_equal(found, tiles.encode(source, n_threads=3))


# -------------------------------------------------------------------------------------- the rest


INSTRUCTION_SETS = """
import hashlib
from worlds.canonical import ENCODER_DECODERS, random_source
from test_tiles import LONG, ids_of, model_of, prompt_logits
config = ENCODER_DECODERS["norms-of-the-stream"]
digest = hashlib.sha256()
for dtype in ("bf16", "int8", "int4"):
    digest.update(model_of(config, dtype=dtype).encode(random_source(config, 75)).tobytes())
    digest.update(prompt_logits(model_of(LONG, dtype=dtype), ids_of(150)).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_every_instruction_set_has_the_same_bits() -> None:
    assert len(set(in_instruction_sets(INSTRUCTION_SETS).values())) == 1


def test_what_it_is_not_for_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    with pytest.raises(InputError, match="is for models in bf16, int8 and int4, not in f32"):
        build(LLAMA, tensors, dtype="f32", prefill="tiles")
    with pytest.raises(ValueError, match="expected 'bf16', 'int8' or 'int4' for the engine 'tiles'"):
        product(np.ones((1, 4), np.float32), np.ones((1, 4), np.float32), "f32", engine="tiles")
    with pytest.raises(ValueError, match="expected 'bf16', 'int8' or 'int4' for the order of tiles"):
        reference.product([[1.0]], [[1.0]], "f32", "tiles")
    folder = write_hf(tmp_path, llama_config(), seed=0)
    for dtype in ("bf16", "int8", "int4"):
        model = specdec.load(folder, dtype, prefill="tiles")
        assert model.prefill == "tiles" and "tiles" in repr(model)
        assert_near(model.logits([1, 2, 3]), specdec.load(folder, dtype).logits([1, 2, 3]), 0.1)
