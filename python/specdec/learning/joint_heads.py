"""Heads that are tuned together with their target (Medusa-2, Cai et al. 2024, section 2.2.2)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from specdec.learning.heads_network import HeadsNetwork, HeadsShape
from specdec.learning.target_ends import TargetEnds

__all__ = ["JointHeads"]


class JointHeads(nn.Module):
    """A target of transformers and heads on it, which all learn.

    Parameters
    ----------
    target : transformers.PreTrainedModel
        A decoder; its weights change.
    shape : HeadsShape
        With all of the target's tokens.
    scale, softcap : float
        Of the target's logits.
    """

    def __init__(self, target: Any, shape: HeadsShape, scale: float = 1.0, softcap: float = 0.0):
        super().__init__()
        self.target = target
        output = target.get_output_embeddings()
        table = target.get_input_embeddings().weight
        ends = TargetEnds(table, output.weight, getattr(output, "bias", None), scale, softcap)
        self.heads = HeadsNetwork(shape, ends)

    def read(self, ids: Tensor, learn: bool = True) -> tuple[Tensor, Tensor]:
        """The target on texts.

        Parameters
        ----------
        ids : Tensor
            [batch, time].
        learn : bool
            With gradients of the target.

        Returns
        -------
        (Tensor, Tensor)
            [batch, time, d_model] what its head reads; [batch, time, n_vocab] its logits.
        """
        seen: list[Tensor] = []
        head = self.target.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            with nullcontext() if learn else torch.no_grad():
                logits = self.target(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()
        return seen[-1], logits
