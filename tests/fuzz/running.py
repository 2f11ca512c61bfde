"""Execution of a case within limits, such that the case survives a dying or hanging process; invariants."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pprint
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import specdec

Case = dict[str, Any]
"""Plain values that describe a run completely."""

MEMORY = 4 << 30
"""Limit of a run's address space in bytes: mostly stacks and arenas of threads."""

LONGEST_S = float(os.environ.get("FUZZ_SECONDS", "120"))
"""Seconds after which a case counts as hanging: the process prints its stack and ends."""

LEFT = Path(os.environ.get("FUZZ_LEFT") or tempfile.gettempdir())
"""Folder of the scripts that dead processes leave, ``fuzz-PROCESS.py``, with a ``.log``."""


class Failure(AssertionError):  # noqa: N818  # it is the finding, not an error of this program
    """A failed check."""


def check(case: Case) -> str:
    """Run a case; return "passed", or "refused" for an expected named exception. Raise otherwise."""
    from fuzz import damage, decoding, distributions, engines

    checks: dict[str, Callable[[Case], str]] = {
        "decoding": decoding.check_decoding, "distribution": distributions.check_distribution,
        "beams": decoding.check_beams, "engine": engines.check_engine,
        "file": damage.check_file,
    }  # fmt: skip
    with _restored(case), limited(MEMORY):
        return checks[case["check"]](case)


@contextlib.contextmanager
def _restored(case: Case) -> Iterator[None]:
    """Keep a script of the case on disk while it runs."""
    script, log = (LEFT / f"fuzz-{os.getpid()}.{end}" for end in ("py", "log"))
    text = pprint.pformat(case, width=100, compact=True, sort_dicts=False)
    script.write_text(f"from math import inf\n\nfrom fuzz.running import check\n\nprint(check({text}))\n")
    with open(log, "w") as file:
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            script.unlink()
            log.unlink()


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """Limit the process's address space to this many more bytes; Linux only."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def check_result(result: specdec.Result, settings: dict[str, Any], n_ctx: int) -> None:
    """Check counts, paths, betas, origins and the finish reason."""

    def hold(condition: bool, what: str) -> None:
        if not condition:
            raise Failure(f"trace: {what}")

    rounds = result.trace.rounds
    tokens: list[int] = []
    for r in rounds:
        what = f"in round {r.index}, {r}"
        hold(len(r.parents) == len(r.drafted), f"a draft token has no parent {what}")
        hold(
            all(0 <= parent <= i for i, parent in enumerate(r.parents)), f"a parent is no earlier node {what}"
        )
        texts = [()]
        for token, parent in zip(r.drafted, r.parents, strict=True):
            texts.append((*texts[parent], token))
        hold(r.tokens[:-1] == r.accepted, f"the accepted draft tokens are not the tokens {what}")
        for depth, node in enumerate(r.path, 1):
            hold(texts[node] == r.tokens[:depth], f"the path is none {what}")
        hold(0 <= r.n_accepted <= r.n_drafted and r.depth >= r.n_accepted, f"counts {what}")
        hold(all(0.0 <= beta <= 1.0 + 1e-9 for beta in r.betas), f"a beta is not in 0 to 1 {what}")
        here = [node for node, text in enumerate(texts) if text == r.accepted]
        judged = any(parent in here for parent in r.parents)
        last = "correction" if judged else "bonus" if r.drafted else "target"
        origin = ("draft",) * r.n_accepted + (last,)
        hold(r.origin == origin, f"origin is {r.origin}, not {origin}, {what}")
        hold(len(r.betas) == r.n_accepted + judged, f"there are {len(r.betas)} betas {what}")
        hold(1 <= r.kept <= len(r.tokens), f"kept {what}")
        hold(r.kept == len(r.tokens) or r is rounds[-1], f"tokens were cut before the end {what}")
        tokens += r.tokens[: r.kept]
    hold(tokens == result.tokens, "the rounds' tokens are not the result's")
    trace = result.trace
    hold(trace.n_tokens == len(tokens) and trace.n_calls == len(rounds), "sums")
    hold(trace.n_accepted == sum(min(len(r.path), r.kept) for r in rounds), "n_accepted is no sum")
    hold(trace.n_drafted == sum(len(r.drafted) for r in rounds), "n_drafted is no sum")

    limit, room = settings.get("max_new_tokens", 200), n_ctx - len(result.prompt_ids)
    most = room if limit is None else min(limit, room)
    hold(1 <= len(tokens) <= most, f"there are {len(tokens)} tokens of at most {most}")
    hold(result.finish_reason in ("stop", "length", "context"), f"finish_reason {result.finish_reason!r}")
    if result.finish_reason != "stop":
        hold(len(tokens) == most, f"ended by {result.finish_reason} after {len(tokens)} of {most} tokens")
    elif isinstance(result.stop, int):
        hold(
            result.stop == tokens[-1] and result.stop not in tokens[:-1], "the stop id is not the last token"
        )
    strings = [one for one in settings.get("stop") or () if isinstance(one, str)]
    hold(not any(one in (result.text or "") for one in strings), "the text has a stop string in it")
    if isinstance(result.stop, str):
        hold(result.stop in strings, f"stop is {result.stop!r}, which was not asked for")
    if result.logits is not None:
        hold(len(result.logits) == len(tokens), "there is not a row of logits for each token")
        hold(bool(np.isfinite(result.logits).all()), "logits are not finite")
