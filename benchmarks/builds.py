"""One build of specdec, or interleaved runs of two: this one and another Python's (``--against``).

A benchmark is an object of a class in this package. It lives in this process, or in a process of each Python,
where it imports that build's specdec; so it may use only features of both. Arguments and results of its
methods must be JSON values. One process is stopped (SIGSTOP) while the other works.
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
    """A process that answers lines of JSON with lines of JSON, stopped between requests.

    Parameters
    ----------
    python : str
        The interpreter.
    module : str
        A module that calls :func:`serve`.
    words : sequence of str
        Command line arguments.
    log : Path, optional
        File for standard error; None: this process's.
    environment : mapping
        Additional environment variables.
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
                start_new_session=True,  # a process group, whose children stop and end together
            )
        atexit.register(self.close)

    def ask(self, do: str, **request: Any) -> Answer:
        """Send a request and wait for the answer, with a traceback in "error" after an exception."""
        assert self.process.stdin and self.process.stdout
        os.killpg(self.process.pid, signal.SIGCONT)
        answer = ""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            where = f", see {self.log}" if self.log else ""
            return {"error": f"the process ended with status {self.process.wait()}{where}"}
        os.killpg(self.process.pid, signal.SIGSTOP)
        return json.loads(answer)

    def close(self) -> None:
        """Kill the process and its children."""
        atexit.unregister(self.close)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def serve(answer: Callable[[Answer], Answer]) -> None:
    """Answer each line on standard input; redirect output of libraries to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), file=answers)


class Here:
    """A benchmark object in this process."""

    name = "this build"

    def __init__(self, benchmark: type, settings: Mapping[str, Any]) -> None:
        self._object = benchmark(**settings)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method."""
        return getattr(self._object, method)(**arguments)

    def close(self) -> None:
        """Release the object."""
        del self._object


class There:
    """A benchmark object in another process."""

    def __init__(self, name: str, python: str, benchmark: type, settings: Mapping[str, Any]) -> None:
        self.name = name
        self._worker = Worker(python, "benchmarks.builds")
        where = {"module": benchmark.__module__, "benchmark": benchmark.__qualname__}
        self.described = self._asked("make", **where, settings=settings)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method."""
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
    """A benchmark object in one build or two; a context manager.

    Parameters
    ----------
    against : str, optional
        Another Python with another build of specdec.
    benchmark : type
        Class of the object.
    **settings
        Constructor arguments.
    """

    def __init__(self, against: str | None, benchmark: type, **settings: Any) -> None:
        self.all: list[Here | There]
        if against is None:
            self.all = [Here(benchmark, settings)]
        else:
            pythons = {"this build": sys.executable, "other build": against}
            self.all = [There(name, python, benchmark, settings) for name, python in pythons.items()]

    def __enter__(self) -> Builds:
        return self

    def __exit__(self, *_: object) -> None:
        for build in self.all:
            build.close()

    @property
    def described(self) -> str:
        """Description of both builds; empty for one."""
        return "; ".join(f"{one.name}: {one.described}" for one in self.all if isinstance(one, There))

    def ask(self, repeat: int, method: str, **arguments: Any) -> list[Any]:
        """Call a method in each build and return the results, this build's first; the order alternates."""
        order = self.all if repeat % 2 == 0 else self.all[::-1]
        found = [build.ask(method, **arguments) for build in order]
        return found if repeat % 2 == 0 else found[::-1]


def _build() -> str:
    """Return version, kernels and commit of this process's specdec."""
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
    """Make one object and call its methods on request."""
    objects: list[Any] = []

    def answer(request: Answer) -> Answer:
        if request["do"] == "make":
            benchmark = getattr(import_module(request["module"]), request["benchmark"])
            objects.append(benchmark(**request["settings"]))
            return {"result": _build()}
        return {"result": getattr(objects[0], request["method"])(**request["arguments"])}

    serve(answer)


if __name__ == "__main__":
    main()
