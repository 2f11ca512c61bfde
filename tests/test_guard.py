"""No kernel touches memory behind an array: each array of the core ends at a forbidden page.

The pages are forbidden in a process of their own, which a stray access ends.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from specdec import _core

pytestmark = pytest.mark.skipif(
    not hasattr(_core, "_arena_guard") or sys.platform != "linux",
    reason="needs Linux and a build with -C cmake.define.SPECDEC_TESTING=ON (make test, .ci/run)",
)

SCRIPT = """
import numpy as np
from canonical import DTYPES, FORMATS, VARIANTS, build, perturbed, random_tensors, run_session
from specdec import _core, drafts

_core._arena_guard(True)
rng = np.random.default_rng(0)
for dtype in DTYPES:
    for n_in in (1, 31, 33, 100, 257):
        for n_rows in (1, 5, 9, 13, 64):
            x = rng.standard_normal((n_rows, n_in), dtype=np.float32)
            w = rng.standard_normal((70, n_in), dtype=np.float32)
            assert np.isfinite(_core.product(x, w, dtype, n_threads=2)).all()
for config in VARIANTS.values():
    tensors = random_tensors(config)
    for dtype, cache_dtype in FORMATS:
        model = build(config, tensors, dtype=dtype, cache_dtype=cache_dtype)
        draft = build(config, perturbed(tensors), dtype=dtype, cache_dtype=cache_dtype)
        for temperature in (0.0, 1.0):
            tree = ("model", draft, ("shape", "without replacement", [0, 0, 0, 1, 2, 2]))
            grown, deep = ("model", draft, ("grown", 3, 3, 1.0)), ("speculating", draft, tree, 6)
            layers = [("layers", bytes(skipped)) for skipped in ([0, 3, 3], [2, 0, 1])]
            for drafter in (draft, tree, grown, deep, *layers):
                prompts = [[1, 2, 3], [4] * 37]
                run_session(model, drafter, prompts, temperature=temperature, max_new_tokens=30)
        decoder = _core.Decoder(model, capacity=100, max_nodes=9, n_threads=2)
        decoder.prefill(range(5, 75))
        decoder.forward([1, 2, 3, 4, 5, 6, 7, 8, 9], [-1, 0, 0, 1, 2, 2, 5, 6, 3])
        decoder.keep([0, 2, 5])
        decoder.forward([1], [-1])
# Every way to draft, with a gamma that chooses itself.
counts = drafts.OnlineNgram(3)._table(model.config["n_vocab"]).core
copy = ("context_copy", None, 1, 3)
for drafter in (
    draft, tree, deep, *layers, copy, ("model", draft, ("grown", 5, 6, 1.0)), ("online_ngram", counts),
    ("input_copy", None, 0, 2, 3), ("lookahead", 2, 3, 2), ("random",), ("best", True, [4, 4], (copy, draft)),
):
    for temperature in (0.0, 1.0):
        how = {"temperature": temperature}
        session = _core.Session(
            model, drafter, [[1, 2, 3, 1, 2, 3, 1], [4] * 37], gamma=8, max_new_tokens=60, sampling=how,
            draft_sampling=how, seeds=[(1, 0), (1, 1)], n_threads=2,
            adaptive_gamma=_core.new_adaptive_gamma(),
        )
        session.prefill()
        while session.round():
            pass
        session.close()
print("done")
"""


def test_every_array_ends_at_a_forbidden_page() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert run.returncode == 0, f"ended by {run.returncode}: {run.stderr}"
    assert run.stdout == "done\n"
