"""The trainer of look-ahead embeddings, which are learned through the frozen target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.look_ahead.network import LookAheadNetwork
from specdec.drafts.learned.networks import hf_folder, learned_tensors, open_decoder
from specdec.drafts.learned.objective import Objective
from specdec.errors import InputError
from specdec.training.batch import Batch
from specdec.training.trainer import DraftTrainer


@dataclass(frozen=True)
class LookAheadSettings:
    """Settings of look-ahead embeddings.

    Attributes
    ----------
    n_tokens : int
        L, draft tokens of a round.
    n_points : int
        Points of each text after which the embeddings are put, drawn again for each step.
    """

    n_tokens: int = 3
    n_points: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.n_tokens <= 32:
            raise InputError.of("n_tokens", self.n_tokens, "1 to 32")
        if self.n_points < 1:
            raise InputError.of("n_points", self.n_points, "1 or more")


class LookAheadTrainer(DraftTrainer):
    """L embeddings, L times d_model numbers: all that is learned."""

    name = "pass"
    shape_type = LookAheadSettings
    learning_rate = 3e-2

    def network(self) -> LookAheadNetwork:
        self._check_target()
        network = LookAheadNetwork(open_decoder(hf_folder(self.target)), self.shape.n_tokens)
        if self.settings.begin is not None:
            stored = LearnedWeights.of_method(Path(self.settings.begin), "look_ahead_embeddings", self.target)
            self.check_begun({"n_tokens": stored.fields.integer("n_tokens")})
            network.load_state_dict(learned_tensors(stored, network.state_dict()))
            with torch.no_grad():
                network.embeddings.div_(network.scale())
        return network

    def _check_target(self) -> None:
        """Refuse targets whose attention depends on more than a mask and positions."""
        config, length = self.target.config, self.settings.length + self.shape.n_tokens
        windows = [window for window in (config.sliding_window, *config.windows) if window]
        if config.alibi or config.relative_buckets:
            raise InputError(
                f"target {self.target.path} biases scores by distance; expected rotary or learned positions"
            )
        if windows and min(windows) < length:
            longest = min(windows) - self.shape.n_tokens
            raise InputError.of(
                "length", self.settings.length,
                f"at most {longest}, as target {self.target.path} has windows of {min(windows)} tokens",
            )  # fmt: skip

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        n_tokens, total = self.shape.n_tokens, batch.weights.new_zeros(())
        n_there = batch.ids.shape[1] - n_tokens
        if n_there < 1:
            raise InputError.of("length", batch.ids.shape[1], f"more than n_tokens, {n_tokens}")
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
        tensors = {"embeddings": (network.embeddings.float() * network.scale()).numpy(force=True)}
        fields = {"n_tokens": self.shape.n_tokens}
        weights = LearnedWeights.of("look_ahead_embeddings", self.target, fields, tensors)
        weights.save(folder, self.settings.weights)
