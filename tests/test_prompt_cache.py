"""`specdec.PromptCache`: a hit changes no bit, and memory is bounded."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks, nothing_leaks
from chat_templates import make_chat
from compiled import blocks_of_a_stored_token, blocks_of_a_token, counted_work, prompts_in_slices_of
from drafters import DRAFTS, Repeats, World, named
from refusals import refuses
from sessions import Session, read_prompts
from specdec import PromptCache, _core, drafts
from specdec.decoding.prompt_cache import PrefixCacheAdapter
from specdec.decoding.prompt_files import PromptFiles, digest_of
from trained import small_pair
from worlds.canonical import ENCODER_DECODERS, VARIANTS, build, random_source, random_tensors

Factory = Callable[..., Path]
N_NEW = 12
DRAFTED_ALIKE = (
    "model", "chains", "samples", "top-k", "grown", "drafted by a bigram", "drafted by trees",
    "three models deep",
)  # fmt: skip


@pytest.fixture(scope="module")
def target() -> specdec.Model:
    return small_pair()[1]  # the smaller model


def turns(
    target: specdec.Model, draft: Any, ids: list[int], cache: PromptCache | None, **options: Any
) -> Any:
    """Three turns of a conversation, each continuing the one before."""
    options = {"max_new_tokens": N_NEW, "ignore_eos": True, "logits": True, "seed": 4} | options
    prompt, results = ids[:70], []
    for i in range(3):
        results.append(specdec.generate(target, draft, prompt, prompt_cache=cache, **options))
        prompt = [*prompt, *results[-1].tokens, *ids[80 + 7 * i : 85 + 7 * i]]
    return results


def assert_equal(found: specdec.Result, wanted: specdec.Result) -> None:
    assert (found.tokens, found.text, found.prompt_ids) == (wanted.tokens, wanted.text, wanted.prompt_ids)
    assert np.array_equal(found.logits, wanted.logits)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
@pytest.mark.parametrize("name", [None, *named()])
@pytest.mark.grid
def test_a_hit_changes_no_bit(world: World, name: str | None, verify: str) -> None:
    """Greedy with the first rule; sampled with the other, which gives every draft the plain text."""
    options = {"verify": verify, "temperature": 0.8 if verify == "coupled" else 0.0}
    wanted = turns(world.target, None, world.ids, None, **options)
    draft = None if name is None else DRAFTS[name](world)
    cache = PromptCache()
    found = turns(world.target, draft, world.ids, cache, **options)
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert_equal(one, other)
        # all of the text before, except its last token, which was never read
        before = 0 if i == 0 else len(found[i - 1].prompt_ids) + N_NEW
        assert one.n_cached_tokens in (max(before - 1, 0), before)
    readers = [draft] if isinstance(draft, specdec.Model) else getattr(draft, "readers", ())
    assert len(cache) == 1 + len(set(readers))
    if name in DRAFTED_ALIKE:  # the draft's own texts are what they would be too
        for one, other in zip(found, turns(world.target, draft, world.ids, None, **options), strict=True):
            assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in other.trace.rounds]
            assert [r.parents for r in one.trace.rounds] == [r.parents for r in other.trace.rounds]


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batches(target: specdec.Model, world: World, batch_size: int) -> None:
    """Prompts with a common prefix in a batch that reuses slots; the second time all are cached."""
    prompts = [[*world.ids[:40], 7 * i, *world.ids[i : i + 3 * i]] for i in range(6)]
    options: dict[str, Any] = {"max_new_tokens": N_NEW, "ignore_eos": True, "logits": True, "seed": 1}
    wanted = specdec.generate(target, None, prompts, **options)
    cache = PromptCache()
    for again in (False, True):
        found = specdec.generate(
            target, world.draft, prompts, prompt_cache=cache, batch_size=batch_size, **options
        )
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_equal(one, other)
            if again:
                assert one.n_cached_tokens == len(prompts[i]) - 1
    assert len(cache) == 12  # of the target and of the draft


@needs_hooks
def test_windows_that_have_moved_on(make_mistral: Factory) -> None:
    """Tokens that have left a window are read again; of two texts the one with more tokens is used.

    The kept tokens depend on prompt slices.
    """
    with prompts_in_slices_of(64):
        model = specdec.load(make_mistral(max_position_embeddings=1024))
    ids = [(7 * i + i * i) % 61 for i in range(700)]
    cache, options = PromptCache(), {"max_new_tokens": 4, "logits": True, "ignore_eos": True}

    def ask(prompt: list[int]) -> int:
        found = specdec.generate(model, model, prompt, prompt_cache=cache, **options)
        assert_equal(found, specdec.generate(model, None, prompt, **options))
        return found.n_cached_tokens

    assert ask(ids[:150]) == 0
    assert ask(ids[:500]) == 150  # the first text stays: the second cannot serve texts that leave it early
    assert len(cache) == 2 and cache._entries[-1].text.n_low > 150
    assert ask([*ids[:150], 3, 4, 5]) == 150
    assert ask([*ids[:300], 3, 4, 5]) == 150
    assert ask([*ids[:490], 3, 4, 5]) == 490
    assert ask([*ids[:100], 3, 4, 5]) == 100  # within reach of the first


def test_a_prefix_of_a_text(target: specdec.Model, world: World) -> None:
    """The next question on one document: the cached text has another end."""
    document, cache = world.ids[:60], PromptCache()
    for i in range(4):
        prompt = [*document, 100 + i, 5, 6]
        found = specdec.generate(target, None, prompt, prompt_cache=cache, max_new_tokens=5, logits=True)
        assert found.n_cached_tokens == (len(document) if i else 0)
        assert_equal(found, specdec.generate(target, None, prompt, max_new_tokens=5, logits=True))
    assert len(cache) == 4
    # a prompt that is a prefix of a cached text: its last token is the root of the first round
    found = specdec.generate(target, None, document[:30], prompt_cache=cache, max_new_tokens=5)
    assert found.n_cached_tokens == 29


@needs_hooks
def test_only_new_tokens_are_computed(target: specdec.Model, world: World) -> None:
    cache = PromptCache()
    first = specdec.generate(target, None, world.ids[:50], prompt_cache=cache, max_new_tokens=5)
    prompt = [*first.prompt_ids, *first.tokens, 3, 4, 5]
    with counted_work() as work:
        specdec.generate(target, None, prompt, prompt_cache=cache, max_new_tokens=1)
    # the last token of the first text, which was not read, and three more, of which one is the root
    assert work.blocks == 3 * blocks_of_a_stored_token(target) + blocks_of_a_token(target)


# ----------------------------------------------------------------------------------------- beam search


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("drafted", [False, True])
def test_beams_from_a_cache(target: specdec.Model, world: World, drafted: bool, width: int) -> None:
    """Prompts that continue texts of `generate` and of other searches, and texts that continue beams."""
    draft, cache = world.draft if drafted else None, PromptCache()
    options: dict[str, Any] = {"width": width, "gamma": 2, "max_new_tokens": 7, "ignore_eos": True}
    prompt = world.ids[:40]
    specdec.generate(target, draft, prompt, prompt_cache=cache, max_new_tokens=3)
    for _ in range(2):
        wanted = specdec.beam_search(target, draft, prompt, **options)
        found = specdec.beam_search(target, draft, prompt, prompt_cache=cache, **options)
        assert found.beams == wanted.beams and wanted.n_cached_tokens == 0
        assert found.n_cached_tokens == 39
    longer = [*prompt, *found.best.tokens, 5, 6]
    wanted = specdec.beam_search(target, draft, longer, **options)
    found = specdec.beam_search(target, draft, longer, prompt_cache=cache, **options)
    assert found.beams == wanted.beams and found.n_cached_tokens >= 40
    plain = specdec.generate(target, draft, longer, max_new_tokens=5, logits=True, seed=3)
    again = specdec.generate(target, draft, longer, max_new_tokens=5, logits=True, seed=3, prompt_cache=cache)
    assert_equal(again, plain)
    assert again.n_cached_tokens == len(longer) - 1


DRAFTING: dict[str, tuple[int, Any]] = {
    "chain": (1, drafts.ModelDraft),
    "dynamic": (1, lambda small: drafts.ModelDraft(small, tree=drafts.DynamicTree(4))),
    "tree": (1, lambda small: drafts.ModelDraft(small, tree=drafts.StaticTree((2, 1)))),
    "in ensembles": (2, lambda small: drafts.Ensemble(
        Repeats(), small, drafts.Ensemble(drafts.ModelDraft(small), adaptive=False), adaptive=False
    )),
}  # fmt: skip
"""The number of drafts that read texts with the small model, and the draft."""


@needs_hooks
@pytest.mark.parametrize("name", DRAFTING)
def test_a_draft_reads_only_new_tokens(target: specdec.Model, world: World, name: str) -> None:
    n_readers, make = DRAFTING[name]
    draft, cache = make(world.draft), PromptCache()
    options: dict[str, Any] = {"max_new_tokens": 9, "logits": True}
    first = specdec.generate(target, draft, world.ids[:50], prompt_cache=cache, **options)
    assert len(cache) == 2  # of each model
    prompt = [*first.prompt_ids, *first.tokens, 3, 4, 5]
    work, found = {}, {}
    for known in (None, cache):
        with counted_work() as done:
            found[known] = specdec.generate(target, draft, prompt, prompt_cache=known, **options)
        work[known] = done.blocks
    assert_equal(found[cache], found[None])
    assert found[cache].trace.n_drafted == found[None].trace.n_drafted
    assert work[None] - work[cache] >= 50 * blocks_of_a_stored_token(target, *[world.draft] * n_readers)


def test_a_draft_of_a_shorter_context(make_llama: Factory) -> None:
    """Texts that outgrow the draft's context: drafting stops, and nothing else changes."""
    target = specdec.load(make_llama("target", max_position_embeddings=256))
    draft = specdec.load(make_llama("draft", max_position_embeddings=90, seed=1))
    ids = [(7 * i) % 61 for i in range(110)]
    found = turns(target, draft, ids, PromptCache(), gamma=3)
    for one, other in zip(found, turns(target, None, ids, None), strict=True):
        assert_equal(one, other)
    assert found[0].trace.n_drafted > 0 and found[2].trace.n_drafted == 0


def test_streams(target: specdec.Model, world: World) -> None:
    """Also one that is abandoned before its end."""
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}
    cache = PromptCache()
    whole = specdec.generate(target, None, world.ids[:20], **options)
    with specdec.stream(target, None, world.ids[:20], prompt_cache=cache, **options) as stream:
        next(stream)
    assert len(cache) == 1
    again = specdec.stream(target, None, world.ids[:20], prompt_cache=cache, **options)
    assert "".join(again) == whole.text
    assert again.result.tokens == whole.tokens and again.result.n_cached_tokens == 19


def test_chats_read_the_new_message_alone(make_llama: Factory) -> None:
    """The text of the first reply encodes to the ids that were generated."""
    model = make_chat(make_llama, "smollm")
    messages, cache = [{"role": "user", "content": "Hello there."}], PromptCache()
    options: dict[str, Any] = {"max_new_tokens": 6, "logit_bias": {i: -np.inf for i in range(95, 280)}}
    known = 0
    for _ in range(3):
        reply = specdec.generate(model, None, messages=messages, prompt_cache=cache, **options)
        assert reply.tokens == specdec.generate(model, None, messages=messages, **options).tokens
        assert reply.n_cached_tokens >= known
        known = len(reply.prompt_ids) + 5
        messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "More."}]


# ---------------------------------------------------------------------------------------- what is kept


def bytes_of(target: specdec.Model, ids: list[int]) -> int:
    cache = PromptCache()
    specdec.generate(target, None, ids, prompt_cache=cache, max_new_tokens=1)
    return cache.n_bytes


def test_the_least_recently_used_text_is_dropped(target: specdec.Model, world: World) -> None:
    n_bytes = bytes_of(target, [1, 2, 3])
    cache = PromptCache(3 * n_bytes + n_bytes // 2)

    def ask(first: int) -> int:
        prompt = [first, first + 1, first + 2]
        return specdec.generate(target, None, prompt, prompt_cache=cache, max_new_tokens=1).n_cached_tokens

    assert [ask(10), ask(20), ask(30)] == [0, 0, 0] and len(cache) == 3
    assert ask(10) == 2  # now 20 was used least recently
    assert ask(40) == 0 and (len(cache), cache.n_bytes) == (3, 3 * n_bytes)
    assert [ask(10), ask(30), ask(40)] == [2, 2, 2]
    assert ask(20) == 0
    assert repr(cache) == f"<specdec.PromptCache of 3 texts, {3 * n_bytes} of {cache.max_bytes} bytes>"
    # a text that is larger by itself drops nothing
    long = specdec.generate(target, None, world.ids[:200], prompt_cache=cache, max_new_tokens=1)
    assert bytes_of(target, world.ids[:200]) > cache.max_bytes and long.n_cached_tokens == 0
    assert len(cache) == 3
    cache.clear()
    assert (len(cache), cache.n_bytes, bool(cache)) == (0, 0, True)
    nothing = PromptCache(max_bytes=0)
    assert specdec.generate(target, None, [1, 2, 3], prompt_cache=nothing, max_new_tokens=3).tokens
    assert len(nothing) == 0


def test_a_text_replaces_its_prefix(target: specdec.Model, world: World) -> None:
    cache, ids = PromptCache(), world.ids

    def ask(n: int) -> int:
        specdec.generate(target, None, ids[:n], prompt_cache=cache, max_new_tokens=1)
        return len(cache)

    assert [ask(10), ask(20), ask(15)] == [1, 1, 1]  # the third is in the second
    (entry,) = cache._entries
    assert entry.known.tokens.tolist() == ids[:20] and entry.n_bytes == entry.text.n_bytes


def test_texts_of_another_model_are_not_used(target: specdec.Model, world: World) -> None:
    cache = PromptCache()
    other = specdec.load(target.path, "int8")
    for model in (target, other, world.draft):
        found = specdec.generate(model, None, world.ids[:30], prompt_cache=cache, max_new_tokens=3)
        assert found.n_cached_tokens == 0
        assert found.tokens == specdec.generate(model, None, world.ids[:30], max_new_tokens=3).tokens
    assert len(cache) == 3
    again = specdec.generate(other, None, world.ids[:30], prompt_cache=cache, max_new_tokens=1)
    assert again.n_cached_tokens == 29


@needs_hooks
def test_memory_is_given_back(target: specdec.Model, world: World) -> None:
    with nothing_leaks():
        turns(target, None, world.ids, PromptCache())


def test_failed_or_too_large_texts_are_not_kept(target: specdec.Model, world: World) -> None:
    def refuse(probs: Any, tokens: Any) -> Any:
        raise ZeroDivisionError

    cache = PromptCache()
    with pytest.raises(ZeroDivisionError):
        specdec.generate(target, None, [1, 2, 3], prompt_cache=cache, transform=refuse)
    assert len(cache) == 0
    wanted = specdec.generate(target, None, world.ids[:30], prompt_cache=cache, max_new_tokens=3)

    def fails() -> Any:
        raise MemoryError

    cache.keep(target.core, [5, 6], 100, 0, fails)
    assert len(cache) == 1 and cache._promised == 0
    again = specdec.generate(target, None, world.ids[:30], prompt_cache=cache, max_new_tokens=3)
    assert again.tokens == wanted.tokens and again.n_cached_tokens == 29


def test_bad_sizes_and_caches(target: specdec.Model) -> None:
    for bad in (-1, 2.5, "1", None, True):
        with refuses("max_bytes", bad):
            PromptCache(bad)
    with refuses("prompt_cache", {}):
        specdec.beam_search(target, None, [1], prompt_cache={})  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("n_texts", [2, 100])
def test_threads_share_a_cache(target: specdec.Model, world: World, n_texts: int) -> None:
    """With capacity for two texts, which are dropped while others read them, and with capacity for all."""
    prompts = [[*world.ids[:30], i % 4, *world.ids[: 3 * i]] for i in range(12)]
    options: dict[str, Any] = {"max_new_tokens": 6, "logits": True, "n_threads": 1, "seed": 1}
    wanted = [specdec.generate(target, None, prompt, **options) for prompt in prompts]
    cache = PromptCache(n_texts * bytes_of(target, world.ids[:70]))
    largest: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            largest.append(cache.n_bytes)

    def ask(i: int) -> None:
        found = specdec.generate(target, None, prompts[i % 12], prompt_cache=cache, **options)
        assert_equal(found, wanted[i % 12])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(36)))
    ended.set()
    watcher.join()
    assert 0 < max(largest) <= cache.max_bytes and cache._promised == 0


# -------------------------------------------------------------------------------------------- the core


def open_session(model: Any, *prompts: list[int], n_new: int = 4, source: Any = None) -> Session:
    return Session(
        model, None, prompts, gamma=0, max_new_tokens=n_new, sampling={"temperature": 0.0}, n_threads=1,
        seeds=[(0, i) for i in range(len(prompts))], keep_logits=True, sources=[source] * len(prompts),
    )  # fmt: skip


def texts(session: Session) -> tuple[list[int], Any]:
    """Tokens and logits of the single sequence."""
    session.prefill()
    records = [record for records in iter(session.round, []) for record in records]
    tokens = [token for record in records for token in record["tokens"]]
    return tokens, np.concatenate([record["logits"] for record in records])


def test_cached_texts_of_the_core(target: specdec.Model, world: World) -> None:
    session = open_session(target.core, [4, 5, 6])
    assert session.cached_text(0).tokens.size == 0  # nothing is read yet
    texts(session)
    text = session.cached_text(0)
    assert text.tokens.dtype == np.int32 and text.tokens[:3].tolist() == [4, 5, 6]
    assert text.model is target.core
    size = text.tokens.tolist(), None, text.n_bytes, text.n_low
    assert session.cached_size(0) == session.cached_size(0, target.core) == size
    other = open_session(target.core, [4, 5, 9, 9], [4, 5, 6])
    assert (other.begin_with(0, text), other.begin_with(1, text), other.begin_with(1, text)) == (2, 2, 2)
    other.prefill()
    stranger = open_session(world.draft.core, [4, 5])
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (RuntimeError, "sequence 0 is already being read", lambda: other.begin_with(0, text)),
        (ValueError, "sequence is", lambda: other.cached_text(2)),
        (ValueError, "sequence is", lambda: other.cached_text(-1)),
        (ValueError, "neither the target nor a model that drafts", lambda: stranger.begin_with(0, text)),
        (ValueError, "neither the target nor a model", lambda: session.cached_text(0, world.draft.core)),
        (TypeError, r"expected specdec\._core\.Model", lambda: session.cached_text(0, 5)),
        (TypeError, "missing required", lambda: _core.CachedText()),
    ]
    for error_type, message, call in refused:
        with pytest.raises(error_type, match=message):
            call()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.cached_text(0)


def test_a_text_that_ends_unread_is_not_kept(target: specdec.Model) -> None:
    """Its slot has the keys of the text before, which must not count as its own."""
    session, cache = open_session(target.core, [4, 5, 6]), PromptCache()
    texts(session)
    session.replace(0, [7, 8, 9], (1, 0))
    session.finish(0)
    PrefixCacheAdapter(cache, target, None).keep(session, 0, target)
    assert cache.find(target.core, [7, 8, 9]) is None
    found = cache.find(target.core, [4, 5, 6])
    assert found is not None and found.tokens[:3].tolist() == [4, 5, 6]


def test_cached_texts_of_a_beam_search(target: specdec.Model, world: World) -> None:
    def search(draft: specdec.Model | None, gamma: int = 1, max_new_tokens: int = 6) -> _core.BeamSearch:
        return _core.BeamSearch(
            target.core, None if draft is None else draft.core, world.ids[:20], width=2, draft_width=2,
            gamma=gamma, max_new_tokens=max_new_tokens,
        )  # fmt: skip

    first, plain = search(world.draft), search(None)
    assert first.drafts and not plain.drafts
    silent = search(world.draft, gamma=0)
    assert not silent.drafts and not search(world.draft, max_new_tokens=1).drafts
    assert first.cached_size(target.core)[0] == []
    read_prompts(first)
    text = first.cached_text(world.draft.core)
    assert (text.tokens.tolist(), text.n_bytes, text.n_low) == first.cached_size(world.draft.core)
    again = search(world.draft)
    assert (again.begin_with(text), again.begin_with(text)) == (19, 19)
    read_prompts(again)
    with pytest.raises(RuntimeError, match="the prompt is already being read"):
        again.begin_with(text)
    for call, given in (
        (plain.begin_with, text), (plain.cached_text, text.model), (silent.cached_size, text.model)
    ):  # fmt: skip
        with pytest.raises(ValueError, match="neither the target nor a model that drafts"):
            call(given)
    with pytest.raises(TypeError, match="CachedText"):
        first.begin_with([1])  # type: ignore[arg-type]
    first.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.cached_size(target.core)


MODELS = {**VARIANTS, **{f"encoder-decoder {name}": config for name, config in ENCODER_DECODERS.items()}}


def copied(text: _core.CachedText, piece: int) -> _core.CachedText:
    """The text through its image, in pieces of this many bytes."""
    size = text.image_sizes[1]
    pieces = (text.image(at, min(piece, size - at)) for at in range(0, size, piece))
    source = None if text.source is None else text.source.tolist()
    return _core.CachedText(text.model, text.tokens, source, text.captures, text.shape, pieces)


@pytest.mark.parametrize("cache_dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("variant", MODELS)
def test_every_switch_of_a_model(variant: str, cache_dtype: Any) -> None:
    """Windows, states, sources and the others: a text continues bit for bit, also restored from bytes."""
    config = MODELS[variant]
    model = build(config, random_tensors(config), cache_dtype=cache_dtype)
    ids, source = [(7 * i + i * i) % config["n_vocab"] for i in range(60)], random_source(config)
    first = open_session(model, ids[:30], n_new=20, source=source)
    first.keep_snapshots(8, 1 << 30)
    prompt = [*ids[:30], *texts(first)[0], *ids[30:50]]
    text = first.cached_text(0)
    wanted = texts(open_session(model, prompt, n_new=20, source=source))
    for known in (text, copied(text, 1 << 20), copied(text, 777)):
        for name in ("shape", "captures", "n_low", "snapshots", "n_bytes", "image_sizes"):
            assert getattr(known, name) == getattr(text, name)
        assert known.image(0, text.image_sizes[1]) == text.image(0, text.image_sizes[1])
        again = open_session(model, prompt, n_new=20, source=source)
        assert again.begin_with(0, known) == 49
        found = texts(again)
        assert found[0] == wanted[0] and np.array_equal(found[1], wanted[1])


def test_pieces_of_an_image_that_are_no_bytes(target: specdec.Model) -> None:
    session = open_session(target.core, [4, 5, 6])
    texts(session)
    text = session.cached_text(0)
    whole = text.image(0, text.image_sizes[1])
    for item in (None, 5, "text", [whole], object()):
        for before in ([], [whole[:7]], [whole]):
            with pytest.raises(TypeError, match="bytes-like"):
                _core.CachedText(target.core, text.tokens, None, (), text.shape, [*before, item])
    for pieces, message in (([whole, b"x"], "more than"), ([whole[:-1]], "expected"), ([], "0 bytes")):
        with pytest.raises(ValueError, match=message):
            _core.CachedText(target.core, text.tokens, None, (), text.shape, pieces)


# --------------------------------------------------------------------------------------- files of the cache


def test_only_equal_models_share_files(target: specdec.Model) -> None:
    """Weights, formats, prefill and windows tell models apart; where they come from does not."""
    config = VARIANTS["llama"]
    tensors = random_tensors(config)
    names = list(tensors)

    def changed(name: str) -> Any:
        values = tensors[name].copy()
        values.flat[-1] += 0.25
        return tensors | {name: values}

    base = build(config, tensors)
    assert digest_of(base) == digest_of(build(config, tensors))
    others = [build(config, changed(name)) for name in names]
    others += [build(config, tensors, dtype=dtype) for dtype in ("bf16", "int8", "int4")]
    others += [build(config, tensors, cache_dtype="bf16"), build(config, tensors, prefill="blas")]
    others += [build(config, tensors, dtype="bf16", prefill="tiles"), base.windowed(20)]
    others += [build(config | {"norm_eps": 1e-6}, tensors)]
    assert len({digest_of(model) for model in [base, *others]}) == len(others) + 1
    packed = specdec.load(target.path)
    assert digest_of(packed.core) == digest_of(target.core)


@pytest.mark.slow
def test_every_tensor_counts() -> None:
    """The digest changes with the last number of each tensor of every switch; layers take turns."""
    for turn, (variant, config) in enumerate(MODELS.items()):
        tensors = random_tensors(config)
        order = sorted(tensors, key=lambda name: f"layers.{turn % 3}." in name)  # the last one counts
        chosen = {re.sub(r"\.\d+\.", ".", name): name for name in order}.values()
        found = {build(config, tensors).digest()}
        for name in chosen:
            values = tensors[name].copy()
            values.flat[-1] *= 1.5
            found.add(build(config, tensors | {name: values}).digest())
        assert len(found) == len(chosen) + 1, variant


def stored(target: specdec.Model, prompt: list[int], folder: Path) -> Path:
    """The file of a prompt."""
    cache = PromptCache(path=folder)
    specdec.generate(target, None, prompt, prompt_cache=cache, max_new_tokens=3)
    cache.flush()
    (path,) = folder.glob("*/*")
    return path


def rewritten(path: Path, **changes: Any) -> None:
    """Change fields of the header of a file, with a right checksum."""
    data = path.read_bytes()
    n = int.from_bytes(data[8:16], "little")
    header = json.dumps(json.loads(data[32 : 32 + n]) | changes).encode()
    tokens = 4 * int.from_bytes(data[16:24], "little")
    covered = header + data[32 + n : 32 + n + tokens]
    sizes = len(header).to_bytes(8, "little") + data[16:24]
    checksum = int(_core.checksums(covered)[0]).to_bytes(8, "little")
    path.write_bytes(data[:8] + sizes + checksum + covered + data[32 + n + tokens :])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "0" * 24}, {"first": 7}, {"first": 32}, {"parent": "x"}, {"shape": [1, 2]}, {"extra": 1},
        {"shape": [1, 0, 500, 0]}, {"shape": [0, 0, 0, 0]}, {"shape": [9, 161, 0, 0, 5]}, {"captures": [99]},
        {"source": [1]}, {"panel_bytes": 0}, {"rest_bytes": 10}, {"shape": "x"}, {"panel_bytes": None},
    ],
)  # fmt: skip
def test_impossible_headers(
    target: specdec.Model, world: World, changes: dict[str, Any], tmp_path: Path
) -> None:
    path = stored(target, world.ids[:150], tmp_path)
    rewritten(path, **changes)
    wanted = specdec.generate(target, None, world.ids[:150], max_new_tokens=3).tokens
    cache = PromptCache(path=tmp_path)
    with pytest.warns(UserWarning, match=rf"{path.name}: .*ignored by the prompt cache"):
        found = specdec.generate(target, None, world.ids[:150], prompt_cache=cache, max_new_tokens=3)
        cache.flush()
    assert found.n_cached_tokens == 0 and found.tokens == wanted


def test_stale_parts_are_removed(target: specdec.Model, world: World, tmp_path: Path) -> None:
    """What a killed writer left is removed after an hour; what another one writes stays."""
    path = stored(target, world.ids[:150], tmp_path)
    old, new = (path.with_name(f".{i * 16}.part") for i in "ab")
    for part in (old, new):
        part.write_bytes(bytes(100))
    os.utime(old, (1, 1))
    PromptFiles(tmp_path, 1 << 30)._evict(0, set())
    assert (path.exists(), old.exists(), new.exists()) == (True, False, True)
