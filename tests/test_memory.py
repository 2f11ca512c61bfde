"""Every allocation of the core fails once: each failure raises MemoryError and leaks nothing."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from allocations import bytes_held, fail_each_allocation, needs_hooks
from compiled import Decoder, LookAheadEmbeddings, Ngram
from compiled import product as product_of
from compiled import score as score_of
from descriptions import by_method
from sessions import Session, all_rounds
from worlds.canonical import LLAMA, build, fixed_acceptance, perturbed, random_tensors, run_session
from worlds.learned import recurrent_network

pytestmark = [pytest.mark.usefixtures("quick_gc"), needs_hooks]

TENSORS = random_tensors(LLAMA)


def load(dtype="f32", cache_dtype="f32"):
    return build(LLAMA, TENSORS, dtype=dtype, cache_dtype=cache_dtype)


def small(dtype="f32"):
    return build(LLAMA, perturbed(TENSORS), dtype=dtype)


def generate(draft, target=None, **how):
    how = {"temperature": 1.0, "max_new_tokens": 10} | how
    return run_session(target or load(), draft, [[1, 2, 3], [4, 5]], **how)


def decode(model, **how):
    decoder = Decoder(model, capacity=70, max_nodes=4, **how)
    decoder.prefill(range(66))
    return decoder.forward([1, 2], [-1, 0])


def generate_refilled():
    """Three prompts in two slots; the third starts like the first."""
    session = Session(
        load(), small(), [[1, 2, 3], [4, 5]], gamma=4, max_new_tokens=10, n_text=20, node_budget=7,
        temperature=0.0,
    )  # fmt: skip
    session.prefill()
    session.finish(1)
    session.replace(1, [1, 2, 3, 4, 5], (1, 2))
    return all_rounds(session)


def generate_with_a_cached_text():
    """A text that continues one of another session."""
    target, how = load(), {"gamma": 0, "max_new_tokens": 4, "temperature": 0.0}
    first = Session(target, None, [[1, 2, 3]], **how)
    first.prefill()
    second = Session(target, None, [[1, 2, 3, 4, 5]], **how)
    second.begin_with(0, first.cached_text(0))
    return all_rounds(second)


def generate_from_counts():
    table = Ngram(np.zeros(LLAMA["n_vocab"], np.int32), ())
    for draft in (by_method("ngram", table), by_method("online_ngram", table), by_method("random")):
        generate(draft)


def generate_from_counts_learned():
    """Learned drafts with packed weights, or with extra query tokens in the target's forward passes."""
    generate(by_method("model", recurrent_network(LLAMA["n_vocab"], (4, 6, 2))))
    generate(by_method("model", LookAheadEmbeddings(np.ones((2, LLAMA["d_model"]), np.float32))))


def generate_with_trees():
    """Draft trees with a model by each method, and with a nested draft."""
    target, draft = load(), small()
    tree = by_method("static_tree", draft, [0, 0, 1], "without replacement")
    for described in (tree, by_method("dynamic_tree", draft, 2, 3, 1.0), by_method("nested", draft, tree, 3)):
        generate(described, target)


LOADS = {
    "f32": load, "bf16": lambda: load("bf16", "bf16"), "int8": lambda: load("int8", "bf16"),
}  # fmt: skip
RUNS = {
    "generate": lambda: generate(small()),
    "in other formats": lambda: generate(small("int4"), load("bf16", "bf16")),
    "fixed acceptance": lambda: generate(
        fixed_acceptance(small(), 0.5, [[1, 2, 3, 4], []]), temperature=0.0
    ),
    "from own layers": lambda: generate(by_method("skip_layers", bytes([0, 3, 2]))),
    "trees": generate_with_trees, "refilled": generate_refilled, "cached": generate_with_a_cached_text,
    "counts": generate_from_counts, "learned": generate_from_counts_learned, "decode": lambda: decode(load()),
    "decode int8": lambda: decode(load("int8", "bf16"), n_threads=2),
    "matrix": lambda: load("int8", "bf16").matrix("layers.1.mlp_up.weight"),
    "product": lambda: product_of(TENSORS["head"][:9], TENSORS["head"], "int4"),
    "score": lambda: score_of(load(), range(70)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*LOADS, *RUNS])
def test_the_nth_allocation_fails_for_every_n(name):
    work = (LOADS | RUNS)[name]
    expected = work() if name in RUNS else None

    def checked():
        result = work()
        if isinstance(expected, np.ndarray):
            assert np.array_equal(result, expected)

    assert fail_each_allocation(checked) >= 1


# ------------------------------------------------------------------------------------------ sizes

WIDE = LLAMA | {"n_vocab": 20_000, "n_layer": 1, "d_model": 8, "d_ff": 8, "n_head": 1, "n_kv_head": 1}
GAMMA, N_SEQUENCES = 16, 4
ROWS = N_SEQUENCES * (GAMMA + 1) * WIDE["n_vocab"] * 8
"""Bytes of a distribution for every draft token."""

COPY, LOOK = by_method("context_copy", None, 1, 1), by_method("lookahead", 2, 3, 2)


@pytest.fixture(scope="module")
def wide():
    tensors = random_tensors(WIDE)
    return build(WIDE, tensors), build(WIDE, perturbed(tensors))


def session_bytes(target, draft, temperature, rule="rejection"):
    """Return the bytes of a session."""
    gc.collect()
    before = bytes_held()
    how = {"max_new_tokens": 20, "temperature": temperature, "rule": rule}
    session = Session(target, draft, [[1, 2, 3]] * N_SEQUENCES, gamma=GAMMA, **how)
    session.prefill()
    while session.round():
        pass
    taken = bytes_held() - before
    session.close()
    assert bytes_held() == before
    return taken


def chosen(draft):
    """Drafts that choose their tokens without sampling."""
    grown = by_method("dynamic_tree", draft, 2, 3, 1.0)
    top = by_method("static_tree", draft, [0, 0, 1], "top-k")
    both = by_method("ensemble", False, [4, 4], (COPY, LOOK))
    return [COPY, LOOK, by_method("input_copy", None, 0, 2, 2), both, grown, top]


def drawn(draft):
    """Drafts that sample their tokens if the temperature is above 0."""
    shape = by_method("static_tree", draft, [0, 0, 1], "sample")
    one_draws = by_method("ensemble", False, [4, 4], (COPY, by_method("model", draft)))
    return [by_method("model", draft), shape, by_method("nested", draft, COPY, 2), one_draws]


@pytest.mark.slow
def test_chosen_draft_tokens_need_no_memory_for_distributions(wide):
    target, draft = wide
    for description in chosen(draft):
        for temperature in (0.0, 1.0):
            assert session_bytes(target, description, temperature) < ROWS, description
    for description in drawn(draft):
        assert session_bytes(target, description, 0.0) < ROWS, description
        assert session_bytes(target, description, 1.0) > ROWS, description
    top = by_method("static_tree", draft, [0, 0, 1], "top-k")
    assert session_bytes(target, top, 1.0, "coupled") > ROWS, "it draws under the coupled rule"
    assert session_bytes(target, by_method("random"), 0.0) > ROWS
