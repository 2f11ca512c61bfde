"""A process that runs one engine: a line of JSON in, a line of JSON out.

    python -m benchmarks.peers.worker ENGINE

Requests are ``{"do": "prepare" | "load" | "check" | "compare" | "time" | "rate" | "batch" | "logits" |
"write" | "sample", ...}``; an answer holds the result, or ``unsupported`` with the reason, or ``error`` with
a traceback.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.builds import Answer, serve
from benchmarks.peers.engine import Engine, Job, SayingLogits, Unsupported, Writer
from benchmarks.peers.engines import BATCHES, ENGINES, PAIRS, READ_GGUF, WRITERS, engine_class
from benchmarks.shapes import GGUF_TYPES


def main() -> None:
    """Serve requests to the engine named on the command line."""
    engine: Any = None

    def answer(request: Answer) -> Answer:
        nonlocal engine
        try:
            engine, found = _serve(sys.argv[1], engine, request)
        except Unsupported as reason:
            return {"unsupported": str(reason)}
        except ImportError as reason:
            return {"unsupported": f"not installed ({reason})"}
        return found

    serve(answer)


def _serve(name: str, engine: Any, request: Answer) -> tuple[Any, Answer]:
    """Handle one request; return the engine and the answer."""
    if request["do"] in ("prepare", "load"):
        target, draft = (
            job and Job(**{**job, "work": Path(job["work"])})
            for job in (request["target"], request.get("draft"))
        )
        if request["target"]["format"] in GGUF_TYPES and name not in READ_GGUF:
            raise Unsupported("does not read GGUF files")
        settings: tuple[int, ...]
        if "n_at_once" in request:
            engine_type, jobs = engine_class(BATCHES, name), (target, draft)
            settings = request["gamma"], request["n_at_once"]
        elif "gamma" in request:
            engine_type = engine_class(WRITERS if request.get("writes") else PAIRS, name)
            jobs, settings = (target, draft), (request["gamma"],)
        else:
            engine_type, jobs, settings = engine_class(ENGINES, name), (target,), ()
        if request["do"] == "prepare":
            engine_type.prepare(*jobs)
            return None, {}
        engine = engine_type(*jobs, *settings)
        return engine, {"settings": getattr(engine, "settings", ""), "cells": getattr(engine, "cells", None)}
    if request["do"] == "compare":
        return engine, {"log_probabilities": engine.check().tolist(), "text": engine.text()}
    if request["do"] == "check":
        return engine, {"logits": engine.check().tolist()}
    if request["do"] == "rate":
        return engine, {"value": engine.rate(request["seed"], request["n"])}
    if request["do"] == "batch":
        return engine, {"value": engine.throughput(request["seed"], request["n_prompts"], request["n"])}
    if request["do"] == "logits":
        return engine, {"logits": [last_logits(engine, ids) for ids in request["prompts"]]}
    if request["do"] == "write":
        begun = time.perf_counter()
        answer = {"tokens": [engine.write(ids, request["n"]) for ids in request["prompts"]]}
        answer["seconds"] = time.perf_counter() - begun
        if isinstance(engine, SayingLogits):
            logits = [engine.logits(ids, request["n"]) for ids in request["prompts"]]
            answer["logits"] = [hashlib.sha256(rows.tobytes()).hexdigest() for rows in logits]
        return engine, answer | {"n_tokens": engine.n_tokens, "n_accepted": engine.n_accepted}
    if request["do"] == "sample":
        answer = {"tokens": sample(engine, **request["of"])}
        return engine, answer | {"n_tokens": engine.n_tokens, "n_accepted": engine.n_accepted}
    samples = engine.burst(request["cell"], request["seconds"])
    return engine, {"value": statistics.median(samples)}


def last_logits(engine: Engine, ids: list[int]) -> list[float]:
    """Return the logits of the token after a prompt."""
    engine.trim(0)
    return engine.prefill(ids).tolist()


def sample(
    engine: Writer, ids: list[int], n: int, seed: int, n_samples: int, seconds: float
) -> list[list[int]]:
    """Sample continuations within the time, at most n_samples."""
    tokens: list[list[int]] = []
    begun = time.perf_counter()
    while len(tokens) < n_samples and time.perf_counter() - begun < seconds:
        first = seed + len(tokens)
        tokens += engine.samples(ids, n, range(first, first + min(50, n_samples - len(tokens))))
    return tokens


if __name__ == "__main__":
    main()
