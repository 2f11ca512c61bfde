"""Self-speculative decoding: the target drafts, past some of its layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specdec.checks import as_integer, check_items
from specdec.drafts.draft import Description, Draft
from specdec.errors import InputError, number_of
from specdec.models.model import Model

_ATTN, _MLP = 1, 2  # as the core has them (forward.h)


class SkipLayers(Draft):
    """The target itself, without some of its attentions and MLPs: Draft & Verify (arXiv 2309.08168).

    Nothing is trained or stored, and the layers draft with what the target knows of the text. Those before
    the first one that is skipped are not run again to verify a token. Which layers to skip depends on the
    model: see `specdec.search_skips`.

    Parameters
    ----------
    attn : iterable of int, default ()
        Layers, from 0, whose attention is skipped: the hidden state passes it by.
    mlp : iterable of int, default ()
        Layers whose MLP is skipped. At least one attention or MLP must be, and one left of the target's.

    Examples
    --------
    >>> target, _ = specdec.embedded_pair()
    >>> draft = specdec.drafts.SkipLayers(attn=[3], mlp=[2, 3])
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", max_new_tokens=20)
    """

    in_target_cache = True

    def __init__(self, attn: Iterable[int] = (), mlp: Iterable[int] = ()) -> None:
        self.attn = _layers("attn", attn)
        self.mlp = _layers("mlp", mlp)
        if not self.attn and not self.mlp:
            raise InputError("attn and mlp are empty; expected at least one layer to skip")

    def describe(self, target: Model) -> Description:
        n_layer = target.config["n_layer"]
        self.check(n_layer)
        skipped = bytes(_ATTN * (i in self.attn) + _MLP * (i in self.mlp) for i in range(n_layer))
        return "skip_layers", {"skipped": skipped}

    def check(self, n_layer: int) -> None:
        """Refuse a draft of other layers than a model of so many has."""
        for name, layers in (("attn", self.attn), ("mlp", self.mlp)):
            if layers and layers[-1] >= n_layer:
                raise InputError.of(name, layers[-1], f"0 to {n_layer - 1}", verb="has layer")
        if len(self.attn) == len(self.mlp) == n_layer:
            skipped = number_of(n_layer, "layer")
            raise InputError(f"attn and mlp skip all {skipped}; expected something to be left")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkipLayers) and (self.attn, self.mlp) == (other.attn, other.mlp)

    def __hash__(self) -> int:
        return hash((self.attn, self.mlp))

    def __repr__(self) -> str:
        return f"specdec.drafts.SkipLayers(attn={list(self.attn)}, mlp={list(self.mlp)})"


def _layers(name: str, given: Any) -> tuple[int, ...]:
    layers = set()
    for entry in check_items(name, given, "layers, such as [2, 3]"):
        layer = as_integer(entry)
        if layer is None or layer < 0:
            raise InputError.of(name, entry, "integers, at least 0", verb="has")
        layers.add(layer)
    return tuple(sorted(layers))
