"""Prompts in slices of any length, the root of the first round in the last of them: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from allocations import needs_hooks
from sessions import Session
from specdec import _core
from worlds.canonical import (
    ENCODER_DECODERS,
    LLAMA,
    MIXTURES,
    VARIANTS,
    build,
    perturbed,
    random_tensors,
    run_session,
)

Ids = list[int]

FORMATS = [("f32", "f32"), ("bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16")]
CONFIG = LLAMA | {"n_ctx": 400}


@pytest.fixture
def slices() -> Iterator[Any]:
    """Sets the slices of models that are made."""
    yield getattr(_core, "_prompt_slice", None)
    _core._prompt_slice(0)


def ids_of(n: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


def bits_of(run: Any) -> list[tuple[Ids, bytes]]:
    tokens, logits, _ = run
    return [(text, rows.tobytes()) for text, rows in zip(tokens, logits, strict=True)]


PROMPTS = [ids_of(150), [7], ids_of(65, 1), [*ids_of(150)[:90], 3, 4], ids_of(64, 2), ids_of(150), [7, 8]]


@needs_hooks
@pytest.mark.parametrize(("dtype", "cache_dtype"), FORMATS)
@pytest.mark.parametrize("windows", [[0, 0, 0], pytest.param([9, 0, 40], marks=pytest.mark.slow)], ids=str)
def test_slices_change_no_bit(slices: Any, dtype: str, cache_dtype: str, windows: list[int]) -> None:
    """Plain decoding, whose first round finds its root read, is that of a draft, which reads it itself."""
    tensors = random_tensors(CONFIG)
    config = CONFIG | {"windows": windows}
    options: dict[str, Any] = {"seeds": [(0, i) for i in range(len(PROMPTS))], "max_new_tokens": 4}
    found = []
    for slice_ in (5, 64, 256):
        slices(slice_)
        target = build(config, tensors, dtype=dtype, cache_dtype=cache_dtype)
        assert target.prompt_slice == slice_
        found.append(bits_of(run_session(target, None, PROMPTS, **options)))
    draft = build(config, perturbed(tensors, 0.1), dtype=dtype, cache_dtype=cache_dtype)
    found.append(bits_of(run_session(target, draft, PROMPTS, gamma=2, n_threads=2, **options)))
    # a forward for each token: no slices
    decoder = _core.Decoder(target, capacity=len(PROMPTS[2]))
    for token in PROMPTS[2]:
        logits = decoder.forward([token], [-1])
        decoder.keep([0])
    assert np.array_equal(logits[0], np.frombuffer(found[0][2][1], np.float32)[:101])
    assert all(one == found[0] for one in found)


@needs_hooks
@pytest.mark.parametrize("name", VARIANTS)
def test_a_root_that_was_read_gives_the_first_token(slices: Any, name: str) -> None:
    """In every architecture, in a batch in which some roots are read with the prompt and some are not."""
    config = VARIANTS[name]
    slices(16)
    target = build(config, random_tensors(config))
    prompts = [ids_of(20), [5], ids_of(20), ids_of(17, 1)]
    tokens, logits, records = run_session(target, None, prompts, max_new_tokens=3)
    for prompt, text, rows in zip(prompts, tokens, logits, strict=True):
        decoder = _core.Decoder(target, capacity=len(prompt) + 2)
        expected = decoder.prefill([*prompt, *text[:-1]], logits=True)
        assert np.array_equal(rows, expected[len(prompt) - 1 :])
    assert [record["n_rows"] for record in records] == [1] * 12


@needs_hooks
def test_what_plain_decoding_computes(slices: Any) -> None:
    """The first round after a prompt that has been read computes no layer, and the others one row each."""
    slices(64)
    target = build(CONFIG, random_tensors(CONFIG))
    work = []
    session = Session(
        target, None, [ids_of(60), [9]], max_new_tokens=3, seeds=[(0, 0), (0, 1)], n_threads=1, gamma=0,
        sampling={"temperature": 0.0}, draft_sampling={"temperature": 0.0},
    )  # fmt: skip
    for call in (session.prefill, session.round, session.round, session.round):
        before = _core._forward_work(), _core._forward_count()
        call()
        work.append((_core._forward_work() - before[0]) / (2 * CONFIG["n_layer"]))
    assert work == [60, 1, 2, 2]  # a prompt of one token has no other rows to be read with


@pytest.fixture
def bands() -> Iterator[Any]:
    """Sets the most rows of a band of products."""
    yield getattr(_core, "_bands", None)
    _core._bands(0)


@needs_hooks
@pytest.mark.parametrize(
    ("dtype", "prefill"), [("f32", "rows"), ("bf16", "tiles"), ("int8", "rows"), ("int4", "rows")]
)
@pytest.mark.parametrize("name", ["llama", *MIXTURES, *ENCODER_DECODERS])
def test_bands_change_no_bit(bands: Any, name: str, dtype: str, prefill: str) -> None:
    """Products of all rows at once, and of bands of rows that are multiplied with all panels in turn."""
    config = {**VARIANTS, **ENCODER_DECODERS}[name]
    model = build(config, random_tensors(config), dtype=dtype, prefill=prefill)
    found = []
    for rows, n_threads in [(1000, 1), (24, 1), (24, 3), (1, 2)]:
        bands(rows)
        if name in ENCODER_DECODERS:
            source = ids_of(min(83, config["encoder"]["n_ctx"]))
            found.append(model.encode([token % 50 for token in source], n_threads=n_threads))
        else:
            decoder = _core.Decoder(model, capacity=83, n_threads=n_threads)
            found.append(decoder.prefill(ids_of(min(83, config["n_ctx"])), logits=True))
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize(
    ("dtype", "prefill"), [("f32", "rows"), ("f32", "blas"), ("bf16", "tiles"), ("int4", "tiles")]
)
@pytest.mark.parametrize("n", [1, 64, 65, 257, 300])
def test_the_last_row_of_logits_alone(dtype: str, prefill: str, n: int) -> None:
    model, ids = build(CONFIG, random_tensors(CONFIG), dtype=dtype, prefill=prefill), ids_of(n)
    every = _core.Decoder(model, capacity=n).prefill(ids, logits=True)
    decoder = _core.Decoder(model, capacity=n + 1)
    last = decoder.prefill(ids, last=True)
    assert every is not None and last is not None and last.shape == (101,)
    assert np.array_equal(last, every[-1])
    assert decoder.n_committed == n
    for options, message in (({"last": True, "logits": True}, "both given"), ({"last": True}, "is empty")):
        with pytest.raises(ValueError, match=message):
            decoder.prefill([5] if "logits" in options else [], **options)
    assert decoder.n_committed == n
