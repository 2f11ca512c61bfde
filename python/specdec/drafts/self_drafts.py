"""Self-speculative drafts: the target with skipped layers, its first layers, or Jacobi iteration."""

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

_ATTN, _MLP = 1, 2  # bits of the core (forward.h)


class SkipLayers(Draft):
    """The target with some attention and MLP blocks skipped: Draft & Verify (arXiv 2309.08168).

    Needs no training and no extra weights, and shares the target's KV cache. Layers before the first skipped
    one are not run again for verification. Which layers to skip depends on the model: see
    `specdec.search_skips`.

    Parameters
    ----------
    attn : iterable of int, default ()
        Layers, from 0, whose attention is skipped, also in layers that share their keys and values.
    mlp : iterable of int, default ()
        Layers whose MLP is skipped. At least one block must be skipped and one must remain.

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
        """Refuse layers that a model of `n_layer` layers does not have, and skipping all of them."""
        for name, layers in (("attn", self.attn), ("mlp", self.mlp)):
            if layers and layers[-1] >= n_layer:
                raise InputError.of(name, layers[-1], f"0 to {n_layer - 1}", verb="has layer")
        if len(self.attn) == len(self.mlp) == n_layer:
            skipped = number_of(n_layer, "layer")
            raise InputError(f"attn and mlp skip all {skipped}; expected some blocks to remain")

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
"""File of a trained exit, in the model's folder."""


class EarlyExit(Draft):
    """The target's first layers and its head: self-speculative decoding of LayerSkip (arXiv 2404.16710).

    The output norm and head predict the next token from the hidden state after the first layers. Verification
    continues from there, so no layer runs twice for a token; each draft token adds only the head. This suits
    models trained with layer dropout and early-exit losses; other models have low acceptance rates.

    Parameters
    ----------
    layer : int
        Number of layers that draft, at least 1 and fewer than the target has.
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
        """Return candidate exits of a target: every layer, or `most` evenly spaced ones."""
        n_layer, most = target.config["n_layer"], check_integer("most", most, 1)
        if n_layer < 2:
            raise InputError(f"target {target.path} has 1 layer; expected 2 or more, to exit early")
        layers = np.linspace(1, n_layer - 1, min(most, n_layer - 1)).round()
        return [cls(int(layer)) for layer in layers]

    def describe(self, target: Model) -> Description:
        n_layer = target.config["n_layer"]
        if self.layer >= n_layer:
            raise InputError.of("layer", self.layer, f"1 to {n_layer - 1}: the target has {n_layer}")
        rest = range(self.layer, n_layer)  # an exit skips all later layers
        return SkipLayers(rest, rest).describe(target)

    def __repr__(self) -> str:
        return f"specdec.drafts.EarlyExit({self.layer})"


def open_exit(folder: Path, target: Model, tree: Tree | None, gamma: int | None) -> EarlyExit:
    """Open the trained exit in a model's folder, from which the target must have been loaded."""
    file = folder / EXIT_NAME
    fields = Fields(read_json_object(file), file)
    ours = ModelConfig.from_canonical(open_checkpoint(folder, tokenizer=False).config)
    layer = fields.integer("layer", maximum=ours.n_layer - 1)
    stored = fields.integer("gamma", maximum=MAX_GAMMA, default=None)
    same = target.path.exists() and target.path.samefile(folder)
    if not same or configuration_digest(ours) != configuration_digest(target.config):
        expected = f"specdec.load({str(folder)!r}), for which the exit {file} was trained"
        raise InputError.of("target", target.path, expected, str(target.path))
    if tree is not None:
        raise InputError.of("tree", tree, f"None: {file} is an early exit, which drafts chains")
    return EarlyExit(layer, gamma=stored if gamma is None else gamma)


class Lookahead(Draft):
    """Lookahead decoding without a draft model: parallel Jacobi iteration (Fu et al., arXiv 2402.02057).

    A window of ``ngram - 1`` rows and ``window`` columns follows the text in the same forward pass. The
    predictions after the last row are the next row, which completes one n-gram per column. Candidates are
    the latest n-grams of the sequence's last 256 rounds that begin with the text's last token, at most
    ``candidates``. Draft tokens are point masses; row 0 of the window may be accepted too.

    Parameters
    ----------
    window : int, default 2
        W of the paper: columns, at least 1. New columns hold random tokens of the text, by the run's seed.
    ngram : int, default 2
        N of the paper: at least 2.
    candidates : int, optional
        G of the paper: at least 0. None: ``window``.

    Attributes
    ----------
    gamma : int
        (window + candidates) (ngram - 1), at most 1024. A smaller budget first drops columns from the
        window's end, then the last candidates.

    Notes
    -----
    A round reads up to ``gamma + 1`` rows to gain a token or two. The paper's GPU setting (W = 15, N = 5)
    does not pay on a CPU; the small default pays for greedy decoding of repetitive text, rarely for sampling.
    Predictions are the argmax of logits before penalties and biases.
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
