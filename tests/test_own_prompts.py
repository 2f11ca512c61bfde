"""Prompts that are read in an order of their own, by tiles or OpenBLAS: what changes no bit of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from compiled import Model
from sessions import Session
from worlds.canonical import (
    ENCODER_DECODERS,
    LLAMA,
    beams,
    build,
    perturbed,
    random_source,
    random_tensors,
    run_session,
)

Ids = list[int]


def ids_of(n: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


class Engine(NamedTuple):
    """How prompts are multiplied, and prompts of several slices of it, the first and longest first."""

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
            longest[: self.n_begin] + ids_of(60, seed=2),  # begins like the first
            ids_of(self.slice + 1, seed=3),  # all but its last token are a slice
            longest, longest[: self.slice],
        ]  # fmt: skip


# Sums so long that OpenBLAS takes them in parts: its bits are then others than those of the row kernels.
ENGINES = {
    "blas": Engine({"prefill": "blas"}, LLAMA | {"n_ctx": 1100, "d_ff": 1300}, 542, 356, 256),
    **{
        dtype: Engine(
            {"prefill": "tiles", "dtype": dtype, "cache_dtype": "bf16"}, LLAMA | {"n_ctx": 400}, 150, 100, 64
        )
        for dtype in ("bf16", "int8", "int4")
    },
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


WINDOWS = pytest.mark.parametrize(
    "windows", [[0, 0, 0], pytest.param([9, 0, 60], marks=pytest.mark.slow)], ids=str
)


def texts_of(run: Any) -> list[tuple[Ids, bytes]]:
    """Tokens and bits of the logits of each sequence."""
    tokens, logits, _ = run
    return [(text, rows.tobytes()) for text, rows in zip(tokens, logits, strict=True)]


def read(session: Session) -> tuple[Ids, bytes]:
    session.prefill()
    tokens, logits = [], []
    while batch := session.round():
        for record in batch:
            tokens += record["tokens"]
            logits.append(record["logits"])
    return tokens, np.concatenate(logits).tobytes()


def session_of(target: Model, prompt: Ids) -> Session:
    sampling = {"temperature": 0.0}
    return Session(
        target, None, [prompt], sampling=sampling, draft_sampling=sampling, gamma=3, max_new_tokens=20,
        n_threads=1, seeds=[(0, 0)], keep_logits=True,
    )  # fmt: skip


@WINDOWS
def test_neither_batch_nor_draft_nor_threads_change_a_bit(engine: Engine, windows: Sequence[int]) -> None:
    (target, draft), prompts = engine.pair(windows=windows), engine.prompts
    alone = [texts_of(run_session(target, None, [prompt], seeds=[(0, 0)]))[0] for prompt in prompts]
    seeds = [(0, 0)] * len(prompts)
    for n_threads in (1, 3):
        assert texts_of(run_session(target, None, prompts, seeds=seeds, n_threads=n_threads)) == alone
    assert texts_of(run_session(target, draft, prompts, seeds=seeds, gamma=3)) == alone
    assert texts_of(run_session(target, draft, prompts[::-1], seeds=seeds, gamma=5)) == alone[::-1]


@WINDOWS
def test_a_prompt_begins_with_what_a_cached_text_read_as_its_prompt(
    engine: Engine, windows: Sequence[int]
) -> None:
    """Not with tokens that were generated, nor with a part of a slice of OpenBLAS: their bits are others."""
    (target, _), prompts = engine.pair(windows=windows), engine.prompts
    first = session_of(target, prompts[0])
    reply, _ = read(first)
    text = first.cached_text(0)
    step = engine.slice if engine is ENGINES["blas"] else 1
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


def test_a_sequence_that_takes_the_place_of_another_has_its_own_bits(engine: Engine) -> None:
    (target, _), prompts = engine.pair(), engine.prompts
    first = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    expected = [read(session_of(target, prompt)) for prompt in prompts]
    session = session_of(target, prompts[first])
    assert read(session) == expected[first]
    for prompt, text in zip(prompts, expected, strict=True):
        session.replace(0, prompt, (0, 0))
        assert read(session) == text


def test_beams_of_speculation_are_the_plain_ones(engine: Engine) -> None:
    target, draft = engine.pair()
    assert beams(target, None, engine.prompts[2]) == beams(target, draft, engine.prompts[2])


@pytest.mark.parametrize("name", ["norms-of-the-stream", "shared-embedding-relative-positions"])
def test_neither_batch_nor_draft_change_a_bit_of_texts_with_sources(engine: Engine, name: str) -> None:
    config = ENCODER_DECODERS[name]
    target, draft = engine._replace(config=config).pair()
    sources = [random_source(config, n, seed=n) for n in (40, 3, 88, 40)]
    prompts = [[7], [7, 8], [7], [9]]
    alone = [
        texts_of(run_session(target, None, [prompt], seeds=[(0, 0)], sources=[source]))[0]
        for prompt, source in zip(prompts, sources, strict=True)
    ]
    for model, n_threads in ((None, 2), (draft, 1)):
        run = run_session(target, model, prompts, seeds=[(0, 0)] * 4, sources=sources, n_threads=n_threads)
        assert texts_of(run) == alone
