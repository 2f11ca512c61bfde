"""Names of the divergences for training drafts; `drafts.learned.networks` computes them in torch."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

DivergenceName: TypeAlias = Literal["fkl", "rkl", "jsd", "tvd"]

DIVERGENCES: tuple[DivergenceName, ...] = get_args(DivergenceName)
"""Forward and reverse Kullback-Leibler, Jensen-Shannon, total variation."""
