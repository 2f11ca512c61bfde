"""The tensors of a file that is written, made of those of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.models.checkpoints import Checkpoint
from specdec.models.families import Source
from specdec.models.number_formats import widened
from specdec.progress import reading_bar

__all__ = ["gathered", "stored_shapes"]

Array = NDArray[Any]


def stored_shapes(sources: list[Source]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the file's tensors, each when the last part of it is there."""
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    for i, source in enumerate(sources):
        for name, shape in zip(source.stored, source.stored_shapes, strict=True):
            if last[name] == i:
                yield name, shape


def gathered(
    checkpoint: Checkpoint, sources: list[Source], progress: bool | None, place: Path
) -> Iterator[tuple[str, Array]]:
    """The file's tensors in the order of `stored_shapes`, f32, made of those of the model."""
    shapes = {
        name: shape
        for source in sources
        for name, shape in zip(source.stored, source.stored_shapes, strict=True)
    }
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    begun: dict[str, Array] = {}
    bar = reading_bar(checkpoint.n_bytes, f"writing {place.name}", progress)
    try:
        for i, (source, (canonical, array, form)) in enumerate(
            zip(sources, checkpoint.tensors(), strict=True)
        ):
            assert source.canonical == canonical
            for name in source.stored:
                if name not in begun:
                    begun[name] = np.zeros(shapes[name], np.float32)
            source.put([begun[name] for name in source.stored], widened(array, form))
            if bar is not None:
                bar.update(array.nbytes)
            for name in source.stored:
                if last[name] == i:
                    yield name, begun.pop(name)
    finally:
        if bar is not None:
            bar.close()
