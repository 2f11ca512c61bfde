"""Invented tokenizers whose vocabularies overlap, refine each other or are disjoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from specdec import _core
from specdec.drafts import Draft
from specdec.drafts.draft import Description
from specdec.drafts.trees import Tree, describe_shape
from specdec.tokenizer import ByteTokenizer, Strip
from worlds.canonical import random_tensors
from worlds.draws import Draws
from worlds.encoder_decoders import SIZES, model_of

BYTES = [bytes([byte]) for byte in range(256)]
VOCABULARIES: dict[str, list[bytes]] = {
    "target": [b"a", b"b", b"c", b" ", b"ab", b"bc", b" a", b" b", b"abc",
               b"\xc3", b"\xa9", b"\xc3\xa9", b"\n"],
    "overlapping": [b"\n", b"c", b"a", b"b", b" ", b" a", b"ca", b"ab", b" c", b"abca", b"\xc3\xa9"],
    "refinement": [b"b", b"a", b"c", b"\n", b" ", b"\xa9", b"\xc3"],
    "coarser": [b"a", b"b", b"c", b" ", b"\n", b"abc abc", b" ab", b"bca", b"aaa", b"ab",
                b"\xc3\xa9\xc3\xa9"],
    "bytes": BYTES,
}  # fmt: skip
"""The pieces of each, after three special tokens: padding, beginning and end of text."""
DISJOINT = [b"aa", b"ab", b"ac", b"ba", b"bb", b"bc", b"ca", b"cb", b"cc"], [b"a", b"b", b"c"]


class Cutter:
    """Tokenizer that repeatedly cuts the longest matching string from the start; skips other bytes."""

    def __init__(self, strings: Iterable[tuple[int, bytes]]) -> None:
        self._ids = {string: i for i, string in strings if string}
        self._lengths = sorted({len(string) for string in self._ids}, reverse=True)

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text."""
        at, ids = 0, []
        while at < len(text):
            fitting = (text[at : at + n] for n in self._lengths if text[at : at + n] in self._ids)
            piece = next(fitting, b"")
            ids += [self._ids[piece]] if piece else []
            at += len(piece) or 1
        return ids


class LongestPieces(ByteTokenizer):
    """Tokenizer that cuts the longest matching piece from the start, repeatedly; skips other bytes."""

    def __init__(self, pieces: Sequence[bytes], *, end: str = "</s>", strip: Strip = Strip.NOTHING) -> None:
        super().__init__(
            "made up", vocabulary=[b"<pad>", b"<s>", end.encode(), *pieces], silent=frozenset({0, 1, 2}),
            strip=strip, bos_id=1, eos_ids=(2,), adds_bos=True,
        )  # fmt: skip
        self._cut = Cutter(enumerate(pieces, 3))

    def _encode(self, text: str) -> list[int]:
        return self._cut(text.encode("utf-8"))


def model_with(pieces: Sequence[bytes], seed: int, **options: Any) -> specdec.Model:
    """Make a small random decoder with this tokenizer."""
    return renumbered_model(pieces, range(len(pieces)), seed, **options)


def renumbered_model(
    pieces: Sequence[bytes], order: Sequence[int], seed: int, **options: Any
) -> specdec.Model:
    """Make the same decoder with other ids: piece i is the former piece order[i]."""
    tokenizer = LongestPieces([pieces[i] for i in order], **options)
    return with_tokenizer(tokenizer, [0, 1, 2, *(3 + i for i in order)], seed)


def with_tokenizer(tokenizer: ByteTokenizer, rows: Sequence[int], seed: int) -> specdec.Model:
    """Make a small random decoder with a tokenizer; token i uses row rows[i] of the embedding."""
    config = SIZES | {"n_vocab": tokenizer.n_vocab, "inv_freq": [1.0, 0.1, 0.01], "n_ctx": 256}
    tensors = {
        name: 2.0 * (tensor[list(rows)] if tensor.shape[0] == tokenizer.n_vocab else tensor)
        for name, tensor in random_tensors(config, seed).items()
    }
    return model_of(config, tensors, tokenizer)


class Translated(Draft):
    """A model whose ids are declared to mean other strings than its target's.

    `ours` and `theirs` are the strings of the target's and of the draft's tokens, cut or filled up to their
    vocabularies; `way` is "intersection", "text", or "measured" in text; `first` are ids that the draft's
    texts begin with; `strips` says whether either side strips the space before a text. Ids of the draft from
    `n_shared` on share no string with the target, whatever they mean.
    """

    def __init__(
        self, model: specdec.Model, ours: Sequence[bytes], theirs: Sequence[bytes], way: str = "intersection",
        tree: Tree | None = None, *, first: Sequence[int] = (), strips: Sequence[bool] = (False, False),
        n_shared: int | None = None,
    ) -> None:  # fmt: skip
        self.model, self.tree, self.way = model, tree, way
        self._ours, self._theirs, self._first = ours, theirs, first
        self._strips, self._n_shared = strips, n_shared

    @property
    def reads_source(self) -> bool:
        """Whether the model has an encoder."""
        return self.model.config.encoder is not None

    def describe(self, target: specdec.Model) -> Description:
        """See `Draft.describe`."""
        ours = _resized(self._ours, target.config["n_vocab"])
        theirs = _resized(self._theirs, self.model.config["n_vocab"])
        places = {string: i for i, string in enumerate(ours)}
        draft_of, target_of = np.full(len(ours), -1, np.int32), np.full(len(theirs), -1, np.int32)
        for i, string in enumerate(theirs[: self._n_shared]):
            if (place := places.pop(string, None)) is not None:
                draft_of[place], target_of[i] = i, place
        if not (draft_of >= 0).any():
            draft_of[0] = target_of[0] = 0
        byte_tokens = np.full(256, -1, np.int32)
        for i, string in enumerate(theirs):
            if len(string) == 1:
                byte_tokens[string[0]] = i
        arrays: dict[str, NDArray[np.int32]] = {
            "target_starts": _starts(ours), "draft_starts": _starts(theirs), "draft_of": draft_of,
            "target_of": target_of, "byte_tokens": byte_tokens,
            "first": np.array([i for i in self._first if i < len(theirs)], np.int32),
            "target_first": np.array(self._first[:1], np.int32) % len(ours),
        }  # fmt: skip
        cut_ours, cut_theirs = Cutter(enumerate(ours)), Cutter(enumerate(theirs))
        encoder = self.model.config.encoder if target.config.encoder is not None else None
        translation = _core.Translation(
            self.model.core, b"".join(ours), b"".join(theirs), arrays, *self._strips,
            lambda text, begins: cut_theirs(text.encode("utf-8")),
            lambda text, before: cut_ours(text.encode("utf-8")[max(before, 0) :]),
            lambda ids: list(ids) if encoder is None else [i % encoder["n_vocab"] for i in ids],
        )  # fmt: skip
        if self.way == "intersection":
            return describe_shape(self.tree, translation)
        return "text", {"translation": translation, "measured": self.way == "measured"}


def _resized(strings: Sequence[bytes], n: int) -> list[bytes]:
    return [*strings[:n], *[b""] * (n - len(strings))]


def _starts(strings: Sequence[bytes]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum([len(string) for string in strings])]).astype(np.int32)


class Renumbered(Translated):
    """A draft of the target's own vocabulary, translated as if it had another one: its last ids are its own.

    Token i is the word of i's five letters, in both; the target's last third and the draft's share no ids.
    """

    def __init__(self, model: specdec.Model, tree: Tree | None = None, *, text: str = "intersection") -> None:
        n = model.config["n_vocab"]
        words = [b" " + bytes(ord("a") + i // 26**k % 26 for k in range(5)) for i in range(n)]
        super().__init__(model, words, words, text, tree, n_shared=n - n // 3)


_LETTERS = [letter.encode().decode("latin-1") for letter in ("a", "b", " ", "\n", "é", "日", "🙂")]
_BYTES = ["\xc3", "\xa9", "\xf0\x9f", "\x99\x82", "\xff"]  # parts of characters, and no part of any


def draw_vocabulary(draws: Draws, n_vocab: int) -> dict[str, Any]:
    """Draw arguments of `Translated`, strings as Latin-1."""

    def strings() -> list[str]:
        chosen, found = draws.random(), []
        for _ in range(n_vocab):
            kind = chosen.random()  # special, a part of a character, or text
            text = "".join(chosen.choices(_LETTERS, k=chosen.randint(1, 3)))
            found.append("" if kind < 0.1 else chosen.choice(_BYTES) if kind < 0.28 else text)
        return found

    return {
        "way": draws.one("intersection", "intersection", "text", "measured"), "ours": strings(),
        "theirs": strings(), "first": draws.ids(draws.one(0, 0, 1, 2), n_vocab),
        "strips": [draws.chance(0.3), draws.chance(0.3)],
    }  # fmt: skip
