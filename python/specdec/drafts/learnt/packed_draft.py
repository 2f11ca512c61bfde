"""Learnt drafts whose weights the core packs."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from specdec.checks import check_choice
from specdec.drafts.draft import Draft, made_again
from specdec.drafts.learnt.folder import LearntWeights
from specdec.drafts.trees import Tree, check_tree, gamma_of
from specdec.models.number_formats import DTYPES, Dtype

__all__ = ["PackedDraft"]


class PackedWeights(Protocol):
    """What the core says of weights that it has packed."""

    @property
    def dtype(self) -> Dtype:
        """Number format of the matrices."""
        ...

    @property
    def n_parameters(self) -> int:
        """Numbers that there are."""
        ...


class PackedDraft(Draft):
    """What heads and recurrent networks have in common; parameters and attributes are those of `Heads`."""

    holds: ClassVar[str]
    """What the folder holds, in messages."""
    core: PackedWeights

    def __init__(
        self,
        weights: LearntWeights | str | os.PathLike[str],
        *,
        dtype: Dtype | None = None,
        tree: Tree | None = None,
        gamma: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        dtype = check_choice("dtype", dtype, DTYPES, optional=True)
        self.tree = check_tree(tree)
        self.weights = LearntWeights.given(weights, self.holds)
        self._pack(dtype, n_threads)
        self.gamma = gamma_of(gamma, self.tree, self.gamma)

    @abstractmethod
    def _pack(self, dtype: Dtype | None, n_threads: int | None) -> None:
        """Set `core`, and what else follows from the weights, such as the usual gamma.

        Raises
        ------
        CheckpointError
            The weights are none of this class.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"dtype": self.core.dtype, "tree": self.tree, "gamma": self.gamma}
        return made_again, (type(self), (self.weights,), options)

    @property
    def _size(self) -> str:
        """Parameters, number format and tree, for ``repr``."""
        more = f", tree={self.tree!r}" if self.tree is not None else ""
        return f"{self.core.n_parameters:,} parameters in {self.core.dtype}{more}"
