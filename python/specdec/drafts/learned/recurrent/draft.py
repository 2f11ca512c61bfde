"""A recurrent draft: gated recurrent units over the tokens of the text, whose step takes microseconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.drafts.draft import Description
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.learned_draft import LearnedDraft
from specdec.drafts.texts import Ids, check_ids
from specdec.drafts.trees import describe_shape
from specdec.models.model import Model
from specdec.models.number_formats import Dtype


class Recurrent(LearnedDraft):
    """A recurrent network drafts: gated recurrent units (Cho et al. 2014, arXiv 1406.1078) and a head.

    It reads tokens alone, one after the other, into a state of fixed size: a step takes microseconds,
    whatever the length of the text. So it may draft for any target whose tokens are those of the target that
    it was trained for, and be the draft of a draft; it drafts best for the target itself.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        The folder of a recurrent draft, as training writes it and `specdec.drafts.load` opens it, or the same
        in memory. Its ``config.json`` has ``d_embed``, ``d_hidden`` and ``n_layers``; its tensors are
        ``embedding.weight`` [n_vocab, d_embed]; of each layer i, in torch's order of the gates r, z, n,
        ``cells.i.weight_ih`` [3 · d_hidden, d_embed or d_hidden], ``cells.i.weight_hh`` [3 · d_hidden,
        d_hidden], ``cells.i.bias_ih`` and ``cells.i.bias_hh`` [3 · d_hidden]; and ``output.weight``
        [n_draft_vocab, d_hidden] and ``output.bias``.
    dtype, tree, gamma, n_threads
        As in `Heads`; by default gamma is 4, or the nodes of the tree.

    Attributes
    ----------
    core : specdec._core.Recurrent
        The packed weights.
    weights, tree, gamma
        As in `Heads`.

    Raises
    ------
    CheckpointError
        If the folder is damaged or holds another draft.
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> small = specdec.drafts.Recurrent("path/to/network")
    >>> out = specdec.generate(target, small, "It was a dark and stormy night")
    """

    holds = "a recurrent draft"
    core: _core.Recurrent

    def _pack(self, dtype: Dtype | None, n_threads: int | None) -> None:
        self.core = pack_recurrent(self.weights, dtype, n_threads=n_threads)

    def describe(self, target: Model) -> Description:
        self.weights.target.check_tokens(target, self.weights.where)
        return describe_shape(self.tree, self.core)

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """Return the distribution of the next token after each of some tokens.

        Parameters
        ----------
        ids : sequence of int, [n_tokens]

        Returns
        -------
        ndarray of float64, [n_tokens, n_vocab]
            Row i is the distribution of the token after ids[: i + 1]; 0 for a token that is never drafted.

        Raises
        ------
        InputError
            If a token is not in 0 to n_vocab - 1.
        """
        logits = self.core.logits(check_ids(ids, self.weights.target.n_vocab)).astype(np.float64)
        rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities: NDArray[np.float64] = rows / rows.sum(axis=-1, keepdims=True)
        return probabilities


def pack_recurrent(
    weights: LearnedWeights, dtype: Dtype | None = None, *, n_threads: int | None = None
) -> _core.Recurrent:
    """Pack the weights of a recurrent draft for the core, in their own number format by default."""
    weights.check_method("recurrent")
    weights.check_taps()
    fields = weights.fields
    d_embed, d_hidden = fields.integer("d_embed"), fields.integer("d_hidden")
    n_layers = fields.integer("n_layers", maximum=_core.MAX_RECURRENT_LAYERS)
    n_vocab, n_draft_vocab = weights.target.n_vocab, weights.n_draft_vocab
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (n_vocab, d_embed)}
    for i in range(n_layers):
        shapes[f"cells.{i}.weight_ih"] = (3 * d_hidden, d_hidden if i else d_embed)
        shapes[f"cells.{i}.weight_hh"] = (3 * d_hidden, d_hidden)
        shapes[f"cells.{i}.bias_ih"] = shapes[f"cells.{i}.bias_hh"] = (3 * d_hidden,)
    shapes |= {"output.weight": (n_draft_vocab, d_hidden), "output.bias": (n_draft_vocab,)}
    config = {
        "n_vocab": n_vocab, "n_draft_vocab": n_draft_vocab, "d_embed": d_embed, "d_hidden": d_hidden,
        "n_layers": n_layers,
    }  # fmt: skip
    return weights.packed(_core.Recurrent, config, shapes, dtype=dtype, n_threads=n_threads)
