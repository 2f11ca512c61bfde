"""Kind "heads": Medusa's, those of blockwise parallel decoding, and Hydra's; alone or with the target."""

from __future__ import annotations

from collections.abc import Sequence
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
from specdec.learning.draft_vocabulary import reachable, scattered
from specdec.learning.heads_network import HeadsNetwork, HeadsShape
from specdec.learning.hugging_face import open_decoder
from specdec.learning.joint_heads import JointHeads
from specdec.learning.target_ends import TargetEnds
from specdec.learning.target_law import Objective, TargetLaw
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.draft_folder import hf_folder, learnt_tensors, write_decoder
from specdec.training.kind import Kind

__all__ = ["HeadsKind", "HeadsSettings"]

_RARE = 50.0
"""Nats that a token of a text costs at most; one outside the draft's vocabulary has probability 0."""


@dataclass(frozen=True)
class HeadsSettings:
    """What can be set of heads.

    Attributes
    ----------
    n_heads, n_blocks, see_guesses, shared_output, n_draft_vocab
        As in `HeadsShape`.
    decay : float
        A head's loss weighs this times the loss of the head before (0.8 in Medusa).
    from_text : bool
        Heads learn the tokens of the text, and not the target's laws.
    joint : bool
        The target is tuned with its heads (Medusa-2), and written beside them: it is another model then.
    joint_weight : float
        Joint: weight of the heads' losses beside that of the target, its divergence from what it was.
    joint_rate : float
        Joint: the target's learning rate in those of the heads.
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
        """The shape for a target.

        Raises
        ------
        InputError
            No heads, or settings that do not fit each other.
        """
        n_vocab = target.config.n_vocab
        if not 1 <= self.n_heads <= 64:
            raise InputError(f"--set n_heads={self.n_heads}; expected 1 to 64")
        if not 0 < self.decay <= 1:
            raise InputError(f"--set decay={self.decay}; expected a number above 0, at most 1")
        if self.n_draft_vocab > n_vocab or (self.n_draft_vocab and self.joint):
            raise InputError(
                f"--set n_draft_vocab={self.n_draft_vocab}; expected at most the target's {n_vocab}, and "
                "heads that learn alone"
            )
        if not (0 < self.joint_weight and 0 < self.joint_rate and 0 <= self.joint_begin < 1):
            raise InputError(
                f"--set joint_weight={self.joint_weight}, joint_rate={self.joint_rate}, "
                f"joint_begin={self.joint_begin}; expected two numbers above 0, and one from 0 to below 1"
            )
        return HeadsShape(
            target.config.d_model, n_vocab, self.n_heads, self.n_blocks, self.see_guesses, self.shared_output,
            self.n_draft_vocab,
        )  # fmt: skip


class HeadsKind(Kind):
    """Heads on the hidden state that the target's own head reads."""

    name = "heads"
    shape_type = HeadsSettings
    learning_rate = 2e-3

    @property
    def taps(self) -> tuple[int, ...]:
        """See `Kind.taps`."""
        return (self.target.config.n_layer + 1,)

    def network(self) -> Any:
        """See `Kind.network`: `HeadsNetwork`, or `JointHeads` if the target learns too."""
        shape, begin = self.shape.heads_shape(self.target), self.settings.begin
        if self.shape.joint:
            config = self.target.config
            network = JointHeads(
                open_decoder(hf_folder(self.target)),
                shape,
                float(config.logit_scale),
                float(config.logit_softcap),
            )
            if begin is not None:
                network.heads.load_state_dict(learnt_tensors(self._begun(begin), network.heads.state_dict()))
            return network
        stored = None if begin is None else self._begun(begin)
        draft_ids = None
        if shape.n_draft_vocab < shape.n_vocab:
            known = None if stored is None else stored.tokens
            draft_ids = (
                self.frequent(shape.n_draft_vocab) if known is None else torch.from_numpy(known).long()
            )
        heads = HeadsNetwork(shape, TargetEnds.of(self.target), draft_ids)
        if stored is not None:
            heads.load_state_dict(learnt_tensors(stored, heads.state_dict()))
        return heads

    def _begun(self, begin: str) -> LearntWeights:
        """The folder to begin with, which fits target and settings."""
        stored = LearntWeights.read(Path(begin))
        stored.check_method("heads")
        stored.check_target(self.target)
        found: dict[str, object] = {
            "n_heads": stored.fields.integer("n_heads"),
            "n_blocks": stored.fields.integer("n_blocks", minimum=0),
        }
        found |= {name: stored.fields.boolean(name) for name in ("see_guesses", "shared_output")}
        self.check_begun(found | {"n_draft_vocab": stored.n_draft_vocab})
        return stored

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """See `Kind.loss`: of each head against the law at its offset, given the text before."""
        if not self.shape.joint:
            return self._of_heads(network, batch, objective, batch.hidden[self.taps[0]], batch.law)
        alone = progress < self.shape.joint_begin
        hidden, logits = network.read(batch.ids, learn=not alone)
        top = None if batch.law.tokens is None else batch.law.tokens.shape[-1]
        law = TargetLaw.of_logits(logits.detach(), top, self.settings.temperature)
        found = self._of_heads(network.heads, batch, objective, hidden, law)
        if alone:
            return found
        kept = Objective({"fkl": 1.0})(batch.law, logits)
        return batch.mean(kept) + self.shape.joint_weight * found

    def _of_heads(
        self, heads: HeadsNetwork, batch: Batch, objective: Objective, hidden: Tensor, law: TargetLaw
    ) -> Tensor:
        settings, total = self.shape, batch.weights.new_zeros(())
        law = reachable(law, heads.draft_ids, heads.shape.n_vocab)
        for k in range(1, settings.n_heads + 1):
            logits = _logits(heads, batch, hidden, k)
            if settings.from_text:
                rows = logits[:, :-1].float().transpose(1, 2)
                found = F.cross_entropy(rows, batch.ids[:, k + 1 :], reduction="none").clamp(max=_RARE)
                found = F.pad(found, (0, 1))  # of the text's last token the next one is not known
            else:
                found = objective(law[:, k:], logits)
            total = total + settings.decay ** (k - 1) * batch.mean(found, offset=k)
        return total

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """See `Kind.first_guess`; before the first token nothing is known, and the guess is uniform."""
        if self.shape.joint:
            hidden, _ = network.read(batch.ids, learn=False)
            return F.pad(_logits(network.heads, batch, hidden, 1), (0, 0, 1, 0))
        return F.pad(_logits(network, batch, batch.hidden[self.taps[0]], 1), (0, 0, 1, 0))

    def target_logits(self, network: Any, batch: Batch) -> Tensor | None:
        """See `Kind.target_logits`."""
        logits: Tensor | None = network.read(batch.ids, learn=False)[1] if self.shape.joint else None
        return logits

    def rate(self, name: str) -> float:
        """See `Kind.rate`."""
        learns_slowly = self.shape.joint and name.startswith("target.")
        return float(self.shape.joint_rate) if learns_slowly else 1.0

    def export(self, network: Any, folder: Path) -> None:
        """See `Kind.export`; the tuned target is the folder ``target`` in the draft's."""
        heads = network.heads if self.shape.joint else network
        tensors = {name: tensor.float().numpy(force=True) for name, tensor in heads.state_dict().items()}
        weights = LearntWeights.of(
            "heads", self.target, heads.shape.fields(), tensors, taps=self.taps,
            tokens=None if heads.draft_ids is None else heads.draft_ids.numpy(force=True),
        )  # fmt: skip
        weights.save(folder, self.settings.weights)
        if self.shape.joint:
            write_decoder(network.target, self.target, folder / "target", self.settings.weights)

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """See `Kind.open`."""
        target = load(folder / "target") if self.shape.joint else self.target
        return target, load_draft(folder, target)

    @property
    def words(self) -> Sequence[str]:
        """See `Kind.words`."""
        if not self.shape.joint:
            return ()
        return (
            "The target was tuned with its heads: its texts are those of another model. It is the folder "
            "'target' beside the heads, which fit no other.",
        )


def _logits(heads: HeadsNetwork, batch: Batch, hidden: Tensor, k: int) -> Tensor:
    """[n, time - k, n_vocab] of head `k`: row t is of the token after token t + k."""
    time = batch.ids.shape[1]
    seen = torch.stack([batch.ids[:, 1 + i : 1 + i + time - k] for i in range(k)], dim=-1)
    return scattered(heads(hidden[:, : time - k], seen, k), heads.draft_ids, heads.shape.n_vocab)
