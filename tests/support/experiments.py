"""Experiments with simulated clocks: times of forward passes, and speed-ups of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from specdec import Speedup
from specdec.analysis.prediction import ForwardTimes

MANY_ROWS = {m: 1.0 + 0.1 * (m - 1) for m in range(1, 1026)}
"""Seconds of the target for M positions."""


def use_forward_times(
    patch: pytest.MonkeyPatch, target_s: Mapping[int, float] = MANY_ROWS, draft_s: float = 0.05
) -> None:
    """Replace measured times of forward passes everywhere: the target's by positions, and the draft's."""
    times = ForwardTimes(dict(target_s), draft_s)
    patch.setattr("specdec.analysis.prediction.forward_times", lambda *_: times)


def use_speedups(patch: pytest.MonkeyPatch, speedup: Callable[[Any], Speedup]) -> None:
    """Set the speed-up of each configuration (with `draft`, `gamma` and `options`) that runs."""
    patch.setattr("specdec.analysis.experiment.Configuration.over", lambda way, plain: speedup(way))
