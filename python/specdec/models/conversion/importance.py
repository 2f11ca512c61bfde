"""Importance of matrix inputs for quantization.

The importance of an input is the mean square of its activations on some text. Weighted by it, the squared
errors of a row of weights sum to about the mean squared error of its output, as in ``llama-imatrix``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.checkpoints.gguf_file import is_gguf, read_gguf
from specdec.models.families import Source
from specdec.models.model import Model
from specdec.progress import reading
from specdec.threads import check_threads

_SUMS: Final = ".in_sum2"
_CHUNK: Final = 512  # tokens per piece, as in llama-imatrix
_NO_LIMIT: Final = 2**31 - 1

Array = NDArray[Any]


@dataclass(frozen=True)
class Importance:
    """Mean squares of matrix inputs, f32 [n_in], or [n_experts, n_in] for experts in a GGUF file."""

    of_stored: Mapping[str, Array] = field(default_factory=dict)
    of_canonical: Mapping[str, Array] = field(default_factory=dict)

    def of(self, stored: str, made_of: Sequence[Source], shape: tuple[int, ...]) -> Array | None:
        """Return the importance of a file's tensor that is made of these matrices; None if unknown."""
        found = self.of_stored.get(stored)
        if found is None:
            parts = [(source.entry.index, self.of_canonical.get(source.canonical)) for source in made_of]
            experts = {index or 0: means for index, means in parts if means is not None}
            if not parts or len(experts) < len({index for index, _ in parts}):
                return None
            every = [experts[expert] for expert in sorted(experts)]
            found = every[0] if parts[0][0] is None else np.stack(every)
        if found.shape not in ((shape[-1],), (shape[0], shape[-1])):
            what = f"importance of tensor '{stored}' is for {list(found.shape)} inputs"
            raise CheckpointError(f"{what}; expected {shape[-1]}")
        return found


def importance_of(path: Path, load: Callable[[], Model], progress: bool | None) -> Importance:
    """Read an importance file of ``llama-imatrix``, or measure importance on a text file."""
    if is_gguf(path):
        return _read(path)
    opened = OpenedFile(path)
    try:
        text = opened.read(0, opened.size).tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"is neither a GGUF file nor UTF-8 text: {error}"
        raise CheckpointError(f"{path}: {found}; expected output of llama-imatrix, or a text") from error
    return _measured(load(), text, check_threads(None), progress)


def _read(path: Path) -> Importance:
    file, held = read_gguf(path)
    found: dict[str, Array] = {}
    for name, tensor in held.items():
        if not name.endswith(_SUMS) or (counts := held.get(name.removesuffix(_SUMS) + ".counts")) is None:
            continue
        n_rows = counts.numbers().reshape(-1, 1)
        if len(tensor.shape) != 2 or len(n_rows) not in (1, tensor.shape[0]):
            raise CheckpointError(
                f"{path}: tensor '{name}' has shape {list(tensor.shape)} but {len(n_rows)} counts; "
                "expected sums of one matrix, or of each expert"
            )
        means = tensor.numbers() / np.maximum(n_rows, 1.0)
        if not np.isfinite(means).all() or (means < 0.0).any():
            raise CheckpointError(f"{path}: tensor '{name}' has invalid values; expected sums of squares")
        found[name.removesuffix(_SUMS)] = means[0] if len(means) == 1 else means
    if not found:
        raise file.error(
            f"has no tensors '...{_SUMS}' with '....counts'; expected output of llama-imatrix, or a text"
        )
    return Importance(of_stored=found)


def _measured(model: Model, text: str, n_threads: int, progress: bool | None) -> Importance:
    """Measure the matrix inputs of a decoder-only model on a text."""
    if model.config.encoder is not None:
        expected = "a decoder-only model, or importance from llama-imatrix"
        raise InputError(f"{model.path} has an encoder; expected {expected}")
    tokens = model.check_ids(text, minimum=2, maximum=_NO_LIMIT)
    size = min(_CHUNK, model.config.n_ctx)
    pieces = [tokens[first : first + size] for first in range(0, len(tokens), size)]
    tables = ("embedding", "relative_bias", "mixer_conv")  # which have no products
    shapes = _core.tensor_shapes(model.core.config)
    names = [name for name, of in shapes.items() if len(of) == 2 and not name.endswith(tables)]

    def sums(piece: NDArray[np.int32]) -> dict[str, tuple[Array, int]]:
        decoder = _core.Decoder(model.core, capacity=len(piece), input_sums=True)
        decoder.prefill(piece, last=True, finite=True)
        return {name: decoder.input_sums(name) for name in names}

    total: dict[str, Array] = {}
    n_rows = dict.fromkeys(names, 0)
    with (
        ThreadPoolExecutor(n_threads) as threads,
        reading(4 * len(tokens), "measuring importance", progress) as done,
    ):
        for piece, found in zip(pieces, threads.map(sums, pieces), strict=True):
            for name, (squares, n) in found.items():  # in text order, as f64 sums are rounded
                total[name] = total[name] + squares if name in total else squares
                n_rows[name] += n
            done(4 * len(piece))
    if model.config.parallel == "one_norm":  # attention and MLP share one input, counted once
        for name in names:
            if name.endswith("mlp_up.weight"):
                for part in "qkv":
                    other = name.replace("mlp_up", f"attn_{part}")
                    total[other], n_rows[other] = total[name], n_rows[name]
    means = {name: squares / max(n_rows[name], 1) for name, squares in total.items()}
    return Importance(of_canonical={name: of.astype(np.float32) for name, of in means.items()})
