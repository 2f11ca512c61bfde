"""Trainer of decoding heads (Medusa, blockwise parallel decoding, Hydra), alone or with the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from specdec.checks import check_flag
from specdec.drafts import load as load_draft
from specdec.drafts.draft import Draft
from specdec.drafts.learned import networks
from specdec.drafts.learned.heads.draft import HeadsShape
from specdec.drafts.learned.heads.network import HeadsNetwork, JointHeads
from specdec.drafts.learned.networks import (
    Objective,
    TargetDistribution,
    TargetEnds,
    draft_ids_of,
    numbers_of,
    reachable,
    scattered,
    take_weights,
)
from specdec.errors import InputError
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.settings_table import flag, integer, number, other
from specdec.training.trainer import Batch, LearnedTrainer

_RARE = 50.0
"""Largest loss of a token in nats; tokens outside the draft's vocabulary have probability 0."""


@dataclass(frozen=True)
class HeadsSettings:
    """Settings of heads (see `HeadsShape`) and of their training."""

    n_heads: int = integer(4, 1, 64)
    n_blocks: int = integer(1, 0)
    see_draft_tokens: bool = flag()
    shared_output: bool = other(True, check_flag)
    n_draft_vocab: int = integer(0, 0)
    # Weight of a head's loss relative to the previous head's (0.8 in Medusa).
    decay: float = number(0.8, "a number above 0, at most 1", lambda x: 0.0 < x <= 1.0)
    from_text: bool = flag()  # learn the tokens of the text instead of the target's distributions
    joint: bool = flag()  # fine-tune the target with its heads (Medusa-2), and write it next to them
    # Joint: weight of the heads' losses, learning rate of the target relative to the heads, share of steps
    # that train the heads alone.
    joint_weight: float = number(0.2, "a number above 0", lambda x: x > 0.0)
    joint_rate: float = number(0.25, "a number above 0", lambda x: x > 0.0)
    joint_begin: float = number(0.3, "a number from 0 to below 1", lambda x: 0.0 <= x < 1.0)


class HeadsTrainer(LearnedTrainer):
    """Heads on the hidden state that the target's own head reads."""

    name = method = "heads"
    shape_type = HeadsSettings
    learning_rate = 2e-3

    def __init__(self, target: Model, settings: Any) -> None:
        super().__init__(target, settings)
        if self.shape.joint:
            self.words = (
                "The target was fine-tuned with its heads, so its output changed. It is in the folder "
                "'target' next to the heads, which fit no other target.",
            )

    @property
    def captures(self) -> Sequence[int]:
        return (self.target.config.n_layer + 1,)

    def network(self) -> Any:
        given, config, stored = self.shape, self.target.config, self.begun()
        most = 0 if given.joint else config.n_vocab
        if given.n_draft_vocab > most:
            expected = f"at most {most}: the target's, without joint"
            raise InputError.of("n_draft_vocab", given.n_draft_vocab, expected)
        own = (
            given.n_heads,
            given.n_blocks,
            given.see_draft_tokens,
            given.shared_output,
            given.n_draft_vocab,
        )
        shape = HeadsShape(config.d_model, config.n_vocab, *own)
        if stored is not None:
            self.check_begun(vars(HeadsShape.read(stored)))
        network: JointHeads | HeadsNetwork
        if given.joint:
            decoder = networks.open_decoder(networks.hf_folder(self.target))
            network = JointHeads(decoder, shape, float(config.logit_scale), float(config.logit_softcap))
            heads = network.heads
        else:
            draft_ids = draft_ids_of(stored)
            if draft_ids is None and shape.n_draft_vocab < shape.n_vocab:
                draft_ids = self.frequent(shape.n_draft_vocab)
            network = heads = HeadsNetwork(shape, TargetEnds.of(self.target), draft_ids)
        if stored is not None:
            take_weights(heads, stored)
        return network

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        if not self.shape.joint:
            return self._of_heads(network, batch, objective, batch.hidden[self.captures[0]], batch.target)
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

    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        heads, hidden = network, batch.hidden.get(self.captures[0])
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
        self.save(folder, heads.shape.fields(), numbers_of(heads), heads.draft_ids)
        if self.shape.joint:
            networks.write_decoder(network.target, self.target, folder / "target", self.settings.weights)

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        target = load(folder / "target") if self.shape.joint else self.target
        return target, load_draft(folder, target)


def _logits(heads: HeadsNetwork, batch: Batch, hidden: Tensor, k: int) -> Tensor:
    """Logits [n, time - k, n_vocab] of head `k`: row t is for the token after token t + k."""
    time = batch.ids.shape[1]
    seen = torch.stack([batch.ids[:, 1 + i : 1 + i + time - k] for i in range(k)], dim=-1)
    return scattered(heads(hidden[:, : time - k], seen, k), heads.draft_ids, heads.shape.n_vocab)
