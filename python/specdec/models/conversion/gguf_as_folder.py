"""A GGUF file as a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.errors import InputError, UnsupportedModelError
from specdec.models.checkpoints import Checkpoint
from specdec.models.checkpoints.gguf_types import encoded
from specdec.models.checkpoints.safetensors_file import write_tensors
from specdec.models.conversion.file_order import gathered, stored_shapes
from specdec.models.conversion.model_identity import check_same
from specdec.models.families import FAMILIES, ConfigReader, model_type_of
from specdec.models.json_fields import Fields
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.sentencepiece_file import SentencePieceTokenizer

__all__ = ["FOLDER_TYPES", "write_as_folder"]

FOLDER_TYPES: Final[Mapping[str, str]] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The numbers of a folder, and what its files call them."""

# Llama 3's scalings, which GGUF files hold as factors: (factor, low_freq_factor, high_freq_factor, original).
_LLAMA3: Final = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))

Array = NDArray[Any]


class _Plain:
    """The names that a folder may hold: none of codes."""

    def __contains__(self, name: object) -> bool:
        return not str(name).endswith(("_blocks", "_scales"))


def write_as_folder(checkpoint: Checkpoint, place: Path, kind: str | None, progress: bool | None) -> None:
    """Write the model of a GGUF file as a Hugging Face folder.

    Parameters
    ----------
    checkpoint : Checkpoint
    place : Path
        A new or empty folder.
    kind : str or None
        One of `FOLDER_TYPES`; None: what the file holds.
    progress : bool or None

    Raises
    ------
    InputError, UnsupportedModelError, CheckpointError, OSError
        As `specdec.convert`.
    """
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
    shapes = dict(stored_shapes(sources))
    numbers = {name: FOLDER_TYPES[kind if len(shape) > 1 else "F32"] for name, shape in shapes.items()}
    made = {name: (numbers[name], shape) for name, shape in shapes.items()}

    def data() -> Iterator[Array]:
        for name, array in gathered(checkpoint, sources, progress, place):
            plain = kind if len(shapes[name]) > 1 else "F32"
            yield encoded(array, plain, f"{checkpoint.path}: tensor '{name}'")

    place.mkdir(parents=True, exist_ok=True)
    try:
        write_tensors(place / "model.safetensors", made, data(), {"format": "pt"})
        _write_tokenizer(checkpoint, place)
        _write_json(place / "config.json", fields)
    except BaseException:
        for file in place.iterdir():  # the folder was new or empty: no half of a model stays
            file.unlink()
        place.rmdir()
        raise


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
        "torch_dtype": FOLDER_TYPES[kind],
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
            check_same(checkpoint, read, "config.json", place)
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
