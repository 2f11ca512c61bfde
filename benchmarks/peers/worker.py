"""A process that runs one engine: a line of JSON in, a line of JSON out.

    python -m peers.worker ENGINE

Requests are ``{"do": "prepare" | "load" | "check" | "time", ...}``; an answer holds the result, or
``unsupported`` with the reason, or ``error`` with a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from peers import engine_class
from peers.engine import Engine, Job, Unsupported


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    engine: Engine | None = None
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


def serve(name: str, engine: Engine | None, request: dict[str, Any]) -> tuple[Engine | None, dict[str, Any]]:
    """Do one request."""
    if request["do"] in ("prepare", "load"):
        job = Job(request["shape"], request["format"], Path(request["work"]), request["threads"])
        if request["do"] == "prepare":
            engine_class(name).prepare(job)
            return None, {}
        engine = engine_class(name)(job)
        return engine, {"settings": engine.settings}
    assert engine is not None
    if request["do"] == "check":
        return engine, {"logits": engine.check().tolist()}
    return engine, {"seconds": engine.burst(request["cell"], request["seconds"])}


if __name__ == "__main__":
    main()
