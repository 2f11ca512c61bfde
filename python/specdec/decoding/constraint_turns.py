"""The texts that take part in a round of an engine: those with expensive constraints take turns."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from specdec.decoding.generation import Generation, Sample
from specdec.decoding.guided.guidance import Guidance
from specdec.drafts.draft import MAX_GAMMA

_CHEAP_S: Final = 0.005
"""Seconds that the masks of a text may take in a round without its constraint being expensive."""
_SITS_OUT: Final = -1
"""In place of the number of draft tokens, for a text that takes no part in a round."""


class ConstraintTurns:
    """Keeps texts whose constraints are expensive from delaying the others.

    Only one such text takes part in a round, without draft tokens, so that a round waits for about one of its
    masks. Such masks take at most half of the engine's time, as long as there are other texts.
    """

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._expensive: set[Generation] = set()
        self._spent: dict[Generation, float] = {}  # what the masks had taken before the round
        self._n_texts: Counter[Generation] = Counter()  # that took part in it
        self._n_turns = 0
        self._next_s = 0.0  # when the next expensive mask may be computed, by time.perf_counter

    def plan(self, running: list[Sample]) -> list[int] | None:
        """Return the most draft tokens of each slot in the next round of these texts; None: no limit."""
        constraints = {
            sample.generation: constraint.mask_s
            for sample in running
            if isinstance(constraint := sample.generation.request.constraint, Guidance)
        }
        self._n_texts = Counter(sample.generation for sample in running)
        self._expensive &= constraints.keys()
        self._spent = {one: seconds for one, seconds in constraints.items() if one not in self._expensive}
        if not self._expensive:
            return None
        gammas = [MAX_GAMMA] * self._n_slots
        expensive = [sample for sample in running if sample.generation in self._expensive]
        for sample in expensive:
            assert sample.slot is not None
            gammas[sample.slot] = _SITS_OUT
        if len(expensive) == len(running) or time.perf_counter() >= self._next_s:
            chosen = min(expensive, key=lambda sample: sample.last_turn)
            assert chosen.slot is not None
            gammas[chosen.slot] = 0
            self._n_turns += 1
            chosen.last_turn = self._n_turns
            self._spent[chosen.generation] = constraints[chosen.generation]
        return gammas

    def end_round(self) -> None:
        """Record how long the masks of the round that was planned last took."""
        expensive_s = 0.0
        for generation, before in self._spent.items():
            constraint = generation.request.constraint
            assert isinstance(constraint, Guidance)
            seconds = constraint.mask_s - before
            shares = 1 if generation in self._expensive else self._n_texts[generation]
            if seconds > _CHEAP_S * shares:
                self._expensive.add(generation)
                expensive_s += seconds
            else:
                self._expensive.discard(generation)
        self._spent = {}
        self._next_s = max(self._next_s, time.perf_counter() + expensive_s)
