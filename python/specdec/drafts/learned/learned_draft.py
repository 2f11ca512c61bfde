"""The base of drafts that are a folder of learned weights."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, ClassVar

from specdec.checks import check_choice
from specdec.drafts.draft import Description, Draft, made_again
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.trees import Tree, check_tree, describe_shape, gamma_of
from specdec.errors import InputError
from specdec.models.model import Model
from specdec.models.number_formats import DTYPES, Dtype


class LearnedDraft(Draft):
    """What learned drafts have in common; parameters and attributes are those of `Heads`."""

    holds: ClassVar[str]
    """What the folder holds, in messages."""
    has_matrices: ClassVar[bool] = True
    """Whether a number format can be chosen."""
    core: Any

    def __init__(
        self,
        weights: LearnedWeights | str | os.PathLike[str],
        *,
        dtype: Dtype | None = None,
        tree: Tree | None = None,
        gamma: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        dtype = check_choice("dtype", dtype, DTYPES, optional=True)
        self.tree = check_tree(tree)
        self.weights = LearnedWeights.given(weights, self.holds)
        self._pack(dtype, n_threads)
        self.gamma = gamma_of(gamma, self.tree, self.gamma)

    @classmethod
    def open(
        cls, weights: LearnedWeights, dtype: Dtype | None, tree: Tree | None, gamma: int | None
    ) -> LearnedDraft:
        """Make the draft of a folder that was read."""
        if dtype is not None and not cls.has_matrices:
            raise InputError.of("dtype", dtype, f"None: {cls.holds} have no matrices")
        if dtype is None:  # not every constructor has it
            return cls(weights, tree=tree, gamma=gamma)
        return cls(weights, tree=tree, gamma=gamma, dtype=dtype)

    @abstractmethod
    def _pack(self, dtype: Dtype | None, n_threads: int | None) -> None:
        """Set `core`, and what else follows from the weights, such as the usual gamma."""

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"tree": self.tree, "gamma": self.gamma}
        if self.has_matrices:
            options["dtype"] = self.core.dtype
        return made_again, (type(self), (self.weights,), options)

    def describe(self, target: Model) -> Description:
        self.weights.check_target(target)
        return describe_shape(self.tree, self.core)

    def __repr__(self) -> str:
        size = f"{self.core.n_parameters:,} parameters in {self.core.dtype}" if self.has_matrices else ""
        more = f", tree={self.tree!r}" if self.tree is not None else ""
        return f"<specdec.drafts.{type(self).__name__} of {self.weights.where}: {self._shown}{size}{more}>"

    @property
    def _shown(self) -> str:
        """The size of the draft in ``repr``."""
        return ""
