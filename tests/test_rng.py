"""Random numbers: known answers, equal numbers in C and the reference, and distinct keys."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from specdec import reference
from weights import noise
from weights import uniform as uniform_core

# kat_vectors of Random123 1.14.0: philox4x32, 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
EDGES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
@pytest.mark.parametrize("uniform", [reference.uniform, uniform_core], ids=["reference", "core"])
def test_uniform_is_the_first_53_bits_of_the_known_answers(
    uniform, counter: str, key: str, expected: str
) -> None:
    position, index, purpose, sequence = words(counter)
    low, high = words(key)
    first, second, _, _ = words(expected)
    bits = first << 32 | second
    # 27 bits of the first word and 26 of the second: the dropped bits are below the last place of either.
    value = (bits >> 37 << 26 | (bits & 0xFFFFFFFF) >> 6) / 2**53
    assert uniform(high << 32 | low, sequence, position, purpose, index) == value


def test_core_equals_reference_for_every_field() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.integers(2**64, size=2000, dtype=np.uint64).tolist()
    keys = [(seed, *rng.integers(2**32, size=4).tolist()) for seed in seeds]
    edges = (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    keys += [(seed, edge, 0, 1, 2) for seed in edges for edge in EDGES]
    keys += [(5, 1, edge, 2, 3) for edge in EDGES] + [(5, 1, 2, 3, edge) for edge in EDGES]
    for key in keys:
        assert uniform_core(*key) == reference.uniform(*key), key


def test_noise_of_the_core_equals_the_reference() -> None:
    for key in [(0, 0, 0, 1), (1, 2, 3, 7), (2**64 - 1, 2**32 - 1, 99, 64)]:
        expected = reference.noise(*key)
        assert np.array_equal(noise(*key), expected) and np.all((expected >= 0) & (expected < 1))
    assert len({*reference.noise(5, 0, 9, 100), *reference.noise(5, 0, 10, 100)}) == 200


def test_numbers_are_multiples_of_two_to_the_minus_53_below_one() -> None:
    values = np.array([uniform_core(1, 2, position, 0, 0) for position in range(4096)])
    assert np.all((values >= 0) & (values < 1))
    steps = values * 2**53
    assert np.array_equal(steps, np.round(steps))
    assert np.any(steps % 2 == 1), "the last of the 53 bits is never set"


def test_every_field_of_the_key_gives_other_numbers() -> None:
    """An ignored field, or two swapped ones, would give equal numbers for different keys."""
    values = {
        uniform_core(seed, sequence, position, purpose, index)
        for seed in (0, 1, 2**32, 2**63)
        for sequence in range(6)
        for position in range(6)
        for purpose in range(3)
        for index in range(6)
    }
    assert len(values) == 4 * 6 * 6 * 3 * 6


@pytest.mark.parametrize("field", ["seed", "sequence", "position", "index"])
def test_neighboring_keys_are_uniform_and_uncorrelated(field: str) -> None:
    """Kolmogorov-Smirnov and lag-1 correlation of 10,000 numbers; chance exceeds a bound 1 time in 1,000."""
    n = 10_000
    keys = [{"seed": 7, "sequence": 3, "position": 11, "purpose": 1, "index": 2, field: i} for i in range(n)]
    values = np.array([uniform_core(*key.values()) for key in keys])
    assert scipy.stats.kstest(values, "uniform").statistic < 1.95 / np.sqrt(n)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 3.3 / np.sqrt(n)
