"""`training/positions.py`: its statistics against hand-made texts and models with known distributions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parent.parent / "training" / "positions.py"


@pytest.fixture(scope="module")
def positions() -> ModuleType:
    spec = importlib.util.spec_from_file_location("positions", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("tokens", "again"),
    [
        ([1, 2, 3, 4, 5, 6], []),
        ([1, 2, 3, 1, 2, 3, 4], []),  # three tokens are too few for a passage
        ([9, 1, 2, 3, 4, 1, 2, 3, 4, 7], [5, 6, 7, 8]),
        ([5, 5, 5, 5, 5, 6], [1, 2, 3, 4]),
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], []),  # not in a row
        ([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [4, 5, 6, 7, 8, 9]),
    ],
)
def test_repetitions(positions: ModuleType, tokens: list[int], again: list[int]) -> None:
    assert np.flatnonzero(positions.repeats(tokens)).tolist() == again


def test_perplexity_and_alpha_of_known_models(positions: ModuleType) -> None:
    """Both models have one distribution at every position, so means by position are those of one row."""
    target, draft = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])

    def model(probs: np.ndarray) -> Any:
        return SimpleNamespace(
            logits=lambda ids, n_threads: np.tile(np.log(probs), (len(ids), 1)).astype(np.float32)
        )

    windows = [[0, 0, 1, 0, 1], [2, 1, 1, 0, 0]]
    columns = positions.held_out(model(target), model(draft), windows, 1)
    rows = [row.split(" | ") for row in positions.by_position(columns, 2, 4)]
    assert rows[0][1:] == ["target perplexity", "draft perplexity", "alpha T=1", "alpha T=0 |"]
    assert [row[0] for row in rows[2:]] == ["| 0 to 1", "| 2 to 3", "| all"]
    # Tokens 0 1 and 1 1, then 0 1 and 0 0: perplexities are geometric means of 1 / p.
    assert rows[2][1:] == [
        f"{(2 * 4 * 4 * 4) ** 0.25:.1f}", f"{(4 * 2 * 2 * 2) ** 0.25:.1f}", "0.750", "0.000 |",
    ]  # fmt: skip
    assert rows[3][1:3] == [f"{(2 * 4 * 2 * 2) ** 0.25:.1f}", f"{(4 * 2 * 4 * 4) ** 0.25:.1f}"]
