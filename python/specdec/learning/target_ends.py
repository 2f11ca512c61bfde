"""The ends of a target in PyTorch: its token table and its head, which learnt drafts read and share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from specdec.models.checkpoints import CanonicalTensor, open_checkpoint
from specdec.models.number_formats import widened

if TYPE_CHECKING:
    from specdec.models.model import Model

__all__ = ["OnTarget", "TargetEnds", "as_torch"]


class TargetEnds:
    """Frozen tensors of a target; no module, so that no state dict has them.

    Attributes
    ----------
    table, head : Tensor
        [n_vocab, d_model] the token embedding and the matrix of the logits; one tensor where they are tied.
    """

    def __init__(
        self, table: Tensor, head: Tensor | None = None, bias: Tensor | None = None, scale: float = 1.0,
        softcap: float = 0.0,
    ):  # fmt: skip
        self.table = table
        self.head = table if head is None else head
        self.bias, self.scale, self.softcap = bias, scale, softcap

    @classmethod
    def of(cls, target: Model) -> TargetEnds:
        """Read them from the target's checkpoint, which has them as they were before any quantising.

        Raises
        ------
        CheckpointError
            The checkpoint is gone or damaged.
        """
        wanted = {"token_embedding", "head", "head_bias"}
        tensors = open_checkpoint(target.path, tokenizer=False).tensors()
        found = {tensor[0]: as_torch(tensor) for tensor in tensors if tensor[0] in wanted}
        config = target.config
        return cls(
            found["token_embedding"],
            found.get("head"),
            found.get("head_bias"),
            float(config.logit_scale),
            float(config.logit_softcap),
        )

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the token table [..., d_model], as they are stored."""
        return F.embedding(ids, self.table)

    def logits(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """What the target makes of its normalised last hidden state [..., d_model]: [..., n_vocab].

        With `ids` [n], the logits [..., n] of these tokens alone.
        """
        head = self.head if ids is None else self.head[ids]
        bias = self.bias if self.bias is None or ids is None else self.bias[ids]
        y = F.linear(x, head.to(x.dtype), None if bias is None else bias.to(x.dtype))
        if self.scale != 1.0:
            y = y * self.scale
        return self.softcap * torch.tanh(y / self.softcap) if self.softcap else y


class OnTarget(nn.Module):
    """A network that reads the ends of a target: they move with it, but its state dict has them not.

    Parameters
    ----------
    ends : TargetEnds
    draft_ids : Tensor, optional
        [n_draft_vocab] ascending token ids, for a reduced vocabulary.
    """

    def __init__(self, ends: TargetEnds, draft_ids: Tensor | None = None):
        super().__init__()
        self.ends, self.draft_ids = ends, draft_ids

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the target's tensors too; its parameters, where it learns as well, are moved with itself."""
        tied = self.ends.head is self.ends.table
        for name in ("table", "bias") if tied else ("table", "head", "bias"):
            tensor = getattr(self.ends, name)
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                setattr(self.ends, name, fn(tensor))
        if tied:
            self.ends.head = self.ends.table
        if self.draft_ids is not None:
            self.draft_ids = fn(self.draft_ids)
        return super()._apply(fn, recurse)


def as_torch(tensor: CanonicalTensor) -> Tensor:
    """A tensor of a checkpoint in f32."""
    _, array, form = tensor
    return torch.from_numpy(np.array(widened(array, form)))
