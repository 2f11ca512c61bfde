"""Tables of tokens that are narrower than the decoder: projected once, when they are read."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.families.family import wrong_shape
from specdec.models.number_formats import widened


@dataclass(frozen=True)
class ProjectedTable(FileTensor):
    """A table [n_vocab, width] times a projection: a tensor [n_vocab, d_model] in the place of the file's.

    The product is that of the row kernels, so that its bits are the same on every machine. The projection is
    [d_model, width], or, ``transposed``, [width, d_model].
    """

    table: FileTensor
    projection: FileTensor
    transposed: bool = False

    @classmethod
    def of(cls, table: FileTensor, projection: FileTensor, transposed: bool = False) -> ProjectedTable:
        """Return the product, whose bytes are those of both."""
        shape = table.shape[0], projection.shape[1 if transposed else 0]
        n_bytes = table.n_bytes + projection.n_bytes
        place = table.opened, table.name, "F32", shape, table.start, n_bytes
        return cls(*place, table, projection, transposed)

    @property
    def files(self) -> set[Path]:
        """The paths of both."""
        return {self.file, self.projection.file}

    def check(self, numbers: str = "") -> None:
        """Refuse factors in other formats than f32, f16 and bf16."""
        self.table.check(numbers)
        self.projection.check(numbers)

    def array(self, index: int | None = None, numbers: str = "") -> NDArray[np.float32]:
        """Return the product."""
        projection = _f32(self.projection)
        if self.transposed:
            projection = np.ascontiguousarray(projection.T)
        return _core.product(_f32(self.table), projection, "f32")


def settle_projections(
    config: dict[str, Any], tensors: MutableMapping[str, Any], names: tuple[str, str, str, str]
) -> dict[str, Any]:
    """Put projected tables in the place of a table of tokens and a head, where the files hold projections.

    A head that the files do not hold is the table; projected, the two differ.

    `config`: The canonical configuration, which is returned. `tensors`: By the names of the family's table;
    changed. `names`: Of the table, the head, and the projections after the one and before the other.
    """
    table, head, into, out = names
    if config["tied"] or not all(name in tensors for name in (table, into, out)):
        return config
    held = tensors[table]
    outer, into, out = tensors.get(head, held), tensors.pop(into), tensors.pop(out)
    width, d_model = max(1, *held.shape[-1:], 1), config["d_model"]
    of_table = (config["n_vocab"], width)
    for tensor, shape in (
        (held, of_table),
        (outer, of_table),
        (into, (d_model, width)),
        (out, (width, d_model)),
    ):
        if tensor.shape != shape:
            raise wrong_shape(
                tensor.file, tensor.name, tensor.shape, shape, f", with embeddings of {width} numbers"
            )
    tensors[table] = ProjectedTable.of(held, into)
    tensors[head] = ProjectedTable.of(outer, out, transposed=True)
    return config


def _f32(tensor: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(widened(tensor.array(), tensor.format))
