"""One layer of the Llama layout in PyTorch, for drafts that are a layer on the target's hidden states.

The names of its parameters are those of published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["Attention", "FeedForward", "LayerShape", "RMSNorm", "rotary_tables", "rotate"]


@dataclass(frozen=True)
class LayerShape:
    """Dimensions of a layer.

    Attributes
    ----------
    d_model, n_head, n_kv_head, d_head, d_ff : int
        As in the core.
    rope_theta, norm_eps : float
        Base of the rotary frequencies; what is added inside the square root of a norm.
    """

    d_model: int
    n_head: int
    n_kv_head: int
    d_head: int
    d_ff: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    """x / rms(x) · weight, in f32."""

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] → [..., d_model]."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return y.to(x.dtype)


class FeedForward(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, shape: LayerShape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.up_proj = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.down_proj = nn.Linear(shape.d_ff, shape.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] → [..., d_model]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Rotary attention whose earlier steps are kept, as a draft's training-time test asks for.

    Parameters
    ----------
    shape : LayerShape
    d_input : int
        Columns of its input.
    """

    def __init__(self, shape: LayerShape, d_input: int):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(d_input, shape.n_head * shape.d_head, bias=False)
        self.k_proj = nn.Linear(d_input, shape.n_kv_head * shape.d_head, bias=False)
        self.v_proj = nn.Linear(d_input, shape.n_kv_head * shape.d_head, bias=False)
        self.o_proj = nn.Linear(shape.n_head * shape.d_head, shape.d_model, bias=False)

    def forward(self, x: Tensor, positions: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attention of the rows of one step.

        A row of the first step attends to its own and the earlier rows of that step. A row of a later step
        attends to the same rows of the first step, and of each later one to the row of its own index: these
        are its ancestors in a chain that was drafted after that row.

        Parameters
        ----------
        x : Tensor
            [batch, time, d_input].
        positions : Tensor
            [time].
        steps : list of (Tensor, Tensor)
            Keys and values of the steps before; those of this step are appended.

        Returns
        -------
        Tensor
            [batch, time, d_model].
        """
        s, (batch, time, _) = self.shape, x.shape
        cos, sin = rotary_tables(positions, s.d_head, s.rope_theta)
        q = rotate(self.q_proj(x).view(batch, time, s.n_head, s.d_head).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(batch, time, s.n_kv_head, s.d_head).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, time, s.n_kv_head, s.d_head).transpose(1, 2)
        n_group = s.n_head // s.n_kv_head
        k, v = k.to(v.dtype).repeat_interleave(n_group, dim=1), v.repeat_interleave(n_group, dim=1)
        q = q.to(v.dtype)
        steps.append((k, v))
        if len(steps) == 1:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            first_k, first_v = steps[0]
            scores = (q @ first_k.transpose(-1, -2)).float() * s.d_head**-0.5
            later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
            own = [(q * k_).sum(-1, keepdim=True).float() * s.d_head**-0.5 for k_, _ in steps[1:]]
            weights = torch.cat((scores, *own), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :time] @ first_v
            for i, (_, v_) in enumerate(steps[1:]):
                y = y + weights[..., time + i : time + i + 1] * v_
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, s.n_head * s.d_head))


def rotary_tables(positions: Tensor, d_head: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [time, d_head / 2] of rotary positions."""
    half = torch.arange(0, d_head, 2, dtype=torch.float32, device=positions.device) / d_head
    angle = torch.outer(positions.float(), theta**-half)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [batch, head, time, d_head], halves paired as Hugging Face does."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
