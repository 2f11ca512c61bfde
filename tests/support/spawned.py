"""What a process that was spawned does with pickled models and drafts."""

from __future__ import annotations

from typing import Any

import specdec


def tokens_of(
    target: specdec.Model, draft: Any, prompts: list[list[int]], options: dict[str, Any]
) -> list[list[int]]:
    """The tokens of a run on each prompt."""
    return [result.tokens for result in specdec.generate(target, draft, prompts, **options)]


def is_shared(first: specdec.Model, second: specdec.Model) -> bool:
    """Whether two models are one in this process."""
    return first.core is second.core
