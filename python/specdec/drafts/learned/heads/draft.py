"""Decoding heads, which predict several tokens from the target's last hidden state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specdec import _core
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.methods import LearnedDraft
from specdec.models.number_formats import Dtype


@dataclass(frozen=True)
class HeadsShape:
    """Dimensions, options and tensor shapes of heads."""

    d_model: int  # of the target
    n_vocab: int
    n_heads: int = 4  # tokens predicted after the root
    n_blocks: int = 1  # residual blocks per head
    see_draft_tokens: bool = False  # heads also read the embeddings of the root and earlier draft tokens
    shared_output: bool = True  # use the target's output matrix; otherwise each head has one
    n_draft_vocab: int = 0  # size of the draft's vocabulary; 0: all tokens

    def __post_init__(self) -> None:
        if not self.n_draft_vocab:
            object.__setattr__(self, "n_draft_vocab", self.n_vocab)

    @classmethod
    def read(cls, weights: LearnedWeights) -> HeadsShape:
        """Read the shape from a draft's folder."""
        fields, target = weights.fields, weights.target
        fields.choice("activation", {"silu": "silu"}, default="silu")
        shape = cls(
            target.d_model, target.n_vocab,
            fields.integer("n_heads", maximum=_core.MAX_HEADS),
            fields.integer("n_blocks", minimum=0, maximum=_core.MAX_HEAD_BLOCKS),
            fields.boolean("see_draft_tokens", default=False), fields.boolean("shared_output", default=False),
            weights.n_draft_vocab,
        )  # fmt: skip
        if shape.shared_output and not shape.see_draft_tokens and shape.n_blocks == 0:
            raise fields.error("n_blocks", "at least 1, as heads without weights equal the target's own")
        return shape

    def fields(self) -> dict[str, Any]:
        """Return the method's fields of the draft's ``config.json``."""
        own = ("n_heads", "n_blocks", "see_draft_tokens", "shared_output")
        return {name: getattr(self, name) for name in own} | {"activation": "silu"}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor."""
        d, shapes = self.d_model, dict[str, tuple[int, ...]]()
        for k in range(self.n_heads):
            if self.see_draft_tokens:
                shapes[f"heads.{k}.input.weight"] = (d, (2 + k) * d)
            for b in range(self.n_blocks):
                shapes |= {f"heads.{k}.blocks.{b}.weight": (d, d), f"heads.{k}.blocks.{b}.bias": (d,)}
            if not self.shared_output:
                shapes[f"heads.{k}.output.weight"] = (self.n_draft_vocab, d)
        return shapes


class DecodingHeads(LearnedDraft):
    """Heads on the target's last hidden state: head k predicts the k-th token after the last one.

    All heads read the hidden state that produced the last token. A head has residual blocks and an output
    matrix (Medusa, arXiv 2401.10774); with one block and the target's output matrix these are the heads of
    blockwise parallel decoding (arXiv 1811.03115; section 3.6 of arXiv 2211.17192). With ``see_draft_tokens``
    heads also read the embeddings of earlier draft tokens (Hydra, arXiv 2402.05109). Without it each token is
    predicted independently; drafting costs very little, and a tree gains more than a chain.

    A text of one token gets no draft tokens, as there is no hidden state yet. Heads need the target's cache,
    so they cannot draft for another draft, but they may be part of an `Ensemble`.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        Folder written by training, whose ``config.json`` has ``n_heads``, ``n_blocks``, ``see_draft_tokens``
        and ``shared_output``; or the same in memory.
    dtype, tree, gamma, n_threads
        See `specdec.drafts`. A shared output matrix keeps the target's format. Tree levels beyond the number
        of heads stay empty. gamma defaults to the number of heads.

    Attributes
    ----------
    n_heads : int
        Number of heads.
    core : specdec._core.Heads
        The packed weights.

    Examples
    --------
    >>> heads = specdec.drafts.DecodingHeads("path/to/heads", tree=specdec.drafts.StaticTree((3, 2), "top-k"))
    >>> out = specdec.generate(target, heads, "It was a dark and stormy night")
    """

    in_target_cache = True
    method = "heads"
    holds = "heads"
    core: _core.Heads

    def _packed(self, dtype: Dtype | None, n_threads: int | None) -> _core.Heads:
        self.weights.check_captures(self.weights.target.n_layer + 1)
        shape = HeadsShape.read(self.weights)
        self.n_heads = self.gamma = shape.n_heads
        return self.weights.packed(_core.Heads, asdict(shape), shape.tensors(), dtype, n_threads)

    @property
    def _shown(self) -> str:
        return f"{self.n_heads} heads, "
