"""Several drafts at once: the merged tree, the budgets, and the choice of drafts.

`test_every_drafter.py` tests that rejection is exact on their trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from drafters import Scripted
from sessions import Session
from specdec import _core
from specdec.drafts import Bigram, Ensemble, Lookahead, ModelDraft, Proposal
from specdec.errors import InputError
from trained import small_pair
from worlds.canonical import LLAMA, random_model, run_session, with_drafts

N_VOCAB = LLAMA["n_vocab"]
PROMPTS = [[3], [5, 9, 7] * 9, list(range(30, 60))]


@pytest.fixture(scope="module")
def target() -> _core.Model:
    return random_model(LLAMA)


def describe(best: Ensemble) -> Any:
    return best.describe(SimpleNamespace(config=LLAMA, tokenizer=None))  # type: ignore[arg-type]  # no draft looks further


def one_round(
    target: _core.Model, best: Ensemble, *, gamma: int | None = None, max_new_tokens: int = 20
) -> dict[str, Any]:
    how: dict[str, Any] = {"gamma": best.gamma if gamma is None else gamma, "temperature": 1.0}
    session = Session(target, describe(best), [[1, 2]], max_new_tokens=max_new_tokens, **how)
    with_drafts(session).prefill()
    return session.round()[0]


# --------------------------------------------------------------------------------------------- the tree


def test_the_trees_are_appended_in_the_order_of_the_drafts(target: _core.Model) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(N_VOCAB), size=3)
    branches = Proposal([5, 7, 8], parents=[0, 0, 1], probs=rows)
    drafts = [Scripted(answer) for answer in ([5, 6], [], branches, [5, 6, 9])]
    for adaptive in (False, True):
        record = one_round(target, Ensemble(*drafts, adaptive=adaptive))
        assert record["drafted"] == [5, 6, 5, 7, 8, 5, 6, 9]
        assert record["parents"] == [0, 1, 0, 0, 3, 0, 6, 7]
        assert record["n_rows"] == 1 + len({(5,), (5, 6), (7,), (5, 8), (5, 6, 9)})
        found = record["draft_probs"][1:]
        np.testing.assert_allclose(found[2:5], rows, rtol=1e-12)
        points = np.eye(N_VOCAB)[[5, 6, 5, 6, 9]]
        assert np.array_equal(found[[0, 1, 5, 6, 7]], points)


# ------------------------------------------------------------------------------------------- the budget


@pytest.mark.parametrize(
    ("gamma", "gammas", "wanted", "budgets"),
    [
        (12, (4, 4, 4), (99, 99, 99), [4, 4, 4]),
        (9, (4, 4, 4), (99, 99, 99), [3, 3, 3]),
        (10, (4, 4, 4), (99, 99, 99), [4, 3, 3]),
        (2, (4, 4, 4), (99, 99, 99), [1, 1]),
        (1, (4, 4, 4), (99, 99, 99), [1]),
        (6, (4, 4, 4), (0, 99, 99), [2, 3, 3]),  # the others get the rest of the first
        (6, (4, 4, 4), (99, 0, 99), [2, 2, 4]),
        (8, (2, 4, 4), (99, 99, 99), [2, 3, 3]),
        (30, (2, 4, 4), (99, 99, 99), [6, 12, 12]),  # in their ratio
        (30, (2, 4, 4), (99, 1, 99), [6, 12, 23]),  # and the last gets the rest
    ],
)
def test_the_budget_is_split_evenly(
    target: _core.Model, gamma: int, gammas: Sequence[int], wanted: Sequence[int], budgets: list[int]
) -> None:
    drafts = [
        Scripted(lambda _, budget, most=most: [7] * min(most, budget), own)
        for most, own in zip(wanted, gammas, strict=True)
    ]
    record = one_round(target, Ensemble(*drafts, adaptive=False), gamma=gamma, max_new_tokens=60)
    assert [b for draft in drafts for b in draft.budgets] == budgets
    assert len(record["drafted"]) <= gamma


def test_who_brings_more_gets_more(target: _core.Model) -> None:
    """Adaptive, with capacity for half of their requests: one draft is always right, the other never."""
    tokens, _, _ = run_session(target, None, [[1, 2]], gamma=0, max_new_tokens=60)
    text = [1, 2, *tokens[0]]
    right = Scripted(lambda known, budget: text[len(known) : len(known) + budget], 8)
    wrong = Scripted(
        lambda known, budget: [(text[len(known)] + 1) % N_VOCAB] * budget if len(known) < 62 else [], 8
    )
    run_session(target, describe(Ensemble(wrong, right)), [[1, 2]], gamma=8, max_new_tokens=60)
    assert right.budgets[0] == 4 and right.budgets[-2] > 4
    assert all(budget <= 4 for budget in wrong.budgets)


# ------------------------------------------------------------------------------------------- the choice


class Rounds:
    """Simulated rounds of one draft after others; plain decoding takes 1 s a round, each row more `row_s`."""

    def __init__(self) -> None:
        self.learned, self.now = _core.AdaptiveGamma(), 0.0

    def run(
        self, n: int, *, brings: int = 0, seconds: float = 0.0, n_nodes: int = 1, row_s: float = 0.0,
        already: int = 0, after_s: float = 0.0,
    ) -> int:  # fmt: skip
        """Return in how many of n rounds the draft was asked: it drafts a chain of n_nodes, of which
        the first are right. after_s: additional time of the target after it."""
        n_asked = 0
        for _ in range(n):
            rows = 1 + already
            asked = _core._adaptive_gamma_begin(self.learned, 1, n_nodes, rows)
            asked = asked and _core._adaptive_gamma_pays(self.learned, [], False, float(already))
            n_asked += asked
            right = min(n_nodes, brings + already)
            added = max(0, right - already) if asked else 0
            chains = (([0.5] * n_nodes, right, 0, 0.0),) if asked else ()
            target_s = 1.0 + (rows - 1 + (n_nodes if asked else 0)) * row_s + (after_s if asked else 0.0)
            draft_s = seconds if asked else 0.0
            _core._adaptive_gamma_end(
                self.learned, chains, 1 + already + added, draft_s, target_s, rows, float(already), already
            )
            self.now += target_s + draft_s
        return n_asked


@needs_hooks
def test_a_draft_that_pays_is_asked() -> None:
    """Except in the first round and in occasional ones, which measure rounds without it."""
    assert Rounds().run(1000, brings=2, n_nodes=2, seconds=0.5) >= 990
    assert Rounds().run(1000, brings=1, seconds=0.9) >= 980
    assert Rounds().run(1000, brings=1, seconds=0.1, n_nodes=4, row_s=0.1) > 900


@needs_hooks
@pytest.mark.parametrize(
    "how",
    [
        {"brings": 0, "seconds": 0.1}, {"brings": 1, "seconds": 1.2}, {"brings": 1, "seconds": 30},
        {"brings": 1, "seconds": 0.5, "after_s": 1.0},  # 2 tokens in 2.5 s, 1 in 1 s
        {"brings": 1, "seconds": 0.01, "n_nodes": 4, "row_s": 0.4},
    ],
    ids=str,
)  # fmt: skip
def test_a_draft_that_does_not_pay_is_left_out(how: dict[str, Any]) -> None:
    """After some rounds that show what it costs; trials take a few percent of the time."""
    rounds = Rounds()
    rounds.run(60, **how)
    n, before = 4000, rounds.now
    n_asked = rounds.run(n, **how)
    cost = how["seconds"] + how.get("after_s", 0.0) + how.get("n_nodes", 1) * how.get("row_s", 0.0)
    assert n_asked * cost < 0.06 * (rounds.now - before) + 3 * cost
    assert n_asked >= 2, "it is tried again"


@needs_hooks
def test_it_is_asked_where_those_before_it_are_silent() -> None:
    """In some stretches the earlier drafts expect 5 tokens, and then it adds none."""
    rounds = Rounds()
    found = []
    for _ in range(20):
        silent = rounds.run(10, brings=2, n_nodes=2, seconds=0.5)
        found.append((silent, rounds.run(10, brings=0, n_nodes=2, seconds=0.5, already=5)))
    assert sum(silent for silent, _ in found[5:]) > 0.9 * 150
    assert sum(covered for _, covered in found[5:]) < 0.1 * 150


@needs_hooks
def test_what_changes_is_noticed() -> None:
    """A draft that becomes good is asked again, and one that becomes bad is left."""
    rounds, seldom = Rounds(), 0.1 * 500
    assert rounds.run(500, brings=0, n_nodes=2, seconds=0.1) < seldom
    rounds.run(500, brings=2, n_nodes=2, seconds=0.1)
    assert rounds.run(500, brings=2, n_nodes=2, seconds=0.1) > 450
    rounds.run(200, brings=0, n_nodes=2, seconds=0.1)
    assert rounds.run(500, brings=0, n_nodes=2, seconds=0.1) < seldom


@needs_hooks
@pytest.mark.parametrize("hiccup", [{"seconds": 300.0}, {"seconds": 0.1, "after_s": 300.0}], ids=str)
def test_one_long_round_changes_little(hiccup: dict[str, Any]) -> None:
    """Another process ran while it drafted, or during the target's pass."""
    rounds = Rounds()
    rounds.run(3, brings=0, n_nodes=2, seconds=0.1)  # it is no longer in a trial, which may lose time
    rounds.run(400, brings=2, n_nodes=2, seconds=0.1)
    assert rounds.run(1, brings=2, n_nodes=2, **hiccup) == 1
    assert rounds.run(100, brings=2, n_nodes=2, seconds=0.1) >= 97


@pytest.mark.parametrize(("draft_tokens", "n_asked"), [([3], 10), ([], 30)], ids=str)
def test_a_draft_that_brings_nothing_is_soon_left_out(draft_tokens: list[int], n_asked: int) -> None:
    """It costs so much that its first trial is late. One that never drafts loses a few tokens first."""
    model, _ = small_pair()
    slow = Scripted(draft_tokens, seconds=0.05)
    out = specdec.generate(model, Ensemble(slow), "Once upon a time", max_new_tokens=100, ignore_eos=True)
    assert 1 <= len(slow.budgets) < n_asked < out.trace.n_calls
    commits = [note for note in slow.calls if note[0] == "commit"]
    assert len(commits) == out.trace.n_calls, "it follows the text all the same"


def test_a_draft_of_a_draft_is_left_out_too() -> None:
    """The next round of the draft shows the outcome of its draft tokens, which need not become text."""
    model, draft = small_pair()
    slow = Scripted(lambda _, budget: [3] * min(3, budget), gamma=3, seconds=0.03)
    nested = ModelDraft(draft, draft=Ensemble(slow))
    out = specdec.generate(model, nested, "Once upon a time", max_new_tokens=60, gamma=6, ignore_eos=True)
    assert 1 <= len(slow.budgets) < 12 < out.trace.n_calls


def test_rows_of_earlier_drafts_are_counted_once() -> None:
    """Two drafts propose the same, and pay. Rounds without the last are known, so it is tried again."""
    model, _ = small_pair()
    how = {"max_new_tokens": 200, "ignore_eos": True}
    plain = specdec.generate(model, None, "Once upon a time", **how)
    text = [*plain.prompt_ids, *plain.tokens]
    right = [Scripted(lambda tokens, budget: text[len(tokens) :][: min(3, budget)]) for _ in range(2)]
    slow = Scripted([3], seconds=0.03)
    out = specdec.generate(model, Ensemble(Ensemble(*right, adaptive=False), slow), "Once upon a time", **how)
    assert out.tokens == plain.tokens
    assert 3 <= len(slow.budgets) < 12


def test_without_adapting_all_are_asked() -> None:
    slow = Scripted([], seconds=0.002)
    best = Ensemble(Scripted([]), slow, adaptive=False)
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}
    out = specdec.generate(small_pair()[0], best, "Once upon a time", **options)
    assert len(slow.budgets) == out.trace.n_calls - 1  # the last round has no capacity for a draft token


def test_the_drafts_see_what_the_target_says(target: _core.Model) -> None:
    """Lookahead in an ensemble proposes the same as alone. Coupled, with the same random numbers."""
    look = Lookahead(3, 3)
    how = {"temperature": 0.8, "rule": "coupled"}
    alone = run_session(target, look.describe(None), PROMPTS, gamma=12, **how)  # type: ignore[arg-type]
    best = Ensemble(look, Scripted([]), adaptive=False)
    among = run_session(target, describe(best), PROMPTS, gamma=16, **how)
    assert among[0] == alone[0] and [r["drafted"] for r in among[2]] == [r["drafted"] for r in alone[2]]
    texts = [[*prompt, *new] for prompt, new in zip(PROMPTS, alone[0], strict=True)]

    def wrong(known: Sequence[int], budget: int) -> list[int]:
        (text,) = [text for text in texts if text[: len(known)] == list(known)]
        return [(text[len(known)] + 1) % N_VOCAB]

    best = Ensemble(Scripted(wrong), look, adaptive=False)
    last = run_session(target, describe(best), PROMPTS, gamma=16, **how)
    for mine, its in zip(last[2], alone[2], strict=True):
        assert mine["tokens"] == its["tokens"]
        assert mine["drafted"][1:] == its["drafted"]


def test_calls_of_the_drafts(target: _core.Model) -> None:
    """Each prompt once, and each text after every round until its end."""
    calls = [Scripted([5]), Scripted([6])]
    best = describe(Ensemble(*calls, adaptive=False))
    tokens, _, records = run_session(target, best, PROMPTS, gamma=8, max_new_tokens=4)
    for draft in calls:
        begun = [note for note in draft.calls if note[0] == "begin"]
        assert begun == [("begin", i, prompt) for i, prompt in enumerate(PROMPTS)]
        last = {note[1]: note[2] for note in draft.calls if note[0] == "commit"}
        assert last == {i: [*prompt, *tokens[i]] for i, prompt in enumerate(PROMPTS)}
        assert sum(note[0] == "commit" for note in draft.calls) == len(records)


def test_best_of_bests(target: _core.Model) -> None:
    inner = Ensemble(Scripted([5, 6]), Scripted([7]), adaptive=False)
    record = one_round(target, Ensemble(Scripted([8]), inner, adaptive=False))
    assert record["drafted"] == [8, 5, 6, 7] and record["parents"] == [0, 0, 2, 0]


def test_arguments() -> None:
    target, draft = small_pair()
    best = Ensemble(Bigram([1, 2, 1], target.config["n_vocab"]), draft, Scripted([], gamma=9))
    assert best.gamma == 17 and best.adaptive and len(best.drafts) == 3
    assert repr(Ensemble(best, adaptive=False)).endswith("adaptive=False)")
    for parts, options, message in [
        ((), {}, "Ensemble has no draft"),
        ((draft, 3), {}, "draft 1 of Ensemble is an int; expected a specdec.Model"),
        ((draft,), {"adaptive": 2}, "adaptive is 2"),
    ]:
        with pytest.raises(InputError, match=message):
            Ensemble(*parts, **options)
    with pytest.raises(specdec.VocabularyMismatchError):
        specdec.generate(target, Ensemble(Bigram([0], 7)), "It was")
    assert Ensemble(Lookahead(100, 3, candidates=100), Lookahead(200, 4, candidates=100)).gamma == 1024
