"""Base classes of trainers, and their batches of texts, distributions and hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec import _core, drafts
from specdec.checks import check_choice
from specdec.drafts import load as load_draft
from specdec.drafts.draft import Draft
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.methods import METHODS
from specdec.drafts.learned.networks import Objective, TargetDistribution
from specdec.errors import InputError, shown
from specdec.fields import read_json_object
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.models.tokenizer import check_same_vocabulary
from specdec.settings_table import check_settings
from specdec.training.settings import TrainingSettings
from specdec.training.training_texts import Texts, TextWriter

Array: TypeAlias = NDArray[np.float64]
Logits: TypeAlias = NDArray[np.float32]

_LEAST = 1e-9  # smaller residual masses are rounding errors
_WHOLE = 8192  # largest vocabulary with complete distributions
_TOP = 256  # most probable tokens kept of larger vocabularies


class EarlierDrafts:
    """Residual distributions that earlier drafts leave to a new one.

    After a rejection of a token drawn from Q, the next candidate is verified against the residual, max(0, P -
    Q) normalized (SpecInfer, arXiv 2305.09781). The new draft learns the residual of the earlier ones (small
    models or recurrent drafts, in order), with each position weighted by its probability.
    """

    def __init__(
        self, target: Model, folders: Sequence[str], *, temperature: float = 1.0, n_threads: int = 1
    ) -> None:
        self._temperature = temperature
        found = [_opened(target, Path(folder), n_threads) for folder in folders]
        self.drafts = [draft for draft, _ in found]  # as `specdec.generate` takes them
        self._logits = [logits for _, logits in found]

    def residual(self, ids: NDArray[np.int32], probs: Array, temperature: float) -> tuple[Array, Array]:
        """Return the residual of `probs` [n, n_vocab] after each of `ids`, and its probability [n]."""
        share = np.ones(len(ids))
        for logits in self._logits:
            left = np.maximum(probs - softmax(logits(ids), temperature), 0.0)
            mass = left.sum(-1)
            share *= np.where(mass > _LEAST, mass, 0.0)
            probs = np.where(mass[:, None] > _LEAST, left / np.maximum(mass, _LEAST)[:, None], probs)
        return probs, share

    def hits(self, ids: NDArray[np.int32], tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return where the most probable token of any draft equals `tokens` [n]."""
        found = np.zeros(len(ids), bool)
        for logits in self._logits:
            found |= logits(ids).argmax(-1) == tokens
        return found

    def __call__(self, ids: NDArray[np.int32], logits: Logits) -> tuple[Logits, Logits]:
        """Convert the target's logits after each token to residual logits and position weights."""
        probs, share = self.residual(ids, softmax(logits, self._temperature), self._temperature)
        with np.errstate(divide="ignore"):
            left = (np.log(probs) * self._temperature).astype(np.float32)
        return left, share.astype(np.float32)


def softmax(logits: Logits, temperature: float = 1.0) -> Array:
    """Return the float64 softmax of logits [n, n_vocab]."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


def load_small(name: str, path: str | Path, target: Model) -> Model:
    """Load the small model of argument `name`; require the target's token ids."""
    model = load(path)
    check_same_vocabulary(target, model)
    if model.config.n_vocab != target.config.n_vocab:
        found = f"{path}, of {model.config.n_vocab} ids"
        raise InputError.of(name, str(path), f"a draft of {target.config.n_vocab}", found)
    return model


def _opened(
    target: Model, folder: Path, n_threads: int
) -> tuple[Model | Draft, Callable[[NDArray[np.int32]], Logits]]:
    """Open a draft, and a function that returns its logits after each token of a text."""
    config = folder / "config.json"
    method = read_json_object(config).get("method") if config.is_file() else None
    if method is None:
        model = load_small("after", folder, target)
        return model, lambda ids: model.logits(ids, n_threads=n_threads)
    draft = drafts.load(folder, target) if method == "recurrent" else None
    if not isinstance(draft, drafts.RecurrentDraft):
        expected = "a small model or a recurrent draft, whose distribution depends only on the text"
        raise InputError.of("after", str(folder), expected, f"{folder}, a draft by {method!r}")
    return draft, draft.core.logits


@dataclass(frozen=True)
class Batch:
    """Training data of one step."""

    ids: Tensor  # int64 [n, time], padded with 0
    weights: Tensor  # float32 [n, time], of positions: 0 in prompts and after ends
    target: TargetDistribution  # [n, time], of the token after each one
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # [n, time, d_model] by layer
    step: int = 0

    def mean(self, losses: Tensor, offset: int = 0) -> Tensor:
        """Return the weighted mean of losses [n, up to time - offset]; ``[:, t]`` belongs to t + offset."""
        weights = self.weights[:, offset : offset + losses.shape[1]]
        return (losses * weights).sum() / weights.sum().clamp(min=1e-9)

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to `device`."""
        hidden = {layer: states.to(device) for layer, states in self.hidden.items()}
        return Batch(self.ids.to(device), self.weights.to(device), self.target.to(device), hidden, self.step)


class TargetStates:
    """Makes batches by running the target over texts in specdec, in its decoding number format.

    Keeps `top` tokens of each distribution; 0: all of a small vocabulary, 256 of a large one.
    """

    def __init__(
        self, target: Model, *, captures: Sequence[int] = (), top: int = 0, temperature: float = 1.0,
        n_threads: int = 1, earlier: EarlierDrafts | None = None,
    ) -> None:  # fmt: skip
        if target.config.encoder is not None:
            raise InputError(f"target {target.path} has an encoder; expected a decoder-only model")
        self._target, self._captures, self._n_threads = target, sorted(set(captures)), n_threads
        self._temperature, self._earlier = temperature, earlier
        n_vocab = target.config.n_vocab
        self._top = top or (n_vocab if n_vocab <= _WHOLE else _TOP)

    def of(self, texts: Texts) -> Batch:
        """Make a batch of texts."""
        (n, time), config = texts.ids.shape, self._target.config
        weights = torch.zeros(n, time)
        found: list[TargetDistribution] = []
        hidden = {layer: torch.zeros(n, time, config.d_model) for layer in self._captures}
        for i in range(n):
            begin, end = int(texts.begins[i]), int(texts.ends[i])
            ids = texts.ids[i, :end]
            decoder = _core.Decoder(
                self._target.core, capacity=end, n_threads=self._n_threads, captures=self._captures or None
            )
            logits = decoder.prefill(ids, logits=True, finite=True)
            assert logits is not None
            weights[i, max(begin, 1) - 1 : end - 1] = 1.0
            if self._earlier is not None:
                logits, shares = self._earlier(ids, logits)
                weights[i, :end] *= torch.from_numpy(shares)
            padded = torch.zeros(time, config.n_vocab)
            padded[:end] = torch.from_numpy(logits)
            found.append(TargetDistribution.of_logits(padded, self._top, self._temperature))
            for layer, states in hidden.items():
                states[i, :end] = torch.from_numpy(decoder.captured(layer))
        target = TargetDistribution(
            torch.stack([one.log_probs for one in found]),
            None if found[0].tokens is None else torch.stack([one.tokens for one in found]),
            self._temperature,
        )
        return Batch(torch.from_numpy(texts.ids.astype(np.int64)), weights, target, hidden)


class DraftTrainer(ABC):
    """Base class of draft trainers: network, loss and output folder of a method.

    The training sets `token_counts`, which returns the count of each token in its texts, and `say`, which
    takes progress messages.
    """

    name: ClassVar[str]  # as --method takes it
    shape_type: ClassVar[type]  # frozen dataclass of the method's settings
    learning_rate: ClassVar[float] = 4e-3  # default
    gamma: int = 4  # draft tokens per round when measuring the draft
    words: Sequence[str] = ()  # extra lines of the summary

    def __init__(self, target: Model, settings: TrainingSettings) -> None:
        self.target, self.settings = target, settings
        self.shape: Any = shape_of(self.shape_type, settings.shape, self.name)
        self.token_counts: Callable[[], NDArray[np.int64]] | None = None
        self.say: Callable[[str], object] = lambda text: None

    @abstractmethod
    def network(self) -> Any:
        """Make the ``torch.nn.Module``, with random weights or those of ``settings.begin``."""

    @abstractmethod
    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """Return the loss of a step; `progress` from 0 to 1 is the share of completed steps."""

    @abstractmethod
    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        """Return logits [n, time, n_vocab] of the first draft token after each position, for alpha."""

    @abstractmethod
    def export(self, network: Any, folder: Path) -> None:
        """Write the draft's folder; replace existing files one by one."""

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """Open (target, draft) from a folder that `export` wrote."""
        return self.target, load_draft(folder, self.target)

    @property
    def captures(self) -> Sequence[int]:
        """Layers of the captured hidden states in batches, as in `Model.hidden_states`."""
        return ()

    def writer(self, network: Any, folder: Path) -> TextWriter:
        """Return a writer that generates with this draft; it may export to `folder`."""
        raise InputError.of("data", self.settings.data, f"'target' or 'text' for method {self.name!r}")

    def is_table(self, name: str) -> bool:
        """Return whether AdamW trains the matrix `name`, such as a table or head; Muon trains others."""
        return any(part in name for part in ("embed", "output", "lm_head"))

    def target_logits(self, network: Any, batch: Batch) -> Tensor | None:
        """Return logits [n, time, n_vocab] of a target in training; None for a fixed target."""
        return None

    def finish(self, folder: Path, texts: Texts) -> None:  # noqa: B027
        """Finish the trained draft in `folder`; `texts` are held-out texts of the target."""

    def rate(self, name: str) -> float:
        """Return the learning rate factor of the parameter `name`."""
        return 1.0

    def check_begun(self, found: Mapping[str, object], asked: Mapping[str, object] | None = None) -> None:
        """Refuse settings, `asked` or the caller's, that contradict those `found` in ``settings.begin``."""
        if asked is None:
            shape = self.shape
            opened = [each.name for each in fields(shape) if type(each.default) is int and not each.default]
            given = {name: getattr(shape, name) for name in self.settings.shape}
            asked = {name: value for name, value in given.items() if value or name not in opened}
        for name, value in asked.items():
            if name in found and found[name] != value:
                expected = f"{found[name]}, as in the draft {self.settings.begin}"
                raise InputError.of(name, value, expected)

    def frequent(self, n: int) -> Tensor:
        """Return the ids [n] of the most frequent tokens in the training texts, ascending."""
        counts = np.zeros(self.target.config.n_vocab) if self.token_counts is None else self.token_counts()
        return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:n]).astype(np.int64))


class LearnedTrainer(DraftTrainer):
    """Base class of trainers that write `LearnedWeights` of their `method`."""

    method: ClassVar[str]

    def begun(self) -> LearnedWeights | None:
        """Open the draft ``settings.begin`` for this target; None if not set."""
        if self.settings.begin is None:
            return None
        weights = LearnedWeights.read(Path(self.settings.begin))
        weights.check_method(self.method)
        weights.check_target(self.target)
        return weights

    def save(
        self, folder: Path, fields: Mapping[str, Any], numbers: Mapping[str, NDArray[Any]],
        draft_ids: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the draft's folder."""
        tokens = None if draft_ids is None else draft_ids.numpy(force=True)
        weights = LearnedWeights.of(
            self.method, self.target, fields, numbers, captures=self.captures, tokens=tokens
        )
        weights.save(folder, self.settings.weights)


def trainer_type(name: str) -> type[DraftTrainer]:
    """Return the trainer class of a method."""
    method = METHODS[check_choice("method", name, tuple(METHODS))]
    found: type[DraftTrainer] = method.load("trainer", method.trainer)
    return found


def shape_of(shape_type: type, given: Mapping[str, object], method: str) -> Any:
    """Make a settings dataclass from strings by name."""
    known = {each.name: each.default for each in fields(shape_type)}
    for name in given:
        if name not in known:
            expected = f"a setting of method {method!r}: {', '.join(known) or 'none'}"
            raise InputError.of("--set", name, expected, verb="has")
    found = shape_type(**{name: _value(name, str(text), known[name]) for name, text in given.items()})
    check_settings(found)
    return found


def _value(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if isinstance(default, int):
            number = int(text)
            if not 0 <= number < 1 << 20:
                raise ValueError
            return number
        return float(text) if isinstance(default, float) else text
    except (KeyError, ValueError):
        expected = "true or false" if isinstance(default, bool) else "a number, at least 0"
        raise InputError.of(name, text, expected, shown(text)) from None
