"""Logits to probabilities: the core against the reference, on ordinary and adversarial rows.

The core exponentiates with its own float32 polynomial, so probabilities agree up to a few float32 roundings.
The set of tokens with nonzero probability must agree, unless a cut falls between two nearly equal values.
"""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from compiled import in_instruction_sets
from refusals import refuses
from specdec import InputError, distribution, reference
from weights import distribution as distribution_of_row
from weights import noise as noise_of
from weights import verify_core

Logits = NDArray[np.float32]

RELATIVE = 2e-6
"""Of a probability: the error of the polynomial."""
EXPONENT = 2.0**-22
"""Of an exponent x = (logit - max) / temperature, which is rounded to float32 up to four times; each moves
exp(x) by |x| * 2**-24 of itself at most."""
LOWEST_TEMPERATURE = 1e-30
"""Lower ones count as this one, so that 1 / temperature is a float32."""
SMALLEST = 1e-35
"""Below this a float32 exponential may be flushed to zero."""


def core(
    logits: Logits, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    return distribution_of_row(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def well_separated(logits: Logits, temperature: float, top_k: int, top_p: float, min_p: float) -> bool:
    """Whether rounding cannot move a cut: no near tie at the last token kept, no cumulative mass near top_p,
    no probability near min_p of the largest.

    Equal logits are not a near tie: both sides treat them as equal and cut by id.
    """
    if temperature == 0:
        return True
    ordered = np.sort(logits[np.isfinite(logits)].astype(np.float64))[::-1]
    with np.errstate(over="ignore"):
        exponents = np.maximum((ordered - ordered[0]) / temperature, -1e300)

    if min_p > 0:
        below = exponents[ordered < ordered[0]] - math.log(min_p)
        if np.any(np.abs(below) < 1e-5 * (1 - math.log(min_p))):
            return False

    def near_tie(n_kept: int) -> bool:
        last = exponents[n_kept - 1]
        close = ordered[np.abs(exponents - last) < 1e-5 * max(1.0, -last)]
        return bool(close.max() != close.min())

    kept = exponents
    if 0 < top_k < len(ordered):
        if near_tie(top_k):
            return False
        kept = exponents[:top_k]
    if top_p == 1:
        return True
    cumulative = np.cumsum(np.exp(kept)) / np.sum(np.exp(kept))
    n_kept = int(np.searchsorted(cumulative, top_p)) + 1
    return bool(np.min(np.abs(cumulative - top_p)) > 1e-5) and not (n_kept < len(kept) and near_tie(n_kept))


def check(logits: Logits, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> None:
    got = core(logits, temperature, top_k, top_p, min_p)
    if temperature > 0:
        temperature = max(temperature, LOWEST_TEMPERATURE)
    expected = reference.distribution(logits, temperature, top_k, top_p, min_p)
    assert got.dtype == np.float64
    assert got.shape == logits.shape
    assert np.all(got >= 0)
    assert np.all(got[logits == -np.inf] == 0)
    assert abs(math.fsum(got) - 1) <= 1e-12
    if temperature == 0:
        assert np.array_equal(got, expected)
    elif well_separated(logits, temperature, top_k, top_p, min_p):
        assert np.all(got[expected == 0] == 0)
        with np.errstate(over="ignore"):
            exponents = np.minimum((logits.max() - logits.astype(np.float64)) / temperature, 1000)
        bound = (RELATIVE + EXPONENT * exponents) * expected
        assert np.all(np.abs(got - expected) <= np.where(expected > SMALLEST, bound, SMALLEST))


ROWS: dict[str, list[float]] = {
    "one-token": [3.5], "one-token-huge": [-3e38], "two-equal": [1.0, 1.0], "all-equal": [0.25] * 37,
    "all-equal-and-huge": [3e38] * 9, "ties-at-the-top": [0.0, 2.0, 1.0, 2.0, 2.0, -1.0],
    "ties-everywhere": [float(i % 3) for i in range(40)], "negative-zero-ties": [0.0, -0.0, 0.0, -0.0],
    "excluded": [-np.inf, 1.0, -np.inf, 0.0, -np.inf],
    "all-but-one-excluded": [-np.inf] * 5 + [-7.0] + [-np.inf] * 5,
    "excluded-and-equal": [-np.inf, 0.0, 0.0, -np.inf, 0.0], "huge-range": [3e38, -3e38, 0.0, 1e38],
    "all-very-negative": [-3e38, -3.1e38, -3e38], "subnormal": [1e-40, 0.0, -1e-40, 2e-40],
    "underflow": [0.0, -80.0, -90.0, -100.0, -104.0, -200.0],
    "one-rounding-apart": [1.0, float(np.nextafter(np.float32(1), np.float32(2))), 0.0],
}  # fmt: skip
TEMPERATURES = [0.0, 1e-300, 1e-30, 1e-3, 0.5, 1.0, 1.7, 100.0, 1e6]
CUTS = [
    (0, 1.0), (1, 1.0), (2, 1.0), (3, 0.7), (1000, 1.0), (0, 1e-12), (0, 0.3), (0, 0.9), (4, 0.999999),
    (2, 0.5),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_adversarial_rows(row: list[float]) -> None:
    for temperature, (top_k, top_p) in itertools.product(TEMPERATURES, CUTS):
        for min_p in (0.0, 0.3, 1.0):
            check(np.array(row, dtype=np.float32), temperature, top_k, top_p, min_p)


@pytest.mark.parametrize("n_vocab", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257, 4096, 32003])
def test_random_rows_of_every_length_around_a_vector(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for scale in (0.01, 1.0, 5.0, 30.0):
        logits = (scale * rng.standard_normal(n_vocab)).astype(np.float32)
        check(logits, 1.0)
        for temperature in (0.0, 0.3, 1.0, 2.5):
            top_k, top_p = int(rng.integers(0, n_vocab + 2)), float(rng.choice([1.0, rng.random()]))
            check(logits, temperature, top_k, top_p)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(
    logits=hnp.arrays(
        np.float32, st.integers(1, 40),
        elements=st.one_of(
            st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, 1.5, -np.inf]),
            st.floats(-(2.0**127), 2.0**127, width=32),
        ),
    ).filter(lambda row: bool(np.any(np.isfinite(row)))),
    temperature=st.one_of(st.just(0.0), st.just(1.0), st.floats(2.0**-20, 1e6)), top_k=st.integers(0, 45),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)), min_p=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
)  # fmt: skip
def test_any_row(logits: Logits, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    check(logits, temperature, top_k, top_p, min_p)


def large_rows(n_vocab: int) -> dict[str, Logits]:
    """Rows that exercise each branch of the search for a cut."""
    rng = np.random.default_rng(n_vocab)
    flat = rng.standard_normal(n_vocab)
    needle = np.full(n_vocab, -8.0)
    needle[[n_vocab // 3, n_vocab // 2]] = 3.0
    rows = {
        "flat": flat, "peaked": 4 * flat, "very-peaked": 20 * flat, "falling": np.linspace(5, -40, n_vocab),
        "rising": np.linspace(-40, 5, n_vocab), "underflow": np.linspace(0, -200, n_vocab),
        "two-values": rng.choice([0.0, 1.0], n_vocab),
        "few-values": rng.choice([-2.0, -1.0, 0.0, 0.5, 4.0], n_vocab), "level": np.zeros(n_vocab),
        "needles": needle,
        "mostly-excluded": np.where(rng.random(n_vocab) < 0.95, -np.inf, flat) + (np.arange(n_vocab) == 1),
    }  # fmt: skip
    rows["mostly-excluded"][1] = 1.0
    return {name: row.astype(np.float32) for name, row in rows.items()}


@pytest.mark.grid
@pytest.mark.parametrize("row_type", large_rows(2))
@pytest.mark.parametrize("n_vocab", [31, 32, 33, 40, 999, 4096, 20011])
def test_cuts_of_large_rows_are_exact(row_type: str, n_vocab: int) -> None:
    """The most probable tokens are kept, ties to the lowest id, and not one more than needed."""
    logits = large_rows(n_vocab)[row_type]
    probs = core(logits, 1.0)
    order = np.argsort(-probs, kind="stable")
    for top_k, top_p in itertools.product(
        [0, 1, 2, 5, 50, n_vocab // 2, n_vocab - 1], [1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9, 1.0]
    ):
        got = core(logits, 1.0, top_k, top_p)
        ordered = probs[order][: top_k or n_vocab]
        ordered = ordered[ordered > 0]
        mass = math.fsum(ordered)
        n_kept = np.count_nonzero(got)
        assert np.all(got[order[:n_kept]] > 0)
        if top_p == 1:
            assert n_kept == len(ordered)
        else:
            assert math.fsum(ordered[:n_kept]) >= (top_p - 1e-11) * mass
            assert math.fsum(ordered[: n_kept - 1]) < (top_p + 1e-11) * mass
        kept = probs[order[:n_kept]]
        np.testing.assert_allclose(got[order[:n_kept]], kept / math.fsum(kept), rtol=1e-12)


def digest_of_many_rows() -> str:
    """Digest of the core's distributions, and of its rule's results on them."""
    digest = hashlib.sha256()
    for n_vocab, (top_k, top_p) in itertools.product(
        [3, 7, 16, 37, 1003, 8192], [(0, 1.0), (5, 1.0), (0, 0.9), (40, 0.7)]
    ):
        for row in large_rows(n_vocab).values():
            target, draft = (core(logits, 0.9, top_k, top_p) for logits in (row, row[::-1].copy()))
            digest.update(target.tobytes() + draft.tobytes() + core(row, 0.0).tobytes())
            for u in (0.0, 0.3, 0.999):
                uniforms = np.array([0.0, 0.999999, 0.9999999, u])
                verdict = verify_core(
                    [0, 0, 0], [-1, 0, 0], np.stack([target] * 3), np.stack([draft] * 3), uniforms
                )
                digest.update(repr(verdict).encode())
        noise = noise_of(5, n_vocab, 77, n_vocab)
        digest.update(noise.tobytes())
        for rule in ("coupled", "block", "k-sequential", "classical"):
            noises = noise[None].repeat(2, axis=0) if rule == "coupled" else None
            verdict = verify_core(
                [0, 1], [-1, 0], np.stack([target] * 2), np.stack([draft] * 2), uniforms[:3], rule=rule,
                noise=noises,
            )  # fmt: skip
            digest.update(repr(verdict).encode())
    return digest.hexdigest()


def test_every_instruction_set_gives_the_same_bits() -> None:
    program = "from test_distribution import digest_of_many_rows; print(digest_of_many_rows())"
    found = in_instruction_sets(program)
    assert len(found) > 1 and len(set(found.values())) == 1, found


def test_equal_logits_have_equal_probabilities() -> None:
    """In whatever vector lane a token is."""
    rng = np.random.default_rng(9)
    logits = rng.choice(np.float32([-3.0, -1.0, 0.5, 2.0]), size=1003)
    for temperature, top_k, top_p in [(1.0, 0, 1.0), (0.7, 0, 0.9), (1.3, 600, 1.0)]:
        probs = core(logits, temperature, top_k, top_p)
        for value in np.unique(logits):
            kept = probs[(logits == value) & (probs > 0)]
            assert len(np.unique(kept)) <= 1


# ---------------------------------------------------------------------- specdec.distribution


def test_public_function_takes_rows_and_options() -> None:
    rows = np.random.default_rng(10).standard_normal((3, 12))
    got = distribution(rows, temperature=0.8, top_k=5, top_p=0.9)
    assert got.shape == (3, 12)
    for row, probs in zip(rows.astype(np.float32), got, strict=True):
        assert np.array_equal(probs, core(row, 0.8, 5, 0.9))
    assert np.array_equal(distribution(rows[1]), core(rows[1].astype(np.float32), 1.0))
    assert np.array_equal(distribution(rows[:, ::2])[2], core(rows[2, ::2].astype(np.float32), 1.0))
    assert distribution([1, 2, 3], temperature=0).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "logits",
    [
        [], 3.0, np.zeros((2, 2, 2)), [[1.0], [1.0, 2.0]], ["a", "b"], [1j, 0], [np.nan, 0.0], [np.inf, 0.0],
        [1e300, 0.0], [[0.0, 0.0], [-np.inf, -np.inf]],
    ],
    ids=str,
)  # fmt: skip
def test_invalid_logits_are_refused(logits) -> None:
    with pytest.raises(InputError, match="^logits "):
        distribution(logits)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("temperature", -1.0), ("temperature", np.nan), ("temperature", np.inf), ("top_k", 0), ("top_p", 0.0),
     ("top_p", 1.5)],
)  # fmt: skip
def test_bad_settings_are_refused(argument: str, value: float) -> None:
    with refuses(argument, value):
        distribution([0.0], **{argument: value})
