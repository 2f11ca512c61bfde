"""Network and trainer of look-ahead embeddings (PaSS, Monea et al. 2023).

L learned embeddings follow a text; the k-th predicts the k-th token after the next one. Gradients flow
through the frozen target to the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from specdec.drafts.learned.networks import Objective, hf_folder, numbers_of, open_decoder, take_weights
from specdec.errors import InputError
from specdec.settings_table import integer
from specdec.training.trainer import Batch, LearnedTrainer


class LookAheadNetwork(nn.Module):
    """L embeddings for a frozen transformers decoder, which is not in the state dict."""

    def __init__(self, target: Any, n_tokens: int):
        super().__init__()
        table = target.get_input_embeddings().weight.detach().float()
        noise = torch.randn(n_tokens, table.shape[1]) * table.std() * 0.1
        self.embeddings = nn.Parameter(table.mean(0) + noise)
        self._target = (target.eval().requires_grad_(False),)  # the tuple hides it from the state dict

    @property
    def target(self) -> Any:
        """The frozen target."""
        return self._target[0]

    def scale(self) -> float:
        """Return the scale that the target applies to its input embeddings."""
        options = {"output_hidden_states": True, "use_cache": False}
        with torch.no_grad():
            given = self.target.get_input_embeddings().weight.new_ones(1, 1, self.embeddings.shape[1])
            once, twice = (
                self.target(inputs_embeds=given * x, **options).hidden_states[0].float() for x in (1.0, 2.0)
            )
        return float((twice - once).mean())  # added positions cancel out

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the target too."""
        self.target._apply(fn)
        return super()._apply(fn, recurse)

    def forward(self, ids: Tensor, points: Tensor, n_tokens: int = 0) -> tuple[Tensor, Tensor]:
        """Return logits at the first `n_tokens` embeddings (0: all), placed in texts [batch, time].

        The embeddings follow each of the tokens `points` [n_points]. The logits are [batch, n_points, L,
        n_vocab]; entry (i, k - 1) is for the token k + 1 after point i. Also return the target's logits
        [batch, time, n_vocab], without gradient.
        """
        used = self.embeddings[:n_tokens] if n_tokens else self.embeddings
        (batch, time), (n_tokens, d_model), n_points = ids.shape, used.shape, len(points)
        with torch.no_grad():  # the text does not attend to the embeddings, so one pass serves all points
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
    """Return the additive mask [1, 1, n_points · L, time + n_points · L]: the text up to each point."""
    n_rows = len(points) * n_tokens
    text = torch.arange(time, device=points.device) <= points.repeat_interleave(n_tokens)[:, None]
    row = torch.arange(n_rows, device=points.device)
    same = row[:, None] // n_tokens == row // n_tokens
    seen = torch.cat((text, same & (row <= row[:, None])), dim=1)
    mask = torch.zeros(seen.shape, dtype=dtype, device=points.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[None, None]


@dataclass(frozen=True)
class LookAheadSettings:
    """Settings of look-ahead embeddings."""

    n_tokens: int = integer(3, 1, 32)  # L, draft tokens per round
    n_points: int = integer(32, 1)  # positions per text for the embeddings, redrawn for each step


class LookAheadTrainer(LearnedTrainer):
    """Trains L embeddings."""

    name = "pass"
    method = "look_ahead_embeddings"
    shape_type = LookAheadSettings
    learning_rate = 3e-2

    def network(self) -> LookAheadNetwork:
        # Attention may depend on a mask and on positions only.
        n_tokens, length = self.shape.n_tokens, self.settings.length
        if length <= n_tokens:
            raise InputError.of("length", length, f"more than n_tokens, {n_tokens}")
        config, length = self.target.config, length + n_tokens
        windows = [window for window in (config.sliding_window, *config.windows) if window]
        if config.alibi or config.relative_buckets:
            expected = "rotary or learned positions"
            raise InputError.of("target", self.target.path, expected, "biased by distance")
        if windows and min(windows) < length:
            most = min(windows) - n_tokens
            expected = f"at most {most}, as target {self.target.path} has windows of {min(windows)} tokens"
            raise InputError.of("length", self.settings.length, expected)
        network = LookAheadNetwork(open_decoder(hf_folder(self.target)), n_tokens)
        if (stored := self.begun()) is not None:
            self.check_begun({"n_tokens": stored.fields.integer("n_tokens")})
            take_weights(network, stored)
            with torch.no_grad():
                network.embeddings.div_(network.scale())
        return network

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        n_tokens, total = self.shape.n_tokens, batch.weights.new_zeros(())
        n_there = batch.ids.shape[1] - n_tokens
        points = torch.randperm(n_there, device=batch.ids.device)[: self.shape.n_points].sort().values
        logits, _ = network(batch.ids, points)
        weights = torch.stack([batch.weights[:, points + k] for k in range(1, n_tokens + 1)], dim=-1)
        for k in range(1, n_tokens + 1):
            found = objective(batch.target[:, points + k], logits[:, :, k - 1])
            total = total + (found * weights[..., k - 1]).sum()
        return total / weights.sum().clamp(min=1e-9)

    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        points = torch.arange(batch.ids.shape[1] - 1, device=batch.ids.device)
        logits, _ = network(batch.ids, points, 1)
        return F.pad(logits[:, :, 0], (0, 0, 1, 0))  # uniform before the first token

    def is_table(self, name: str) -> bool:
        return True

    def export(self, network: Any, folder: Path) -> None:
        numbers = {name: array * network.scale() for name, array in numbers_of(network).items()}
        self.save(folder, {"n_tokens": self.shape.n_tokens}, numbers)
