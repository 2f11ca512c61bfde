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
    """A draft by learned weights: a folder that training wrote and `specdec.drafts.load` opens.

    `weights` is that folder, whose ``config.json`` also names the target, or a ``LearnedWeights`` in memory;
    the other parameters are those of `specdec.drafts`. `core` has the packed weights.
    """

    method: ClassVar[str]  # the field of config.json
    holds: ClassVar[str]  # the folder, in messages
    has_matrices: ClassVar[bool] = True  # whether a number format can be chosen
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
        if dtype is not None and not self.has_matrices:
            raise InputError.of("dtype", dtype, f"None: {self.holds} have no matrices")
        self.weights.check_method(self.method)
        self.core = self._packed(dtype, n_threads)
        self.gamma = gamma_of(gamma, self.tree, self.gamma)

    @abstractmethod
    def _packed(self, dtype: Dtype | None, n_threads: int | None) -> Any:
        """Pack the weights for the core, and set what else follows from them, such as the usual gamma."""

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
