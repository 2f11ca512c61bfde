"""Decoding heads in PyTorch.

Covers Medusa (Cai et al. 2024), blockwise parallel decoding, which shares the target's output matrix (Stern
et al. 2018), and Hydra, which also reads the root and earlier draft tokens (Ankner et al. 2024). The root is
the last token of the text; ``hidden`` is the input of the target's head after the token before it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from specdec.drafts.learned.heads.draft import HeadsShape
from specdec.drafts.learned.networks import OnTarget, TargetEnds
from specdec.errors import InputError


class _Head(nn.Module):
    """One head without the target's matrices."""

    def __init__(self, shape: HeadsShape, n_seen: int):
        super().__init__()
        d = shape.d_model
        if n_seen:
            self.input = nn.Linear((1 + n_seen) * d, d, bias=False)
            nn.init.normal_(self.input.weight, std=0.02)
            with torch.no_grad():
                self.input.weight[:, :d] = torch.eye(d)  # starts near the hidden state itself
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(shape.n_blocks))
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)
        if not shape.shared_output:
            self.output = nn.Linear(d, shape.n_draft_vocab, bias=False)


class HeadsNetwork(OnTarget):
    """Heads initialized to the target's own; the state dict has the tensors of the draft's folder."""

    def __init__(self, shape: HeadsShape, ends: TargetEnds, draft_ids: Tensor | None = None):
        super().__init__(ends, draft_ids)
        self.shape = shape
        self.heads = nn.ModuleList(
            _Head(shape, k if shape.see_draft_tokens else 0) for k in range(1, shape.n_heads + 1)
        )
        if not shape.shared_output:
            rows = ends.head if draft_ids is None else ends.head[draft_ids]
            with torch.no_grad():
                for head in self.heads:
                    head.output.weight.copy_(rows)

    def forward(self, hidden: Tensor, seen: Tensor | None = None, k: int = 1) -> Tensor:
        """Return logits [..., n_draft_vocab] of the `k`-th token after the root, k from 1.

        `hidden` [..., d_model] is the input of the target's head after the token before the root; `seen`
        [..., k] are the root and the k - 1 tokens after it, for ``see_draft_tokens``.
        """
        head, x = self.heads[k - 1], hidden
        if self.shape.see_draft_tokens:
            if seen is None:
                raise InputError.of("seen", seen, "ids, as these heads read earlier draft tokens")
            x = head.input(torch.cat((hidden, self.ends.embed(seen).flatten(-2)), dim=-1))
        for block in head.blocks:
            x = x + F.silu(block(x))
        return self.ends.logits(x, self.draft_ids) if self.shape.shared_output else head.output(x)


class JointHeads(nn.Module):
    """A transformers decoder and heads on it, trained jointly (Medusa-2, section 2.2.2)."""

    def __init__(self, target: Any, shape: HeadsShape, scale: float = 1.0, softcap: float = 0.0):
        super().__init__()
        self.target = target
        output = target.get_output_embeddings()
        table = target.get_input_embeddings().weight
        ends = TargetEnds(table, output.weight, getattr(output, "bias", None), scale, softcap)
        self.heads = HeadsNetwork(shape, ends)

    def read(self, ids: Tensor, learn: bool = True) -> tuple[Tensor, Tensor]:
        """Return the target head's inputs and logits for texts [batch, time], with gradients if `learn`."""
        seen: list[Tensor] = []
        head = self.target.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            with nullcontext() if learn else torch.no_grad():
                logits = self.target(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()
        return seen[-1], logits
