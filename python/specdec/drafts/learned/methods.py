"""The methods of learned drafts: the one place where a method is registered.

A method is a folder here: ``draft.py`` (the draft and how its files are read), ``network.py`` (in PyTorch),
``trainer.py`` and, where it learns while it serves, ``learner.py``. Modules are imported when they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from specdec.drafts.draft import Draft
from specdec.drafts.learned.folder import CONFIG_NAME, LearnedWeights
from specdec.drafts.learned.learned_draft import LearnedDraft
from specdec.drafts.trees import Tree
from specdec.fields import as_json, read_json_object
from specdec.models.number_formats import Dtype


@dataclass(frozen=True)
class Method:
    """A method of learned drafts; without `draft` and `stored_as` its folders are no `LearnedWeights`."""

    folder: str  # in specdec.drafts.learned
    trainer: str  # the class in trainer.py
    meaning: str  # what is trained, in one line
    draft: str = ""  # the class in draft.py
    stored_as: str = ""  # the field ``method`` of the draft's config.json

    def load(self, module: str, name: str) -> Any:
        """Return an attribute of one of the method's modules."""
        return getattr(import_module(f"specdec.drafts.learned.{self.folder}.{module}"), name)


METHODS: Final[dict[str, Method]] = {
    "small": Method("small", "SmallTrainer", "a small decoder, or the model that --begin names"),
    "recurrent": Method(
        "recurrent", "RecurrentTrainer", "gated recurrent units, whose step takes microseconds",
        "Recurrent", "recurrent",
    ),
    "exit": Method(
        "early_exit", "ExitTrainer", "the target itself, so that its first layers draft for it: another model"
    ),
    "heads": Method(
        "heads", "HeadsTrainer", "heads on the target's last hidden state: Medusa's, Hydra's",
        "Heads", "heads",
    ),
    "eagle": Method("eagle", "EagleTrainer", "a layer on the target's hidden states: EAGLE-3, EAGLE-1"),
    "pass": Method(
        "look_ahead", "LookAheadTrainer", "look-ahead embeddings, extra inputs of verification (PaSS)",
        "LookAheadEmbeddings", "look_ahead_embeddings",
    ),
}  # fmt: skip
"""By the name that `specdec train draft --kind` takes."""


def open_learned(
    path: Path, *, dtype: Dtype | None = None, tree: Tree | None = None, gamma: int | None = None
) -> Draft | None:
    """Open the learned draft of a folder; None where it holds an ordinary model or nothing."""
    config = path / CONFIG_NAME
    if not config.is_file() or "specdec_draft" not in read_json_object(config):
        return None
    weights = LearnedWeights.read(path)
    methods = {method.stored_as: method for method in METHODS.values() if method.stored_as}
    if weights.method not in methods:
        known = ", ".join(map(as_json, sorted(methods)))
        raise weights.fields.unsupported("method", f"one of {known}")
    method = methods[weights.method]
    kind: type[LearnedDraft] = method.load("draft", method.draft)
    return kind(weights, dtype=dtype, tree=tree, gamma=gamma)
