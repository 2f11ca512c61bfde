"""Decoding heads: several tokens ahead from the target's last hidden state."""

from __future__ import annotations

from specdec import _core
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.learned_draft import LearnedDraft
from specdec.models.number_formats import Dtype


class Heads(LearnedDraft):
    """Heads on the target's last hidden state: head k predicts the token k places after the last one.

    All of them read one vector, which the target has computed anyway: the hidden state that the last token
    was made from. A head is some residual blocks and an output matrix (Medusa, arXiv 2401.10774); with one
    block and the target's own output matrix these are the heads of blockwise parallel decoding (arXiv
    1811.03115), the non-autoregressive draft of section 3.6 of arXiv 2211.17192. Heads that see guesses read
    the embeddings of the draft tokens before theirs too (Hydra, arXiv 2402.05109); others predict each token
    without the ones before, so that a draft token costs next to nothing, and a tree of their candidates
    brings more than a chain.

    Sampled draft tokens have the product of the heads' distributions, so the ordinary rule is exact for them.
    After a text of one token nothing is drafted, as there is no hidden state. The target's cache holds the
    hidden states, so heads cannot draft for a draft; they can be one of several in `Ensemble`.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        The folder of heads, as training writes it and `specdec.drafts.load` opens it: its ``config.json`` has
        ``n_heads``, ``n_blocks``, ``see_guesses``, ``shared_output`` and the target's identity. Or the same
        in memory.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        The number format of the matrices; None: that of the file. The target's output matrix, where it is
        shared, keeps the target's format.
    tree : ParallelChains, StaticTree or DynamicTree, optional
        Several candidates for each token; None: a chain. Levels beyond the number of heads stay empty.
    gamma : int, optional
        Draft tokens a round when the caller of `specdec.generate` does not say: by default one for each head,
        or the nodes of the tree.
    n_threads : int, optional
        Threads that pack the weights.

    Attributes
    ----------
    n_heads : int
    tree : ParallelChains, StaticTree, DynamicTree or None
    gamma : int
    core : specdec._core.Heads
        The packed weights.
    weights : LearnedWeights
        What they were packed from.

    Raises
    ------
    InputError
        If an argument is out of range.
    CheckpointError
        If the folder is damaged or holds another draft.

    Examples
    --------
    >>> heads = specdec.drafts.Heads("path/to/heads", tree=specdec.drafts.StaticTree((3, 2), "top-k"))
    >>> out = specdec.generate(target, heads, "It was a dark and stormy night")
    """

    in_target_cache = True
    holds = "heads"
    core: _core.Heads

    def _pack(self, dtype: Dtype | None, n_threads: int | None) -> None:
        self.core = pack_heads(self.weights, dtype, n_threads=n_threads)
        self.n_heads = self.gamma = self.weights.fields.integer("n_heads")

    @property
    def _shown(self) -> str:
        return f"{self.n_heads} heads, "


def pack_heads(
    weights: LearnedWeights, dtype: Dtype | None = None, *, n_threads: int | None = None
) -> _core.Heads:
    """Pack the weights of heads for the core, in their own number format by default."""
    weights.check_method("heads")
    fields, target = weights.fields, weights.target
    n_heads = fields.integer("n_heads", maximum=_core.MAX_HEADS)
    n_blocks = fields.integer("n_blocks", minimum=0, maximum=_core.MAX_HEAD_BLOCKS)
    see_guesses = fields.boolean("see_guesses", default=False)
    shared_output = fields.boolean("shared_output", default=False)
    fields.choice("activation", {"silu": "silu"}, default="silu")
    weights.check_taps(target.n_layer + 1)
    if shared_output and not see_guesses and n_blocks == 0:
        raise fields.error("n_blocks", "at least 1, or all heads are the target's own")

    d_model, n_draft = target.d_model, weights.n_draft_vocab
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(n_heads):
        if see_guesses:
            shapes[f"heads.{k}.input.weight"] = (d_model, (2 + k) * d_model)
        for b in range(n_blocks):
            shapes[f"heads.{k}.blocks.{b}.weight"] = (d_model, d_model)
            shapes[f"heads.{k}.blocks.{b}.bias"] = (d_model,)
        if not shared_output:
            shapes[f"heads.{k}.output.weight"] = (n_draft, d_model)
    config = {
        "n_heads": n_heads, "n_blocks": n_blocks, "see_guesses": see_guesses, "shared_output": shared_output,
        "d_model": d_model, "n_vocab": target.n_vocab, "n_draft_vocab": n_draft,
    }  # fmt: skip
    return weights.packed(_core.Heads, config, shapes, dtype=dtype, n_threads=n_threads)
