"""A Python object as a draft: its calls, its results, and rejected values."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import specdec
from drafters import Scripted
from sessions import Session
from specdec.drafts import Drafter, Ensemble, ModelDraft, Proposal, PythonDraft
from specdec.errors import InputError
from toy_pair import tiny_pair
from trained import small_pair
from worlds.canonical import LLAMA, random_model, with_drafts

N_VOCAB = LLAMA["n_vocab"]


@pytest.fixture(scope="module")
def target() -> Any:
    return random_model(LLAMA)


def open_session(target: Any, drafter: Any, prompts: Any = ([1, 2],), **options: Any) -> Session:
    how = {"gamma": 4, "max_new_tokens": 20, "temperature": 0.0} | options
    return Session(target, PythonDraft(drafter).describe(target), prompts, **how)


# ------------------------------------------------------------------------------- what it is, and its calls


def test_the_example_of_the_docstring_drafts() -> None:
    namespace: dict[str, Any] = {}
    lines = [
        line.strip()[4:] for line in str(Drafter.__doc__).splitlines() if line.strip()[:3] in (">>>", "...")
    ]
    exec("\n".join(lines[: lines.index("import specdec")]), namespace)
    target, _ = small_pair()
    for how in ({}, {"temperature": 0.3, "verify": "coupled", "seed": 4}):
        options = {"max_new_tokens": 100, "ignore_eos": True, "logits": True, **how}
        plain = specdec.generate(target, None, "Once upon a time", **options)
        out = specdec.generate(target, namespace["Pairs"](), "Once upon a time", **options)
        assert out.tokens == plain.tokens and np.array_equal(out.logits, plain.logits)
        assert out.trace.n_accepted > 0
    assert isinstance(namespace["Pairs"](), Drafter)


def test_calls_of_the_object(target: Any) -> None:
    """The prompt; before each round the text and the budget; after it the text with the new tokens."""
    drafter = Scripted([7, 8])
    session = open_session(target, drafter, [[1, 2, 3], [4]], gamma=3, max_new_tokens=5)
    session.prefill()
    texts, expected = [[1, 2, 3], [4]], [("begin", 0, [1, 2, 3]), ("begin", 1, [4])]
    while records := session.round():
        expected += [("propose", r["sequence"], texts[r["sequence"]][:], 3) for r in records if r["drafted"]]
        for record in records:
            texts[record["sequence"]] += record["tokens"]
            expected.append(("commit", record["sequence"], texts[record["sequence"]][:]))
    assert drafter.calls == expected


def test_a_text_is_read_only_and_stays() -> None:
    target, _ = small_pair()
    seen: list[Sequence[int]] = []
    copies: list[list[int]] = []

    def look(tokens: Sequence[int], budget: int) -> list[int]:
        with pytest.raises(TypeError):
            tokens[0] = 1  # type: ignore[index]
        assert isinstance(tokens, Sequence) and type(tokens[-1]) is int
        assert np.asarray(tokens).dtype == np.int32
        seen.append(tokens)
        copies.append(list(tokens))
        return []

    specdec.generate(target, Scripted(look), "It was", max_new_tokens=12)
    assert len(seen) == 11 and [list(text) for text in seen] == copies


def test_gamma_is_the_objects_unless_the_caller_says() -> None:
    target, _ = small_pair()
    drafter = Scripted([])
    drafter.gamma = 9
    specdec.generate(target, drafter, "It was", max_new_tokens=4)
    specdec.generate(target, drafter, "It was", max_new_tokens=4, gamma=2)
    assert sorted(set(drafter.budgets)) == [2, 9]
    for name, value, message in [
        ("gamma", 1.5, r"gamma of the draft Scripted is 1\.5; expected an integer"),
        ("commit", 3, "commit of the draft Scripted is 3; expected a method"),
    ]:
        wrong = Scripted([])
        setattr(wrong, name, value)
        with pytest.raises(InputError, match=message):
            specdec.generate(target, wrong, "It was")
    with pytest.raises(InputError, match="an object with the method propose"):
        specdec.generate(target, object(), "It was")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------- what it returns


def uniform_rows(n: int) -> np.ndarray:
    return np.full((n, N_VOCAB), 1 / N_VOCAB)


@pytest.mark.parametrize(
    ("answer", "tokens", "parents"),
    [
        ([5, 6], [5, 6], [0, 1]),
        ((5,), [5], [0]),
        (np.array([5, 6]), [5, 6], [0, 1]),
        ([], [], []),
        (Proposal([]), [], []),
        (Proposal([5, 6, 7], parents=[0, 0, 1]), [5, 6, 7], [0, 0, 1]),
        (Proposal(np.array([5, 6, 7]), np.array([0, 1, 1]), uniform_rows(3)), [5, 6, 7], [0, 1, 1]),
        (Proposal([5, 6], probs=[None, uniform_rows(1)[0]], confidence=[0.5, 1]), [5, 6], [0, 1]),
    ],
)  # fmt: skip
def test_good_proposals(target: Any, answer: Any, tokens: list[int], parents: list[int]) -> None:
    session = open_session(target, Scripted(answer), temperature=1.0)
    with_drafts(session).prefill()
    record = session.round()[0]
    assert record["drafted"] == tokens and record["parents"] == parents
    probs = getattr(answer, "probs", None)
    probs = [None] * len(tokens) if probs is None else probs
    for token, row, found in zip(tokens, probs, record["draft_probs"][1:], strict=True):
        wanted = np.eye(N_VOCAB)[token] if row is None else row
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


BAD: list[tuple[str, list[Any]]] = [
    ("the returned value is None; expected token ids or a specdec.drafts.Proposal", [None]),
    ("the returned value is", [7, "ab", [1.5], [2**40], [1, False], Proposal(None)]),  # type: ignore[arg-type]
    (r"tokens\[1\] is 101; expected 0 to 100", [[1, 101]]),
    (r"tokens\[0\] is -1", [[-1]]),
    ("there are 5 draft tokens; expected at most the budget of 4", [[1, 2, 3, 4, 5]]),
    ("there are 1 parents; expected 2", [Proposal([1, 2], [0])]),
    (r"parents\[1\] is 2; expected an earlier node, 0 to 1", [Proposal([1, 2], [0, 2])]),
    (r"parents\[0\] is -1", [Proposal([1, 2], [-1, 0])]),
    ("parents is .*; expected a node for each", [Proposal([1], 0), Proposal([2], [False])]),  # type: ignore[arg-type]
    ("probs has 1 entries; expected 2", [Proposal([1, 2], probs=uniform_rows(1))]),
    (r"probs is 3\.0; expected a sequence", [Proposal([1], probs=3.0)]),  # type: ignore[arg-type]
    (r"probs\[0\] is not a distribution; expected 101 numbers", [
        Proposal([1], probs=np.ones((1, 5)) / 5), Proposal([1], probs=2 * uniform_rows(1)),
        *(Proposal([1], probs=[[*head, *[0.0] * 99]]) for head in ([2.0, -1.0], [float("nan"), 1.0])),
    ]),
    ("a row of probs is .*; expected None or", [
        Proposal([1], probs=[["x"] * N_VOCAB]), Proposal([1], probs=[uniform_rows(2)]),  # type: ignore[list-item]
    ]),
    (r"probs\[0\] gives its token 1 probability 0", [Proposal([1], probs=np.eye(N_VOCAB)[:1])]),
    ("an entry of confidence is .*; expected a number from 0 to 1", [
        Proposal([1], confidence=[entry]) for entry in (1.1, "x", float("nan"))  # type: ignore[list-item]
    ]),
    ("confidence has 0 entries; expected 1", [Proposal([1], confidence=[])]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "answers"), BAD)
def test_bad_proposals_are_refused(target: Any, message: str, answers: list[Any]) -> None:
    """By InputError, which names the class and the method; the sequence ends without a token."""
    for answer in answers:
        session = open_session(target, Scripted(answer), temperature=1.0)
        session.prefill()
        (record,) = session.round()
        assert isinstance(record["error"], InputError) and record["tokens"] == record["drafted"] == []
        assert re.search(r"Scripted\.propose: .*" + message, str(record["error"]))
        assert session.round() == []


def test_draft_tokens_beyond_the_end_of_the_text_are_left_out(target: Any) -> None:
    """With all their descendants, and the siblings after them: 3 more tokens are 2 draft tokens in a row."""
    tree = Proposal([5, 6, 7, 8, 9], parents=[0, 1, 2, 3, 1], probs=uniform_rows(5))
    session = open_session(target, Scripted(tree), gamma=5, max_new_tokens=3)
    session.prefill()
    record = session.round()[0]
    assert record["drafted"] == [5, 6, 9] and record["parents"] == [0, 1, 1]


@pytest.mark.parametrize("method", ["begin", "propose", "commit"])
@pytest.mark.parametrize("wrap", [PythonDraft, lambda bad: Ensemble(Scripted([3]), bad)])
def test_exceptions_pass_through(method: str, wrap: Any) -> None:
    target, _ = small_pair()
    drafter, error = Scripted([3]), OSError()

    def fail(*_: Any) -> None:
        raise error

    setattr(drafter, method, fail)
    with pytest.raises(OSError) as caught:
        specdec.generate(target, wrap(drafter), "It was", max_new_tokens=9)
    assert caught.value is error
    delattr(drafter, method)
    assert specdec.generate(target, drafter, "It was", max_new_tokens=9).trace.n_tokens == 9


def test_nothing_is_kept() -> None:
    """References to the object, its results and its arguments, after successful and failed runs."""
    target, _ = small_pair()
    rows = np.full((2, target.config["n_vocab"]), 1 / target.config["n_vocab"])
    good = Proposal([3, 4], parents=[0, 0], probs=rows, confidence=[0.5, 0.5])
    bad = Proposal([3, 4], parents=[0, 0], probs=rows * 2, confidence=[0.5, 0.5])
    held = [rows, good.tokens, good.parents, good.confidence, bad.probs]
    before = [sys.getrefcount(value) for value in held]
    for answer in (good, bad):
        drafter = Scripted(answer)
        for _ in range(20):
            try:
                specdec.generate(target, drafter, "It was", max_new_tokens=9, temperature=1.0)
            except InputError:
                assert answer is bad
        gone = weakref.ref(drafter)
        del drafter
        gc.collect()
        assert gone() is None
    del answer
    assert [sys.getrefcount(value) for value in held] == before


def test_the_session_is_busy_while_the_object_drafts(target: Any) -> None:
    def again(*_: Any) -> list[int]:
        for call in (session.round, session.close, session.prefill):
            with pytest.raises(RuntimeError, match="in use"):
                call()
        return [1]

    session = open_session(target, Scripted(again))
    session.prefill()
    assert session.round()[0]["drafted"] == [1]


# --------------------------------------------------------------------------------------- its random numbers

PROMPT = [1, 2, 0, 1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return tiny_pair(tmp_path_factory.mktemp("tiny"))[0]


class Drawing:
    """Draft that draws one token from the same three with the given random numbers."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, int, float]] = []

    def propose(
        self, sequence: int, tokens: Sequence[int], budget: int, rng: np.random.Generator
    ) -> Proposal:
        self.drawn.append((sequence, len(tokens), float(rng.random())))
        probs = np.array([0.1, 0.2, 0.7])  # unlike the target
        token = int(np.searchsorted(np.cumsum(probs), self.drawn[-1][2], side="right"))
        return Proposal([min(token, 2)], probs=[probs])


def test_the_generator_is_one_of_seed_sequence_and_position(tiny: Any) -> None:
    """Equal runs draw equal numbers, whatever else is in the batch; all others are different ones."""

    def drawn(seeds: list[tuple[int, int]], **more: Any) -> set[tuple[int, float]]:
        draft = Drawing()
        options = {"temperature": 1.0, "max_new_tokens": 6, "gamma": 1} | more
        specdec.generate(tiny, draft, [PROMPT] * len(seeds), seed=seeds, **options)
        return {(length, uniform) for _, length, uniform in draft.drawn}

    one, other = drawn([(3, 0)]), drawn([(3, 1)])
    assert one == drawn([(3, 0)]) and len(one) > 2
    assert not one & other and not one & drawn([(4, 0)])
    assert drawn([(3, 0), (3, 1), (8, 0)], batch_size=2) >= one | other
    assert len({uniform for _, uniform in one | other}) == len(one | other), "a number was met twice"
    first, second, inner = Drawing(), Drawing(), Drawing()
    how: dict[str, Any] = {"seed": 3, "temperature": 1.0, "max_new_tokens": 6}
    specdec.generate(tiny, Ensemble(first, second, adaptive=False), PROMPT, gamma=2, **how)
    assert not set(first.drawn) & set(second.drawn)
    specdec.generate(tiny, ModelDraft(tiny, draft=inner), PROMPT, **how)
    uniforms = [uniform for *_, uniform in inner.drawn]
    assert len(set(uniforms)) == len(uniforms) > 1


def test_only_an_object_that_asks_gets_a_generator(tiny: Any) -> None:
    calls: list[Any] = []

    class Keyword:
        def propose(self, sequence, tokens, budget, *, rng):
            calls.append(rng)
            return []

    class Anything:
        def propose(self, *given, **more):
            calls.append((len(given), more))
            return []

    for drafter in (Keyword(), Anything()):
        specdec.generate(tiny, drafter, PROMPT, max_new_tokens=2, seed=1)
    assert isinstance(calls[0], np.random.Generator) and calls[-1] == (3, {})


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_generator_at_the_position_of_another_parameter(tiny: Any, position: int) -> None:
    """The generator is given by keyword, so that a parameter before it would come twice."""
    names = ["sequence", "tokens", "budget"]
    names[position] = "rng"
    made: dict[str, Any] = {}
    exec(f"class Misplaced:\n    def propose(self, {', '.join(names)}): return []", made)
    with pytest.raises(InputError, match=f"of the draft Misplaced has rng as parameter {position + 1}"):
        specdec.generate(tiny, made["Misplaced"](), PROMPT, max_new_tokens=2)
