"""Kind "recurrent": a gated recurrent unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec import drafts
from specdec.checks import check_path
from specdec.drafts.draft import Draft
from specdec.drafts.learnt.folder import LearntWeights
from specdec.learning.recurrent_network import RecurrentNetwork, RecurrentShape
from specdec.learning.target_law import Objective
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.draft_folder import learnt_tensors
from specdec.training.kind import Kind
from specdec.training.written_texts import TextWriter

__all__ = ["RecurrentKind", "read_recurrent"]


class RecurrentKind(Kind):
    """A draft whose step costs microseconds."""

    name = "recurrent"
    shape_type = RecurrentShape
    learning_rate = 4e-3

    def network(self) -> RecurrentNetwork:
        """See `Kind.network`."""
        if self.settings.begin is not None:
            network = read_recurrent(check_path("begin", self.settings.begin), self.target)
            self.check_begun(network.shape.fields())
            return network
        return RecurrentNetwork(self.target.config.n_vocab, self.shape)

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """See `Kind.loss`."""
        return batch.mean(objective(batch.law, network(batch.ids)))

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """See `Kind.first_guess`."""
        logits: Tensor = network(batch.ids)
        return logits

    def is_table(self, name: str) -> bool:
        """See `Kind.is_table`: the gates of a cell lie in one matrix, which need not be orthogonal."""
        return True

    def export(self, network: Any, folder: Path) -> None:
        """See `Kind.export`."""
        tensors = {name: tensor.detach().float().cpu().numpy() for name, tensor in network.tensors().items()}
        fields = network.shape.fields()
        LearntWeights.of("recurrent", self.target, fields, tensors).save(folder, self.settings.weights)

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """See `Kind.open`."""
        return self.target, drafts.load(folder, self.target)

    def writer(self, network: Any, folder: Path) -> TextWriter:
        """See `Kind.writer`: the draft as it is now, run by torch."""
        ends = set(self.target.eos_ids)

        def write(
            prompts: Sequence[Sequence[int]],
            *,
            length: int,
            temperature: float,
            seed: Sequence[tuple[int, int]],
        ) -> list[list[int]]:
            return [
                _written(network, prompt, length, temperature, np.random.default_rng(key), ends)
                for prompt, key in zip(prompts, seed, strict=True)
            ]

        return write


def read_recurrent(folder: Path, target: Model) -> RecurrentNetwork:
    """The network of a recurrent draft's folder, trained for a target like this.

    Raises
    ------
    CheckpointError, InputError
        The folder is damaged, of another method, or of another target.
    """
    weights = LearntWeights.read(folder)
    weights.check_method("recurrent")
    weights.check_target(target)
    network = RecurrentNetwork(target.config.n_vocab, RecurrentShape.read(weights.fields))
    network.load_tensors(learnt_tensors(weights, network.tensors()))
    return network


def _written(
    network: RecurrentNetwork,
    prompt: Sequence[int],
    length: int,
    temperature: float,
    rng: np.random.Generator,
    ends: set[int],
) -> list[int]:
    """A text of the network's own: the prompt, continued to `length` tokens or to its end."""
    text, state, unread = list(prompt), None, list(prompt)
    with torch.no_grad():
        while len(text) < length:
            logits, state = network.step(torch.tensor([unread]), state)
            if temperature > 0.0:
                probs = (logits[0, -1].double() / temperature).softmax(-1).numpy()
                token = min(int(np.searchsorted(probs.cumsum(), rng.random())), len(probs) - 1)
            else:
                token = int(logits[0, -1].argmax())
            text.append(token)
            unread = [token]
            if token in ends:
                break
    return text
