"""Hugging Face folders: ``config.json``, ``*.safetensors`` and a tokenizer.

``config.json`` means what ``transformers`` takes it to mean: a field that is absent or null has the default
of the architecture's configuration class there. Fields that do not touch inference (dropout,
initialisation, caches) are ignored; a field that would change the computation in a way specdec does not
have is refused by name.

Unused tensors are refused too: adapters, quantisation scales, extra norms and layers beyond the configured
number all mean another computation than the one configured. The exceptions are buffers that older versions
of ``transformers`` saved (causal masks, rotary frequencies) and a tied head that equals the embedding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.models.chat_template import resolve_chat_template
from specdec.models.checkpoints.checkpoint import Checkpoint
from specdec.models.checkpoints.compressed_tensors import METHOD, check_quantisation, with_codes
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.checkpoints.generation_config import read_generation_defaults
from specdec.models.checkpoints.matching import match_tensors, matched_checkpoint
from specdec.models.checkpoints.safetensors_file import open_weights
from specdec.models.families import FAMILIES, ConfigReader, Family, architecture_of
from specdec.models.json_fields import Fields, read_json_object
from specdec.models.tokenizer import resolve_tokenizer

__all__ = ["open_folder"]

_TIED: Final = "since config.json ties them (tie_word_embeddings)"


def open_folder(folder: Path, tokenizer: Any = None, n_ctx: int | None = None) -> Checkpoint:
    """Open a Hugging Face folder; see :func:`specdec.checkpoints.open_checkpoint`."""
    file = folder / "config.json"
    fields = Fields(read_json_object(file), file)
    if fields.has("specdec_draft"):
        raise UnsupportedModelError(
            f"{folder}: is the folder of a learnt draft; expected that of a model, or a draft's opened by "
            f"specdec.drafts.load({str(folder)!r}, target)"
        )
    architecture = architecture_of(fields, file)
    family = FAMILIES[architecture]
    has_codes = _has_codes(fields, family)
    config = family.read_config(ConfigReader(family.decoder_fields(fields), n_ctx))
    tensors = _held(folder, family, has_codes)
    if family.settled is not None:
        config = family.settled(config, tensors)
    try:
        sources = list(family.sources(config, tensors))
    except ValueError as error:  # the core's checks name the field of the canonical configuration
        raise CheckpointError(f"{file}: {error}") from error
    match_tensors(folder, family, config, sources, tensors, why_tied=_TIED, described_by="config.json")
    defaults = read_generation_defaults(folder, fields, config["n_vocab"])

    found = resolve_tokenizer(
        tokenizer, folder, bos_id=defaults.bos_id, eos_ids=defaults.eos_ids, n_vocab=config["n_vocab"]
    )
    return matched_checkpoint(
        folder,
        architecture,
        config,
        sources,
        tensors,
        tokenizer=found,
        decoder_start=defaults.decoder_start,
        bos_id=defaults.bos_id,
        eos_ids=defaults.eos_ids or (),
        default_sampling=defaults.sampling,
        chat_template=resolve_chat_template(tokenizer, folder),
        weight_files=tuple(sorted(set().union(*(tensor.files for tensor in tensors.values())))),
        fields=fields.as_dict(),
    )


def _has_codes(fields: Fields, family: Family) -> bool:
    """Whether matrices are codes as compressed-tensors has them; others are refused, but the family's."""
    quantised = fields.raw("quantization_config")
    if quantised is None:
        return False
    wanted = family.quantised or METHOD
    if not isinstance(quantised, dict) or quantised.get("quant_method") != wanted:
        raise fields.unsupported("quantization_config", f"nothing, or quant_method {wanted!r}")
    if wanted == METHOD:
        check_quantisation(fields)
    return wanted == METHOD


def _held(folder: Path, family: Family, has_codes: bool) -> dict[str, FileTensor]:
    """The tensors of the decoder that the files hold, by the names of the family's table."""
    tensors: dict[str, FileTensor] = {}
    held = open_weights(folder)
    for name, tensor in (with_codes(held) if has_codes else held).items():
        full = family.full_name(name)
        if full is None:
            continue
        if full in tensors:
            raise CheckpointError(
                f"{tensor.file}: holds both '{tensors[full].name}' and '{name}'; expected one"
            )
        tensors[full] = tensor
    return tensors
