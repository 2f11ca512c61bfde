"""Drafts that are watched: what is kept of corrections, and drafts that take another's place."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import fail_each_allocation, needs_hooks
from descriptions import by_method
from sessions import Session
from specdec import _core, reference
from specdec.errors import InputError
from worlds.canonical import LLAMA, build, perturbed, random_tensors, with_drafts

N_VOCAB = LLAMA["n_vocab"]
TENSORS = {name: 3 * tensor for name, tensor in random_tensors(LLAMA, 1).items()}
PROMPTS = [[3], [5, 9, 7] * 4, list(range(30, 60))]
N_BEFORE, N_TOP = 6, 5


@pytest.fixture(scope="module")
def target() -> _core.Model:
    return build(LLAMA, TENSORS)


@pytest.fixture(scope="module")
def friend() -> _core.Model:
    return build(LLAMA, perturbed(TENSORS, 0.05))


@pytest.fixture(scope="module")
def other() -> _core.Model:
    return build(LLAMA, perturbed(TENSORS, 0.08, seed=9))


def drafted(friend: _core.Model) -> dict[str, Any]:
    """Drafts to be watched, each with what it is made of."""
    return {
        "chain": by_method("model", friend),
        "chains": by_method("parallel_chains", friend, 3),
        "tree": by_method("static_tree", friend, [0, 0, 1, 1, 2], "sample"),
        "grown": by_method("dynamic_tree", friend, 3, 3, 1.0),
        "nested": by_method("nested", friend, by_method("model", friend), 2),
    }


def opened(
    target: _core.Model, draft: Any, prompts: Any = PROMPTS, temperature: float = 0.0, **options: Any
) -> Session:
    settings = {"temperature": temperature}
    defaults: dict[str, Any] = {"gamma": 5, "max_new_tokens": 30, "n_threads": 1, "rule": "rejection"}
    session = Session(
        target, draft, prompts, sampling=settings, draft_sampling=settings,
        seeds=[(4, i) for i in range(len(prompts))], **defaults | options,
    )  # fmt: skip
    session.prefill()
    return session


def all_rounds(session: Session) -> list[dict[str, Any]]:
    found = []
    while records := session.round():
        found += records
    return found


def what(records: list[dict[str, Any]]) -> list[Any]:
    return [
        (record["sequence"], record["drafted"], record["parents"], record["accepted"], record["tokens"])
        for record in records
    ]


# ------------------------------------------------------------------------------------------ corrections


def expected(
    records: list[dict[str, Any]], prompts: list[list[int]], everywhere: bool = False
) -> list[tuple[int, list[int], int]]:
    """(sequence, the text before, guesses accepted) wherever the text left the guesses of its round.

    With `everywhere` also wherever it went along with them, and behind the last one.
    """
    texts, found = [list(prompt) for prompt in prompts], []
    for record in records:
        text, new = texts[record["sequence"]], record["tokens"]
        if not record["drafted"]:
            text += new
            continue
        prefixes: list[tuple[int, ...]] = [()]
        for token, parent in zip(record["drafted"], record["parents"], strict=True):
            prefixes.append((*prefixes[parent], token))
        guessed = {prefix for prefix in prefixes if prefix}
        depth = 0
        while depth < len(new) and tuple(new[: depth + 1]) in guessed:
            if everywhere:
                found.append((record["sequence"], [*text, *new[:depth]], depth))
            depth += 1
        behind = tuple(new[:depth])
        if depth < len(new) and (everywhere or any(prefix[:-1] == behind for prefix in guessed)):
            found.append((record["sequence"], [*text, *new[:depth]], depth))
        text += new
    return found


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["chain", "chains", "tree", "grown"])
def test_corrections_are_where_the_text_left_the_guesses(
    target: _core.Model, friend: _core.Model, name: str, temperature: float, everywhere: bool
) -> None:
    """By the records of the rounds, in plain Python; the law by the target's own logits there."""
    ring = _core.Corrections(1000, N_BEFORE, N_TOP, everywhere=everywhere)
    session = opened(target, by_method("watched", drafted(friend)[name], ring), temperature=temperature)
    records = all_rounds(session)
    wanted, got = expected(records, PROMPTS, everywhere), ring.take()
    assert len(wanted) == len(got["depth"]) > 4
    assert ring.n == 0
    laws = {}
    for i, (sequence, text, depth) in enumerate(wanted):
        assert got["before"][i].tolist() == [-1] * (N_BEFORE - len(text)) + text[-N_BEFORE:]
        assert (got["depth"][i], got["position"][i], got["text"][i]) == (depth, len(text), sequence)
        decoder = _core.Decoder(target, capacity=len(text))
        logits = decoder.prefill(text, logits=True)[-1]
        laws[i] = reference.distribution(logits, 1.0)
        top = np.lexsort((np.arange(N_VOCAB), -logits))[:N_TOP]
        assert got["top"][i].tolist() == top.tolist()
        np.testing.assert_allclose(np.exp(got["log_probs"][i]), laws[i][top], rtol=2e-5)
        np.testing.assert_allclose(got["rest"][i], 1.0 - laws[i][top].sum(), atol=2e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["chain", "chains", "tree", "grown", "nested"])
def test_a_watched_draft_proposes_what_it_does_unwatched(
    target: _core.Model, friend: _core.Model, name: str, temperature: float
) -> None:
    draft = drafted(friend)[name]
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    plain = all_rounds(with_drafts(opened(target, draft, temperature=temperature)))
    within = by_method("watched", draft, ring)
    watched = all_rounds(with_drafts(opened(target, within, temperature=temperature)))
    assert what(watched) == what(plain)
    for a, b in zip(watched, plain, strict=True):
        assert np.array_equal(a["draft_probs"], b["draft_probs"])


def test_a_watched_draft_in_an_ensemble_sees_its_own_guesses(
    target: _core.Model, friend: _core.Model, other: _core.Model
) -> None:
    """Two drafts side by side: each ring has what its own draft missed."""
    rings = [_core.Corrections(1000, N_BEFORE, N_TOP) for _ in range(2)]
    parts = [by_method("watched", model, ring) for model, ring in zip((friend, other), rings, strict=True)]
    session = opened(target, by_method("ensemble", False, [3, 3], parts), gamma=6)
    records = all_rounds(session)
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


def test_the_oldest_corrections_go_first(target: _core.Model, friend: _core.Model) -> None:
    whole, last = _core.Corrections(1000, 4, 3), _core.Corrections(7, 4, 3)
    for ring in (whole, last):
        all_rounds(opened(target, by_method("watched", friend, ring)))
    assert last.n == 7
    every, kept = whole.take(), last.take()
    for name, array in every.items():
        assert np.array_equal(array[-7:], kept[name])
    assert {len(array) for array in last.take().values()} == {0}


def test_a_law_of_more_tokens_than_there_are(target: _core.Model, friend: _core.Model) -> None:
    ring = _core.Corrections(10, 1, N_VOCAB + 3)
    all_rounds(opened(target, by_method("watched", friend, ring)))
    got = ring.take()
    assert (got["top"][:, N_VOCAB:] == -1).all() and (got["log_probs"][:, N_VOCAB:] == -np.inf).all()
    assert (np.sort(got["top"][:, :N_VOCAB]) == np.arange(N_VOCAB)).all() and (got["rest"] == 0).all()
    np.testing.assert_allclose(np.exp(got["log_probs"]).sum(axis=1), 1.0, atol=1e-5)


def test_corrections_refuse_what_they_cannot_be(target: _core.Model, friend: _core.Model) -> None:
    for arguments in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1, -1), (1 << 21, 1, 1)):
        with pytest.raises(ValueError, match="expected"):
            _core.Corrections(*arguments)
    with pytest.raises(ValueError, match="n_hidden of the corrections is 3, expected 0, or 0"):
        opened(target, by_method("watched", friend, _core.Corrections(1, 1, 1, 3)))
    with pytest.raises(TypeError, match="expected specdec._core.Corrections"):
        opened(target, by_method("watched", friend, 3))


# ------------------------------------------------------------------------------------------------ swaps


def continued(records: list[dict[str, Any]]) -> list[list[int]]:
    texts = [list(prompt) for prompt in PROMPTS]
    for record in records:
        texts[record["sequence"]] += record["tokens"]
    return texts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["chain", "chains", "tree", "grown", "nested"])
def test_after_a_swap_guesses_are_those_of_a_fresh_session(
    target: _core.Model, friend: _core.Model, other: _core.Model, name: str, temperature: float
) -> None:
    """Of the new weights, on the texts so far; with what the guesses were drawn from, to the bit."""
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    options: dict[str, Any] = {"temperature": temperature, "rule": "coupled"}
    session = with_drafts(opened(target, by_method("watched", drafted(friend)[name], ring), **options))
    before = [record for _ in range(3) for record in session.round()]
    session.swap(ring, drafted(other)[name])
    assert session.prefill() > 0
    after = session.round()
    fresh = with_drafts(opened(target, drafted(other)[name], continued(before), **options)).round()
    assert what(after) == what(fresh)
    for a, b in zip(after, fresh, strict=True):
        assert np.array_equal(a["draft_probs"], b["draft_probs"])
    plain = all_rounds(opened(target, None, **options | {"gamma": 0}))
    assert continued([*before, *after, *all_rounds(session)]) == continued(plain)


def test_tables_take_the_place_of_tables(target: _core.Model) -> None:
    tables = [specdec.drafts.Ngram(np.arange(200) * step % N_VOCAB, N_VOCAB, 3) for step in (7, 8)]
    for method in ("ngram", "online_ngram"):
        ring = _core.Corrections(10, N_BEFORE, N_TOP)
        session = opened(target, by_method("watched", by_method(method, tables[0].core), ring))
        before = [record for _ in range(3) for record in session.round()]
        session.swap(ring, by_method(method, tables[1].core))
        session.prefill()
        fresh = opened(target, by_method(method, tables[1].core), continued(before))
        assert what(session.round()) == what(fresh.round())


def test_look_ahead_embeddings_take_the_place_of_others(target: _core.Model) -> None:
    """Those of the new draft ride from then on, and guesses come after the first round in which they did."""
    rng = np.random.default_rng(0)
    d_model = LLAMA["d_model"]
    old, new = (_core.LookAheadEmbeddings(rng.normal(size=(3, d_model)).astype("f4")) for _ in range(2))
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    options: dict[str, Any] = {"temperature": 1.0, "rule": "coupled"}
    session = with_drafts(opened(target, by_method("watched", by_method("model", old), ring), **options))
    before = [record for _ in range(3) for record in session.round()]
    session.swap(ring, by_method("model", new))
    del old
    gc.collect()
    session.prefill()
    after = [record for _ in range(2) for record in session.round()]
    fresh = with_drafts(opened(target, by_method("model", new), continued(before), **options))
    wanted = [record for _ in range(2) for record in fresh.round()]
    assert what(after) == what(wanted) and any(record["drafted"] for record in after)
    for a, b in zip(after, wanted, strict=True):
        assert np.array_equal(a["draft_probs"], b["draft_probs"])
    for shape in ((2, d_model), (3, d_model + 1)):
        with pytest.raises(InputError, match="of another kind"):
            session.swap(ring, by_method("model", _core.LookAheadEmbeddings(np.zeros(shape, np.float32))))


def test_texts_begin_and_end_around_a_swap(
    target: _core.Model, friend: _core.Model, other: _core.Model
) -> None:
    """A slot that is free, one that the next prompt has taken and that is not read, and one that goes on."""
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    session = opened(target, by_method("watched", friend, ring), n_text=80)
    before = session.round()
    session.finish(0)
    session.finish(1)
    session.replace(1, [8, 8, 2], (4, 1))
    session.swap(ring, other)
    session.prefill()
    after = session.round()
    assert [record["sequence"] for record in after] == [1, 2]
    texts = [[8, 8, 2], continued(before)[2]]
    assert [row[1:] for row in what(after)] == [row[1:] for row in what(opened(target, other, texts).round())]


def test_a_swap_that_fails_changes_nothing(
    target: _core.Model, friend: _core.Model, other: _core.Model
) -> None:
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    session, whole = (opened(target, by_method("watched", friend, ring), temperature=1.0) for _ in range(2))
    records = session.round()
    table = specdec.drafts.Ngram([1, 2], 50, 2).core
    with pytest.raises(InputError, match="of another kind"):
        session.swap(ring, by_method("static_tree", other, [0, 0], "sample"))
    with pytest.raises(ValueError, match="expected one vocabulary"):
        session.swap(ring, table)
    with pytest.raises(TypeError):
        session.swap(ring, 3)
    with pytest.raises(ValueError, match="no draft of the session is watched with these"):
        session.swap(_core.Corrections(1, 1, 1), other)
    with pytest.raises(ValueError, match="no draft of the session"):
        opened(target, None, gamma=0).swap(ring, other)
    assert what(records + all_rounds(session)) == what(all_rounds(whole))
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.swap(ring, other)


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_a_swap_without_memory_changes_nothing(
    target: _core.Model, friend: _core.Model, other: _core.Model
) -> None:
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    session = opened(target, by_method("watched", friend, ring))
    before = session.round()

    def swap() -> None:
        session.swap(ring, by_method("parallel_chains", other, 1))

    fail_each_allocation(swap)
    session.prefill()
    fresh = opened(target, by_method("parallel_chains", other, 1), continued(before))
    assert what(session.round()) == what(fresh.round())


@needs_hooks
@pytest.mark.slow
@pytest.mark.usefixtures("quick_gc")
def test_every_allocation_may_fail(target: _core.Model, friend: _core.Model) -> None:
    fail_each_allocation(lambda: _core.Corrections(5, 3, 2))
    ring = _core.Corrections(5, 3, 2)
    fail_each_allocation(lambda: opened(target, by_method("watched", friend, ring)))


def test_old_weights_go_with_the_swap(target: _core.Model) -> None:
    ring = _core.Corrections(10, N_BEFORE, N_TOP)
    models = [build(LLAMA, perturbed(TENSORS, 0.05)) for _ in range(2)]
    session = opened(target, by_method("watched", by_method("model", models[0]), ring))
    session.round()
    n_held = sys.getrefcount(models[0])
    session.swap(ring, by_method("model", models[1]))
    gc.collect()
    assert sys.getrefcount(models[0]) < n_held
    session.prefill()
    assert session.round()


def test_threads_share_corrections(target: _core.Model, friend: _core.Model, other: _core.Model) -> None:
    """Sessions of several threads store into one ring and swap, while another thread takes from it."""
    ring = _core.Corrections(5, N_BEFORE, N_TOP)
    wanted = what(all_rounds(opened(target, None, gamma=0)))
    got: list[Any] = []
    ended = threading.Event()

    def serve(which: int) -> None:
        models = [friend, other]
        session = opened(target, by_method("watched", models[0], ring))
        records = []
        while True:
            models.reverse()
            session.swap(ring, models[0])
            session.prefill()
            if not (more := session.round()):
                break
            records += more
        got.append(continued(records))

    def take() -> None:
        while not ended.is_set():
            taken = ring.take()
            assert ((taken["rest"] >= 0) & (taken["rest"] < 1)).all()

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(3)]
    taker = threading.Thread(target=take)
    for thread in (*threads, taker):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    taker.join()
    plain = [list(prompt) for prompt in PROMPTS]
    for sequence, _, _, _, tokens in wanted:
        plain[sequence] += tokens
    assert got == [plain] * 3
