"""Whether what is written is read as the same model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specdec.errors import UnsupportedModelError
from specdec.models.checkpoints import Checkpoint
from specdec.models.model_config import ModelConfig

__all__ = ["check_same"]

_CLOSE: Final = 1e-5  # relative: numbers of metadata are f32


def check_same(checkpoint: Checkpoint, config: Mapping[str, Any], what: str, place: Path) -> None:
    """Compare the configuration that will be read with that of the checkpoint."""
    ours, theirs = ModelConfig.from_canonical(checkpoint.config), ModelConfig.from_canonical(config)
    for name in ours:
        if name != "encoder" and not _close(ours[name], theirs[name]):
            raise UnsupportedModelError(
                f"{checkpoint.path}: is a model that {what} cannot describe: {name} is {ours[name]}, and "
                f"{place.name} would say {theirs[name]}"
            )
    if (ours.encoder is None) != (theirs.encoder is None):
        raise UnsupportedModelError(
            f"{checkpoint.path}: is a model that {what} cannot describe: it has {_encoder(ours)}, and "
            f"{place.name} would say that it has {_encoder(theirs)}"
        )
    if ours.encoder is not None and theirs.encoder is not None:
        inner = replace(checkpoint, config=dict(ours.encoder))
        check_same(inner, dict(theirs.encoder), what, place)


def _encoder(config: ModelConfig) -> str:
    return "no encoder" if config.encoder is None else "an encoder"


def _close(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=_CLOSE)
    return bool(ours == theirs)
