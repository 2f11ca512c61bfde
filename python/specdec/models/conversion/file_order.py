"""The tensors of a file that is written, and whether what is written is read as the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.models.checkpoints import Checkpoint
from specdec.models.families import Source
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import widened
from specdec.progress import reading_bar

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


Array = NDArray[Any]


def stored_shapes(sources: list[Source]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the file's tensors, each when the last part of it is there."""
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    for i, source in enumerate(sources):
        for name, shape in zip(source.stored, source.stored_shapes, strict=True):
            if last[name] == i:
                yield name, shape


def gathered(
    checkpoint: Checkpoint,
    sources: list[Source],
    types: Mapping[str, str],
    progress: bool | None,
    place: Path,
) -> Iterator[tuple[str, Array]]:
    """The file's tensors in the order of `stored_shapes`, f32, made of those of the model.

    `sources`: Where the tensors of the model go; several that one tensor goes to follow each other. `types`:
    The types that the file's tensors get. One that is made of blocks of this type alone is given as these,
    uint8, [rows, bytes of a row]. `place`: For the bar.
    """
    shapes = {
        name: shape
        for source in sources
        for name, shape in zip(source.stored, source.stored_shapes, strict=True)
    }
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    kept = _kept(checkpoint, sources, types)
    as_blocks = {source.canonical for source in sources if kept.issuperset(source.stored)}
    begun: dict[str, Array] = {}
    bar = reading_bar(checkpoint.n_bytes, f"writing {place.name}", progress)
    tensors = checkpoint.tensors(as_blocks)
    canonical, array, form = next(tensors)
    try:
        for i, source in enumerate(sources):
            if source.canonical != canonical:
                if bar is not None:
                    bar.update(array.nbytes)
                del array  # before the next is read
                canonical, array, form = next(tensors)
            if source.canonical != canonical:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor '{canonical}' comes where '{source.canonical}' is due; "
                    f"expected tensors in the order of {checkpoint.architecture}"
                )
            is_kept = canonical in as_blocks
            for name in source.stored:
                if name not in begun:
                    begun[name] = (
                        np.zeros((*shapes[name][:-1], array.shape[-1]), np.uint8)
                        if is_kept
                        else np.zeros(shapes[name], np.float32)
                    )
            parts = [begun[name] for name in source.stored]
            if is_kept:
                source.put_rows(parts, array)
            else:
                source.put(parts, widened(array, form))
            del parts
            for name in source.stored:
                if last[name] == i:
                    yield name, begun.pop(name)
    finally:
        if bar is not None:
            bar.close()


def _kept(checkpoint: Checkpoint, sources: list[Source], types: Mapping[str, str]) -> set[str]:
    """The file's tensors that get the blocks of the checkpoint as they are."""
    held = {} if checkpoint.stored is None else checkpoint.stored.blocks
    parts: dict[str, list[Source]] = {}
    for source in sources:
        for name in source.stored:
            parts.setdefault(name, []).append(source)
    kept = {
        name
        for name, of in parts.items()
        if all(
            source.entry.keeps_rows and len(source.stored) == 1 and held.get(source.canonical) == types[name]
            for source in of
        )
    }
    wanted = {source.canonical for source in sources if not kept.issuperset(source.stored)}  # as numbers
    return {name for name in kept if wanted.isdisjoint(source.canonical for source in parts[name])}
