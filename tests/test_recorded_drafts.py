"""Recorded drafts: the stored online samples, and replacement of the draft between rounds."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import fail_each_allocation, needs_hooks
from compiled import prompt_logits
from descriptions import by_method
from sessions import Session, all_rounds
from specdec import _core, reference
from specdec.errors import InputError
from worlds.canonical import LLAMA, build, perturbed, random_tensors, with_drafts

N_VOCAB = LLAMA["n_vocab"]
TENSORS = {name: 3 * tensor for name, tensor in random_tensors(LLAMA, 1).items()}
PROMPTS = [[3], [5, 9, 7] * 4, list(range(30, 60))]
N_BEFORE, N_TOP = 6, 5


TARGET = build(LLAMA, TENSORS)
FRIEND = build(LLAMA, perturbed(TENSORS, 0.05))
OTHER = build(LLAMA, perturbed(TENSORS, 0.08, seed=9))
DRAFTS: dict[str, Callable[[Any], Any]] = {
    "chain": lambda model: by_method("model", model),
    "chains": lambda model: by_method("parallel_chains", model, 3),
    "tree": lambda model: by_method("static_tree", model, [0, 0, 1, 1, 2], "sample"),
    "grown": lambda model: by_method("dynamic_tree", model, 3, 3, 1.0),
    "nested": lambda model: by_method("nested", model, by_method("model", model), 2),
}
"""Drafts to be recorded, by model."""
drafts_and_temperatures = pytest.mark.parametrize(
    ("name", "temperature"), [*itertools.product(DRAFTS, (0.0, 1.0))]
)


def ring_of(capacity: int = 10, **options: Any) -> _core.OnlineSamples:
    return _core.OnlineSamples(capacity, N_BEFORE, N_TOP, **options)


def opened(
    draft: Any, ring: _core.OnlineSamples | None = None, prompts: Any = PROMPTS, temperature: float = 0.0,
    **options: Any,
) -> Session:  # fmt: skip
    """A session of TARGET with a recorded draft."""
    described = draft if ring is None else by_method("recorded", draft, ring)
    how = {"gamma": 5, "max_new_tokens": 30, "temperature": temperature} | options
    session = Session(TARGET, described, prompts, seeds=[(4, i) for i in range(len(prompts))], **how)
    session.prefill()
    return session


def what(records: list[dict[str, Any]]) -> list[Any]:
    return [
        (record["sequence"], record["drafted"], record["parents"], record["accepted"], record["tokens"])
        for record in records
    ]


def assert_same_drafts(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    """With their distributions, to the bit."""
    assert what(one) == what(two)
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a["draft_probs"], b["draft_probs"])


# ------------------------------------------------------------------------------------------ online samples


def expected(
    records: list[dict[str, Any]], prompts: list[list[int]], everywhere: bool = False
) -> list[tuple[int, list[int], int]]:
    """(sequence, text before, accepted tokens) where the text left, or `everywhere`: followed, the drafts."""
    texts, found = [list(prompt) for prompt in prompts], []
    for record in records:
        text, new = texts[record["sequence"]], record["tokens"]
        if not record["drafted"]:
            text += new
            continue
        prefixes: list[tuple[int, ...]] = [()]
        for token, parent in zip(record["drafted"], record["parents"], strict=True):
            prefixes.append((*prefixes[parent], token))
        drafted = {prefix for prefix in prefixes if prefix}
        depth = 0
        while depth < len(new) and tuple(new[: depth + 1]) in drafted:
            if everywhere:
                found.append((record["sequence"], [*text, *new[:depth]], depth))
            depth += 1
        accepted = tuple(new[:depth])
        if depth < len(new) and (everywhere or any(prefix[:-1] == accepted for prefix in drafted)):
            found.append((record["sequence"], [*text, *new[:depth]], depth))
        text += new
    return found


@pytest.mark.parametrize("everywhere", [False, True])
@drafts_and_temperatures
def test_samples_are_where_the_text_left_the_draft_tokens(
    name: str, temperature: float, everywhere: bool
) -> None:
    """By the records of the rounds, in plain Python, and the target's own logits there."""
    ring = ring_of(1000, everywhere=everywhere)
    records = all_rounds(opened(DRAFTS[name](FRIEND), ring, temperature=temperature, max_new_tokens=60))
    wanted, got = expected(records, PROMPTS, everywhere), ring.take()
    assert len(wanted) == len(got["depth"]) > 4
    assert ring.n == 0
    for i, (sequence, text, depth) in enumerate(wanted):
        assert got["before"][i].tolist() == [-1] * (N_BEFORE - len(text)) + text[-N_BEFORE:]
        assert (got["depth"][i], got["position"][i], got["text"][i]) == (depth, len(text), sequence)
        logits = prompt_logits(TARGET, text)[-1]
        distribution = reference.distribution(logits, 1.0)
        top = np.lexsort((np.arange(N_VOCAB), -logits))[:N_TOP]
        assert got["top"][i].tolist() == top.tolist()
        np.testing.assert_allclose(np.exp(got["log_probs"][i]), distribution[top], rtol=2e-5)
        np.testing.assert_allclose(got["rest"][i], 1.0 - distribution[top].sum(), atol=2e-6)


@drafts_and_temperatures
def test_a_recorded_draft_proposes_the_same_as_unrecorded(name: str, temperature: float) -> None:
    found = [
        all_rounds(with_drafts(opened(DRAFTS[name](FRIEND), ring, temperature=temperature)))
        for ring in (None, ring_of())
    ]
    assert_same_drafts(*found)


def test_a_recorded_draft_in_an_ensemble_sees_its_own_draft_tokens() -> None:
    """Two drafts at once: each ring has the misses of its own draft."""
    rings = [ring_of(1000), ring_of(1000)]
    parts = [by_method("recorded", model, ring) for model, ring in zip((FRIEND, OTHER), rings, strict=True)]
    records = all_rounds(opened(by_method("ensemble", False, [3, 3], parts), gamma=6))
    for which, ring in enumerate(rings):
        halves = []
        for record in records:
            n = len(record["drafted"])
            begin = next((i for i in range(1, n) if record["parents"][i] == 0), n)
            part = slice(0, begin) if which == 0 else slice(begin, n)
            parents = [max(parent - (begin if which else 0), 0) for parent in record["parents"][part]]
            halves.append(record | {"drafted": record["drafted"][part], "parents": parents})
        wanted, got = expected(halves, PROMPTS), ring.take()
        assert got["position"].tolist() == [len(text) for _, text, _ in wanted]
        assert got["depth"].tolist() == [depth for _, _, depth in wanted]


def test_the_oldest_samples_go_first() -> None:
    whole, last = ring_of(1000), ring_of(7)
    for ring in (whole, last):
        all_rounds(opened(FRIEND, ring))
    assert last.n == 7
    every, kept = whole.take(), last.take()
    for name, array in every.items():
        assert np.array_equal(array[-7:], kept[name])
    assert {len(array) for array in last.take().values()} == {0}


def test_more_top_tokens_than_the_vocabulary_has() -> None:
    ring = _core.OnlineSamples(10, 1, N_VOCAB + 3)
    all_rounds(opened(FRIEND, ring))
    got = ring.take()
    assert (got["top"][:, N_VOCAB:] == -1).all() and (got["log_probs"][:, N_VOCAB:] == -np.inf).all()
    assert (np.sort(got["top"][:, :N_VOCAB]) == np.arange(N_VOCAB)).all() and (got["rest"] == 0).all()
    np.testing.assert_allclose(np.exp(got["log_probs"]).sum(axis=1), 1.0, atol=1e-5)


def test_invalid_sizes_of_samples_are_rejected() -> None:
    for arguments in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1, -1), (1 << 21, 1, 1)):
        with pytest.raises(ValueError, match="expected"):
            _core.OnlineSamples(*arguments)
    with pytest.raises(ValueError, match="n_hidden of the samples is 3, expected 0, or 0"):
        opened(FRIEND, _core.OnlineSamples(1, 1, 1, 3))
    with pytest.raises(TypeError, match="expected specdec._core.OnlineSamples"):
        opened(FRIEND, 3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ swaps


def continued(records: list[dict[str, Any]]) -> list[list[int]]:
    texts = [list(prompt) for prompt in PROMPTS]
    for record in records:
        texts[record["sequence"]] += record["tokens"]
    return texts


def swapped(old: Any, new: Any, n_rounds: int = 1, **options: Any) -> tuple[Session, _core.OnlineSamples]:
    """Some rounds after a swap a session drafts like a new one, and gives the texts of plain decoding."""
    ring = ring_of()
    session = with_drafts(opened(old, ring, **options))
    before = [record for _ in range(3) for record in session.round()]
    session.swap(ring, new)
    session.prefill()
    fresh = with_drafts(opened(new, prompts=continued(before), **options))
    after, wanted = ([r for _ in range(n_rounds) for r in of.round()] for of in (session, fresh))
    assert_same_drafts(after, wanted)
    assert any(record["drafted"] for record in after)
    plain = all_rounds(opened(None, **options | {"gamma": 0}))
    rest = [record for records in iter(session.round, []) for record in records]
    assert continued([*before, *after, *rest]) == continued(plain)
    return session, ring


@drafts_and_temperatures
def test_after_a_swap_draft_tokens_are_those_of_a_fresh_session(name: str, temperature: float) -> None:
    swapped(DRAFTS[name](FRIEND), DRAFTS[name](OTHER), temperature=temperature, rule="coupled")


@pytest.mark.parametrize("method", ["ngram", "online_ngram"])
def test_tables_replace_tables(method: str) -> None:
    tables = [specdec.drafts.Ngram(np.arange(200) * step % N_VOCAB, N_VOCAB, 3) for step in (7, 8)]
    swapped(*(by_method(method, table.core) for table in tables))


def test_look_ahead_embeddings_replace_others() -> None:
    """Those of the new draft are appended from then on; draft tokens follow after the first such round."""
    rng, d_model = np.random.default_rng(0), LLAMA["d_model"]
    old, new = (_core.LookAheadEmbeddings(rng.normal(size=(3, d_model)).astype("f4")) for _ in range(2))
    drafts = [by_method("model", embeddings) for embeddings in (old, new)]
    session, ring = swapped(*drafts, 2, temperature=1.0, rule="coupled")
    for shape in ((2, d_model), (3, d_model + 1)):
        with pytest.raises(InputError, match="differs in type"):
            session.swap(ring, by_method("model", _core.LookAheadEmbeddings(np.zeros(shape, np.float32))))


def test_texts_begin_and_end_around_a_swap() -> None:
    """An empty slot, one with a new unread prompt, and one that continues."""
    ring = ring_of()
    session = opened(FRIEND, ring, n_text=80)
    before = session.round()
    session.finish(0)
    session.finish(1)
    session.replace(1, [8, 8, 2], (4, 1))
    session.swap(ring, OTHER)
    session.prefill()
    after = session.round()
    assert [record["sequence"] for record in after] == [1, 2]
    fresh = opened(OTHER, prompts=[[8, 8, 2], continued(before)[2]]).round()
    assert [row[1:] for row in what(after)] == [row[1:] for row in what(fresh)]


def test_a_swap_that_fails_changes_nothing() -> None:
    ring = ring_of()
    session, whole = (opened(FRIEND, ring, temperature=1.0) for _ in range(2))
    records = session.round()
    for error, draft, message in (
        (InputError, by_method("static_tree", OTHER, [0, 0], "sample"), "differs in type"),
        (ValueError, specdec.drafts.Ngram([1, 2], 50, 2).core, "expected one vocabulary"),
        (TypeError, 3, "draft"),
    ):
        with pytest.raises(error, match=message):
            session.swap(ring, draft)
    for other in (session, opened(None, gamma=0)):
        with pytest.raises(ValueError, match="no draft of the session is recorded with these"):
            other.swap(_core.OnlineSamples(1, 1, 1), OTHER)
    records += [record for found in iter(session.round, []) for record in found]
    assert what(records) == what(all_rounds(whole))
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.swap(ring, OTHER)


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_a_swap_without_memory_changes_nothing() -> None:
    ring, chains = ring_of(), by_method("parallel_chains", OTHER, 1)
    session = opened(FRIEND, ring)
    before = session.round()
    fail_each_allocation(lambda: session.swap(ring, chains))
    session.prefill()
    assert what(session.round()) == what(opened(chains, prompts=continued(before)).round())


@needs_hooks
@pytest.mark.slow
@pytest.mark.usefixtures("quick_gc")
def test_every_allocation_may_fail() -> None:
    fail_each_allocation(ring_of)
    ring = ring_of()
    fail_each_allocation(lambda: opened(FRIEND, ring))


def test_old_weights_go_with_the_swap() -> None:
    ring = ring_of()
    models = [build(LLAMA, perturbed(TENSORS, 0.05)) for _ in range(2)]
    session = opened(by_method("model", models[0]), ring)
    session.round()
    n_held = sys.getrefcount(models[0])
    session.swap(ring, by_method("model", models[1]))
    gc.collect()
    assert sys.getrefcount(models[0]) < n_held
    session.prefill()
    assert session.round()


def test_threads_share_samples() -> None:
    """Sessions of several threads store into one ring and swap, while another thread takes from it."""
    ring, ended = ring_of(5), threading.Event()

    def serve() -> list[list[int]]:
        models, records = itertools.cycle((OTHER, FRIEND)), []
        session = opened(FRIEND, ring)
        while True:
            session.swap(ring, next(models))
            session.prefill()
            if not (more := session.round()):
                return continued(records)
            records += more

    def take() -> None:
        while not ended.is_set():
            taken = ring.take()
            assert ((taken["rest"] >= 0) & (taken["rest"] < 1)).all()

    with ThreadPoolExecutor() as threads:
        taker = threads.submit(take)
        texts = [work.result() for work in [threads.submit(serve) for _ in range(3)]]
        ended.set()
        taker.result()
    assert texts == [continued(all_rounds(opened(None, gamma=0)))] * 3
