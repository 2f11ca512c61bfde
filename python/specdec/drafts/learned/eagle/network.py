"""EAGLE-1 and EAGLE-3 in PyTorch: one layer that continues from the target's hidden states.

Row t of both reads the embedding of token t + 1 next to what is known after token t, and predicts token
t + 2. The names of the parameters are those of the published checkpoints (Li et al. 2024, 2025; for EAGLE-3
those of SpecForge).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from specdec.drafts.learned.networks import OnTarget, TargetEnds

_ROPE_THETA, _NORM_EPS = 10000.0, 1e-5


@dataclass(frozen=True)
class EagleShape:
    """Dimensions of an EAGLE draft."""

    d_model: int
    n_vocab: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    taps: tuple[int, ...]  # hidden states of the target that are read, by the number of layers before them
    n_draft_vocab: int  # tokens that can be drafted

    def llama_fields(self, n_ctx: int) -> dict[str, Any]:
        """The fields of ``config.json`` that a Llama configuration has."""
        return {
            "model_type": "llama", "hidden_act": "silu", "hidden_size": self.d_model,
            "intermediate_size": self.d_ff, "num_hidden_layers": 1, "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads, "head_dim": self.d_head, "vocab_size": self.n_vocab,
            "max_position_embeddings": n_ctx, "rope_theta": _ROPE_THETA, "rope_scaling": None,
            "rms_norm_eps": _NORM_EPS, "attention_bias": False, "mlp_bias": False,
        }  # fmt: skip


def _norm(d_model: int) -> nn.RMSNorm:
    return nn.RMSNorm(d_model, eps=_NORM_EPS)


class FeedForward(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, shape: EagleShape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.up_proj = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.down_proj = nn.Linear(shape.d_ff, shape.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] → [..., d_model]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Rotary attention over `d_input` columns whose earlier steps are kept, for the training-time test."""

    def __init__(self, shape: EagleShape, d_input: int):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(d_input, shape.n_heads * shape.d_head, bias=False)
        self.k_proj = nn.Linear(d_input, shape.n_kv_heads * shape.d_head, bias=False)
        self.v_proj = nn.Linear(d_input, shape.n_kv_heads * shape.d_head, bias=False)
        self.o_proj = nn.Linear(shape.n_heads * shape.d_head, shape.d_model, bias=False)

    def forward(self, x: Tensor, positions: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attention [batch, time, d_model] of the rows [batch, time, d_input] of one step.

        A row of the first step attends to its own and the earlier rows of that step. A row of a later step
        attends to the same rows of the first step, and of each later one to the row of its own index: these
        are its ancestors in a chain that was drafted after that row. Keys and values are appended to `steps`.
        """
        s, (batch, time, _) = self.shape, x.shape
        q = rotate(self.q_proj(x).view(batch, time, s.n_heads, s.d_head).transpose(1, 2), positions)
        k = rotate(self.k_proj(x).view(batch, time, s.n_kv_heads, s.d_head).transpose(1, 2), positions)
        v = self.v_proj(x).view(batch, time, s.n_kv_heads, s.d_head).transpose(1, 2)
        n_group = s.n_heads // s.n_kv_heads
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
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, s.n_heads * s.d_head))


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions [time] on [batch, head, time, d_head], halves paired as Hugging Face does."""
    half = torch.arange(0, x.shape[-1], 2, dtype=torch.float32, device=x.device) / x.shape[-1]
    angle = torch.outer(positions.float(), _ROPE_THETA**-half)
    (first, second), cos, sin = x.float().chunk(2, dim=-1), angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Eagle1(OnTarget):
    """EAGLE-1: predicts the feature after token t + 1, from which the target's head makes logits.

    A feature is what the target's head reads. Its layer has no norm of its input.
    """

    def __init__(self, shape: EagleShape, ends: TargetEnds):
        super().__init__(ends)
        self.shape = shape
        d = shape.d_model
        self.fc = nn.Linear(2 * d, d, bias=True)
        self.layers = nn.ModuleList([nn.Module()])
        layer = self.layers[0]
        layer.self_attn = Attention(shape, d)
        layer.mlp = FeedForward(shape)
        layer.post_attention_layernorm = _norm(d)
        _initialise(self)
        with torch.no_grad():
            self.fc.weight[:, d:] += torch.eye(d)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        """Features after the tokens 1 to time, `ids`, from those [batch, time, d_model] one token before."""
        return next(self.steps(features, ids, 1))

    def steps(self, features: Tensor, ids: Tensor, n_steps: int) -> Iterator[Tensor]:
        """Features of several steps, each of which reads those of the step before, as drafting does.

        `ids` is [batch, time + n_steps - 1], tokens from 1. Row t of step i is the feature after token
        t + i + 1.
        """
        layer, time = self.layers[0], features.shape[1]
        kept: list[tuple[Tensor, Tensor]] = []
        for step in range(n_steps):
            embedded = self.ends.embed(ids[:, step : step + time]).to(features.dtype)
            x = self.fc(torch.cat((embedded, features), dim=-1)).float()
            positions = torch.arange(step, step + time, device=ids.device)
            x = x + layer.self_attn(x, positions, kept)
            features = x + layer.mlp(layer.post_attention_layernorm(x))
            yield features

    def logits(self, features: Tensor) -> Tensor:
        """[..., n_vocab], by the target's head."""
        return self.ends.logits(features)


class Eagle3(OnTarget):
    """EAGLE-3: three hidden states fused by ``fc``; the layer's own output continues from step to step."""

    def __init__(self, shape: EagleShape, ends: TargetEnds, draft_ids: Tensor | None = None):
        super().__init__(ends, draft_ids)
        self.shape = shape
        d = shape.d_model
        self.fc = nn.Linear(len(shape.taps) * d, d, bias=False)
        self.midlayer = nn.Module()
        self.midlayer.self_attn = Attention(shape, 2 * d)
        self.midlayer.mlp = FeedForward(shape)
        self.midlayer.hidden_norm = _norm(d)
        self.midlayer.input_layernorm = _norm(d)
        self.midlayer.post_attention_layernorm = _norm(d)
        self.norm = _norm(d)
        self.lm_head = nn.Linear(d, shape.n_draft_vocab, bias=False)
        _initialise(self)
        with torch.no_grad():  # it begins with the target's last tap and the target's head
            self.fc.weight[:, -d:] += torch.eye(d)
            self.lm_head.weight.copy_(ends.head if draft_ids is None else ends.head[draft_ids])

    def steps(self, taps: Tensor, ids: Tensor, n_steps: int) -> Iterator[Tensor]:
        """Outputs of the layer for several steps, each of which reads the one before: the training-time test.

        `taps` is [batch, time, n_taps · d_model], after tokens 0 to time - 1; `ids` is as of `Eagle1`. Row t
        of step i, [batch, time, d_model], has read tokens up to t + i + 1.
        """
        layer, time = self.midlayer, taps.shape[1]
        kept: list[tuple[Tensor, Tensor]] = []
        hidden = self.fc(taps).float()
        for step in range(n_steps):
            embedded = self.ends.embed(ids[:, step : step + time]).to(hidden.dtype)
            x = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), dim=-1)
            positions = torch.arange(step, step + time, device=ids.device)
            hidden = hidden + layer.self_attn(x, positions, kept)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            yield hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., n_draft_vocab] of outputs of the layer."""
        return self.lm_head(self.norm(hidden))


def _initialise(module: nn.Module) -> None:
    """Small matrices; what a half of the layer adds begins at zero."""
    for name, weight in module.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
        if name.endswith(("o_proj.weight", "down_proj.weight")) or name == "fc.bias":
            nn.init.zeros_(weight)
