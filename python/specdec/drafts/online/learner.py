"""Who learns from corrections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.drafts.draft import Draft
from specdec.drafts.online.corrections import Corrections

__all__ = ["GoesOn", "Learner"]

GoesOn = Callable[[], bool]
"""Whether to go on; False: the learner shall return soon."""


class Learner(ABC):
    """Makes a draft that has learnt from corrections, again and again.

    Attributes
    ----------
    name : str
        Of the kind, in files.
    n_before, n_top, n_hidden : int
        What it needs of each correction: tokens of the text, tokens of the target's law, and floats of hidden
        states; 0: none.
    everywhere : bool
        Whether it wants the positions at which the draft was right, too.
    """

    name: str
    n_before: int = 64
    n_top: int = 32
    n_hidden: int = 0
    everywhere: bool = False

    @abstractmethod
    def learn(self, corrections: Corrections, n_new: int, goes_on: GoesOn) -> Draft:
        """The draft, of the kind that there was, with what can be learnt of the corrections.

        Parameters
        ----------
        corrections : Corrections
            The last ones, at least one.
        n_new : int
            How many of these, the last of them, have come since the last call.
        goes_on : callable
            Asked now and then.
        """

    def begin_thread(self) -> None:
        """Called in the thread that learns, each time before `learn`."""
        return

    def state(self) -> Mapping[str, NDArray[Any]]:
        """What it has learnt, as arrays of float32 or int32: with the corrections what `restore` needs."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]], corrections: Corrections) -> Draft:
        """Go on from a state that `state` gave, and from the corrections of that time; returns the draft.

        Raises
        ------
        ValueError
            The state is another draft's; the message says of which array, what it is and what was expected.
        """
        for name in state:
            raise ValueError(f"tensor '{name}' is none of a draft of this kind")
        return self.learn(corrections, 0, lambda: True)

    @staticmethod
    def expect(state: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """An array of a state, of that shape.

        Raises
        ------
        ValueError
        """
        if name not in state:
            raise ValueError(f"tensor '{name}' is missing")
        if state[name].shape != shape or state[name].dtype != np.float32:
            found = f"{state[name].dtype}, {list(state[name].shape)}"
            raise ValueError(f"tensor '{name}' is of {found}; expected float32, {list(shape)}")
        return state[name]
