"""What a case can come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["KINDS", "Failure", "Outcome"]

KINDS = ("difference", "hang", "exception", "crash", "memory")
"""Wrong output; no end within the time limit; an unnamed exception; a dead process; too much memory."""


class Failure(Exception):  # noqa: N818  # it is the finding, not an error of this program
    """A check that did not hold.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass
class Outcome:
    """What came of one case in a worker.

    Attributes
    ----------
    status : str
        "passed"; "refused", with a named exception where one was to be expected; or one of `KINDS`.
    message : str
        What failed; the last lines of a traceback where there is one.
    case : dict
        The case itself, with every argument; only of failures.
    """

    status: str
    message: str = ""
    case: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether this is a failure."""
        return self.status in KINDS
