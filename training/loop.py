"""Shared training code: batches, optimizers, learning rate schedule, checkpoints and loss curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.atomic_file import replacing

# The learning rate is constant, then falls linearly to zero over this last part of the steps. While it is
# constant, a resumed run may change the number of steps.
DECAY_FRACTION = 0.4
WARMUP_STEPS = 60
GRADIENT_CLIP = 1.0


def batches(ids: np.ndarray, tokens_per_step: int, seed: int, steps: range, context: int):
    """Yield (step, inputs, targets): random windows of `context` tokens.

    The generator is keyed by (seed, step), so a resumed run sees the same windows.
    """
    for step in steps:
        rng = np.random.default_rng((seed, step))
        starts = rng.integers(0, len(ids) - context - 1, tokens_per_step // context)
        rows = torch.from_numpy(np.stack([ids[s : s + context + 1].astype(np.int64) for s in starts]))
        yield step, rows[:, :-1], rows[:, 1:]


def learning_rate_factor(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * min(1.0, max(0.0, (steps - step) / (DECAY_FRACTION * steps)))


class Optimizers:
    """Muon for the matrices of the layers, AdamW for tables and norms.

    `is_table` returns whether a two-dimensional parameter is a table, such as the embedding, by its name.
    """

    def __init__(
        self, model: nn.Module, matrix_lr: float, other_lr: float,
        is_table: Callable[[str], bool] = lambda name: name.startswith(("embed", "positions")),
    ):  # fmt: skip
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.dim() == 2 and not is_table(n)]
        others = [p for n, p in named if p.dim() != 2 or is_table(n)]
        self.muon = torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.base = {self.muon: matrix_lr, self.adamw: other_lr}

    def step(self, factor: float) -> None:
        for optimizer, lr in self.base.items():
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])


def save_checkpoint(path: Path, model: nn.Module, optimizers: Optimizers, step: int) -> None:
    """Write a checkpoint atomically."""
    state = {"model": model.state_dict(), "optimizers": optimizers.state_dict(), "step": step}
    with replacing(path) as file:
        torch.save(state, file)


def load_checkpoint(path: Path, model: nn.Module, optimizers: Optimizers) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizers.load_state_dict(state["optimizers"])
    return state["step"]


def clip_gradients(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)


@torch.no_grad()
def validation_loss(model: nn.Module, ids: np.ndarray, context: int, n_windows: int) -> float:
    """Return the mean −ln p of the next token over evenly spaced windows of the held-out novels."""
    starts = np.linspace(0, len(ids) - context - 2, n_windows).astype(np.int64)
    total = 0.0
    for chunk in np.array_split(starts, max(1, n_windows // 16)):
        rows = torch.from_numpy(np.stack([ids[s : s + context + 1].astype(np.int64) for s in chunk]))
        total += cross_entropy(model(rows[:, :-1]), rows[:, 1:]).item() * len(chunk)
    return total / n_windows


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def divergences(target_logits: Tensor, draft_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return KL(target ‖ draft) in nats and total variation, means over all positions."""
    target = target_logits.float().log_softmax(-1)
    draft = draft_logits.float().log_softmax(-1)
    kl = (target.exp() * (target - draft)).sum(-1).mean()
    variation = 1 - torch.minimum(target.exp(), draft.exp()).sum(-1).mean()
    return kl, variation


class LossCurve:
    """The loss curve as a text file with one tab-separated line per entry.

    A resumed run repeats the steps after its checkpoint, so it drops their old lines.
    """

    def __init__(self, path: Path, header: tuple[str, ...], start: int):
        lines = path.read_text().splitlines()[1:] if start and path.exists() else []
        kept = [line for line in lines if int(line.split("\t")[0]) < start]
        self.path = path
        path.write_text("\n".join(["\t".join(header), *kept]) + "\n")

    def add(self, *values: float) -> None:
        texts = [str(v) if isinstance(v, int) else f"{v:.4f}" for v in values]
        with self.path.open("a") as file:
            file.write("\t".join(texts) + "\n")
