"""Prompts that are read in an order of their own: what changes no bit of them, whatever engine multiplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sessions import Session
from specdec import _core
from worlds.canonical import beams, run_session

Ids = list[int]


def ids_of(n: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 101, n).tolist()


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


def session_of(target: _core.Model, prompt: Ids) -> Session:
    sampling = {"temperature": 0.0}
    return Session(
        target, None, [prompt], sampling=sampling, draft_sampling=sampling, gamma=3, max_new_tokens=20,
        n_threads=1, seeds=[(0, 0)], keep_logits=True,
    )  # fmt: skip


def check_batch_draft_and_threads(target: _core.Model, draft: _core.Model, prompts: Sequence[Ids]) -> None:
    """Neither the batch nor the draft nor threads change a bit of a text."""
    alone = [texts_of(run_session(target, None, [prompt], seeds=[(0, 0)]))[0] for prompt in prompts]
    seeds = [(0, 0)] * len(prompts)
    for n_threads in (1, 3):
        assert texts_of(run_session(target, None, prompts, seeds=seeds, n_threads=n_threads)) == alone
    assert texts_of(run_session(target, draft, prompts, seeds=seeds, gamma=3)) == alone
    assert texts_of(run_session(target, draft, prompts[::-1], seeds=seeds, gamma=5)) == alone[::-1]


def check_batch_and_draft_with_sources(
    target: _core.Model, draft: _core.Model, sources: Sequence[Ids | None]
) -> None:
    """Neither the batch nor the draft change a bit of texts with four sources."""
    prompts = [[7], [7, 8], [7], [9]]
    alone = [
        texts_of(run_session(target, None, [prompt], seeds=[(0, 0)], sources=[source]))[0]
        for prompt, source in zip(prompts, sources, strict=True)
    ]
    for model, n_threads in ((None, 2), (draft, 1)):
        run = run_session(target, model, prompts, seeds=[(0, 0)] * 4, sources=sources, n_threads=n_threads)
        assert texts_of(run) == alone


def check_cached_beginnings(
    target: _core.Model, prompts: Sequence[Ids], check_copied: Callable[[int, int], None]
) -> None:
    """A prompt that begins with a copy of the first one's text has the bits that it has alone.

    check_copied: called with the numbers of tokens in common and of tokens that were copied.
    """
    first = session_of(target, prompts[0])
    reply, _ = read(first)
    text = first.cached_text(0)
    for prompt in ([*prompts[0], *reply[:-1], *ids_of(50, seed=5)], prompts[2], prompts[1]):
        expected = read(session_of(target, prompt))
        again = session_of(target, prompt)
        n_copied = again.begin_with(0, text)
        n = min(len(prompt), len(text.tokens))
        n_common = int(np.cumprod(text.tokens[:n] == np.asarray(prompt[:n])).sum())
        check_copied(n_common, n_copied)
        assert read(again) == expected


def check_places(target: _core.Model, prompts: Sequence[Ids], first: int) -> None:
    """Sequences that take the place of prompts[first] in a session have the bits that they have alone."""
    expected = [read(session_of(target, prompt)) for prompt in prompts]
    session = session_of(target, prompts[first])
    assert read(session) == expected[first]
    for prompt, text in zip(prompts, expected, strict=True):
        session.replace(0, prompt, (0, 0))
        assert read(session) == text


def check_beams(target: _core.Model, draft: _core.Model, prompt: Ids) -> None:
    """Beams of speculation are the plain ones."""
    assert beams(target, None, prompt) == beams(target, draft, prompt)
