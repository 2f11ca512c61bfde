"""Tensors in the order of an output file, and the check that the file describes the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.models.checkpoints import Checkpoint
from specdec.models.families import Source
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import widened
from specdec.progress import reading

PACKED_HOLDS: Final = "out may end in .specdec, which holds every model"
_CLOSE: Final = 1e-5  # relative; metadata are f32

Array = NDArray[Any]


def check_same(checkpoint: Checkpoint, config: Mapping[str, Any], what: str, path: Path) -> None:
    """Check that the written configuration, encoder included, reads back as the checkpoint's."""
    ours: ModelConfig | None = ModelConfig.from_canonical(checkpoint.config)
    theirs: ModelConfig | None = ModelConfig.from_canonical(config)
    cannot = f"{checkpoint.path}: is a model that {what} cannot describe"
    while ours is not None and theirs is not None:
        for name in ours:
            if name != "encoder" and not _close(ours[name], theirs[name]):
                found = f"{name} is {ours[name]}, but {path.name} would read as {theirs[name]}"
                raise UnsupportedModelError(f"{cannot}: {found} ({PACKED_HOLDS})")
        ours, theirs = ours.encoder, theirs.encoder
    if ours is not theirs:
        one, other = ("no encoder" if of is None else "an encoder" for of in (ours, theirs))
        raise UnsupportedModelError(f"{cannot}: it has {one}, but {path.name} has {other} ({PACKED_HOLDS})")


def _close(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=_CLOSE)
    return bool(ours == theirs)


def stored_shapes(sources: list[Source]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the file's tensors, each after its last part."""
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
    path: Path,
) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of `stored_shapes`, f32, or as blocks [rows, bytes] if `types` has their type."""
    shapes = dict(stored_shapes(sources))
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    kept = _kept(checkpoint, sources, types)
    as_blocks = {source.canonical for source in sources if kept.issuperset(source.stored)}
    begun: dict[str, Array] = {}
    tensors = checkpoint.tensors(as_blocks)
    canonical, array, number_format = next(tensors)
    with reading(checkpoint.n_bytes, f"writing {path.name}", progress) as done:
        for i, source in enumerate(sources):
            if source.canonical != canonical:
                done(array.nbytes)
                del array  # freed before the next is read
                canonical, array, number_format = next(tensors)
            if source.canonical != canonical:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor '{canonical}' comes before '{source.canonical}'; "
                    f"expected the tensor order of {checkpoint.architecture}"
                )
            is_kept = canonical in as_blocks
            for name in source.stored:
                shape = (*shapes[name][:-1], array.shape[-1]) if is_kept else shapes[name]
                if name not in begun:
                    begun[name] = np.zeros(shape, np.uint8 if is_kept else np.float32)
            parts = [begun[name] for name in source.stored]
            source.put(parts, array if is_kept else widened(array, number_format))
            del parts
            for name in source.stored:
                if last[name] == i:
                    yield name, begun.pop(name)


def _kept(checkpoint: Checkpoint, sources: list[Source], types: Mapping[str, str]) -> set[str]:
    """Return the file's tensors that keep the checkpoint's blocks."""
    held = {} if checkpoint.stored is None else checkpoint.stored.blocks
    pairs = [(source, name) for source in sources for name in source.stored]
    kept = set(types)
    for source, name in pairs:
        is_whole = source.entry.keeps_rows and len(source.stored) == 1
        if not is_whole or held.get(source.canonical) != types[name]:
            kept.discard(name)
    as_numbers = {source.canonical for source in sources if not kept.issuperset(source.stored)}
    return kept - {name for source, name in pairs if source.canonical in as_numbers}
