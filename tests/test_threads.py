"""The thread pool: waiting, the number of threads, and forks.

Delays simulate a busy machine: a worker that sleeps before each loop has lost its core; one that sleeps while
it holds a piece has lost it during its work.
"""

from __future__ import annotations

import os
import threading
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from processes import fork_script, printed
from specdec import InputError, _core
from specdec.threads import MAX_THREADS, cpu_quota, default_threads
from worlds.canonical import VARIANTS, build, random_tensors

LONG_S = 5.0  # no run waits for a thread this long by accident


@pytest.fixture
def delay():
    """A function that delays workers; at the end none is delayed or asleep."""
    used = set()

    def set_delay(thread: int, seconds: float, *, holding: bool) -> None:
        used.add(thread)
        _core._pool_delay(thread, seconds, holding)

    yield set_delay
    for thread in used:
        _core._pool_delay(thread, 0.0, False)


def random_product(n_out: int = 2048) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((3, 64), np.float32), rng.standard_normal((n_out, 64), np.float32)


@needs_hooks
def test_a_session_is_made_while_another_thread_computes(delay):
    """Creation holds the GIL, so it must not wait for the pool. It comes first: later tests delay workers."""
    x, weights = random_product(1 << 15)  # so large that the worker arrives before it is done
    model = build(VARIANTS["llama"], random_tensors(VARIANTS["llama"]))
    _core.product(x, weights, "f32", n_threads=2)
    delay(1, 0.5, holding=True)
    waits: list[tuple[float, float]] = []  # a product that waited for the worker: its begin and end

    end = time.monotonic() + 30.0

    def compute() -> None:
        while not waits and (begun := time.monotonic()) < end:
            _core.product(x, weights, "f32", n_threads=2)
            if time.monotonic() - begun > 0.5:
                waits.append((begun, time.monotonic()))

    computing = threading.Thread(target=compute)
    computing.start()
    made = []
    while computing.is_alive():
        for n_threads in (1, 2, 3):
            _core.Decoder(model, capacity=8, n_threads=n_threads)
            made.append(time.monotonic())
        time.sleep(0.01)
    assert waits, "no product waited for the worker"
    begun, ended = waits[0]
    assert sum(begun < at < ended - 0.1 for at in made) > 3


@needs_hooks
@pytest.mark.parametrize(("late", "holding"), [([1], False), ([2, 3, 4, 5], True)])
def test_callers_wait_only_for_threads_that_hold_a_piece(delay, late, holding):
    """A worker of the team that has no piece, and workers beyond the team."""
    x, weights = random_product()
    alone = _core.product(x, weights, "f32", n_threads=1 + max(late) if holding else 1)
    for thread in late:
        delay(thread, LONG_S, holding=holding)
    begun = time.monotonic()
    assert np.array_equal(_core.product(x, weights, "f32", n_threads=2), alone)
    assert time.monotonic() - begun < LONG_S / 2


@needs_hooks
@pytest.mark.parametrize("holding", [False, True])
def test_late_threads_change_no_bit(delay, holding):
    """A worker that arrives late, or is stopped, takes nothing from a later loop."""
    model = build(VARIANTS["llama"], random_tensors(VARIANTS["llama"]))

    def rows(n_threads: int) -> np.ndarray:
        decoder = _core.Decoder(model, capacity=80, max_nodes=5, n_threads=n_threads)
        prompt = decoder.prefill(range(40), logits=True)
        tree = decoder.forward([1, 2, 3, 4, 5], [-1, 0, 0, 1, 2])
        return np.concatenate((prompt, tree))

    expected = rows(1)
    for n_threads in (2, 3, 5):
        for thread in range(1, n_threads):
            delay(thread, 0.0003 * thread, holding=holding)
        for _ in range(3):
            assert np.array_equal(rows(n_threads), expected)


@needs_hooks
@pytest.mark.parametrize("n_granted", [0, 1])
def test_fewer_threads_work_if_the_system_refuses_some(n_granted):
    out = printed(f"""
import os
import numpy as np
from specdec import _core
x = np.ones((2, 64), np.float32); w = np.ones((512, 64), np.float32)
n_before = len(os.listdir("/proc/self/task"))
_core._pool_fail_after({n_granted})
y = _core.product(x, w, "f32", n_threads=8)
print((y == 64).all(), len(os.listdir("/proc/self/task")) - n_before)
""")
    assert out.split() == ["True", str(n_granted)]


def test_too_little_memory_for_thread_stacks_means_fewer_threads():
    """The stack of the first or a later thread exceeds the address space limit."""
    out = printed(
        """
import re, resource
import numpy as np
from specdec import _core
x = np.ones((2, 64), np.float32); w = np.ones((512, 64), np.float32)
_core.product(x, w, "f32")
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20),) * 2)
print((_core.product(x, w, "f32", n_threads=64) == 64).all())
"""
    )
    assert out.strip() == "True"


def test_workers_take_no_signals():
    """A signal that the program blocks stays pending, and does not end the process by way of a worker."""
    out = printed(
        """
import os, signal
import numpy as np
from specdec import _core
_core.product(np.ones((2, 64), np.float32), np.ones((512, 64), np.float32), "f32", n_threads=3)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigpending() == {signal.SIGUSR1})
""",
        OPENBLAS_NUM_THREADS="1",
    )
    assert out.strip() == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_compute_with_several_threads_at_once():
    assert printed(fork_script("rows"), PYTHONWARNINGS="ignore::DeprecationWarning").split() == ["done"]


# ---------------------------------------------------------------- how many threads


def write_groups(root: Path, files: dict[str, str], membership: str) -> tuple[Path, Path]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    (root / "membership").write_text(membership + "\n")
    return root, root / "membership"


@pytest.mark.parametrize(
    ("files", "membership", "expected"),
    [
        ({"cpu.max": "150000 100000"}, "0::/", 1.5), ({"cpu.max": "max 100000"}, "0::/", float("inf")),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 4.0),  # of a group above
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, "0::/a/b", 1.0),  # the least
        ({"cpu.max": "200000 100000"}, "0::/on/the/host", 2.0),  # a path of the host, not visible here
        ({"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
         "5:memory:/x\n4:cpu,cpuacct:/x", 2.5),
        # The folder has its controllers in another order; a link has the name of one.
        ({"cpu/x/cpu.cfs_quota_us": "350000", "cpu/x/cpu.cfs_period_us": "100000"}, "4:cpuacct,cpu:/x", 3.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/", float("inf")),
        ({"cpu.max": "nonsense"}, "0::/", float("inf")), ({"cpu.max": "5 0"}, "0::/", float("inf")),
        ({}, "what is this", float("inf")),
    ],
)  # fmt: skip
def test_cpu_quota(tmp_path, files, membership, expected):
    assert cpu_quota(*write_groups(tmp_path, files, membership)) == expected


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.9, 1), (float("inf"), 5), (3.2, 3), (80.0, 5)])
def test_default_threads_keep_to_affinity_and_quota(monkeypatch, quota, expected):
    monkeypatch.delenv("SPECDEC_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
    periods = iter((60.0, 60.0, 120.0))
    monkeypatch.setattr("specdec.threads.time.monotonic", lambda: next(periods))
    monkeypatch.setattr(
        "specdec.threads._quota_in", lru_cache(maxsize=1)(specdec.threads._quota_in.__wrapped__)
    )
    for current, wanted in ((quota, expected), (1.0, expected), (1.0, 1)):  # read once a minute
        monkeypatch.setattr("specdec.threads.cpu_quota", lambda current=current: current)
        assert default_threads() == wanted


def test_a_number_of_threads_of_thousands_of_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("9" * 5000, MAX_THREADS), ("0" * 5000 + "2", 2), ("7", 7), ("0099", MAX_THREADS)):
        monkeypatch.setenv("SPECDEC_NUM_THREADS", text)
        assert default_threads() == expected
    for text in ("0" * 5000, "-" + "9" * 5000, "x" * 5000, "9" * 5000 + ".5"):
        monkeypatch.setenv("SPECDEC_NUM_THREADS", text)
        with pytest.raises(InputError, match="SPECDEC_NUM_THREADS is ") as caught:
            default_threads()
        assert len(str(caught.value)) < 400
