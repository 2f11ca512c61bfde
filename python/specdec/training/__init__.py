"""Training of drafts for a target: ``specdec train draft`` and `train_draft`, which it calls.

A draft learns from specdec itself: texts that `specdec.generate` writes, and the target's distributions and
hidden states in the number format in which it decodes. So whatever specdec loads can have its draft trained.
Only training needs torch, ``pip install 'specdec-cpu[train]'``.
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
        import_module("specdec.drafts.learned.networks")  # says what is missing without torch
        globals()[name] = getattr(import_module("specdec.training.training_run"), name)
        return globals()[name]
