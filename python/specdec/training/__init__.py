"""Training of drafts for a target: `train_draft` and ``specdec train draft``.

Training data comes from specdec itself: texts written by `specdec.generate`, and the target's distributions
and hidden states in its decoding number format. So any model that specdec loads can be a target. Only
training needs torch (``pip install 'specdec-cpu[train]'``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec.training.settings import TrainingOptions as TrainingOptions

if TYPE_CHECKING:
    from specdec.training.held_out import TrainedDraft as TrainedDraft
    from specdec.training.training_run import train_draft as train_draft

__all__ = ["TrainedDraft", "TrainingOptions", "train_draft"]

if not TYPE_CHECKING:  # torch is imported when a name is used

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("specdec.drafts.learned.networks")  # raises a helpful error without torch
        globals()[name] = getattr(import_module("specdec.training.training_run"), name)
        return globals()[name]
