"""Native multi-token prediction (MTP) blocks, from the target's files or a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from specdec.drafts.learned.eagle.published import PublishedDraft, joined_config
from specdec.errors import CheckpointError, InputError, UnsupportedModelError, warn
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints.gguf_model import is_gguf_file, mtp_prefixes, read_metadata
from specdec.models.checkpoints.hf_folder import codes_reader, held_tensors
from specdec.models.checkpoints.matching import (
    canonical_tensors,
    own_dtype,
    stored_tensors,
    unused_tensors,
)
from specdec.models.families import FAMILIES, Family, architecture_of, coded_sources
from specdec.models.families import gguf as gguf_families
from specdec.models.families.family import MtpLayout
from specdec.models.model import Model
from specdec.models.number_formats import Dtype, one_dtype

_ONE: Final = "1: one block, which reads its own output"


@dataclass(frozen=True)
class _Blocks:
    """MTP blocks in files: the family of their names, and the tensors by names that have layer 0."""

    family: Family
    layout: MtpLayout
    layer: str  # prefix of the family's layer 0
    tensors: Mapping[str, Any]
    coded: bool  # whether names of quantized tensors have entries of their own
    file: Path  # that describes the model


def open_mtp_block(
    target: Model, path: Path, *, normed_input: bool, normed_feedback: bool, dtype: Dtype | None
) -> PublishedDraft:
    """Open the MTP block of a target in `path`: a folder or a GGUF file."""
    blocks = _in_gguf(target, path) if is_gguf_file(path) else _in_folder(target, path)
    config, tensors = _config_of(target), blocks.tensors
    table = blocks.family.tensors
    entries = {**(table(config) if callable(table) else table), **blocks.layout.entries(blocks.layer)}
    try:
        sources = list(replace(blocks.family, tensors=entries).sources(config, tensors.__contains__))
    except ValueError as error:  # from the core, which names the field of the canonical configuration
        raise CheckpointError(f"{path}: {error}") from error
    if blocks.coded:
        sources = coded_sources(sources, {name for name, tensor in tensors.items() if tensor.is_coded})
    own = blocks.layout.block.format(n=target.config.n_layer)
    if unknown := unused_tensors(path, sources, tensors, blocks.layer, own):
        names = ", ".join(repr(tensors[name].name) for name in unknown[:5])
        raise UnsupportedModelError(f"{path}: holds tensors that the MTP block does not use: {names}")
    stored = stored_tensors(path, sources, tensors) if dtype is None and target.dtype == "file" else None
    if stored is not None and stored.message:
        warn(stored.message)
    if dtype is None:
        dtype = own_dtype(sources, tensors) if target.dtype == "file" else one_dtype(target.dtype)
    read = partial(canonical_tensors, sources, tensors, stored.blocks if stored else (), True)
    files = (blocks.file, *sorted({tensor.file for tensor in tensors.values()} - {blocks.file}))
    layers = (target.config.n_layer + normed_input,)
    return PublishedDraft(
        path, "MTP", config, read, dtype, files, layers, None, normed_feedback,
        formats=stored.formats if stored else {},
    )  # fmt: skip


def _config_of(target: Model) -> dict[str, Any]:
    """Return the canonical configuration of the block: the target's last layer with attention."""
    mixers = target.config.mixers
    if mixers and "attention" not in mixers:
        raise UnsupportedModelError(f"{target.path}: has no layer with attention, which the block needs")
    joined = joined_config(target) | {"feature_norms": True, "shared_embedding": True}
    return target.config.last_attention() | joined


def _in_folder(target: Model, path: Path) -> _Blocks:
    """Find the MTP block of a Hugging Face folder."""
    file = path / "config.json"
    if not file.is_file():
        expected = "the folder or GGUF file that the target was made from, as path="
        raise UnsupportedModelError(f"{path}: has no MTP block; expected {expected}")
    fields = Fields(read_json_object(file), file)
    name = architecture_of(fields, file)
    family = FAMILIES[name]
    if family.mtp is None:
        names = ", ".join(one for one, other in FAMILIES.items() if other.mtp is not None)
        found = f"is a {name}, which has no supported MTP block"
        raise UnsupportedModelError(f"{path} {found}; expected one of {names}")
    decoder = family.decoder_fields(fields)
    if family.n_mtp_blocks(decoder) != 1:
        raise decoder.unsupported(family.mtp.count(decoder), _ONE)
    reader = codes_reader(fields, family)
    held, layer = held_tensors(path, family, reader), "model.layers.0."
    tensors = _of_block(target, path, family.mtp, layer, held)
    return _Blocks(family, family.mtp, layer, tensors, reader is not None, file)


def _in_gguf(target: Model, path: Path) -> _Blocks:
    """Find the MTP block of a GGUF file."""
    _, metadata = read_metadata(path)
    if metadata.n_mtp_blocks == 0:
        expected = (
            "a file that was converted with it (many published files are not; repositories of those that are "
            "often end in -MTP-GGUF), or a separate file or the model's folder, as path=: "
            "drafts.MTP(target, 'mtp-NAME.gguf')"
        )
        raise UnsupportedModelError(f"{path}: has no MTP block; expected {expected}")
    if metadata.n_mtp_blocks != 1:
        raise metadata.unsupported("nextn_predict_layers", _ONE)
    if metadata.n_layer != target.config.n_layer:
        expected = f"the {target.config.n_layer} of {target.path}"
        raise InputError(f"{path} is for a target of {metadata.n_layer} layers; expected {expected}")
    architecture = gguf_families.architecture_of(metadata.name, path)
    family = architecture.family(FAMILIES[architecture.architecture(metadata)])
    assert family.mtp is not None
    prefixes, layer = mtp_prefixes(metadata), "blk.0."
    held = {name: tensor for name, tensor in metadata.tensors.items() if name.startswith(prefixes)}
    tensors = _of_block(target, path, family.mtp, layer, held)
    return _Blocks(family, family.mtp, layer, tensors, False, path)


def _of_block(
    target: Model, path: Path, layout: MtpLayout, layer: str, held: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tensors of the first block by names that have layer 0, without copies of the target's."""
    n_layer = target.config.n_layer
    own, roots = layout.block.format(n=n_layer), layout.roots(n_layer, 1)
    found = {
        layer + name.removeprefix(own) if name.startswith(own) else name: tensor
        for name, tensor in held.items()
        if name.startswith(roots)
    }
    for copy in layout.copies:
        found.pop(layer + copy[1:], None)
    if not found:
        expected = f"tensors {own}*, as in the files that the model's authors publish: name those as path="
        raise UnsupportedModelError(f"{path}: has no MTP block; expected {expected}")
    return found
