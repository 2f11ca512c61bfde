"""A Python object that drafts: what it must be able to do, and what it may return."""

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
    """Draft tokens as a tree, and what each was drawn from.

    Node 0 is the last token of the text, and entry i of every field is about node i + 1, as in `Round`.
    What cannot be used is an `InputError` of the round.

    Parameters
    ----------
    tokens : sequence of int, [n]
        No more than the budget.
    parents : sequence of int, [n], optional
        The parent node of each: 0 to i for entry i. Left out, they are a chain: 0, 1, …, n - 1. Children of a
        node are tried in their order.
    probs : array or sequence of rows, [n, n_vocab] float64, optional
        The distribution that each was drawn from, independently or in view of the nodes before it; sums to 1
        up to rounding. None, for a row or for all, is a point mass: a token that was chosen, not drawn.
    confidence : sequence of float, [n], optional
        Estimated chance that the target agrees with a token, given that it agrees with its parent, to weigh
        it against its cost (``gamma="auto"``, `Ensemble`). Left out, what ``probs`` gives the token.

    Notes
    -----
    The output is exact if ``probs`` is the truth: a token must not be dropped after a look at it, since those
    kept are then no longer drawn from that row (appendix A.1 of arXiv 2211.17192). Those too deep for the
    text are left out, with their descendants and younger siblings, which depends on no token.
    """

    tokens: Sequence[int] | NDArray[np.integer[Any]]
    parents: Sequence[int] | NDArray[np.integer[Any]] | None = None
    probs: NDArray[np.floating[Any]] | Sequence[NDArray[np.floating[Any]] | Sequence[float] | None] | None = (
        None
    )
    confidence: Sequence[float] | NDArray[np.floating[Any]] | None = None


@runtime_checkable
class Drafter(Protocol):
    """What a Python object needs to be a draft: the one method `propose`.

    Two more methods are called if the object has them, both with the index of the sequence in the batch and
    a text as ``propose`` gets it:

    ``begin(sequence, prompt)``
        Before the first round of a sequence that may draft, and again when its slot in a batch goes to
        another prompt. The text has new tokens already where the draft paused when it began
        (``gamma="auto"``). A third parameter named ``source`` gets the ids that the target's encoder reads,
        or None.
    ``commit(sequence, tokens)``
        After each round; the whole text, prompt included. It stays.

    Two attributes say more, if the object has them:

    ``gamma``
        The budget when the caller gives none; 4 without it.
    ``trees``
        True: proposals are trees. Rules that cannot judge trees ("block" and "k-sequential", above
        temperature 0) are then refused before a run, not at the first proposal that is a tree.

    A draft that draws its tokens asks for random numbers by a parameter of ``propose`` named ``rng``: a
    `numpy.random.Generator` of its own for every sequence, round and draft of an `Ensemble`, made of the
    run's seed. Two drafts that draw from equal generators propose tokens that depend on each other, and the
    output is no longer exact.

    What the methods raise ends the text that the call was for: `specdec.generate` raises it, and of an
    `Engine` the request of that text, while others go on. They are not called for a text that something else
    drafts for, or nothing. An object that serves several threads at once must lock its own state.

    Examples
    --------
    What followed each pair of tokens, guessed again:

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
        """Draft what comes after a text.

        Parameters
        ----------
        sequence : int
            Index in the batch.
        tokens : memoryview of int, [n_tokens]
            The text so far, at least one token; a read-only copy. ``np.asarray(tokens)`` is int32.
        budget : int
            Draft tokens at most, at least 1.

        Returns
        -------
        sequence of int or Proposal
            Token ids in a row, chosen and not drawn (a chain of point masses), [] for none; or a tree.
        """


class PythonDraft(Draft):
    """Any object with the methods of `Drafter` as a draft; `specdec.generate` wraps by itself."""

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
    """Whether a method has a parameter of that name, after the others; `of` is the method in messages."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):  # some callables of C have no signature
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
    """The random numbers of a round, by the length of its text; `seed` differs for drafts within a draft."""
    key = np.array([seed, sequence << 32 | position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
