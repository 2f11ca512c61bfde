"""A recurrent draft: gated recurrent units over the tokens of the text."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.drafts.draft import Description
from specdec.drafts.learned.methods import LearnedDraft
from specdec.drafts.texts import Ids, check_ids
from specdec.drafts.trees import describe_shape
from specdec.fields import Fields
from specdec.models.model import Model
from specdec.models.number_formats import Dtype


@dataclass(frozen=True)
class RecurrentShape:
    """Dimensions and tensor shapes of a recurrent draft."""

    d_embed: int = 64
    d_hidden: int = 128
    n_layers: int = 1

    @classmethod
    def read(cls, fields: Fields) -> RecurrentShape:
        """Read the shape from a draft's ``config.json``."""
        n_layers = fields.integer("n_layers", maximum=_core.MAX_RECURRENT_LAYERS)
        return cls(fields.integer("d_embed"), fields.integer("d_hidden"), n_layers)

    def tensors(self, n_vocab: int, n_draft_vocab: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor; gates are in torch's order r, z, n."""
        gates = 3 * self.d_hidden
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (n_vocab, self.d_embed)}
        for i in range(self.n_layers):
            shapes[f"cells.{i}.weight_ih"] = (gates, self.d_hidden if i else self.d_embed)
            shapes[f"cells.{i}.weight_hh"] = (gates, self.d_hidden)
            shapes[f"cells.{i}.bias_ih"] = shapes[f"cells.{i}.bias_hh"] = (gates,)
        return shapes | {"output.weight": (n_draft_vocab, self.d_hidden), "output.bias": (n_draft_vocab,)}


class RecurrentDraft(LearnedDraft):
    """A recurrent network: gated recurrent units (Cho et al. 2014, arXiv 1406.1078) and a head.

    Reads tokens into a state of fixed size, so a step takes microseconds at any text length. May draft for
    any target with the tokens it was trained for, and for another draft.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        Folder written by training, or the same in memory. ``config.json`` has ``d_embed``, ``d_hidden`` and
        ``n_layers``. Tensors: ``embedding.weight`` [n_vocab, d_embed]; for each layer i, in torch's gate
        order r, z, n, ``cells.i.weight_ih`` [3 · d_hidden, d_embed or d_hidden], ``cells.i.weight_hh`` [3 ·
        d_hidden, d_hidden], ``cells.i.bias_ih`` and ``cells.i.bias_hh`` [3 · d_hidden]; ``output.weight``
        [n_draft_vocab, d_hidden] and ``output.bias``.
    dtype, tree, gamma, n_threads
        See `specdec.drafts`.

    Attributes
    ----------
    core : specdec._core.Recurrent
        The packed weights.

    Examples
    --------
    >>> small = specdec.drafts.RecurrentDraft("path/to/network")
    >>> out = specdec.generate(target, small, "It was a dark and stormy night")
    """

    method = "recurrent"
    holds = "a recurrent draft"
    core: _core.Recurrent

    def _packed(self, dtype: Dtype | None, n_threads: int | None) -> _core.Recurrent:
        self.weights.check_captures()
        shape = RecurrentShape.read(self.weights.fields)
        sizes = {"n_vocab": self.weights.target.n_vocab, "n_draft_vocab": self.weights.n_draft_vocab}
        tensors = shape.tensors(**sizes)
        return self.weights.packed(_core.Recurrent, sizes | asdict(shape), tensors, dtype, n_threads)

    def describe(self, target: Model) -> Description:
        self.weights.target.check_tokens(target, self.weights.where)
        return describe_shape(self.tree, self.core)

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """Return the next-token distributions after each prefix of `ids` [n_tokens].

        Row i of the result, float64 [n_tokens, n_vocab], is for the token after ``ids[: i + 1]``; tokens
        outside the draft's vocabulary have probability 0.
        """
        logits = self.core.logits(check_ids(ids, self.weights.target.n_vocab)).astype(np.float64)
        rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities: NDArray[np.float64] = rows / rows.sum(axis=-1, keepdims=True)
        return probabilities
