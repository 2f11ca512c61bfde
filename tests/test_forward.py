"""The forward pass against the NumPy reference, and contract 2: a row's bits depend on the row alone."""

from __future__ import annotations

import hashlib
import re
import time

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from compiled import (
    Decoder,
    Model,
    in_instruction_sets,
    prompt_logits,
    token_logits,
    trees_along,
    weighed_scores,
)
from grids import in_few_items
from specdec import reference
from worlds.canonical import (
    DTYPES,
    ENCODER_DECODERS,
    FORMATS,
    LLAMA,
    VARIANTS,
    build,
    random_source,
    random_tensors,
    step_by_step,
)
from worlds.learned import recurrent_network

N_IDS = 150  # two full prompt slices and a rest

# The spread of these models' logits is about 1. The reference computes in double precision, so now and then
# it rounds an activation to the other of two neighbors in bf16 or int8, and all that follows is off by that.
TOLERANCE = {"f32": 2e-5, "bf16": 0.06, "int8": 0.2, "int4": 0.2}

# Every variant in f32, every other format in those variants that have windows, odd sizes and wide heads.
# Of the mixtures the one in which every row goes through all experts: where some are chosen, an activation
# that is rounded otherwise may choose others.
ODD = ["llama-window-bias-tied", "llama-wide-head", "gpt-gelu", "mixture-not-gated-norms-after"]
CASES = [(variant, *FORMATS[0]) for variant in VARIANTS]
CASES += [(variant, *formats) for formats in FORMATS[1:] for variant in ODD]
CASES += [(variant, *FORMATS[0]) for variant in ENCODER_DECODERS]
CASES += [("biases-by-layer-other-sizes", *formats) for formats in FORMATS[1:]]
# The reference takes seconds for these.
SLOW = ("mixture-not-gated-norms-after", "biases-by-layer-other-sizes")
MARKED = [
    pytest.param(case, marks=pytest.mark.slow if case[0] in SLOW and case[1:] != FORMATS[0] else ())
    for case in CASES
]


class Case:
    """A model, a text, and the text's logits from forward passes of one token each."""

    def __init__(self, variant: str, dtype: str, cache_dtype: str) -> None:
        self.config = (VARIANTS | ENCODER_DECODERS)[variant]
        self.tensors = random_tensors(self.config)
        self.model = build(self.config, self.tensors, dtype=dtype, cache_dtype=cache_dtype)
        self.formats = {"format": dtype if dtype != "f32" else "exact", "cache_format": cache_dtype}
        self.source = random_source(self.config)
        self.ids = np.random.default_rng(7).integers(0, self.config["n_vocab"], N_IDS).tolist()
        self.tolerance = max(TOLERANCE[dtype], TOLERANCE[cache_dtype])
        self.alone = step_by_step(self.model, self.ids, self.source)

    def decoder(self, **options: int) -> Decoder:
        return Decoder(self.model, source=self.source, capacity=N_IDS, **options)


@pytest.fixture(scope="module", params=MARKED, ids="-".join)
def case(request):
    return Case(*request.param)


def test_prompts_and_steps_are_equal_and_near_the_reference(case):
    expected = reference.logits(case.config, case.tensors, case.ids, source=case.source, **case.formats)
    prompt = prompt_logits(case.model, case.ids, source=case.source)
    assert prompt.shape == (N_IDS, case.config["n_vocab"]) and prompt.dtype == np.float32
    np.testing.assert_allclose(prompt, expected, atol=case.tolerance)
    assert np.array_equal(prompt, case.alone)
    for n in (2, 3):
        threaded = prompt_logits(case.model, case.ids, n_threads=n, source=case.source)
        assert np.array_equal(threaded, case.alone)


@pytest.mark.parametrize("changes", [{}, {"tied": True, "n_kv_head": 6}], ids=["grouped", "tied"])
def test_llama_by_its_one_page_reference(changes):
    config = LLAMA | changes
    tensors = random_tensors(config)
    ids = np.random.default_rng(9).integers(0, config["n_vocab"], 40).tolist()
    expected = reference.llama_logits(config, tensors, ids)
    np.testing.assert_allclose(prompt_logits(build(config, tensors), ids), expected, atol=TOLERANCE["f32"])


def test_soft_caps_are_tanh():
    """To 4 units in the last place, for logits near the boundary of its two branches and far from it."""
    tensors = random_tensors(LLAMA)
    ids = np.random.default_rng(8).integers(0, LLAMA["n_vocab"], 60).tolist()
    for cap in (0.5, 3.0, 100.0):
        configs = LLAMA, LLAMA | {"logit_softcap": cap}
        plain, capped = (prompt_logits(build(config, tensors), ids) for config in configs)
        ratio = plain / np.float32(cap)
        expected = cap * np.tanh(ratio.astype(np.float64))
        error = np.abs(capped - expected) / np.spacing(np.abs(expected).astype(np.float32))
        assert error.max() < 4 and np.abs(ratio).max() > 0.01


def test_a_long_context_costs_neither_memory_nor_bits():
    """Rotary positions are computed for the text, not for the whole context."""
    tensors = random_tensors(LLAMA)
    short, long = (build(LLAMA | {"n_ctx": n}, tensors) for n in (N_IDS, 1 << 22))
    assert long.n_bytes == short.n_bytes
    ids = np.random.default_rng(8).integers(0, LLAMA["n_vocab"], N_IDS).tolist()
    assert np.array_equal(prompt_logits(long, ids, capacity=4 * N_IDS), prompt_logits(short, ids))


def test_many_layers_are_set_in_time_that_grows_with_their_number():
    """A search of all tensors for each would take some 20 s."""
    config = LLAMA | {"n_layer": 1500, "d_model": 2, "n_head": 1, "n_kv_head": 1, "d_head": 2, "d_ff": 2}
    config["inv_freq"] = [1.0]
    tensors = random_tensors(config)
    start = time.thread_time()
    model = build(config, tensors)
    assert time.thread_time() - start < 4.0
    for name in ("layers.0.attn_q.weight", "layers.1499.mlp_down.weight"):
        assert np.array_equal(model.matrix(name), tensors[name])
    for name in (*(f"layers.{i}.attn_q.weight" for i in ("1500", "01", "-1")), "layers."):
        with pytest.raises(ValueError, match="not a matrix of this model"):
            model.matrix(name)


def test_most_tokens_differ_from_the_reference_only_by_rounding(case):
    """Tokens without history and one-token sources: a rounding difference cannot spread."""
    errors = []
    for token in range(24):
        source = case.source and [case.source[token]]
        (expected,) = reference.tree_logits(
            case.config, case.tensors, [], [token], [-1], source=source, **case.formats
        )
        errors.append(np.abs(token_logits(case.model, token, source) - expected).max())
    assert np.median(errors) < 2e-5


@in_few_items()
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("n_nodes", [2, 3, 5, 9, 12, 13, 25, 64])
def test_rows_together_have_the_bits_of_rows_alone(case, n_nodes, n_threads):
    decoder = case.decoder(max_nodes=n_nodes, n_threads=n_threads)
    rows = []
    for first in range(0, N_IDS, n_nodes):
        chain = case.ids[first : first + n_nodes]
        rows.append(decoder.forward(chain, range(-1, len(chain) - 1)))
        decoder.keep(range(len(chain)))
    assert np.array_equal(np.concatenate(rows), case.alone)


_LONG = LLAMA | {"n_ctx": 720, "n_layer": 2, "n_head": 8, "n_kv_head": 1, "d_head": 72}
SHARED = {
    "one-head": _LONG,
    "two-heads-window-sinks": _LONG | {"n_kv_head": 2, "windows": [0, 250], "attn_sinks": True},
    "alibi": _LONG | {"position": "none", "alibi": [2.0**-i for i in range(8)]},
    "softcap-many-queries": _LONG | {"n_head": 50, "d_head": 8, "attn_softcap": 3.0},
    "encoder": _LONG | {"encoder": _LONG},
}


@pytest.mark.parametrize("formats", [{}, {"dtype": "bf16", "cache_dtype": "bf16", "prefill": "tiles"}])
@pytest.mark.parametrize("name", SHARED)
def test_threads_share_a_head_without_splitting_a_sum(name, formats):
    """With fewer heads than threads these share the keys, the weights and the columns of each."""
    config = SHARED[name]
    model = build(config, random_tensors(config), **formats)
    ids = np.random.default_rng(4).integers(0, 101, 690).tolist()
    parents = [-1, 0, 0, 1, 1, 2, 5, 6, 6, *range(8, 16)]

    def found(n_threads):
        options = {"source": random_source(config, 600), "n_threads": n_threads}
        decoder = Decoder(model, capacity=720, max_nodes=17, **options)
        prompt = decoder.prefill(ids, logits=True)
        trees = [decoder.forward(range(n), parents[:n]) for n in (1, 4, 17) if decoder.keep([]) is None]
        return np.concatenate([prompt, *trees])

    alone = found(1)
    for n_threads in (2, 3, 5, 8):
        assert np.array_equal(found(n_threads), alone), n_threads


def test_nodes_of_a_tree_have_the_bits_of_their_path(case):
    """Random trees grow after the text, and the kept path moves in the cache; the reference agrees."""
    decoder, n_compared = case.decoder(max_nodes=24, n_threads=2), 0
    for first, tokens, parents, path in trees_along(case.ids, case.config["n_vocab"]):
        logits = decoder.forward(tokens, parents)
        assert np.array_equal(logits[path], case.alone[first : first + len(path)])
        if first >= n_compared * 65:  # the reference computes the whole text: near its start, middle and end
            n_compared += 1
            tree = case.config, case.tensors, case.ids[:first], tokens, parents
            expected = reference.tree_logits(*tree, source=case.source, **case.formats)
            np.testing.assert_allclose(logits, expected, atol=case.tolerance)
        decoder.keep(path)
        decoder.keep(path)  # idempotent
        assert decoder.n_committed == first + len(path)
    assert n_compared == 3


def test_instruction_sets_agree_bit_for_bit():
    """Kernels sum in one order on every set (docs/NUMERICS.md), so forward passes agree in every format."""
    program = "import specdec, test_forward as t; print(specdec.kernels(), *t.digests_of_all_variants())"
    found = {name: printed.split() for name, printed in in_instruction_sets(program).items()}
    assert "ref" in found and all(used == name for name, (used, *_) in found.items())
    for formats, *digests in zip(FORMATS, *(of_formats[1:] for of_formats in found.values()), strict=True):
        assert len(set(digests)) == 1, formats


@needs_hooks
@pytest.mark.parametrize("n_chunks", [1, 2, 5])
@pytest.mark.parametrize("n_rows", [1, 5, 24])
def test_scores_become_weights(n_rows, n_chunks):
    """Each row by its largest score; element i adds to lane i % 16, ascending, up to a number of its own."""
    rng = np.random.default_rng(n_rows * n_chunks)
    scores = (20 * rng.standard_normal((n_chunks, n_rows, 32))).astype(np.float32)
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    scores[0, :, 3] = 1 + np.arange(n_rows)
    n_sum = rng.integers(0, 32 * n_chunks + 1, n_rows)
    n_sum[0] = 32 * n_chunks
    weights, largest, sums = weighed_scores(scores, 0.25, n_sum.tolist())
    weights = weights.reshape(scores.shape)
    by_lane = scores.reshape(n_chunks, n_rows, 2, 16)
    assert np.array_equal(largest, by_lane.max(axis=(0, 2)))
    shifted = (scores - largest.max(axis=1)[:, None]) * np.float32(0.25)
    np.testing.assert_allclose(weights, np.exp(shifted.astype(np.float64)), rtol=3e-7, atol=1.3e-38)
    assert np.all(weights[scores == -np.inf] == 0) and np.all(weights.max(axis=(0, 2)) == 1)
    for row, n in enumerate(n_sum):
        lanes = np.zeros(16, np.float32)
        for i, weight in enumerate(weights[:, row].ravel()[:n]):
            lanes[i % 16] += weight
        assert np.array_equal(sums[row], lanes)


def digests_of_all_variants() -> list[str]:
    """Return a digest for each of FORMATS."""
    digests = [hashlib.sha256() for _ in FORMATS]
    for config in (VARIANTS | ENCODER_DECODERS).values():
        tensors, ids = random_tensors(config), [token % config["n_vocab"] for token in range(30)]
        for (dtype, cache_dtype), digest in zip(FORMATS, digests, strict=True):
            model = build(config, tensors, dtype=dtype, cache_dtype=cache_dtype)
            decoder = Decoder(model, capacity=64, max_nodes=7, source=random_source(config))
            decoder.prefill(ids[:26])
            for token in ids[26:]:
                decoder.forward([token], [-1])
                decoder.keep([0])
            digest.update(decoder.forward([5, 6, 7, 8, 9, 10, 11], [-1, 0, 1, 1, 0, 4, 2]).tobytes())
    for (dtype, _), digest in zip(FORMATS, digests, strict=True):
        digest.update(recurrent_network(61, (12, 37, 2), dtype).logits(range(40)).tobytes())
    return [digest.hexdigest() for digest in digests]


def test_an_instruction_set_that_the_machine_lacks_is_refused():
    available = specdec.available_kernels()
    for name in {"mmx", "avx2", "neon"} - set(available):  # one unknown, one of another processor
        message = f'ImportError: SPECDEC_KERNELS is "{name}", but this machine has: {", ".join(available)}'
        with pytest.raises(AssertionError, match=re.escape(message)):
            in_instruction_sets("import specdec; specdec.kernels()", kernels=[name])


class TestBadInput:
    @pytest.fixture
    def model(self):
        return build(VARIANTS["llama"], random_tensors(VARIANTS["llama"]))

    def test_a_failed_forward_changes_nothing(self, model):
        decoder = Decoder(model, capacity=40, max_nodes=4)
        decoder.prefill(range(20))
        before = decoder.forward([1, 2], [-1, 0])
        for tokens, parents, message in [
            ([101], [-1], "token 101"), ([-1], [-1], "token -1"), ([1, 2], [-1, 1], "node 1: parent is 1"),
            ([1, 2], [-1, -2], "parent is -2"), ([1, 2], [-1], "equal numbers"), ([], [], "equal numbers"),
            ([1] * 5, [-1] * 5, "max_nodes = 4"),
        ]:  # fmt: skip
            with pytest.raises(ValueError, match=message):
                decoder.forward(tokens, parents)
        with pytest.raises(ValueError, match="21 tokens do not fit the 20 free slots"):
            decoder.prefill(range(21))
        with pytest.raises(ValueError, match="token 101"):
            decoder.prefill([5, 101])
        assert decoder.n_committed == 20
        assert np.array_equal(decoder.forward([1, 2], [-1, 0]), before)

    def test_a_path_must_hang_together(self, model):
        decoder = Decoder(model, capacity=40, max_nodes=4)
        decoder.forward([1, 2, 3], [-1, 0, 0])
        for path in ([1], [0, 1, 2], [0, 3], [-1]):
            with pytest.raises(ValueError, match="path"):
                decoder.keep(path)
        decoder.keep([0, 2])
        assert decoder.n_committed == 2

    def test_positions_end_with_the_context(self, model):
        decoder = Decoder(model, capacity=300, max_nodes=4)
        decoder.prefill([1] * 254)
        decoder.forward([1, 2], [-1, 0])
        with pytest.raises(ValueError, match="position is 256, expected below the context of 256"):
            decoder.forward([1, 2, 3], [-1, 0, 1])
        decoder.forward([1, 2, 3], [-1, 0, 0])  # three nodes, but no deeper than the context


class TestBadWeights:
    config = VARIANTS["llama"]

    def fails(self, match: str, config=None, **changes):
        tensors = random_tensors(self.config) | changes
        with pytest.raises(ValueError, match=match):
            build(config or self.config, {n: t for n, t in tensors.items() if t is not None})

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, value):
        for name in ("layers.1.mlp_up.weight", "output_norm.weight", "token_embedding"):
            tensor = random_tensors(self.config)[name]
            tensor.flat[-1] = value
            self.fails(f"tensor {name}: element .* expected a finite number", **{name: tensor})

    def test_missing_unexpected_and_of_another_shape(self):
        self.fails("tensor layers.2.attn_k.weight: missing", **{"layers.2.attn_k.weight": None})
        self.fails("layers.9.attn_k.weight: not part", **{"layers.9.attn_k.weight": np.zeros((1, 1), "f")})
        for shape, found in (((48, 16), r"\(48, 16\)"), ((16,), r"\(16,\)")):
            weights = {"layers.0.attn_v.weight": np.zeros(shape, "f")}
            self.fails(rf"shape is {found}, expected \(16, 48\)", **weights)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [("n_layer", 0, "n_layer is 0"), ("d_model", -4, "d_model is -4"), ("n_kv_head", 4, "a multiple"),
         ("norm", "batch", "norm is 'batch'"), ("inv_freq", [1.0] * 5, "inv_freq has 5 entries"),
         ("n_vocab", 2**40, "n_vocab is"), ("d_ff", "wide", "an integer"), ("norm_eps", -1.0, "norm_eps")],
    )  # fmt: skip
    def test_configuration(self, field, value, message):
        self.fails(message, config=self.config | {field: value})
        missing = {name: v for name, v in self.config.items() if name != field}
        self.fails(f"{field} is missing", config=missing)

    @pytest.mark.parametrize(
        ("switches", "message"),
        [({"norm_bias": True}, "norm_bias is set"), ({"qk_norm": "some"}, "qk_norm is 'some'"),
         ({"norm_position": "after", "parallel": "one_norm"}, "parallel is set"),
         ({"activation": "silu_clamped"}, "expected gated and an activation_limit"),
         ({"activation": "xielu"}, "expected no gate and no experts"),
         ({"attn_gate_softplus": True}, "expected an attn_gate with it"),
         ({"dense_with_experts": True}, "expected n_experts with it"),
         ({"borrows_kv": True}, "borrows_kv is set, expected joined features"),
         ({"n_clusters": 3}, "n_clusters is 3, expected clusters of a multiple of 32"),
         ({"logit_scale": 0.0}, "logit_scale is 0, expected a finite number above 0"),
         ({"attn_softcap": -1.0}, "attn_softcap is -1, expected a finite number from 0"),
         ({"residual_scale": np.inf}, "residual_scale is inf"),
         ({"query_growth": 0.1}, "query_growth is 0.1 over spans of 0"),
         ({"query_growth": 0.1, "query_span": 1.5}, "query_span is 1.5, expected an integer"),
         ({"alibi": [1.0] * 5}, "alibi has 5 entries, expected 6"),
         ({"alibi": [np.nan] * 6}, r"alibi\[0\]"),
         ({"relative_buckets": [0, 3, 3]}, r"relative_buckets\[2\] is 3"),
         ({"relative_buckets": [1, 2]}, r"relative_buckets\[0\] is 1"),
         ({"n_heads": [6, 2]}, "n_heads has 2 entries, expected 3"),
         ({"n_heads": [6, 6, 0]}, "n_head is 0 in layer 2, expected 1 to"),
         ({"n_heads": [6, 5, 6]}, "n_head is 5 in layer 1, expected a multiple of n_kv_head = 2"),
         ({"n_kv_heads": [2, -1, 2]}, "n_kv_head is -1 in layer 1"),
         ({"d_heads": [8, 8, 0]}, "d_head is 0 in layer 2"),
         ({"values_from_keys": [0, 1]}, "values_from_keys has 2 entries, expected 3"),
         ({"values_from_keys": [0, 1, 0], "attn_gate": "head"}, r"values_from_keys\[1\] is set, expected no"),
         ({"values_from_keys": [1, 0, 0], "qk_norm": "whole"}, r"values_from_keys\[0\] is set, expected no"),
         ({"d_heads": [8, 1 << 26, 8]}, r"n_head \* d_head is 402653184 in layer 1"),
         ({"d_heads": [8, 6, 8]}, r"rotations\[1\] is 0, which has 4 frequencies, expected at most d_head"),
         ({"n_heads": [6, 4, 6], "alibi": [1.0] * 6}, "n_head is 4 in layer 1, expected 6 as in"),
         ({"n_heads": [6, 4, 6], "relative_buckets": [0, 3]}, "layer 0: relative_buckets is for all layers"),
         ({"d_ffs": [70, -1, 70]}, "d_ff is -1 in layer 1, expected 0 to"),
         ({"kv_layers": [1, 1, 2]}, r"kv_layers\[0\] is 1, expected 0 to 0"),
         ({"kv_layers": [0, -1, 2]}, r"kv_layers\[1\] is -1, expected 0 to 1"),
         ({"kv_layers": [0, 0, 1]}, r"kv_layers\[2\] is 1, expected a layer with keys and values of its own"),
         ({"kv_layers": [0, 1, 1], "windows": [0, 9, 0]}, r"kv_layers\[2\] .* window of layer 2"),
         ({"kv_layers": [0, 1, 1], "n_kv_heads": [2, 2, 1]}, r"kv_layers\[2\] is 1, expected .* KV heads"),
         ({"d_per_layer": -1}, "d_per_layer is -1"), ({"d_per_layer": 4}, "expected RMSNorms with weights"),
         ({"windows": [1, 2]}, "windows has 2 entries, expected 3"),
         ({"windows": [1, -2, 0]}, "sliding_window is -2"),
         ({"rotations": [0, 1, 0]}, r"rotations\[1\] is 1, expected -1 to 0"),
         ({"more_inv_freq": [[1.0] * 5]}, "inv_freq has 5 entries"),
         ({"rotary_factors": [0.0]}, "rotary_factor is 0"),
         ({"rotary_factors": [1.0, 1.0]}, "rotary_factors has 2 entries, expected 1"),
         ({"score_scales": [1.0, 0.0, 1.0]}, r"score_scales\[1\] is 0")],
    )  # fmt: skip
    def test_switches(self, switches, message):
        self.fails(message, config=self.config | switches)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["f16", "bf16", "strided"])
def test_halves_and_strided_tensors_are_read_exactly(format, dtype):
    config = VARIANTS["gpt-tanh"]
    tensors, stored = random_tensors(config), "f32" if format == "strided" else format
    if format == "f16":
        held = {n: t.astype(np.float16) for n, t in tensors.items()}
        held["token_embedding"][0, :3] = [6e-8, -6e-8, 6e-5]  # subnormal halves
        tensors = {n: t.astype(np.float32) for n, t in held.items()}
    elif format == "bf16":
        held = {n: (t.view(np.uint32) >> 16).astype(np.uint16) for n, t in tensors.items()}
        tensors = {n: (t.astype(np.uint32) << 16).view(np.float32) for n, t in held.items()}
    else:
        held = {n: np.asfortranarray(t) if t.ndim == 2 else np.repeat(t, 2)[::2] for n, t in tensors.items()}
    model = Model(config, [(n, t, stored) for n, t in held.items()], dtype=dtype)
    expected = step_by_step(build(config, tensors, dtype=dtype), range(20))
    assert np.array_equal(step_by_step(model, range(20)), expected)
