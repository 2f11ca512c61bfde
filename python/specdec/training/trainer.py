"""The base of trainers: what training needs to know about a method of drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.checks import check_choice
from specdec.drafts import load as load_draft
from specdec.drafts.draft import Draft
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.methods import METHODS
from specdec.drafts.learned.objective import Objective
from specdec.errors import InputError, shown
from specdec.models.model import Model
from specdec.settings_table import check_settings
from specdec.training.batch import Batch
from specdec.training.settings import TrainingSettings
from specdec.training.training_texts import Texts, TextWriter


class DraftTrainer(ABC):
    """A method of drafts in training: its network, what a step needs, its loss, its folder.

    The training sets `token_counts`, which returns how often each token occurs in its texts, and `say`, which
    takes progress messages.
    """

    name: ClassVar[str]  # as --kind takes it
    shape_type: ClassVar[type]  # a frozen dataclass of numbers and flags: settings that a caller may change
    learning_rate: ClassVar[float] = 4e-3  # the default
    gamma: int = 4  # draft tokens of a round in the runs that measure the draft
    words: Sequence[str] = ()  # lines of the summary

    def __init__(self, target: Model, settings: TrainingSettings) -> None:
        self.target, self.settings = target, settings
        self.shape: Any = shape_of(self.shape_type, settings.shape, self.name)
        self.token_counts: Callable[[], NDArray[np.int64]] | None = None
        self.say: Callable[[str], object] = lambda text: None

    @abstractmethod
    def network(self) -> Any:
        """Make the ``torch.nn.Module``, of random weights or those of ``settings.begin``."""

    @abstractmethod
    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """Return the loss of a step; `progress`, from 0 to 1, is the share of the steps that are done."""

    @abstractmethod
    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """Logits [n, time, n_vocab] of the first draft token after each position, which give alpha."""

    @abstractmethod
    def export(self, network: Any, folder: Path) -> None:
        """Write the draft's folder; existing files are replaced one by one."""

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """Open (target, draft) of a folder that `export` wrote, as `specdec.generate` takes them."""
        return self.target, load_draft(folder, self.target)

    @property
    def taps(self) -> Sequence[int]:
        """Captured hidden states of batches, by layer, as `Model.hidden_states` takes them."""
        return ()

    def writer(self, network: Any, folder: Path) -> TextWriter:
        """Return what writes texts as this draft; `folder` may be used for an export."""
        raise InputError.of("data", self.settings.data, f"'target' or 'text' for kind {self.name!r}")

    def is_table(self, name: str) -> bool:
        """Return whether AdamW trains a matrix, a table or a head by its name; Muon trains others."""
        return any(part in name for part in ("embed", "output", "lm_head"))

    def target_logits(self, network: Any, batch: Batch) -> Tensor | None:
        """Logits [n, time, n_vocab] of a target that is trained itself; None for one that stays as it is."""
        return None

    def finish(self, folder: Path, texts: Texts) -> None:  # noqa: B027
        """Settle what depends on the trained draft in `folder`; `texts` are held-out ones of the target."""

    def rate(self, name: str) -> float:
        """Return the factor of the learning rate of a parameter, by its name."""
        return 1.0

    def check_begun(self, found: Mapping[str, object], asked: Mapping[str, object] | None = None) -> None:
        """Refuse settings `asked` that contradict those `found` in the folder ``settings.begin``.

        By default they are what the caller has set, except a 0 that stands for what fits.
        """
        if asked is None:
            shape = self.shape
            opened = [each.name for each in fields(shape) if type(each.default) is int and not each.default]
            given = {name: getattr(shape, name) for name in self.settings.shape}
            asked = {name: value for name, value in given.items() if value or name not in opened}
        for name, value in asked.items():
            if name in found and found[name] != value:
                expected = f"{found[name]}, as the draft in {self.settings.begin} has it"
                raise InputError.of(name, value, expected)

    def frequent(self, n: int) -> Tensor:
        """Return the ids [n] of the tokens that occur most often in the training's texts, ascending."""
        counts = np.zeros(self.target.config.n_vocab) if self.token_counts is None else self.token_counts()
        return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:n]).astype(np.int64))


class LearnedTrainer(DraftTrainer):
    """The trainer of a draft whose folder is `LearnedWeights`, of their `method`."""

    method: ClassVar[str]

    def begun(self) -> LearnedWeights | None:
        """Open the folder ``settings.begin``, of a draft for this target; None if there is none."""
        begin = self.settings.begin
        return None if begin is None else LearnedWeights.of_method(Path(begin), self.method, self.target)

    def save(
        self, folder: Path, fields: Mapping[str, Any], numbers: Mapping[str, NDArray[Any]],
        draft_ids: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the draft's folder."""
        tokens = None if draft_ids is None else draft_ids.numpy(force=True)
        weights = LearnedWeights.of(self.method, self.target, fields, numbers, taps=self.taps, tokens=tokens)
        weights.save(folder, self.settings.weights)


def trainer_type(kind: str) -> type[DraftTrainer]:
    """Return the trainer of a method by its name."""
    method = METHODS[check_choice("kind", kind, tuple(METHODS))]
    found: type[DraftTrainer] = method.load("trainer", method.trainer)
    return found


def shape_of(shape_type: type, given: Mapping[str, object], kind: str) -> Any:
    """Make a dataclass of numbers and flags from texts by name."""
    known = {each.name: each.default for each in fields(shape_type)}
    for name in given:
        if name not in known:
            expected = f"a setting of kind {kind!r}: {', '.join(known) or 'none'}"
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
