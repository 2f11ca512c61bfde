"""Ctrl-C ends whatever the core computes: also what one call computes, and for seconds.

Each case runs in a child process, which a signal comes to while it is in the core. Uninterrupted each takes
seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toy_pair import notice_interrupts

TESTS = Path(__file__).parent

CHILD = """
import json, os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from canonical import LLAMA
from descriptions import by_method
from specdec import _core

def sizes(**changes):
    return LLAMA | {"n_vocab": 64, "n_layer": 1, "n_head": 1, "n_kv_head": 1} | changes

def constant(config, value=0.01):
    # One number behind every tensor: no memory, but what the packed weights take.
    for name, shape in _core.tensor_shapes(config).items():
        yield name, np.broadcast_to(np.float32(value), shape), "f32"

def model(config, dtype="f32"):
    return _core.Model(config, constant(config), dtype=dtype)

def session(target, draft, gamma):
    how = {"temperature": 0.0}
    s = _core.Session(target, draft, [[1, 2, 3]], gamma=gamma, max_new_tokens=2000, sampling=how,
                      draft_sampling=how, seeds=[(1, 0)], n_threads=1)
    s.prefill()
    return s

def slow_draft():
    return model(sizes(n_layer=8, d_model=512, d_ff=1024, n_ctx=4096))

def pack():
    config = sizes(d_ff=12_000_000, d_model=32)
    return lambda: model(config, "int4")

def one_round():
    # A chain of 1024 guesses, a forward for each.
    s = session(model(sizes(d_model=8, d_ff=8, n_ctx=4096)), slow_draft(), 1024)
    return s.round

def one_nested_round():
    draft = slow_draft()
    inner = by_method("ensemble", False, [1, 1], (by_method("random"), by_method("lookahead", 1, 2, 0)))
    s = session(model(sizes(d_model=8, d_ff=8, n_ctx=4096)), by_method("nested", draft, inner, 2), 1024)
    return s.round

def one_beam_round():
    target, draft = model(sizes(d_model=8, d_ff=8, n_ctx=4096)), slow_draft()
    search = _core.BeamSearch(target, draft, [1, 2, 3], width=1, draft_width=1, gamma=1000,
                              max_new_tokens=2000, stop_ids=[], n_threads=1)
    search.prefill()
    return search.round

def automaton():
    ids = np.random.default_rng(0).integers(0, 1000, 6_000_000).astype(np.int32)
    return lambda: _core.Automaton(ids)

def suffix_tree():
    tree = _core.SuffixTree(2**28, 64)
    ids = np.random.default_rng(0).integers(0, 1000, 1_000_000).astype(np.int32)
    return lambda: [tree.add(ids, [len(ids)], [0]) for _ in range(9)]

def score():
    target = slow_draft()
    return lambda: _core.score(target, [1] * 4000)

def encode():
    encoder = sizes(n_layer=64, d_model=256, d_ff=512, n_ctx=8000)
    target = model(sizes(d_model=256) | {"encoder": encoder})
    return lambda: target.encode([1] * 8000)

run = globals()[sys.argv[2]]()
sent = []

def interrupt():
    time.sleep(0.3)
    sent.append(time.process_time())
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
begun = time.process_time()
try:
    run()
    print(json.dumps(["ended", time.process_time() - begun]))
except KeyboardInterrupt:
    print(json.dumps(["interrupted", time.process_time() - sent[0]]))
    if "round" in sys.argv[2]:  # what it left behind is not gone on with
        try:
            run()
        except RuntimeError as error:
            assert "a round has failed" in str(error)
        else:
            raise AssertionError("another round")
"""


@pytest.mark.parametrize(
    "case",
    [
        "pack",
        "one_round",
        "one_nested_round",
        "one_beam_round",
        "automaton",
        pytest.param("suffix_tree", marks=pytest.mark.slow),
        "score",
        "encode",
    ],
)
def test_ctrl_c_ends_one_call_of_the_core(case: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(TESTS), case],
        capture_output=True, text=True, timeout=60, preexec_fn=notice_interrupts,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    how, seconds = json.loads(run.stdout)
    assert how == "interrupted", f"the call was through after {seconds:.1f} s"
    assert seconds < 0.5  # of the processor, so that a busy machine changes little; some 0.05 by design
