"""Other processes and threads: the command line, forks, spawned work, waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec
from specdec.models.number_formats import PrefillMethod
from toy_pair import notice_interrupts

_SCRIPT = """
import sys
from pathlib import Path
from specdec.commands import given_models
from specdec.commands.program import main
from toy_pair import load_pair
pair = load_pair(Path(sys.argv[1]), max_position_embeddings=2_000_000)
given_models.embedded_pair = lambda *_, **__: pair
sys.exit(main(sys.argv[2:]))
"""


def printed(program: str, *arguments: str, timeout: float = 120.0, **environment: str) -> str:
    """Run a Python program that handles SIGINT as in a terminal; check its success and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=timeout,
        env=os.environ | environment, preexec_fn=notice_interrupts,
    )  # fmt: skip
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


PLAIN = ["--temperature", "0", "--max-new-tokens"]
ENDLESS = [*PLAIN, "100000", "abc"]
"""Arguments for a text without end: the pair ends only sampled texts."""


def command_process(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command line; the pair is written to the folder, and output goes to pipes."""
    command = [sys.executable, "-c", _SCRIPT, str(folder), *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


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
    """A program whose products use the engine; it prints "done" if all children are right."""
    return _FORKS.replace("ENGINE", repr(engine))


def tokens_of(
    target: specdec.Model, draft: Any, prompts: list[list[int]], options: dict[str, Any]
) -> list[list[int]]:
    """Return the tokens generated for each prompt."""
    return [result.tokens for result in specdec.generate(target, draft, prompts, **options)]


#: Seconds: a thread of the lowest priority gets little of a busy machine.
PATIENCE_S = 120.0


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until ``condition()`` is true; raise AssertionError at a timeout."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {PATIENCE_S:g} seconds"
        time.sleep(0.01)
