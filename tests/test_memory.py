"""Every allocation of the core fails once, and each time there is a MemoryError and nothing leaks.

No kernel touches memory after an array: each array ends at a forbidden page, in a process of its own.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from allocations import fail_each_allocation, needs_hooks
from descriptions import by_method
from sessions import Session
from specdec import _core
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
    decoder = _core.Decoder(load_int8(), capacity=70, max_nodes=4, n_threads=2)
    decoder.prefill(range(66))
    return decoder.forward([1, 2], [-1, 0])


def matrix():
    return load_int8().matrix("layers.1.mlp_up.weight")


def product():
    return _core.product(TENSORS["head"][:9], TENSORS["head"], "int4")


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
    table = _core.Ngram(np.zeros(LLAMA["n_vocab"], np.int32), ())
    return [
        continued(load(), draft)
        for draft in (by_method("ngram", table), by_method("online_ngram", table), by_method("random"))
    ]


def generate_from_what_was_learnt():
    """Of weights that the core packs, or that ride on the target's forward passes."""
    recurrent = recurrent_network(LLAMA["n_vocab"], (4, 6, 2))
    embeddings = _core.LookAheadEmbeddings(np.ones((2, LLAMA["d_model"]), np.float32))
    return [
        continued(load(), draft) for draft in (by_method("model", one) for one in (recurrent, embeddings))
    ]


def decode():
    decoder = _core.Decoder(load(), capacity=70, max_nodes=4)
    decoder.prefill(range(66))
    return decoder.forward([1, 2], [-1, 0])


def score():
    return _core.score(load(), range(70))


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
    before = _core._alloc_bytes()
    how = {"temperature": temperature}
    session = Session(
        target, draft, [[1, 2, 3]] * N_SEQUENCES, gamma=GAMMA, max_new_tokens=20, sampling=how,
        draft_sampling=how, seeds=[(1, i) for i in range(N_SEQUENCES)], n_threads=1, rule=rule,
    )  # fmt: skip
    session.prefill()
    while session.round():
        pass
    taken = _core._alloc_bytes() - before
    session.close()
    assert _core._alloc_bytes() == before
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


# ------------------------------------------------------------------------------------------ forbidden pages

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import specdec
from worlds.canonical import DTYPES, FORMATS, VARIANTS, build, perturbed, random_tensors, run_session
from descriptions import by_method
import drafters
from drafters import DRAFTS, World
from specdec import _core
from worlds.folders import llama_config, write_hf

_core._arena_guard(True)
rng = np.random.default_rng(0)
by_default = sys.argv[2] == "drafts"
for dtype in DTYPES:
    for n_in in (1, 31, 33, 100, 257):
        for n_rows in (1, 5, 9, 13, 64):
            x = rng.standard_normal((n_rows, n_in), dtype=np.float32)
            w = rng.standard_normal((70, n_in), dtype=np.float32)
            for engine in ("rows",) if dtype == "f32" else ("rows", "tiles"):
                assert np.isfinite(_core.product(x, w, dtype, engine=engine, n_threads=2)).all()
for i, config in enumerate(VARIANTS.values()):
    tensors = random_tensors(config)
    for dtype, cache_dtype in [FORMATS[i % len(FORMATS)]] if by_default else FORMATS:
        model = build(config, tensors, dtype=dtype, cache_dtype=cache_dtype)
        draft = build(config, perturbed(tensors), dtype=dtype, cache_dtype=cache_dtype)
        for temperature in (1.0,) if by_default else (0.0, 1.0):
            tree = by_method("static_tree", draft, [0, 0, 0, 1, 2, 2], "without replacement")
            grown, deep = by_method("dynamic_tree", draft, 3, 3, 1.0), by_method("nested", draft, tree, 6)
            layers = [by_method("skip_layers", bytes(skipped)) for skipped in ([0, 3, 3], [2, 0, 1])]
            for drafter in (draft, tree, grown, deep, *layers):
                prompts = [[1, 2, 3], [4] * 37]
                run_session(model, drafter, prompts, temperature=temperature, max_new_tokens=30)
        decoder = _core.Decoder(model, capacity=100, max_nodes=9, n_threads=2)
        decoder.prefill(range(5, 75))
        decoder.forward([1, 2, 3, 4, 5, 6, 7, 8, 9], [-1, 0, 0, 1, 2, 2, 5, 6, 3])
        decoder.keep([0, 2, 5])
        decoder.forward([1], [-1])
        ids, lengths = np.arange(100, dtype=np.int32), np.array([50, 20, 30], np.int32)
        ids[50:65] = ids[:15]  # a tree, and a text of its own
        _core.score_texts(model, (ids, lengths), lengths - 15, n_top=7, n_threads=2)
        for law in ("model", "sampling"):
            laws = {"law": law, "n_top": 5}
            run_session(model, draft, prompts, temperature=1.0, max_new_tokens=9, laws=laws)
# Every way to draft, with a gamma that chooses itself.
config = llama_config(num_hidden_layers=3, max_position_embeddings=128)
folder = Path(sys.argv[1])
target, draft = (
    specdec.load(
        write_hf(folder / str(seed), config, seed=seed), dtype, cache_dtype=cache_dtype, tokenizer=False
    )
    for seed in (0, 1)
)
world = World(target, draft, [1, 2, 3, 5, 8, 1, 2, 3, 5] * 50)
for make in [DRAFTS[name] for name in DRAFTS if (name in drafters.VARIANTS) != by_default]:
    for temperature in (0.0, 1.0):
        specdec.generate(
            target, make(world), [[1, 2, 3, 1, 2, 3, 1], [4] * 37], gamma="auto", max_new_tokens=60,
            temperature=temperature, seed=1, ignore_eos=True, n_threads=2,
        )
# Beam searches, plain and by speculation.
for config in VARIANTS.values() if by_default else ():
    model, friend = build(config, random_tensors(config)), build(config, perturbed(random_tensors(config)))
    for draft in (None, friend):
        found = _core.BeamSearch(model, draft, [1, 2, 3], width=3, draft_width=7, gamma=4, max_new_tokens=40)
        found.prefill()
        while found.round():
            pass
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("which", ["drafts", pytest.param("variants", marks=pytest.mark.slow)])
def test_every_array_ends_at_a_forbidden_page(tmp_path: Path, which: str) -> None:
    """By default each draft, and each model in one format; then variants of drafts, and models in all."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), which], capture_output=True, text=True)
    assert run.returncode == 0, f"ended by {run.returncode}: {run.stderr}"
    assert run.stdout == "done\n"
