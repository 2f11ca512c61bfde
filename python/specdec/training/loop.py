"""Training loop: optimizers, schedule, checkpoints and the loss curve."""

from __future__ import annotations

import copy
import math
import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import nn

from specdec.atomic_file import replacing
from specdec.drafts.learned.networks import Objective
from specdec.errors import CheckpointError
from specdec.plot.style import looks, pyplot, styled
from specdec.training.settings import Loss
from specdec.training.trainer import Batch, DraftTrainer

DECAY_SHARE = 0.4  # final share of the steps in which the learning rate falls to 0
WARM_UP = 30  # steps, at most a twentieth of all
LARGEST_GRADIENT = 1.0
RAMP = (0.4, 0.6)  # share of the steps in which "fkl-tvd" moves from one loss to the other


def objective_at(loss: Loss, beta: float, progress: float) -> Objective:
    """Return the loss of a step; `progress` from 0 to 1 is the share of completed steps."""
    if loss != "fkl-tvd":
        return Objective.of_shares({loss: 1.0}, beta)
    late = min(1.0, max(0.0, (progress - RAMP[0]) / (RAMP[1] - RAMP[0])))
    return Objective.of_shares({"fkl": 1.0 - late, "tvd": late}, beta)


def learning_rate_factor(step: int, n_steps: int) -> float:
    """Return the learning rate factor: warm-up, constant, then linear decay to 0."""
    warm = min(1.0, (step + 1) / min(WARM_UP, max(1, n_steps // 20)))
    return warm * min(1.0, (n_steps - step) / (DECAY_SHARE * n_steps))


class Optimizers:
    """Muon (Jordan et al. 2024) for matrices, AdamW for tables, heads, norms and biases."""

    def __init__(self, network: nn.Module, trainer: DraftTrainer, learning_rate: float) -> None:
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        groups: dict[str, dict[float, Any]] = {"muon": {}, "adamw": {}}
        for name, weight in named:
            rate = trainer.rate(name)
            optimizer = "muon" if weight.dim() == 2 and not trainer.is_table(name) else "adamw"
            group = groups[optimizer].setdefault(rate, {"params": [], "rate": rate})
            group["params"].append(weight)
        makers = {
            "muon": partial(torch.optim.Muon, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            "adamw": partial(torch.optim.AdamW, betas=(0.9, 0.95), weight_decay=0.0),
        }
        self._all: dict[str, Any] = {
            optimizer: makers[optimizer](list(by_rate.values()), lr=learning_rate)
            for optimizer, by_rate in groups.items()
            if by_rate
        }
        self._learning_rate = learning_rate
        self._weights = [weight for _, weight in named]

    def step(self, factor: float) -> None:
        """Clip the gradients and update the weights."""
        nn.utils.clip_grad_norm_(self._weights, LARGEST_GRADIENT)
        for optimizer in self._all.values():
            for group in optimizer.param_groups:
                group["lr"] = self._learning_rate * factor * group["rate"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: optimizer.state_dict() for name, optimizer in self._all.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moments of a checkpoint; keep the optimizers' own options."""
        for name, optimizer in self._all.items():
            options = [{**group} for group in optimizer.param_groups]
            for own in options:
                del own["params"]
            optimizer.load_state_dict(state[name])
            for group, ours in zip(optimizer.param_groups, options, strict=True):
                group.update(ours)
            for weight, kept in optimizer.state.items():
                for tensor in kept.values():
                    if not isinstance(tensor, torch.Tensor) or tensor.shape not in (weight.shape, ()):
                        raise ValueError(f"its optimizer {name} has a state that does not fit a weight")


def seed_step(seed: int, step: int) -> None:
    """Seed torch for a step, which makes a resumed training equal to an uninterrupted one."""
    torch.manual_seed(int(np.random.SeedSequence((seed, step)).generate_state(1)[0]))


def train_step(
    trainer: DraftTrainer, network: nn.Module, optimizers: Optimizers, batch: Batch, step: int, n_steps: int
) -> float:
    """Take a step and return its loss."""
    settings = trainer.settings
    seed_step(settings.seed, step)
    progress = step / n_steps
    objective = objective_at(settings.loss, settings.beta, progress)
    batch = replace(batch.to(settings.device), step=step)
    loss = trainer.loss(network, batch, objective, progress)
    loss.backward()
    optimizers.step(learning_rate_factor(step, n_steps))
    return float(loss.detach())


def seconds_of_step(
    trainer: DraftTrainer, network: nn.Module, make: Callable[[], Batch], clock: Callable[[], float],
    long_s: float,
) -> float:  # fmt: skip
    """Time a step of a copy of the network: the second of two, or the first if it took `long_s`."""
    copied = copy.deepcopy(network)
    optimizers, seconds = Optimizers(copied, trainer, trainer.settings.learning_rate), 0.0
    for step in range(2):
        begun = clock()
        train_step(trainer, copied, optimizers, make(), step, 2)
        seconds = clock() - begun
        if seconds >= long_s:
            break
    return seconds


class Progress:
    """The checkpoint of a training, replaced atomically: weights, optimizers and completed steps."""

    def __init__(self, path: Path, network: nn.Module, optimizers: Optimizers) -> None:
        self._path, self._network, self._optimizers = path, network, optimizers
        self.step = self.saved_step = self.n_steps = 0
        self.seconds = 0.0
        self.recent: list[float] = []

    def save(self) -> None:
        """Write the checkpoint; an interruption leaves the previous one."""
        state = {
            "network": self._network.state_dict(), "optimizers": self._optimizers.state_dict(),
            "step": self.step, "n_steps": self.n_steps, "seconds": self.seconds, "recent": self.recent,
        }  # fmt: skip
        with replacing(self._path) as file:
            torch.save(state, file)
        self.saved_step = self.step

    def load(self, steps: int | None) -> bool:
        """Continue from the file, if it exists; `steps` is the required total, if known."""
        if not self._path.exists():
            return False
        try:
            with ZipFile(self._path) as file:  # torch does not verify checksums
                if (part := file.testzip()) is not None:
                    raise ValueError(f"its part {part} is damaged")
            state = torch.load(self._path, map_location="cpu", weights_only=True)
            step, n_steps, seconds = (state[name] for name in ("step", "n_steps", "seconds"))
            if type(step) is not int or type(n_steps) is not int or not 0 <= step <= n_steps:
                raise ValueError(f"its steps are {step} of {n_steps}")
            if steps is not None and n_steps != steps:
                raise ValueError(f"its steps are {n_steps}, and {steps} are requested")
            if not 0.0 <= float(seconds) < math.inf:
                raise ValueError(f"its seconds are {seconds}")
            self._network.load_state_dict(state["network"])
            self._optimizers.load_state_dict(state["optimizers"])
            self.recent = [float(loss) for loss in state["recent"]]
        except _DAMAGED as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            expected = f"expected the checkpoint of this training ({reason}); remove it to start again"
            raise CheckpointError(f"{self._path}: {expected}") from error
        self.step = self.saved_step = step
        self.n_steps, self.seconds = n_steps, float(seconds)
        return True


_DAMAGED = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError, BadZipFile,
    OverflowError, pickle.UnpicklingError, struct.error, zlib.error,
)  # fmt: skip
"""Errors of torch for a damaged checkpoint or another network's."""


class LossCurve:
    """The loss curve as tab-separated lines; drops lines after step `done`."""

    HEAD = ("step", "tokens", "loss", "alpha_greedy", "alpha", "seconds")

    def __init__(self, path: Path, done: int) -> None:
        kept = [row for row in self.read(path) if row[0] <= done] if done and path.exists() else []
        self._path = path
        with replacing(path) as file:
            file.write(("\t".join(self.HEAD) + "\n" + "".join(map(_line, kept))).encode())

    def add(self, values: Sequence[float]) -> None:
        """Append a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(values))

    @classmethod
    def read(cls, path: Path) -> list[tuple[float, ...]]:
        """Read a curve; skip malformed lines."""
        rows = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            try:
                row = tuple(float(text) for text in line.split("\t"))
            except ValueError:
                continue
            if len(row) == len(cls.HEAD):
                rows.append(row)
        return rows


def _line(values: Sequence[float]) -> str:
    words = (f"{value:.0f}" if float(value).is_integer() else f"{value:.4f}" for value in values)
    return "\t".join(words) + "\n"


@styled
def draw_losses(curve: Path, picture: Path) -> None:
    """Draw the loss and alpha over the steps, as a PNG file (needs matplotlib)."""
    rows = LossCurve.read(curve)
    steps = [row[0] for row in rows]
    figure, (above, below) = pyplot().subplots(2, 1, figsize=(7.0, 5.5), layout="constrained", sharex=True)
    styles = looks()
    look = next(styles)
    above.plot(steps, [row[2] for row in rows], color=look.color, linestyle=look.dashes)
    above.set_ylabel("loss")
    for column, label in ((3, "greedy"), (4, "temperature 1")):
        look, alphas = next(styles), [row[column] for row in rows]
        below.plot(steps, alphas, color=look.color, linestyle=look.dashes, label=label)
    below.set_ylabel("alpha, some held-out texts")
    below.set_xlabel("step")
    below.legend()
    figure.savefig(picture, dpi=120)
    pyplot().close(figure)
