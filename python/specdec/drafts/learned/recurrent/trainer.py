"""The trainer of recurrent drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.checks import check_path
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.networks import learned_tensors
from specdec.drafts.learned.objective import Objective
from specdec.drafts.learned.recurrent.network import RecurrentNetwork, RecurrentShape
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.trainer import DraftTrainer
from specdec.training.training_texts import TextWriter


class RecurrentTrainer(DraftTrainer):
    """A draft whose step costs microseconds."""

    name = "recurrent"
    shape_type = RecurrentShape

    def network(self) -> RecurrentNetwork:
        if self.settings.begin is not None:
            network = read_recurrent(check_path("begin", self.settings.begin), self.target)
            self.check_begun(network.shape.fields())
            return network
        return RecurrentNetwork(self.target.config.n_vocab, self.shape)

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        return batch.mean(objective(batch.target, network(batch.ids)))

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network(batch.ids)
        return logits

    def is_table(self, name: str) -> bool:
        return True  # the gates of a cell are one matrix, which need not be orthogonal

    def export(self, network: Any, folder: Path) -> None:
        tensors = {name: tensor.detach().float().cpu().numpy() for name, tensor in network.tensors().items()}
        weights = LearnedWeights.of("recurrent", self.target, network.shape.fields(), tensors)
        weights.save(folder, self.settings.weights)

    def writer(self, network: Any, folder: Path) -> TextWriter:
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
    """Read the network of a recurrent draft's folder, trained for a target like this."""
    weights = LearnedWeights.of_method(folder, "recurrent", target)
    network = RecurrentNetwork(target.config.n_vocab, RecurrentShape.read(weights.fields))
    network.load_tensors(learned_tensors(weights, network.tensors()))
    return network


def _written(
    network: RecurrentNetwork,
    prompt: Sequence[int],
    length: int,
    temperature: float,
    rng: np.random.Generator,
    ends: set[int],
) -> list[int]:
    """Continue a prompt by the network itself, to `length` tokens or to the end of the text."""
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
