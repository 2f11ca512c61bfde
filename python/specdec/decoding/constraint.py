"""Constraints on a text: objects that say which tokens may come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Schema: TypeAlias = Mapping[str, Any] | bool | str | type[Any]
"""A JSON schema: a dict, True (any JSON), its text, or a class with the method model_json_schema."""


class ConstraintState(Protocol):
    """What a `Constraint` knows after some tokens of the new text.

    A state is never changed once it has been asked: the state after another token is a `fork`, which gets the
    token by `advance`. So there are states for all branches of a tree of guesses.
    """

    def fork(self) -> ConstraintState:
        """An independent copy."""
        ...

    def advance(self, token: int) -> object:
        """The text goes on with a token, one that `mask` allows. What is returned is not looked at."""
        ...

    def mask(self) -> NDArray[np.bool_] | NDArray[np.uint32] | bytes | None:
        """Which tokens may come next.

        Returns
        -------
        ndarray of bool [n_vocab], or of uint32 [ceil(n_vocab / 32)], or the bytes of the latter
            True for those that may; in words bit ``i % 32`` of word ``i // 32``. None: the text is complete,
            and ends here. A text that may end, but need not, is ended by a token: the end of text is allowed
            with the others.
        """
        ...


@runtime_checkable
class Constraint(Protocol):
    """What an object needs to be a ``constraint=``: the one method `start`.

    The distribution of each new token is that of the target under the sampling settings, with the mask before
    temperature, top-k, nucleus and min-p: forbidden tokens have logits of -inf. A mask must be a function of
    the tokens alone; it is asked for once for each node of a tree of draft tokens.
    """

    def start(self, tokens: Sequence[int]) -> ConstraintState:
        """The state in which a new text begins, after these token ids of the prompt."""
        ...


class TransformState(Protocol):
    """What a `StatefulTransform` knows after some tokens; never changed once it has been asked."""

    def fork(self) -> TransformState:
        """An independent copy."""
        ...

    def advance(self, token: int) -> object:
        """The text goes on with a token. What is returned is not looked at."""
        ...

    def __call__(self, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        """As a function given as ``transform=``, but without the tokens."""
        ...


@runtime_checkable
class StatefulTransform(Protocol):
    """A ``transform=`` with a state along the text and the draft tokens after it: the method `start`."""

    def start(self, tokens: Sequence[int]) -> TransformState:
        """The state in which a new text begins, after these token ids of the prompt."""
        ...
