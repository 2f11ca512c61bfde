"""Early exit: the target's first layers draft."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.learned.folder import configuration_digest
from specdec.drafts.skip_layers import SkipLayers
from specdec.drafts.trees import Tree
from specdec.errors import InputError
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints import open_checkpoint
from specdec.models.model import Model
from specdec.models.model_config import ModelConfig

EXIT_NAME: Final = "specdec_exit.json"
"""The file of a trained exit, in the folder of its model."""


class EarlyExit(Draft):
    """The target's first layers and its head: self-speculative decoding of LayerSkip (arXiv 2404.16710).

    The output norm and head predict the next token after the first layers. Verification continues from
    there, so no layer is run twice for a token: drafting adds the head for every draft token, and reads the
    first layers for one token at a time. A model drafts well this way if it was trained to (layer dropout,
    and a loss at every exit); others do poorly, so measure.

    Parameters
    ----------
    layer : int
        How many layers draft: at least 1, and fewer than the target has.
    gamma : int, optional
        See `specdec.drafts`.

    Examples
    --------
    >>> target, _ = specdec.embedded_pair()
    >>> out = specdec.generate(target, specdec.drafts.EarlyExit(2), "It was a dark and stormy night")
    """

    in_target_cache = True

    def __init__(self, layer: int, *, gamma: int | None = None) -> None:
        self.layer = check_integer("layer", layer, 1)
        if gamma is not None:
            self.gamma = check_integer("gamma", gamma, 1, MAX_GAMMA)

    @classmethod
    def exits(cls, target: Model, most: int = 6) -> list[EarlyExit]:
        """Return exits of a target to choose from: every layer, or `most`, evenly apart."""
        n_layer, most = target.config["n_layer"], check_integer("most", most, 1)
        if n_layer < 2:
            raise InputError(f"target {target.path} has 1 layer; expected 2 or more, to leave early")
        layers = np.linspace(1, n_layer - 1, min(most, n_layer - 1)).round()
        return [cls(int(layer)) for layer in layers]

    def describe(self, target: Model) -> Description:
        n_layer = target.config["n_layer"]
        if self.layer >= n_layer:
            raise InputError.of("layer", self.layer, f"1 to {n_layer - 1}: the target has {n_layer}")
        rest = range(self.layer, n_layer)  # to exit is to skip all layers from there on
        return SkipLayers(rest, rest).describe(target)

    def __repr__(self) -> str:
        return f"specdec.drafts.EarlyExit({self.layer})"


def open_exit(folder: Path, target: Model, tree: Tree | None, gamma: int | None) -> EarlyExit:
    """Open the exit that training left in the folder of its model, which must be the target."""
    file = folder / EXIT_NAME
    fields = Fields(read_json_object(file), file)
    ours = ModelConfig.from_canonical(open_checkpoint(folder, tokenizer=False).config)
    layer = fields.integer("layer", maximum=ours.n_layer - 1)
    stored = fields.integer("gamma", maximum=MAX_GAMMA, default=None)
    same = target.path.exists() and target.path.samefile(folder)
    if not same or configuration_digest(ours) != configuration_digest(target.config):
        expected = f"specdec.load({str(folder)!r}), whose exit {file} is"
        raise InputError.of("target", target.path, expected, str(target.path))
    if tree is not None:
        raise InputError.of("tree", tree, f"None: {file} is an early exit, which drafts chains")
    return EarlyExit(layer, gamma=stored if gamma is None else gamma)
