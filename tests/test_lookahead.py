"""Lookahead decoding against a plain Python implementation, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refusals import refuses
from sessions import Session, all_rounds
from specdec import reference
from specdec.drafts import Lookahead
from worlds.canonical import LLAMA, random_model, with_drafts

PROMPTS = [[3], [5, 9, 7] * 9, list(range(30, 60))]
WINDOW_DRAW = 5  # SD_DRAW_WINDOW


class Statement:
    """Lookahead decoding of one sequence.

    rows[r][c] is the draft token at position r + c + 1 after the text's last token, if row 0 is at the text.
    """

    def __init__(self, window: int, ngram: int, candidates: int, key: tuple[int, int]) -> None:
        self.window, self.n_rows, self.candidates, self.key = window, ngram - 1, candidates, key
        self.rows: list[list[int]] = [[] for _ in range(self.n_rows)]
        self.n_text: int | None = None
        self.pool: list[tuple[int, ...]] = []
        self.leaves: list[int] = []

    def propose(self, text: list[int], budget: int, depth: int) -> tuple[list[int], list[int]]:
        self.leaves = []
        if budget == 0 or depth == 0:
            return [], []
        self.slide(text)
        tokens: list[int] = []
        parents: list[int] = []

        def add(parent: int, token: int) -> int:
            tokens.append(token)
            parents.append(parent)
            return len(tokens)

        n_columns = max(0, min(self.window, budget // self.n_rows, depth - self.n_rows + 1))
        head = 0
        for c in range(n_columns):
            node = head = add(head, self.rows[0][c])
            for row in self.rows[1:]:
                node = add(node, row[c])
            self.leaves.append(node)
        for rest in self.found(text[-1]):
            node = 0
            for token in rest[:depth]:
                if len(tokens) < budget:
                    node = add(node, token)
        return tokens, parents

    def slide(self, text: list[int]) -> None:
        moved = self.window if self.n_text is None else min(len(text) - self.n_text, self.window)
        self.n_text = len(text)
        for r, row in enumerate(self.rows):
            del row[:moved]
            for c in range(self.window - moved, self.window):
                u = reference.uniform(*self.key, len(text), WINDOW_DRAW, r * self.window + c)
                row.append(text[int(u * len(text))])

    def found(self, first: int) -> list[tuple[int, ...]]:
        rests = [ngram[1:] for ngram in reversed(self.pool[-256 * self.window :]) if ngram[0] == first]
        return list(dict.fromkeys(rests))[: self.candidates]

    def observe(self, logits: np.ndarray) -> None:
        for c, leaf in enumerate(self.leaves):
            column = [row[c] for row in self.rows] + [int(np.argmax(logits[leaf]))]
            self.pool.append(tuple(column))
            for row, token in zip(self.rows, column[1:], strict=True):
                row[c] = token
        if self.leaves:
            assert self.n_text is not None
            self.n_text += 1


@pytest.mark.parametrize(
    ("window", "ngram", "candidates", "gamma", "sampling"),
    [
        (2, 2, 2, None, {}), (5, 3, 5, None, {}), (1, 2, 1, None, {}), (3, 5, 2, None, {"temperature": 0.8}),
        (4, 3, 0, None, {}),
        (4, 4, 4, 17, {}),  # cut
        (4, 4, 4, 7, {"temperature": 1.0, "rule": "coupled"}),
        (4, 4, 4, 2, {}),  # no capacity for a column
    ],
)  # fmt: skip
def test_every_round_is_what_the_algorithm_says(
    window: int, ngram: int, candidates: int, gamma: int | None, sampling: dict[str, Any]
) -> None:
    draft = Lookahead(window, ngram, candidates=candidates)
    gamma = draft.gamma if gamma is None else gamma
    n_new, keys = 60, [(1, i) for i in range(len(PROMPTS))]
    options = {"gamma": gamma, "max_new_tokens": n_new, "temperature": 0.0} | sampling
    session = Session(random_model(LLAMA), draft.describe(None), PROMPTS, **options)  # type: ignore[arg-type]
    stated = [Statement(window, ngram, candidates, key) for key in keys]
    texts = [list(prompt) for prompt in PROMPTS]
    limits = [len(prompt) + n_new for prompt in PROMPTS]
    n_found = 0
    for record in all_rounds(with_drafts(session)):
        i = record["sequence"]
        depth = limits[i] - len(texts[i]) - 1
        wanted = stated[i].propose(texts[i], gamma if depth > 0 else 0, depth)
        assert (record["drafted"], record["parents"]) == wanted
        n_found += len(wanted[0]) > len(stated[i].leaves) * (ngram - 1)
        stated[i].observe(record["node_logits"])
        texts[i] += record["tokens"]
    assert n_found > 0 or candidates == 0 or gamma == 2


def test_attributes() -> None:
    draft = Lookahead(4, 3)
    assert (draft.window, draft.ngram, draft.candidates, draft.gamma) == (4, 3, 4, 16)
    assert repr(draft) == "Lookahead(window=4, ngram=3, candidates=4)"
    assert Lookahead(4, 3, candidates=0).gamma == 8
    with refuses("(window + candidates) (ngram - 1)", 2400):
        Lookahead(600, 3)
