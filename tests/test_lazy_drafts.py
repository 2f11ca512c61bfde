"""Lazy prefill: a draft paused at the start of a text reads it before it drafts; output stays plain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks, nothing_leaks
from drafters import DRAFTS, Scripted, World
from sessions import Session
from specdec import AdaptiveGamma, _core
from specdec.drafts.model_draft import as_draft
from trained import small_pair

REST = 12
"""Least tokens of each sequence before a paused draft is tried."""
OPTIONS: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True, "n_threads": 1}


def rested(n_sequences: int = 1) -> _core.AdaptiveGamma:
    """A policy whose draft was just paused: no draft token was accepted. A round without it took 1 s."""
    learned = _core.AdaptiveGamma()
    while learned.view(n_sequences)["pause_left"] < REST:
        asked = _core._adaptive_gamma_begin(learned, n_sequences, 4)  # type: ignore[attr-defined]
        chain = ([0.5], 0, 0, 0.0) if asked else ([], 0, 0, 0.0)
        _core._adaptive_gamma_end(  # type: ignore[attr-defined]
            learned, (chain,) * n_sequences, n_sequences, 0.5 if asked else 0.0, 1.1 if asked else 1.0
        )
    return learned


class Rested(AdaptiveGamma):
    """gamma="auto" that starts each run with a paused draft."""

    def __init__(self, n_sequences: int = 1) -> None:
        super().__init__()
        self.learned = rested(n_sequences)

    def begin(self, session_type: Any) -> _core.AdaptiveGamma:
        return self.learned.copy()


TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 40


@pytest.fixture(scope="module")
def models() -> World:
    return World(*small_pair(), small_pair()[0].tokenizer.encode(TEXT))


def repeats(tokens: Sequence[int], budget: int) -> list[int]:
    """A draft that repeats the last token once."""
    return [tokens[-1]][:budget]


@needs_hooks
def test_a_draft_reads_the_text_that_it_has_missed(models: World) -> None:
    """Once for each sequence: the prompt and the tokens added during the pause."""
    prompts = [models.ids[:7], models.ids[30:50]]
    plain = specdec.generate(models.target, None, prompts, **OPTIONS)
    witness = Scripted(repeats)
    got = specdec.generate(models.target, witness, prompts, gamma=Rested(2), **OPTIONS)
    assert [one.tokens for one in got] == [one.tokens for one in plain]
    texts: dict[int, list[int]] = {}
    for note, sequence, text, *_ in witness.calls:
        if note == "begin":
            assert sequence not in texts
            n_new = len(text) - len(prompts[sequence])
            assert REST <= n_new < 60
            assert text == prompts[sequence] + plain[sequence].tokens[:n_new]
            rounds = got[sequence].trace.rounds
            assert all(one.n_drafted == 0 for one in rounds[:n_new]) and rounds[n_new].n_drafted > 0
        assert note != "propose" or text == texts[sequence], "it did not get all tokens"
        texts[sequence] = text
    assert sorted(texts) == [0, 1]


@needs_hooks
def test_a_draft_reads_nothing_where_too_little_is_left_to_draft(models: World) -> None:
    witness = Scripted(repeats)
    options = OPTIONS | {"max_new_tokens": REST}
    specdec.generate(models.target, witness, models.ids[:7], gamma=Rested(), **options)
    assert not [note for note in witness.calls if note[0] == "begin"]


THREE: dict[str, Any] = OPTIONS | {"logits": True, "max_new_tokens": 40}


@pytest.fixture(scope="module")
def plain(models: World) -> tuple[list[list[int]], list[specdec.Result]]:
    """Three prompts and their plain texts, with logits."""
    prompts = [models.ids[:9], models.ids[20:60], models.ids[5:6]]
    return prompts, specdec.generate(models.target, None, prompts, **THREE)


@needs_hooks
@pytest.mark.parametrize("name", DRAFTS)
def test_output_is_plain_output(models: World, plain: Any, name: str) -> None:
    """Of a batch whose second slot is taken by a third prompt; with logits."""
    draft = DRAFTS[name](models)
    got = specdec.generate(models.target, draft, plain[0], gamma=Rested(2), batch_size=2, **THREE)
    for one, wanted in zip(got, plain[1], strict=True):
        assert one.tokens == wanted.tokens and np.array_equal(one.logits, wanted.logits)


def session_of(models: World, prompt: list[int], n_new: int, learned: Any = None) -> Session:
    return Session(
        models.target.core, as_draft(models.target, models.draft).describe(models.target), [prompt], gamma=4,
        max_new_tokens=n_new, temperature=0.0, adaptive_gamma=learned,
    )  # fmt: skip


def rounds_until_it_drafts(session: Session) -> Iterator[list[int]]:
    """New tokens of each round, up to the first round that drafts."""
    while records := session.round():
        yield records[0]["tokens"]
        if records[0]["drafted"]:
            return
    raise AssertionError("it did not draft")


@needs_hooks
def test_a_late_draft_reads_a_long_text_between_rounds(models: World) -> None:
    """Slice by slice: no round waits for more than one."""
    prompt = models.ids[:440]
    session = session_of(models, prompt, 60, rested())
    session.prefill()
    new, sizes = [], []
    for tokens in rounds_until_it_drafts(session):
        new += tokens
        sizes.append(len(session.cached_size(0, models.draft.core)[0]))
        assert len(session.cached_size(0)[0]) == len(prompt) + len(new) - 1
    assert sizes[: REST - 1] == [0] * (REST - 1)
    assert any(0 < size < len(prompt) for size in sizes), "the text was read at once"
    plain = specdec.generate(models.target, None, prompt, **OPTIONS)
    assert new == plain.tokens[: len(new)]
    assert sizes[-1] > len(prompt)


@needs_hooks
def test_a_late_draft_goes_on_from_a_prompt_cache(models: World) -> None:
    """Until it begins the text, its cache holds the cached prefix."""
    prompt, draft = models.ids[:50], models.draft.core
    donor = session_of(models, prompt, 10)
    donor.prefill()
    session = session_of(models, prompt, 60, rested())
    assert session.begin_with(0, donor.cached_text(0, draft)) == len(prompt) - 1
    session.prefill()
    cached = [session.cached_size(0, draft)[0] for _ in rounds_until_it_drafts(session)]
    assert all(tokens == prompt[:-1] for tokens in cached[:-1])
    assert cached[-1][: len(prompt)] == prompt


@needs_hooks
def test_a_draft_that_rests_has_no_memory_for_texts(models: World) -> None:
    """It gets memory once, when it reads the text."""
    prompt, n_new = models.ids[:100], 60
    before = _core._alloc_bytes()
    session = session_of(models, prompt, n_new)
    session.prefill()
    reading = _core._alloc_bytes() - before
    session.close()
    session = session_of(models, prompt, n_new, rested())
    session.prefill()
    taken = [_core._alloc_bytes() - before for _ in rounds_until_it_drafts(session)]
    assert len(taken) >= REST, "it did not rest"
    assert taken == sorted(taken) and set(taken) == {taken[0], reading}
    assert taken[REST - 2] == taken[0], "a round without it makes memory"
    config = models.draft.config
    keys = (len(prompt) + n_new) * config["n_layer"] * config["n_kv_head"] * config["d_head"] * 2 * 4
    assert taken[0] + keys < reading
    while session.round():
        assert _core._alloc_bytes() - before == reading, "a round with it makes memory"


@needs_hooks
def test_rounds_without_a_resting_draft_allocate_nothing(models: World) -> None:
    """The first that allocates is that in which it drafts; the tokens before it are plain ones."""
    prompt = models.ids[:9]
    plain = specdec.generate(models.target, None, prompt, **OPTIONS)
    session = session_of(models, prompt, 60, rested())
    session.prefill()
    new: list[int] = []
    with allowing(0), pytest.raises(MemoryError, match="out of memory"):
        while records := session.round():
            new += records[0]["tokens"]
    assert REST <= len(new) < 60
    assert new == plain.tokens[: len(new)]
    with allowing(0):
        with pytest.raises(RuntimeError, match="a round has failed"):
            session.round()
        session.finish(0)
    assert session.cached_size(0)[0] == prompt + new[:-1]


LATE = ["model", "other vocabulary", "through text", "three models deep", "ensemble", "dynamic tree"]
"""Drafts with models that read texts."""


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
@pytest.mark.parametrize("name", LATE)
def test_memory_may_be_lacking_when_a_draft_resumes(models: World, name: str) -> None:
    """For two texts: each failure raises MemoryError, and nothing leaks."""
    prompts, options = [models.ids[:9], models.ids[20:60]], OPTIONS | {"max_new_tokens": 30}
    draft = DRAFTS[name](models)
    plain = specdec.generate(models.target, None, prompts, **options)
    specdec.generate(models.target, draft, prompts, gamma=Rested(2), **options)

    def work() -> None:
        got = specdec.generate(models.target, draft, prompts, gamma=Rested(2), **options)
        assert [one.tokens for one in got] == [one.tokens for one in plain]
        assert any(one.n_drafted for one in got[0].trace.rounds)

    assert fail_each_allocation(work) > 6


@needs_hooks
def test_memory_may_be_lacking_for_a_prompt_cache(models: World) -> None:
    """The text can later begin with it, in the same amount of memory."""
    prompt, draft = models.ids[:50], models.draft.core
    taken = []
    with nothing_leaks():
        donor = session_of(models, prompt, 10)
        donor.prefill()
        known = donor.cached_text(0, draft)
        for lacking in (False, True):
            session = session_of(models, prompt, 60, rested())
            before = _core._alloc_bytes()
            if lacking:
                with allowing(0), pytest.raises(MemoryError):
                    session.begin_with(0, known)
                assert session.cached_size(0, draft)[0] == []
            assert session.begin_with(0, known) == len(prompt) - 1
            assert session.cached_size(0, draft)[0] == prompt[:-1]
            taken.append(_core._alloc_bytes() - before)
        del donor, session, known
    assert taken[0] == taken[1] > 0


@needs_hooks
def test_a_draft_that_fails_late_ends_the_text_with_its_own_error(models: World) -> None:
    class Fails(Scripted):
        def begin(self, sequence: int, prompt: Sequence[int]) -> None:
            if len(prompt) > 10:
                raise KeyError("no such text")

    with pytest.raises(KeyError, match="no such text"):
        specdec.generate(models.target, Fails(repeats), models.ids[:7], gamma=Rested(), **OPTIONS)
