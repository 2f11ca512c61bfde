"""Prompts, scores and sources of bf16 in the order of tiles: bits of their own, the same on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from canonical import (
    DTYPES,
    ENCODER_DECODERS,
    LLAMA,
    MIXTURES,
    VARIANTS,
    build,
    perturbed,
    random_source,
    random_tensors,
)
from own_prompts import (
    Ids,
    check_batch_and_draft_with_sources,
    check_batch_draft_and_threads,
    check_beams,
    check_cached_beginnings,
    check_places,
    ids_of,
)
from specdec import _core, reference
from specdec.errors import InputError
from tiny_models import llama_config, write_hf

LONG = LLAMA | {"n_ctx": 400}


def model_of(config: dict[str, Any], tensors: dict[str, Any], prefill: str = "tiles") -> _core.Model:
    return build(config, tensors, dtype="bf16", cache_dtype="bf16", prefill=prefill)


def pair(config: dict[str, Any], scale: float = 0.02) -> tuple[_core.Model, _core.Model]:
    """A target and a draft whose prompts are multiplied in tiles."""
    tensors = random_tensors(config)
    return model_of(config, tensors), model_of(config, perturbed(tensors, scale))


def logits_of(model: _core.Model, ids: Ids, n_threads: int = 1, pieces: Sequence[int] = ()) -> NDArray[Any]:
    """Of a prompt, in one call or several."""
    decoder = _core.Decoder(model, capacity=len(ids), n_threads=n_threads)
    parts = [decoder.prefill(part.tolist(), logits=True) for part in np.split(np.array(ids), pieces)]
    return np.concatenate([part for part in parts if part is not None])


def assert_near(found: NDArray[Any], expected: NDArray[Any], tolerance: float = 0.03) -> None:
    """Sums in another order are rounded to other numbers of bf16 here and there."""
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


# -------------------------------------------------------------------------------------- prompts


def test_a_prompt_has_the_bits_of_the_order() -> None:
    """With layers that add nothing the head multiplies embeddings, which a norm leaves as they are: ±1."""
    tensors = random_tensors(LLAMA)
    for name, tensor in tensors.items():
        if name.endswith(("attn_out.weight", "mlp_down.weight")):
            tensors[name] = np.zeros_like(tensor)
    tensors["token_embedding"] = np.sign(tensors["token_embedding"])
    tensors["output_norm.weight"] = np.ones_like(tensors["output_norm.weight"])
    exponents = np.random.default_rng(1).integers(-9, 9, tensors["head"].shape)
    tensors["head"] = np.ldexp(tensors["head"], exponents)  # sums are rounded
    model = model_of(LLAMA | {"norm_eps": 1e-30}, tensors)
    ids = ids_of(70)
    rows = tensors["token_embedding"][ids]
    expected = {
        engine: reference.product(rows, tensors["head"], "bf16", engine) for engine in ("rows", "tiles")
    }
    assert not np.array_equal(expected["rows"], expected["tiles"])
    assert np.array_equal(logits_of(model, ids), expected["tiles"])
    decoder = _core.Decoder(model, capacity=1)
    assert np.array_equal(decoder.forward([ids[0]], [-1]), expected["rows"][:1])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_of_a_prompt_depends_on_the_tokens_before_it_alone(name: str) -> None:
    """Neither on the slices in which a prompt is read, nor on threads; and it is near the row kernels'."""
    tensors, ids = random_tensors(VARIANTS[name]), ids_of(150)
    rows, tiles = (model_of(VARIANTS[name], tensors, prefill) for prefill in ("rows", "tiles"))
    assert (rows.prefill, tiles.prefill) == ("rows", "tiles")
    found = logits_of(tiles, ids)
    expected = logits_of(rows, ids)
    if name not in MIXTURES:  # a router may choose another expert
        assert_near(found, expected)
    assert not np.array_equal(found, expected)
    assert np.array_equal(found, logits_of(tiles, ids, n_threads=3))
    assert np.array_equal(found, logits_of(tiles, ids, pieces=(1, 18, 33, 34, 99)))
    assert np.array_equal(found[:40], logits_of(tiles, ids[:40]))


def test_scores_do_not_depend_on_the_texts_beside() -> None:
    """Texts that begin alike, and share their beginning's rows, have the scores that each has alone."""
    model, _ = pair(LONG)
    beginning = ids_of(90)
    texts = [beginning + ids_of(n, seed=n) for n in (1, 30, 70)] + [ids_of(5, seed=5), ids_of(200, seed=6)]
    flat, lengths = np.concatenate(texts).astype(np.int32), np.array([*map(len, texts)], np.int32)
    together, *_ = _core.score_texts(model, (flat, lengths), np.ones(len(texts), np.int32))
    alone = [_core.score(model, text) for text in texts]
    assert np.array_equal(together, np.concatenate(alone))
    for text, scores in zip(texts, alone, strict=True):
        assert np.array_equal(scores, _core.score(model, text, n_threads=3))
        logits = logits_of(model, text)[:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        laws = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(scores, laws[np.arange(len(laws)), text[1:]], atol=1e-9)


WINDOWS = pytest.mark.parametrize(
    "windows", [[0, 0, 0], pytest.param([9, 0, 60], marks=pytest.mark.slow)], ids=str
)

PROMPTS: list[Ids] = [
    ids_of(150),
    ids_of(5, seed=1),
    ids_of(150)[:100] + ids_of(60, seed=2),  # begins like the first
    ids_of(65, seed=3),
    ids_of(150),
    ids_of(150)[:64],
]


@WINDOWS
def test_neither_batch_nor_draft_nor_threads_change_a_bit(windows: Sequence[int]) -> None:
    target, draft = pair(LONG | {"windows": windows})
    check_batch_draft_and_threads(target, draft, PROMPTS)


@WINDOWS
def test_a_prompt_begins_with_what_a_cached_text_read_as_its_prompt(windows: Sequence[int]) -> None:
    """Not with tokens that were generated: their bits are others."""

    def check(n_common: int, n_copied: int) -> None:
        if windows == [0, 0, 0]:
            assert n_copied == min(n_common, len(PROMPTS[0]) - 1)

    target, _ = pair(LONG | {"windows": windows})
    check_cached_beginnings(target, PROMPTS, check)


def test_a_sequence_that_takes_the_place_of_another_has_its_own_bits() -> None:
    target, _ = pair(LONG)
    check_places(target, PROMPTS, first=2)  # the longest


def test_beams_of_speculation_are_the_plain_ones() -> None:
    target, draft = pair(LONG)
    check_beams(target, draft, PROMPTS[2])


# -------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_sources_are_near_those_of_the_row_kernels(name: str) -> None:
    config = ENCODER_DECODERS[name]
    tensors, source = random_tensors(config), random_source(config, 75)
    assert source is not None
    rows, tiles = (model_of(config, tensors, prefill) for prefill in ("rows", "tiles"))
    found, expected = tiles.encode(source), rows.encode(source)
    assert not np.array_equal(found, expected)
    if "mixture" not in name:  # a router may choose another expert
        assert_near(found, expected, 0.05)
    assert np.array_equal(found, tiles.encode(source, n_threads=3))
    assert tiles.n_bytes == rows.n_bytes


def test_neither_batch_nor_draft_change_a_bit_of_texts_with_sources() -> None:
    config = ENCODER_DECODERS["norms-of-the-stream"]
    target, draft = pair(config)
    sources = [random_source(config, n, seed=n) for n in (40, 3, 88, 40)]
    check_batch_and_draft_with_sources(target, draft, sources)


# -------------------------------------------------------------------------------------- the rest


INSTRUCTION_SETS = """
import hashlib
from canonical import ENCODER_DECODERS, random_source, random_tensors
from test_tiles import LONG, ids_of, logits_of, model_of, pair
config = ENCODER_DECODERS["norms-of-the-stream"]
source = model_of(config, random_tensors(config)).encode(random_source(config, 75))
print(hashlib.sha256(logits_of(pair(LONG)[0], ids_of(150)).tobytes() + source.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_every_instruction_set_has_the_same_bits() -> None:
    digests = set()
    for kernels in _core.available_kernels():
        done = subprocess.run(
            [sys.executable, "-c", INSTRUCTION_SETS],
            capture_output=True, text=True, timeout=120, env=os.environ | {"SPECDEC_KERNELS": kernels},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        digests.add(done.stdout)
    assert len(digests) == 1


def test_what_it_is_not_for_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    for dtype in DTYPES:
        if dtype == "bf16":
            continue
        with pytest.raises(
            InputError,
            match=f"prefill is 'tiles', which is for models in bf16, not in {dtype}; expected dtype='bf16'",
        ):
            build(LLAMA, tensors, dtype=dtype, prefill="tiles")
    with pytest.raises(ValueError, match="dtype is 'f32', expected 'bf16' for the engine 'tiles'"):
        _core.product(np.ones((1, 4), np.float32), np.ones((1, 4), np.float32), "f32", engine="tiles")
    with pytest.raises(ValueError, match="expected 'bf16' for the order of tiles"):
        reference.product([[1.0]], [[1.0]], "int8", "tiles")
    folder = write_hf(tmp_path, llama_config(), seed=0)
    model = specdec.load(folder, "bf16", prefill="tiles")
    assert model.prefill == "tiles" and "tiles" in repr(model)
    assert_near(model.logits([1, 2, 3]), specdec.load(folder, "bf16").logits([1, 2, 3]))
