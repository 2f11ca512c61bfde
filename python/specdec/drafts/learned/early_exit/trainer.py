"""The trainer of early exits: the target is tuned so that its first layers draft for it (LayerSkip)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from specdec.analysis.tune import tune
from specdec.atomic_file import write_json
from specdec.checks import check_integer
from specdec.drafts.draft import Draft
from specdec.drafts.learned.early_exit.draft import EXIT_NAME, EarlyExit
from specdec.drafts.learned.early_exit.network import Curriculum, ExitNetwork, exit_weights, layer_dropout
from specdec.drafts.learned.networks import hf_folder, open_decoder, write_decoder
from specdec.drafts.learned.objective import Objective
from specdec.errors import InputError, number_of
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.settings_table import check_settings, choice, flag, integer, number
from specdec.training.batch import Batch, softmax
from specdec.training.trainer import DraftTrainer
from specdec.training.training_texts import Texts

_MAX_GAMMA = 6  # of those that are timed
_SHARE: Any = ("a number from 0 to 1", lambda x: 0.0 <= x <= 1.0)


@dataclass(frozen=True)
class ExitShape:
    """Settings of the tuning."""

    layer: int = integer(0, 0)  # layers of the exit; 0: the one that decodes fastest in the end is chosen
    dropout: float = number(0.1, *_SHARE)  # p_max, the chance that the last layer is skipped for a text
    rising: bool = flag()  # dropout rises from 0, as in the paper for models that are trained from scratch
    curriculum: str = choice("rotational", get_args(Curriculum))  # which exits have a loss in a step
    scale: float = number(0.2, *_SHARE)  # e_scale, how much the exits before the last weigh
    period: int = integer(2, 1)  # of "rotational"
    __post_init__ = check_settings


class ExitTrainer(DraftTrainer):
    """Fine-tuning of the target itself; every other method leaves it as it is.

    Every exit learns the distribution that the target had before training; the paper has the next token of
    the text: on average over the target's own texts that is the same, with less noise, and the last exit
    stays where it was.
    """

    name = "exit"
    shape_type = ExitShape
    learning_rate = 2e-4

    def __init__(self, target: Model, settings: Any) -> None:
        super().__init__(target, settings)
        n_layer = target.config.n_layer
        check_integer("layer", self.shape.layer, 0, n_layer - 1)
        if settings.data not in ("target", "text") or settings.after:
            raise InputError.of("data", settings.data, "'target' or 'text', and no drafts in after")
        self._folder = hf_folder(target)
        self._layer = self.shape.layer or max(1, n_layer // 2)

    def network(self) -> ExitNetwork:
        begin = self._folder if self.settings.begin is None else Path(self.settings.begin)
        return ExitNetwork(open_decoder(begin))

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        shape, n_layer = self.shape, network.n_layer
        chances = torch.tensor(
            [layer_dropout(i, n_layer, progress, shape.dropout, rising=shape.rising) for i in range(n_layer)]
        )
        skips = torch.rand(n_layer, len(batch.ids)) < chances[:, None]
        states = network.states(batch.ids, skips.to(batch.ids.device))
        weights = exit_weights(
            n_layer, batch.step, progress, curriculum=shape.curriculum, scale=shape.scale, period=shape.period
        )
        losses = [
            weight * batch.mean(objective(batch.target, network.exit_logits(state)))
            for weight, state in zip(weights, states, strict=True)
            if weight
        ]
        return torch.stack(losses).sum()

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network.exit_logits(network.states(batch.ids)[self._layer - 1])
        return logits

    def target_logits(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network.exit_logits(network.states(batch.ids)[-1])
        return logits

    def export(self, network: Any, folder: Path) -> None:
        write_decoder(network.model, self.target, folder, self.settings.weights)
        write_json(folder / EXIT_NAME, {"layer": self._layer, "gamma": self.gamma})

    def finish(self, folder: Path, texts: Texts) -> None:
        tuned = load(folder)
        prompts = [
            texts.ids[i, : max(1, int(texts.ends[i]) // 4)].tolist() for i in range(min(4, len(texts)))
        ]
        exits = [EarlyExit(self.shape.layer)] if self.shape.layer else EarlyExit.exits(tuned)
        self.say(f"Timing exits: {number_of(len(exits), 'layer')} with gammas to {_MAX_GAMMA} each.")
        found = tune(
            tuned, exits, prompts, max_gamma=_MAX_GAMMA, n_tokens=len(prompts) * (texts.ids.shape[1] // 2),
            seed=self.settings.seed, n_threads=self.settings.threads,
        )  # fmt: skip
        timed = [
            (ran.speedup.median, one.choice.layer, gamma)
            for one in (found, *found.others)
            for gamma, ran in one.ran.items()
            if ran.speedup is not None and not ran.speedup.invalid
        ]
        fastest, self._layer, self.gamma = max(timed, default=(0.0, self._layer, self.gamma))
        write_json(folder / EXIT_NAME, {"layer": self._layer, "gamma": self.gamma})
        tried = f"{number_of(self._layer, 'layer')}, gamma {self.gamma}, speed-up {fastest:.2f}"
        self.words = (
            f"the target itself was trained: its texts are those of {folder}, no longer {self.target.path}'s",
            _moved(self.target, tuned, texts, self.settings.threads),
            f"fastest greedy exit: {tried}"
            if fastest > 1.0
            else f"no exit pays: plain decoding of {folder} is faster than its fastest exit ({tried})",
        )

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        return load(folder), EarlyExit(self._layer)

    def is_table(self, name: str) -> bool:
        return True


def _moved(target: Model, tuned: Model, texts: Texts, n_threads: int) -> str:
    """Say how far the distributions of the trained target are from what they were, on texts of its own."""
    far, equal, n = 0.0, 0, 0
    for i in range(len(texts)):
        ids = texts.ids[i, : texts.ends[i]]
        probs = [softmax(model.logits(ids, n_threads=n_threads)) for model in (target, tuned)]
        far += float((probs[0] * (np.log(probs[0] + 1e-300) - np.log(probs[1] + 1e-300))).sum())
        equal += int((probs[0].argmax(-1) == probs[1].argmax(-1)).sum())
        n += len(ids)
    same = f"its argmax is the same at {equal / n:.1%} of positions"
    return f"its distributions moved by KL {far / n:.4f} nats a token; {same}"
