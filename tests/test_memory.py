"""Every allocation of the core fails once, and each time there is a MemoryError and nothing leaks."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from allocations import bytes_held, fail_each_allocation, needs_hooks
from compiled import Decoder, LookAheadEmbeddings, Ngram
from compiled import product as product_of
from compiled import score as score_of
from descriptions import by_method
from sessions import Session
from worlds.canonical import LLAMA, build, fixed_acceptance, perturbed, random_tensors, run_session
from worlds.learned import recurrent_network

pytestmark = [pytest.mark.usefixtures("quick_gc"), needs_hooks]

TENSORS = random_tensors(LLAMA)


def load():
    return build(LLAMA, TENSORS)


def load_bf16():
    return build(LLAMA, TENSORS, dtype="bf16", cache_dtype="bf16")


def load_int8():
    return build(LLAMA, TENSORS, dtype="int8", cache_dtype="bf16")


def generate():
    return continued(load(), build(LLAMA, perturbed(TENSORS)))


def generate_in_other_formats():
    return continued(load_bf16(), build(LLAMA, perturbed(TENSORS), dtype="int4"))


def continued(target, draft):
    return run_session(target, draft, [[1, 2, 3], [4, 5]], temperature=1.0, max_new_tokens=10)


def decode_int8():
    decoder = Decoder(load_int8(), capacity=70, max_nodes=4, n_threads=2)
    decoder.prefill(range(66))
    return decoder.forward([1, 2], [-1, 0])


def matrix():
    return load_int8().matrix("layers.1.mlp_up.weight")


def product():
    return product_of(TENSORS["head"][:9], TENSORS["head"], "int4")


def generate_with_fixed_acceptance():
    target = load()
    draft = build(LLAMA, perturbed(TENSORS))
    draft = fixed_acceptance(draft, 0.5, [[1, 2, 3, 4], []])
    return run_session(target, draft, [[1, 2, 3], [4, 5]], max_new_tokens=10)


def generate_refilled():
    """Three prompts in two places; the third begins as the first."""
    target, draft = load(), build(LLAMA, perturbed(TENSORS))
    session = Session(
        target, draft, [[1, 2, 3], [4, 5]], gamma=4, max_new_tokens=10, sampling={"temperature": 0.0},
        draft_sampling={"temperature": 0.0}, seeds=[(1, 0), (1, 1)], n_threads=1, n_text=20, node_budget=7,
    )  # fmt: skip
    session.prefill()
    session.finish(1)
    session.replace(1, [1, 2, 3, 4, 5], (1, 2))
    session.prefill()
    return [record["tokens"] for records in iter(session.round, []) for record in records]


def generate_with_a_cached_text():
    """A text that goes on with one of another session."""
    target = load()
    options = {
        "gamma": 0, "max_new_tokens": 4, "sampling": {"temperature": 0.0}, "seeds": [(1, 0)], "n_threads": 1,
    }  # fmt: skip
    first = Session(target, None, [[1, 2, 3]], **options)
    first.prefill()
    second = Session(target, None, [[1, 2, 3, 4, 5]], **options)
    second.begin_with(0, first.cached_text(0))
    second.prefill()
    return [record["tokens"] for records in iter(second.round, []) for record in records]


def generate_from_own_layers():
    return continued(load(), by_method("skip_layers", bytes([0, 3, 2])))


def generate_from_counts():
    table = Ngram(np.zeros(LLAMA["n_vocab"], np.int32), ())
    return [
        continued(load(), draft)
        for draft in (by_method("ngram", table), by_method("online_ngram", table), by_method("random"))
    ]


def generate_from_what_was_learnt():
    """Of weights that the core packs, or that ride on the target's forward passes."""
    recurrent = recurrent_network(LLAMA["n_vocab"], (4, 6, 2))
    embeddings = LookAheadEmbeddings(np.ones((2, LLAMA["d_model"]), np.float32))
    return [
        continued(load(), draft) for draft in (by_method("model", one) for one in (recurrent, embeddings))
    ]


def decode():
    decoder = Decoder(load(), capacity=70, max_nodes=4)
    decoder.prefill(range(66))
    return decoder.forward([1, 2], [-1, 0])


def score():
    return score_of(load(), range(70))


def generate_with_trees():
    """Each way a model drafts a tree, and one that drafts for a model."""
    target, draft = load(), build(LLAMA, perturbed(TENSORS))
    tree = by_method("static_tree", draft, [0, 0, 1], "without replacement")
    for described in (tree, by_method("dynamic_tree", draft, 2, 3, 1.0), by_method("nested", draft, tree, 3)):
        run_session(target, described, [[1, 2, 3], [4, 5]], temperature=1.0, max_new_tokens=10)
    return True


LOADS = [load, load_bf16, load_int8]
RUNS = [
    generate, generate_in_other_formats, generate_with_fixed_acceptance, generate_with_trees,
    generate_refilled, generate_with_a_cached_text, generate_from_own_layers, generate_from_counts,
    generate_from_what_was_learnt, decode,
    decode_int8, matrix, product, score,
]  # fmt: skip


@pytest.mark.parametrize("work", [*LOADS, *RUNS])
def test_the_nth_allocation_fails_for_every_n(work):
    expected = work() if work not in LOADS else None

    def checked():
        result = work()
        if isinstance(expected, np.ndarray):
            assert np.array_equal(result, expected)

    assert fail_each_allocation(checked) >= 1


# ------------------------------------------------------------------------------------------ sizes

WIDE = LLAMA | {"n_vocab": 20_000, "n_layer": 1, "d_model": 8, "d_ff": 8, "n_head": 1, "n_kv_head": 1}
GAMMA, N_SEQUENCES = 16, 4
ROWS = N_SEQUENCES * (GAMMA + 1) * WIDE["n_vocab"] * 8
"""Bytes of a distribution for every guess."""

COPY, LOOK = by_method("context_copy", None, 1, 1), by_method("lookahead", 2, 3, 2)


@pytest.fixture(scope="module")
def wide():
    tensors = random_tensors(WIDE)
    return build(WIDE, tensors), build(WIDE, perturbed(tensors))


def session_bytes(target, draft, temperature, rule="rejection"):
    """Bytes that a session takes."""
    gc.collect()
    before = bytes_held()
    how = {"temperature": temperature}
    session = Session(
        target, draft, [[1, 2, 3]] * N_SEQUENCES, gamma=GAMMA, max_new_tokens=20, sampling=how,
        draft_sampling=how, seeds=[(1, i) for i in range(N_SEQUENCES)], n_threads=1, rule=rule,
    )  # fmt: skip
    session.prefill()
    while session.round():
        pass
    taken = bytes_held() - before
    session.close()
    assert bytes_held() == before
    return taken


def chosen(draft):
    """Drafts that only ever choose their guesses."""
    grown, top = (
        by_method("dynamic_tree", draft, 2, 3, 1.0),
        by_method("static_tree", draft, [0, 0, 1], "top-k"),
    )
    both = by_method("ensemble", False, [4, 4], (COPY, LOOK))
    return [COPY, LOOK, by_method("input_copy", None, 0, 2, 2), both, grown, top]


def drawn(draft):
    """Drafts that draw their guesses where the temperature is above 0."""
    shape = by_method("static_tree", draft, [0, 0, 1], "sample")
    one_draws = by_method("ensemble", False, [4, 4], (COPY, by_method("model", draft)))
    return [by_method("model", draft), shape, by_method("nested", draft, COPY, 2), one_draws]


@pytest.mark.slow
def test_guesses_that_are_chosen_take_no_room_for_distributions(wide):
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
