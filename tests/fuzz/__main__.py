"""The command line: `python -m fuzz --help`."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fuzz.failures import Outcome
from fuzz.scripts import command, script
from fuzz.shrinking import shrink, signature
from fuzz.workers import Limits, Pool, Task
from fuzz.worlds import PER_WORLD

FALSE_ALARM = 1e-3
"""Chance that a whole run of a right program reports a law: each test has its share (Bonferroni)."""

PER_STRETCH = 20  # damaged files that one worker takes at once


def main(arguments: list[str] | None = None) -> int:
    """Run cases, print failures as scripts, and a summary; 1 if there were failures."""
    options = _options(arguments)
    print(f"seed {options.seed}", flush=True)
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    limits = Limits(options.seconds)
    with Pool(options.processes, limits) as pool:
        seen = Report(options)
        try:
            for task, outcome in pool.run(_tasks(options), until):
                seen.add(task, outcome)
        except KeyboardInterrupt:
            print("interrupted")
        seen.close()
    if options.shrink and seen.first:
        with Pool(1, Limits(min(3.0, options.seconds), 20.0)) as pool:

            def run(case: dict[str, Any]) -> Outcome:
                return next(iter(pool.run([[("case", case)]])))[1]

            for name, (task, outcome) in list(seen.first.items()):
                seen.first[name] = task, _shrunk(outcome, run)
    seen.print()
    return 1 if seen.first else 0


def _shrunk(outcome: Outcome, run: Any) -> Outcome:
    case, smaller = shrink(outcome.case, outcome, run)
    return Outcome(smaller.status, smaller.message, case)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--configurations", type=int, default=2000, help="random configurations")
    parser.add_argument("--files", type=int, default=2000, help="damaged files")
    parser.add_argument("--seed", type=int, default=None, help="by default a fresh one, which is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first of either")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin nothing after so many; 0: no limit")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of the processor, for a case: then it hangs"
    )
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="print failures as they are")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = secrets.randbits(31)
    return options


def _tasks(options: argparse.Namespace) -> Iterator[list[Task]]:
    alarm = FALSE_ALARM / max(1, options.configurations)
    for begin in range(options.first, options.first + options.configurations, PER_WORLD):
        end = min(begin + PER_WORLD, options.first + options.configurations)
        yield [("configuration", options.seed, index, alarm) for index in range(begin, end)]
    for begin in range(options.first, options.first + options.files, PER_STRETCH):
        end = min(begin + PER_STRETCH, options.first + options.files)
        yield [("file", options.seed, index) for index in range(begin, end)]


class Report:
    """Counts, and the first failure of each signature."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.counts = {"configuration": Counter[str](), "file": Counter[str]()}
        self.signatures: Counter[str] = Counter()
        self.first: dict[str, tuple[Task, Outcome]] = {}
        self._begun = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=options.configurations + options.files, unit="case")

    def add(self, task: Task, outcome: Outcome) -> None:
        """Count an outcome."""
        self.counts[task[0]][outcome.status] += 1
        if self._bar is not None:
            self._bar.update()
        if outcome.failed:
            name = signature(outcome)
            self.signatures[name] += 1
            if name not in self.first:
                self.first[name] = task, outcome
                line = f"failure: {name} ({task[0]} {task[2]} of seed {task[1]})"
                print(line) if self._bar is None else self._bar.write(line)
                sys.stdout.flush()

    def close(self) -> None:
        """End the progress bar, and the clock."""
        self._seconds = time.monotonic() - self._begun
        if self._bar is not None:
            self._bar.close()

    def print(self) -> None:
        """Each failure as a script; the summary."""
        for name, (task, outcome) in self.first.items():
            print(f"\n# {name}: {self.signatures[name]} of them, the first by {command(task)}")
            print("\n".join(f"#   {line}" for line in outcome.message.splitlines()[:12]))
            print(script(outcome.case))
        total = sum(sum(counts.values()) for counts in self.counts.values())
        print(f"\n{total / max(self._seconds, 1e-9):.0f} cases a second in {self._seconds:.0f} s")
        for what, counts in (("configurations", "configuration"), ("damaged files", "file")):
            n = self.counts[counts]
            if not n:
                continue
            print(
                f"{sum(n.values())} {what}: {n['difference']} differences, {n['hang']} hangs, "
                f"{n['exception']} unnamed exceptions, {n['crash']} crashes, "
                f"{n['memory']} beyond the memory limit ({n['refused']} refused by name)"
            )


if __name__ == "__main__":
    sys.exit(main())
