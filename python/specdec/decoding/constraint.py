"""The form that a text must have: objects that say which tokens may come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec.decoding.guided.grammars import ConstraintKind, json_text
from specdec.decoding.guided.guidance import Guidance
from specdec.errors import ConstraintError, InputError, kind_of
from specdec.models.model import Model

Schema: TypeAlias = Mapping[str, Any] | bool | str | type[Any]
"""A JSON schema: a dict, True (any JSON), its text, or a class with the method model_json_schema."""


class ConstraintState(Protocol):
    """What a `Constraint` knows behind some tokens of the new text.

    A state is never changed once it has been asked: the state behind another token is a `fork`, which is told
    of the token by `advance`. So there are states for all branches of a tree of guesses.
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
    the tokens alone; it is asked for once for each place in a tree of guesses, whichever way the text then
    goes.
    """

    def start(self, tokens: Sequence[int]) -> ConstraintState:
        """The state in which a new text begins, behind these token ids of the prompt."""
        ...


class TransformState(Protocol):
    """What a `StatefulTransform` knows behind some tokens; never changed once it has been asked."""

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
    """A ``transform=`` that keeps a state along the text and the guesses behind it: the method `start`."""

    def start(self, tokens: Sequence[int]) -> TransformState:
        """The state in which a new text begins, behind these token ids of the prompt."""
        ...


class ConstraintOptions(Protocol):
    """The options that ask for a form; at most one is not None."""

    @property
    def schema(self) -> Schema | None: ...  # noqa: D102
    @property
    def regex(self) -> str | None: ...  # noqa: D102
    @property
    def grammar(self) -> str | None: ...  # noqa: D102
    @property
    def constraint(self) -> Constraint | None: ...  # noqa: D102


CONSTRAINTS = (*get_args(ConstraintKind), "constraint")


def check_constraints(options: ConstraintOptions) -> None:
    """Refuse two forms at once and arguments of another type."""
    given = [name for name in CONSTRAINTS if getattr(options, name) is not None]
    if len(given) > 1:
        raise InputError.about(given[0], f"{' and '.join(given)} are given; expected one form at most")
    for name in ("regex", "grammar"):
        text = getattr(options, name)
        if text is not None and not isinstance(text, str):
            raise InputError.of(name, text, "a str, or None", kind_of(text))
    if options.schema is not None:
        json_text(options.schema)
    if options.constraint is not None and not callable(getattr(options.constraint, "start", None)):
        expected = "an object with the method start(tokens), or None"
        raise InputError.of("constraint", options.constraint, expected, kind_of(options.constraint))


def constraint_of(options: ConstraintOptions, target: Model, end_ids: Sequence[int]) -> Constraint | None:
    """The constraint that options ask for, on the tokens of a target, `end_ids` of which end a text; or None.

    Raises ConstraintError for a form that cannot be read, is too large, or that no text satisfies, InputError
    for a target whose tokens are not byte strings, MissingPackageError without ``llguidance``.
    """
    if options.constraint is not None:
        return options.constraint
    for name in get_args(ConstraintKind):
        form = getattr(options, name)
        if form is None:
            continue
        guidance = Guidance.of(name, form, target.tokenizer, target.config.n_vocab, end_ids)
        if guidance.start(()).mask() is None:
            raise ConstraintError.about(
                name,
                f"{name}: no text but the empty one has this form, and the target has no token that ends a "
                "text; expected a form with a text of some tokens",
            )
        return guidance
    return None
