"""Training of drafts for a target: ``specdec train draft`` and `train_draft`, which it calls.

What a draft learns comes from specdec itself: texts that `specdec.generate` writes, and the target's laws and
hidden states in the number format in which it decodes. So whatever specdec loads can have its draft trained.
Only training needs torch, ``pip install torch transformers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.training.training_run import TrainedDraft as TrainedDraft
    from specdec.training.training_run import train_draft as train_draft

__all__ = ["TrainedDraft", "train_draft"]

if not TYPE_CHECKING:  # torch is imported when a name is used

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        import_module("specdec.learning")  # says what is missing without torch
        value = getattr(import_module("specdec.training.training_run"), name)
        globals()[name] = value
        return value
