"""llama2.c checkpoints, version 0: a ``.bin`` file of seven integers and float32 weights.

The header is dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; a negative vocab_size
says that the head is a matrix of its own. Then come the weights, each kind for all layers at once, and the
tables of cosines and sines that early versions of the program read. w1 is the gate of the feed-forward
block, w3 its up and w2 its down projection. Query and key rows are stored for a rotation of neighbouring
pairs; they are put into half-split order on the way out, which changes no score because both take the same
permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, TokenizerError, UnsupportedModelError
from specdec.models.checkpoints.checkpoint import CanonicalTensor, Checkpoint
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.families.rotary import rotary_frequencies
from specdec.models.tokenizer import Tokenizer, resolve_tokenizer

__all__ = ["LLAMA2C", "open_file", "own_tokenizer"]

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
        """(name, shape) in the order of the file, named as in llama2.c."""
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
            ("rms_final_weight", (self.dim,)),
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
    return Checkpoint(
        path=path,
        architecture=LLAMA2C,
        config=config,
        tokenizer=(
            own_tokenizer(path, header.vocab_size)
            if tokenizer is None
            else resolve_tokenizer(tokenizer, path.parent, **_ENDS)
        ),
        dtype="f32",
        n_bytes=sum(4 * _product(t.shape) for name, t in tensors.items() if not name.startswith("freq_cis")),
        _tensors=lambda *_: _canonical(header, tensors),
        weight_files=(path,),
    )


class _Stored(NamedTuple):
    """One tensor, still in the file."""

    opened: OpenedFile
    name: str
    start: int  # byte
    shape: tuple[int, ...]

    def array(self) -> NDArray[np.float32]:
        data = self.opened.read(self.start, 4 * _product(self.shape), f"tensor '{self.name}'")
        return data.view("<f4").reshape(self.shape)

    def part(self, i: int) -> _Stored:
        """Part i along the first axis: a layer, a row."""
        shape = self.shape[1:]
        return _Stored(self.opened, self.name, self.start + 4 * i * _product(shape), shape)


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


def _split(opened: OpenedFile, header: _Header) -> dict[str, _Stored]:
    """Where the tensors are in the file, which must be exactly as long as they are together."""
    layout = header.tensors()
    sizes = [_product(shape) for _, shape in layout]
    expected = 4 * (len(_FIELDS) + sum(sizes))  # Python's integers: no header can overflow it
    if opened.size != expected:
        raise CheckpointError(
            f"{opened.path}: has {opened.size} bytes; expected {expected} for a version 0 header of "
            + ", ".join(f"{name} {getattr(header, name)}" for name in _FIELDS)
            + ("" if header.tied else ", head not tied")
        )
    tensors, at = {}, len(_FIELDS)
    for (name, shape), size in zip(layout, sizes, strict=True):
        tensors[name] = _Stored(opened, name, 4 * at, shape)
        at += size
    return tensors


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _check_rotation(path: Path, header: _Header, cosines: _Stored, sines: _Stored) -> None:
    """The header does not say the base of the rotation, but the table's row for position 1 does."""
    if header.seq_len < 2:
        return
    angles = np.asarray(rotary_frequencies(header.head_size, _THETA))
    if not (
        np.allclose(cosines.part(1).array(), np.cos(angles), atol=1e-4)
        and np.allclose(sines.part(1).array(), np.sin(angles), atol=1e-4)
    ):
        raise UnsupportedModelError(
            f"{path}: tables 'freq_cis_real' and 'freq_cis_imag' are not those of base {_THETA:g}; "
            "expected it, "
            f"the only base of llama2.c's version 0"
        )


def _half_split(rows: NDArray[np.float32], head_size: int) -> NDArray[np.float32]:
    """Rows [n_heads * head_size, dim] with a head's rows 2j, 2j + 1 moved to j, j + head_size/2; a copy."""
    pairs = rows.reshape(-1, head_size // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _canonical(header: _Header, tensors: dict[str, _Stored]) -> Iterator[CanonicalTensor]:
    def rotated(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return _half_split(rows, header.head_size)

    def as_stored(array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array

    kinds: list[tuple[str, str, Callable[[NDArray[np.float32]], NDArray[np.float32]]]] = [
        ("attn_norm", "rms_att_weight", as_stored),
        ("attn_q", "wq", rotated),
        ("attn_k", "wk", rotated),
        ("attn_v", "wv", as_stored),
        ("attn_out", "wo", as_stored),
        ("mlp_norm", "rms_ffn_weight", as_stored),
        ("mlp_gate", "w1", as_stored),
        ("mlp_up", "w3", as_stored),
        ("mlp_down", "w2", as_stored),
    ]
    yield "token_embedding", tensors["token_embedding_table"].array(), "f32"
    if not header.tied:
        yield "head", tensors["wcls"].array(), "f32"
    yield "output_norm.weight", tensors["rms_final_weight"].array(), "f32"
    for i in range(header.n_layers):
        for canonical, stored, view in kinds:
            yield f"layers.{i}.{canonical}.weight", view(tensors[stored].part(i).array()), "f32"


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
