"""A trained pair for tests, small enough for hundreds of texts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import specdec

MODELS = Path(__file__).parents[1] / "models"
"""Folders `target` (11M parameters), `draft` (0.9M) and `heads`: the Llama layout, 4,096 tokens, in bf16."""
TARGET, DRAFT = MODELS / "target", MODELS / "draft"


def small_pair(
    dtype: str | None = None, draft_dtype: str | None = None
) -> tuple[specdec.Model, specdec.Model]:
    """The target and the draft, each loaded once in a format (None: bf16), with prompts in rows."""
    return _loaded(TARGET, dtype), _loaded(DRAFT, draft_dtype)


@cache
def _loaded(folder: Path, dtype: str | None) -> specdec.Model:
    return specdec.load(folder, dtype, prefill="rows")
