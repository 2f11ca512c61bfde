"""A program that forks while it multiplies matrices."""

from __future__ import annotations

from specdec.models.number_formats import PrefillMethod

_FORKS = """
import os, threading
import numpy as np
from specdec import _core

rng = np.random.default_rng(0)
x = rng.standard_normal((3, 64), np.float32)
w = rng.standard_normal((256, 64), np.float32)
expected = _core.product(x, w, "f32", engine=ENGINE)
stop = False

def compute():
    return np.array_equal(_core.product(x, w, "f32", engine=ENGINE, n_threads=2), expected)

def compute_on():
    while not stop:
        compute()

# The parent computes on two threads of its own while it forks.
callers = [threading.Thread(target=compute_on) for _ in range(2)]
for caller in callers:
    caller.start()
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        # Threads of the child use the pool for the first time, at once.
        right, together = [], threading.Barrier(4)
        def begin():
            together.wait()
            right.append(compute())
        threads = [threading.Thread(target=begin) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        os._exit(0 if right == [True] * 4 else 1)
    if os.waitpid(pid, 0)[1] != 0:
        print("a child failed")
        break
stop = True
for caller in callers:
    caller.join()
print("done")
"""


def fork_script(engine: PrefillMethod) -> str:
    """The program, whose products are computed by the engine; it prints "done" if all children are right."""
    return _FORKS.replace("ENGINE", repr(engine))
