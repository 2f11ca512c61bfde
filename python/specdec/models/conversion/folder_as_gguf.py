"""Writing a model as a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError, warn
from specdec.fields import read_json_object
from specdec.models.checkpoints import Checkpoint
from specdec.models.checkpoints.gguf_model import ROW, described, sampling_values
from specdec.models.checkpoints.gguf_writing import FILE_TYPES, NewTensor, encoded, type_of, write_gguf
from specdec.models.checkpoints.llama2c_file import LLAMA2C
from specdec.models.checkpoints.mtp_blocks import mtp_block_of
from specdec.models.conversion.file_order import PACKED_HOLDS, check_same, gathered, stored_shapes
from specdec.models.conversion.folded import folded
from specdec.models.conversion.importance import Importance
from specdec.models.families import FAMILIES, Source
from specdec.models.families.gguf import ARCHITECTURES, MTP_BLOCKS, WRITTEN, metadata_of
from specdec.models.families.gguf_metadata import Metadata
from specdec.models.families.mtp import block_sources
from specdec.models.model_config import ModelConfig
from specdec.models.tokenizer.gguf_vocabulary import end_values, vocabulary_values
from specdec.threads import check_threads

_TEMPLATE: Final = "tokenizer.chat_template"
_QUANTIZATION_VERSION: Final = 2  # of ggml's block formats

Array = NDArray[Any]


class _Planned(NamedTuple):
    """A tensor to write, with the interface that readers of metadata need."""

    shape: tuple[int, ...]
    values: Array | None = None

    def numbers(self) -> Array:
        assert self.values is not None
        return self.values


def write_as_gguf(
    checkpoint: Checkpoint, path: Path, ggml_type: str, importance: Importance, progress: bool | None
) -> None:
    """Write or replace a GGUF file; `ggml_type` is one of `FILE_TYPES`."""
    name = "LlamaForCausalLM" if checkpoint.architecture == LLAMA2C else checkpoint.architecture
    if name not in WRITTEN:
        found = f"is a {name}, which cannot be written as GGUF"
        raise UnsupportedModelError(f"{checkpoint.path}: {found}; expected one of {', '.join(WRITTEN)}")
    if ARCHITECTURES[WRITTEN[name]].folds:
        checkpoint = folded(checkpoint)
    config = checkpoint.config
    ggml, keys, extra = metadata_of(name, config, _decoder_fields(checkpoint))
    keys |= {key: float(np.float32(value)) for key, value in keys.items() if isinstance(value, float)}
    architecture = ARCHITECTURES[ggml]
    family = architecture.family(FAMILIES[name])
    sources = list(family.sources(config, lambda name: architecture.fused == ("attn_qkv" in name)))
    parts: list[tuple[Checkpoint, list[Source]]] = [(checkpoint, sources)]
    shapes = dict(stored_shapes(sources))
    planned = {stored: _Planned(shape) for stored, shape in shapes.items()}
    planned |= {stored: _Planned(array.shape, array) for stored, array in extra.items()}
    if (block := _block_of(checkpoint, ggml)) is not None:
        parts.append((block, block_sources(family, block.config, config["n_layer"])))
        shapes |= stored_shapes(parts[-1][1])
        planned |= {stored: _Planned(shape) for stored, shape in shapes.items()}
        keys = _with_block(keys, config["n_layer"])
    _check_described(checkpoint, path, Metadata(ggml, _as_read(keys), planned, path))
    of_file = {"has_head": "output.weight" in shapes, "is_falcon": ggml == "falcon"}
    types = {
        stored: type_of(ggml_type, stored, shape, config["n_layer"], **of_file)
        for stored, shape in shapes.items()
    }
    matrices = [source for source in sources if len(source.shape) == 2]
    made_of = {stored: [of for of in matrices if stored in of.stored] for stored in shapes}
    threads = check_threads(None)
    metadata: dict[str, Any] = {
        "general.architecture": ggml,
        "general.type": "model",
        "general.name": checkpoint.path.resolve().stem,
        "general.file_type": FILE_TYPES[ggml_type],
        "general.quantization_version": _QUANTIZATION_VERSION,
        **{f"{ggml}.{key}": value for key, value in _as_read(keys).items()},
        **sampling_values(checkpoint.default_sampling, path),
        **_vocabulary(checkpoint, path),
    }
    tensors = [NewTensor(key, array.shape, "F32") for key, array in extra.items()]
    for stored, shape in shapes.items():
        tensors.append(NewTensor(stored, shape[1:] if stored.endswith(ROW) else shape, types[stored]))

    def data() -> Iterator[Array]:
        yield from extra.values()
        for of, part in parts:
            for stored, array in gathered(of, part, types, progress, path):
                if array.dtype == np.uint8:
                    yield array
                    continue
                weights = importance.of(stored, made_of[stored], shapes[stored])
                yield encoded(array, types[stored], f"{of.path}: tensor '{stored}'", weights, threads)

    write_gguf(path, metadata, tensors, data())


def _block_of(checkpoint: Checkpoint, ggml: str) -> Checkpoint | None:
    """Return the MTP block; warn if files of the architecture cannot hold it."""
    config = ModelConfig.from_canonical(checkpoint.config)
    block = mtp_block_of(checkpoint.path, checkpoint.architecture, config)
    if block is not None and ggml not in MTP_BLOCKS:
        warn(f"{checkpoint.path}: {ggml!r} files have no place for its MTP block; leaving it out")
        return None
    return block


def _with_block(keys: Mapping[str, Any], n_layer: int) -> dict[str, Any]:
    """Return metadata with one more block after the layers, which has attention in hybrids."""
    by_layer = {
        key: [*value, key.endswith("sliding_window_pattern") and value[0]]
        for key, value in keys.items()
        if isinstance(value, list) and len(value) == n_layer
    }
    return {**keys, **by_layer, "block_count": n_layer + 1, "nextn_predict_layers": 1}


def _decoder_fields(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the decoder's fields of a config.json, with defaults; none for other files."""
    file = checkpoint.path / "config.json"
    if not file.is_file():
        return {}
    family = FAMILIES[checkpoint.architecture]
    fields = read_json_object(file)
    return {**family.absent, **(fields.get(family.text_field, fields) if family.text_field else fields)}


def _as_read(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as they are read: lists of numbers are arrays."""
    arrays = {key: np.array(value) for key, value in keys.items() if isinstance(value, list)}
    narrow = {key: a.astype(np.int32) if a.dtype == np.int64 else a for key, a in arrays.items()}
    return {**keys, **narrow}


def _check_described(checkpoint: Checkpoint, path: Path, metadata: Metadata) -> None:
    try:
        free = checkpoint.config.get("encoder") is not None  # unbounded positions
        _, _, config, _ = described(metadata, checkpoint.config["n_ctx"] if free else None)
    except CheckpointError as error:
        raise UnsupportedModelError(
            f"{checkpoint.path}: is a model that a GGUF file cannot describe: {error} ({PACKED_HOLDS})"
        ) from error
    check_same(checkpoint, config, "a GGUF file", path)


def _vocabulary(checkpoint: Checkpoint, path: Path) -> dict[str, Any]:
    template = checkpoint.chat_template
    if checkpoint.tokenizer is None:
        ends = end_values(checkpoint.bos_id, checkpoint.eos_ids, checkpoint.config["n_vocab"], path)
        return {"tokenizer.ggml.model": "none", **ends}
    values = vocabulary_values(
        checkpoint.tokenizer,
        checkpoint.config["n_vocab"],
        {} if template is None else template.tokens,
        path,
        with_encoder=checkpoint.config.get("encoder") is not None,
    )
    if template is None:
        return values
    names = [name for name in template.templates if name != "default"]
    values |= {
        _TEMPLATE if name == "default" else f"{_TEMPLATE}.{name}": text
        for name, text in template.templates.items()
    }
    return values | ({f"{_TEMPLATE}s": names} if names else {})
