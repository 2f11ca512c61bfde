"""The work of the core in tests: forward passes, and blocks of layers that tokens go through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specdec import _core


class Work:
    """What a block of code had the core do."""

    blocks = 0
    """Blocks, two in a layer, that tokens went through, in all models."""
    forwards = 0
    """Forward passes."""


@contextmanager
def counted_work() -> Iterator[Work]:
    """Count the work that is done inside; needs the test hooks."""
    work = Work()
    before = _core._forward_work(), _core._forward_count()
    yield work
    work.blocks, work.forwards = _core._forward_work() - before[0], _core._forward_count() - before[1]


def blocks_of_a_token(*models: Any) -> int:
    """Blocks that a token goes through in all of these models; None is no model."""
    return sum(2 * model.config["n_layer"] for model in models if model is not None)


@contextmanager
def prompts_in_slices_of(n_tokens: int) -> Iterator[None]:
    """Let models that are made inside read so many tokens of prompts at once."""
    _core._prompt_slice(n_tokens)
    try:
        yield
    finally:
        _core._prompt_slice(0)
