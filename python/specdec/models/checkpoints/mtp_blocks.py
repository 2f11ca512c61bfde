"""Multi-token prediction (MTP) blocks in the files of a model, or in a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec.errors import CheckpointError, InputError, UnsupportedModelError, warn
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints.checkpoint import Checkpoint
from specdec.models.checkpoints.gguf_model import is_gguf_file, read_metadata
from specdec.models.checkpoints.hf_folder import codes_reader, held_tensors
from specdec.models.checkpoints.matching import matched_checkpoint, unused_tensors
from specdec.models.families import FAMILIES, Family, architecture_of, coded_sources
from specdec.models.families import gguf as gguf_families
from specdec.models.families.gguf_metadata import Metadata
from specdec.models.families.mtp import block_config, block_sources, held_names
from specdec.models.model_config import ModelConfig

_ONE: Final = "1: one block, which reads its own output"


@dataclass(frozen=True)
class _Files:
    """Files with MTP blocks: the family of their names, and all tensors."""

    name: str
    family: Family
    held: Mapping[str, Any]
    file: Path  # that describes the model


def open_mtp_block(path: Path, config: ModelConfig, target: Path) -> Checkpoint:
    """Open the MTP block in `path`, a folder or a GGUF file, of a target with this configuration.

    The result is a model with features, whose tensors have the names of `specdec._core.Model`. Copies of the
    target's embedding and head are left out.

    Raises
    ------
    UnsupportedModelError
        There is no block, there are several, or files hold tensors that it does not use.
    InputError
        The block is for a target of another size.
    CheckpointError
        Files are damaged, or tensors are missing or have another shape.
    """
    files = _in_gguf(path, config, target) if is_gguf_file(path) else _in_folder(path)
    layout, n_layer = files.family.mtp, config.n_layer
    assert layout is not None
    tensors = {name: files.held[name] for name in held_names(layout, n_layer, files.held)}
    if not tensors:
        expected = (
            f"tensors {layout.block.format(n=n_layer)}*, as in the files that the model's authors publish"
        )
        raise UnsupportedModelError(f"{path}: has no MTP block; expected {expected}: name those as path=")
    if not any(config.attends):
        raise UnsupportedModelError(f"{target}: has no layer with attention, which the block needs")
    block = block_config(layout, config)
    try:
        sources = block_sources(files.family, block, n_layer, files.held.__contains__)
    except ValueError as error:  # from the core, which names the field of the canonical configuration
        raise CheckpointError(f"{path}: {error}") from error
    tensors |= {name: files.held[name] for one in sources for name in one.stored if name in files.held}
    sources = coded_sources(sources, {name for name, tensor in tensors.items() if tensor.is_coded})
    if unknown := unused_tensors(path, sources, tensors):
        names = ", ".join(repr(tensors[name].name) for name in unknown[:5])
        raise UnsupportedModelError(f"{path}: holds tensors that the MTP block does not use: {names}")
    weights = {file for tensor in tensors.values() for file in tensor.files}
    return matched_checkpoint(
        path, files.name, block, sources, tensors, tokenizer=None, decoder_start=(),
        weight_files=(files.file, *sorted(weights - {files.file})),
    )  # fmt: skip


def mtp_block_of(path: Path, architecture: str, config: ModelConfig) -> Checkpoint | None:
    """Return the MTP block in the files of a model, or None; warn of blocks that cannot be read."""
    family = FAMILIES.get(architecture)
    if family is None or family.mtp is None:
        return None
    try:
        if is_gguf_file(path):
            if read_metadata(path)[1].n_mtp_blocks == 0:
                return None
        elif not held_names(family.mtp, config.n_layer, _in_folder(path).held):
            return None
        return open_mtp_block(path, config, path)
    except UnsupportedModelError as error:
        warn(f"leaving out MTP blocks: {error}")
        return None


def _in_folder(path: Path) -> _Files:
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
    return _Files(name, family, held_tensors(path, family, codes_reader(fields, family)), file)


def _in_gguf(path: Path, config: ModelConfig, target: Path) -> _Files:
    """Find the MTP block of a GGUF file."""
    _, metadata = read_metadata(path)
    _check_one(metadata)
    if metadata.n_layer != config.n_layer:
        expected = f"the {config.n_layer} of {target}"
        raise InputError(f"{path} is for a target of {metadata.n_layer} layers; expected {expected}")
    architecture = gguf_families.architecture_of(metadata.name, path)
    name = architecture.architecture(metadata)
    return _Files(name, architecture.family(FAMILIES[name]), metadata.tensors, path)


def _check_one(metadata: Metadata) -> None:
    """Refuse files without a block, or with several."""
    if metadata.n_mtp_blocks == 0:
        expected = (
            "a file that was converted with it (many published files are not; repositories of those that are "
            "often end in -MTP-GGUF), or a separate file or the model's folder, as path=: "
            "drafts.MTP(target, 'mtp-NAME.gguf')"
        )
        raise UnsupportedModelError(f"{metadata.file}: has no MTP block; expected {expected}")
    if metadata.n_mtp_blocks != 1:
        raise metadata.unsupported("nextn_predict_layers", _ONE)
