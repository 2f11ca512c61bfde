"""LoRA adapters, matched with a base model and merged into its weights or attached unmerged.

LoRA (arXiv 2106.09685) adds a low-rank product to a matrix W: W + scale · B A.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.errors import CheckpointError, SpecdecError, UnsupportedModelError
from specdec.models.checkpoints import CanonicalTensor, Checkpoint
from specdec.models.checkpoints.peft_folder import PeftFolder, StoredLowRank, open_peft_folder
from specdec.models.families import FAMILIES, Source
from specdec.models.families.family import wrong_shape
from specdec.models.number_formats import widened

_ADAPTABLE: Final = re.compile(
    r"layers\.\d+\.(attn_(?:q|k|v|gate|out)|mixer_(?:in|gate|out)|mlp_(?:gate|up|down))\.weight|head"
)
"""Canonical names of matrices that support unmerged adapters."""

_MERGE: Final = "or merge it: specdec.load(..., adapter=...)"
_MOST_ERROR: Final = 0.5
"""Bound of the relative change of a matrix by quantization; for another matrix it is above 1."""


@dataclass(frozen=True)
class LowRank:
    """The low-rank matrices of one model tensor, the `source`."""

    stored: StoredLowRank
    source: Source

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return down [rank, n_cols] and up [n_rows, rank], f32 or infinite; W + up · down is adapted."""
        down = widened(self.stored.down.array(), self.stored.down.format)
        with np.errstate(over="ignore", invalid="ignore"):
            up = widened(self.stored.up.array(), self.stored.up.format) * np.float32(self.stored.scale)
        if self.stored.of_table:
            down, up = up.T, down.T
        if (entry := self.source.entry).moves_inputs:
            down = entry.view(down, down.shape, self.source.config)
        return np.ascontiguousarray(down), self._rows(up)

    def lengths(self) -> NDArray[np.float32] | None:
        """Return DoRA's row norms of the adapted tensor, [n_rows, 1] f32; None without DoRA."""
        stored = self.stored.magnitude
        return None if stored is None else self._rows(widened(stored.array(), stored.format)[:, np.newaxis])

    def base(self) -> NDArray[np.float32] | None:
        """Return the base tensor saved with the adapter, [n_rows, n_cols] f32, or None."""
        stored = self.stored.base
        return None if stored is None else widened(*self.source.take([stored.array()], stored.format))

    def _rows(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an array [module outputs, n] in the order of the tensor's rows."""
        entry, shape = self.source.entry, self.source.shape
        whole = array.T if entry.inputs_first else array
        if entry.moves_inputs:
            return np.ascontiguousarray(whole, dtype=np.float32)
        rows = entry.view(whole, (shape[0], array.shape[1]), self.source.config)
        return np.ascontiguousarray(rows, dtype=np.float32)


@dataclass(frozen=True)
class FittedAdapter:
    """An adapter matched with a model's tensors by canonical name; `whole` tensors are replaced."""

    folder: PeftFolder
    low_rank: Mapping[str, LowRank]
    whole: Mapping[str, Source]

    def replaced(self, name: str) -> tuple[NDArray[Any], str]:
        """Return a replacement tensor and its number format."""
        source = self.whole[name]
        stored = [self.folder.whole[given] for given in source.stored]
        return source.take([tensor.array() for tensor in stored], stored[0].format)


def fit_adapter(
    path: Path, architecture: str, config: Mapping[str, Any], base: Path, *, merging: bool
) -> FittedAdapter:
    """Match an adapter with the base of this architecture and configuration, at the path `base`."""
    folder = open_peft_folder(path)
    if (family := FAMILIES.get(architecture)) is None:
        raise UnsupportedModelError(
            f"{base}: is a {architecture}, which does not support adapters; expected one of "
            f"{', '.join(FAMILIES)}"
        )
    if folder.whole and not merging:
        first = next(iter(folder.whole.values()))
        found = f"'{first.name}' replaces a tensor of the base"
        raise UnsupportedModelError(f"{first.file}: {found}; expected only low-rank matrices, {_MERGE}")
    dora = [stored for stored in folder.low_rank.values() if stored.magnitude is not None]
    if dora and not merging:
        found = f"uses DoRA ('{dora[0].module}'), which is not supported unmerged"
        raise UnsupportedModelError(f"{path}: {found}; expected plain LoRA, {_MERGE}")
    full_name = family.full_name
    modules = {full_name(f"{name}.weight") or name: stored for name, stored in folder.low_rank.items()}
    whole_tensors = {full_name(name) or name: tensor for name, tensor in folder.whole.items()}
    folder = replace(folder, whole=whole_tensors)
    low_rank: dict[str, LowRank] = {}
    whole: dict[str, Source] = {}
    used: set[str] = set()
    for source in family.sources(config, lambda name: name in modules or name in folder.whole):
        names = [name for name in source.stored if name in modules or name in folder.whole]
        if not names:
            continue
        used.update(names)
        if config["tied"] and source.canonical in ("token_embedding", "head"):
            found = f"adapts '{names[0]}', which is both embedding and head of {base}"
            raise UnsupportedModelError(f"{path}: {found}; expected an adapter of other tensors")
        if names[0] in folder.whole:
            if missing := [name for name in source.stored if name not in names]:
                found = f"replaces '{names[0]}' but not '{missing[0]}'"
                raise CheckpointError(f"{folder.path}: {found}; expected both")
            for name, shape in zip(source.stored, source.stored_shapes, strict=True):
                held = folder.whole[name]
                if held.shape != shape:
                    raise wrong_shape(held.file, held.name, held.shape, shape)
            whole[source.canonical] = source
        else:
            low_rank[source.canonical] = LowRank(_checked(modules[names[0]], source), source)
    for name in [*modules, *folder.whole]:
        if name not in used:
            raise CheckpointError(f"{path}: adapts '{name}', which {base} lacks; expected its own base model")
    return FittedAdapter(folder, low_rank, whole)


def _checked(stored: StoredLowRank, source: Source) -> StoredLowRank:
    entry = source.entry
    if len(source.shape) != 2 or entry.index is not None or not entry.is_view:
        found = f"adapts '{source.stored[0]}', which is not a separate matrix"
        raise UnsupportedModelError(f"{stored.down.file}: {found}; expected adapters of separate matrices")
    n_rows, n_cols = source.stored_shapes[0]
    if entry.inputs_first or stored.of_table:
        n_rows, n_cols = n_cols, n_rows
    if (stored.up.shape[0], stored.down.shape[1]) != (n_rows, n_cols):
        up, down = stored.up, stored.down
        found = f"'{up.name}' has shape {list(up.shape)} and '{down.name}' {list(down.shape)}"
        expected = f"[{n_rows}, {stored.rank}] and [{stored.rank}, {n_cols}]"
        why = f"because '{source.stored[0]}' has shape {list(source.stored_shapes[0])}"
        raise CheckpointError(f"{down.file}: {found}; expected {expected}, {why}")
    if stored.base is not None and stored.base.shape != (shape := source.stored_shapes[0]):
        base, whose = stored.base, f", the shape of '{source.stored[0]}' in the base"
        raise wrong_shape(base.file, base.name, base.shape, shape, whose)
    if stored.of_table != (source.canonical == "token_embedding"):
        found = f"'{stored.down.name}' is {'for' if stored.of_table else 'not for'} an embedding"
        expected = f"the opposite for '{source.stored[0]}'"
        raise UnsupportedModelError(f"{stored.down.file}: {found}; expected {expected}")
    return stored


def merged(checkpoint: Checkpoint, path: Path) -> tuple[Checkpoint, FittedAdapter]:
    """Return a checkpoint with an adapter merged into its tensors, and the adapter."""
    fitted = fit_adapter(path, checkpoint.architecture, checkpoint.config, checkpoint.path, merging=True)

    def tensors(as_blocks: Container[str], in_file: bool) -> Iterator[CanonicalTensor]:
        for name, array, number_format in checkpoint.tensors():
            if name in fitted.whole:
                yield (name, *fitted.replaced(name))
            elif name in fitted.low_rank:
                low_rank = fitted.low_rank[name]
                base = low_rank.base()
                yield name, _sum(low_rank, widened(array, number_format) if base is None else base), "f32"
            else:
                yield name, array, number_format

    return replace(checkpoint, _tensors=tensors, stored=None), fitted


def _sum(low_rank: LowRank, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """Add the low-rank product to a tensor in f32; with DoRA, scale the rows to their norms."""
    down, up = low_rank.arrays()
    lengths = low_rank.lengths()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found: NDArray[np.float32] = tensor + up @ down
        if lengths is not None:
            found *= lengths / np.linalg.norm(found, axis=1, keepdims=True)
    if not np.isfinite(found).all() and np.isfinite(tensor).all():
        what = f"'{low_rank.source.stored[0]}' is not finite with the adapter"
        raise CheckpointError(f"{low_rank.stored.down.file}: {what}; expected finite numbers")
    return found


def attach_adapter(core: _core.Model, fitted: FittedAdapter, base: Path, n_threads: int) -> _core.Model:
    """Return a model that shares the weights of `core` and adds the unmerged adapter."""
    path = fitted.folder.path
    config = core.config
    if config.get("encoder") is not None:
        found = f"cannot be used unmerged with {base}, which has an encoder"
        raise UnsupportedModelError(f"{path}: {found}; expected a decoder-only model, {_MERGE}")
    for name, low_rank in fitted.low_rank.items():
        if not _ADAPTABLE.fullmatch(name):
            found = f"adapts '{low_rank.source.stored[0]}', which is not supported unmerged"
            expected = "matrices of attention, of dense MLPs, and the head"
            raise UnsupportedModelError(f"{path}: {found}; expected {expected}, {_MERGE}")
        saved = low_rank.base()
        if saved is not None:
            moved = np.linalg.norm(core.matrix(name) - saved)  # by quantization
            if not moved <= _MOST_ERROR * np.linalg.norm(saved):
                found = f"was trained with another '{low_rank.source.stored[0]}' than {base}"
                raise CheckpointError(f"{path}: {found}; expected an adapter of this base, {_MERGE}")
    tensors = (
        (f"{name}.{part}", array, "f32")
        for name, low_rank in fitted.low_rank.items()
        for part, array in zip(("down", "up"), low_rank.arrays(), strict=True)
    )
    ranks = {name: low_rank.stored.rank for name, low_rank in fitted.low_rank.items()}
    try:
        return core.adapted(ranks, tensors, n_threads=n_threads)
    except SpecdecError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
