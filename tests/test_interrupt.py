"""Ctrl-C ends any computation of the core, in child processes that get the signal inside long calls."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from compiled import prompts_in_slices_of
from processes import printed
from sessions import Session, read_prompts
from specdec import _core
from worlds.canonical import LLAMA

CHILD = """
import json, os, signal, sys, threading, time
import numpy as np
from worlds.canonical import LLAMA
from compiled import score as score_of
from descriptions import by_method
from sessions import Session, read_prompts
from specdec import _core

def sizes(**changes):
    return LLAMA | {"n_vocab": 64, "n_layer": 1, "n_head": 1, "n_kv_head": 1} | changes

def constant(config, value=0.01):
    # One number for every tensor: no memory except the packed weights.
    for name, shape in _core.tensor_shapes(config).items():
        yield name, np.broadcast_to(np.float32(value), shape), "f32"

def model(config, dtype="f32"):
    return _core.Model(config, constant(config), dtype=dtype)

def session(target, draft, gamma):
    s = Session(target, draft, [[1, 2, 3]], gamma=gamma, max_new_tokens=2000, temperature=0.0)
    s.prefill()
    return s.core

def slow_draft():
    return model(sizes(n_layer=8, d_model=512, d_ff=1024, n_ctx=4096))

def pack():
    config = sizes(d_ff=12_000_000, d_model=32)
    return lambda: model(config, "int4")

def one_round():
    # A chain of 1024 draft tokens, a forward pass for each.
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
    read_prompts(search)
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
    return lambda: score_of(target, [1] * 4000)

def encode():
    encoder = sizes(n_layer=64, d_model=256, d_ff=512, n_ctx=8000)
    target = model(sizes(d_model=256) | {"encoder": encoder})
    return lambda: target.encode([1] * 8000)

run = globals()[sys.argv[1]]()
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
    if "round" in sys.argv[1]:  # what it left is not continued
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
        "pack", "one_round", "one_nested_round", "one_beam_round", "automaton",
        pytest.param("suffix_tree", marks=pytest.mark.slow), "score", "encode",
    ],
)  # fmt: skip
def test_ctrl_c_ends_one_call_of_the_core(case: str) -> None:
    how, seconds = json.loads(printed(CHILD, case))
    assert how == "interrupted", f"the call was through after {seconds:.1f} s"
    assert seconds < 0.5  # of the processor, so that a busy machine changes little; about 0.05 by design


# Without vector instructions a smaller model takes as long.
WIDTH = 256 if _core.kernels() == "ref" else 1024
WIDE = LLAMA | {
    "n_vocab": 4000, "n_layer": 2, "n_head": 16, "n_kv_head": 16, "d_model": WIDTH, "d_ff": 4 * WIDTH
}  # fmt: skip


WIDE_DELTA = WIDE | {
    "mixers": ["delta", "delta"], "conv_width": 4, "n_mixer_key_head": 8, "n_mixer_value_head": 32,
    "d_mixer_key": 64, "d_mixer_value": 128,
}  # fmt: skip


def wide_model(config: dict[str, Any], prefill: str, dtype: str = "f32") -> _core.Model:
    """A model in which one slice of a prompt takes a large part of a second."""
    rng = np.random.default_rng(0)
    tensors = (
        (name, rng.standard_normal(shape, np.float32) * np.float32(0.02), "f32")
        for name, shape in _core.tensor_shapes(config).items()
    )
    return _core.Model(config, tensors, dtype=dtype, prefill=prefill)


@contextmanager
def alarms(handler: Callable[[], None]) -> Iterator[None]:
    """Call a handler by signals, some hundred times per second."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    ("prefill", "dtype"), [("blas", "f32"), ("rows", "f32"), ("tiles", "bf16"), ("rows", "int4")]
)
def test_signals_are_handled_within_one_slice_of_a_prompt(prefill: str, dtype: str, n_threads: int) -> None:
    """A slice is one forward: handlers run between pieces of its products, and change no bit."""
    model = wide_model(WIDE, prefill, dtype)
    n = 64 if dtype == "int4" else 256
    ids = list(range(n))
    expected = _core.Decoder(model, capacity=n, max_nodes=n, n_threads=n_threads).prefill(ids, logits=True)
    decoder = _core.Decoder(model, capacity=n, max_nodes=n, n_threads=n_threads)
    at = [time.thread_time()]
    with alarms(lambda: at.append(time.thread_time())):
        logits = decoder.prefill(ids, logits=True)
        at.append(time.thread_time())
    assert np.array_equal(logits, expected)
    # The time of the processor, so that a busy machine changes little. One piece takes "ref" too long.
    if n_threads == 1 and _core.kernels() != "ref":
        assert np.diff(at).max() < 0.1 + (at[-1] - at[0]) / 4


class StopError(Exception):
    """Error raised by a handler."""


def stop() -> None:
    raise StopError


@pytest.mark.slow
@pytest.mark.parametrize("prefill", ["blas", "rows"])
def test_a_forward_that_is_stopped_leaves_no_trace(prefill: str) -> None:
    """Stopped after any number of checks, a text continues with the bits of an uninterrupted run."""
    model, ids, tree = wide_model(WIDE, prefill), list(range(200)), [-1, *range(119)]
    whole = _core.Decoder(model, capacity=256, max_nodes=200)
    expected = whole.prefill(ids, last=True)
    expected_tree = whole.forward(ids[:50], tree[:50])
    stops = 0
    for n_looks in range(1, 4):
        left = [n_looks]

        def stop(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise StopError

        decoder = _core.Decoder(model, capacity=256, max_nodes=200)
        try:
            with alarms(stop):
                decoder.forward(ids[:120], tree)
        except StopError:
            stops += 1
        assert decoder.n_committed == 0
        assert np.array_equal(decoder.prefill(ids, last=True), expected)
        assert np.array_equal(decoder.forward(ids[:50], tree[:50]), expected_tree)
    assert stops > 0


COMPUTING_HANDLER = """
import numpy as np
from compiled import score as score_of
from test_interrupt import WIDE, alarms, wide_model
from worlds.canonical import LLAMA
from specdec import _core

model, small = wide_model(WIDE, "blas"), wide_model(LLAMA, "rows")
ids = list(range(90))
expected = score_of(small, ids, n_threads=2)
found, inside = [], []

def compute():
    if inside:  # a signal that comes while one is handled
        return
    inside.append(1)
    found.append(np.array_equal(score_of(small, ids, n_threads=2), expected))
    inside.clear()

with alarms(compute):
    _core.Decoder(model, capacity=256, max_nodes=256, n_threads=2).prefill(list(range(256)))
    n_within = len(found)
assert all(found)
print(n_within)
"""


@pytest.mark.slow
def test_a_handler_may_compute_with_threads_of_its_own() -> None:
    """The pool of threads is free while handlers run."""
    assert int(printed(COMPUTING_HANDLER)) > 0


@pytest.mark.slow
def test_a_search_that_is_stopped_goes_on_from_the_snapshot_before() -> None:
    ids = list(range(240))
    with prompts_in_slices_of(32):
        model = wide_model(WIDE_DELTA, "rows")
    session = Session(model, None, [[*ids[:190], 7, *ids[:9]]], gamma=0, temperature=0.0, max_new_tokens=2)
    session.core.keep_snapshots(4, 2**30)
    session.prefill()
    searches = []
    for stops in (False, True):
        search = _core.BeamSearch(model, None, ids, width=2, draft_width=2, gamma=1, max_new_tokens=2)
        assert search.begin_with(session.cached_text(0)) == 183
        assert search.prefill_slice()
        if stops:
            with pytest.raises(StopError), alarms(stop):
                search.prefill_slice()
        read_prompts(search)
        while search.round():
            pass
        searches.append((search.cached_size(model)[0], search.beams()))
    assert searches[0] == searches[1]
