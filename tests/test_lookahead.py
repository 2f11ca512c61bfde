"""Lookahead decoding against a statement of it in plain Python, round by round."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import fail_each_allocation, needs_hooks
from descriptions import by_method
from exact import outcome_distribution
from sessions import Session
from specdec import _core, reference
from specdec.drafts import Lookahead
from specdec.errors import InputError
from weights import VerifyWeights
from worlds.canonical import LLAMA, build, random_tensors, run_session, with_drafts

N_VOCAB = LLAMA["n_vocab"]
PROMPTS = [[3], [5, 9, 7] * 9, list(range(30, 60))]
WINDOW_DRAW = 5  # SD_DRAW_WINDOW


@pytest.fixture(scope="module")
def target() -> _core.Model:
    return build(LLAMA, {name: 3 * tensor for name, tensor in random_tensors(LLAMA, 1).items()})


class Statement:
    """The algorithm for one sequence.

    rows[r][c] is the guess for place r + c + 1 behind the text's last token, when row 0 is at the text.
    """

    def __init__(self, window: int, ngram: int, candidates: int, key: tuple[int, int]) -> None:
        self.window, self.n_rows, self.candidates, self.key = window, ngram - 1, candidates, key
        self.rows: list[list[int]] = [[] for _ in range(self.n_rows)]
        self.n_text: int | None = None
        self.pool: list[tuple[int, ...]] = []
        self.leaves: list[int] = []

    def propose(self, text: list[int], budget: int, depth: int) -> tuple[list[int], list[int]]:
        self.leaves = []
        if budget == 0 or depth == 0:
            return [], []
        self.slide(text)
        tokens: list[int] = []
        parents: list[int] = []

        def add(parent: int, token: int) -> int:
            tokens.append(token)
            parents.append(parent)
            return len(tokens)

        n_columns = max(0, min(self.window, budget // self.n_rows, depth - self.n_rows + 1))
        head = 0
        for c in range(n_columns):
            node = head = add(head, self.rows[0][c])
            for row in self.rows[1:]:
                node = add(node, row[c])
            self.leaves.append(node)
        for rest in self.found(text[-1]):
            node = 0
            for token in rest[:depth]:
                if len(tokens) < budget:
                    node = add(node, token)
        return tokens, parents

    def slide(self, text: list[int]) -> None:
        moved = self.window if self.n_text is None else min(len(text) - self.n_text, self.window)
        self.n_text = len(text)
        for r, row in enumerate(self.rows):
            del row[:moved]
            for c in range(self.window - moved, self.window):
                u = _core.uniform(*self.key, len(text), WINDOW_DRAW, r * self.window + c)
                row.append(text[int(u * len(text))])

    def found(self, first: int) -> list[tuple[int, ...]]:
        rests = [ngram[1:] for ngram in reversed(self.pool[-256 * self.window :]) if ngram[0] == first]
        return list(dict.fromkeys(rests))[: self.candidates]

    def observe(self, logits: np.ndarray) -> None:
        for c, leaf in enumerate(self.leaves):
            column = [row[c] for row in self.rows] + [int(np.argmax(logits[leaf]))]
            self.pool.append(tuple(column))
            for row, token in zip(self.rows, column[1:], strict=True):
                row[c] = token
        if self.leaves:
            assert self.n_text is not None
            self.n_text += 1


@pytest.mark.parametrize(
    ("window", "ngram", "candidates", "gamma", "sampling"),
    [
        (2, 2, 2, None, {}),
        (5, 3, 5, None, {}),
        (1, 2, 1, None, {}),
        (3, 5, 2, None, {"temperature": 0.8}),
        (4, 3, 0, None, {}),
        (4, 4, 4, 17, {}),  # cut
        (4, 4, 4, 7, {"temperature": 1.0, "rule": "coupled"}),
        (4, 4, 4, 2, {}),  # no room for a column
    ],
)
def test_every_round_is_what_the_algorithm_says(
    target: _core.Model, window: int, ngram: int, candidates: int, gamma: int | None, sampling: dict[str, Any]
) -> None:
    draft = Lookahead(window, ngram, candidates=candidates)
    gamma = draft.gamma if gamma is None else gamma
    n_new, keys = 60, [(1, i) for i in range(len(PROMPTS))]
    _, _, records = session_records(target, draft, gamma, n_new, **sampling)
    stated = [Statement(window, ngram, candidates, key) for key in keys]
    texts = [list(prompt) for prompt in PROMPTS]
    limits = [len(prompt) + n_new for prompt in PROMPTS]
    n_found = 0
    for record in records:
        i = record["sequence"]
        depth = limits[i] - len(texts[i]) - 1
        wanted = stated[i].propose(texts[i], gamma if depth > 0 else 0, depth)
        assert (record["drafted"], record["parents"]) == wanted
        n_found += len(wanted[0]) > len(stated[i].leaves) * (ngram - 1)
        stated[i].observe(record["node_logits"])
        texts[i] += record["tokens"]
    assert n_found > 0 or candidates == 0 or gamma == 2


def session_records(
    target: _core.Model, draft: Lookahead, gamma: int, n_new: int, *, rule: str = "rejection", **sampling: Any
) -> tuple[None, None, list[dict[str, Any]]]:
    settings = {"temperature": 0.0} | sampling
    session = Session(
        target, draft.describe(None), PROMPTS, gamma=gamma, max_new_tokens=n_new, sampling=settings,  # type: ignore[arg-type]
        draft_sampling=settings, seeds=[(1, i) for i in range(len(PROMPTS))], n_threads=1, rule=rule,
    )  # fmt: skip
    with_drafts(session).prefill()
    records = []
    while batch := session.round():
        records += batch
    return None, None, records


def test_rejection_is_exact_on_its_trees(target: _core.Model) -> None:
    """The law of the next token, given each tree that was proposed: the target's, to 1e-12."""
    _, _, records = session_records(target, Lookahead(3, 3), 12, 12, temperature=1.0)
    n_branched = 0
    for record in records[-12:]:
        tokens, parents = [0, *record["drafted"]], [-1, *record["parents"]]
        rows = np.array([reference.distribution(row, 1.0) for row in record["node_logits"]])
        assert np.array_equal(record["draft_probs"][1:], np.eye(N_VOCAB)[record["drafted"]])
        n_branched += record["parents"].count(0) > 1
        law = np.zeros(N_VOCAB)
        for (path, token), p in outcome_distribution(
            VerifyWeights(record["draft_points"]), tokens, parents, rows, record["draft_probs"]
        ).items():
            law[tokens[path[0]] if path else token] += p
        assert np.abs(law - rows[0]).max() < 1e-12
    assert n_branched


def test_it_is_right_now_and_then() -> None:
    """And text that repeats itself makes it right nearly always."""
    model, _ = specdec.embedded_pair()
    prompt = "It was the best of times, it was the worst of times, it was"
    out = specdec.generate(model, Lookahead(), prompt, max_new_tokens=150, ignore_eos=True)
    plain = specdec.generate(model, None, prompt, max_new_tokens=150, ignore_eos=True)
    assert out.tokens == plain.tokens
    assert out.trace.tokens_per_call > 1.2
    wide = specdec.generate(
        model, Lookahead(5, 4), prompt, max_new_tokens=150, ignore_eos=True, n_threads=2, logits=True
    )
    assert wide.tokens == plain.tokens
    assert wide.trace.tokens_per_call > out.trace.tokens_per_call


def test_sequences_do_not_know_of_each_other(target: _core.Model) -> None:
    describe = Lookahead(3, 3).describe(None)  # type: ignore[arg-type]
    batch, _, records = run_session(target, describe, PROMPTS, gamma=12, temperature=1.0)
    for i, prompt in enumerate(PROMPTS):
        alone, _, own = run_session(target, describe, [prompt], gamma=12, temperature=1.0, seeds=[(1, i)])
        assert alone[0] == batch[i]
        assert [r["drafted"] for r in own] == [r["drafted"] for r in records if r["sequence"] == i]


def test_two_threads_at_once(target: _core.Model) -> None:
    describe = Lookahead(3, 3).describe(None)  # type: ignore[arg-type]
    wanted = run_session(target, describe, PROMPTS, gamma=12, temperature=1.0)[0]
    found: list[Any] = [None, None]

    def work(i: int) -> None:
        found[i] = run_session(target, describe, PROMPTS, gamma=12, temperature=1.0)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted, wanted]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window is 0; expected an integer from 1"),
        ({"ngram": 1}, "ngram is 1; expected an integer from 2"),
        ({"candidates": -1}, "candidates is -1"),
        ({"window": 2.5}, r"window is 2\.5"),
        ({"window": True}, "window is True"),
        ({"window": 600, "ngram": 3}, r"is 2400; expected at most 1024"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Lookahead(**arguments)


@pytest.mark.parametrize(
    "wrong", [(0, 2, 1), (1, 1, 1), (1, 2, -1), (600, 3, 600), (2**31 - 1, 2**31 - 1, 9)]
)
def test_bad_descriptions(target: _core.Model, wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="lookahead: "):
        run_session(target, by_method("lookahead", *wrong), PROMPTS)
    with pytest.raises(TypeError):
        run_session(target, ("lookahead", {"window": 1, "ngram": 2}), PROMPTS)


def test_attributes() -> None:
    draft = Lookahead(4, 3)
    assert (draft.window, draft.ngram, draft.candidates, draft.gamma) == (4, 3, 4, 16)
    assert repr(draft) == "Lookahead(window=4, ngram=3, candidates=4)"
    assert Lookahead(4, 3, candidates=0).gamma == 8


@pytest.mark.usefixtures("quick_gc")
@needs_hooks
def test_the_nth_allocation_fails_for_every_n(target: _core.Model) -> None:
    describe = Lookahead(3, 3).describe(None)  # type: ignore[arg-type]
    assert fail_each_allocation(lambda: run_session(target, describe, PROMPTS, max_new_tokens=6)) > 3
