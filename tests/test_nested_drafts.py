"""Drafts inside drafts: every draft in every other, alone and in a batch, gives plain decoding's output."""

from __future__ import annotations

from typing import Any

import pytest

import specdec
from allocations import needs_hooks
from compiled import counted_work
from drafters import DRAFTS, Scripted, World, named, together
from sessions import Session
from specdec import drafts
from toy_pair import load_pair

PROMPTS = [[5, 9, 5, 9, 5], [7], [8, 3, 4, 8, 3, 4, 8], [6, 6, 2], [11, 12] * 5]
OPTIONS: dict[str, Any] = {"max_new_tokens": 9, "ignore_eos": True, "n_threads": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    target, draft = load_pair(tmp_path_factory.mktemp("pair"))
    return World(target, draft, [token % 50 + 3 for token in range(400)])


@pytest.fixture(scope="module")
def plain(world: World) -> list[list[int]]:
    return [one.tokens for one in specdec.generate(world.target, None, PROMPTS, **OPTIONS)]


LOOKING_AHEAD = {name for name in DRAFTS if "look-ahead embeddings" in name}
"""Drafts with look-ahead embeddings: a session takes those of one."""


def in_target_cache(draft: Any) -> bool:
    return isinstance(draft, drafts.Draft) and draft.in_target_cache


def check(world: World, draft: Any, plain: list[list[int]]) -> None:
    """Check one text alone, and five texts in two slots."""
    alone = specdec.generate(world.target, draft, PROMPTS[0], gamma=5, **OPTIONS)
    assert alone.tokens == plain[0], draft
    batch = specdec.generate(world.target, draft, PROMPTS, batch_size=2, **OPTIONS)
    assert [one.tokens for one in batch] == plain, draft


@pytest.mark.parametrize("name", named())
def test_every_draft_drafts_for_a_model(world: World, plain: list[list[int]], name: str) -> None:
    inner = DRAFTS[name](world)
    if in_target_cache(inner):
        with pytest.raises(specdec.InputError, match="does not work in its target's cache"):
            drafts.ModelDraft(world.draft, draft=inner)
        return
    check(world, drafts.ModelDraft(world.draft, draft=inner, gamma=6), plain)
    check(world, drafts.ModelDraft(world.draft, draft=drafts.ModelDraft(world.draft, draft=inner)), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTS)
def test_every_pair_of_drafts(world: World, plain: list[list[int]], name: str) -> None:
    """Side by side: each two for the target in one order, and for a model that drafts in the other."""
    at = list(DRAFTS).index(name)
    for number, (other, make) in enumerate(DRAFTS.items()):
        pair = [DRAFTS[name](world), make(world)]
        if {name, other} <= LOOKING_AHEAD:
            with pytest.raises(specdec.InputError, match="embeddings"):
                check(world, together(*pair), plain)
        elif (number - at) % len(DRAFTS) <= len(DRAFTS) // 2 or any(map(in_target_cache, pair)):
            check(world, together(*pair), plain)
        else:
            check(world, drafts.ModelDraft(world.draft, draft=together(*pair)), plain)


def in_a_model(world: World, one: Any) -> Any:
    return drafts.ModelDraft(world.draft, draft=one)


def after_a_model(world: World, one: Any) -> Any:
    return together(world.draft, one)


def deep(world: World, one: Any) -> Any:
    return in_a_model(world, after_a_model(world, in_a_model(world, after_a_model(world, one))))


@pytest.mark.parametrize("wrap", [in_a_model, after_a_model, deep])
def test_an_object_gets_every_prompt_before_it_is_asked(
    world: World, plain: list[list[int]], wrap: Any
) -> None:
    inner = Scripted(lambda tokens, budget: tokens[-3:-1][:budget])
    batch = specdec.generate(world.target, wrap(world, inner), PROMPTS, batch_size=2, **OPTIONS)
    assert [one.tokens for one in batch] == plain
    calls = [(sequence, tuple(prompt)) for note, sequence, prompt, *_ in inner.calls if note == "begin"]
    assert sorted(prompt for _, prompt in calls) == sorted(map(tuple, PROMPTS)), "each once"
    assert {sequence for sequence, _ in calls} == {0, 1}
    begun: dict[int, list[int]] = {}
    for note, sequence, text, *_ in inner.calls:
        begun[sequence] = text if note == "begin" else begun[sequence]
        assert text[: len(begun[sequence])] == begun[sequence]
    assert inner.budgets


@needs_hooks
def test_each_model_reads_each_prompt_once(world: World) -> None:
    """Forward passes of a run: the draft's models read prompts together, and no prompt twice."""
    inner = in_a_model(world, drafts.Lookahead())
    draft = in_a_model(world, together(world.draft, drafts.PromptLookup(), inner))
    prompts = [[(7 * i + k) % 50 + 3 for i in range(60)] for k in range(4)]
    session = Session(
        world.target.core, draft.describe(world.target), prompts, gamma=5, max_new_tokens=4, temperature=0.0
    )
    with counted_work() as work:
        session.prefill()
    # 59 tokens of each prompt, by the target and by three models that draft
    slices = [-(-4 * 59 // model.core.prompt_slice) for model in (world.target, world.draft)]
    assert work.forwards == slices[0] + 3 * slices[1]
