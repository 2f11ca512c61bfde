"""Protocols of user-defined constraints and stateful transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Schema: TypeAlias = Mapping[str, Any] | bool | str | type[Any]
"""A JSON schema: a dict, True (any JSON), its text, or a class with the method model_json_schema."""


class ConstraintState(Protocol):
    """State of a `Constraint` after some tokens of the new text.

    States are immutable once used: the state after another token is a `fork` that gets the token by
    `advance`. So each branch of a draft tree has its own state.
    """

    def fork(self) -> ConstraintState:
        """An independent copy."""
        ...

    def advance(self, token: int) -> object:
        """Append a token that `mask` allows; the return value is ignored."""
        ...

    def mask(self) -> NDArray[np.bool_] | NDArray[np.uint32] | bytes | None:
        """Return which tokens may come next.

        Returns
        -------
        ndarray of bool [n_vocab], or of uint32 [ceil(n_vocab / 32)], or the bytes of the latter
            True (or bit ``i % 32`` of word ``i // 32``) for allowed tokens. None: the text is complete and
            ends here. If the text may end but need not, allow the end-of-text token too.
        """
        ...


@runtime_checkable
class Constraint(Protocol):
    """Protocol of a ``constraint=`` object: the one method `start`.

    Each new token is sampled from the target's distribution with forbidden logits at -inf, masked before
    temperature, top-k, nucleus and min-p. A mask must be a function of the tokens only; it is requested once
    per node of a draft tree.
    """

    def start(self, tokens: Sequence[int]) -> ConstraintState:
        """Return the state at the start of a new text, after these token ids of the prompt."""
        ...


class TransformState(Protocol):
    """State of a `StatefulTransform` after some tokens; immutable once used."""

    def fork(self) -> TransformState:
        """An independent copy."""
        ...

    def advance(self, token: int) -> object:
        """Append a token; the return value is ignored."""
        ...

    def __call__(self, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Transform a distribution, as a ``transform=`` function does, but without the tokens."""
        ...


@runtime_checkable
class StatefulTransform(Protocol):
    """Protocol of a ``transform=`` with state along the text and its draft tokens: the method `start`."""

    def start(self, tokens: Sequence[int]) -> TransformState:
        """Return the state at the start of a new text, after these token ids of the prompt."""
        ...
