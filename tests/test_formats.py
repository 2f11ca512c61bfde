"""Number formats: the specification against exact fractions, and the core against it, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blocks import awkward_rows as rows
from compiled import Model, in_instruction_sets, product, token_logits
from specdec import reference
from worlds.canonical import DTYPES, IN_F32, LLAMA, VARIANTS, build, random_tensors

# --------------------------------------------------- the specification, against arithmetic on fractions


def nearest(value: Fraction, digits: int, lowest: int) -> Fraction:
    """The nearest number of `digits` binary digits that is a multiple of 2**lowest, ties to even."""
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()  # of the value, or one more
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits + 1, lowest)
    return round(value / unit) * unit


f32 = partial(nearest, digits=24, lowest=-149)
f16 = partial(nearest, digits=11, lowest=-24)
bf16 = partial(nearest, digits=8, lowest=-133)


def flushed(value: Fraction) -> Fraction:
    return value if abs(value) >= Fraction(2) ** -126 else Fraction(0)


def flushed_sum(value: Fraction) -> Fraction:
    """Rounded to 24 bits, whatever the exponent; then zero if below 2**-126."""
    return flushed(nearest(value, 24, -1000))


def fractions(row: np.ndarray) -> list[Fraction]:
    return [Fraction(float(value)) for value in row]


def slow_quantize(row: list[Fraction], dtype: str) -> tuple[list[int], list[Fraction]]:
    """Codes and scales of one row of weights."""
    codes, scales = [], []
    for first in range(0, len(row), 32):
        block = row[first : first + 32]
        if dtype == "int8":
            scale, low, high = f16(f32(max(map(abs, block)) / 127)), -127, 127
        else:
            scale, low, high = f16(max(block, key=abs) / -8), -8, 7  # max gives the first of several
        for value in block:
            code = round(f32(value * f32(1 / scale))) if scale else 0
            codes.append(min(max(code, low), high))
        scales.append(scale)
    return codes, scales


def slow_activations(row: list[Fraction]) -> tuple[list[int], list[Fraction]]:
    codes, scales = [], []
    for first in range(0, len(row), 32):
        block = row[first : first + 32]
        largest = max(map(abs, block))
        exponent = -150
        while largest > 127 * Fraction(2) ** exponent:
            exponent += 1
        scale = Fraction(2) ** exponent if largest else Fraction(0)
        codes += [round(value / scale) if largest else 0 for value in block]
        scales.append(scale)
    return codes, scales


def slow_product_in_tiles(x: list[Fraction], w: list[Fraction]) -> Fraction:
    """One output in tile order."""
    total = Fraction(0)
    x, w = ([flushed(bf16(value)) for value in (*row, *[Fraction(0)] * (-len(row) % 32))] for row in (x, w))
    for first in range(0, len(x), 32):
        chains = []
        for offset in (0, 1):
            chain = Fraction(0)
            for k in range(first + offset, first + 32, 2):
                chain = flushed_sum(x[k] * w[k] + chain)
            chains.append(chain)
        total = flushed_sum(total + flushed_sum(sum(chains)))
    return total


def slow_product(x: list[Fraction], w: list[Fraction], dtype: str, engine: str = "rows") -> Fraction:
    """One output: the chain of sums in docs/NUMERICS.md."""
    if engine == "tiles" and dtype != "bf16":
        codes, scales = slow_quantize(w, dtype)
        w = [code * scales[k // 32] for k, code in enumerate(codes)]
    if engine == "tiles":
        return slow_product_in_tiles(x, w)
    total = Fraction(0)
    if dtype == "f32":
        for a, b in zip(x, w, strict=True):
            total = f32(a * b + total)
        return total
    if dtype == "bf16":
        x, w = ([flushed(bf16(value)) for value in (*row, *[Fraction(0)] * (len(row) % 2))] for row in (x, w))
        for k in range(0, len(x), 2):
            total = flushed_sum(x[k + 1] * w[k + 1] + total)
            total = flushed_sum(x[k] * w[k] + total)
        return total
    x_codes, x_scales = slow_activations(x)
    w_codes, w_scales = slow_quantize(w, dtype)
    for b, (x_scale, w_scale) in enumerate(zip(x_scales, w_scales, strict=True)):
        block = slice(32 * b, 32 * b + 32)
        block_sum = sum(p * q for p, q in zip(x_codes[block], w_codes[block], strict=True))
        total = f32(f32(block_sum * x_scale) * w_scale + total)
    return total


float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
smaller = st.floats(width=32, min_value=-(2.0**60), max_value=2.0**60)


@given(x=smaller, y=smaller, z=smaller)
@example(x=2.0**-75, y=2.0**-75, z=1.0)
@example(x=1 + 2.0**-12, y=1 + 2.0**-12, z=2.0**-60)  # a tie of the product alone: rounding twice loses it
@example(x=1 + 2.0**-12, y=1 + 2.0**-12, z=-(2.0**-60))
@example(x=2.0**-74, y=-(2.0**-75), z=2.0**-126)
@example(x=1.0, y=-1.0, z=1.0)
def test_fma_is_rounded_once(x, y, z):
    expected = f32(Fraction(x) * Fraction(y) + Fraction(z))
    assert Fraction(float(reference.fma(x, y, z))) == expected


def test_fma_overflows_to_infinity():
    large = np.float32(3e38)
    found = [reference.fma(large, *more) for more in ((large, 0), (-large, 0), (1, large), (1, -large))]
    assert found == [np.inf, -np.inf, np.inf, 0]


@given(x=float32s)
@example(x=1 + 2.0**-8)
@example(x=1 + 3 * 2.0**-8)
@example(x=1 + 2.0**-8 + 2.0**-23)
def test_bf16_is_rounded_to_nearest_even(x):
    expected = bf16(Fraction(x))
    rounded = float(reference.round_bf16(x))
    assert rounded == (np.copysign(np.inf, x) if abs(expected) >= 2**128 else expected)


N_INS = [1, 31, 32, 33, 100, 257]

PRODUCTS: list[tuple[str, Literal["rows", "tiles"]]] = [
    *((dtype, "rows") for dtype in DTYPES),
    *((dtype, "tiles") for dtype in DTYPES if dtype != "f32"),
]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("n_in", N_INS)
def test_quantize(dtype, n_in):
    weights = rows(np.random.default_rng(n_in), 5, n_in)
    codes, scales = reference.quantize(weights, dtype)
    assert codes.dtype == np.int8 and codes.shape == weights.shape
    assert scales.dtype == np.float16 and scales.shape == (5, -(-n_in // 32))
    for row, *found in zip(weights, codes, scales, strict=True):
        assert [found[0].tolist(), fractions(found[1])] == [*slow_quantize(fractions(row), dtype)]
    expected = [[Fraction(int(q)) * Fraction(float(s[k // 32])) for k, q in enumerate(row)]
                for row, s in zip(codes, scales, strict=True)]  # fmt: skip
    held = reference.dequantize(codes, scales)
    assert held.dtype == np.float32 and [fractions(row) for row in held] == expected
    np.testing.assert_array_equal(reference.stored(weights, dtype), held)


@pytest.mark.parametrize(
    ("dtype", "weights", "scale", "codes"),
    [
        # the first of equal magnitudes becomes -8 exactly; the other sign is cut off at 7
        ("int4", [1, -2, 2, 0.5], 0.25, [4, -8, 7, 2]),
        ("int4", [1, 2, -2, 0.5], -0.25, [-4, -8, 7, -2]),
        # scales that were rounded down: 1.19 of the smallest f16, 2**-24, and -1.26 of it
        ("int8", [9e-6, -9e-6, 3e-6], 2.0**-24, [127, -127, 50]),
        ("int4", [6e-7, -6e-7, 3e-7], -(2.0**-24), [-8, 7, -5]),
    ],
)
def test_codes_are_cut_off(dtype, weights, scale, codes):
    found, scales = reference.quantize(np.float32([weights]), dtype)
    assert (scales.tolist(), found.tolist()) == ([[scale]], [codes])


@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127 * 65504.0), ("int4", 8 * 65504.0)])
def test_a_weight_without_finite_scale_is_refused(dtype, largest):
    weights = np.zeros((2, 40), dtype=np.float32)
    weights[1, 35] = -largest
    assert np.abs(reference.dequantize(*reference.quantize(weights, dtype))).max() == np.float32(largest)
    weights[1, 35] *= 1.001
    with pytest.raises(ValueError, match="no finite scale"):
        reference.quantize(weights, dtype)


@pytest.mark.parametrize("n_in", N_INS)
def test_quantize_activations(n_in):
    x = rows(np.random.default_rng(n_in), 5, n_in)
    codes, scales = reference.quantize_activations(x)
    assert codes.dtype == np.int8 and scales.dtype == np.float32
    for row, *found in zip(x, codes, scales, strict=True):
        assert [found[0].tolist(), fractions(found[1])] == [*slow_activations(fractions(row))]


def test_activations_too_small_to_be_scaled_are_zeros():
    """The next float32 below 2**-100, in a block, and 2**-100 itself."""
    least = np.float32(2.0**-100)
    below = np.nextafter(least, np.float32(0))
    x = np.float32([[below, -1e-45], [least, -least / 2]])
    codes, scales = reference.quantize_activations(x)
    assert codes.tolist() == [[0, 0], [64, -32]]
    assert scales[:, 0].tolist() == [0, 2.0**-106]
    for dtype in ("int8", "int4"):
        weights = np.float32([[1, 2], [-3e4, 3e4]])
        np.testing.assert_array_equal(product(x, weights, dtype), reference.product(x, weights, dtype))


@pytest.mark.parametrize("n_rows", [1, 20])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_activations_too_large_to_be_scaled_are_cut_off(dtype, n_rows):
    """Those above 127 * 2**100, and sums of codes with them, which some instructions need."""
    x = rows(np.random.default_rng(0), n_rows, 64)
    x[:, 3], x[:, 40] = 1e34, -3e33
    weights = rows(np.random.default_rng(1), 5, 64)
    codes, _ = reference.quantize_activations(x)
    assert codes[:, 3].tolist() == [127] * n_rows and codes[:, 40].tolist() == [-127] * n_rows
    np.testing.assert_array_equal(product(x, weights, dtype), reference.product(x, weights, dtype))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_non_finite_values_spoil_a_row_alike_alone_and_with_others(dtype):
    """Blocks are quantized one by one or many at once, by the number of rows and of inputs."""
    rng = np.random.default_rng(0)
    x, weights = rows(rng, 40, 64), rows(rng, 5, 64)
    for row in range(40):
        x[row, rng.integers(64)] = rng.choice([np.nan, -np.nan, np.inf])
    together = product(x, weights, dtype)
    for row in range(40):
        assert product(x[row : row + 1], weights, dtype).tobytes() == together[row].tobytes()


@pytest.mark.parametrize("n_rows", [1, 6, 7, 16, 17, 23, 40])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_blocks_that_are_quantized_together_have_scales_of_their_own(dtype, n_rows):
    """Largest numbers differ in index, sign and magnitude, at and next to changes of the scale."""
    n_blocks, rng = 23, np.random.default_rng(n_rows)
    exponents = rng.integers(-106, 99, (n_rows, n_blocks, 1))
    x = rng.uniform(-0.5, 0.5, (n_rows, n_blocks, 32))
    indices = (np.arange(n_rows)[:, None] + np.arange(n_blocks)) % 32
    steps = np.float32(1.984375) * (1 + rng.integers(-1, 2, indices.shape) * 2.0**-23)
    np.put_along_axis(x, indices[:, :, None], (steps * rng.choice([-1, 1], steps.shape))[:, :, None], axis=2)
    x = np.ldexp(x, exponents).astype(np.float32)
    x[rng.random(indices.shape) < 0.1] = 0
    weights = np.zeros((n_blocks, n_blocks, 32), np.float32)
    weights[range(n_blocks), range(n_blocks)] = rng.standard_normal((n_blocks, 32))
    x, weights = x.reshape(n_rows, -1), weights.reshape(n_blocks, -1)
    found = product(x, weights, dtype)
    np.testing.assert_array_equal(found, reference.product(x, weights, dtype))
    assert len(np.unique(found)) > n_rows * n_blocks / 2


@pytest.mark.parametrize(("dtype", "engine"), PRODUCTS)
@pytest.mark.parametrize("n_in", [1, 31, 33, 100])
def test_product(dtype, engine, n_in):
    rng = np.random.default_rng(n_in)
    x, weights = rows(rng, 3, n_in), rows(rng, 4, n_in)
    found = reference.product(x, weights, dtype, engine)
    assert found.dtype == np.float32
    for i, x_row in enumerate(x):
        for j, w_row in enumerate(weights):
            assert float(found[i, j]) == slow_product(fractions(x_row), fractions(w_row), dtype, engine)


# A factor, the sum after the first fma of a pair, and that after the second, each below 2**-126.
TINY = 2.0**-126
FLUSHED = (
    np.float32([[TINY / 2, 0, 0, 0], [2 * TINY, 1.5 * TINY, 1, -TINY], [1, 1, 0, 0]]),
    np.float32([[2.0**100, 0, 0, 0], [0.5, 0.5, -1, 1], [TINY, -1.5 * TINY, 0, 0]]),
)
# ±2**-126 from the second of a pair, less what the first adds, n units of 2**-151. Rounded to 24 bits, sums
# are below 2**-126 from n > 1 on; rounded to multiples of 2**-149, from n > 2 on.
ALMOST_TINY = (
    np.float32([[2.0**-75, 2.0**-63], [-(2.0**-75), -(2.0**-63)]]),
    np.float32([[-n * 2.0**-76, 2.0**-63] for n in (0, 0.5, 1, 1 + 2.0**-7, 1.5, 2, 2 + 2.0**-6, 3, 4)]),
)


# The same two products in the chain of the even inputs.
ALMOST_TINY_IN_A_CHAIN = tuple(
    np.ascontiguousarray(matrix[:, [1, 1, 0, 0]]) * np.float32([1, 0, 1, 0]) for matrix in ALMOST_TINY
)
FLUSHING = [(FLUSHED, "rows"), (FLUSHED, "tiles"), (ALMOST_TINY, "rows"), (ALMOST_TINY_IN_A_CHAIN, "tiles")]


@pytest.mark.parametrize(("factors", "engine"), FLUSHING)
def test_bf16_products_flush_subnormal_numbers(factors, engine):
    x, weights = factors
    found = reference.product(x, weights, "bf16", engine)
    slow = [[slow_product(fractions(a), fractions(b), "bf16", engine) for b in weights] for a in x]
    assert [fractions(row) for row in found] == slow
    assert (found == 0).sum() > (reference.product(x, weights, "f32") == 0).sum()


@pytest.mark.parametrize("engine", ["rows", "tiles"])
def test_an_activation_is_flushed_before_it_is_rounded_to_bf16(engine):
    """The bf16 nearest to it is the smallest normal number."""
    x, weights = np.float32([[2.0**-126 * (1 - 2.0**-10)]]), np.float32([[2.0**60]])
    assert reference.round_bf16(x) == 2.0**-126
    assert reference.product(x, weights, "bf16", engine) == 0
    assert product(x, weights, "bf16", engine=engine) == 0


# ----------------------------------------------------------------- the core, against the specification


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_matrices_are_stored_as_specified(variant, dtype):
    """Whatever the size, and whatever is in a block."""
    config = VARIANTS[variant]
    tensors = random_tensors(config)
    for seed, (name, tensor) in enumerate(tensors.items()):
        if tensor.ndim == 2:
            tensors[name] = rows(np.random.default_rng(seed), *tensor.shape)
    model = build(config, tensors, dtype=dtype)
    assert model.dtype == dtype
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or name.endswith(
            ("position_embedding", "relative_bias", "mixer_conv", "per_layer_embedding")
        ):
            continue
        if name == "token_embedding" and not config["tied"]:
            with pytest.raises(ValueError, match="token_embedding: not a matrix"):
                model.matrix(name)
        else:
            held = model.matrix(name)
            assert held.dtype == np.float32
            own = "f32" if name.endswith(IN_F32) else dtype
            np.testing.assert_array_equal(held, reference.stored(tensor, own), err_msg=name)


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "engine"), PRODUCTS)
@pytest.mark.parametrize("n_out", [1, 31, 33, 70])
@pytest.mark.parametrize("n_in", [1, 31, 33, 100, 257, 545])
def test_products_have_the_bits_of_the_specification(n_in, n_out, dtype, engine):
    """For any number of rows, so a row's bits do not depend on other rows."""
    rng = np.random.default_rng(n_in * n_out)
    x, weights = rows(rng, 64, n_in), rows(rng, n_out, n_in)
    expected = reference.product(x, weights, dtype, engine)
    for n_rows in (*range(1, 42), 50, 64):
        found = product(x[:n_rows], weights, dtype, engine=engine, n_threads=1 + n_rows % 2)
        assert found.dtype == np.float32 and found.shape == (n_rows, n_out)
        np.testing.assert_array_equal(found, expected[:n_rows], err_msg=f"{n_rows} rows")
    some = rng.permutation(64)[:17]
    np.testing.assert_array_equal(product(x[some], weights, dtype, engine=engine), expected[some])


@pytest.mark.parametrize(("dtype", "engine"), PRODUCTS)
@pytest.mark.parametrize(
    ("n_rows", "n_in", "n_out"), [(97, 70, 33), (700, 70, 33), (130, 9000, 33), (300, 2250, 530)]
)
def test_rows_in_bands_have_the_bits_of_the_specification(dtype, engine, n_rows, n_in, n_out):
    """Many rows are multiplied band by band, fewer of them where inputs are many.

    If tiles have more rows than a cache holds, several panels are multiplied together, part by part.
    """
    rng = np.random.default_rng(n_in)
    x, weights = rows(rng, n_rows, n_in), rows(rng, n_out, n_in)
    some = [0, n_rows // 2, n_rows - 1]
    found = product(x, weights, dtype, engine=engine, n_threads=2)
    expected = reference.product(x[some], weights[:33], dtype, engine)
    np.testing.assert_array_equal(found[some, :33], expected)
    few = [product(x[i : i + 47], weights, dtype, engine=engine) for i in range(0, n_rows, 47)]
    np.testing.assert_array_equal(found, np.concatenate(few))


def test_every_instruction_set_flushes_subnormal_numbers_of_bf16():
    program = (
        "from test_formats import FLUSHING, product\n"
        "print(*(product(*pair, 'bf16', engine=by).tobytes().hex() for pair, by in FLUSHING))"
    )
    expected = [reference.product(*pair, "bf16", engine).tobytes().hex() for pair, engine in FLUSHING]
    assert all(printed.split() == expected for printed in in_instruction_sets(program).values())


@pytest.mark.parametrize(
    ("dtype", "name", "weight", "message"),
    [
        ("bf16", "head", 3.4e38, r"head: the block at \[3, 32\] has a value too large for bf16"),
        ("int8", "head", 8.4e6, r"head: the block at \[3, 32\] has a value too large for int8"),
        ("int4", "head", 5.3e5, r"head: the block at \[3, 32\] has a value too large for int4"),
        ("int4", "token_embedding", 3.4e38, r"token_embedding: element \[3, 40\] is 3.4e\+38, too large"),
        ("bf16", "head", np.nan, r"head: element \[3, 40\] is nan, expected a finite number"),
    ],
)
def test_a_weight_that_the_format_cannot_hold_is_refused(dtype, name, weight, message):
    tensors = random_tensors(VARIANTS["llama"])
    tensors[name][3, 40] = weight
    with pytest.raises(ValueError, match=message):
        build(VARIANTS["llama"], tensors, dtype=dtype)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_matrices_are_packed_in_pieces_as_small_ones_are(dtype: str, n_threads: int) -> None:
    """70,000 rows of head and embedding: any rows equal those of a model with these rows alone."""
    sizes = {"n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_model": 40, "d_head": 8, "d_ff": 8}
    large, small = LLAMA | sizes | {"n_vocab": 70_000}, LLAMA | sizes | {"n_vocab": 64}
    tensors = random_tensors(large)

    def load(config: dict[str, Any], tensors: dict[str, Any]) -> Model:
        items = [(name, tensor, "f32") for name, tensor in tensors.items()]
        return Model(config, items, dtype=dtype, n_threads=n_threads)

    whole = load(large, tensors)
    rows = whole.matrix("head")
    for first in (0, 35_008, 70_000 - 64):
        part = slice(first, first + 64)
        cut = tensors | {name: tensors[name][part] for name in ("head", "token_embedding")}
        piece = load(small, cut)
        assert np.array_equal(piece.matrix("head"), rows[part])
        assert np.array_equal(token_logits(whole, first + 9)[part], token_logits(piece, 9))
