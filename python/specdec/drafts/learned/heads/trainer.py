"""The trainer of heads: Medusa's, those of blockwise parallel decoding, Hydra's; alone or with the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from specdec.drafts import load as load_draft
from specdec.drafts.draft import Draft
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.heads.network import HeadsNetwork, HeadsShape, JointHeads
from specdec.drafts.learned.networks import (
    TargetEnds,
    hf_folder,
    learned_tensors,
    open_decoder,
    write_decoder,
)
from specdec.drafts.learned.objective import Objective, TargetDistribution, reachable, scattered
from specdec.errors import InputError
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.trainer import DraftTrainer

_RARE = 50.0
"""Nats that a token of a text costs at most; one outside the draft's vocabulary has probability 0."""


@dataclass(frozen=True)
class HeadsSettings:
    """Settings of heads.

    Attributes
    ----------
    n_heads, n_blocks, see_guesses, shared_output, n_draft_vocab
        As in `HeadsShape`.
    decay : float
        The loss of a head weighs this times the loss of the head before (0.8 in Medusa).
    from_text : bool
        Heads learn the tokens of the text instead of the target's distributions.
    joint : bool
        The target is tuned with its heads (Medusa-2), and written next to them as another model.
    joint_weight : float
        Joint: weight of the heads' losses next to the target's divergence from what it was.
    joint_rate : float
        Joint: the target's learning rate as a multiple of that of the heads.
    joint_begin : float
        Joint: share of the steps in which the heads learn alone.
    """

    n_heads: int = 4
    n_blocks: int = 1
    see_guesses: bool = False
    shared_output: bool = True
    n_draft_vocab: int = 0
    decay: float = 0.8
    from_text: bool = False
    joint: bool = False
    joint_weight: float = 0.2
    joint_rate: float = 0.25
    joint_begin: float = 0.3

    def heads_shape(self, target: Model) -> HeadsShape:
        """Return the shape for a target."""
        n_vocab = target.config.n_vocab
        most = 0 if self.joint else n_vocab
        for name, fits, expected in (
            ("n_heads", 1 <= self.n_heads <= 64, "1 to 64"),
            ("decay", 0 < self.decay <= 1, "a number above 0, at most 1"),
            ("n_draft_vocab", self.n_draft_vocab <= most, f"at most {most}: the target's, without joint"),
            ("joint_weight", self.joint_weight > 0, "a number above 0"),
            ("joint_rate", self.joint_rate > 0, "a number above 0"),
            ("joint_begin", 0 <= self.joint_begin < 1, "a number from 0 to below 1"),
        ):
            if not fits:
                raise InputError.of(name, getattr(self, name), expected)
        return HeadsShape(
            target.config.d_model, n_vocab, self.n_heads, self.n_blocks, self.see_guesses, self.shared_output,
            self.n_draft_vocab,
        )  # fmt: skip


class HeadsTrainer(DraftTrainer):
    """Heads on the hidden state that the target's own head reads."""

    name = "heads"
    shape_type = HeadsSettings
    learning_rate = 2e-3

    def __init__(self, target: Model, settings: Any) -> None:
        super().__init__(target, settings)
        if self.shape.joint:
            self.words = (
                "The target was tuned with its heads: its texts are those of another model. It is the folder "
                "'target' next to the heads, which fit no other.",
            )

    @property
    def taps(self) -> Sequence[int]:
        return (self.target.config.n_layer + 1,)

    def network(self) -> Any:
        shape, begin = self.shape.heads_shape(self.target), self.settings.begin
        stored = None if begin is None else self._begun(begin)
        network: JointHeads | HeadsNetwork
        if self.shape.joint:
            config = self.target.config
            decoder = open_decoder(hf_folder(self.target))
            network = JointHeads(decoder, shape, float(config.logit_scale), float(config.logit_softcap))
            heads = network.heads
        else:
            draft_ids = None
            if shape.n_draft_vocab < shape.n_vocab:
                known = None if stored is None else stored.tokens
                draft_ids = (
                    self.frequent(shape.n_draft_vocab) if known is None else torch.from_numpy(known).long()
                )
            network = heads = HeadsNetwork(shape, TargetEnds.of(self.target), draft_ids)
        if stored is not None:
            heads.load_state_dict(learned_tensors(stored, heads.state_dict()))
        return network

    def _begun(self, begin: str) -> LearnedWeights:
        stored = LearnedWeights.of_method(Path(begin), "heads", self.target)
        found = HeadsShape.read(stored)
        self.check_begun({name: getattr(found, name) for name in vars(found) if name != "d_model"})
        return stored

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        if not self.shape.joint:
            return self._of_heads(network, batch, objective, batch.hidden[self.taps[0]], batch.target)
        alone = progress < self.shape.joint_begin
        hidden, logits = network.read(batch.ids, learn=not alone)
        top = None if batch.target.tokens is None else batch.target.tokens.shape[-1]
        target = TargetDistribution.of_logits(logits.detach(), top, self.settings.temperature)
        found = self._of_heads(network.heads, batch, objective, hidden, target)
        if alone:
            return found
        kept = Objective({"fkl": 1.0})(batch.target, logits)
        return batch.mean(kept) + self.shape.joint_weight * found

    def _of_heads(
        self, heads: HeadsNetwork, batch: Batch, objective: Objective, hidden: Tensor,
        target: TargetDistribution,
    ) -> Tensor:  # fmt: skip
        """Return the loss of each head against the distribution at its offset, given the text before."""
        settings, total = self.shape, batch.weights.new_zeros(())
        target = reachable(target, heads.draft_ids, heads.shape.n_vocab)
        for k in range(1, settings.n_heads + 1):
            logits = _logits(heads, batch, hidden, k)
            if settings.from_text:
                rows = logits[:, :-1].float().transpose(1, 2)
                found = F.cross_entropy(rows, batch.ids[:, k + 1 :], reduction="none").clamp(max=_RARE)
                found = F.pad(found, (0, 1))  # the token after the text's last one is not known
            else:
                found = objective(target[:, k:], logits)
            total = total + settings.decay ** (k - 1) * batch.mean(found, offset=k)
        return total

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        heads, hidden = network, batch.hidden.get(self.taps[0])
        if self.shape.joint:
            heads, (hidden, _) = network.heads, network.read(batch.ids, learn=False)
        assert hidden is not None
        return F.pad(_logits(heads, batch, hidden, 1), (0, 0, 1, 0))  # uniform before the first token

    def target_logits(self, network: Any, batch: Batch) -> Tensor | None:
        logits: Tensor | None = network.read(batch.ids, learn=False)[1] if self.shape.joint else None
        return logits

    def rate(self, name: str) -> float:
        learns_slowly = self.shape.joint and name.startswith("target.")
        return float(self.shape.joint_rate) if learns_slowly else 1.0

    def export(self, network: Any, folder: Path) -> None:
        heads = network.heads if self.shape.joint else network
        tensors = {name: tensor.float().numpy(force=True) for name, tensor in heads.state_dict().items()}
        weights = LearnedWeights.of(
            "heads", self.target, heads.shape.fields(), tensors, taps=self.taps,
            tokens=None if heads.draft_ids is None else heads.draft_ids.numpy(force=True),
        )  # fmt: skip
        weights.save(folder, self.settings.weights)
        if self.shape.joint:
            write_decoder(network.target, self.target, folder / "target", self.settings.weights)

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        target = load(folder / "target") if self.shape.joint else self.target
        return target, load_draft(folder, target)


def _logits(heads: HeadsNetwork, batch: Batch, hidden: Tensor, k: int) -> Tensor:
    """Logits [n, time - k, n_vocab] of head `k`: row t is for the token after token t + k."""
    time = batch.ids.shape[1]
    seen = torch.stack([batch.ids[:, 1 + i : 1 + i + time - k] for i in range(k)], dim=-1)
    return scattered(heads(hidden[:, : time - k], seen, k), heads.draft_ids, heads.shape.n_vocab)
