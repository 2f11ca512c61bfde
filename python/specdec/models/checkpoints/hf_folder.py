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

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError, number_of
from specdec.models.chat_template import resolve_chat_template
from specdec.models.checkpoints.checkpoint import CanonicalTensor, Checkpoint
from specdec.models.checkpoints.generation_config import read_generation_defaults
from specdec.models.checkpoints.safetensors_file import StoredTensor, open_weights
from specdec.models.families import FAMILIES, ConfigReader, Family, Source, architecture_of
from specdec.models.json_fields import Fields, as_json, read_json_object
from specdec.models.tokenizer import resolve_tokenizer, source_side

__all__ = ["open_folder"]


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
    _check_quantisation(fields, family)
    config = family.read_config(ConfigReader(family.decoder_fields(fields), n_ctx))
    tensors = _held(folder, family)
    if family.settled is not None:
        config = family.settled(config, tensors)
    try:
        sources = list(family.sources(config, tensors))
    except ValueError as error:  # the core's checks name the field of the canonical configuration
        raise CheckpointError(f"{file}: {error}") from error
    _match(folder, family, config, sources, tensors)
    defaults = read_generation_defaults(folder, fields, config["n_vocab"])

    used = {name for source in sources for name in source.stored}
    matrices = {
        "bf16" if source.numbers else tensors[stored].format
        for source in sources
        for stored in source.stored
        if len(source.shape) == 2
    }

    def canonical() -> Iterator[CanonicalTensor]:
        at: tuple[list[str], int | None] = [], None
        arrays: list[NDArray[np.generic]] = []
        for source in sources:
            index = source.entry.index
            if (source.stored, index) != at:  # some families have several in one
                arrays = []  # before the next is read
                at = source.stored, index
                arrays = [tensors[name].array(index, source.numbers) for name in source.stored]
            form = "" if source.numbers or not source.stored else tensors[source.stored[0]].format
            yield (source.canonical, *source.take(arrays, form))

    found = resolve_tokenizer(tokenizer, folder, bos_id=defaults.bos_id, eos_ids=defaults.eos_ids)
    with_encoder = config.get("encoder") is not None
    return Checkpoint(
        path=folder,
        architecture=architecture,
        config=config,
        tokenizer=found,
        dtype="bf16" if matrices == {"bf16"} else "f32",
        n_bytes=sum(tensors[stored].n_bytes for stored in used),
        _tensors=canonical,
        default_sampling=defaults.sampling,
        chat_template=resolve_chat_template(tokenizer, folder),
        source_tokenizer=source_side(found) if with_encoder else None,
        decoder_start=defaults.decoder_start if with_encoder else (),
        weight_files=tuple(sorted({tensor.file for tensor in tensors.values()})),
    )


def _check_quantisation(fields: Fields, family: Family) -> None:
    quantised = fields.raw("quantization_config")
    if not family.quantised or quantised is None:
        fields.require("quantization_config", None, because="quantised checkpoints are not read")
    elif not isinstance(quantised, dict) or quantised.get("quant_method") != family.quantised:
        raise fields.unsupported("quantization_config", f"nothing, or quant_method {family.quantised!r}")


def _held(folder: Path, family: Family) -> dict[str, StoredTensor]:
    """The tensors of the decoder that the files hold, by the names of the family's table."""
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in open_weights(folder).items():
        full = family.full_name(name)
        if full is None:
            continue
        if full in tensors:
            raise CheckpointError(
                f"{tensor.file}: holds both '{tensors[full].name}' and '{name}'; expected one"
            )
        tensors[full] = tensor
    return tensors


def _match(
    folder: Path,
    family: Family,
    config: Mapping[str, Any],
    sources: list[Source],
    tensors: dict[str, StoredTensor],
) -> None:
    """Check that the tensors the model needs are there in the right shape, with nothing else beside them."""
    expected = {
        name: (shape, source.numbers)
        for source in sources
        for name, shape in zip(source.stored, source.stored_shapes, strict=True)
    }
    embedding = next(source.stored[0] for source in sources if source.canonical == "token_embedding")
    head = family.head + ".weight"
    if config["tied"] and embedding not in tensors and head in tensors:
        tensors[embedding] = tensors.pop(head)  # one matrix, saved under its other name
    for name, (shape, numbers) in expected.items():
        if name not in tensors:
            raise CheckpointError(
                f"{folder}: tensor '{name}' is missing; expected it with shape {list(shape)}"
            )
        found = tensors[name]
        if found.shape != shape:
            raise CheckpointError(
                f"{found.file}: tensor '{found.name}' has shape {as_json(list(found.shape))}; "
                f"expected {list(shape)}"
            )
        found.check(numbers)  # now rather than after half the weights

    unknown = [name for name in tensors if name not in expected and not _HARMLESS.search(name)]
    if config["tied"] and head in unknown:
        if not tensors[head].same_as(tensors[embedding]):
            raise CheckpointError(
                f"{tensors[head].file}: tensor '{head}' differs from '{embedding}'; "
                f"expected them equal or the head absent, since config.json ties them (tie_word_embeddings)"
            )
        unknown.remove(head)
    if unknown:
        first = ", ".join(f"'{tensors[name].name}'" for name in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UnsupportedModelError(
            f"{folder}: holds tensors that its config.json leaves without use: {first}{more}; "
            f"expected only those of {number_of(config['n_layer'], 'layer')}"
        )


# Buffers that are functions of the configuration: causal masks, the masking constant, rotary frequencies.
_HARMLESS: Final = re.compile(
    r"\.(attn|attention)\.(attention\.)?(bias|masked_bias)$|\.rotary_emb\.inv_freq$|\.attn\.embed_positions$"
)
