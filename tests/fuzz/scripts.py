"""A failure as a script of a few lines, and as a command."""

from __future__ import annotations

import pprint
from typing import Any

from fuzz.workers import Task

__all__ = ["command", "script"]


def script(case: dict[str, Any]) -> str:
    """Python that runs a case alone; to be run at the top of the repository."""
    text = pprint.pformat(case, width=100, compact=True, sort_dicts=False)
    lines = ["from fuzz.checks import check", "", f"print(check({text}))"]
    if "inf" in text:
        lines.insert(0, "from math import inf")
    return "\n".join(lines)


def command(task: Task) -> str:
    """The command that runs one configuration or damaged file again, as a seed gives it."""
    kind, seed, index = task[:3]
    n_configurations, n_files = (1, 0) if kind == "configuration" else (0, 1)
    return (
        f"python -m fuzz --seed {seed} --first {index} --configurations {n_configurations} --files {n_files}"
    )
