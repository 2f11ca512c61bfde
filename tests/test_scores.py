"""Scores of many texts at once: each has the bits that it has alone, which are those of the log-softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from canonical import (
    ENCODER_DECODERS,
    FORMATS,
    SWITCHES,
    VARIANTS,
    build,
    random_source,
    random_tensors,
    step_by_step,
)
from specdec import _core

Ids = list[int]
N_TOP = 3


def ids_of(n: int, seed: int = 0, n_vocab: int = 101) -> Ids:
    found: Ids = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
    return found


def texts_of() -> list[tuple[Ids, int]]:
    """Texts and how many of their tokens are given: all ways of beginning alike."""
    few_shots, question, other = ids_of(90, 1), ids_of(20, 2), ids_of(25, 3)
    texts = [([*few_shots, *question, *ids_of(n, 10 + n)], 110) for n in (1, 2, 7, 30)]
    texts += [([*few_shots, *other, *ids_of(n, 20 + n)], 115) for n in (3, 1, 3)]
    texts += [(texts[0][0], 110), (texts[2][0], 50), (texts[3][0], 1)]  # twice, from earlier on, whole
    texts += [(few_shots, 1), (few_shots[:40], 39), (ids_of(2, 4), 1), (ids_of(1, 5) * 2, 1)]
    texts += [(ids_of(150, 6), 1), (ids_of(150, 6)[:70] + ids_of(5, 7), 70), (ids_of(3, 8), 2)]
    texts += [([few_shots[0], *ids_of(12, 30 + i)], 1) for i in range(4)]  # little in common
    return texts


TEXTS = texts_of()


def run(model: _core.Model, texts: list[tuple[Ids, int]], **options: Any) -> list[tuple[Any, ...]]:
    """(ln p, whether greedy, the top tokens, their ln p) of each text."""
    flat = np.array([token for ids, _ in texts for token in ids], np.int32)
    lengths = np.array([len(ids) for ids, _ in texts], np.int32)
    given = np.array([n_given for _, n_given in texts], np.int32)
    found = _core.score_texts(model, (flat, lengths), given, n_top=N_TOP, **options)
    cuts = np.cumsum(lengths - given)[:-1]
    return list(zip(*(np.split(part, cuts) for part in found), strict=True))


def expected_of(logits: NDArray[np.float32], ids: Ids, n_given: int) -> tuple[Any, ...]:
    """The same by the definition, from the logits after each token: one exponential after the other."""
    log_probs, greedy, top, of_top = [], [], [], []
    for at in range(n_given, len(ids)):
        row = [float(logit) for logit in logits[at - 1]]
        largest, total = max(row), 0.0
        for logit in row:
            total += math.exp(logit - largest)
        best = sorted(range(len(row)), key=lambda token: -row[token])[:N_TOP]
        log_probs.append(row[ids[at]] - largest - math.log(total))
        greedy.append(best[0] == ids[at])
        top.append(best)
        of_top.append([row[token] - largest - math.log(total) for token in best])
    return log_probs, greedy, top, of_top


def assert_equal(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(*parts) for parts in zip(one, other, strict=True))


QUICK = [("llama", *FORMATS[0]), ("llama-window-bias-tied", *FORMATS[2]), ("gpt-gelu", *FORMATS[3])]
CASES = [(name, *FORMATS[0]) for name in [*VARIANTS, *SWITCHES, *ENCODER_DECODERS] if name != "llama"]
CASES += [(name, *FORMATS[4]) for name in ("llama-wide-head", "alibi-embedding-norm-relu")]


@pytest.mark.parametrize(
    "case",
    [*QUICK, CASES[-3], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != CASES[-3])],
    ids="-".join,
)
def test_texts_have_the_bits_of_their_tokens_one_by_one(case: tuple[str, str, str]) -> None:
    name, dtype, cache_dtype = case
    config = (VARIANTS | SWITCHES | ENCODER_DECODERS)[name]
    model = build(config, random_tensors(config), dtype=dtype, cache_dtype=cache_dtype)
    source = random_source(config)
    given: dict[str, Any] = {}
    if source is not None:
        n = len(TEXTS)
        given["sources"] = np.array(source * n, np.int32), np.array([len(source)] * n, np.int32)
    texts = [([token % config["n_vocab"] for token in ids], n_given) for ids, n_given in TEXTS]
    expected = [expected_of(step_by_step(model, ids, source), ids, n_given) for ids, n_given in texts]
    assert_equal(run(model, texts, **given), expected)
    assert_equal(run(model, texts, n_texts=1, **given), expected)
    assert_equal(run(model, texts[::-1], n_texts=3, n_threads=2, **given), expected[::-1])
    alone = [_core.score(model, ids, source=source)[n_given - 1 :] for ids, n_given in texts]
    assert all(np.array_equal(one[0], row) for one, row in zip(expected, alone, strict=True))
