"""One build of specdec, or two that take turns: this one, and that of another Python (``--against``).

What is timed is an object of a class of these benchmarks. It is made in this process, or in a process of
the other Python; there the class finds the other build's specdec, so it may use only what both have.
Arguments and results of its methods are plain: numbers, texts, lists, dicts. Two builds run in a process
each, and one is stopped (SIGSTOP) while the other works.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Answer = dict[str, Any]


class Worker:
    """A process that answers a line of JSON with a line of JSON; stopped but while it answers.

    Parameters
    ----------
    python : str
        The interpreter.
    module : str
        What it runs: something that calls :func:`serve`.
    words : sequence of str
        Its arguments.
    log : Path, optional
        Where its error output goes; None: to this process's.
    environment : mapping
        Added to this process's.
    """

    def __init__(
        self,
        python: str,
        module: str,
        words: Sequence[str] = (),
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        with log.open("w") if log else nullcontext() as errors:
            self.process = subprocess.Popen(
                [python, "-m", module, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                start_new_session=True,  # a group of its own: its children stop and end with it
            )
        atexit.register(self.close)

    def ask(self, do: str, **request: Any) -> Answer:
        """Send a request and wait for the answer; "error" in it holds a traceback."""
        assert self.process.stdin and self.process.stdout
        os.killpg(self.process.pid, signal.SIGCONT)
        answer = ""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            where = f", see {self.log}" if self.log else ""
            return {"error": f"its process ended with status {self.process.wait()}{where}"}
        os.killpg(self.process.pid, signal.SIGSTOP)
        return json.loads(answer)

    def close(self) -> None:
        """End it and its children."""
        atexit.unregister(self.close)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def serve(answer: Callable[[Answer], Answer]) -> None:
    """Answer each line on standard input; what libraries print goes to the error output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), file=answers)


class Here:
    """An object of a benchmark in this process."""

    name = "this build"

    def __init__(self, kind: type, settings: Mapping[str, Any]) -> None:
        self._object = kind(**settings)

    def ask(self, method: str, **arguments: Any) -> Any:
        """What the method returns."""
        return getattr(self._object, method)(**arguments)

    def close(self) -> None:
        """Let go of the object."""
        del self._object


class There:
    """An object of a benchmark in a process of its own."""

    def __init__(self, name: str, python: str, kind: type, settings: Mapping[str, Any]) -> None:
        self.name = name
        self._worker = Worker(python, "benchmarks.builds")
        where = {"module": kind.__module__, "kind": kind.__qualname__}
        self.described = self._asked("make", **where, settings=settings)

    def ask(self, method: str, **arguments: Any) -> Any:
        """What the method returns."""
        return self._asked("call", method=method, arguments=arguments)

    def _asked(self, do: str, **request: Any) -> Any:
        answer = self._worker.ask(do, **request)
        if "error" in answer:
            self.close()
            raise SystemExit(f"{self.name}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._worker.close()


class Builds:
    """The object of a benchmark in one build or in two, for a ``with`` statement.

    Parameters
    ----------
    against : str, optional
        Another Python, with another build of specdec.
    kind : type
        Class of the object.
    **settings
        Its arguments.
    """

    def __init__(self, against: str | None, kind: type, **settings: Any) -> None:
        self.all: list[Here | There]
        if against is None:
            self.all = [Here(kind, settings)]
        else:
            pythons = {"this build": sys.executable, "other build": against}
            self.all = [There(name, python, kind, settings) for name, python in pythons.items()]

    def __enter__(self) -> Builds:
        return self

    def __exit__(self, *_: object) -> None:
        for build in self.all:
            build.close()

    @property
    def described(self) -> str:
        """Which builds they are; empty for this one alone."""
        return "; ".join(f"{one.name}: {one.described}" for one in self.all if isinstance(one, There))

    def ask(self, turn: int, method: str, **arguments: Any) -> list[Any]:
        """What the method returns in each build, this one first; who begins alternates with the turn."""
        order = self.all if turn % 2 == 0 else self.all[::-1]
        found = [build.ask(method, **arguments) for build in order]
        return found if turn % 2 == 0 else found[::-1]


def _build() -> str:
    """Version, kernels and commit of the specdec in this process."""
    import specdec
    from benchmarks.report import commit

    source = Path(specdec.__file__)
    tracked = ["git", "-C", str(source.parent), "ls-files", "--error-unmatch", source.name]
    try:
        known = subprocess.run(tracked, capture_output=True, check=False).returncode == 0
    except OSError:
        known = False
    where = f"commit {commit(source.parent)}" if known else "installed, commit unknown"
    return f"{specdec.__version__}, {where}, kernels {specdec.kernels()}"


def main() -> None:
    """Make one object and call its methods, as asked."""
    objects: list[Any] = []

    def answer(request: Answer) -> Answer:
        if request["do"] == "make":
            kind = getattr(import_module(request["module"]), request["kind"])
            objects.append(kind(**request["settings"]))
            return {"result": _build()}
        return {"result": getattr(objects[0], request["method"])(**request["arguments"])}

    serve(answer)


if __name__ == "__main__":
    main()
