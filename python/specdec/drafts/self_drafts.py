"""The target drafts for itself: past some of its layers, by its first layers, by Jacobi iteration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from specdec.checks import as_integer, check_integer, check_items
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.learned.folder import configuration_digest
from specdec.drafts.trees import Tree
from specdec.errors import InputError, number_of
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints import open_checkpoint
from specdec.models.model import Model
from specdec.models.model_config import ModelConfig

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


class Lookahead(Draft):
    """Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): no draft, the target's own parallel guesses.

    Ahead of the text is a window of ``ngram - 1`` rows of ``window`` columns, which the target reads in the
    same forward pass. What it predicts after the last row of each column is the next row (Jacobi iteration),
    and makes an n-gram of the column. Of those of a sequence's last 256 rounds, the most recent ones that
    begin with the text's last token are candidates, at most ``candidates``. Every draft token is chosen and
    not drawn; row 0 of the window may be accepted too.

    Parameters
    ----------
    window : int, default 2
        W of the paper: columns, at least 1. At first, and where accepted tokens have moved the window on,
        they hold tokens of the text at random; which ones follows from the run's seed.
    ngram : int, default 2
        N of the paper: at least 2.
    candidates : int, optional
        G of the paper: at least 0; by default ``window``.

    Attributes
    ----------
    gamma : int
        (window + candidates) (ngram - 1), at most 1024: draft tokens of a round. With fewer, or near the end
        of the text, columns are taken off the window's end, and then the last candidates are cut.

    Notes
    -----
    A round reads ``gamma + 1`` rows at most to gain a token or two. The paper's windows (W = 15, N = 5 on a
    GPU) cost more on a CPU than they bring: the small default pays for greedy decoding, mostly of text that
    repeats itself, and hardly for sampling. The argmax is that of logits before penalties and biases.
    """

    def __init__(self, window: int = 2, ngram: int = 2, *, candidates: int | None = None) -> None:
        self.window = check_integer("window", window, 1, MAX_GAMMA)
        self.ngram = check_integer("ngram", ngram, 2, MAX_GAMMA)
        candidates = self.window if candidates is None else candidates
        self.candidates = check_integer("candidates", candidates, 0, MAX_GAMMA)
        self.gamma = (self.window + self.candidates) * (self.ngram - 1)
        if self.gamma > MAX_GAMMA:
            raise InputError.of("(window + candidates) (ngram - 1)", self.gamma, f"at most {MAX_GAMMA}")

    def describe(self, target: Model) -> Description:
        return "lookahead", {"window": self.window, "ngram": self.ngram, "candidates": self.candidates}

    def __repr__(self) -> str:
        return f"Lookahead(window={self.window}, ngram={self.ngram}, candidates={self.candidates})"
