"""GGUF files as checkpoints: model, tokenizer and chat templates from one file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from specdec.errors import CheckpointError, UnsupportedModelError, UnusedFieldWarning, warn
from specdec.fields import NOT_KNOWN, Fields
from specdec.models.chat_template import ChatTemplate, resolve_chat_template
from specdec.models.checkpoints.checkpoint import Checkpoint
from specdec.models.checkpoints.generation_config import NOT_APPLIED, sampling_of
from specdec.models.checkpoints.gguf_file import GGUFFile, is_gguf, read_gguf
from specdec.models.checkpoints.matching import match_tensors, matched_checkpoint
from specdec.models.families import FAMILIES, ConfigReader, Family, Source, mtp
from specdec.models.families.gguf import architecture_of, settled
from specdec.models.families.gguf_metadata import HARMLESS, Metadata, check_keys
from specdec.models.tokenizer import resolve_tokenizer
from specdec.models.tokenizer.gguf_vocabulary import Vocabulary, read_end_ids, read_vocabulary

# Cross-attention biases of a decoder, which nothing reads.
_UNUSED: Final = "cross_attn_rel_b.weight"
# A matrix with one row, which some files hold as a vector.
ROW: Final = "ffn_gate_inp_shexp.weight"


def open_gguf(path: Path, tokenizer: Any = None, n_ctx: int | None = None) -> Checkpoint:
    """Open a GGUF file with all its parts; see :func:`specdec.checkpoints.open_checkpoint`."""
    file, metadata = read_metadata(path)
    named, held = metadata.name, metadata.tensors
    _refuse_mtp_alone(metadata)
    name, family, config, sources = described(metadata, n_ctx)
    decoder_start = _decoder_start(metadata, config["n_vocab"])
    metadata.warn_of_unread(HARMLESS)
    if unknown := [key for key in file if not key.startswith(f"{named}.") and not _KNOWN.fullmatch(key)]:
        warn(UnusedFieldWarning(path, unknown, NOT_KNOWN))
    tensors = of_model(metadata, config)
    match_tensors(path, family, config, sources, tensors, described_by="metadata")
    n_vocab = config["n_vocab"]
    vocabulary = None if tokenizer is not None else read_vocabulary(file, path)
    if vocabulary is not None and vocabulary.n_tokens > n_vocab:
        expected = f"at most {n_vocab} tokens, one for each row of 'token_embd.weight'"
        raise file.field_error("tokenizer.ggml.tokens", expected, f"{vocabulary.n_tokens} tokens")
    bos_id, eos_ids = read_end_ids(file, path, n_vocab)
    found = vocabulary.tokenizer if vocabulary is not None else resolve_tokenizer(tokenizer, path.parent)
    own = tokenizer is None
    template = chat_template_of(file, vocabulary) if own else resolve_chat_template(tokenizer, path.parent)
    return matched_checkpoint(
        path, name, config, sources, tensors, tokenizer=found, decoder_start=decoder_start,
        default_sampling=_default_sampling(file), bos_id=bos_id, eos_ids=eos_ids, chat_template=template,
        weight_files=tuple(sorted({tensor.file for tensor in held.values()})), fields=fields_of(metadata),
    )  # fmt: skip


def read_metadata(path: Path) -> tuple[GGUFFile, Metadata]:
    """Read a GGUF file and its architecture's metadata."""
    file, held = read_gguf(path)
    named: Any = file.get("general.architecture")
    values = {key.removeprefix(f"{named}."): file.get(key) for key in file if key.startswith(f"{named}.")}
    return file, Metadata(named, values, held, path)


def is_gguf_file(path: Path) -> bool:
    """Return whether a path is a GGUF file."""
    return path.is_file() and is_gguf(path)


def is_mtp_alone(metadata: Metadata) -> bool:
    """Return whether a file holds no layer of the model but multi-token prediction blocks."""
    of_layers = any(name.startswith("blk.0.") for name in metadata.tensors)
    return metadata.get("nextn_predict_layers", 0) != 0 and not of_layers


def _refuse_mtp_alone(metadata: Metadata) -> None:
    if is_mtp_alone(metadata):
        expected = f"a model; drafts.MTP(target, {str(metadata.file)!r}) opens it as a draft"
        raise UnsupportedModelError(f"{metadata.file}: holds only an MTP block; expected {expected}")


def described(
    metadata: Metadata, n_ctx: int | None = None
) -> tuple[str, Family, dict[str, Any], list[Source]]:
    """Return the architecture in transformers, the family, the canonical configuration and the sources."""
    architecture = architecture_of(metadata.name, metadata.file)
    name = architecture.architecture(metadata)
    family = architecture.family(FAMILIES[name])
    fields = Fields(fields_of(metadata), metadata.file)
    config = settled(family.read_config(ConfigReader(fields, n_ctx)), metadata)
    tensors = of_model(metadata, config)
    check_keys(metadata, config)
    try:
        return name, family, config, list(family.sources(config, tensors.__contains__))
    except ValueError as error:  # from the core, which names the field of the canonical configuration
        raise CheckpointError(f"{metadata.file}: {error}") from error


def fields_of(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of an equivalent config.json."""
    tied = "output.weight" not in metadata.tensors
    return architecture_of(metadata.name, metadata.file).fields(metadata) | {
        "vocab_size": _n_vocab(metadata),
        "tie_word_embeddings": tied,
    }


def _shared_prefixes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return prefixes of unread tensors in layers that use keys and values of earlier ones."""
    layers = [i for i, kv_layer in enumerate(config.get("kv_layers", ())) if kv_layer != i]
    return tuple(f"blk.{i}.attn_{part}." for i in layers for part in ("k", "v", "k_norm"))


def of_model(metadata: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of the model, without those that the configuration used or nothing reads."""
    found: dict[str, Any] = {}
    unread = mtp_prefixes(metadata) + _shared_prefixes(config)
    for key, tensor in metadata.tensors.items():
        if key not in metadata.used and not key.endswith(_UNUSED) and not key.startswith(unread):
            is_row = key.endswith(ROW) and len(tensor.shape) == 1
            found[key] = replace(tensor, shape=(1, *tensor.shape)) if is_row else tensor
    return found


def mtp_prefixes(metadata: Metadata) -> tuple[str, ...]:
    """Return the prefixes of the tensors of multi-token prediction blocks; refuse layers of the model."""
    prefixes = mtp.GGUF.roots(metadata.n_layer, metadata.n_mtp_blocks)
    for prefix in prefixes:
        held = [name for name in metadata.tensors if name.startswith(prefix)]
        if held and not any(name.startswith(f"{prefix}nextn.") for name in held):
            raise metadata.error("nextn_predict_layers", f"a number of blocks with tensors '{prefix}nextn.*'")
    return prefixes


def _n_vocab(metadata: Metadata) -> int:
    table = metadata.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        found = "is missing" if table is None else f"has shape {list(table.shape)}"
        raise CheckpointError(f"{metadata.file}: tensor 'token_embd.weight' {found}; expected a matrix")
    n_rows: int = table.shape[0]
    return n_rows


def chat_template_of(file: GGUFFile, vocabulary: Vocabulary | None) -> ChatTemplate | None:
    """Return the chat templates of a file, or None."""
    prefix = "tokenizer.chat_template"
    templates: dict[str, Any] = {
        "default" if key == prefix else key.removeprefix(f"{prefix}."): file.get(key)
        for key in file
        if key == prefix or key.startswith(f"{prefix}.")
    }
    for name, text in templates.items():
        if not isinstance(text, str):
            raise file.field_error(f"{prefix}.{name}", "a string", text)
    if not templates:
        return None
    tokens = {} if vocabulary is None else vocabulary.special_tokens
    return ChatTemplate(templates, tokens=tokens, source=str(file.path))


# Known keys without effect on the model: provenance, splits, importance, vocabulary, templates.
_KNOWN: Final = re.compile(
    r"general\.(alignment|architecture|author|basename|description|doi|file_type|finetune|languages|license"
    r"|license\.\w+|name|organization|parameter_count|quantization_version|quantized_by|repo_url|size_label"
    r"|sampling\.(sequence|top_[kp]|min_p|temp|xtc_\w+|penalty_\w+|mirostat\w*)"
    r"|tags|type|url|uuid|version|(source|base_model|dataset)\..+)"
    r"|split\.(no|count|tensors\.count)|quantize\.imatrix\.\w+|imatrix\.\w+|mradermacher\..+"
    r"|tokenizer\.chat_template(s|\..+)?|tokenizer\.(huggingface\.json|rwkv\.world)"
    r"|tokenizer\.ggml\.(model|pre|tokens|token_type|token_type_count|scores|merges|precompiled_charsmap"
    r"|(add_(bos|eos|sep)_token)|add_space_prefix|remove_extra_whitespaces"
    r"|(bos|eos|eot|eom|unknown|seperator|padding|mask|cls|prefix|suffix|middle)_token_id"
    r"|fim_(pre|suf|mid|pad|rep|sep)_token_id)"
)


_SAMPLING: Final = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}  # fmt: skip
# Unsupported sampling settings: their neutral values.
_UNAPPLIED_SAMPLING: Final[Mapping[str, tuple[Any, ...]]] = {
    "mirostat": (0,), "penalty_last_n": (-1,), "sequence": (), "xtc_probability": (0,),
}  # fmt: skip


def _default_sampling(file: GGUFFile) -> dict[str, Any]:
    """Return the settings in ``general.sampling``, where converters store a generation_config.json."""
    prefix = "general.sampling."
    values = {key.removeprefix(prefix): file.get(key) for key in file if key.startswith(prefix)}
    given = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in values.items()}
    of_others = given.keys() & _UNAPPLIED_SAMPLING.keys()
    unapplied = [f"{prefix}{key}" for key in sorted(of_others) if given[key] not in _UNAPPLIED_SAMPLING[key]]
    if unapplied:
        warn(UnusedFieldWarning(file.path, unapplied, NOT_APPLIED))
    found = {ours: _shortest(given[theirs]) for theirs, ours in _SAMPLING.items() if theirs in given}
    if not found:
        return {}
    is_greedy = found.get("temperature") == 0
    return sampling_of(Fields(found | {"do_sample": not is_greedy}, file.path))


def sampling_values(sampling: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return `specdec.Model.default_sampling` as metadata; warn about settings without a key."""
    found = {theirs: sampling[ours] for theirs, ours in _SAMPLING.items() if ours in sampling}
    if left_out := sorted(sampling.keys() - _SAMPLING.values()):
        warn(
            f"{path}: GGUF files have no field for the default settings {', '.join(left_out)}; dropping them"
        )
    if "penalty_repeat" in found:
        found["penalty_last_n"] = -1  # all tokens
    if found:
        found.setdefault("temp", 0.0)
    return {f"general.sampling.{key}": value for key, value in found.items()}


def _shortest(value: Any) -> Any:
    """Return the shortest decimal with the same float32 value: 0.7 for 0.699999988."""
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):  # infinity is refused later
        return float(np.format_float_positional(np.float32(value)))


def _decoder_start(metadata: Metadata, n_vocab: int) -> tuple[int, ...]:
    token = metadata.get("decoder_start_token_id")
    if token is None:
        return ()
    if type(token) is not int or not 0 <= token < n_vocab:
        raise metadata.error("decoder_start_token_id", f"a token id from 0 to {n_vocab - 1}")
    return (token,)
