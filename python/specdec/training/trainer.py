"""The base of trainers: what training needs to know about a method of drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.checks import check_choice
from specdec.drafts import load as load_draft
from specdec.drafts.draft import Draft
from specdec.drafts.learned.methods import METHODS
from specdec.drafts.learned.objective import Objective, most_frequent
from specdec.errors import InputError, shown
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.settings import TrainingSettings
from specdec.training.training_texts import Texts, TextWriter


class DraftTrainer(ABC):
    """A method of drafts in training: its network, what a step needs, its loss, its folder.

    Attributes
    ----------
    name : str
        The name of the method, as ``--kind`` takes it.
    shape_type : type
        A frozen dataclass of numbers and flags: the settings of the network that a caller may change.
    learning_rate : float
        The default.
    gamma : int
        Draft tokens of a round in the runs that measure the draft.
    token_counts : callable or None
        Returns how often each token occurs in the texts of the training; set by the training.
    say : callable
        Takes progress messages; set by the training.
    words : sequence of str
        Lines of the summary.
    """

    name: ClassVar[str]
    shape_type: ClassVar[type]
    learning_rate: ClassVar[float] = 4e-3
    gamma: int = 4
    words: Sequence[str] = ()

    def __init__(self, target: Model, settings: TrainingSettings) -> None:
        self.target, self.settings = target, settings
        self.token_counts: Callable[[], NDArray[np.int64]] | None = None
        self.say: Callable[[str], object] = lambda text: None

    @abstractmethod
    def network(self) -> Any:
        """Make the ``torch.nn.Module``, of random weights or those of ``settings.begin``.

        torch's random numbers have been seeded.
        """

    @abstractmethod
    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """Return the loss of a step, a scalar over the positions with weights.

        `progress` is the share of the steps that are done, from 0 to 1, for curricula.
        """

    @abstractmethod
    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """Logits [n, time, n_vocab] of the first draft token after each position.

        They are compared with the target's distribution at the same positions, which gives alpha. -inf for
        tokens that are never drafted.
        """

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

    @property
    def shape(self) -> Any:
        """The settings of the network: `shape_type` with those of the caller."""
        return shape_of(self.shape_type, self.settings.shape, self.name)

    def check_begun(self, found: Mapping[str, object], asked: Mapping[str, object] | None = None) -> None:
        """Refuse settings that contradict the folder ``settings.begin``.

        `found` is what its draft has, by the names of settings; `asked` what it should have, by default what
        the caller has set, except a 0 that stands for what fits.
        """
        if asked is None:
            shape = self.shape
            opened = [each.name for each in fields(shape) if type(each.default) is int and not each.default]
            given = {name: getattr(shape, name) for name in self.settings.shape}
            asked = {name: value for name, value in given.items() if value or name not in opened}
        for name, value in asked.items():
            if name in found and found[name] != value:
                raise InputError.of(
                    name, value, f"{found[name]}, as the draft in {self.settings.begin} has it"
                )

    def frequent(self, n: int) -> Tensor:
        """Return the ids [n] of the tokens that occur most often in the training's texts, ascending."""
        counts = np.zeros(self.target.config.n_vocab) if self.token_counts is None else self.token_counts()
        return most_frequent(counts, n)


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
    return shape_type(**{name: _value(name, str(text), known[name]) for name, text in given.items()})


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
