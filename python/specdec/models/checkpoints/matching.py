"""Matching the tensors of files with those a model needs, and choosing their number formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import UnsupportedModelError, number_of
from specdec.models.checkpoints.checkpoint import CanonicalTensor, Checkpoint, StoredTensors, UnreadTensor
from specdec.models.checkpoints.file_tensor import PLAIN, FileRows, FileTensor, error_of
from specdec.models.families import Family, Source
from specdec.models.number_formats import Dtype
from specdec.models.tokenizer import Tokenizer, source_side

_FORMATS: Final[Mapping[str, str]] = {
    "F32": "f32", "F16": "f32", "BF16": "bf16", "Q8_0": "int8", "Q4_0": "int4",
    **{name: name.lower() for name in ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")},
    "IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs", "MXFP4": "mxfp4",
}  # fmt: skip
"""File types to lossless formats of the core."""

# Two-dimensional tensors that are not stored as matrices.
_OTHERS: Final = re.compile(
    r"position_embedding$|relative_bias$|router\.weight$|shared_gate\.weight$|mixer_conv$|mixer_(beta|decay)\.weight$"
)

# Matrices with the same input rows in the core.
_TOGETHER: Final = (
    re.compile(r"attn_(q|k|v|gate)\.weight$"),
    re.compile(r"mlp_(gate|up)\.weight$"),
    re.compile(r"mixer_(in|gate)\.weight$"),
    re.compile(r"layers\.\d+\.cross_[kv]\.weight$"),
)


def is_matrix(source: Source) -> bool:
    """Return whether a tensor is a matrix or a token embedding."""
    return len(source.shape) == 2 and bool(source.stored) and not _OTHERS.search(source.canonical)


def own_dtype(sources: list[Source], tensors: Mapping[str, Any]) -> Dtype:
    """Return the default number format of a model; `stored_tensors` may keep others."""
    types = {
        "BF16" if source.numbers else tensors[name].dtype  # bytes of MXFP4 are numbers of bf16
        for source in sources
        for name in source.stored
        if len(source.shape) == 2
    }
    if types <= {"BF16"}:
        return "bf16"
    if types <= PLAIN.keys():
        return "f32"
    return "int4" if types - PLAIN.keys() == {"Q4_0"} else "int8"


def stored_tensors(path: Path, sources: list[Source], tensors: Mapping[str, Any]) -> StoredTensors | None:
    """Return how the tensors of a quantized file keep their types; None without quantized tensors."""
    matrices = {source.canonical: source for source in sources if is_matrix(source)}
    types = {name: tensors[source.stored[0]].dtype for name, source in matrices.items()}
    if not any(tensors[source.stored[0]].is_coded for source in matrices.values()):
        return None
    same = {name: _FORMATS.get(dtype) for name, dtype in types.items()}
    formats: dict[str, str] = {}
    for name, source in matrices.items():
        keeps = same[name] in ("f32", "bf16") or source.entry.keeps_rows
        # fallback for a type that the core does not compute with
        other = "bf16" if name.endswith("_embedding") else "int8"
        formats[name] = (keeps and same[name]) or other
    _join(formats)
    changed = Counter(
        f"{types[name]} as {number_format}"
        for name, number_format in formats.items()
        if number_format != same[name] and types[name] not in ("F32", "F16")
    )
    names = ", ".join(f"{count} of {change}" for change, count in sorted(changed.items()))
    coded = (name for name, source in matrices.items() if tensors[source.stored[0]].is_coded)
    return StoredTensors(
        formats,
        {name: types[name] for name in coded if formats[name] == same[name]},
        ", ".join(dtype for dtype, _ in Counter(types.values()).most_common()),
        f"{path}: converting matrices to another number format: {names}" if changed else "",
    )


def _join(formats: dict[str, str]) -> None:
    """Store quantized matrices as f32, losslessly, if others with the same inputs are not quantized."""
    groups: dict[str, list[str]] = {}
    for name in formats:
        for pattern in _TOGETHER:
            if match := pattern.search(name):
                groups.setdefault(name[: match.start()] + pattern.pattern, []).append(name)
    for names in groups.values():
        classes = {formats[name] if formats[name] in ("f32", "bf16") else "codes" for name in names}
        if len(classes) > 1:
            formats.update(dict.fromkeys(names, "f32"))


def match_tensors(
    path: Path, family: Family, config: Mapping[str, Any], sources: list[Source],
    tensors: MutableMapping[str, Any], *, described_by: str,
) -> None:  # fmt: skip
    """Check that all needed tensors are present in the right shape, and no others; rename a tied head."""
    embedding, head = _table_and_head(family, sources)
    if config["tied"] and embedding not in tensors and head in tensors:
        tensors[embedding] = tensors.pop(head)  # one matrix, saved under its other name
    unknown = unused_tensors(path, sources, tensors)
    if config["tied"] and head in unknown:
        unknown.remove(head)  # the embedding again, see `has_own_head`
    if unknown:
        first = ", ".join(f"'{tensors[name].name}'" for name in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        what = f"has tensors that its {described_by} does not use: {first}{more}"
        only = f"only tensors of {number_of(config['n_layer'], 'layer')}"
        raise UnsupportedModelError(f"{path}: {what}; expected {only}")


def unused_tensors(path: Path, sources: list[Source], tensors: Mapping[str, Any]) -> list[str]:
    """Check that all needed tensors are present in the right shape; return the names of the others."""
    expected = {
        name: (shape, source.numbers)
        for source in sources
        for name, shape in zip(source.stored, source.stored_shapes, strict=True)
    }
    for name, (shape, numbers) in expected.items():
        if name not in tensors:
            raise error_of(path, name, "is missing", f"a tensor of shape {list(shape)}")
        if tensors[name].shape != shape:
            raise tensors[name].shape_error(f"{list(shape)}")
        tensors[name].check(numbers)  # now, not after reading half the weights
    return [name for name in tensors if name not in expected and not _HARMLESS.search(name)]


def has_own_head(
    family: Family, config: Mapping[str, Any], sources: list[Source], tensors: Mapping[str, Any]
) -> bool:
    """Return whether the files hold an untied head despite the configuration, as transformers 5 does."""
    embedding, head = _table_and_head(family, sources)
    if not config["tied"] or head not in tensors or embedding not in tensors:
        return False
    return not tensors[head].same_as(tensors[embedding])


def _table_and_head(family: Family, sources: list[Source]) -> tuple[str, str]:
    table = next(source.stored[0] for source in sources if source.canonical == "token_embedding")
    return table, family.head + ".weight"


# Buffers that follow from the configuration: causal masks, the masking constant, rotary frequencies.
_HARMLESS: Final = re.compile(
    r"\.(attn|attention)\.(attention\.)?(bias|masked_bias)$|\.rotary_emb\.inv_freq$|\.attn\.embed_positions$"
)


def matched_checkpoint(
    path: Path, architecture: str, config: Mapping[str, Any], sources: list[Source],
    tensors: Mapping[str, Any], *, tokenizer: Tokenizer | None, decoder_start: tuple[int, ...], **fields: Any,
) -> Checkpoint:  # fmt: skip
    """Return the checkpoint of tensors that `match_tensors` checked; `**fields` are its other fields."""
    with_encoder = config.get("encoder") is not None
    used = {name for source in sources for name in source.stored}
    return Checkpoint(
        path=path, architecture=architecture, config=config, tokenizer=tokenizer,
        dtype=own_dtype(sources, tensors), n_bytes=sum(tensors[name].n_bytes for name in used),
        _tensors=partial(canonical_tensors, sources, tensors), stored=stored_tensors(path, sources, tensors),
        source_tokenizer=source_side(tokenizer) if with_encoder else None,
        decoder_start=decoder_start if with_encoder else (), **fields,
    )  # fmt: skip


def canonical_tensors(
    sources: list[Source], tensors: Mapping[str, FileTensor], as_blocks: Container[str] = (),
    in_file: bool = False,
) -> Iterator[CanonicalTensor | UnreadTensor]:  # fmt: skip
    """Yield each tensor of the model, read one at a time; see `Checkpoint.tensors`."""
    at: tuple[list[str], int | None, bool] = [], None, False
    arrays: list[NDArray[np.generic]] = []
    for source in sources:
        index, coded = source.entry.index, source.canonical in as_blocks
        if in_file and (rows := _file_rows(source, tensors, coded)) is not None:
            tensor = tensors[source.stored[0]]
            at, arrays = ([], None, False), []
            yield source.canonical, rows, tensor.dtype.lower() if coded else tensor.format
            continue
        if (source.stored, index, coded) != at:  # a stored tensor may hold several of the model's
            arrays = []  # freed before the next is read
            at = source.stored, index, coded
            for tensor in (tensors[name] for name in source.stored):
                arrays.append(tensor.blocks(index) if coded else tensor.array(index, source.numbers))
        first = tensors[source.stored[0]] if source.stored else None
        if coded and first is not None:
            yield source.canonical, source.rows(arrays[0]), first.dtype.lower()
            continue
        number_format = "" if source.numbers or first is None else first.format
        yield (source.canonical, *source.take(arrays, number_format))


def _file_rows(source: Source, tensors: Mapping[str, FileTensor], coded: bool) -> FileRows | None:
    """Return a matrix's unread rows in the file; None if it must be computed."""
    if len(source.stored) != 1 or len(source.shape) != 2 or source.numbers or not source.is_rows:
        return None
    tensor = tensors[source.stored[0]]
    rows = tensor.file_rows(source.entry.index)
    if rows is None or (tensor.is_coded and not coded):
        return None
    order = source.rows(np.arange(rows.n_rows, dtype=np.int64)[:, np.newaxis])
    return rows.chosen(np.ascontiguousarray(order[:, 0]))
