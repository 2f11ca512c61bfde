"""No kernel accesses memory past an array: each array of the core ends at an inaccessible page.

The test runs in its own process, which an invalid access terminates.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from allocations import needs_hooks
from processes import printed

pytestmark = [
    needs_hooks,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import specdec
from worlds.canonical import DTYPES, FORMATS, VARIANTS, build, perturbed, random_tensors, run_session
from descriptions import by_method
from sessions import read_prompts
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
        for logprobs_of in ("model", "sampling"):
            logprobs = {"logprobs_of": logprobs_of, "n_top": 5}
            run_session(model, draft, prompts, temperature=1.0, max_new_tokens=9, logprobs=logprobs)
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
        read_prompts(found)
        while found.round():
            pass
print("done")
"""


@pytest.mark.parametrize("which", ["drafts", pytest.param("variants", marks=pytest.mark.slow)])
def test_every_array_ends_at_a_forbidden_page(tmp_path: Path, which: str) -> None:
    """By default each draft, and each model in one format; then variants of drafts, and models in all."""
    assert printed(SCRIPT, str(tmp_path), which, timeout=600.0) == "done\n"
