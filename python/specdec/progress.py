"""Progress bars by tqdm, if installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from specdec.checks import check_flag
from specdec.errors import MissingProgressError

_LARGE = 200_000_000  # bytes; smaller files need no bar


def progress_bar(total: int, unit: str, **options: Any) -> Any:
    """Make a tqdm bar."""
    try:
        from tqdm import tqdm
    except ImportError:
        needs = "progress=True needs tqdm, which is not installed"
        raise MissingProgressError(f"{needs}: pip install 'specdec-cpu[progress]'") from None
    return tqdm(total=total, unit=unit, dynamic_ncols=True, **options)


@contextmanager
def counted(total: int, unit: str, wanted: bool) -> Iterator[Callable[..., object]]:
    """Yield a function that advances a progress bar, with an optional note, if one is wanted."""
    if not check_flag("progress", wanted):
        yield lambda n, note="": None
        return
    with progress_bar(total, unit) as bar:

        def done(n: int, note: str = "") -> None:
            if note:
                bar.set_postfix_str(note, refresh=False)
            bar.update(n)

        yield done


@contextmanager
def reading(n_bytes: int, what: str, progress: bool | None) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances a bar by a number of bytes.

    `progress` None: show a bar for large files, in a terminal, if tqdm is installed.
    """
    if progress is None:
        in_terminal = sys.stderr is not None and sys.stderr.isatty()
        progress = n_bytes >= _LARGE and in_terminal and find_spec("tqdm") is not None
    if not check_flag("progress", progress):
        yield lambda n: None
        return
    with progress_bar(n_bytes, "B", desc=what, unit_scale=True) as bar:
        yield bar.update
