"""llama2.c checkpoints, version 0: a ``.bin`` file of seven integers and float32 weights.

The header is dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; a negative vocab_size
says that the head is a matrix of its own. Then come the weights, each kind for all layers at once, and the
tables of cosines and sines that early versions of the program read. w1 is the gate of the feed-forward
block, w3 its up and w2 its down projection. Query and key rows are stored for a rotation of neighbouring
pairs; they are put into half-split order on the way out, which changes no score because both take the same
permutation.
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
"""What a checkpoint calls the architecture."""

_FIELDS: Final = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_MAGIC: Final = int.from_bytes(b"24ka", "little")  # "ak42" read as an integer: the mark of versions 1 and 2
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

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        n, d_kv = self.n_layers, self.n_kv_heads * self.head_size
        layout: list[tuple[str, tuple[int, ...]]] = [
            ("token_embedding_table", (self.vocab_size, self.dim)),
            ("rms_att_weight", (n, self.dim)),
            ("wq", (n, self.dim, self.dim)),
            ("wk", (n, d_kv, self.dim)),
            ("wv", (n, d_kv, self.dim)),
            ("wo", (n, self.dim, self.dim)),
            ("rms_ffn_weight", (n, self.dim)),
            ("w1", (n, self.hidden_dim, self.dim)),
            ("w2", (n, self.dim, self.hidden_dim)),
            ("w3", (n, self.hidden_dim, self.dim)),
            ("rms_final_weight.weight", (self.dim,)),
            ("freq_cis_real", (self.seq_len, self.head_size // 2)),
            ("freq_cis_imag", (self.seq_len, self.head_size // 2)),
        ]
        if not self.tied:
            layout.append(("wcls", (self.vocab_size, self.dim)))
        return layout


def open_file(path: Path, tokenizer: Any = None) -> Checkpoint:
    """Open a llama2.c file; see :func:`specdec.checkpoints.open_checkpoint`."""
    opened = OpenedFile(path)
    if opened.size < 4 * len(_FIELDS):
        raise CheckpointError(f"{path}: has {opened.size} bytes; expected a header of {4 * len(_FIELDS)}")
    header = _read_header(opened)
    tensors = _split(opened, header)
    _check_rotation(path, header, tensors["freq_cis_real"], tensors["freq_cis_imag"])
    config = {
        "n_vocab": header.vocab_size,
        "n_ctx": header.seq_len,
        "n_layer": header.n_layers,
        "n_head": header.n_heads,
        "n_kv_head": header.n_kv_heads,
        "d_model": header.dim,
        "d_head": header.head_size,
        "d_ff": header.hidden_dim,
        "norm": "rms",
        "norm_eps": _NORM_EPS,
        "position": "rotary",
        "inv_freq": rotary_frequencies(header.head_size, _THETA),
        "activation": "silu",
        "gated": True,
        "tied": header.tied,
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "sliding_window": 0,
    }
    sources = list(_FAMILY.sources(config))
    return matched_checkpoint(
        path,
        LLAMA2C,
        config,
        sources,
        tensors,
        tokenizer=(
            own_tokenizer(path, header.vocab_size)
            if tokenizer is None
            else resolve_tokenizer(tokenizer, path.parent, **_ENDS)
        ),
        decoder_start=(),
        weight_files=(path,),
    )


def _read_header(opened: OpenedFile) -> _Header:
    path = opened.path
    values = [int(value) for value in opened.read(0, 4 * len(_FIELDS)).view("<i4")]
    if values[0] == _MAGIC:
        raise UnsupportedModelError(f"{path}: is a llama2.c file of version {values[1]}; expected version 0")
    fields = dict(zip(_FIELDS, values, strict=True))
    tied = fields["vocab_size"] > 0
    fields["vocab_size"] = abs(fields["vocab_size"])
    for name, value in fields.items():
        if value < 1:
            raise CheckpointError(f"{path}: header field '{name}' is {value}; expected at least 1")
    header = _Header(**fields, tied=tied)
    if header.dim % header.n_heads or header.head_size % 2:
        raise CheckpointError(
            f"{path}: header field 'dim' is {header.dim}; expected an even multiple of n_heads, "
            f"{header.n_heads}"
        )
    if header.n_heads % header.n_kv_heads:
        raise CheckpointError(
            f"{path}: header field 'n_kv_heads' is {header.n_kv_heads}; expected a divisor of "
            f"n_heads, {header.n_heads}"
        )
    return header


def _split(opened: OpenedFile, header: _Header) -> dict[str, StoredTensor]:
    """The tensors of the file, those of layers apart; it must be exactly as long as they are together."""
    layout = header.tensors()
    sizes = [4 * math.prod(shape) for _, shape in layout]
    expected = 4 * len(_FIELDS) + sum(sizes)  # Python's integers: no header can overflow it
    if opened.size != expected:
        raise CheckpointError(
            f"{opened.path}: has {opened.size} bytes; expected {expected} for a version 0 header of "
            + ", ".join(f"{name} {getattr(header, name)}" for name in _FIELDS)
            + ("" if header.tied else ", head not tied")
        )
    tensors, start = {}, 4 * len(_FIELDS)
    for (name, shape), size in zip(layout, sizes, strict=True):
        by_layer = name in _OF_LAYERS
        n, inner = (header.n_layers, shape[1:]) if by_layer else (1, shape)
        for i in range(n):
            key = f"{name}.{i}.weight" if by_layer else name
            tensors[key] = StoredTensor(opened, key, "F32", inner, start + i * (size // n), size // n)
        start += size
    return tensors


def _check_rotation(path: Path, header: _Header, cosines: StoredTensor, sines: StoredTensor) -> None:
    """The header does not say the base of the rotation, but the table's row for position 1 does."""
    if header.seq_len < 2:
        return
    angles = np.asarray(rotary_frequencies(header.head_size, _THETA))
    tables = ((cosines, np.cos), (sines, np.sin))
    if not all(np.allclose(table.array(1), of(angles), atol=1e-4) for table, of in tables):
        raise UnsupportedModelError(
            f"{path}: tables 'freq_cis_real' and 'freq_cis_imag' are not those of base {_THETA:g}; "
            "expected it, the only base of llama2.c's version 0"
        )


_OF_LAYERS: Final = (
    "rms_att_weight", "wq", "wk", "wv", "wo", "rms_ffn_weight", "w1", "w2", "w3",
)  # fmt: skip
_FAMILY: Final = Family(
    lambda reader: {},
    {
        "attn_q": interleaved("wq.{i}"),
        "attn_k": interleaved("wk.{i}"),
        **named(
            token_embedding="token_embedding_table",
            head="wcls",
            output_norm="rms_final_weight",
            attn_norm="rms_att_weight.{i}",
            attn_v="wv.{i}",
            attn_out="wo.{i}",
            mlp_norm="rms_ffn_weight.{i}",
            mlp_gate="w1.{i}",
            mlp_up="w3.{i}",
            mlp_down="w2.{i}",
        ),
    },
)

# Stories end with the next one's BOS in what llama2.c trains on, and its sampling loop stops there; so both
# BOS and EOS end a text.
_ENDS: Final[Mapping[str, Any]] = {"bos_id": 1, "eos_ids": (1, 2)}


def own_tokenizer(path: Path, n_vocab: int) -> Tokenizer | None:
    """The tokenizer whose name says that it belongs to this file, if there is one beside it."""
    names = [f"tok{n_vocab}.bin", f"tok{n_vocab}.model", "tokenizer.bin", "tokenizer.model"]
    found = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if found is None:
        return None
    tokenizer = resolve_tokenizer(found, path.parent, **_ENDS)
    assert tokenizer is not None
    if tokenizer.n_vocab != n_vocab:
        raise TokenizerError(
            f"{found}: has {tokenizer.n_vocab} tokens; expected {n_vocab}, the vocab_size of {path.name} "
            f"(tokenizer=... names another one, tokenizer=False none)"
        )
    return tokenizer
