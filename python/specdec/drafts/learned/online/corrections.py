"""Corrections: where a target rejected draft tokens, and its distribution there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Corrections:
    """Some corrections, the oldest first; n of them.

    Attributes
    ----------
    before : ndarray of int32, [n, n_before]
        The last tokens of the text; -1 before its beginning.
    depth : ndarray of int32, [n]
        How many of these are accepted draft tokens of the round.
    text, position : ndarray of int32, [n]
        A number of the text, and how many of its tokens come before.
    top : ndarray of int32, [n, n_top]
        The tokens that the target finds most probable, in order; -1 after a smaller vocabulary's last.
    log_probs : ndarray of float32, [n, n_top]
        ln of their probabilities, by a softmax of the target's logits: at temperature 1.
    rest : ndarray of float32, [n]
        The probability of all other tokens.
    hidden : ndarray of float32, [n, n_hidden]
        The hidden states of the target that the draft reads, of the token before the round's root.
    """

    before: NDArray[np.int32]
    depth: NDArray[np.int32]
    text: NDArray[np.int32]
    position: NDArray[np.int32]
    top: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    rest: NDArray[np.float32]
    hidden: NDArray[np.float32]

    @staticmethod
    def none(n_before: int, n_top: int, n_hidden: int) -> Corrections:
        """Make no corrections, of a shape."""
        one, top = np.zeros(0, np.int32), np.zeros((0, n_top), np.int32)
        return Corrections(
            before=np.zeros((0, n_before), np.int32), depth=one, text=one, position=one, top=top,
            log_probs=top.astype(np.float32), rest=one.astype(np.float32),
            hidden=np.zeros((0, n_hidden), np.float32),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def n_texts(self) -> int:
        """Return a number above those of all texts."""
        return int(self.text.max(initial=-1)) + 1

    def numbered_from(self, first: int) -> Corrections:
        """Return the same, with `first` added to the numbers of the texts."""
        return replace(self, text=self.text + np.int32(first))

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def followed_by(self, newer: Corrections, most: int) -> Corrections:
        """Return these and newer ones, of all of them the last `most`."""
        joined = {
            name: np.concatenate([array, newer.arrays[name]])[-most:] for name, array in self.arrays.items()
        }
        return Corrections(**joined)


@dataclass(frozen=True)
class Passage:
    """A piece of a text with corrections in it.

    Attributes
    ----------
    ids : ndarray of int32, [n_tokens]
    rows : ndarray of int64, [n]
        The corrections in it, in the order of their positions.
    ends : ndarray of int64, [n]
        For each the index in `ids` of the token before it.
    """

    ids: NDArray[np.int32]
    rows: NDArray[np.int64]
    ends: NDArray[np.int64]


def passages(corrections: Corrections, longest: int) -> list[Passage]:
    """Return the corrections by the passages that hold them, each of at most `longest` tokens.

    Corrections of one text whose windows overlap are in one passage, so its tokens are read once for all of
    them. `longest` is at least the window.
    """
    n_before = corrections.before.shape[1]
    order = np.lexsort((corrections.position, corrections.text))
    found: list[Passage] = []
    begin = 0  # of the passage, in `order`
    for at in range(1, len(order) + 1):
        if at < len(order):
            first, last, row = order[begin], order[at - 1], order[at]
            step = corrections.position[row] - corrections.position[last]
            length = corrections.position[row] - corrections.position[first] + n_before
            same = corrections.text[row] == corrections.text[first]
            if same and 0 < step < n_before and length <= longest:
                continue
        found.append(_passage(corrections, order[begin:at]))
        begin = at
    return found


def _passage(corrections: Corrections, rows: NDArray[np.int64]) -> Passage:
    """Make the passage of corrections of one text, ascending, whose windows overlap."""
    window = corrections.before[rows[0]]
    pieces = [window[window >= 0]]
    ends = [len(pieces[0]) - 1]
    for before, after in pairwise(rows):
        step = int(corrections.position[after] - corrections.position[before])
        pieces.append(corrections.before[after][-step:])
        ends.append(ends[-1] + step)
    return Passage(np.concatenate(pieces), rows, np.array(ends))
