"""Which learnt draft lies in a folder, by the method that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specdec.drafts.draft import Draft
from specdec.drafts.learnt.folder import CONFIG_NAME, LearntWeights
from specdec.drafts.learnt.heads_draft import Heads
from specdec.drafts.learnt.look_ahead_draft import LookAheadEmbeddings
from specdec.drafts.learnt.recurrent_draft import Recurrent
from specdec.drafts.trees import Tree
from specdec.fields import as_json, read_json_object
from specdec.models.number_formats import Dtype

__all__ = ["METHODS", "open_learnt"]

METHODS: dict[str, Callable[[LearntWeights, Dtype | None, Tree | None, int | None], Draft]] = {
    "look_ahead_embeddings": lambda weights, dtype, tree, gamma: LookAheadEmbeddings(
        weights, tree=tree, gamma=gamma
    ),
    "recurrent": lambda weights, dtype, tree, gamma: Recurrent(weights, dtype=dtype, tree=tree, gamma=gamma),
    "heads": lambda weights, dtype, tree, gamma: Heads(weights, dtype=dtype, tree=tree, gamma=gamma),
}
"""What makes the drafts of each method: from weights, number format, tree and gamma."""


def open_learnt(
    path: Path, *, dtype: Dtype | None = None, tree: Tree | None = None, gamma: int | None = None
) -> Draft | None:
    """The learnt draft of a folder; None where it holds none, such as an ordinary model or nothing.

    Raises
    ------
    UnsupportedModelError
        The draft is of a method that this specdec does not have.
    CheckpointError
        The folder is damaged.
    """
    config = path / CONFIG_NAME
    if not config.is_file() or "specdec_draft" not in read_json_object(config):
        return None
    weights = LearntWeights.read(path)
    if weights.method not in METHODS:
        known = ", ".join(map(as_json, sorted(METHODS)))
        raise weights.fields.unsupported("method", f"one of {known}")
    return METHODS[weights.method](weights, dtype, tree, gamma)
