"""The command line of lm-evaluation-harness, which knows the model "specdec"."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lm_eval.__main__ import cli_evaluate

from specdec.errors import SpecdecError
from specdec.integrations.lm_eval import harness_model as _registered  # noqa: F401


def main(argv: Sequence[str] | None = None) -> None:
    """Run the harness's command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments as ``lm-eval`` takes them, by default those of the process.

    Raises
    ------
    SystemExit
        On bad arguments, and with the message of an error of specdec.
    """
    kept = sys.argv
    sys.argv = [kept[0], *(kept[1:] if argv is None else argv)]
    try:
        cli_evaluate()
    except SpecdecError as error:
        raise SystemExit(f"specdec: error: {error}") from error
    finally:
        sys.argv = kept
