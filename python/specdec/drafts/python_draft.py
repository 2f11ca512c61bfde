"""Python objects as drafts: the protocol and the proposals they return."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_flag, check_integer
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.errors import InputError
from specdec.models.model import Model


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A tree of draft tokens and the distributions they were drawn from.

    Node 0 is the last token of the text; entry i of every field describes node i + 1, as in `Round`. An
    invalid proposal raises an `InputError`.

    Parameters
    ----------
    tokens : sequence of int, [n]
        Draft tokens, no more than the budget.
    parents : sequence of int, [n], optional
        Parent node of each token, 0 to i for entry i. None: a chain, 0, 1, …, n - 1. Siblings are verified in
        order.
    probs : array or sequence of rows, [n, n_vocab] float64, optional
        Distribution that each token was drawn from, independently or given the nodes before it; each row sums
        to 1 up to rounding. None, for one row or all, is a point mass: the token was chosen, not drawn.
    confidence : sequence of float, [n], optional
        Estimated probability that the target accepts a token given its parent, which ``gamma="auto"`` and
        `Ensemble` weigh against its cost. None: the token's entry in ``probs``.

    Notes
    -----
    The output is exact only if ``probs`` is correct. Do not drop tokens after looking at them: the others are
    then no longer drawn from their rows (appendix A.1 of arXiv 2211.17192). Tokens too deep for the text are
    dropped with their descendants and later siblings, independent of token values.
    """

    tokens: Sequence[int] | NDArray[np.integer[Any]]
    parents: Sequence[int] | NDArray[np.integer[Any]] | None = None
    probs: NDArray[np.floating[Any]] | Sequence[NDArray[np.floating[Any]] | Sequence[float] | None] | None = (
        None
    )
    confidence: Sequence[float] | NDArray[np.floating[Any]] | None = None


@runtime_checkable
class Drafter(Protocol):
    """Protocol of a Python object that drafts: the method `propose`.

    Two more methods are optional. Both take the index of the sequence in the batch and a text as in
    ``propose``:

    ``begin(sequence, prompt)``
        Called before the first round of a sequence that may draft, and again when its batch slot goes to
        another prompt. The text already has new tokens if the draft was paused at the start
        (``gamma="auto"``). A third parameter named ``source`` receives the encoder's input ids, or None.
    ``commit(sequence, tokens)``
        Called after each round with the whole committed text, prompt included.

    Two attributes are optional:

    ``gamma``
        Default budget; 4 if absent.
    ``trees``
        True: proposals may be trees. Rules that cannot verify trees ("block" and "k-sequential", above
        temperature 0) are then refused at the start, not at the first tree.

    A draft that samples declares a parameter of ``propose`` named ``rng``. It receives a
    `numpy.random.Generator` derived from the seed, separate for every sequence, round and draft of an
    `Ensemble`. Use no other: drafts that sample from equal generators are correlated, and the output is no
    longer exact.

    An exception ends the sequence it was raised for: `specdec.generate` raises it, and an `Engine` fails that
    request only. The methods are not called for sequences that use another draft or none. An object that
    serves several threads must lock its own state.

    Examples
    --------
    Propose what followed each pair of tokens before:

    >>> class Pairs:
    ...     def __init__(self):
    ...         self.after = {}
    ...
    ...     def commit(self, sequence, tokens):
    ...         recent = tokens[-20:]
    ...         for i in range(2, len(recent)):
    ...             self.after[tuple(recent[i - 2 : i])] = recent[i]
    ...
    ...     def propose(self, sequence, tokens, budget):
    ...         text = list(tokens[-2:])
    ...         while len(text) < budget + 2 and tuple(text[-2:]) in self.after:
    ...             text.append(self.after[tuple(text[-2:])])
    ...         return text[2:]
    >>> import specdec
    >>> target, _ = specdec.embedded_pair()
    >>> out = specdec.generate(target, Pairs(), "Once upon a time", max_new_tokens=100, gamma=4)
    """

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> Sequence[int] | Proposal:
        """Propose tokens after a text.

        Parameters
        ----------
        sequence : int
            Index in the batch.
        tokens : memoryview of int, [n_tokens]
            Read-only copy of the text so far, at least one token. ``np.asarray(tokens)`` is int32.
        budget : int
            Largest number of draft tokens, at least 1.

        Returns
        -------
        sequence of int or Proposal
            A chain of token ids that were chosen, not drawn ([] for none), or a tree.
        """


class PythonDraft(Draft):
    """Adapter for an object with the `Drafter` protocol; `specdec.generate` applies it automatically."""

    def __init__(self, drafter: Drafter) -> None:
        for name in ("propose", "begin", "commit"):
            method = getattr(drafter, name, None)
            if not callable(method) and (name == "propose" or method is not None):
                raise InputError.of(f"{name} of the draft {type(drafter).__name__}", method, "a method")
        of = f"of the draft {type(drafter).__name__}"
        self.gamma = check_integer(f"gamma {of}", getattr(drafter, "gamma", Draft.gamma), 0, MAX_GAMMA)
        self._trees = check_flag(f"trees {of}", getattr(drafter, "trees", False))
        self._draws = _takes(drafter.propose, "rng", f"propose {of}", ("sequence", "tokens", "budget"))
        begin = getattr(drafter, "begin", None)
        named = f"begin {of}"
        self._reads_source = begin is not None and _takes(begin, "source", named, ("sequence", "prompt"))
        self.drafter = drafter

    def describe(self, target: Model) -> Description:
        drafter: Any = self.drafter
        return "python", {
            "name": type(drafter).__name__, "propose": drafter.propose, "proposal_type": Proposal,
            "begin": getattr(drafter, "begin", None), "commit": getattr(drafter, "commit", None),
            "generator": _generator if self._draws else None, "trees": self._trees,
            "reads_source": self._reads_source,
        }  # fmt: skip

    @property
    def identity(self) -> object:
        try:
            weakref.ref(self.drafter)
        except TypeError:  # the object has __slots__
            return self
        return self.drafter

    def __repr__(self) -> str:
        return f"<specdec.drafts.PythonDraft of {self.drafter!r}>"


def _takes(method: Any, name: str, of: str, others: tuple[str, ...]) -> bool:
    """Return whether a method has the parameter `name` after the others; `of` names it in messages."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):  # some C callables have no signature
        return False
    found = parameters.get(name)
    if found is None or found.kind not in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY):
        return False
    index = list(parameters).index(name)
    if found.kind == found.POSITIONAL_OR_KEYWORD and index < len(others):
        expected = f"{', '.join(others[:-1])} and {others[-1]}"
        raise InputError(f"{of} has {name} as parameter {index + 1}; expected it after {expected}")
    return True


def _generator(seed: int, sequence: int, position: int) -> np.random.Generator:
    """Return the generator of a round, keyed by text length; `seed` differs for nested drafts."""
    key = np.array([seed, sequence << 32 | position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
