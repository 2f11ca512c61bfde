"""Datasets and sweeps on many machines with Ray (extra ``ray``).

>>> specdec.ray.generate("path/to/target", "path/to/draft", prompts, "out", seed=1)
>>> specdec.ray.score("path/to/target", texts, "scores")
>>> specdec.ray.sweep("path/to/target", {"small": "path/to/draft"}, prompts, "sweep")

The first call imports ray.
"""

from specdec.ray.generating import generate
from specdec.ray.records import Records
from specdec.ray.scoring import score
from specdec.ray.sweeping import Sweep, SweepRow, sweep

__all__ = ["Records", "Sweep", "SweepRow", "generate", "score", "sweep"]
