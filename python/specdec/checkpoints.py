"""Loaders of model files, under the name by which programs import them; see `specdec.models.checkpoints`."""

from specdec.models.checkpoints import CanonicalTensor, Checkpoint, open_checkpoint

__all__ = ["CanonicalTensor", "Checkpoint", "open_checkpoint"]
