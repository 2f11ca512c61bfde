"""Look-ahead embeddings (PaSS, Monea et al. 2023) in PyTorch, learned through a frozen target.

After a text follow L rows whose inputs are learned embeddings instead of tokens. The k-th of them predicts
the token k places after the next one. Gradients go through the layers of the target to the embeddings alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class LookAheadNetwork(nn.Module):
    """L embeddings after texts of a target, a decoder of transformers with rotary or learned positions.

    The target is frozen and not part of the state dict. They begin near the mean of the token table.
    """

    def __init__(self, target: Any, n_tokens: int):
        super().__init__()
        table = target.get_input_embeddings().weight.detach().float()
        noise = torch.randn(n_tokens, table.shape[1]) * table.std() * 0.1
        self.embeddings = nn.Parameter(table.mean(0) + noise)
        self._target = (target.eval().requires_grad_(False),)  # in a tuple it is no part of this module

    @property
    def target(self) -> Any:
        """The frozen model."""
        return self._target[0]

    def scale(self) -> float:
        """Return the factor of the target's input embeddings; its layers see the product."""
        options = {"output_hidden_states": True, "use_cache": False}
        with torch.no_grad():
            given = self.target.get_input_embeddings().weight.new_ones(1, 1, self.embeddings.shape[1])
            once, twice = (
                self.target(inputs_embeds=given * x, **options).hidden_states[0].float() for x in (1.0, 2.0)
            )
        return float((twice - once).mean())  # positions that are added are in both

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the target too."""
        self.target._apply(fn)
        return super()._apply(fn, recurse)

    def forward(self, ids: Tensor, points: Tensor, n_tokens: int = 0) -> tuple[Tensor, Tensor]:
        """Logits after the embeddings, or `n_tokens` of them, at some points of texts [batch, time].

        `points` [n_points] are the tokens after which they are put, in each text. The logits are [batch,
        n_points, L, n_vocab], of which entry (i, k - 1) is for the token k + 1 after point i; and those of
        the target itself, [batch, time, n_vocab], without a gradient.
        """
        used = self.embeddings[:n_tokens] if n_tokens else self.embeddings
        (batch, time), (n_tokens, d_model), n_points = ids.shape, used.shape, len(points)
        with torch.no_grad():  # the text does not see the embeddings: it is read once, for all points
            read = self.target(input_ids=ids, use_cache=True)
        rows = used.to(self.target.dtype).expand(batch, n_points, n_tokens, d_model)
        after = torch.arange(1, n_tokens + 1, device=ids.device)
        out = self.target(
            inputs_embeds=rows.reshape(batch, n_points * n_tokens, d_model),
            attention_mask=_mask(points, time, n_tokens, self.target.dtype).expand(batch, 1, -1, -1),
            position_ids=(points[:, None] + after).reshape(1, -1).expand(batch, -1),
            past_key_values=read.past_key_values,
            use_cache=True,
        )
        return out.logits.view(batch, n_points, n_tokens, -1), read.logits


def _mask(points: Tensor, time: int, n_tokens: int, dtype: torch.dtype) -> Tensor:
    """Mask [1, 1, n_points · L, time + n_points · L], 0 or the least number: of the text up to each point."""
    n_rows = len(points) * n_tokens
    text = torch.arange(time, device=points.device) <= points.repeat_interleave(n_tokens)[:, None]
    row = torch.arange(n_rows, device=points.device)
    same = row[:, None] // n_tokens == row // n_tokens
    seen = torch.cat((text, same & (row <= row[:, None])), dim=1)
    mask = torch.zeros(seen.shape, dtype=dtype, device=points.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[None, None]
