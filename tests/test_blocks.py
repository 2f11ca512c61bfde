"""GGUF types: the specification against the package gguf, and the core against the specification, exactly."""

from __future__ import annotations

import numpy as np
import pytest

import specdec
from blocks import TYPES, f16_bytes, random_blocks
from blocks import awkward_rows as rows
from compiled import in_instruction_sets, product
from specdec import reference

N_IN = {type_name: 512 if size == 256 else 96 for type_name, (size, _) in TYPES.items()}
IN_EACH_TYPE = pytest.mark.parametrize("type_name", TYPES)


@IN_EACH_TYPE
def test_numbers_equal_those_of_the_gguf_package(type_name):
    quants = pytest.importorskip("gguf.quants")
    raw = random_blocks(np.random.default_rng(0), type_name, 40, N_IN[type_name])
    expected = quants.dequantize(raw, quants.GGMLQuantizationType[type_name.upper()])
    np.testing.assert_array_equal(reference.blocks.decoded(raw, type_name), expected)
    assert len(np.unique(expected)) > 60


# Types and numbers of inputs whose panels have several parts, the last one smaller.
IN_PARTS = [(type_name, n_in) for type_name in ("q4_k", "q5_k", "q6_k", "q2_k") for n_in in (1280, 2304)]
PRODUCTS = [
    *((type_name, n_in, engine) for type_name, n_in in N_IN.items() for engine in ("rows", "tiles")),
    *((type_name, n_in, "rows") for type_name, n_in in IN_PARTS),
]


@pytest.mark.parametrize(("type_name", "n_in", "engine"), PRODUCTS)
def test_products_have_the_bits_of_the_specification(type_name, n_in, engine):
    """For any number of rows and each engine, so a row's bits do not depend on other rows."""
    rng = np.random.default_rng(1)
    x, raw = rows(rng, 31, n_in), random_blocks(rng, type_name, 35, n_in)
    expected = reference.product(x, raw, type_name, engine)
    for n_rows in (1, 2, 5, 7, 8, 9, 10, 13, 17, 23, 25, 31):
        found = product(x[:n_rows], raw, type_name, engine=engine, n_threads=1 + n_rows % 2)
        np.testing.assert_array_equal(found, expected[:n_rows], err_msg=f"{n_rows} rows")


@IN_EACH_TYPE
def test_the_smallest_and_largest_codes(type_name):
    """No intermediate sum overflows its integer type."""
    signs = np.float32([[1, 1, 1, 1], [-1, -1, -1, -1], [1, -1, 1, -1], [1, 1, -1, -1]])
    x = np.tile(127 * signs, (2, N_IN[type_name] // 4))
    raw = random_blocks(np.random.default_rng(5), type_name, 33, N_IN[type_name])
    n_bytes = TYPES[type_name][1]
    is_f16 = np.tile(f16_bytes(type_name), raw.shape[1] // n_bytes)
    codes = np.where(np.arange(33) % 2, 0xFF, 0)[:, None]
    raw = np.where(is_f16, raw, codes).astype(np.uint8)
    if type_name == "mxfp4":
        raw[:, ::n_bytes] = 127
    expected = reference.product(x, raw, type_name)
    for n_rows in range(1, 9):
        np.testing.assert_array_equal(product(x[:n_rows], raw, type_name), expected[:n_rows])


@IN_EACH_TYPE
def test_scales_at_their_limits(type_name):
    """The largest and smallest numbers of f16, zeros of both signs; the smallest exponents of mxfp4."""
    rng = np.random.default_rng(2)
    limits = np.float16([65504, -65504, 6e-8, -6e-8, 0.0, -0.0])
    x, raw = rows(rng, 3, N_IN[type_name]), random_blocks(rng, type_name, 30, N_IN[type_name], scales=limits)
    for engine in ("rows", "tiles"):
        expected = reference.product(x, raw, type_name, engine)
        np.testing.assert_array_equal(product(x, raw, type_name, engine=engine), expected)
    assert np.isfinite(expected).all()


@IN_EACH_TYPE
def test_a_block_whose_numbers_are_not_finite_is_refused(type_name):
    raw = random_blocks(np.random.default_rng(3), type_name, 4, N_IN[type_name])
    size, n_bytes = TYPES[type_name]
    block = raw[2, n_bytes : 2 * n_bytes]
    block[:] = np.where(f16_bytes(type_name), np.resize([0, 0x7C], n_bytes), block)
    if type_name == "mxfp4":
        block[0], block[3] = 255, 0x77
    with pytest.raises(ValueError, match=rf"weights: element \[2, {size}\] is .*, expected a finite number"):
        product(np.ones((1, N_IN[type_name]), np.float32), raw, type_name)


def test_rows_of_part_of_a_block_are_refused():
    raw = np.zeros((3, 144), np.uint8)
    with pytest.raises(ValueError, match="or its blocks in bytes"):
        product(np.ones((1, 128), np.float32), raw, "q4_k")


CHECK = """
import test_blocks as t
for case in t.PRODUCTS:
    t.test_products_have_the_bits_of_the_specification(*case)
for type_name in t.TYPES:
    t.test_scales_at_their_limits(type_name)
    t.test_the_smallest_and_largest_codes(type_name)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernels", specdec.available_kernels())
def test_every_instruction_set_has_the_same_bits(kernels):
    in_instruction_sets(CHECK, kernels=[kernels])
