"""Types of GGUF files: the specification against the package gguf, the core against it, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import specdec
from blocks import TYPES, f16_bytes, random_blocks
from blocks import awkward_rows as rows
from compiled import in_instruction_sets, product
from specdec import reference

N_IN = {kind: 512 if size == 256 else 96 for kind, (size, _) in TYPES.items()}
IN_EACH_TYPE = pytest.mark.parametrize("kind", TYPES)


@IN_EACH_TYPE
def test_numbers_are_those_of_the_package_gguf(kind):
    quants = pytest.importorskip("gguf.quants")
    raw = random_blocks(np.random.default_rng(0), kind, 40, N_IN[kind])
    expected = quants.dequantize(raw, quants.GGMLQuantizationType[kind.upper()])
    np.testing.assert_array_equal(reference.blocks.decoded(raw, kind), expected)
    assert len(np.unique(expected)) > 60


# Types and numbers of inputs whose panels have several parts, the last one smaller.
IN_PARTS = [(kind, n_in) for kind in ("q4_k", "q5_k", "q6_k", "q2_k") for n_in in (1280, 2304)]
PRODUCTS = [
    *((kind, n_in, engine) for kind, n_in in N_IN.items() for engine in ("rows", "tiles")),
    *((kind, n_in, "rows") for kind, n_in in IN_PARTS),
]


@pytest.mark.parametrize(("kind", "n_in", "engine"), PRODUCTS)
def test_products_have_the_bits_of_the_specification(kind, n_in, engine):
    """For any number of rows, by each way of multiplying; so a row's bits do not depend on the others."""
    rng = np.random.default_rng(1)
    x, raw = rows(rng, 31, n_in), random_blocks(rng, kind, 35, n_in)
    expected = reference.product(x, raw, kind, engine)
    for n_rows in (1, 2, 5, 7, 8, 9, 10, 13, 17, 23, 25, 31):
        found = product(x[:n_rows], raw, kind, engine=engine, n_threads=1 + n_rows % 2)
        np.testing.assert_array_equal(found, expected[:n_rows], err_msg=f"{n_rows} rows")


@IN_EACH_TYPE
def test_the_smallest_and_largest_codes(kind):
    """No sum on the way leaves the integers that hold it."""
    signs = np.float32([[1, 1, 1, 1], [-1, -1, -1, -1], [1, -1, 1, -1], [1, 1, -1, -1]])
    x = np.tile(127 * signs, (2, N_IN[kind] // 4))
    raw = random_blocks(np.random.default_rng(5), kind, 33, N_IN[kind])
    n_bytes = TYPES[kind][1]
    is_f16 = np.tile(f16_bytes(kind), raw.shape[1] // n_bytes)
    codes = np.where(np.arange(33) % 2, 0xFF, 0)[:, None]
    raw = np.where(is_f16, raw, codes).astype(np.uint8)
    if kind == "mxfp4":
        raw[:, ::n_bytes] = 127
    expected = reference.product(x, raw, kind)
    for n_rows in range(1, 9):
        np.testing.assert_array_equal(product(x[:n_rows], raw, kind), expected[:n_rows])


@IN_EACH_TYPE
def test_scales_at_their_limits(kind):
    """The largest and smallest numbers of f16, zeros of both signs; the smallest exponents of mxfp4."""
    rng = np.random.default_rng(2)
    limits = np.float16([65504, -65504, 6e-8, -6e-8, 0.0, -0.0])
    x, raw = rows(rng, 3, N_IN[kind]), random_blocks(rng, kind, 30, N_IN[kind], scales=limits)
    for engine in ("rows", "tiles"):
        expected = reference.product(x, raw, kind, engine)
        np.testing.assert_array_equal(product(x, raw, kind, engine=engine), expected)
    assert np.isfinite(expected).all()


@IN_EACH_TYPE
def test_a_block_whose_numbers_are_not_finite_is_refused(kind):
    raw = random_blocks(np.random.default_rng(3), kind, 4, N_IN[kind])
    size, n_bytes = TYPES[kind]
    block = raw[2, n_bytes : 2 * n_bytes]
    block[:] = np.where(f16_bytes(kind), np.resize([0, 0x7C], n_bytes), block)
    if kind == "mxfp4":
        block[0], block[3] = 255, 0x77
    with pytest.raises(ValueError, match=rf"weights: element \[2, {size}\] is .*, expected a finite number"):
        product(np.ones((1, N_IN[kind]), np.float32), raw, kind)


def test_rows_of_part_of_a_block_are_refused():
    raw = np.zeros((3, 144), np.uint8)
    with pytest.raises(ValueError, match="or its blocks in bytes"):
        product(np.ones((1, 128), np.float32), raw, "q4_k")


CHECK = """
import test_blocks as t
for case in t.PRODUCTS:
    t.test_products_have_the_bits_of_the_specification(*case)
for kind in t.TYPES:
    t.test_scales_at_their_limits(kind)
    t.test_the_smallest_and_largest_codes(kind)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernels", specdec.available_kernels())
def test_every_instruction_set_has_the_same_bits(kernels):
    in_instruction_sets(CHECK, kernels=[kernels])
