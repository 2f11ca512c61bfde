"""Quantization error of a model's matrices and cross-entropy against its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints import Checkpoint, open_checkpoint
from specdec.models.number_formats import CacheDtype, widened
from specdec.progress import reading
from specdec.tables import OneTable, Table
from specdec.threads import check_threads

_BLOCK = 32  # weights per 16-bit scale in int8 and int4
_IN_F32 = "router.weight", "shared_gate.weight", "mixer_beta.weight", "mixer_decay.weight"
_CODE_BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4}
_BITS = {
    **{"q4_1": 5.0, "q5_0": 5.5, "q5_1": 6.0, "iq4_nl": 4.5, "mxfp4": 4.25},
    **{"q2_k": 2.625, "q3_k": 3.5625, "q4_k": 4.625, "q5_k": 5.625, "q6_k": 6.5625, "iq4_xs": 4.3125},
}  # of ggml types in packed panels (csrc/kernels/format.h)
_NO_LIMIT = 2**31 - 1
TEXT = (files("specdec") / "embedded" / "novel.txt").read_text("utf-8")
"""The opening of Jane Austen's Pride and Prejudice (1813)."""
_CHUNK = 1 << 20  # elements compared at a time


@dataclass(frozen=True)
class MatrixError:
    """Error of a quantized matrix V of W.

    Attributes
    ----------
    name : str
        Canonical name of the tensor.
    shape : tuple of int
        (n_out, n_in).
    relative_error : float
        ‖W − V‖ / ‖W‖ in the Frobenius norm; 0 for a matrix of zeros.
    largest_error : float
        Maximum of |W − V|.
    bits_per_weight : float
        Scales included; an incomplete last block counts as a whole one.
    """

    name: str
    shape: tuple[int, ...]
    relative_error: float
    largest_error: float
    bits_per_weight: float


@dataclass(frozen=True, repr=False)
class QuantizationReport(OneTable):
    """Quantization error of a model, from `Model.quantization_report`; ``print`` shows all of it.

    Attributes
    ----------
    path : Path
        The checkpoint.
    dtype, cache_dtype : str
        Number formats of the matrices and of the KV cache.
    n_bytes : int
        Memory of the packed weights.
    matrices : tuple of MatrixError
        In the model's order; with embeddings only if the head is tied to them.
    relative_error : float
        Of all matrices together.
    n_tokens : int
        Tokens predicted to measure the cross-entropies; 0 without text.
    cross_entropy, cross_entropy_f32 : float or None
        Nats per token of the model and of its checkpoint in f32; None without text.
    """

    path: Path
    dtype: str
    cache_dtype: CacheDtype
    n_bytes: int
    matrices: tuple[MatrixError, ...]
    relative_error: float
    n_tokens: int
    cross_entropy: float | None
    cross_entropy_f32: float | None

    @property
    def bits_per_weight(self) -> float:
        """Mean over all weights."""
        n_weights = [math.prod(matrix.shape) for matrix in self.matrices]
        n_bits = [n * matrix.bits_per_weight for n, matrix in zip(n_weights, self.matrices, strict=True)]
        return sum(n_bits) / sum(n_weights)

    @property
    def perplexity(self) -> float | None:
        """exp(cross_entropy)."""
        return None if self.cross_entropy is None else math.exp(self.cross_entropy)

    @property
    def perplexity_f32(self) -> float | None:
        """exp(cross_entropy_f32)."""
        return None if self.cross_entropy_f32 is None else math.exp(self.cross_entropy_f32)

    def to_dict(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return super().to_dict() | {
            "bits_per_weight": self.bits_per_weight,
            "perplexity": self.perplexity,
            "perplexity_f32": self.perplexity_f32,
        }

    def __repr__(self) -> str:
        return f"<specdec.QuantizationReport {str(self.path)!r}: {'; '.join(self._summary())}>"

    def _summary(self) -> list[str]:
        error = self.relative_error
        lines = [
            f"{self.dtype}: {self.bits_per_weight:.3g} bits per weight, {self.n_bytes / 1e6:.1f} MB",
            f"relative error of the weights {error:.2e}" if error else "weights exact",
        ]
        if self.cross_entropy is not None and self.cross_entropy_f32 is not None:
            lines.append(
                f"perplexity {self.perplexity:.4g}, in f32 {self.perplexity_f32:.4g} "
                f"({self.cross_entropy - self.cross_entropy_f32:+.4f} nats on {self.n_tokens} tokens)"
            )
        return lines

    def table(self) -> Table:
        """Return a summary and a table of matrices."""
        rows = []
        for matrix in self.matrices:
            shape = " × ".join(map(str, matrix.shape))
            relative, largest = (
                f"{error:.2e}" if error else "0" for error in (matrix.relative_error, matrix.largest_error)
            )
            rows.append((matrix.name, shape, relative, largest, f"{matrix.bits_per_weight:.3g}"))
        head = ("matrix", "shape", "relative error", "largest error", "bits per weight")
        return Table("\n".join([str(self.path), *self._summary(), ""]), head, rows)


def report(
    model: Any, ids: Any, source: Any, n_threads: int | None, progress: bool | None
) -> QuantizationReport:
    """Measure a `Model.quantization_report`."""
    threads = check_threads(n_threads)
    if model.base is not None:
        raise InputError(f"{model!r} has an unmerged adapter; expected its base, Model.base")
    if ids is None and model.tokenizer is not None and model.config.encoder is None:
        ids = TEXT
    tokens = None if ids is None else model.check_ids(ids, minimum=2, maximum=_NO_LIMIT)
    read = None if ids is None else model.source_of(source)
    if model.origin is None:
        raise InputError(f"{model.path} is a model made in memory; expected a model from specdec.load")
    checkpoint = open_checkpoint(model.path, tokenizer=False, n_ctx=model.config.n_ctx)
    if model.config != model.config.from_canonical(checkpoint.config):
        raise CheckpointError(
            f"{model.path}: has another configuration than when it was loaded; expected the same checkpoint"
        )
    matrices, relative_error = _compare(checkpoint, model.dtype, model.core.matrix, progress)
    ours = f32 = np.empty(0)
    if tokens is not None:
        ours = f32 = _log_probs(model, tokens, read, threads)
        if (model.dtype, model.cache_dtype) != ("f32", "f32"):
            options = {"tokenizer": False, "n_ctx": model.config.n_ctx, "progress": progress}
            exact = model.origin.load(model.path, "f32", cache_dtype="f32", n_threads=threads, **options)
            f32 = _log_probs(exact, tokens, read, threads)
    return QuantizationReport(
        path=model.path, dtype=model.dtype, cache_dtype=model.cache_dtype, n_bytes=model.n_bytes,
        matrices=tuple(matrices), relative_error=relative_error, n_tokens=len(ours),
        cross_entropy=-float(ours.mean()) if len(ours) else None,
        cross_entropy_f32=-float(f32.mean()) if len(f32) else None,
    )  # fmt: skip


def _log_probs(model: Any, tokens: NDArray[np.int32], source: Any, n_threads: int) -> NDArray[np.float64]:
    n_ctx = model.config.n_ctx
    pieces = [tokens[first : first + n_ctx] for first in range(0, len(tokens), n_ctx)]
    scores = [model.score(piece, source, n_threads=n_threads) for piece in pieces if len(piece) > 1]
    return np.concatenate(scores)


def _compare(
    checkpoint: Checkpoint, dtype: str, matrix: Callable[[str], NDArray[np.float32]], progress: bool | None
) -> tuple[list[MatrixError], float]:
    """Compare each packed matrix, [n_out, n_in] f32, with the checkpoint's; return errors and their total."""
    matrices: list[MatrixError] = []
    all_lost = all_held = 0.0
    formats = checkpoint.stored.formats if dtype == "file" and checkpoint.stored else {}
    with reading(checkpoint.n_bytes, "comparing", progress) as done:
        for name, array, number_format in checkpoint.tensors():
            # Embeddings are f32 or bf16, except a tied head, which is a matrix too.
            tables = (
                "position_embedding", "relative_bias", "encoder.token_embedding", "mixer_conv",
                "per_layer_embedding",
            )  # fmt: skip
            is_table = name.endswith(tables) or (name == "token_embedding" and not checkpoint.config["tied"])
            if array.ndim == 2 and not is_table:
                lost, held, largest = _difference(array, number_format, matrix(name))
                bits = _bits(name, formats.get(name, dtype), array.shape[1])
                matrices.append(MatrixError(name, array.shape, _root(lost, held), largest, bits))
                all_lost, all_held = all_lost + lost, all_held + held
            done(array.nbytes)
    return matrices, _root(all_lost, all_held)


def _difference(
    stored: NDArray[Any], number_format: str, packed: NDArray[np.float32]
) -> tuple[float, float, float]:
    """Return the sums of squared differences and squared weights, and the largest difference."""
    lost = held = largest = 0.0
    n_rows = max(1, _CHUNK // stored.shape[1])
    for first in range(0, len(stored), n_rows):
        rows = slice(first, first + n_rows)
        weights = widened(stored[rows], number_format).astype(np.float64)
        difference = weights - packed[rows]
        lost += float(np.square(difference).sum())
        held += float(np.square(weights).sum())
        largest = max(largest, float(np.abs(difference).max()))
    return lost, held, largest


def _root(lost: float, held: float) -> float:
    return math.sqrt(lost / held) if held else 0.0


def _bits(name: str, dtype: str, n_in: int) -> float:
    """Return the bits per weight of the matrix `name`; routers stay in f32."""
    if dtype in _BITS:
        return _BITS[dtype]
    bits = _CODE_BITS["f32" if name.endswith(_IN_F32) else dtype]
    if bits > 8:
        return bits
    return -(-n_in // _BLOCK) * (_BLOCK * bits + 16) / n_in
