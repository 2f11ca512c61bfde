"""EAGLE-1 and EAGLE-3 in PyTorch: one layer that goes on where the target's hidden states end.

Row t of both reads the embedding of token t + 1 beside what is known after token t, and predicts token t + 2.
The names of the parameters are those of the published checkpoints (Li et al. 2024, 2025; for EAGLE-3 those of
SpecForge).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdec.learning.llama_layer import Attention, FeedForward, LayerShape, RMSNorm
from specdec.learning.target_ends import OnTarget, TargetEnds

__all__ = ["Eagle1", "Eagle3", "EagleShape"]


@dataclass(frozen=True)
class EagleShape:
    """Dimensions of an EAGLE draft.

    Attributes
    ----------
    layer : LayerShape
        ``d_model`` is the target's.
    n_vocab, n_draft_vocab : int
        Tokens of the target; tokens that can be guessed (EAGLE-3 alone; 0: all).
    taps : tuple of int
        Hidden states of the target that are read, by the layers behind them.
    """

    layer: LayerShape
    n_vocab: int
    taps: tuple[int, ...]
    n_draft_vocab: int = 0

    def __post_init__(self) -> None:
        if not self.n_draft_vocab:
            object.__setattr__(self, "n_draft_vocab", self.n_vocab)

    def llama_fields(self, n_ctx: int) -> dict[str, Any]:
        """The fields of ``config.json`` that a Llama configuration has."""
        s = self.layer
        return {
            "model_type": "llama", "hidden_act": "silu", "hidden_size": s.d_model,
            "intermediate_size": s.d_ff, "num_hidden_layers": 1, "num_attention_heads": s.n_head,
            "num_key_value_heads": s.n_kv_head, "head_dim": s.d_head, "vocab_size": self.n_vocab,
            "max_position_embeddings": n_ctx, "rope_theta": s.rope_theta, "rope_scaling": None,
            "rms_norm_eps": s.norm_eps, "attention_bias": False, "mlp_bias": False,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a checkpoint of a training keeps them."""
        return asdict(self)


class Eagle1(OnTarget):
    """EAGLE-1: predicts the feature after token t + 1, from which the target's head makes logits.

    A feature is what the target's head reads. Its layer has no norm of its input.
    """

    def __init__(self, shape: EagleShape, ends: TargetEnds):
        super().__init__(ends)
        self.shape = shape
        d, eps = shape.layer.d_model, shape.layer.norm_eps
        self.fc = nn.Linear(2 * d, d, bias=True)
        self.layers = nn.ModuleList([nn.Module()])
        layer = self.layers[0]
        layer.self_attn = Attention(shape.layer, d)
        layer.mlp = FeedForward(shape.layer)
        layer.post_attention_layernorm = RMSNorm(d, eps)
        _initialise(self)
        with torch.no_grad():
            self.fc.weight[:, d:] += torch.eye(d)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        """Features after the tokens `ids` [batch, time, d_model], made of those of one token before.

        Parameters
        ----------
        features : Tensor
            [batch, time, d_model] after tokens 0 … time - 1.
        ids : Tensor
            [batch, time] tokens 1 … time.
        """
        return next(self.steps(features, ids, 1))

    def steps(self, features: Tensor, ids: Tensor, n_steps: int) -> Iterator[Tensor]:
        """Features of several steps, of which each reads those of the step before, as drafting does.

        Parameters
        ----------
        features : Tensor
            [batch, time, d_model].
        ids : Tensor
            [batch, time + n_steps - 1] tokens from 1 on.
        n_steps : int

        Yields
        ------
        Tensor
            Of step i [batch, time, d_model]: row t is the feature after token t + i + 1.
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
    """EAGLE-3: three taps fused by ``fc``; the layer's own output goes on from step to step.

    Parameters
    ----------
    shape : EagleShape
    ends : TargetEnds
    draft_ids : Tensor, optional
        [n_draft_vocab] ascending token ids, for a reduced vocabulary.
    """

    def __init__(self, shape: EagleShape, ends: TargetEnds, draft_ids: Tensor | None = None):
        super().__init__(ends, draft_ids)
        self.shape = shape
        d, eps = shape.layer.d_model, shape.layer.norm_eps
        self.fc = nn.Linear(len(shape.taps) * d, d, bias=False)
        self.midlayer = nn.Module()
        self.midlayer.self_attn = Attention(shape.layer, 2 * d)
        self.midlayer.mlp = FeedForward(shape.layer)
        self.midlayer.hidden_norm = RMSNorm(d, eps)
        self.midlayer.input_layernorm = RMSNorm(d, eps)
        self.midlayer.post_attention_layernorm = RMSNorm(d, eps)
        self.norm = RMSNorm(d, eps)
        self.lm_head = nn.Linear(d, shape.n_draft_vocab, bias=False)
        _initialise(self)
        with torch.no_grad():  # it begins with the target's last tap and the target's head
            self.fc.weight[:, -d:] += torch.eye(d)
            self.lm_head.weight.copy_(ends.head if draft_ids is None else ends.head[draft_ids])

    def steps(self, taps: Tensor, ids: Tensor, n_steps: int) -> Iterator[Tensor]:
        """The layer's outputs of several steps, each fed the one before: the training-time test.

        Parameters
        ----------
        taps : Tensor
            [batch, time, n_taps · d_model] the target's hidden states after tokens 0 … time - 1, by tap.
        ids : Tensor
            [batch, time + n_steps - 1] tokens from 1 on.
        n_steps : int

        Yields
        ------
        Tensor
            Of step i [batch, time, d_model]: row t has read tokens up to t + i + 1.
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
