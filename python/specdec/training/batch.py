"""The batch of a step: texts, distributions and hidden states of the target, what earlier drafts leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec import _core, drafts
from specdec.drafts.draft import Draft
from specdec.drafts.learned.objective import TargetDistribution
from specdec.errors import InputError
from specdec.fields import read_json_object
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.models.tokenizer import check_same_vocabulary
from specdec.training.training_texts import Texts

Array: TypeAlias = NDArray[np.float64]
Logits: TypeAlias = NDArray[np.float32]

_LEAST = 1e-9  # a residual of less mass is rounding
_WHOLE = 8192  # up to so many tokens a distribution is kept whole
_TOP = 256  # of larger vocabularies, so many of the most probable tokens


class EarlierDrafts:
    """What earlier drafts leave to a new one that drafts next to them.

    Where the draft token of the first draft, drawn from its distribution Q, is rejected, the next one is
    judged by the residual of the target's distribution, max(0, P - Q) normalized, and so on (SpecInfer, arXiv
    2305.09781). So a new draft is trained on the residual that the earlier ones leave, each position weighted
    by the chance that it comes to it. Earlier drafts are small models or recurrent drafts, whose distribution
    depends on the text alone, in the order in which they are asked.
    """

    def __init__(
        self, target: Model, folders: Sequence[str], *, temperature: float = 1.0, n_threads: int = 1
    ) -> None:
        self._temperature = temperature
        found = [_opened(target, Path(folder), n_threads) for folder in folders]
        self.drafts = [draft for draft, _ in found]  # as `specdec.generate` takes them
        self._logits = [logits for _, logits in found]

    def residual(self, ids: NDArray[np.int32], probs: Array, temperature: float) -> tuple[Array, Array]:
        """Return what drafts leave of `probs` [n, n_vocab] after each of `ids`, and its chance [n]."""
        share = np.ones(len(ids))
        for logits in self._logits:
            left = np.maximum(probs - softmax(logits(ids), temperature), 0.0)
            mass = left.sum(-1)
            share *= np.where(mass > _LEAST, mass, 0.0)
            probs = np.where(mass[:, None] > _LEAST, left / np.maximum(mass, _LEAST)[:, None], probs)
        return probs, share

    def hits(self, ids: NDArray[np.int32], tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return where the most probable token of one of the drafts is that of `tokens` [n]."""
        found = np.zeros(len(ids), bool)
        for logits in self._logits:
            found |= logits(ids).argmax(-1) == tokens
        return found

    def __call__(self, ids: NDArray[np.int32], logits: Logits) -> tuple[Logits, Logits]:
        """Turn the target's logits after each token into the residual's, and weights of positions."""
        probs, share = self.residual(ids, softmax(logits, self._temperature), self._temperature)
        with np.errstate(divide="ignore"):
            left = (np.log(probs) * self._temperature).astype(np.float32)
        return left, share.astype(np.float32)


def softmax(logits: Logits, temperature: float = 1.0) -> Array:
    """Softmax of logits [n, n_vocab] in double."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


def load_small(name: str, path: str | Path, target: Model) -> Model:
    """Load a small model, the argument `name`, whose ids are those of the target."""
    model = load(path)
    check_same_vocabulary(target, model)
    if model.config.n_vocab != target.config.n_vocab:
        found = f"{path}, of {model.config.n_vocab} ids"
        raise InputError.of(name, str(path), f"a draft of {target.config.n_vocab}", found)
    return model


def _opened(
    target: Model, folder: Path, n_threads: int
) -> tuple[Model | Draft, Callable[[NDArray[np.int32]], Logits]]:
    """Open a draft, and what gives its logits after each token of a text."""
    config = folder / "config.json"
    method = read_json_object(config).get("method") if config.is_file() else None
    if method is None:
        model = load_small("after", folder, target)
        return model, lambda ids: model.logits(ids, n_threads=n_threads)
    draft = drafts.load(folder, target) if method == "recurrent" else None
    if not isinstance(draft, drafts.Recurrent):
        expected = "a small model or a recurrent draft, whose distribution depends on the text alone"
        raise InputError.of("after", str(folder), expected, f"{folder}, a draft by {method!r}")
    core = draft.core
    return draft, lambda ids: core.logits(ids)


@dataclass(frozen=True)
class Batch:
    """What a step is trained on."""

    ids: Tensor  # int64 [n, time]; 0 after the ends of texts
    weights: Tensor  # float32 [n, time], of positions: 0 in prompts and after ends, which are not learned
    target: TargetDistribution  # [n, time], of the token after each one
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # [n, time, d_model], by layer
    step: int = 0

    def mean(self, losses: Tensor, offset: int = 0) -> Tensor:
        """Return the weighted mean of losses [n, at most time - offset]; ``[:, t]`` is after t + offset."""
        weights = self.weights[:, offset : offset + losses.shape[1]]
        return (losses * weights).sum() / weights.sum().clamp(min=1e-9)

    def to(self, device: torch.device | str) -> Batch:
        """Return the same on a device."""
        hidden = {layer: states.to(device) for layer, states in self.hidden.items()}
        return Batch(self.ids.to(device), self.weights.to(device), self.target.to(device), hidden, self.step)


class TargetStates:
    """Makes batches: runs the target over texts, in specdec, in the number format in which it decodes.

    Distributions are kept of `top` tokens; 0: all of a small vocabulary, 256 of a large one. Earlier drafts
    leave a part of them to learn, and of the weights.
    """

    def __init__(
        self, target: Model, *, taps: Sequence[int] = (), top: int = 0, temperature: float = 1.0,
        n_threads: int = 1, earlier: EarlierDrafts | None = None,
    ) -> None:  # fmt: skip
        if target.config.encoder is not None:
            raise InputError(f"target {target.path} has an encoder; expected a decoder-only model")
        self._target, self._taps, self._n_threads = target, sorted(set(taps)), n_threads
        self._temperature, self._earlier = temperature, earlier
        n_vocab = target.config.n_vocab
        self._top = top or (n_vocab if n_vocab <= _WHOLE else _TOP)

    def of(self, texts: Texts) -> Batch:
        """Make the batch of some texts."""
        (n, time), config = texts.ids.shape, self._target.config
        weights = torch.zeros(n, time)
        found: list[TargetDistribution] = []
        hidden = {layer: torch.zeros(n, time, config.d_model) for layer in self._taps}
        for i in range(n):
            begin, end = int(texts.begins[i]), int(texts.ends[i])
            ids = texts.ids[i, :end]
            logits, states = self.logits(ids)
            weights[i, max(begin, 1) - 1 : end - 1] = 1.0
            if self._earlier is not None:
                logits, shares = self._earlier(ids, logits)
                weights[i, :end] *= torch.from_numpy(shares)
            padded = torch.zeros(time, config.n_vocab)
            padded[:end] = torch.from_numpy(logits)
            found.append(TargetDistribution.of_logits(padded, self._top, self._temperature))
            for layer, state in states.items():
                hidden[layer][i, :end] = torch.from_numpy(state)
        target = TargetDistribution(
            torch.stack([one.log_probs for one in found]),
            None if found[0].tokens is None else torch.stack([one.tokens for one in found]),  # type: ignore[misc]
            self._temperature,
        )
        return Batch(torch.from_numpy(texts.ids.astype(np.int64)), weights, target, hidden)

    def logits(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.float32], dict[int, NDArray[np.float32]]]:
        """Return the target's logits after each token of a text, and its hidden states."""
        threads, taps = self._n_threads, self._taps or None
        decoder = _core.Decoder(self._target.core, capacity=len(ids), n_threads=threads, taps=taps)
        logits = decoder.prefill(ids, logits=True, finite=True)
        assert logits is not None
        return logits, {layer: decoder.tapped(layer) for layer in self._taps}
