"""llama2.c checkpoints, version 0: a ``.bin`` file of seven integers and float32 weights.

A negative vocab_size means an untied head. Each weight is stored for all layers at once; tables of cosines
and sines follow. w1, w3 and w2 are the gate, up and down projections. Query and key rows are permuted to
half-split order on reading, which changes no attention score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from specdec.errors import CheckpointError, TokenizerError, UnsupportedModelError
from specdec.models.checkpoints.checkpoint import Checkpoint
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.checkpoints.matching import matched_checkpoint
from specdec.models.checkpoints.safetensors_file import StoredTensor
from specdec.models.families.family import Family, interleaved, named
from specdec.models.families.rotary import rotary_frequencies
from specdec.models.tokenizer import Tokenizer, resolve_tokenizer

LLAMA2C: Final = "llama2.c version 0"
"""The architecture's name."""

_FIELDS: Final = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_N_HEADER: Final = 4 * len(_FIELDS)  # bytes
_MAGIC: Final = int.from_bytes(b"24ka", "little")  # "ak42" as an integer: the magic of versions 1 and 2
_THETA: Final = 10_000.0
_NORM_EPS: Final = 1e-5


class _Header(NamedTuple):
    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int
    tied: bool

    @property
    def head_size(self) -> int:
        return self.dim // self.n_heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return tensor shapes in file order; `_OF_LAYERS` have one tensor per layer."""
        dim, d_kv, d_ff = self.dim, self.n_kv_heads * self.head_size, self.hidden_dim
        table, angles = (self.vocab_size, dim), (self.seq_len, self.head_size // 2)
        return {
            "token_embedding_table": table,
            "rms_att_weight": (dim,), "wq": (dim, dim), "wk": (d_kv, dim), "wv": (d_kv, dim),
            "wo": (dim, dim), "rms_ffn_weight": (dim,), "w1": (d_ff, dim), "w2": (dim, d_ff),
            "w3": (d_ff, dim), "rms_final_weight.weight": (dim,), "freq_cis_real": angles,
            "freq_cis_imag": angles, **({} if self.tied else {"wcls": table}),
        }  # fmt: skip


def open_file(path: Path, tokenizer: Any = None) -> Checkpoint:
    """Open a llama2.c file; see :func:`specdec.checkpoints.open_checkpoint`."""
    opened = OpenedFile(path)
    if opened.size < _N_HEADER:
        raise CheckpointError(f"{path}: has {opened.size} bytes; expected a header of {_N_HEADER} bytes")
    header = _read_header(opened)
    tensors = _split(opened, header)
    _check_rotation(path, header, tensors["freq_cis_real"], tensors["freq_cis_imag"])
    config = {
        "n_vocab": header.vocab_size, "n_ctx": header.seq_len, "n_layer": header.n_layers,
        "n_head": header.n_heads, "n_kv_head": header.n_kv_heads, "d_model": header.dim,
        "d_head": header.head_size, "d_ff": header.hidden_dim, "norm": "rms", "norm_eps": _NORM_EPS,
        "position": "rotary", "inv_freq": rotary_frequencies(header.head_size, _THETA), "activation": "silu",
        "gated": True, "tied": header.tied, "qkv_bias": False, "out_bias": False, "mlp_bias": False,
        "sliding_window": 0,
    }  # fmt: skip
    if tokenizer is None:
        found = own_tokenizer(path, header.vocab_size)
    else:
        found = resolve_tokenizer(tokenizer, path.parent, **_ENDS)
    sources = list(_FAMILY.sources(config))
    return matched_checkpoint(
        path, LLAMA2C, config, sources, tensors, tokenizer=found, decoder_start=(), weight_files=(path,)
    )


def _read_header(opened: OpenedFile) -> _Header:
    path = opened.path
    values = [int(value) for value in opened.read(0, _N_HEADER).view("<i4")]
    if values[0] == _MAGIC:
        raise UnsupportedModelError(f"{path}: is a llama2.c file of version {values[1]}; expected version 0")
    fields = dict(zip(_FIELDS, values, strict=True))
    tied = fields["vocab_size"] > 0
    fields["vocab_size"] = abs(fields["vocab_size"])

    def refused(name: str, expected: str) -> CheckpointError:
        return CheckpointError.of(path, name, fields[name], expected, noun="header field")

    for name, value in fields.items():
        if value < 1:
            raise refused(name, "at least 1")
    header = _Header(**fields, tied=tied)
    if header.dim % header.n_heads or header.head_size % 2:
        raise refused("dim", f"an even multiple of n_heads, {header.n_heads}")
    if header.n_heads % header.n_kv_heads:
        raise refused("n_kv_heads", f"a divisor of n_heads, {header.n_heads}")
    return header


def _split(opened: OpenedFile, header: _Header) -> dict[str, StoredTensor]:
    """Return the tensors, one per layer; the file must have exactly their total size."""
    shapes = header.tensors()
    counts = {name: header.n_layers if name in _OF_LAYERS else 1 for name in shapes}
    # Python integers cannot overflow
    n_bytes = _N_HEADER + sum(4 * math.prod(shape) * counts[name] for name, shape in shapes.items())
    if opened.size != n_bytes:
        names = ", ".join(f"{name} {getattr(header, name)}" for name in _FIELDS)
        expected = f"{n_bytes} for a version 0 header of {names}{'' if header.tied else ', head not tied'}"
        raise CheckpointError(f"{opened.path}: has {opened.size} bytes; expected {expected}")
    tensors, start = {}, _N_HEADER
    for name, shape in shapes.items():
        for i in range(counts[name]):
            key = f"{name}.{i}.weight" if name in _OF_LAYERS else name
            tensors[key] = StoredTensor(opened, key, "F32", shape, start, 4 * math.prod(shape))
            start += tensors[key].n_bytes
    return tensors


def _check_rotation(path: Path, header: _Header, cosines: StoredTensor, sines: StoredTensor) -> None:
    """Check the RoPE base, which the tables show at position 1."""
    if header.seq_len < 2:
        return
    angles = np.asarray(rotary_frequencies(header.head_size, _THETA))
    tables = ((cosines, np.cos), (sines, np.sin))
    if not all(np.allclose(table.array(1), of(angles), atol=1e-4) for table, of in tables):
        expected = f"base {_THETA:g}, as in llama2.c version 0"
        raise cosines.error("and 'freq_cis_imag' have another RoPE base", expected, UnsupportedModelError)


_OF_LAYERS: Final = (
    "rms_att_weight", "wq", "wk", "wv", "wo", "rms_ffn_weight", "w1", "w2", "w3",
)  # fmt: skip
_FAMILY: Final = Family(
    lambda reader: {},
    {
        "attn_q": interleaved("wq.{i}"),
        "attn_k": interleaved("wk.{i}"),
        **named(
            token_embedding="token_embedding_table", head="wcls", output_norm="rms_final_weight",
            attn_norm="rms_att_weight.{i}", attn_v="wv.{i}", attn_out="wo.{i}",
            mlp_norm="rms_ffn_weight.{i}", mlp_gate="w1.{i}", mlp_up="w3.{i}", mlp_down="w2.{i}",
        ),
    },
)  # fmt: skip

# llama2.c trains on stories separated by BOS and stops sampling there, so BOS and EOS both end a sequence.
_ENDS: Final[Mapping[str, Any]] = {"bos_id": 1, "eos_ids": (1, 2)}


def own_tokenizer(path: Path, n_vocab: int) -> Tokenizer | None:
    """Load the tokenizer next to this file that has a matching name, if any."""
    names = [f"tok{n_vocab}.bin", f"tok{n_vocab}.model", "tokenizer.bin", "tokenizer.model"]
    found = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if found is None:
        return None
    tokenizer = resolve_tokenizer(found, path.parent, **_ENDS)
    assert tokenizer is not None
    if tokenizer.n_vocab != n_vocab:
        expected = f"{n_vocab}, the vocab_size of {path.name} (pass tokenizer= with another path, or False)"
        raise TokenizerError(f"{found}: has {tokenizer.n_vocab} tokens; expected {expected}")
    return tokenizer
