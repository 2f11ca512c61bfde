"""Early exit: the target's first layers draft."""

from __future__ import annotations

import numpy as np

from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.skip_layers import SkipLayers
from specdec.errors import InputError, shown
from specdec.models.model import Model

__all__ = ["EarlyExit"]


class EarlyExit(Draft):
    """The target's first layers and its head: self-speculative decoding of LayerSkip (arXiv 2404.16710).

    A token goes through the first layers, and the output norm and head make a guess of it. Verification goes
    on from there, with the keys, values and hidden states that drafting left, so no layer is run twice for a
    token. What drafting adds is the head for every guess, and that the first layers are read for one token at
    a time. A model guesses well this way if it was trained to (layer dropout, and a loss at every exit);
    others do poorly, so measure.

    Parameters
    ----------
    layer : int
        How many layers draft: at least 1, and fewer than the target has.
    gamma : int, optional
        Guesses a round when the caller of `specdec.generate` does not say: by default 4.

    Attributes
    ----------
    layer, gamma : int

    Raises
    ------
    InputError
        If `layer` is not an integer of at least 1, or gamma is not in 1 to 1024. That the target has more
        layers is checked when it is known.

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
        """Exits of a target to choose from, as `specdec.tune` does: every layer, or `most`, evenly apart.

        Raises
        ------
        InputError
            If the target has one layer, or `most` is no integer of at least 1.
        """
        n_layer, most = target.config["n_layer"], check_integer("most", most, 1)
        if n_layer < 2:
            raise InputError(f"target {target.path} has 1 layer; expected 2 or more, to leave early")
        layers = np.linspace(1, n_layer - 1, min(most, n_layer - 1)).round()
        return [cls(int(layer)) for layer in layers]

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`: to exit is to skip all layers from there on.

        Raises
        ------
        InputError
            If the target has no layer left behind the exit.
        """
        n_layer = target.config["n_layer"]
        if self.layer >= n_layer:
            raise InputError(
                f"layer is {shown(self.layer)}; expected 1 to {n_layer - 1}: the target has {n_layer}"
            )
        rest = range(self.layer, n_layer)
        return SkipLayers(rest, rest).describe(target)

    def __repr__(self) -> str:
        return f"specdec.drafts.EarlyExit({self.layer})"
