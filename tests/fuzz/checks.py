"""The check of a case, by its name; what a printed script calls."""

from __future__ import annotations

from typing import Any

from fuzz.beams import check_beams
from fuzz.decoding import check_decoding
from fuzz.engines import check_engine
from fuzz.laws import check_law
from fuzz.memory import limited

__all__ = ["check"]

MEMORY = 4 << 30
"""Bytes of addresses that a run may take: stacks and arenas of threads above all."""


def check(case: dict[str, Any]) -> str:
    """Run a case.

    Returns
    -------
    str
        "passed", or "refused" by a named exception that was to be expected.

    Raises
    ------
    Failure
        The output is wrong.
    BaseException
        Whatever the package raises that it should not.
    """
    if case["check"] == "peft":
        from fuzz.peft_folders import check_peft

        return check_peft(case)
    if case["check"] == "file":
        from fuzz.damage import check_file  # writers and mutators, which runs do not need

        return check_file(case)
    with limited(MEMORY):
        checks = {
            "decoding": check_decoding, "law": check_law, "beams": check_beams, "engine": check_engine,
        }  # fmt: skip
        return checks[case["check"]](case)
