"""The trainer of look-ahead embeddings, which are learned through the frozen target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from specdec.drafts.learned.look_ahead.network import LookAheadNetwork
from specdec.drafts.learned.networks import hf_folder, numbers_of, open_decoder, take_weights
from specdec.drafts.learned.objective import Objective
from specdec.errors import InputError
from specdec.settings_table import check_settings, integer
from specdec.training.batch import Batch
from specdec.training.trainer import LearnedTrainer


@dataclass(frozen=True)
class LookAheadSettings:
    """Settings of look-ahead embeddings."""

    n_tokens: int = integer(3, 1, 32)  # L, draft tokens of a round
    n_points: int = integer(32, 1)  # of each text, after which they are put, drawn again for each step
    __post_init__ = check_settings


class LookAheadTrainer(LearnedTrainer):
    """L embeddings, L times d_model numbers: all that is learned."""

    name = "pass"
    method = "look_ahead_embeddings"
    shape_type = LookAheadSettings
    learning_rate = 3e-2

    def network(self) -> LookAheadNetwork:
        self._check_target()
        network = LookAheadNetwork(open_decoder(hf_folder(self.target)), self.shape.n_tokens)
        if (stored := self.begun()) is not None:
            self.check_begun({"n_tokens": stored.fields.integer("n_tokens")})
            take_weights(network, stored)
            with torch.no_grad():
                network.embeddings.div_(network.scale())
        return network

    def _check_target(self) -> None:
        """Refuse targets whose attention depends on more than a mask and positions."""
        n_tokens, length = self.shape.n_tokens, self.settings.length
        if length <= n_tokens:
            raise InputError.of("length", length, f"more than n_tokens, {n_tokens}")
        config, length = self.target.config, length + n_tokens
        windows = [window for window in (config.sliding_window, *config.windows) if window]
        if config.alibi or config.relative_buckets:
            raise InputError(
                f"target {self.target.path} biases scores by distance; expected rotary or learned positions"
            )
        if windows and min(windows) < length:
            most = min(windows) - n_tokens
            expected = f"at most {most}, as target {self.target.path} has windows of {min(windows)} tokens"
            raise InputError.of("length", self.settings.length, expected)

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        n_tokens, total = self.shape.n_tokens, batch.weights.new_zeros(())
        n_there = batch.ids.shape[1] - n_tokens
        points = torch.randperm(n_there, device=batch.ids.device)[: self.shape.n_points].sort().values
        guesses, _ = network(batch.ids, points)
        weights = torch.stack([batch.weights[:, points + k] for k in range(1, n_tokens + 1)], dim=-1)
        for k in range(1, n_tokens + 1):
            found = objective(batch.target[:, points + k], guesses[:, :, k - 1])
            total = total + (found * weights[..., k - 1]).sum()
        return total / weights.sum().clamp(min=1e-9)

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        points = torch.arange(batch.ids.shape[1] - 1, device=batch.ids.device)
        guesses, _ = network(batch.ids, points, 1)
        return F.pad(guesses[:, :, 0], (0, 0, 1, 0))  # uniform before the first token

    def is_table(self, name: str) -> bool:
        return True

    def export(self, network: Any, folder: Path) -> None:
        numbers = {name: array * network.scale() for name, array in numbers_of(network).items()}
        self.save(folder, {"n_tokens": self.shape.n_tokens}, numbers)
