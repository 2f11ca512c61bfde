"""A process that runs one engine: a line of JSON in, a line of JSON out.

    python -m peers.worker ENGINE

Requests are ``{"do": "prepare" | "load" | "check" | "time" | "rate", ...}``; an answer holds the result, or
``unsupported`` with the reason, or ``error`` with a traceback.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import traceback
from pathlib import Path
from typing import Any

from peers import engine_class, pair_class
from peers.engine import Engine, Job, Pair, Unsupported


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    engine: Engine | Pair | None = None
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


def serve(name: str, engine: Engine | Pair | None, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Do one request; return the engine there is afterwards, and the answer."""
    if request["do"] in ("prepare", "load"):
        target, draft = (
            job and Job(**{**job, "work": Path(job["work"])})
            for job in (request["target"], request.get("draft"))
        )
        if "gamma" in request:
            kind, jobs, gamma = pair_class(name), (target, draft), (request["gamma"],)
        else:
            kind, jobs, gamma = engine_class(name), (target,), ()
        if request["do"] == "prepare":
            kind.prepare(*jobs)
            return None, {}
        engine = kind(*jobs, *gamma)
        return engine, {"settings": getattr(engine, "settings", "")}
    if request["do"] == "check":
        return engine, {"logits": engine.check().tolist()}
    if request["do"] == "rate":
        return engine, {"value": engine.rate(request["seed"], request["n"])}
    samples = engine.burst(request["cell"], request["seconds"])
    return engine, {"value": statistics.median(samples)}


if __name__ == "__main__":
    main()
