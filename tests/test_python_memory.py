"""Every allocation of the interpreter fails once: each failure raises MemoryError and nothing else."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from descriptions import by_method
from sessions import Session, read_prompts
from specdec import _core, drafts
from worlds.canonical import HAS_HOOKS, LLAMA, build, perturbed, random_tensors, with_drafts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None,
    reason="needs the module _testcapi, which makes allocations fail and which this Python was built without",
)

PATIENCE = 8
"""Successful calls in a row, with an allocation to fail, that show that no allocations are left."""

Work = Callable[[], object]


def session(target: _core.Model, draft: Any, **options: Any) -> Session:
    prompts = [[1, 2, 3], [4, 5]]
    made = Session(target, draft, prompts, gamma=3, max_new_tokens=40, temperature=1.0, **options)
    made.prefill()
    return made


def draft_of(n_vocab: int) -> Any:
    """A Python draft that uses every field of a proposal."""
    rows = np.full((3, n_vocab), 1 / n_vocab)
    given = drafts.Proposal([1, 2, 3], parents=[0, 1, 1], probs=rows, confidence=[0.5, 0.5, 0.5])

    def nothing(*_: object) -> None:
        return None

    return by_method(
        "python", "a test", lambda *_: given, nothing, nothing, drafts.Proposal, None, False, False
    )


def sound(session: Session) -> Work:
    """A round that raises its own errors."""

    def work() -> None:
        for done in session.core.round():
            if done.error is not None:
                raise done.error

    return work


def works() -> dict[str, Callable[[], Work]]:
    """Factories of the work to test; the factories themselves may allocate."""
    tensors = random_tensors(LLAMA)
    target, draft = build(LLAMA, tensors), build(LLAMA, perturbed(tensors))
    n_vocab = LLAMA["n_vocab"]
    ones = np.ones(n_vocab, np.int32)
    two = np.array([2, 2], np.int32)
    table = _core.Ngram(ones, ())
    decoder = _core.Decoder(target, capacity=9, max_nodes=3)
    search = _core.BeamSearch(target, None, [1, 2], width=2, draft_width=2, gamma=0, max_new_tokens=4)
    read_prompts(search)
    search.round()
    learned = _core.AdaptiveGamma()
    bias = {1: 0.5, 2: -1.0}
    half = np.full((3, 2), 0.5)
    options: dict[str, Any] = {"keep_logits": True}
    parts = by_method("ngram", table), by_method("static_tree", draft, [0, 0], "top-k")
    several = by_method("ensemble", False, [2, 2], parts)

    def made(draft: Any, **more: Any) -> Callable[[], Work]:
        return lambda: lambda: Session(
            target, draft, [[1, 2], [3]], gamma=3, max_new_tokens=4, temperature=1.0,
            sampling={"temperature": 1.0, "logit_bias": bias}, **more,
        )  # fmt: skip

    found: dict[str, Callable[[], Work]] = {
        "records": lambda: session(target, draft, **options).core.round,
        "records of a python draft": lambda: sound(session(target, draft_of(n_vocab), **options)),
        "records with a transform": lambda: sound(session(target, None, transform=lambda p, _: p)),
        "gammas": lambda: partial(session(target, draft).core.round, gammas=[1, 2]),
        "a session": made(draft, stop_ids=[1, 2], adaptive_gamma=learned),
        "a session of several drafts": made(several),
        "a session of a python draft": made(draft_of(n_vocab)),
        "adaptive_gamma": lambda: partial(
            getattr, session(target, draft, adaptive_gamma=learned), "adaptive_gamma"
        ),
        "a new adaptive_gamma": lambda: _core.AdaptiveGamma,
        "a copy of adaptive_gamma": lambda: learned.copy,
        "adaptive_gamma, viewed": lambda: learned.view,
        "verify": lambda: lambda: _core.verify([0, 1, 0], [-1, 0, 1], half, half, np.full(4, 0.5)),
        "beams": lambda: search.beams,
        "decoder": lambda: lambda: (decoder.forward([1, 2], [-1, 0]), decoder.keep([])),
        "scores": lambda: lambda: _core.score_texts(target, (ones[:4], two), two // 2, n_top=1, done=abs),
        "records with log-probs": lambda: session(target, draft, logprobs_of="model", n_top=2).round,
        "shapes": lambda: lambda: _core.tensor_shapes(LLAMA),
        "config": lambda: lambda: (target.config, target.matrix("head"), target.dtype),
        "a table": lambda: lambda: _core.Ngram(ones, ()),
        "an automaton": lambda: lambda: _core.Automaton(ones).find([1, 1]),
        "functions": lambda: lambda: (
            _core.available_kernels(), _core.kernels(), _core.noise(1, 2, 3, 4), _core.uniform(1, 2, 3, 0, 0),
            _core.distribution(np.ones(4, np.float32), temperature=1.0),
        ),
    }  # fmt: skip
    if HAS_HOOKS:
        found["records with their drafts"] = lambda: with_drafts(session(target, draft, **options)).round
    return found


def fail_each(make: Callable[[], Work]) -> int:
    """Repeat the work with the n-th allocation failing; return the number of failures."""
    from _testcapi import remove_mem_hooks, set_nomemory

    make()()  # objects that are created once exist from now on
    n_failures = n_quiet = n = 0
    while n_quiet < PATIENCE:
        work = make()
        n += 1
        n_quiet += 1
        set_nomemory(n, n + 1)
        try:
            work()
        except MemoryError:
            n_failures += 1
            n_quiet = 0
        finally:
            remove_mem_hooks()
    return n_failures


def main() -> None:
    """Print for each work the number of failures and of the core's blocks that are left."""
    for name, make in works().items():
        gc.collect()
        live = alive()
        try:
            n_failures = fail_each(make)
        except BaseException as error:
            raise AssertionError(name) from error
        gc.collect()
        print(name, n_failures, alive() - live, sep="|")


def alive() -> int:
    """Allocated blocks of the core, if the build counts them."""
    return _core._alloc_live() if HAS_HOOKS else 0


def test_every_allocation_of_the_interpreter_fails_once() -> None:
    """In its own process, because a failure may leave other modules incomplete."""
    run = subprocess.run([sys.executable, "-X", "faulthandler", __file__], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    felt = {
        name: (int(n), int(left)) for name, n, left in (line.split("|") for line in run.stdout.splitlines())
    }
    assert felt.keys() == works().keys()
    assert {name: found for name, found in felt.items() if found[0] < 1 or found[1] != 0} == {}
    assert felt["records"][0] > 10 and felt["records of a python draft"][0] > 10


if __name__ == "__main__":
    main()
