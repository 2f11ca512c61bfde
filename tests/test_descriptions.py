"""Drafts and settings as arguments of the core: by name, each once, no unknown ones."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from descriptions import ARGUMENTS, by_method
from sessions import Session
from specdec import InputError, _core, drafts
from worlds.canonical import HAS_HOOKS, LLAMA, build, perturbed, random_tensors, run_session

TENSORS = random_tensors(LLAMA)
TARGET, DRAFT = build(LLAMA, TENSORS), build(LLAMA, perturbed(TENSORS))
N_VOCAB = LLAMA["n_vocab"]
TABLE = _core.Ngram(np.ones(N_VOCAB, np.int32), ())
COPY = by_method("context_copy", None, 1, 1)


def propose(*_: Any) -> list[int]:
    return [1]


VALUES: dict[str, tuple[Any, ...]] = {
    "model": (DRAFT,), "parallel_chains": (DRAFT, 2), "static_tree": (DRAFT, [0, 0, 1], "sample"),
    "dynamic_tree": (DRAFT, 2, 3, 1.0), "nested": (DRAFT, COPY, 2), "skip_layers": (bytes([0, 3, 3]),),
    "ngram": (TABLE,), "online_ngram": (TABLE,), "context_copy": (None, 1, 1), "input_copy": (None, 0, 1, 1),
    "prediction_copy": (0, 1, 1), "suffix_memory": (_core.SuffixTree(100, 8), 1, 1.0, 0.1, True),
    "token_recycling": (_core.TokenMatrix(np.full((N_VOCAB, 2), -1, np.int32)), [0, 0, 1], [0.6, 0.2]),
    "lookahead": (2, 2, 2), "ensemble": (False, [2, 2], [COPY, by_method("model", DRAFT)]),
    "python": ("a test", propose, None, None, drafts.Proposal, None, False, False),
    "recorded": (COPY, _core.OnlineSamples(8, 4, 2)), "random": (),
    "fixed_acceptance": (COPY, 0.5, [[1, 2, 3] * 9]),
}  # fmt: skip
"""Arguments of every method, which can be used."""
METHODS = [name for name in ARGUMENTS if name != "fixed_acceptance" or HAS_HOOKS]
SETTINGS: dict[str, Any] = {
    "gamma": 3, "max_new_tokens": 6, "sampling": {"temperature": 0.0}, "draft_sampling": {"temperature": 0.0},
}  # fmt: skip


def session(draft: Any = None, *left_out: str, **changes: Any) -> Session:
    given = {name: value for name, value in (SETTINGS | changes).items() if name not in left_out}
    return Session(TARGET, draft, [[1, 2, 3]], **given)


def tokens_of(made: Session) -> list[int]:
    made.prefill()
    return [token for records in iter(made.round, []) for record in records for token in record["tokens"]]


@pytest.mark.parametrize("name", METHODS)
def test_each_argument_is_given_by_name(name: str) -> None:
    method, arguments = by_method(name, *VALUES[name])
    session((method, arguments)).prefill()
    for argument in arguments:
        rest = {key: value for key, value in arguments.items() if key != argument}
        with pytest.raises(TypeError, match=f"^{name}: {argument} is missing$"):
            session((method, rest))
    with pytest.raises(TypeError, match=f"^{name} has no argument 'surplus'$"):
        session((method, arguments | {"surplus": 1}))


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name != "fixed_acceptance"])
def test_a_description_may_change_once_the_session_is_made(name: str) -> None:
    """The session keeps what the drafter borrows."""
    wanted = run_session(TARGET, None, [[1, 2, 3]], gamma=0, max_new_tokens=6)[0]
    draft = build(LLAMA, perturbed(TENSORS))
    values = [draft if value is DRAFT else value for value in VALUES[name]]
    method, arguments = by_method(name, *values)
    made = session((method, arguments))
    arguments.clear()
    del draft, values
    gc.collect()
    assert tokens_of(made)[:6] == wanted[0]


class Odd(str):
    """A str subclass that equals no string."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def in_ensembles(n: int) -> Any:
    draft: Any = COPY
    for _ in range(n):
        draft = by_method("ensemble", False, [1], [draft])
    return draft


def test_drafts_stand_within_one_another_up_to_a_depth() -> None:
    tokens_of(session(in_ensembles(63)))
    for n in (64, 100_000):
        with pytest.raises(InputError, match="at most 64 nested drafts"):
            session(in_ensembles(n))


@pytest.mark.parametrize(
    ("description", "error", "message"),
    [
        (7, TypeError, r"draft: expected \(method, \{argument: value\}\), a Model or an Ngram"),
        ((), TypeError, "draft: expected"), (("model",), TypeError, "draft: expected"),
        (("model", [1]), TypeError, "draft: expected"),
        (("modle", {}), ValueError, "there is no method 'modle'"),
        (("random", {1: 1}), TypeError, "random has no argument 1"),
        (("skip_layers", {"skipped": [0, 3, 3]}), TypeError, "skip_layers: expected bytes"),
        (("ngram", {"table": DRAFT}), TypeError, "expected specdec._core.Ngram, not specdec._core.Model"),
        (by_method("lookahead", 2.0, 2, 2), TypeError, "window is a float, expected an integer"),
        (by_method("lookahead", 2**40, 2, 2), OverflowError, "does not fit 32 bits"),
        (by_method("static_tree", DRAFT, [0], "sample\0"), ValueError, "null character"),
        (by_method("static_tree", DRAFT, [0], 7), TypeError, "how is a int, expected a str"),
        (by_method("dynamic_tree", DRAFT, 2, 3, "x"), TypeError, "sharpness is a str, expected a number"),
        (
            by_method("nested", DRAFT, by_method("nested", DRAFT, COPY, 1), 2**31 - 1), ValueError,
            "gamma is 2147483647",
        ),
        (by_method("nested", DRAFT, COPY, -1), ValueError, "gamma is -1, expected 0 to 1024"),
        (("random", {Odd("model"): 1}), TypeError, "random has no argument 'model'"),
        (("model", {"model": DRAFT, Odd("model"): DRAFT}), TypeError, "model has no argument 'model'"),
    ],
)  # fmt: skip
def test_descriptions_that_are_none(description: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        session(description)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gama": 3}, "Settings has no argument 'gama'"),
        ({"rule": 1}, "Settings: rule is a int, expected a str"),
        ({"sampling": {}}, "sampling: temperature is missing"),
        ({"sampling": {"temperature": 1.0, "topk": 1}}, "sampling has no argument 'topk'"),
        ({"sampling": {"temperature": 1.0, "logit_bias": [1]}}, "logit_bias: expected a dict"),
    ],
)  # fmt: skip
def test_settings_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        session(**changes)


@pytest.mark.parametrize("name", ["gamma", "max_new_tokens", "sampling"])
def test_settings_of_a_session_are_given_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=f"^(Session|Settings): {name} is missing$"):
        session(None, name)
