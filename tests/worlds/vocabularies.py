"""Made-up tokenizers whose vocabularies overlap, refine each other or have nothing in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import specdec
from specdec import _core
from specdec.drafts.draft import Description, Draft
from specdec.drafts.trees import Tree, describe_shape
from specdec.models.tokenizer import ByteTokenizer, Strip
from worlds.canonical import random_tensors
from worlds.encoder_decoders import SIZES, model_of

BYTES = [bytes([byte]) for byte in range(256)]
VOCABULARIES: dict[str, list[bytes]] = {
    "target": [
        b"a",
        b"b",
        b"c",
        b" ",
        b"ab",
        b"bc",
        b" a",
        b" b",
        b"abc",
        b"\xc3",
        b"\xa9",
        b"\xc3\xa9",
        b"\n",
    ],
    "overlapping": [b"\n", b"c", b"a", b"b", b" ", b" a", b"ca", b"ab", b" c", b"abca", b"\xc3\xa9"],
    "refinement": [b"b", b"a", b"c", b"\n", b" ", b"\xa9", b"\xc3"],
    "coarser": [
        b"a",
        b"b",
        b"c",
        b" ",
        b"\n",
        b"abc abc",
        b" ab",
        b"bca",
        b"aaa",
        b"ab",
        b"\xc3\xa9\xc3\xa9",
    ],
    "bytes": BYTES,
}
"""The pieces of each, behind three special tokens: padding, beginning and end of text."""
DISJOINT = [b"aa", b"ab", b"ac", b"ba", b"bb", b"bc", b"ca", b"cb", b"cc"], [b"a", b"b", b"c"]


class LongestPieces(ByteTokenizer):
    """A text is cut from its beginning, each time by the longest piece; other bytes are left out."""

    def __init__(self, pieces: Sequence[bytes], *, end: str = "</s>", strip: Strip = Strip.NOTHING) -> None:
        super().__init__(
            "made up",
            vocabulary=[b"<pad>", b"<s>", end.encode(), *pieces],
            silent=frozenset({0, 1, 2}),
            strip=strip,
            bos_id=1,
            eos_ids=(2,),
            adds_bos=True,
        )
        self._pieces = {piece: i + 3 for i, piece in enumerate(pieces)}
        self._longest = max(map(len, pieces))

    def _encode(self, text: str) -> list[int]:
        left, ids = text.encode("utf-8"), []
        while left:
            fitting = [n for n in range(self._longest, 0, -1) if left[:n] in self._pieces]
            if fitting:
                ids.append(self._pieces[left[: fitting[0]]])
            left = left[fitting[0] if fitting else 1 :]
        return ids


def model_with(pieces: Sequence[bytes], seed: int, **options: Any) -> specdec.Model:
    """A small random decoder with such a tokenizer."""
    return renumbered_model(pieces, range(len(pieces)), seed, **options)


def renumbered_model(
    pieces: Sequence[bytes], order: Sequence[int], seed: int, **options: Any
) -> specdec.Model:
    """The same decoder whose tokens have other ids: the i-th piece is the one that was the order[i]-th."""
    tokenizer = LongestPieces([pieces[i] for i in order], **options)
    return with_tokenizer(tokenizer, [0, 1, 2, *(3 + i for i in order)], seed)


def with_tokenizer(tokenizer: ByteTokenizer, rows: Sequence[int], seed: int) -> specdec.Model:
    """A small random decoder with a tokenizer; token i has what would be row rows[i] of its tables."""
    config = SIZES | {
        "n_vocab": tokenizer.n_vocab, "norm": "rms", "position": "rotary", "activation": "silu",
        "gated": True, "tied": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False,
        "inv_freq": [1.0, 0.1, 0.01], "n_ctx": 256,
    }  # fmt: skip
    tensors = {
        name: 2.0 * (tensor[list(rows)] if tensor.shape[0] == tokenizer.n_vocab else tensor)
        for name, tensor in random_tensors(config, seed).items()
    }
    return model_of(config, tensors, tokenizer)


class Renumbered(Draft):
    """A draft of the target's own vocabulary, translated as if it had another one: its last ids are its own.

    Token i is the word of i's five letters, in both; the target's last third and the draft's share no ids.
    """

    def __init__(self, model: specdec.Model, tree: Tree | None = None, *, text: str | None = None) -> None:
        self.model, self.tree, self.text = model, tree, text

    def describe(self, target: specdec.Model) -> Description:
        n = target.config["n_vocab"]
        strings = [_word(i) for i in range(n)]
        ids = np.arange(n, dtype=np.int32)
        shared = np.where(ids < n - n // 3, ids, -1).astype(np.int32)
        starts = np.arange(n + 1, dtype=np.int32) * 6
        arrays = {
            "target_starts": starts, "draft_starts": starts, "draft_of": shared, "target_of": shared,
            "byte_tokens": np.full(256, -1, np.int32), "first": ids[:0], "target_first": ids[:0],
        }  # fmt: skip
        joined = b"".join(strings)
        translation = _core.Translation(
            self.model.core, joined, joined, arrays, False, False, _ids,
            lambda text, before: _ids(text[max(before, 0) :], 0), list,
        )  # fmt: skip
        if self.text is None:
            return describe_shape(self.tree, translation)
        return "text", {"translation": translation, "measured": self.text == "measured"}

    @property
    def reads_source(self) -> bool:
        return self.model.config.encoder is not None


def _word(token: int) -> bytes:
    return b" " + bytes(ord("a") + token // 26**k % 26 for k in range(5))


def _ids(text: str, begins: int) -> list[int]:
    return [sum((ord(c) - ord("a")) * 26**k for k, c in enumerate(word)) for word in text.split()]


__all__ = [
    "DISJOINT",
    "VOCABULARIES",
    "LongestPieces",
    "Renumbered",
    "model_with",
    "renumbered_model",
    "with_tokenizer",
]
