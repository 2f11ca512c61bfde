"""Gemma 4's assistants: drafts whose layers attend to keys and values of the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.drafts.learned.eagle.published import PublishedDraft
from specdec.drafts.learned.head_tokens import HeadTokens, check_head_tokens, usual_head_tokens
from specdec.errors import CheckpointError, InputError, UnsupportedModelError, VocabularyMismatchError
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints import Checkpoint
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.checkpoints.hf_folder import described_by, held_tensors
from specdec.models.checkpoints.matching import matched_checkpoint, unused_tensors
from specdec.models.checkpoints.safetensors_file import StoredTensor
from specdec.models.families import Family, coded_sources
from specdec.models.families.family import Named
from specdec.models.families.gemma4 import ASSISTANTS
from specdec.models.model import Model
from specdec.models.number_formats import Dtype

_ORDER: Final = "masked_embedding.token_ordering"


def is_assistant(folder: Path) -> bool:
    """Return whether a folder holds an assistant, by its configuration."""
    file = folder / "config.json"
    return file.is_file() and _name_of(Fields(read_json_object(file), file)) in ASSISTANTS


def _name_of(fields: Fields) -> object:
    names = fields.raw("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def open_assistant(
    path: Path, target: Model, dtype: Dtype | None, head_tokens: HeadTokens | None
) -> PublishedDraft:
    """Open the assistant of a target in a folder."""
    file = path / "config.json"
    fields = Fields(read_json_object(file), file)
    name = _name_of(fields)
    if name not in ASSISTANTS:
        raise fields.unsupported("architectures", f"one of {', '.join(ASSISTANTS)}")
    family = ASSISTANTS[str(name)]
    clusters = _clusters(fields)
    if clusters and head_tokens is not None:
        expected = "None for an assistant whose centroids choose the tokens (use_ordered_embeddings)"
        raise InputError.of("head_tokens", head_tokens, expected)
    width = fields.with_absent(family.absent).integer("backbone_hidden_size")
    config, reader = described_by(family, fields)
    _check_target(path, config, width, target)
    config |= {
        "n_ctx": target.config.n_ctx, "kv_layers": _lenders(path, config, target), "borrows_kv": True,
        "features": "joined", "feature_width": width, "feature_output": True, "shared_embedding": True,
        "shared_head": False, "embedding_scale": target.config.embedding_scale, **clusters,
    }  # fmt: skip
    try:
        _core.tensor_shapes(config)
    except ValueError as error:  # from the core, which names the field of the canonical configuration
        raise CheckpointError(f"{file}: {error}") from error
    held = held_tensors(path, family, reader)
    if clusters:
        tokens: NDArray[np.int32] | None = _token_order(path, held, config["n_vocab"])
    else:
        tokens = check_head_tokens(usual_head_tokens(target) if head_tokens is None else head_tokens, target)
        config["n_draft_tokens"] = 0 if tokens is None else len(tokens)
    checkpoint = _checkpoint(path, str(name), _with_rows(family, tokens), config, held)
    stored = checkpoint.stored if dtype is None else None
    return PublishedDraft(
        path, "assistant", config, partial(checkpoint.unread_tensors, stored.blocks if stored else ()),
        dtype or checkpoint.dtype, checkpoint.weight_files, (target.config.n_layer + 1,), tokens, True,
        formats=stored.formats if stored else {},
    )  # fmt: skip


def _clusters(fields: Fields) -> dict[str, int]:
    """Read the number of clusters that centroids choose from; empty: the head is whole."""
    found = {
        "n_clusters": fields.integer("num_centroids", default=2048),
        "n_chosen_clusters": fields.integer("centroid_intermediate_top_k", default=32),
    }
    return found if fields.boolean("use_ordered_embeddings", default=False) else {}


def _check_target(path: Path, config: Mapping[str, Any], width: int, target: Model) -> None:
    """Refuse a target of another width or vocabulary."""
    of, file = target.config, path / "config.json"
    if config["n_vocab"] != of.n_vocab:
        found = f"{file}: field 'text_config.vocab_size' is {config['n_vocab']}"
        raise VocabularyMismatchError(f"{found}; expected {of.n_vocab}, as the target {target.path} has")
    if width != of.d_model:
        raise _mismatch(path, "backbone_hidden_size", width, of.d_model, f"the hidden_size of {target.path}")


def _mismatch(path: Path, name: str, found: object, expected: object, where: str) -> InputError:
    field = f"{path / 'config.json'}: field '{name}'"
    return InputError.of(field, found, f"{expected}, {where}: an assistant fits one target only", f"{found}")


def _lenders(path: Path, config: Mapping[str, Any], target: Model) -> list[int]:
    """Return the layer of the target that each layer reads: the last of its type with its own keys."""
    own = [_layer(config, i) for i in range(config["n_layer"])]
    of = target.config
    lenders = []
    for i, layer in enumerate(own):
        lent = [
            j
            for j in range(of.n_layer)
            if (not of.kv_layers or of.kv_layers[j] == j)
            and of.attends[j]
            and bool(_layer(of, j)["sliding_window"]) == bool(layer["sliding_window"])
        ]
        if not lent:
            layer_type = "sliding_attention" if layer["sliding_window"] else "full_attention"
            expected = f"a type of the layers of {target.path}"
            raise _mismatch(
                path, f"text_config.layer_types[{i}]", layer_type, expected, "with keys of their own"
            )
        lender = _layer(of, lent[-1])
        for name, value in layer.items():
            if value != lender[name]:
                field = f"text_config.{name}, layer {i}"
                where = f"as in layer {lent[-1]} of {target.path}"
                raise _mismatch(path, field, value, lender[name], where)
        lenders.append(lent[-1])
    return lenders


def _layer(config: Mapping[str, Any], i: int) -> dict[str, Any]:
    """Return what the keys of a layer depend on, by fields of config.json."""

    def of(many: str, one: str) -> Any:
        return (config.get(many) or [config[one]] * config["n_layer"])[i]

    rotations = [config["inv_freq"], *(config.get("more_inv_freq") or ())]
    turned = (config.get("rotations") or [0] * config["n_layer"])[i]
    return {
        "sliding_window": of("windows", "sliding_window"),
        "num_key_value_heads": of("n_kv_heads", "n_kv_head"),
        "head_dim": of("d_heads", "d_head"),
        "rope_parameters": None if turned < 0 else list(rotations[turned]),
    }


def _token_order(path: Path, held: dict[str, FileTensor], n_vocab: int) -> NDArray[np.int32]:
    """Take the token of each row of the head, cluster after cluster."""
    stored = held.pop(_ORDER, None)
    if not isinstance(stored, StoredTensor):
        raise CheckpointError(f"{path}: tensor '{_ORDER}' is missing; expected it with shape [{n_vocab}]")
    order = stored.integers()
    if order.shape != (n_vocab,) or not np.array_equal(np.sort(order), np.arange(n_vocab)):
        raise stored.error("is no order of the tokens", f"each of 0 to {n_vocab - 1} once")
    return order.astype(np.int32)


def _with_rows(family: Family, tokens: NDArray[np.int32] | None) -> Family:
    """Return the family with only these rows of the head, in this order."""
    if tokens is None:
        return family
    table = family.tensors
    assert isinstance(table, Mapping)
    head = table["head"]
    assert isinstance(head, Named)

    def view(array: NDArray[Any], shape: tuple[int, ...], config: Mapping[str, Any]) -> NDArray[Any]:
        return array[tokens]

    def shape_there(shape: tuple[int, ...], config: Mapping[str, Any]) -> tuple[int, ...]:
        return (config["n_vocab"], *shape[1:])

    return replace(family, tensors={**table, "head": replace(head, view=view, shape_there=shape_there)})


def _checkpoint(
    path: Path, name: str, family: Family, config: Mapping[str, Any], held: dict[str, FileTensor]
) -> Checkpoint:
    """Match the tensors of the files with those of the configuration."""
    coded = {one for one, tensor in held.items() if tensor.is_coded}
    sources = coded_sources(family.sources(config, held.__contains__), coded)
    tied = held.get("lm_head.weight")
    if tied is not None and tied.same_as(held["model.embed_tokens.weight"]):
        del held["lm_head.weight"]
    if unknown := unused_tensors(path, sources, held):
        names = ", ".join(repr(held[one].name) for one in unknown[:5])
        raise UnsupportedModelError(f"{path}: holds tensors that an assistant does not use: {names}")
    files = sorted({file for tensor in held.values() for file in tensor.files})
    return matched_checkpoint(
        path, name, config, sources, held, tokenizer=None, decoder_start=(),
        weight_files=(path / "config.json", *files),
    )  # fmt: skip
