"""A process that runs one engine: a line of JSON in, a line of JSON out.

    python -m peers.worker ENGINE

Requests are ``{"do": "prepare" | "load" | "check" | "time" | "rate" | "batch" | "logits" | "write" |
"sample", ...}``; an answer holds the result, or ``unsupported`` with the reason, or ``error`` with a
traceback.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from peers import batch_class, engine_class, pair_class, writer_class
from peers.engine import Batch, Engine, Job, Pair, SayingLogits, Unsupported, Writer


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    engine: Engine | Pair | Batch | Writer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            engine, answer = serve(sys.argv[1], engine, request)
        except Unsupported as reason:
            answer = {"unsupported": str(reason)}
        except ImportError as reason:
            answer = {"unsupported": f"not installed ({reason})"}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


def serve(
    name: str, engine: Engine | Pair | Batch | Writer | None, request: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Do one request; return the engine there is afterwards, and the answer."""
    if request["do"] in ("prepare", "load"):
        target, draft = (
            job and Job(**{**job, "work": Path(job["work"])})
            for job in (request["target"], request.get("draft"))
        )
        settings: tuple[int, ...]
        if "n_at_once" in request:
            kind, jobs = batch_class(name), (target, draft)
            settings = request["gamma"], request["n_at_once"]
        elif "gamma" in request:
            kind = writer_class(name) if request.get("writes") else pair_class(name)
            jobs, settings = (target, draft), (request["gamma"],)
        else:
            kind, jobs, settings = engine_class(name), (target,), ()
        if request["do"] == "prepare":
            kind.prepare(*jobs)
            return None, {}
        engine = kind(*jobs, *settings)
        return engine, {"settings": getattr(engine, "settings", "")}
    if request["do"] == "check":
        return engine, {"logits": engine.check().tolist()}
    if request["do"] == "rate":
        return engine, {"value": engine.rate(request["seed"], request["n"])}
    if request["do"] == "batch":
        return engine, {"value": engine.throughput(request["seed"], request["n_prompts"], request["n"])}
    if request["do"] == "logits":
        return engine, {"logits": [last_logits(engine, ids) for ids in request["prompts"]]}
    if request["do"] == "write":
        answer = {"tokens": [engine.write(ids, request["n"]) for ids in request["prompts"]]}
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
    """Those of the token after a prompt."""
    engine.trim(0)
    return engine.prefill(ids).tolist()


def sample(
    engine: Writer, ids: list[int], n: int, seed: int, n_samples: int, seconds: float
) -> list[list[int]]:
    """As many continuations as there is time for, n_samples at most."""
    tokens: list[list[int]] = []
    begun = time.perf_counter()
    while len(tokens) < n_samples and time.perf_counter() - begun < seconds:
        first = seed + len(tokens)
        tokens += engine.samples(ids, n, range(first, first + min(50, n_samples - len(tokens))))
    return tokens


if __name__ == "__main__":
    main()
