"""Which matrices of a file with codes the core computes with as they are, in the types of the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specdec.models.checkpoints.checkpoint import StoredTensors
from specdec.models.checkpoints.file_tensor import PLAIN
from specdec.models.families import Source
from specdec.models.number_formats import Dtype

__all__ = ["is_matrix", "own_dtype", "stored_tensors"]

_FORMATS: Final[Mapping[str, str]] = {
    "F32": "f32",
    "F16": "f32",
    "BF16": "bf16",
    "Q8_0": "int8",
    "Q4_0": "int4",
    **{
        name: name.lower()
        for name in (
            *("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
            *("IQ4_NL", "IQ4_XS", "MXFP4"),
        )
    },
}
"""Types of files to the formats of the core that have the same values."""

# Tensors of two dimensions that are no matrices in a number format.
_OTHERS: Final = re.compile(r"position_embedding$|relative_bias$|router\.weight$|shared_gate\.weight$")

# Matrices that the core multiplies the same rows with: parts of names, the others being equal.
_TOGETHER: Final = (
    re.compile(r"attn_[qkv]\.weight$"),
    re.compile(r"mlp_(gate|up)\.weight$"),
    re.compile(r"layers\.\d+\.cross_[kv]\.weight$"),
)


def is_matrix(source: Source) -> bool:
    """Whether a tensor is a matrix in a number format, or a table of tokens."""
    return len(source.shape) == 2 and bool(source.stored) and not _OTHERS.search(source.canonical)


def own_dtype(sources: list[Source], tensors: Mapping[str, Any]) -> Dtype:
    """The number format of a model of the files where its tensors do not stay as they are.

    Parameters
    ----------
    sources, tensors
        As of `stored_tensors`.
    """
    kinds = {
        "BF16" if source.numbers else tensors[name].kind  # bytes of MXFP4 are numbers of bf16
        for source in sources
        for name in source.stored
        if len(source.shape) == 2
    }
    if kinds <= {"BF16"}:
        return "bf16"
    if kinds <= PLAIN.keys():
        return "f32"
    return "int4" if kinds - PLAIN.keys() == {"Q4_0"} else "int8"


def stored_tensors(place: Path, sources: list[Source], tensors: Mapping[str, Any]) -> StoredTensors | None:
    """The tensors of a file in its own types.

    Parameters
    ----------
    place : Path
        The file or folder, for messages.
    sources : list of Source
        Where the tensors of the model come from.
    tensors : mapping of str to FileTensor
        Those of the file, by name.

    Returns
    -------
    StoredTensors or None
        None where the file holds no blocks of codes.
    """
    matrices = {source.canonical: source for source in sources if is_matrix(source)}
    types = {name: tensors[source.stored[0]].kind for name, source in matrices.items()}
    if not any(tensors[source.stored[0]].is_coded for source in matrices.values()):
        return None
    formats: dict[str, str] = {}
    for name, source in matrices.items():
        is_own = _FORMATS.get(types[name]) in ("f32", "bf16") or source.entry.keeps_rows
        formats[name] = _FORMATS[types[name]] if is_own and types[name] in _FORMATS else _other(name)
    _join(formats)
    changed = Counter(
        f"{types[name]} as {form}"
        for name, form in formats.items()
        if form != _FORMATS.get(types[name]) and types[name] not in ("F32", "F16")
    )
    names = ", ".join(f"{count} of {change}" for change, count in sorted(changed.items()))
    counted = Counter(types.values())
    blocks = {
        name: types[name]
        for name, source in matrices.items()
        if tensors[source.stored[0]].is_coded and formats[name] == _FORMATS.get(types[name])
    }
    return StoredTensors(
        formats,
        blocks,
        ", ".join(kind for kind, _ in counted.most_common()),
        f"{place}: holds matrices that are turned into another number format: {names}" if changed else "",
    )


def _other(name: str) -> str:
    """What a type becomes that the core does not compute with."""
    return "bf16" if name == "token_embedding" else "int8"


def _kind(form: str) -> str:
    return form if form in ("f32", "bf16") else "codes"


def _join(formats: dict[str, str]) -> None:
    """Where the same rows meet floats and codes, the codes become floats, which have the same values."""
    groups: dict[str, list[str]] = {}
    for name in formats:
        for pattern in _TOGETHER:
            if match := pattern.search(name):
                groups.setdefault(name[: match.start()] + pattern.pattern, []).append(name)
    for names in groups.values():
        kinds = {_kind(formats[name]) for name in names}
        if len(kinds) > 1:
            formats.update(dict.fromkeys(names, "f32"))
