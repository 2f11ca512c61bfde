"""``python -m specdec.integrations.lm_eval``: the harness's command line with specdec's model."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lm_eval.__main__ import cli_evaluate

from specdec.errors import SpecdecError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the harness's command line, by default with `sys.argv`; print errors on one line."""
    kept = sys.argv
    sys.argv = [kept[0], *(kept[1:] if argv is None else argv)]
    try:
        cli_evaluate()
    except SpecdecError as error:
        raise SystemExit(f"specdec: error: {error}") from error
    finally:
        sys.argv = kept


if __name__ == "__main__":
    main()
