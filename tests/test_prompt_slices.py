"""Prompts in slices of any length, by the row kernels, tiles or OpenBLAS: the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from allocations import needs_hooks
from compiled import Model
from sessions import Session
from specdec import _core
from worlds.canonical import (
    ENCODER_DECODERS,
    LLAMA,
    MIXTURES,
    VARIANTS,
    beams,
    build,
    perturbed,
    random_source,
    random_tensors,
    run_session,
)

Ids = list[int]

FORMATS = [("f32", "f32"), ("bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16")]
CONFIG = LLAMA | {"n_ctx": 400}


@pytest.fixture
def slices() -> Iterator[Any]:
    """A function that sets the prompt slices of new models."""
    yield getattr(_core, "_prompt_slice", None)
    _core._prompt_slice(0)


def ids_of(n: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


def bits_of(run: Any) -> list[tuple[Ids, bytes]]:
    """Tokens and bits of the logits of each sequence."""
    tokens, logits, _ = run
    return [(text, rows.tobytes()) for text, rows in zip(tokens, logits, strict=True)]


PROMPTS = [ids_of(150), [7], ids_of(65, 1), [*ids_of(150)[:90], 3, 4], ids_of(64, 2), ids_of(150), [7, 8]]


@needs_hooks
@pytest.mark.parametrize(("dtype", "cache_dtype"), FORMATS)
@pytest.mark.parametrize("windows", [[0, 0, 0], pytest.param([9, 0, 40], marks=pytest.mark.slow)], ids=str)
def test_slices_change_no_bit(slices: Any, dtype: str, cache_dtype: str, windows: list[int]) -> None:
    """Plain decoding, whose first root is already read, equals that with a draft, which reads it later."""
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
def test_layers_that_plain_decoding_computes(slices: Any) -> None:
    """The first round after the prompt computes no layer, and the others one row each.

    In the last layer a prompt computes only the root; a prompt of one token has no other rows.
    """
    slices(64)
    target = build(CONFIG, random_tensors(CONFIG))
    work = []
    session = Session(target, None, [ids_of(60), [9]], max_new_tokens=3, gamma=0, temperature=0.0)
    for call in (session.prefill, session.round, session.round, session.round):
        before = _core._forward_work(), _core._forward_count()
        call()
        work.append((_core._forward_work() - before[0]) / (2 * CONFIG["n_layer"]))
    assert np.allclose(work, [60 - 59 / CONFIG["n_layer"], 1, 2, 2])


@pytest.fixture
def bands() -> Iterator[Any]:
    """A function that sets the maximum rows of a band."""
    yield getattr(_core, "_bands", None)
    _core._bands(0)


@needs_hooks
@pytest.mark.parametrize(
    ("dtype", "prefill"), [("f32", "rows"), ("bf16", "tiles"), ("int8", "rows"), ("int4", "rows")]
)
@pytest.mark.parametrize("name", ["llama", *MIXTURES, *ENCODER_DECODERS])
def test_bands_change_no_bit(bands: Any, name: str, dtype: str, prefill: str) -> None:
    """Products of all rows at once equal those of bands."""
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


# ------------------------------------------------------------------------- prompts in another order


class Order(NamedTuple):
    """An engine for prompts, and prompts of several slices, the longest first."""

    options: dict[str, Any]
    config: dict[str, Any]
    n: int
    n_begin: int
    slice: int

    def pair(self, **changes: Any) -> tuple[Model, Model]:
        """A target and a draft."""
        config = self.config | changes
        tensors = random_tensors(config)
        return build(config, tensors, **self.options), build(config, perturbed(tensors), **self.options)

    @property
    def prompts(self) -> list[Ids]:
        longest = ids_of(self.n)
        return [
            longest, ids_of(5, seed=1),
            longest[: self.n_begin] + ids_of(60, seed=2),  # starts like the first
            ids_of(self.slice + 1, seed=3),  # all but its last token are a slice
            longest, longest[: self.slice],
        ]  # fmt: skip


# Sums so long that OpenBLAS takes them in parts: its bits then differ from the row kernels'.
ORDERS = {
    "blas": Order({"prefill": "blas"}, LLAMA | {"n_ctx": 1100, "d_ff": 1300}, 542, 356, 256),
    **{
        dtype: Order(
            {"prefill": "tiles", "dtype": dtype, "cache_dtype": "bf16"}, LLAMA | {"n_ctx": 400}, 150, 100, 64
        )
        for dtype in ("bf16", "int8", "int4")
    },
}


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> Order:
    return ORDERS[request.param]


WINDOWS = pytest.mark.parametrize(
    "windows", [[0, 0, 0], pytest.param([9, 0, 60], marks=pytest.mark.slow)], ids=str
)


def read(session: Session) -> tuple[Ids, bytes]:
    session.prefill()
    records = [record for batch in iter(session.round, []) for record in batch]
    tokens = [token for record in records for token in record["tokens"]]
    return tokens, np.concatenate([record["logits"] for record in records]).tobytes()


def session_of(target: Model, prompt: Ids) -> Session:
    how: dict[str, Any] = {"seeds": [(0, 0)], "temperature": 0.0, "keep_logits": True}
    return Session(target, None, [prompt], gamma=3, max_new_tokens=20, **how)


@WINDOWS
def test_neither_batch_nor_draft_nor_threads_change_a_bit(order: Order, windows: Sequence[int]) -> None:
    (target, draft), prompts = order.pair(windows=windows), order.prompts
    alone = [bits_of(run_session(target, None, [prompt], seeds=[(0, 0)]))[0] for prompt in prompts]
    seeds = [(0, 0)] * len(prompts)
    for n_threads in (1, 3):
        assert bits_of(run_session(target, None, prompts, seeds=seeds, n_threads=n_threads)) == alone
    assert bits_of(run_session(target, draft, prompts, seeds=seeds, gamma=3)) == alone
    assert bits_of(run_session(target, draft, prompts[::-1], seeds=seeds, gamma=5)) == alone[::-1]


@WINDOWS
def test_a_prompt_reuses_what_a_cached_text_read_as_its_prompt(order: Order, windows: Sequence[int]) -> None:
    """Neither generated tokens nor part of an OpenBLAS slice are reused: their bits differ."""
    (target, _), prompts = order.pair(windows=windows), order.prompts
    first = session_of(target, prompts[0])
    reply, _ = read(first)
    text = first.cached_text(0)
    step = order.slice if order is ORDERS["blas"] else 1
    for prompt in ([*prompts[0], *reply[:-1], *ids_of(50, seed=5)], prompts[2], prompts[1]):
        expected = read(session_of(target, prompt))
        again = session_of(target, prompt)
        n_copied = again.begin_with(0, text)
        n = min(len(prompt), len(text.tokens))
        n_common = int(np.cumprod(text.tokens[:n] == np.asarray(prompt[:n])).sum())
        assert n_copied % step == 0
        if windows == [0, 0, 0]:
            assert n_copied == min(n_common, len(prompts[0]) - 1) // step * step
        assert read(again) == expected


def test_a_sequence_in_a_reused_slot_has_its_own_bits(order: Order) -> None:
    (target, _), prompts = order.pair(), order.prompts
    first = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    expected = [read(session_of(target, prompt)) for prompt in prompts]
    session = session_of(target, prompts[first])
    assert read(session) == expected[first]
    for prompt, text in zip(prompts, expected, strict=True):
        session.replace(0, prompt, (0, 0))
        assert read(session) == text


def test_beams_of_speculation_are_the_plain_ones(order: Order) -> None:
    target, draft = order.pair()
    assert beams(target, None, order.prompts[2]) == beams(target, draft, order.prompts[2])


@pytest.mark.parametrize("name", ["norms-of-the-stream", "shared-embedding-relative-positions"])
def test_neither_batch_nor_draft_change_a_bit_of_texts_with_sources(order: Order, name: str) -> None:
    config = ENCODER_DECODERS[name]
    target, draft = order._replace(config=config).pair()
    sources = [random_source(config, n, seed=n) for n in (40, 3, 88, 40)]
    prompts = [[7], [7, 8], [7], [9]]
    alone = [
        bits_of(run_session(target, None, [prompt], seeds=[(0, 0)], sources=[source]))[0]
        for prompt, source in zip(prompts, sources, strict=True)
    ]
    for model, n_threads in ((None, 2), (draft, 1)):
        run = run_session(target, model, prompts, seeds=[(0, 0)] * 4, sources=sources, n_threads=n_threads)
        assert bits_of(run) == alone
