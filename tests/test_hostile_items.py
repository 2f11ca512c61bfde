"""Numbers that change their container when read, and arrays that change while the core reads them.

No invalid memory is read: check with `make asan PYTEST_ARGS=tests/test_hostile_items.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from descriptions import by_method
from sessions import Session
from specdec import InputError, _core, drafts
from worlds.canonical import LLAMA, build, fixed_acceptance, perturbed, random_tensors

TENSORS = random_tensors(LLAMA)
N_VOCAB = LLAMA["n_vocab"]
N = 200
"""Items: enough that a list's memory is given back when it is emptied."""


@pytest.fixture(scope="module")
def target() -> _core.Model:
    return build(LLAMA, TENSORS)


class Number:
    """A number that empties a container when it is converted."""

    def __init__(self, value: float, container: Any) -> None:
        self.value = value
        self.container = container

    def __index__(self) -> int:
        self.container.clear()
        bytearray(1 << 16)  # something else takes the memory
        return int(self.value)

    def __float__(self) -> float:
        self.container.clear()
        return float(self.value)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.container.clear()
        return np.full(N_VOCAB, 1 / N_VOCAB)


def numbers(value: float = 1, n: int = N) -> list[Any]:
    """Return a list that is empty once its first item has been converted."""
    items: list[Any] = []
    items += [Number(value, items) for _ in range(n)]
    return items


def session(target: _core.Model, draft: Any = None, prompts: Any = ([1, 2],), **options: Any) -> Session:
    arguments = {"gamma": 4, "max_new_tokens": 8, "temperature": 0.0, "n_text": 250} | options
    return Session(target, draft, prompts, **arguments)


def begun(target: _core.Model, draft: Any = None, prompts: Any = ([1, 2],), **options: Any) -> Session:
    """Return a session that has read its prompts."""
    made = session(target, draft, prompts, **options)
    made.prefill()
    return made


def rounds(target: _core.Model, answer: Any) -> list[Any]:
    """Run the first round with a Python object that proposes the answer."""
    arguments = ("a test", lambda *_: answer, None, None, drafts.Proposal, None, False, False)
    records = begun(target, by_method("python", *arguments)).round()
    for record in records:  # a draft of the caller's that fails ends the text that the call was for
        if record["error"] is not None:
            raise record["error"]
    return records


# ---------------------------------------------------------------------------------- ids of every call


def replaced(target: _core.Model) -> object:
    made = begun(target)
    made.finish(0)
    made.replace(0, numbers(), (1, 1))
    return made.prefill()


def arguments_that_go(target: _core.Model) -> object:
    """A description's dict loses its automaton while its numbers are read."""
    arguments: dict[str, Any] = {"documents": _core.Automaton(np.arange(N, dtype=np.int32) % N_VOCAB)}
    arguments |= {"min_match": Number(1, arguments), "n_candidates": 1}
    return tokens(begun(target, ("context_copy", arguments)))


def drafts_that_go(target: _core.Model) -> object:
    """The list of an ensemble's drafts is emptied while the first one is created."""
    several: list[Any] = []
    several += [by_method("context_copy", None, Number(1, several), 1)]
    several += [by_method("model", build(LLAMA, perturbed(TENSORS))), by_method("lookahead", 1, 2, 1)]
    return tokens(begun(target, by_method("ensemble", False, [2, 2, 2], several)))


def tokens(made: Session) -> list[Any]:
    return [record["tokens"] for records in iter(made.round, []) for record in records]


RANDOM = by_method("random")
IDS: dict[str, Callable[[_core.Model], object]] = {
    "arguments of a draft": arguments_that_go,
    "drafts of an ensemble": drafts_that_go,
    "prompt": lambda target: begun(target, None, [numbers(1, 9)]),
    "stop ids": lambda target: session(target, stop_ids=numbers()),
    "gammas": lambda target: begun(target, RANDOM, [[1]] * 9).round(gammas=numbers(1, 9)),
    "replace": replaced,
    "fixed acceptance": lambda target: session(target, fixed_acceptance(RANDOM, 0.5, [numbers()])),
    "input copy": lambda target: session(target, by_method("input_copy", numbers(), 0, 1, 1)),
    "gammas of several": lambda target: session(
        target, by_method("ensemble", False, numbers(1, 2), [RANDOM] * 2)
    ),
    "shape": lambda target: session(target, by_method("static_tree", target, numbers(0, 9), "top-k")),
    "decoder": lambda target: _core.Decoder(target, capacity=N).prefill(numbers()),
    "forward": lambda target: _core.Decoder(target, capacity=9, max_nodes=9).forward(
        numbers(1, 9), [-1, *range(8)]
    ),
    "find": lambda target: _core.Automaton(np.arange(N, dtype=np.int32)).find(numbers()),
    "beam search": lambda target: _core.BeamSearch(
        target, None, numbers(1, 99), width=1, draft_width=1, gamma=0, max_new_tokens=4, stop_ids=numbers()
    ),
    "verify": lambda target: _core.verify(
        numbers(1, 9), [-1, *range(8)], np.full((9, 2), 0.5), np.full((9, 2), 0.5), np.full(10, 0.5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IDS)
def test_ids_that_empty_their_list_are_read_as_they_were(name: str, target: _core.Model) -> None:
    IDS[name](target)


def test_what_is_read_is_what_the_list_held(target: _core.Model) -> None:
    ids = numbers(5, 9)
    expected = _core.Decoder(target, capacity=9).prefill([5] * 9, logits=True)
    found = _core.Decoder(target, capacity=9).prefill(ids, logits=True)
    assert ids == [] and expected is not None
    assert np.array_equal(found, expected)


def test_settings_that_empty_their_dict(target: _core.Model) -> None:
    bias: dict[Any, Any] = {}
    bias.update((i, Number(-1.5, bias)) for i in range(N_VOCAB))
    settings: dict[str, Any] = {}
    settings |= {
        "temperature": Number(1.0, settings), "top_k": Number(3, settings), "top_p": Number(1.0, settings),
        "min_p": Number(0.0, settings), "repetition_penalty": Number(1.0, settings), "logit_bias": bias,
    }  # fmt: skip
    made = begun(target, sampling=settings)
    assert settings == {} and bias == {}
    assert made.round()


def test_a_configuration_that_empties_itself() -> None:
    items: list[Any] = []
    items += [Number(value, items) for value in LLAMA["inv_freq"]]
    shapes = _core.tensor_shapes(LLAMA | {"inv_freq": items})
    assert items == [] and shapes == _core.tensor_shapes(LLAMA)
    config: dict[str, Any] = {}
    config |= {n: Number(v, config) if type(v) in (int, float) else v for n, v in LLAMA.items()}
    assert _core.tensor_shapes(config) == shapes


def proposal(field: str) -> drafts.Proposal:
    """Return a proposal of three nodes; the sequence of one field empties itself."""
    rows = np.full((3, N_VOCAB), 1 / N_VOCAB)
    given = {"tokens": [1, 2, 3], "parents": [0, 1, 2], "probs": rows, "confidence": [0.5] * 3}
    value = {"tokens": 1, "parents": 0, "probs": 0, "confidence": 0.5}[field]
    return drafts.Proposal(**given | {field: numbers(value, 3)})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["tokens", "parents"])
def test_a_proposal_that_empties_its_nodes(field: str, target: _core.Model) -> None:
    (record,) = rounds(target, proposal(field))
    assert len(record["drafted"]) == 3


@pytest.mark.parametrize("field", ["probs", "confidence"])
def test_a_proposal_that_empties_its_rows_is_refused(field: str, target: _core.Model) -> None:
    """Rows are requested one by one, as they may be large: a missing one is detected."""
    with pytest.raises(InputError, match=field):
        rounds(target, proposal(field))


def test_a_bare_list_that_empties_itself(target: _core.Model) -> None:
    (record,) = rounds(target, numbers(1, 4))
    assert record["drafted"] == [1] * 4
    with pytest.raises(InputError, match="budget"):
        rounds(target, numbers(1, 5))


# ------------------------------------------------------------- arrays that another thread writes to


def while_written(array: np.ndarray, values: list[Any], work: Callable[[], object], n: int = 20) -> None:
    """Repeat the work n times while another thread writes values into the array."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for value in values:
                array[...] = value

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(n):
            try:
                work()
            except ValueError:
                pass  # refused during the change
    finally:
        stop.set()
        thread.join()


def test_arrays_that_change_while_they_are_read(target: _core.Model) -> None:
    """Results are arbitrary, but nothing is read or written out of bounds."""
    ids = np.zeros(20_000, np.int32)
    while_written(ids, [0, -5, 2**31 - 1], lambda: _core.Automaton(ids), n=5)
    weights = {name: tensor.copy() for name, tensor in TENSORS.items()}
    while_written(weights["head"], [0.0, np.nan, np.inf], lambda: build(LLAMA, weights, dtype="int4"), n=5)
    x = np.ones((64, 64), np.float32)
    while_written(x, [0.0, np.nan, -np.inf, 3e38], lambda: _core.product(x, x, "int8"))


def test_a_table_that_changes_after_its_checks(target: _core.Model) -> None:
    """Its arrays stay the caller's: counts, tokens and starts may change between rounds."""
    starts = np.arange(N_VOCAB + 1, dtype=np.int64)
    tokens, followers = np.full(N_VOCAB, 3, np.int32), np.ones(N_VOCAB, np.int32)
    table = _core.Ngram(np.ones(N_VOCAB, np.int32), ((starts, tokens, followers),))
    for array, value in ((starts, 2**62), (starts, -(2**62)), (tokens, -7), (tokens, 2**30), (followers, -9)):
        kept = array.copy()
        for method in ("ngram", "online_ngram"):
            made = begun(target, by_method(method, table), max_new_tokens=4)
            array[...] = value
            while made.round():
                pass
            array[...] = kept


@pytest.mark.parametrize("rule", ["rejection", "greedy", "coupled", "traversal", "k-sequential", "classical"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308])
def test_rules_on_what_are_no_distributions(rule: str, value: float) -> None:
    """An array changed after the package's check gives a wrong token, but no crash."""
    n, n_vocab = 4, 5
    good = np.full((n, n_vocab), 1 / n_vocab)
    for at in (np.s_[:], np.s_[1:2], np.s_[:, 0]):
        bad = good.copy()
        bad[at] = value
        for target_probs, draft_probs in ((bad, good), (good, bad), (bad, bad)):
            for uniform in (0.0, 0.5, 0.999, value):
                path, _, _ = _core.verify(
                    [0, 1, 2, 3], [-1, 0, 1, 2], target_probs, draft_probs, np.full(n + 1, uniform),
                    rule=rule, noise=np.full((n, n_vocab), 0.5) if rule == "coupled" else None,
                )  # fmt: skip
                assert all(0 < node < n for node in path)
