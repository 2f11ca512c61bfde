"""Which texts take part in a round of an engine: those with expensive forms take turns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from specdec.decoding.forms.guidance import Guidance
from specdec.decoding.generation import Generation, Sample
from specdec.drafts.draft import MAX_GAMMA

__all__ = ["FormTurns"]

_CHEAP_S: Final = 0.005
"""Seconds that the masks of a text may take in a round without its form being expensive."""
_SITS_OUT: Final = -1
"""In place of the guesses of a text that takes no part."""


class FormTurns:
    """Keeps the texts whose forms are expensive from holding up the others.

    Such a text takes part alone among its kind, without guesses, so that a round waits for about one of its
    masks. Masks take half of the engine's time at most, as long as there are other texts.

    Parameters
    ----------
    n_slots : int
    """

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._expensive: set[Generation] = set()
        self._spent: dict[Generation, float] = {}  # what the masks had taken before the round
        self._n_turns = 0
        self._next_s = 0.0  # when the next expensive mask may be computed, by time.perf_counter

    def plan(self, running: Sequence[Sample]) -> list[int] | None:
        """The most guesses of each slot in the next round; None: nothing limits them.

        Parameters
        ----------
        running : sequence of Sample
            Texts that may take part.
        """
        forms = {
            sample.generation: form.mask_s
            for sample in running
            if isinstance(form := sample.generation.request.constraint, Guidance)
        }
        self._expensive &= forms.keys()
        self._spent = {one: seconds for one, seconds in forms.items() if one not in self._expensive}
        if not self._expensive:
            return None
        gammas = [MAX_GAMMA] * self._n_slots
        expensive = [sample for sample in running if sample.generation in self._expensive]
        for sample in expensive:
            assert sample.slot is not None
            gammas[sample.slot] = _SITS_OUT
        if len(expensive) == len(running) or time.perf_counter() >= self._next_s:
            chosen = min(expensive, key=lambda sample: sample.n_turns)
            assert chosen.slot is not None
            gammas[chosen.slot] = 0
            self._n_turns += 1
            chosen.n_turns = self._n_turns
            self._spent[chosen.generation] = forms[chosen.generation]
        return gammas

    def end_round(self, running: Sequence[Sample]) -> None:
        """Look what the masks of the round that was planned have taken.

        Parameters
        ----------
        running : sequence of Sample
            As `plan` was given them.
        """
        n_texts = Counter(sample.generation for sample in running)
        expensive_s = 0.0
        for generation, before in self._spent.items():
            form = generation.request.constraint
            assert isinstance(form, Guidance)
            seconds = form.mask_s - before
            shares = 1 if generation in self._expensive else n_texts[generation]
            if seconds > _CHEAP_S * shares:
                self._expensive.add(generation)
                expensive_s += seconds
            else:
                self._expensive.discard(generation)
        self._next_s = max(self._next_s, time.perf_counter() + expensive_s)
