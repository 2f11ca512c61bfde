"""N-gram drafts, against counts by hand and a count in plain Python."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from specdec.drafts import Bigram, Unigram
from specdec.errors import InputError

TEXT = [0, 1, 0, 2, 0, 1, 3]  # of 5 tokens; 4 never occurs
P = (np.array([3, 2, 1, 1, 0]) + 4 / 5) / (7 + 4)  # 4 different tokens among 7


def test_unigram_by_hand() -> None:
    found = Unigram(TEXT, 5).probabilities([3, 0, 4])
    assert found.shape == (3, 5)
    np.testing.assert_allclose(found, [P, P, P], rtol=1e-15)
    assert P.sum() == pytest.approx(1.0)


def test_bigram_by_hand() -> None:
    """After 0 came 1 twice and 2 once; after 1 came 0 and 3; after 2 came 0; after 3 and 4 nothing."""
    found = Bigram(TEXT, 5).probabilities([0, 1, 2, 3, 4])
    np.testing.assert_allclose(found[0], (np.array([0, 2, 1, 0, 0]) + 2 * P) / (3 + 2), rtol=1e-14)
    np.testing.assert_allclose(found[1], (np.array([1, 0, 0, 1, 0]) + 2 * P) / (2 + 2), rtol=1e-14)
    np.testing.assert_allclose(found[2], (np.array([1, 0, 0, 0, 0]) + P) / (1 + 1), rtol=1e-14)
    np.testing.assert_array_equal(found[3:], [Unigram(TEXT, 5).probs] * 2)


def test_bigram_against_a_count_in_plain_python() -> None:
    rng = np.random.default_rng(3)
    n_vocab, text = 17, (17 * np.random.default_rng(4).random(900) ** 2).astype(int).tolist()
    pairs, singles = Counter(itertools.pairwise(text)), Counter(text)
    asked = rng.integers(0, n_vocab, 40).tolist()
    found = Bigram(text, n_vocab).probabilities(asked)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-13)
    for row, before in zip(found, asked, strict=True):
        after = {x: n for (y, x), n in pairs.items() if y == before}
        for x in range(n_vocab):
            alone = (singles[x] + len(singles) / n_vocab) / (len(text) + len(singles))
            wanted = (after.get(x, 0) + len(after) * alone) / (sum(after.values()) + len(after))
            assert row[x] == pytest.approx(wanted if after else alone, rel=1e-12)


def test_pairs_are_not_counted_across_texts() -> None:
    apart = Bigram([[0, 1], [2, 3], np.array([4])], 5)
    assert apart.counts.levels[0].tokens.tolist() == [1, 3]
    assert Bigram([0, 1, 2, 3, 4], 5).counts.levels[0].tokens.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(apart.counts.unigrams, Unigram([0, 1, 2, 3, 4], 5).counts.unigrams)


def test_memory_grows_with_the_pairs() -> None:
    bigram = Bigram(np.arange(1000), 200_000)
    (pairs,) = bigram.counts.levels
    assert len(pairs.tokens) == len(pairs.counts) == 999
    assert len(pairs.starts) == 200_001


@pytest.mark.parametrize("draft", [Unigram, Bigram])
def test_what_cannot_be_counted_is_refused(draft: type) -> None:
    for ids, message in [
        ([], "ids has no token"),
        ([[], []], "ids has no token"),
        ([0, 5], r"ids\[1\] is 5; expected 0 to 4"),
        ([0, -1], r"ids\[1\] is -1; expected 0 to 4"),
        ([0.5], "expected integers"),
    ]:
        with pytest.raises(InputError, match=message):
            draft(ids, 5)
    with pytest.raises(InputError, match="n_vocab is 0"):
        draft([0], 0)
    with pytest.raises(InputError, match=r"ids\[0\] is 9"):
        draft([0], 5).probabilities([9])
    assert draft([0, 1], 5).probabilities([]).shape == (0, 5)
