"""A pace comes back from Python as an array.

Numbers that no pace can have learnt are refused, and others harm nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from canonical import LLAMA, build, perturbed, random_tensors
from descriptions import by_method
from specdec import _core

SIZES = LLAMA | {"n_layer": 1, "d_model": 16, "d_ff": 16, "n_head": 2, "n_kv_head": 1}
TENSORS = random_tensors(SIZES)
TARGET, DRAFT = build(SIZES, TENSORS), build(SIZES, perturbed(TENSORS, 0.05))
N_NUMBERS = len(_core.new_adaptive_gamma())

Array = NDArray[np.float64]


def run(pace: Array | None, draft: Any = DRAFT, n_new: int = 15) -> tuple[list[list[int]], Array | None]:
    """New tokens of two texts, and what the pace is after them."""
    how = {"temperature": 0.0}
    session = _core.Session(
        TARGET, draft, [[1, 2, 3], [4]], gamma=70, max_new_tokens=n_new, sampling=how, draft_sampling=how,
        seeds=[(1, 0), (1, 1)], n_threads=1, adaptive_gamma=pace,
    )  # fmt: skip
    session.prefill()
    tokens: list[list[int]] = [[], []]
    while records := session.round():
        for record in records:
            tokens[record["sequence"]] += record["tokens"]
    return tokens, session.adaptive_gamma


PLAIN, _ = run(None, None)


def learnt() -> Array:
    pace = _core.new_adaptive_gamma()
    for _ in range(3):
        _, pace = run(pace, n_new=80)
    return pace


LEARNT = learnt()

hostile = st.sampled_from(
    [-1e9, -1.0, -0.5, -1e-300, 1e-300, 0.5, 1.0, 63.0, 64.0, 65.0, 1e9, 2.0**31, 2.0**32, 1e15, -1e15, 1e16,
     float("inf"), float("-inf"), float("nan"), 1.7e308]
)  # fmt: skip
numbers = st.one_of(hostile, st.floats(), st.floats(-5, 5), st.integers(0, 1000).map(float))


@settings(max_examples=150, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, N_NUMBERS - 1), numbers), min_size=1, max_size=12),
    st.sampled_from([DRAFT, by_method("context_copy", None, 1, 3)]),
)
def test_a_session_refuses_hostile_numbers_or_gives_plain_output(
    has_learnt: bool, changes: list[tuple[int, float]], draft: Any
) -> None:
    pace = LEARNT.copy() if has_learnt else _core.new_adaptive_gamma()
    for i, value in changes:
        pace[i] = value
    try:
        tokens, _ = run(pace, draft)
    except ValueError as error:
        assert str(error).startswith("adaptive_gamma[")
    else:
        assert tokens == PLAIN
        _core.adaptive_gamma_view(pace)


@settings(max_examples=100, deadline=None)
@given(numbers)
def test_an_array_of_one_number(value: float) -> None:
    pace = np.full(N_NUMBERS, value)
    try:
        tokens, _ = run(pace)
    except ValueError as error:
        assert str(error).startswith("adaptive_gamma[")
    else:
        assert tokens == PLAIN


@pytest.mark.parametrize("value", [-1e9, -1.0, float("nan"), float("inf"), 1e300])
def test_most_numbers_are_never_negative_nor_huge(value: float) -> None:
    """One number changed: but for the starts of two lines and the tokens won, negative ones are refused."""
    n_taken = 0
    for i in range(N_NUMBERS):
        pace = LEARNT.copy()
        pace[i] = value
        try:
            _core.adaptive_gamma_view(pace)
            n_taken += 1
        except ValueError as error:
            assert f"adaptive_gamma[{i}] is" in str(error)
    assert n_taken == (3 if -1e15 <= value < 0 else 0)


def test_what_was_learnt_is_taken_back() -> None:
    pace = LEARNT
    for draft in (DRAFT, by_method("random"), by_method("context_copy", None, 1, 3)):
        for _ in range(3):
            tokens, pace = run(pace, draft)
            assert tokens == PLAIN
