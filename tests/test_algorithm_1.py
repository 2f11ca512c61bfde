"""`specdec.generate`'s rounds against Algorithm 1 in NumPy, token for token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from descriptions import by_method
from specdec import reference
from worlds.canonical import LLAMA, build, perturbed, random_tensors, run_session

TENSORS = random_tensors(LLAMA)
DRAFT_TENSORS = perturbed(TENSORS)
PROMPT = [3, 1, 4, 1, 5]
N_NEW = 24


def in_numpy(tensors: dict[str, Any]) -> Callable[[Sequence[int]], NDArray[np.float64]]:
    return lambda ids: reference.logits(LLAMA, tensors, ids, dtype=np.float64)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 3, 7])
def test_rounds_are_those_of_algorithm_1(gamma: int, temperature: float) -> None:
    """The same random numbers give the same tokens, through acceptances, rejections and the text's end.

    The core computes in float32 and the reference in float64. A token would differ if a random number fell
    between the two sums; with these seeds none does.
    """
    target, draft = build(LLAMA, TENSORS), build(LLAMA, DRAFT_TENSORS)
    accepted = set()
    for seed in range(3):
        wanted = reference.decode(
            in_numpy(TENSORS), in_numpy(DRAFT_TENSORS), PROMPT, N_NEW, gamma,
            temperature=temperature, seed=seed, sequence=5,
        )  # fmt: skip
        (found,), _, records = run_session(
            target, by_method("model", draft) if gamma else None, [PROMPT], gamma=gamma, max_new_tokens=N_NEW,
            temperature=temperature, seeds=[(seed, 5)],
        )  # fmt: skip
        assert found == wanted
        accepted |= {len(record["accepted"]) for record in records if len(record["drafted"]) == gamma}
    assert not gamma or {0, 1} <= accepted  # rejected at once, and accepted
