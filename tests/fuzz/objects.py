"""Python draft objects: valid ones, as adversarial as the interface allows."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec.drafts import Proposal

HABITS = (
    "chain", "array", "repeat", "empty", "full", "tree", "duplicates", "bush", "drawn", "drawn tree", "long",
    "raise",
)  # fmt: skip
"""Chains, trees with equal siblings, tokens drawn from a distribution; at times "long" exceeds its budget and
"raise" raises."""

CHAINS = ("chain", "array", "repeat", "empty", "full", "drawn", "long", "raise")


class ProposerError(Exception):
    """Error raised by a `Proposer`."""


class Proposer:
    """Draft object with one of `HABITS`: proposals are functions of the text, so that runs are reproducible.

    Without `keyed` they are random, as exact distributions require of sampled draft tokens.
    """

    def __init__(self, n_vocab: int, habit: str, seed: int, keyed: bool = True) -> None:
        self.n_vocab, self.habit, self.seed = n_vocab, habit, seed
        self._stream = None if keyed else random.Random(seed)
        self.gamma = 1 + seed % 9

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Nothing is kept."""

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        """Nothing is learned."""

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> Any:
        """See `specdec.drafts.Drafter`."""
        rng = self._stream
        if rng is None:
            key = zlib.crc32(np.asarray(tokens[-3:]).tobytes(), self.seed)
            rng = random.Random(key + len(tokens))
        n = min(budget, rng.randrange(0, 7))
        habit = self.habit
        if habit == "empty":
            return []
        if habit == "full":
            n = budget
        elif habit == "raise" and rng.random() < 0.2:
            raise ProposerError
        elif habit == "long":
            n = budget + (rng.random() < 0.2)
        if habit == "repeat":
            last = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
            return list(tokens[last[-1] + 1 :])[:budget] if last else []
        if habit == "array":
            return np.array([rng.randrange(self.n_vocab) for _ in range(n)], np.int64)
        if habit in CHAINS and habit != "drawn":
            return [rng.randrange(self.n_vocab) for _ in range(n)]
        least = {
            "drawn": lambda i: i,
            "bush": lambda i: 0,
            "duplicates": lambda i: rng.randint(0, i) * (i > 2),
        }
        chosen = [least.get(habit, lambda i: rng.randint(0, i))(i) for i in range(n)]
        if not habit.startswith("drawn"):
            few = 1 if habit == "duplicates" and rng.random() < 0.5 else 3
            return Proposal([rng.randrange(self.n_vocab) % few % self.n_vocab for _ in chosen], chosen)
        draft_tokens, rows = [], []
        for _ in chosen:
            weights = [rng.random() ** 3 + 1e-3 for _ in range(self.n_vocab)]
            row = np.array(weights) / sum(weights)
            rows.append(row)
            draft_tokens.append(rng.choices(range(self.n_vocab), weights)[0])
        return Proposal(draft_tokens, chosen, rows, [rng.random() for _ in chosen])
