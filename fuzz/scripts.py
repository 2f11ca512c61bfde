"""A failure as a script of a few lines."""

from __future__ import annotations

import pprint
from typing import Any

__all__ = ["script"]


def script(case: dict[str, Any]) -> str:
    """Python that runs a case alone; to be run at the top of the repository."""
    text = pprint.pformat(case, width=100, compact=True, sort_dicts=False)
    lines = ["from fuzz.checks import check", "", f"print(check({text}))"]
    if "inf" in text:
        lines.insert(0, "from math import inf")
    return "\n".join(lines)
