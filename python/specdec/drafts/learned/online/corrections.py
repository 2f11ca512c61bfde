"""Corrections: where a target rejected draft tokens, and its distribution there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Corrections:
    """Some corrections, the oldest first; n of them."""

    before: NDArray[np.int32]  # [n, n_before] the last tokens of the text; -1 before its beginning
    depth: NDArray[np.int32]  # [n] how many of these are accepted draft tokens of the round
    text: NDArray[np.int32]  # [n] a number of the text
    position: NDArray[np.int32]  # [n] how many of its tokens come before
    top: NDArray[np.int32]  # [n, n_top] the target's most probable tokens, in order; -1 after all of them
    log_probs: NDArray[np.float32]  # [n, n_top] ln of their probabilities, at temperature 1
    rest: NDArray[np.float32]  # [n] the probability of all other tokens
    hidden: NDArray[np.float32]  # [n, n_hidden] hidden states of the token before the round's root

    @staticmethod
    def none(n_before: int, n_top: int, n_hidden: int) -> Corrections:
        """Make no corrections, of a shape."""
        one, top = np.zeros(0, np.int32), np.zeros((0, n_top), np.int32)
        before, hidden = np.zeros((0, n_before), np.int32), np.zeros((0, n_hidden), np.float32)
        probs, rest = top.astype(np.float32), one.astype(np.float32)
        return Corrections(before, one, one, one, top, probs, rest, hidden)

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def n_texts(self) -> int:
        """Return a number above those of all texts."""
        return int(self.text.max(initial=-1)) + 1

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def followed_by(self, newer: Corrections, most: int) -> Corrections:
        """Return these and newer ones, of all of them the last `most`."""
        both = [(getattr(self, each.name), getattr(newer, each.name)) for each in fields(self)]
        return Corrections(*(np.concatenate(arrays)[-most:] for arrays in both))


class Passage(NamedTuple):
    """A piece of a text with corrections in it."""

    ids: NDArray[np.int32]  # [n_tokens]
    rows: NDArray[np.int64]  # [n] the corrections, in the order of their positions
    ends: NDArray[np.int64]  # [n] for each the index in `ids` of the token before it


def passages(corrections: Corrections, longest: int) -> list[Passage]:
    """Return the corrections by the passages that hold them, each of at most `longest` tokens.

    Corrections of one text whose windows overlap are in one passage, which is read once for all of them.
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
