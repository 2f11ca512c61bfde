"""A step's batch: texts, and what the target says of them and keeps after each of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec import _core
from specdec.errors import InputError
from specdec.learning.target_law import TargetLaw
from specdec.models.model import Model
from specdec.training.cover import Cover
from specdec.training.written_texts import Texts

__all__ = ["Batch", "TargetStates"]

_WHOLE = 8192
"""Up to so many tokens a law is kept whole."""
_TOP = 256
"""Of larger vocabularies, so many of the most probable tokens."""


@dataclass(frozen=True)
class Batch:
    """What a step is trained on.

    Attributes
    ----------
    ids : Tensor of int64, [n, time]
        Texts; 0 behind their ends.
    weights : Tensor of float32, [n, time]
        Of positions: 0 where the law after a token is not learnt, which is so in prompts and behind ends.
    law : TargetLaw, [n, time]
        Of the token after each one.
    hidden : mapping of int to Tensor, [n, time, d_model] each
        The target's hidden states after each token, by layer, as `Model.hidden_states` has them.
    step : int
        Number of the step, from 0.
    """

    ids: Tensor
    weights: Tensor
    law: TargetLaw
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    step: int = 0

    def mean(self, losses: Tensor, offset: int = 0) -> Tensor:
        """The weighted mean of losses [n, at most time - offset]; ``[:, t]`` is after token t + offset."""
        weights = self.weights[:, offset : offset + losses.shape[1]]
        return (losses * weights).sum() / weights.sum().clamp(min=1e-9)

    def to(self, device: torch.device | str) -> Batch:
        """The same on a device."""
        return Batch(
            self.ids.to(device),
            self.weights.to(device),
            self.law.to(device),
            {layer: states.to(device) for layer, states in self.hidden.items()},
            self.step,
        )


class TargetStates:
    """Makes batches: runs the target over texts, in specdec, in the number format in which it decodes.

    Parameters
    ----------
    target : Model
    taps : sequence of int
        The hidden states of the batches, by layer.
    top : int
        Tokens that laws are kept of; 0: all of a small vocabulary, 256 of a large one.
    temperature : float
        Of the laws.
    n_threads : int
    cover : Cover, optional
        Earlier drafts, which leave a part of the law to learn, and of the weights.
    """

    def __init__(
        self,
        target: Model,
        *,
        taps: Sequence[int] = (),
        top: int = 0,
        temperature: float = 1.0,
        n_threads: int = 1,
        cover: Cover | None = None,
    ) -> None:
        if target.config.encoder is not None:
            raise InputError(f"target {target.path} has an encoder; expected a decoder-only model")
        self._target, self._taps, self._n_threads = target, sorted(set(taps)), n_threads
        self._temperature, self._cover = temperature, cover
        n_vocab = target.config.n_vocab
        self._top = top or (n_vocab if n_vocab <= _WHOLE else _TOP)

    def of(self, texts: Texts) -> Batch:
        """The batch of some texts."""
        n, time = texts.ids.shape
        weights = torch.zeros(n, time)
        laws: list[TargetLaw] = []
        d_model = self._target.config.d_model
        hidden = {layer: torch.zeros(n, time, d_model) for layer in self._taps}
        for i in range(n):
            begin, end = int(texts.begins[i]), int(texts.ends[i])
            ids = texts.ids[i, :end]
            logits, states = self.logits(ids)
            weights[i, max(begin, 1) - 1 : end - 1] = 1.0
            if self._cover is not None:
                logits, shares = self._cover(ids, logits)
                weights[i, :end] *= torch.from_numpy(shares)
            laws.append(TargetLaw.of_logits(torch.from_numpy(logits), self._top, self._temperature))
            for layer, found in states.items():
                hidden[layer][i, :end] = torch.from_numpy(found)
        ids_of_batch = torch.from_numpy(texts.ids.astype(np.int64))
        return Batch(ids_of_batch, weights, _padded(laws, time), hidden)

    def logits(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.float32], dict[int, NDArray[np.float32]]]:
        """The target's logits after each token of a text, and its hidden states."""
        decoder = _core.Decoder(
            self._target.core, capacity=len(ids), n_threads=self._n_threads, taps=self._taps or None
        )
        logits = decoder.prefill(ids, logits=True, finite=True)
        assert logits is not None
        return logits, {layer: decoder.tapped(layer) for layer in self._taps}


def _padded(laws: Sequence[TargetLaw], time: int) -> TargetLaw:
    """The laws of texts as one; behind a text's end stands the law of its last position, with weight 0."""
    where = [torch.arange(time).clamp(max=len(law.log_probs) - 1) for law in laws]
    tokens = [law.tokens[index] for law, index in zip(laws, where, strict=True) if law.tokens is not None]
    return TargetLaw(
        torch.stack([law.log_probs[index] for law, index in zip(laws, where, strict=True)]),
        torch.stack(tokens) if tokens else None,
        laws[0].temperature,
    )
