"""What every kind of draft tells its trainer; `registry` lists the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.drafts.draft import Draft
from specdec.errors import InputError, shown
from specdec.learning.draft_vocabulary import most_frequent
from specdec.learning.target_law import Objective
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.settings import TrainingSettings
from specdec.training.written_texts import Texts, TextWriter

__all__ = ["Kind"]


class Kind(ABC):
    """A kind of draft: its network, what a step of it needs, its loss, its folder.

    Parameters
    ----------
    target : Model
    settings : TrainingSettings

    Attributes
    ----------
    name : str
        By which it is asked for.
    shape_type : type
        A frozen dataclass of numbers and truth values: the settings of the network that a caller may change.
    learning_rate : float
        Where the caller does not say.
    gamma : int
        Guesses a round of the runs that show what it is worth.
    token_counts : callable or None
        Gives how often each token occurs in the texts of the training; the trainer sets it.
    say : callable
        Told, in words, what takes long; the trainer sets it.
    """

    name: ClassVar[str]
    shape_type: ClassVar[type]
    learning_rate: ClassVar[float] = 4e-3
    gamma: int = 4

    def __init__(self, target: Model, settings: TrainingSettings) -> None:
        self.target, self.settings = target, settings
        self.token_counts: Callable[[], NDArray[np.int64]] | None = None
        self.say: Callable[[str], object] = lambda text: None

    # -- what must be there -------------------------------------------------------------------------------

    @abstractmethod
    def network(self) -> Any:
        """A ``torch.nn.Module`` of fresh weights, or of those of ``settings.begin``.

        torch's random numbers have been seeded.
        """

    @abstractmethod
    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """A step's loss, a scalar: what `objective` says of laws and logits, over the positions with weights.

        `progress` is the share of the steps that are done, from 0 to 1, for curricula.
        """

    @abstractmethod
    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """Logits [n, time, n_vocab] of the draft's first guess, at each position for the token after it.

        They are compared with the target's law at the same positions, which gives alpha. -inf for tokens that
        it never guesses.
        """

    @abstractmethod
    def export(self, network: Any, folder: Path) -> None:
        """Write the draft's folder; files that are there are replaced one by one."""

    @abstractmethod
    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """(target, draft) of a folder that `export` wrote, as `specdec.generate` takes them."""

    # -- what may be there --------------------------------------------------------------------------------

    @property
    def taps(self) -> Sequence[int]:
        """The hidden states of batches, by layer, as `Model.hidden_states` takes them."""
        return ()

    def writer(self, network: Any, folder: Path) -> TextWriter:
        """Who writes texts as this draft; `folder` may be used for an export.

        Raises
        ------
        InputError
            The draft writes no texts of its own.
        """
        raise InputError(
            f"data is {shown(self.settings.data)}, but a draft of kind {self.name!r} writes no texts of its "
            "own; expected 'target' or 'text'"
        )

    def is_table(self, name: str) -> bool:
        """Whether a matrix is a table or a head, by its name: AdamW trains it, not Muon."""
        return any(part in name for part in ("embed", "output", "lm_head"))

    def target_logits(self, network: Any, batch: Batch) -> Tensor | None:
        """Logits [n, time, n_vocab] of a target that is trained itself; None for one that stays as it is."""
        return None

    def finish(self, folder: Path, texts: Texts) -> None:  # noqa: B027
        """Settle what depends on the trained draft in `folder`; `texts` are held-out ones of the target."""

    def rate(self, name: str) -> float:
        """What the learning rate of a parameter is multiplied by, by its name."""
        return 1.0

    @property
    def words(self) -> Sequence[str]:
        """What the summary says of this kind, a line each."""
        return ()

    # -- help ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Any:
        """`shape_type` with the caller's settings.

        Raises
        ------
        InputError
            A setting that there is not, or a value that is none.
        """
        return shape_of(self.shape_type, self.settings.shape, self.name)

    def check_begun(self, found: Mapping[str, object], asked: Mapping[str, object] | None = None) -> None:
        """Refuse settings that contradict the folder ``settings.begin``.

        Parameters
        ----------
        found : mapping
            What the folder's draft has, by the names of settings.
        asked : mapping, optional
            What it should have; None: what the caller has set, but for a 0 that stands for what fits.

        Raises
        ------
        InputError
        """
        if asked is None:
            shape = self.shape
            opened = [each.name for each in fields(shape) if type(each.default) is int and not each.default]
            given = {name: getattr(shape, name) for name in self.settings.shape}
            asked = {name: value for name, value in given.items() if value or name not in opened}
        for name, value in asked.items():
            if name in found and found[name] != value:
                raise InputError(
                    f"--set {name}={value}, but the draft in {self.settings.begin} has {name} {found[name]}; "
                    f"expected {name}={found[name]}"
                )

    def frequent(self, n: int) -> Tensor:
        """The ids [n] of the tokens that occur most often in the training's texts, ascending."""
        counts = np.zeros(self.target.config.n_vocab) if self.token_counts is None else self.token_counts()
        return most_frequent(counts, n)


def shape_of(shape_type: type, given: Mapping[str, str], kind: str) -> Any:
    """A dataclass of numbers and truth values from texts by name."""
    known = {each.name: each for each in fields(shape_type)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            raise InputError(
                f"--set has {shown(name)}; expected a setting of kind {kind!r}: {', '.join(known) or 'none'}"
            )
        default = known[name].default
        values[name] = _value(name, str(text), default)
    return shape_type(**values)


def _value(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if isinstance(default, int):
            number = int(text)
            if not 0 <= number < 1 << 20:
                raise ValueError
            return number
        if isinstance(default, float):
            return float(text)
    except (KeyError, ValueError):
        expected = "true or false" if isinstance(default, bool) else "a number, at least 0"
        raise InputError(f"--set {name}={text}; expected {expected}") from None
    return text
