"""Public import path of the checkpoint loaders; see `specdec.models.checkpoints`."""

from specdec.models.checkpoints import CanonicalTensor, Checkpoint, open_checkpoint

__all__ = ["CanonicalTensor", "Checkpoint", "open_checkpoint"]
