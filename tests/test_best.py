"""Several drafts at once: the merged tree, the budgets, and which of them are asked."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from canonical import LLAMA, build, perturbed, random_tensors, run_session
from exact import outcome_law
from specdec import _core, reference
from specdec.drafts import Best, Bigram, ContextCopy, Lookahead, Proposal
from specdec.errors import InputError

N_VOCAB = LLAMA["n_vocab"]
PROMPTS = [[3], [5, 9, 7] * 9, list(range(30, 60))]
TENSORS = {name: 3 * tensor for name, tensor in random_tensors(LLAMA, 1).items()}


@pytest.fixture(scope="module")
def target() -> _core.Model:
    return build(LLAMA, TENSORS)


@pytest.fixture(scope="module")
def friend() -> _core.Model:
    return build(LLAMA, perturbed(TENSORS, 0.05))


class Scripted:
    """Returns what it is given, or what a function gives; notes what it is told."""

    def __init__(self, answer: Any, gamma: int = 4, seconds: float = 0.0) -> None:
        self.answer, self.gamma, self.seconds = answer, gamma, seconds
        self.told: list[tuple[Any, ...]] = []

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        self.told.append(("begin", sequence, list(prompt)))

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> Any:
        self.told.append(("propose", sequence, list(tokens), budget))
        if self.seconds:
            time.sleep(self.seconds)
        return self.answer(tokens, budget) if callable(self.answer) else self.answer

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        self.told.append(("commit", sequence, list(tokens)))

    @property
    def budgets(self) -> list[int]:
        return [note[3] for note in self.told if note[0] == "propose"]


def describe(best: Best) -> tuple[Any, ...]:
    return best.describe(SimpleNamespace(config=LLAMA, tokenizer=None))  # type: ignore[arg-type]  # no draft looks further


def one_round(
    target: _core.Model, best: Best, *, gamma: int | None = None, max_new_tokens: int = 20, **sampling: Any
) -> _core.RoundRecord:
    settings = {"temperature": 1.0} | sampling
    session = _core.Session(
        target, describe(best), [[1, 2]], gamma=best.gamma if gamma is None else gamma,
        max_new_tokens=max_new_tokens, sampling=settings, draft_sampling=settings, seeds=[(1, 0)],
        n_threads=1, keep_drafts=True,
    )  # fmt: skip
    session.prefill()
    return session.round()[0]


# --------------------------------------------------------------------------------------------- the tree


def test_the_trees_are_appended_in_the_order_of_the_drafts(target: _core.Model) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(N_VOCAB), size=3)
    drafts = [
        Scripted([5, 6]),
        Scripted([]),
        Scripted(Proposal([5, 7, 8], parents=[0, 0, 1], probs=rows)),
        Scripted([5, 6, 9]),
    ]
    for adaptive in (False, True):
        record = one_round(target, Best(*drafts, adaptive=adaptive))
        assert record["drafted"] == [5, 6, 5, 7, 8, 5, 6, 9]
        assert record["parents"] == [0, 1, 0, 0, 3, 0, 6, 7]
        assert record["n_rows"] == 1 + len({(5,), (5, 6), (7,), (5, 8), (5, 6, 9)})
        found = record["draft_probs"][1:]
        np.testing.assert_allclose(found[2:5], rows, rtol=1e-12)
        points = np.eye(N_VOCAB)[[5, 6, 5, 6, 9]]
        assert np.array_equal(found[[0, 1, 5, 6, 7]], points)


def test_rejection_is_exact_on_its_trees(target: _core.Model, friend: _core.Model) -> None:
    """The law of the next token of each tree, and over trees by the registry (test_every_drafter)."""
    best = Best(Scripted([5, 6]), Bigram([*range(40)] * 3, N_VOCAB), Lookahead(2, 3), adaptive=False)
    record = one_round(target, best)
    tokens, parents = [0, *record["drafted"]], [-1, *record["parents"]]
    rows = np.array([reference.distribution(row, 1.0) for row in record["node_logits"]])
    dense = [i for i in range(1, len(tokens)) if record["draft_probs"][i].max() < 1]
    assert dense and len(dense) < len(tokens) - 1
    law = np.zeros(N_VOCAB)
    # the tree's own part is small, so only nodes that hang on the root are looked at
    near = [0, *[i for i, parent in enumerate(parents) if parent == 0]]
    expected = rows[0].copy()
    for (path, token), p in outcome_law(
        _core.verify,
        [tokens[i] for i in near],
        [-1] + [0] * (len(near) - 1),
        rows[near],
        record["draft_probs"][near],
    ).items():
        law[tokens[near[path[0]]] if path else token] += p
    # given the guesses that were drawn; what was chosen alone leaves the law as it is
    chosen = [i for i in near[1:] if i not in dense]
    assert law.sum() == pytest.approx(1.0)
    assert chosen and np.abs(law - expected).sum() < 2


def test_drafts_draw_independently(target: _core.Model) -> None:
    """Two equal drafts guess alike as often as two draws of one distribution: within 4 sigma, seed fixed."""
    table = Bigram([1, 2, 3, 1, 2, 4, 1, 2, 2, 1, 2, 3, 2, 5], N_VOCAB)
    n = 2000
    p = table.probabilities([1, 2])[-1]
    expected = float((p**2).sum())
    for best in (
        Best(table, table, adaptive=False),
        Best(Best(table, table, adaptive=False), table, adaptive=False),
    ):
        settings = {"temperature": 1.0}
        session = _core.Session(
            target, describe(best), [[1, 2]] * n, gamma=len(best.drafts) + (best.gamma > 8),
            max_new_tokens=3, sampling=settings, draft_sampling=settings, seeds=[(1, i) for i in range(n)], n_threads=1,
        )  # fmt: skip
        session.prefill()
        roots = [
            [token for token, parent in zip(r["drafted"], r["parents"], strict=True) if parent == 0]
            for r in session.round()
        ]
        assert min(map(len, roots)) >= 2
        for i, j in itertools.combinations(range(min(map(len, roots))), 2):
            alike = np.mean([row[i] == row[j] for row in roots])
            assert abs(alike - expected) < 4 * np.sqrt(expected * (1 - expected) / n)


# ------------------------------------------------------------------------------------------- the budget


def greedy_for(n: int) -> Any:
    """Takes all it gets, up to n."""
    return lambda tokens, budget: [7] * min(n, budget)


@pytest.mark.parametrize(
    ("gamma", "gammas", "wanted", "budgets"),
    [
        (12, (4, 4, 4), (99, 99, 99), [4, 4, 4]),
        (9, (4, 4, 4), (99, 99, 99), [3, 3, 3]),
        (10, (4, 4, 4), (99, 99, 99), [4, 3, 3]),
        (2, (4, 4, 4), (99, 99, 99), [1, 1]),
        (1, (4, 4, 4), (99, 99, 99), [1]),
        (6, (4, 4, 4), (0, 99, 99), [2, 3, 3]),  # what the first leaves goes to the others
        (6, (4, 4, 4), (99, 0, 99), [2, 2, 4]),
        (8, (2, 4, 4), (99, 99, 99), [2, 3, 3]),
        (30, (2, 4, 4), (99, 99, 99), [6, 12, 12]),  # in their ratio
        (30, (2, 4, 4), (99, 1, 99), [6, 12, 23]),  # and the last gets the rest
    ],
)
def test_the_budget_is_split_evenly(
    target: _core.Model, gamma: int, gammas: Sequence[int], wanted: Sequence[int], budgets: list[int]
) -> None:
    drafts = [Scripted(greedy_for(n), g) for n, g in zip(wanted, gammas, strict=True)]
    record = one_round(target, Best(*drafts, adaptive=False), gamma=gamma, max_new_tokens=60)
    assert [b for draft in drafts for b in draft.budgets] == budgets
    assert len(record["drafted"]) <= gamma


def test_who_brings_more_gets_more(target: _core.Model) -> None:
    """Adaptive, with room for half of what they ask for: a draft is always right, and one never is."""
    tokens, _, _ = run_session(target, None, [[1, 2]], gamma=0, max_new_tokens=60)
    text = [1, 2, *tokens[0]]
    right = Scripted(lambda known, budget: text[len(known) : len(known) + budget], 8)
    wrong = Scripted(
        lambda known, budget: [(text[len(known)] + 1) % N_VOCAB] * budget if len(known) < 62 else [], 8
    )
    run_session(target, describe(Best(wrong, right)), [[1, 2]], gamma=8, max_new_tokens=60)
    assert right.budgets[0] == 4 and right.budgets[-2] > 4
    assert all(budget <= 4 for budget in wrong.budgets)


# ------------------------------------------------------------------------------------------- the choice


def foreseen(model: specdec.Model, prompt: str, n: int) -> tuple[list[int], int]:
    out = specdec.generate(model, None, prompt, max_new_tokens=n, ignore_eos=True)
    return [*out.prompt_ids, *out.tokens], len(out.prompt_ids)


def test_a_draft_that_does_not_pay_is_left_out() -> None:
    """It sleeps 4 ms, some ten rounds of this target, and adds nothing or little; and it is tried again."""
    model, _ = specdec.embedded_pair()
    text, _ = foreseen(model, "Once upon a time", 220)
    for brings in (0, 1):
        slow = Scripted(lambda known, budget: text[len(known) :][:brings], seconds=0.004)  # noqa: B023
        quick = Scripted([])
        out = specdec.generate(
            model, Best(quick, slow), "Once upon a time", max_new_tokens=220, ignore_eos=True
        )
        assert out.tokens == text[-220:]
        assert 4 <= len(slow.budgets) < 0.2 * out.trace.n_calls
        commits = [note for note in slow.told if note[0] == "commit"]
        assert len(commits) == out.trace.n_calls, "it follows the text all the same"


def test_a_draft_that_pays_is_asked() -> None:
    """It takes next to no time, and one that guesses before it is never right."""
    model, _ = specdec.embedded_pair()
    text, n_prompt = foreseen(model, "Once upon a time", 200)
    right = Scripted(lambda known, budget: text[len(known) : len(known) + budget])
    wrong = Scripted(lambda known, budget: [(text[len(known)] + 1) % model.config["n_vocab"]])
    out = specdec.generate(model, Best(wrong, right), "Once upon a time", max_new_tokens=200, ignore_eos=True)
    assert out.tokens == text[n_prompt:]
    assert len(right.budgets) >= 0.7 * out.trace.n_calls  # it is left out now and then, to see


def test_the_slow_one_fills_in_where_the_quick_one_finds_nothing() -> None:
    """The quick one is right or silent, in stretches; the slow one is always right and costs some rounds."""
    model, _ = specdec.embedded_pair()
    text, n_prompt = foreseen(model, "Once upon a time", 240)

    def at_times(known: Sequence[int], budget: int) -> list[int]:
        return text[len(known) : len(known) + budget] if len(known) // 20 % 2 == 0 else []

    quick = Scripted(at_times, 8)
    slow = Scripted(lambda known, budget: text[len(known) : len(known) + budget], 8, seconds=0.0005)
    out = specdec.generate(model, Best(quick, slow), "Once upon a time", max_new_tokens=240, ignore_eos=True)
    assert out.tokens == text[n_prompt:]
    asked = [len(note[2]) for note in slow.told if note[0] == "propose"]
    covered = [n // 20 % 2 == 0 for n in asked if n > 120]
    assert sum(covered) <= 0.3 * len(covered)


def test_without_adapting_all_are_asked() -> None:
    model, _ = specdec.embedded_pair()
    slow = Scripted([], seconds=0.002)
    best = Best(Scripted([]), slow, adaptive=False)
    out = specdec.generate(model, best, "Once upon a time", max_new_tokens=30, ignore_eos=True)
    assert len(slow.budgets) == out.trace.n_calls - 1  # the last round has no room for a guess


# ---------------------------------------------------------------------------------------- bookkeeping


def test_what_the_drafts_are_told(target: _core.Model) -> None:
    drafts = [Scripted([5]), Scripted([6])]
    tokens, _, records = run_session(
        target, describe(Best(*drafts, adaptive=False)), PROMPTS, gamma=8, max_new_tokens=4
    )
    for draft in drafts:
        begun = [note for note in draft.told if note[0] == "begin"]
        assert begun == [("begin", i, prompt) for i, prompt in enumerate(PROMPTS)]
        last = {note[1]: note[2] for note in draft.told if note[0] == "commit"}
        assert last == {i: [*prompt, *tokens[i]] for i, prompt in enumerate(PROMPTS)}
        assert sum(note[0] == "commit" for note in draft.told) == len(records)


def test_the_drafts_see_what_the_target_says(target: _core.Model) -> None:
    """Lookahead among others proposes what it would alone. Coupled, where its random numbers are the same."""
    look = Lookahead(3, 3)
    how = {"temperature": 0.8, "rule": "coupled"}
    alone = run_session(target, look.describe(None), PROMPTS, gamma=12, **how)  # type: ignore[arg-type]
    best = Best(look, Scripted([]), adaptive=False)
    among = run_session(target, describe(best), PROMPTS, gamma=16, **how)
    assert among[0] == alone[0]
    assert [r["drafted"] for r in among[2]] == [r["drafted"] for r in alone[2]]
    shifted = Best(Scripted([3, 4]), look, adaptive=False)
    behind = run_session(target, describe(shifted), PROMPTS, gamma=16, **how)
    mine = {r["sequence"]: r for r in reversed(behind[2])}
    its = {r["sequence"]: r for r in reversed(alone[2])}
    assert all(mine[i]["drafted"] == [3, 4, *its[i]["drafted"]] for i in mine)


def test_sequences_do_not_know_of_each_other(target: _core.Model, friend: _core.Model) -> None:
    description = describe(
        Best(Bigram([*range(40)] * 3, N_VOCAB), Lookahead(2, 3), Scripted([4, 5]), adaptive=False)
    )
    description = (*description[:2], [*description[2], 4], (*description[3], ("model", friend)))
    batch, _, records = run_session(target, description, PROMPTS, gamma=16, temperature=1.0)
    for i, prompt in enumerate(PROMPTS):
        alone, _, own = run_session(target, description, [prompt], gamma=16, temperature=1.0, seeds=[(1, i)])
        assert alone[0] == batch[i]
        assert [r["drafted"] for r in own] == [r["drafted"] for r in records if r["sequence"] == i]


def test_two_threads_at_once(target: _core.Model, friend: _core.Model) -> None:
    def run() -> list[list[int]]:
        description = describe(Best(ContextCopy(), Lookahead(), Scripted([4])))
        description = (*description[:2], [*description[2], 4], (*description[3], ("model", friend)))
        return run_session(target, description, PROMPTS, gamma=12, max_new_tokens=100)[0]

    wanted = run_session(target, None, PROMPTS, gamma=0, max_new_tokens=100)[0]
    found: list[Any] = [None, None]

    def work(i: int) -> None:
        found[i] = run()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted, wanted]


def test_best_of_bests(target: _core.Model) -> None:
    inner = Best(Scripted([5, 6]), Scripted([7]), adaptive=False)
    record = one_round(target, Best(Scripted([8]), inner, adaptive=False))
    assert record["drafted"] == [8, 5, 6, 7] and record["parents"] == [0, 0, 2, 0]


class WrongError(Exception):
    pass


@pytest.mark.parametrize("method", ["begin", "propose", "commit"])
def test_exceptions_pass_through(target: _core.Model, method: str) -> None:
    bad = Scripted([4])

    def fail(*_: Any) -> None:
        raise WrongError

    setattr(bad, method, fail)
    with pytest.raises(WrongError):
        run_session(target, describe(Best(Scripted([3]), bad)), PROMPTS, gamma=8)


# ------------------------------------------------------------------------------------------- arguments


def test_arguments() -> None:
    target, draft = specdec.embedded_pair()
    best = Best(Bigram([1, 2, 1], target.config["n_vocab"]), draft, Scripted([], gamma=9))
    assert best.gamma == 17 and best.adaptive and len(best.drafts) == 3
    assert repr(best).startswith("Best(") and repr(Best(best, adaptive=False)).endswith("adaptive=False)")
    out = specdec.generate(target, best, "It was", max_new_tokens=40, ignore_eos=True)
    assert out.tokens == specdec.generate(target, None, "It was", max_new_tokens=40, ignore_eos=True).tokens
    with pytest.raises(InputError, match="Best has no draft"):
        Best()
    with pytest.raises(InputError, match="draft 1 of Best is a int; expected a specdec.Model"):
        Best(draft, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="adaptive is 1"):
        Best(draft, adaptive=1)  # type: ignore[arg-type]
    with pytest.raises(specdec.VocabularyMismatchError):
        specdec.generate(target, Best(Bigram([0], 7)), "It was")
    assert Best(Lookahead(100, 3, candidates=100), Lookahead(200, 4, candidates=100)).gamma == 1024


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (("best", True, [4], ()), ValueError),
        (("best", True, [], ()), ValueError),
        (("best", True, [0], (("lookahead", 1, 2, 1),)), ValueError),
        (("best", True, [4], (("lookahead", 0, 2, 1),)), ValueError),
        (("best", True, [4, 4], (("lookahead", 1, 2, 1), ("nobody",))), ValueError),
        (("best", True, [4], [("lookahead", 1, 2, 1)]), TypeError),
        (("best", True, 4, (("lookahead", 1, 2, 1),)), TypeError),
        (("best",), TypeError),
    ],
)
def test_bad_descriptions(target: _core.Model, wrong: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        run_session(target, wrong, PROMPTS)


@pytest.mark.skipif(
    not hasattr(_core, "_alloc_fail_after"),
    reason="needs the hooks of a build with -C cmake.define.SPECDEC_TESTING=ON (make test, .ci/run)",
)
def test_the_nth_allocation_fails_for_every_n(target: _core.Model, friend: _core.Model) -> None:
    description = ("best", True, [4, 4], (("lookahead", 2, 3, 2), ("model", friend)))
    gc.collect()
    live = _core._alloc_live()
    try:
        for n in itertools.count():
            _core._alloc_fail_after(n)
            try:
                run_session(target, description, PROMPTS, gamma=8, max_new_tokens=6)
                break
            except MemoryError:
                pass
            gc.collect()
            assert _core._alloc_live() == live
    finally:
        _core._alloc_fail_after(-1)
    assert n > 5
    gc.collect()
    assert _core._alloc_live() == live
