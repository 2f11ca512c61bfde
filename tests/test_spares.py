"""Freed blocks that the core keeps for reuse: zeroed, bounded, and released when memory is short."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from allocations import needs_hooks, nothing_leaks
from processes import printed
from specdec import _core
from worlds.canonical import LLAMA, build, perturbed, random_tensors, run_session

TENSORS = random_tensors(LLAMA)
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
MOST = 256 << 20


def decoder(model: _core.Model, capacity: int) -> _core.Decoder:
    """A decoder whose cache takes about 1 KB per token."""
    return _core.Decoder(model, capacity=capacity, max_nodes=1, n_threads=1)


def keeps_blocks() -> bool:
    """Whether freed blocks are kept: on Linux, without an address sanitizer."""
    model = build(LLAMA, TENSORS)
    decoder(model, 200)
    return _core._spares_bytes() > 0


pytestmark = [
    needs_hooks,
    pytest.mark.skipif(
        not hasattr(_core, "_spares_bytes") or not keeps_blocks(),
        reason="this build keeps no freed blocks: it is not of Linux, or has an address sanitizer",
    ),
]


@pytest.fixture
def model():
    """A model, made after other models' freed blocks are released."""
    gc.collect()
    build(LLAMA, TENSORS)
    assert _core._spares_bytes() == 0
    return build(LLAMA, TENSORS)


def texts(model: _core.Model, draft: _core.Model | None = None):
    tokens, logits, _ = run_session(model, draft, PROMPTS, max_new_tokens=60, temperature=1.0)
    return tokens, logits


@pytest.mark.parametrize("size", [65_535, 65_536, 100_000, 1 << 20, (4 << 20) - 64, 4 << 20, 5 << 20])
def test_blocks_that_are_used_again_are_zeros(model, size):
    for less in (0, 0, 1, 64, 1000, 0):
        waiting = _core._spares_bytes()
        assert _core._alloc_spoiled(size - less)
        assert _core._spares_bytes() >= waiting


@pytest.mark.parametrize("drafted", [False, True])
def test_a_second_text_makes_no_new_blocks(model, drafted):
    draft = build(LLAMA, perturbed(TENSORS)) if drafted else None
    tokens, logits = texts(model, draft)
    waiting = _core._spares_bytes()
    assert waiting > 0
    for _ in range(3):
        again, again_logits = texts(model, draft)
        assert again == tokens
        for one, other in zip(logits, again_logits, strict=True):
            np.testing.assert_array_equal(one, other)
        assert _core._spares_bytes() == waiting


def test_spare_memory_is_bounded_and_yields_to_other_sizes(model):
    n_before = 0
    for capacity in (3600, 900, 2500):
        many = [decoder(model, capacity) for _ in range(200)]
        del many
        gc.collect()
        n = _core._spares_bytes()
        assert n_before < n <= MOST or MOST - (4 << 20) < n <= MOST
        n_before = n
    alone = decoder(model, 2500)
    assert _core._spares_bytes() < n_before  # it was taken from the kept blocks
    del alone


def test_a_model_that_is_freed_takes_what_waits_along(model):
    texts(model)
    assert _core._spares_bytes() > 0
    other = build(LLAMA, TENSORS)
    del other
    gc.collect()
    assert _core._spares_bytes() == 0


def test_threads_take_and_leave_blocks_at_once(model):
    expected = texts(model)[0]
    with nothing_leaks(), ThreadPoolExecutor(4) as threads:
        found = [work.result()[0] for work in [threads.submit(texts, model) for _ in range(32)]]
    assert found == [expected] * 32


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_blocks_of_its_own(model):
    expected = texts(model)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if texts(model)[0] == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert texts(model)[0] == expected


SHORT_OF_MEMORY = """
import gc, resource
from test_spares import LLAMA, TENSORS, build, decoder
from specdec import _core
model = build(LLAMA, TENSORS)
many = [decoder(model, 3600) for _ in range(60)]
del many
gc.collect()
waiting = _core._spares_bytes()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), -1))
large = decoder(model, 100_000)
print(waiting, _core._spares_bytes())
"""


def test_what_waits_is_returned_where_memory_is_short():
    waiting, left = map(int, printed(SHORT_OF_MEMORY).split())
    assert waiting > 128 << 20
    assert left == 0
