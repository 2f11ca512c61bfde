"""Models that draft as if their ids meant other strings than the target's: two random vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.draws import Draws
from specdec import _core
from specdec.drafts.draft import Description as CoreDescription
from specdec.drafts.draft import Draft
from specdec.drafts.trees import Tree, describe_shape
from specdec.models.model import Model

__all__ = ["Translated", "draw_vocabulary", "make_translated"]

_LETTERS = ["a", "b", " ", "\n", "é", "日", "🙂"]
_BYTES = ["\xc3", "\xa9", "\xf0\x9f", "\x99\x82", "\xff"]  # parts of characters, and no part of any


def draw_vocabulary(draws: Draws, n_vocab: int) -> dict[str, Any]:
    """A description: the strings of both sides' tokens, as Latin-1, and the way."""
    return {
        "kind": "vocabulary",
        "way": draws.one("intersection", "intersection", "text", "measured"),
        "ours": _draw_strings(draws, n_vocab),
        "theirs": _draw_strings(draws, n_vocab),
        "first": draws.ids(draws.one(0, 0, 1, 2), n_vocab),
        "strips": [draws.chance(0.3), draws.chance(0.3)],
    }


def _draw_strings(draws: Draws, n_vocab: int) -> list[str]:
    strings: list[str] = []
    for _ in range(n_vocab):
        if draws.chance(0.1):
            strings.append("")  # special
        elif draws.chance(0.2):
            strings.append(draws.one(*_BYTES))
        else:
            text = "".join(draws.one(*_LETTERS) for _ in range(draws.randint(1, 3)))
            strings.append(text.encode("utf-8").decode("latin-1"))
    return strings


def make_translated(description: dict[str, Any], model: Model, tree: Tree | None) -> Translated:
    """The draft of a description."""
    return Translated(description, model, tree)


class Translated(Draft):
    """A model whose vocabulary is said to be another one than its target's."""

    def __init__(self, description: dict[str, Any], model: Model, tree: Tree | None) -> None:
        self.model, self.tree = model, tree
        self._way, self._first = description["way"], description["first"]
        self._strips = description["strips"]
        self._ours, self._theirs = (
            [string.encode("latin-1") for string in description[side]] for side in ("ours", "theirs")
        )

    @property
    def reads_source(self) -> bool:
        """Whether the model has an encoder."""
        return self.model.config.encoder is not None

    def describe(self, target: Model) -> CoreDescription:
        """See `Draft.describe`."""
        ours = _resized(self._ours, target.config["n_vocab"])
        theirs = _resized(self._theirs, self.model.config["n_vocab"])
        places = {string: i for i, string in enumerate(ours)}
        draft_of, target_of = np.full(len(ours), -1, np.int32), np.full(len(theirs), -1, np.int32)
        for i, string in enumerate(theirs):
            if (place := places.pop(string, None)) is not None:
                draft_of[place], target_of[i] = i, place
        if not (draft_of >= 0).any():
            draft_of[0] = target_of[0] = 0
        byte_tokens = np.full(256, -1, np.int32)
        for i, string in enumerate(theirs):
            if len(string) == 1:
                byte_tokens[string[0]] = i
        n_source = None if target.config.encoder is None else target.config.encoder["n_vocab"]
        own_source = None if self.model.config.encoder is None else self.model.config.encoder["n_vocab"]
        arrays: dict[str, NDArray[np.int32]] = {
            "target_starts": _starts(ours), "draft_starts": _starts(theirs), "draft_of": draft_of,
            "target_of": target_of, "byte_tokens": byte_tokens,
            "first": np.array([i for i in self._first if i < len(theirs)], np.int32),
            "target_first": np.array(self._first[:1], np.int32) % len(ours),
        }  # fmt: skip
        translation = _core.Translation(
            self.model.core, b"".join(ours), b"".join(theirs), arrays, *self._strips,
            lambda text, begins: _cut(text.encode("utf-8"), theirs),
            lambda text, before: _cut(text.encode("utf-8")[max(before, 0) :], ours),
            lambda ids: [i % own_source for i in ids] if own_source and n_source else list(ids),
        )  # fmt: skip
        if self._way == "intersection":
            return describe_shape(self.tree, translation)
        return "text", {"translation": translation, "measured": self._way == "measured"}


def _resized(strings: Sequence[bytes], n: int) -> list[bytes]:
    return [*strings[:n], *[b""] * (n - len(strings))]


def _starts(strings: Sequence[bytes]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum([len(string) for string in strings])]).astype(np.int32)


def _cut(text: bytes, strings: Sequence[bytes]) -> list[int]:
    """A text by the longest strings that fit, from its beginning; what none fits is left out."""
    ids: list[int] = []
    while text:
        fitting = [i for i, string in enumerate(strings) if string and text.startswith(string)]
        if fitting:
            ids.append(max(fitting, key=lambda i: len(strings[i])))
        text = text[len(strings[ids[-1]]) if fitting else 1 :]
    return ids
