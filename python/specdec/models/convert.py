"""Models from one file format to another: GGUF files, Hugging Face folders, packed files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.checks import check_choice, check_flag, check_path
from specdec.errors import CheckpointError, InputError, UnsupportedModelError
from specdec.models.checkpoints import Checkpoint, open_checkpoint
from specdec.models.checkpoints.gguf_file import read_gguf
from specdec.models.checkpoints.gguf_model import ROW, described
from specdec.models.checkpoints.gguf_types import FILE_TYPES, encoded, type_of
from specdec.models.checkpoints.gguf_writing import NewTensor, write_gguf
from specdec.models.checkpoints.safetensors_file import write_tensors
from specdec.models.families import FAMILIES, ConfigReader, Source, model_type_of
from specdec.models.families.gguf import ARCHITECTURES
from specdec.models.families.gguf_keys import WRITTEN, metadata_of
from specdec.models.families.gguf_metadata import Metadata
from specdec.models.json_fields import Fields, read_json_object
from specdec.models.model import ModelConfig, load
from specdec.models.number_formats import widened
from specdec.models.packed_file import write_packed
from specdec.models.tokenizer.gguf_vocabulary_writing import vocabulary_values
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.sentencepiece_file import SentencePieceTokenizer
from specdec.progress import reading_bar
from specdec.threads import check_threads

__all__ = ["convert"]

Array = NDArray[Any]

_TEMPLATE: Final = "tokenizer.chat_template"
_QUANTIZATION_VERSION: Final = 2  # of ggml's blocks
_SUMS: Final = ".in_sum2"
_CLOSE: Final = 1e-5  # relative: numbers of metadata are f32
_FOLDER_TYPES: Final[Mapping[str, str]] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# Llama 3's scalings, which GGUF files hold as factors: (factor, low_freq_factor, high_freq_factor, original).
_LLAMA3: Final = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str | None = None,
    *,
    tokenizer: Any = None,
    importance: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a model in another file format.

    Parameters
    ----------
    source : path-like
        A model, as :func:`specdec.load` takes it.
    out : path-like
        A path that ends in ``.gguf``: a GGUF file. One that ends in ``.specdec``: a packed file, the model as
        it lies in memory. Else a folder, which must not be there or be empty: a Hugging Face folder, of a
        GGUF file.
    type : str, optional
        Of a GGUF file: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K, which all matrices have, or a mixture:
        Q4_K_S, Q4_K_M, Q5_K_S or Q5_K_M, whose matrices have the types that llama.cpp chooses. None: F16, or
        BF16 of a model in bf16. Norms, biases and routers stay in F32; a matrix whose rows are no multiple of
        a type's block has the next type with smaller blocks. Of a folder: F32, F16 or BF16; None: what the
        file holds, F32 where it holds codes. Of a packed file: the ``dtype`` of :func:`specdec.load`.
    tokenizer : None, False, path-like or Tokenizer
        As of :func:`specdec.load`. False: a file without vocabulary.
    importance : path-like, optional
        Of a GGUF file with Q4_K, Q5_K or Q6_K: how much the errors of each input of a matrix count, as a GGUF
        file of llama.cpp's ``llama-imatrix`` says it: mean squares of activations on a text.
    progress : bool, optional
        Show a progress bar (needs tqdm). None: for large checkpoints, in a terminal.

    Returns
    -------
    Path
        What was written.

    Raises
    ------
    UnsupportedModelError
        An architecture that the format does not have, or that it cannot describe as it is.
    TokenizerError
        A tokenizer that a GGUF file cannot hold.
    CheckpointError
        A damaged checkpoint, or weights that are too large for the type.
    InputError
        Arguments of other types, or an output that is there.
    OSError
        It cannot be written.

    Examples
    --------
    >>> specdec.convert("path/to/folder", "model-Q8_0.gguf", "Q8_0")
    PosixPath('model-Q8_0.gguf')
    """
    place = check_path("out", out)
    if importance is not None and place.suffix != ".gguf":
        raise InputError(f"importance is given, for {place}; expected None, but for a GGUF file")
    if place.suffix == ".specdec":
        return _pack(source, place, type, tokenizer, progress)
    to_gguf = place.suffix == ".gguf"
    check_choice("type", type, tuple(FILE_TYPES if to_gguf else _FOLDER_TYPES), optional=True)
    progress = None if progress is None else check_flag("progress", progress)
    checkpoint = open_checkpoint(source, tokenizer=tokenizer)
    if to_gguf:
        kind = type or ("BF16" if checkpoint.dtype == "bf16" else "F16")
        _write_gguf(checkpoint, place, kind, _importance(importance), progress)
    else:
        _write_folder(checkpoint, place, type, progress)
    return place


def _pack(source: Any, place: Path, dtype: Any, tokenizer: Any, progress: bool | None) -> Path:
    if tokenizer not in (None, False):
        raise InputError("tokenizer is given, for a packed file; expected None or False")
    model = load(source, dtype, tokenizer=tokenizer, progress=progress)
    write_packed(place, model, model.path, with_tokenizer=tokenizer is None, n_threads=check_threads(None))
    return place


# ---------------------------------------------------------------------------------- a folder as a file


@dataclass(frozen=True)
class _Planned:
    """A tensor that is to be written, as readers of metadata see it."""

    shape: tuple[int, ...]
    values: Array | None = None

    def numbers(self) -> Array:
        """The numbers of a tensor that belongs to the configuration."""
        assert self.values is not None
        return self.values


class _Fused:
    """The names that a file may hold: queries, keys and values in one matrix, or apart."""

    def __init__(self, fused: bool) -> None:
        self._fused = fused

    def __contains__(self, name: object) -> bool:
        return self._fused == ("attn_qkv" in str(name))


def _write_gguf(
    checkpoint: Checkpoint,
    place: Path,
    kind: str,
    importance: Mapping[str, Array],
    progress: bool | None,
) -> None:
    if checkpoint.architecture not in WRITTEN and checkpoint.architecture != "llama2.c version 0":
        raise UnsupportedModelError(
            f"{checkpoint.path}: is a {checkpoint.architecture}, which GGUF files cannot hold; "
            f"expected one of {', '.join(WRITTEN)}"
        )
    name = checkpoint.architecture if checkpoint.architecture in WRITTEN else "LlamaForCausalLM"
    config = checkpoint.config
    ggml, keys, extra = metadata_of(name, config, _decoder_fields(checkpoint))
    keys = {
        key: float(np.float32(value)) if isinstance(value, float) else value for key, value in keys.items()
    }
    architecture = ARCHITECTURES[ggml]
    sources = list(architecture.family(FAMILIES[name]).sources(config, _Fused(architecture.fused)))
    shapes = dict(_stored(sources))
    _check_described(checkpoint, place, Metadata(ggml, _as_read(keys), _planned(shapes, extra), str(place)))
    types = {
        stored: type_of(
            kind,
            stored,
            shape,
            config["n_layer"],
            has_head="output.weight" in shapes,
            is_falcon=ggml == "falcon",
        )
        for stored, shape in shapes.items()
    }
    threads = check_threads(None)
    metadata: dict[str, Any] = {
        "general.architecture": ggml,
        "general.type": "model",
        "general.name": checkpoint.path.resolve().stem,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": _QUANTIZATION_VERSION,
        **{f"{ggml}.{key}": value for key, value in _as_read(keys).items()},
        **_vocabulary(checkpoint, place),
    }
    tensors = [NewTensor(key, array.shape, "F32") for key, array in extra.items()] + [
        NewTensor(stored, shape[1:] if stored.endswith(ROW) else shape, types[stored])
        for stored, shape in shapes.items()
    ]

    def data() -> Iterator[Array]:
        yield from extra.values()
        for stored, array in _gathered(checkpoint, sources, progress, place):
            what, weights = f"{checkpoint.path}: tensor '{stored}'", importance.get(stored)
            yield encoded(array, types[stored], what, weights, threads)

    write_gguf(place, metadata, tensors, data())


def _decoder_fields(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The fields of config.json that describe the decoder; none of other files."""
    file = checkpoint.path / "config.json"
    if not file.is_file():
        return {}
    family = FAMILIES[checkpoint.architecture]
    fields = read_json_object(file)
    return fields.get(family.text_field, fields) if family.text_field else fields


def _as_read(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as a file gives them: lists of numbers are arrays."""
    return {key: np.array(value) if isinstance(value, list) else value for key, value in keys.items()}


def _planned(shapes: Mapping[str, tuple[int, ...]], extra: Mapping[str, Array]) -> dict[str, _Planned]:
    return {name: _Planned(shape) for name, shape in shapes.items()} | {
        name: _Planned(array.shape, array) for name, array in extra.items()
    }


def _stored(sources: list[Source]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the file's tensors, each when the last part of it is there."""
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    for i, source in enumerate(sources):
        for name, shape in zip(source.stored, source.stored_shapes, strict=True):
            if last[name] == i:
                yield name, shape


def _gathered(
    checkpoint: Checkpoint, sources: list[Source], progress: bool | None, place: Path
) -> Iterator[tuple[str, Array]]:
    """The file's tensors in the order of `_stored`, f32, made of those of the model."""
    shapes = {
        name: shape
        for source in sources
        for name, shape in zip(source.stored, source.stored_shapes, strict=True)
    }
    last = {name: i for i, source in enumerate(sources) for name in source.stored}
    begun: dict[str, Array] = {}
    bar = reading_bar(checkpoint.n_bytes, f"writing {place.name}", progress)
    try:
        for i, (source, (canonical, array, form)) in enumerate(
            zip(sources, checkpoint.tensors(), strict=True)
        ):
            assert source.canonical == canonical
            for name in source.stored:
                if name not in begun:
                    begun[name] = np.zeros(shapes[name], np.float32)
            source.put([begun[name] for name in source.stored], widened(array, form))
            if bar is not None:
                bar.update(array.nbytes)
            for name in source.stored:
                if last[name] == i:
                    yield name, begun.pop(name)
    finally:
        if bar is not None:
            bar.close()


def _check_described(checkpoint: Checkpoint, place: Path, metadata: Metadata) -> None:
    """Refuse a model that would be another one when it is read from the file."""
    try:
        free = checkpoint.config.get("encoder") is not None  # positions without an end
        _, _, config, _ = described(metadata, checkpoint.config["n_ctx"] if free else None)
    except CheckpointError as error:
        raise UnsupportedModelError(
            f"{checkpoint.path}: is a model that a GGUF file cannot describe: {error}"
        ) from error
    _check_same(checkpoint, config, "a GGUF file", place)


def _check_same(checkpoint: Checkpoint, config: Mapping[str, Any], what: str, place: Path) -> None:
    """Compare the configuration that will be read with that of the checkpoint."""
    ours, theirs = ModelConfig.from_canonical(checkpoint.config), ModelConfig.from_canonical(config)
    for name in ours:
        if name != "encoder" and not _close(ours[name], theirs[name]):
            raise UnsupportedModelError(
                f"{checkpoint.path}: is a model that {what} cannot describe: {name} is {ours[name]}, and "
                f"{place.name} would say {theirs[name]}"
            )
    if ours.encoder is not None and theirs.encoder is not None:
        inner = replace(checkpoint, config=dict(ours.encoder))
        _check_same(inner, dict(theirs.encoder), what, place)


def _close(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=_CLOSE)
    return bool(ours == theirs)


def _vocabulary(checkpoint: Checkpoint, place: Path) -> dict[str, Any]:
    """Tokenizer and chat templates."""
    template = checkpoint.chat_template
    if checkpoint.tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    values = vocabulary_values(
        checkpoint.tokenizer,
        checkpoint.config["n_vocab"],
        {} if template is None else template.tokens,
        place,
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


def _importance(path: str | os.PathLike[str] | None) -> dict[str, Array]:
    """Mean squares of the inputs of matrices, by the names of these."""
    if path is None:
        return {}
    place = check_path("importance", path, CheckpointError)
    file, held = read_gguf(place)
    found: dict[str, Array] = {}
    for name, tensor in held.items():
        if not name.endswith(_SUMS) or (counts := held.get(name.removesuffix(_SUMS) + ".counts")) is None:
            continue
        if len(tensor.shape) != 2 or tensor.shape[0] != 1:  # sums for each expert
            continue
        means = tensor.numbers()[0] / max(float(counts.numbers().reshape(-1)[0]), 1.0)
        if not np.isfinite(means).all() or (means < 0.0).any():
            raise CheckpointError(f"{place}: tensor '{name}' has other numbers than sums of squares")
        found[name.removesuffix(_SUMS)] = np.ascontiguousarray(means, np.float32)
    if not found:
        raise file.error(f"has no tensors '...{_SUMS}' with '....counts'; expected what llama-imatrix writes")
    return found


# ---------------------------------------------------------------------------------- a file as a folder


class _Plain:
    """The names that a folder may hold: none of codes."""

    def __contains__(self, name: object) -> bool:
        return not str(name).endswith(("_blocks", "_scales"))


def _write_folder(checkpoint: Checkpoint, place: Path, kind: str | None, progress: bool | None) -> None:
    if checkpoint.path.is_dir() or checkpoint.path.suffix == ".bin":
        raise InputError(f"{checkpoint.path}: expected a GGUF file, to be written as a folder")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{place}: is there; expected the path of a new or empty folder")
    family = FAMILIES[checkpoint.architecture]
    if family.text_field:
        raise UnsupportedModelError(f"{checkpoint.path}: is part of a larger model; expected a decoder alone")
    kind = kind or {"bf16": "BF16", "f32": "F32"}.get(checkpoint.dtype, "F32")
    config = checkpoint.config
    sources = list(family.sources(config, _Plain()))
    fields = _config_json(checkpoint, kind, place)
    shapes = dict(_stored(sources))
    numbers = {name: _FOLDER_TYPES[kind if len(shape) > 1 else "F32"] for name, shape in shapes.items()}
    made = {name: (numbers[name], shape) for name, shape in shapes.items()}
    place.mkdir(parents=True, exist_ok=True)

    def data() -> Iterator[Array]:
        for name, array in _gathered(checkpoint, sources, progress, place):
            plain = kind if len(shapes[name]) > 1 else "F32"
            yield encoded(array, plain, f"{checkpoint.path}: tensor '{name}'")

    write_tensors(place / "model.safetensors", made, data(), {"format": "pt"})
    _write_tokenizer(checkpoint, place)
    _write_json(place / "config.json", fields)


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    with replacing(file) as out:
        out.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def _config_json(checkpoint: Checkpoint, kind: str, place: Path) -> dict[str, Any]:
    """The fields of a config.json from which the same configuration is read."""
    assert checkpoint.fields is not None
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    fields: dict[str, Any] = {
        "architectures": [checkpoint.architecture],
        "model_type": model_type_of(checkpoint.architecture),
        **checkpoint.fields,
        "torch_dtype": _FOLDER_TYPES[kind],
    }
    for name in ("attention_bias", "mlp_bias"):
        if config["qkv_bias" if name == "attention_bias" else name]:
            fields[name] = True
    if tokenizer is not None:
        fields["bos_token_id"] = tokenizer.bos_id
        ends = list(tokenizer.eos_ids)
        fields["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if checkpoint.decoder_start:
        fields["decoder_start_token_id"] = checkpoint.decoder_start[0]
    family = FAMILIES[checkpoint.architecture]
    tries: list[dict[str, Any]] = [
        {},
        *(
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": original,
                }
            }
            for factor, low, high, original in _LLAMA3
        ),
    ]
    refused: UnsupportedModelError | None = None
    for more in tries:
        try:
            read = family.read_config(ConfigReader(Fields(fields | more, place / "config.json"), None))
            if config.get("encoder") is not None:
                read = read | {"tied": config["tied"]}
            _check_same(checkpoint, read, "config.json", place)
        except UnsupportedModelError as error:
            refused = refused or error
        else:
            return fields | more
    assert refused is not None
    raise refused


def _write_tokenizer(checkpoint: Checkpoint, place: Path) -> None:
    tokenizer, template = checkpoint.tokenizer, checkpoint.chat_template
    settings: dict[str, Any] = {} if template is None else dict(template.tokens)
    if isinstance(tokenizer, HFTokenizer):
        with replacing(place / "tokenizer.json") as file:
            file.write(tokenizer.library.to_str().encode("utf-8"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    elif isinstance(tokenizer, SentencePieceTokenizer):
        with replacing(place / "tokenizer.model") as file:
            file.write(tokenizer.library.serialized_model_proto())
    else:
        return
    settings["add_bos_token"] = tokenizer.adds_bos
    if template is not None:
        texts = template.templates
        settings["chat_template"] = (
            texts["default"]
            if list(texts) == ["default"]
            else [{"name": name, "template": text} for name, text in texts.items()]
        )
    _write_json(place / "tokenizer_config.json", settings)
