"""Trainer of recurrent drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.drafts.learned.networks import Objective, numbers_of, take_weights
from specdec.drafts.learned.recurrent.draft import RecurrentShape
from specdec.drafts.learned.recurrent.network import RecurrentNetwork
from specdec.training.trainer import Batch, LearnedTrainer
from specdec.training.training_texts import TextWriter


class RecurrentTrainer(LearnedTrainer):
    """Trains a recurrent draft."""

    name = method = "recurrent"
    shape_type = RecurrentShape

    def network(self) -> RecurrentNetwork:
        stored, shape = self.begun(), self.shape
        if stored is not None:
            shape = RecurrentShape.read(stored.fields)
            self.check_begun(asdict(shape))
        network = RecurrentNetwork(self.target.config.n_vocab, shape)
        if stored is not None:
            take_weights(network, stored)
        return network

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        return batch.mean(objective(batch.target, network(batch.ids)))

    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network(batch.ids)
        return logits

    def is_table(self, name: str) -> bool:
        return True  # Muon would orthogonalize the gates of a cell as one matrix

    def export(self, network: Any, folder: Path) -> None:
        self.save(folder, asdict(network.shape), numbers_of(network))

    def writer(self, network: Any, folder: Path) -> TextWriter:
        return partial(_written, network, set(self.target.eos_ids))


def _written(
    network: RecurrentNetwork, ends: set[int], prompts: Sequence[Sequence[int]], *, length: int,
    temperature: float, seed: Sequence[tuple[int, int]],
) -> list[list[int]]:  # fmt: skip
    """Continue prompts with the network, as a `TextWriter`, to `length` tokens or an end-of-text token."""
    texts = [list(prompt) for prompt in prompts]
    for text, key in zip(texts, seed, strict=True):
        rng, state, unread = np.random.default_rng(key), None, list(text)
        while len(text) < length and not (len(text) > len(unread) and unread[-1] in ends):
            with torch.no_grad():
                logits, state = network.step(torch.tensor([unread]), state)
            if temperature > 0.0:
                probs = (logits[0, -1].double() / temperature).softmax(-1).numpy()
                token = min(int(np.searchsorted(probs.cumsum(), rng.random())), len(probs) - 1)
            else:
                token = int(logits[0, -1].argmax())
            text.append(token)
            unread = [token]
    return texts
