"""Writing a model as a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Container, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.atomic_file import replacing, replacing_folder
from specdec.errors import CheckpointError, InputError, UnsupportedModelError, warn
from specdec.fields import Fields
from specdec.models.checkpoints import Checkpoint
from specdec.models.checkpoints.compressed_tensors import (
    CODE_TYPES,
    packed,
    packed_shapes,
    quantization_config,
)
from specdec.models.checkpoints.gguf_writing import encoded
from specdec.models.checkpoints.hub import describing_files
from specdec.models.checkpoints.matching import is_matrix
from specdec.models.checkpoints.mtp_blocks import mtp_block_of
from specdec.models.checkpoints.safetensors_file import (
    INDEX_NAME,
    SINGLE_NAME,
    write_tensors,
    written_bytes,
)
from specdec.models.conversion.file_order import PACKED_HOLDS, check_same, gathered, stored_shapes
from specdec.models.families import FAMILIES, ConfigReader, Source, coded_sources
from specdec.models.families.mtp import block_sources
from specdec.models.model_config import ModelConfig
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.sentencepiece_file import SentencePieceTokenizer
from specdec.threads import check_threads

_NUMBERS: Final[Mapping[str, str]] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Unquantized types, and their names in a folder's files."""
_BITS: Final[Mapping[str, int]] = {"INT8": 8, "INT4": 4}
"""Quantized types, and their bits per code."""
FOLDER_TYPES: Final = (*_NUMBERS, *_BITS)
"""Types that a folder can have."""

_BLOCK: Final = 32  # inputs that share a scale
# Tensors that are looked up by row.
_TABLES: Final = ("token_embedding", "encoder.token_embedding", "per_layer_embedding")
_EMBEDDINGS: Final = (*_TABLES, "position_embedding", "relative_bias", "mixer_conv")
# Files that are not copied, because they are generated or describe the weight files.
_OWN: Final = ("config.json", INDEX_NAME)
_OF_TEXTS: Final = "generation_config.json"

# RoPE scalings of Llama 3, which GGUF files hold as factors.
_LLAMA3: Final[list[dict[str, Any]]] = [
    {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192}
    for factor in (8.0, 32.0)
]  # fmt: skip

Array = NDArray[Any]


class _Planned:
    """A tensor to write, with the interface that families need."""

    def same_as(self, other: object) -> bool:
        """Return False for separately written tables."""
        return self is other


def write_as_folder(
    checkpoint: Checkpoint,
    folder: Path,
    dtype: str | None,
    progress: bool | None,
    *,
    own_tokenizer: bool = True,
    max_shard_size: int | None = None,
) -> None:
    """Write or replace a Hugging Face folder, atomically.

    `dtype`: One of `FOLDER_TYPES`; None: the file's own. `own_tokenizer`: Copy the checkpoint's tokenizer.
    `max_shard_size`: Maximum bytes of tensors per file; None: one file.
    """
    if checkpoint.path.suffix == ".bin" and not checkpoint.path.is_dir():
        raise InputError(
            f"{checkpoint.path}: is a llama2.c file; expected a folder or a GGUF file to convert"
        )
    if FAMILIES[checkpoint.architecture].text_field:
        raise UnsupportedModelError(f"{checkpoint.path}: is a multimodal model; expected a text-only model")
    dtype = dtype or ("BF16" if checkpoint.dtype == "bf16" else "F32")
    plan = _plan(checkpoint, folder, dtype)
    target = ModelConfig.from_canonical(checkpoint.config)
    block = mtp_block_of(checkpoint.path, checkpoint.architecture, target)
    of_block = None if block is None else _plan_of_block(block, target.n_layer, dtype, plan)
    if checkpoint.stored is not None and dtype in _NUMBERS:
        how = f"{dtype}, {'exactly' if dtype == 'F32' else 'rounded'}"
        warn(
            f"{checkpoint.path}: is quantized ({checkpoint.stored.types}); writing dequantized weights, {how}"
        )

    with replacing_folder(folder) as new:
        made, described = _made(checkpoint, plan, progress, folder), plan.described()
        if block is not None and of_block is not None:
            made = chain(made, _made(block, of_block, progress, folder, plan.shapes))
            described |= of_block.described()
        _write_weights(new, described, made, max_shard_size)
        if own_tokenizer and checkpoint.path.is_dir():
            for file in describing_files(checkpoint.path):
                if file.is_file() and file.name not in _OWN:
                    copy = new / file.relative_to(checkpoint.path)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
        else:
            _write_tokenizer(checkpoint, new)
        _write_json(new / "config.json", plan.fields)


# ------------------------------------------------------------------------------------------- planning


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Contents of a folder to write.

    `fields`: Of config.json. `sources`: Where the model's tensors go. `types`: Type of each tensor of the
    file: "F32", "F16", "BF16", "Q8_0" or "Q4_0". `shapes`: In file order.
    """

    fields: dict[str, Any]
    sources: list[Source]
    types: dict[str, str]
    shapes: dict[str, tuple[int, ...]]

    def described(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, shape in self.shapes.items():
            bits = _bits_of(self.types[name])
            if bits is None:
                found[name] = _NUMBERS[self.types[name]], shape
                continue
            base = name.removesuffix(".weight")
            parts = packed_shapes(bits, (shape[0], shape[1]))
            found |= {base + end: described for end, described in parts.items()}
        return found


def _bits_of(type: str) -> int | None:
    return next((bits for bits, dtype in CODE_TYPES.items() if dtype == type), None)


def _plan(checkpoint: Checkpoint, folder: Path, dtype: str) -> _Plan:
    """Plan a folder that reads as the same model, with a separate head if only the head is quantized."""
    config = checkpoint.config
    held = {} if checkpoint.stored is None else checkpoint.stored.blocks
    table_has_codes = dtype in _BITS and held.get("token_embedding") == CODE_TYPES[_BITS[dtype]]
    if dtype in _BITS and config["tied"] and config.get("encoder") is None and not table_has_codes:
        untied = dict(config) | {"tied": False}
        try:
            return _plan_of(checkpoint, folder, dtype, untied)
        except UnsupportedModelError:
            pass  # any other cause is raised below
    return _plan_of(checkpoint, folder, dtype, config)


def _plan_of(checkpoint: Checkpoint, folder: Path, dtype: str, config: Mapping[str, Any]) -> _Plan:
    family = FAMILIES[checkpoint.architecture]
    if dtype in _BITS and family.quantized:
        found = f"is a {checkpoint.architecture}, which is quantized in {family.quantized}"
        expected = f"another family, or one of {', '.join(_NUMBERS)}"
        raise UnsupportedModelError(f"{checkpoint.path}: {found}; expected {expected}")
    try:
        sources = list(family.sources(config, lambda name: not name.endswith(("_blocks", "_scales"))))
    except ValueError as error:  # from the core, which names the field of the canonical configuration
        raise UnsupportedModelError(f"{checkpoint.path}: {error}") from error
    if checkpoint.config["tied"] and not config["tied"]:
        sources = _with_head(sources)
    sources, shapes, types, ignored = _layout(checkpoint, sources, dtype)
    fields = _config_json(checkpoint, dtype, folder, config, shapes)
    if dtype in _BITS:
        fields["quantization_config"] = quantization_config(_BITS[dtype], ignored)
    return _Plan(fields, sources, types, shapes)


def _plan_of_block(block: Checkpoint, n_layer: int, dtype: str, plan: _Plan) -> _Plan:
    """Plan the tensors of an MTP block, and complete the fields of the model's plan."""
    family = FAMILIES[block.architecture]
    assert family.mtp is not None
    if not any(name in plan.fields for name in family.mtp.counts):
        plan.fields[family.mtp.counts[0]] = 1
    sources, shapes, types, ignored = _layout(block, block_sources(family, block.config, n_layer), dtype)
    if dtype in _BITS:
        plan.fields["quantization_config"]["ignore"] += ignored
    return _Plan(plan.fields, sources, types, shapes)


def _layout(
    checkpoint: Checkpoint, sources: list[Source], dtype: str
) -> tuple[list[Source], dict[str, tuple[int, ...]], dict[str, str], list[str]]:
    """Return the sources of a type's tensors, the shapes and types, and the matrices without codes."""
    shapes = dict(stored_shapes(sources))
    if dtype not in _BITS:
        return sources, shapes, {name: dtype if len(of) > 1 else "F32" for name, of in shapes.items()}, []
    codes = CODE_TYPES[_BITS[dtype]]
    types = _types_of_codes(checkpoint, sources, shapes, codes)
    sources = coded_sources(sources, {name for name, type in types.items() if type == codes})
    shapes = dict(stored_shapes(sources))
    types = _types_of_codes(checkpoint, sources, shapes, codes)
    tables = {name for source in sources if source.canonical.endswith(_EMBEDDINGS) for name in source.stored}
    matrices = {name for source in sources if len(source.shape) == 2 for name in source.stored}
    ignored = sorted(name.removesuffix(".weight") for name in matrices - tables if types[name] in _NUMBERS)
    return sources, shapes, types, ignored


def _with_head(sources: list[Source]) -> list[Source]:
    """Return sources whose head comes from, and after, the token embedding."""
    (head,) = (source for source in sources if source.canonical == "head")
    found: list[Source] = []
    for source in sources:
        if source.canonical == "token_embedding":
            found += [source, dataclasses.replace(head, canonical="token_embedding")]
        elif source is not head:
            found.append(source)
    return found


def _types_of_codes(
    checkpoint: Checkpoint, sources: list[Source], shapes: Mapping[str, tuple[int, ...]], codes: str
) -> dict[str, str]:
    """Return the type of each tensor of a quantized folder.

    Matrices whose rows are a multiple of a block are quantized. Token embeddings are bf16, as in every
    quantized model; if they are quantized in the source, they keep the same codes or become f32.
    """
    types = dict.fromkeys(shapes, "F32")
    plain = "BF16" if checkpoint.dtype == "bf16" else "F32"
    held = {} if checkpoint.stored is None else checkpoint.stored.blocks
    head = FAMILIES[checkpoint.architecture].head + ".weight"
    others = [source for source in sources if len(source.shape) == 2 and not is_matrix(source)]
    in_f32 = {name for source in others for name in source.stored}
    for source in sources:
        if not is_matrix(source):
            continue
        (name,) = source.stored
        of_codes = source.of_codes()
        if source.canonical in _TABLES and name != head and held.get(source.canonical) != codes:
            types[name] = "F32" if source.canonical in held else "BF16"
        elif source.canonical.startswith("feature_projection") and source.entry.moves_inputs:
            types[name] = plain
        elif (
            name in in_f32
            or not of_codes.entry.keeps_rows
            or len(shapes[name]) != 2
            or not name.endswith(".weight")
        ):
            own = "rows that stay in f32" if name in in_f32 else "more or less than one row per output"
            raise UnsupportedModelError(
                f"{checkpoint.path}: is a {checkpoint.architecture}, which cannot be a quantized folder: "
                f"tensor '{name}' has {own}; expected out to end in .specdec (type int8 or "
                f"int4) or .gguf (Q8_0, ...), or type {', '.join(_NUMBERS)}"
            )
        else:
            types[name] = plain if of_codes.stored_shapes[0][1] % _BLOCK else codes
    return types


def _config_json(
    checkpoint: Checkpoint,
    dtype: str,
    folder: Path,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Any]:
    """Return the fields of a config.json that reads as this configuration."""
    fields, of_folder = _fields_of(checkpoint), checkpoint.path.is_dir()
    name = "dtype" if "dtype" in fields else "torch_dtype"
    if dtype in _NUMBERS:
        fields[name] = _NUMBERS[dtype]
    elif fields.get(name) is None:
        fields[name] = "float16"  # of the scales
    if checkpoint.config["tied"] and not config["tied"]:
        fields["tie_word_embeddings"] = False
    wanted = dataclasses.replace(checkpoint, config=config)
    refused: list[UnsupportedModelError] = []
    for more in [{}] if of_folder else [{}, *({"rope_scaling": scaling} for scaling in _LLAMA3)]:
        try:
            unread = _check_read(wanted, fields | more, folder, shapes)
        except UnsupportedModelError as error:
            refused.append(error)
        else:
            extra = set() if of_folder else _OF_A_BLOCK.intersection(unread)
            return {name: value for name, value in (fields | more).items() if name not in extra}
    raise refused[0]


def _check_read(
    checkpoint: Checkpoint, fields: Mapping[str, Any], folder: Path, shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Refuse fields that read as another configuration; return the fields that the family ignores."""
    family = FAMILIES[checkpoint.architecture]
    given = Fields(fields, folder / "config.json").with_absent(family.absent)
    try:
        read = family.read_config(ConfigReader(given, None))
        if family.settled is not None:
            read = family.settled(read, {name: _Planned() for name in shapes})
    except UnsupportedModelError:
        raise
    except CheckpointError as error:
        found = f"is a model that config.json cannot describe: {error} ({PACKED_HOLDS})"
        raise UnsupportedModelError(f"{checkpoint.path}: {found}") from error
    check_same(checkpoint, read, "config.json", folder)
    return given.unread()


# Fields that GGUF readers return for most architectures and that some classes lack.
_OF_A_BLOCK: Final = frozenset(
    {
        "attention_bias", "attention_out_bias", "head_dim", "intermediate_size", "layer_norm_eps",
        "mlp_bias", "multi_query", "num_key_value_heads", "partial_rotary_factor", "rms_norm_eps",
        "rope_theta", "use_bias",
    }
)  # fmt: skip


def _fields_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields of the folder's config.json, or equivalent fields for a GGUF file."""
    assert checkpoint.fields is not None
    if checkpoint.path.is_dir():
        return {name: value for name, value in checkpoint.fields.items() if name != "quantization_config"}
    config, name = checkpoint.config, checkpoint.architecture
    fields: dict[str, Any] = {
        "architectures": [name], "model_type": FAMILIES[name].model_type, **checkpoint.fields
    }  # fmt: skip
    fields |= {"attention_bias": config["qkv_bias"], "use_bias": config["qkv_bias"]}
    fields |= {"attention_out_bias": config["out_bias"], "mlp_bias": config["mlp_bias"]}
    fields["bos_token_id"] = checkpoint.bos_id
    ends = list(checkpoint.eos_ids)
    fields["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    if checkpoint.decoder_start:
        fields["decoder_start_token_id"] = checkpoint.decoder_start[0]
    return fields


def _made(
    checkpoint: Checkpoint, plan: _Plan, progress: bool | None, folder: Path, without: Container[str] = ()
) -> Iterator[Array]:
    """Yield the arrays of a plan's tensors, except those in `without`."""
    threads = check_threads(None)
    for name, array in gathered(checkpoint, plan.sources, plan.types, progress, folder):
        if name in without:
            continue
        type, what = plan.types[name], f"{checkpoint.path}: tensor '{name}'"
        bits, shape = _bits_of(type), plan.shapes[name]
        if bits is None:
            yield encoded(array, type, what)
            continue
        if array.dtype != np.uint8:  # not yet quantized
            if not np.isfinite(array).all():
                raise CheckpointError(f"{what} has values that are not finite; expected finite numbers")
            try:
                array = np.frombuffer(_core.quantize(array, type.lower(), n_threads=threads), np.uint8)
            except ValueError as error:
                raise CheckpointError(f"{what}: {error}; expected smaller values") from error
        yield from packed(array, bits, (shape[0], shape[1])).values()


def _write_weights(
    folder: Path,
    described: Mapping[str, tuple[str, tuple[int, ...]]],
    arrays: Iterator[Array],
    max_shard_size: int | None,
) -> None:
    """Write the tensors in order to one file, or to shards with an index."""
    shards: list[list[str]] = [[]]
    total, size = 0, 0
    for name, (numbers, shape) in described.items():
        n_bytes = written_bytes(numbers, shape)
        if shards[-1] and max_shard_size is not None and size + n_bytes > max_shard_size:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += n_bytes
        total += n_bytes
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards, 1):
        file = SINGLE_NAME if len(shards) == 1 else f"model-{i:05}-of-{len(shards):05}.safetensors"
        one = {name: described[name] for name in names}
        write_tensors(folder / file, one, islice(arrays, len(names)), {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    with replacing(file) as out:
        out.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    tokenizer, template = checkpoint.tokenizer, checkpoint.chat_template
    if checkpoint.path.is_dir():  # otherwise config.json has the settings
        if (defaults := checkpoint.path / _OF_TEXTS).is_file():
            shutil.copyfile(defaults, folder / _OF_TEXTS)
    elif sampling := checkpoint.default_sampling:  # where transformers reads token ids too
        names = ("decoder_start_token_id", "forced_bos_token_id")
        ids = {"bos_token_id": checkpoint.bos_id, "eos_token_id": list(checkpoint.eos_ids) or None}
        ids |= dict(zip(names, checkpoint.decoder_start, strict=False))
        known = {name: value for name, value in ids.items() if value is not None}
        _write_json(folder / _OF_TEXTS, {"do_sample": "temperature" in sampling, **sampling, **known})
    settings: dict[str, Any] = {} if template is None else dict(template.tokens)
    if isinstance(tokenizer, HFTokenizer):
        with replacing(folder / "tokenizer.json") as file:
            file.write(tokenizer.library.to_str().encode("utf-8"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    elif isinstance(tokenizer, SentencePieceTokenizer):
        with replacing(folder / "tokenizer.model") as file:
            file.write(tokenizer.library.serialized_model_proto())
        settings |= {"legacy": tokenizer.prefixes_all, "added_tokens_decoder": tokenizer.added_tokens()}
    else:
        return
    settings["add_bos_token"] = tokenizer.adds_bos
    if template is not None:
        listed = [{"name": name, "template": text} for name, text in template.templates.items()]
        alone = list(template.templates) == ["default"]
        settings["chat_template"] = listed[0]["template"] if alone else listed
    _write_json(folder / "tokenizer_config.json", settings)
