"""Kind "pass", named after its paper (PaSS): look-ahead embeddings, learnt through the frozen target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from specdec.drafts.draft import Draft
from specdec.drafts.learnt.folder import LearntWeights
from specdec.drafts.opening import load as load_draft
from specdec.errors import InputError
from specdec.learning.hugging_face import open_decoder
from specdec.learning.look_ahead_network import LookAheadNetwork
from specdec.learning.target_law import Objective
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.draft_folder import hf_folder, learnt_tensors
from specdec.training.kind import Kind

__all__ = ["LookAheadKind", "LookAheadSettings"]


@dataclass(frozen=True)
class LookAheadSettings:
    """What can be set of look-ahead embeddings.

    Attributes
    ----------
    n_tokens : int
        L, guesses of a round.
    n_points : int
        Points of each text behind which guesses are learnt, drawn anew for each step.
    """

    n_tokens: int = 3
    n_points: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.n_tokens <= 32 or self.n_points < 1:
            raise InputError(
                f"--set n_tokens={self.n_tokens}, n_points={self.n_points}; expected 1 to 32, and 1 or more"
            )


class LookAheadKind(Kind):
    """L embeddings, L times d_model numbers: all that is learnt."""

    name = "pass"
    shape_type = LookAheadSettings
    learning_rate = 3e-2

    def network(self) -> LookAheadNetwork:
        """See `Kind.network`."""
        self._check_target()
        network = LookAheadNetwork(open_decoder(hf_folder(self.target)), self.shape.n_tokens)
        if self.settings.begin is not None:
            stored = LearntWeights.read(Path(self.settings.begin))
            stored.check_method("look_ahead_embeddings")
            stored.check_target(self.target)
            self.check_begun({"n_tokens": stored.fields.integer("n_tokens")})
            network.load_state_dict(learnt_tensors(stored, network.state_dict()))
            with torch.no_grad():
                network.embeddings.div_(network.scale())
        return network

    def _check_target(self) -> None:
        """Refuse targets whose attention does not go by a mask and positions alone."""
        config, length = self.target.config, self.settings.length + self.shape.n_tokens
        windows = [window for window in (config.sliding_window, *config.windows) if window]
        if config.alibi or config.relative_buckets:
            raise InputError(
                f"target {self.target.path} biases scores by distance; expected rotary or learned positions"
            )
        if windows and min(windows) < length:
            raise InputError(
                f"target {self.target.path} has windows of {min(windows)} tokens; expected shorter texts: "
                f"--length at most {min(windows) - self.shape.n_tokens}"
            )

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """See `Kind.loss`: guess k behind a point against the law of the token k behind the next one."""
        n_tokens, total = self.shape.n_tokens, batch.weights.new_zeros(())
        n_there = batch.ids.shape[1] - n_tokens
        if n_there < 1:
            raise InputError(
                f"texts have {batch.ids.shape[1]} tokens; expected more than n_tokens={n_tokens}"
            )
        points = torch.randperm(n_there, device=batch.ids.device)[: self.shape.n_points].sort().values
        guesses, _ = network(batch.ids, points)
        weights = torch.stack([batch.weights[:, points + k] for k in range(1, n_tokens + 1)], dim=-1)
        for k in range(1, n_tokens + 1):
            found = objective(batch.law[:, points + k], guesses[:, :, k - 1])
            total = total + (found * weights[..., k - 1]).sum()
        return total / weights.sum().clamp(min=1e-9)

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """See `Kind.first_guess`; behind nothing there is no guess, and it is uniform."""
        points = torch.arange(batch.ids.shape[1] - 1, device=batch.ids.device)
        guesses, _ = network(batch.ids, points, 1)
        return F.pad(guesses[:, :, 0], (0, 0, 1, 0))

    def is_table(self, name: str) -> bool:
        """See `Kind.is_table`."""
        return True

    def export(self, network: Any, folder: Path) -> None:
        """See `Kind.export`."""
        tensors = {"embeddings": (network.embeddings.float() * network.scale()).numpy(force=True)}
        fields = {"n_tokens": self.shape.n_tokens}
        LearntWeights.of("look_ahead_embeddings", self.target, fields, tensors).save(
            folder, self.settings.weights
        )

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """See `Kind.open`."""
        return self.target, load_draft(folder, self.target)
