"""Base class and registry of learned drafts.

Each method has a folder here with ``draft.py`` (the draft and its files) and ``trainer.py``. Some have
``network.py``, PyTorch code shared with other modules, and ``online_trainer.py``, for learning while serving.
Modules are imported on first use.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from specdec.checks import check_choice
from specdec.drafts.draft import Description, Draft
from specdec.drafts.learned.folder import CONFIG_NAME, LearnedWeights
from specdec.drafts.trees import Tree, check_tree, describe_shape, gamma_of
from specdec.errors import InputError
from specdec.fields import as_json, read_json_object
from specdec.models.model import Model
from specdec.models.number_formats import DTYPES, Dtype


class LearnedDraft(Draft):
    """A draft with learned weights, from a folder written by training and opened by `specdec.drafts.load`.

    `weights` is that folder, whose ``config.json`` also identifies the target, or a ``LearnedWeights`` in
    memory. For the other parameters see `specdec.drafts`. `core` holds the packed weights.
    """

    method: ClassVar[str]  # field ``method`` of config.json
    holds: ClassVar[str]  # contents of the folder, for messages
    has_matrices: ClassVar[bool] = True  # a number format can be chosen
    core: Any

    def __init__(
        self, weights: LearnedWeights | str | os.PathLike[str], *, dtype: Dtype | None = None,
        tree: Tree | None = None, gamma: int | None = None, n_threads: int | None = None,
    ) -> None:  # fmt: skip
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
        """Pack the weights for the core, and set attributes that depend on them, such as `gamma`."""

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"tree": self.tree, "gamma": self.gamma}
        if self.has_matrices:
            options["dtype"] = self.core.dtype
        return partial(type(self), **options), (self.weights,)

    def describe(self, target: Model) -> Description:
        self.weights.check_target(target)
        return describe_shape(self.tree, self.core)

    def __repr__(self) -> str:
        size = f"{self.core.n_parameters:,} parameters in {self.core.dtype}" if self.has_matrices else ""
        more = f", tree={self.tree!r}" if self.tree is not None else ""
        return f"<specdec.drafts.{type(self).__name__} of {self.weights.where}: {self._shown}{size}{more}>"

    @property
    def _shown(self) -> str:
        """Size of the draft for ``repr``."""
        return ""


@dataclass(frozen=True)
class Method:
    """A method of learned drafts; `draft` and `stored_as` are empty if it does not use `LearnedWeights`."""

    folder: str  # in specdec.drafts.learned
    trainer: str  # class in trainer.py
    meaning: str  # one-line description for the command line
    draft: str = ""  # class in draft.py
    stored_as: str = ""  # field ``method`` of the draft's config.json

    def load(self, module: str, name: str) -> Any:
        """Import an attribute of one of the method's modules."""
        return getattr(import_module(f"specdec.drafts.learned.{self.folder}.{module}"), name)


METHODS: Final[dict[str, Method]] = {
    "small": Method("small", "SmallTrainer", "a small decoder, or the model that --begin names"),
    "recurrent": Method(
        "recurrent", "RecurrentTrainer", "a GRU network that drafts a token in microseconds",
        "RecurrentDraft", "recurrent",
    ),
    "early-exit": Method(
        "early_exit", "ExitTrainer", "a fine-tuned copy of the target, whose first layers draft (LayerSkip)"
    ),
    "heads": Method(
        "heads", "HeadsTrainer", "heads on the target's last hidden state (Medusa, Hydra)",
        "DecodingHeads", "heads",
    ),
    "eagle": Method("eagle", "EagleTrainer", "a layer on the target's hidden states: EAGLE-3, EAGLE-1"),
    "pass": Method(
        "look_ahead", "LookAheadTrainer", "look-ahead embeddings, extra query tokens of verification (PaSS)",
        "LookAheadEmbeddings", "look_ahead_embeddings",
    ),
}  # fmt: skip
"""Methods by the name that `specdec train draft --method` takes."""


def open_learned(
    path: Path, *, dtype: Dtype | None = None, tree: Tree | None = None, gamma: int | None = None
) -> Draft | None:
    """Open the learned draft of a folder; None if the folder holds no learned draft."""
    config = path / CONFIG_NAME
    if not config.is_file() or "specdec_draft" not in read_json_object(config):
        return None
    weights = LearnedWeights.read(path)
    methods = {method.stored_as: method for method in METHODS.values() if method.stored_as}
    if weights.method not in methods:
        known = ", ".join(map(as_json, sorted(methods)))
        raise weights.fields.unsupported("method", f"one of {known}")
    method = methods[weights.method]
    draft_type: type[LearnedDraft] = method.load("draft", method.draft)
    return draft_type(weights, dtype=dtype, tree=tree, gamma=gamma)
