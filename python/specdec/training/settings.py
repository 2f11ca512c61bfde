"""What a training is asked for, checked; a training that goes on is held against what it began with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal, TypeAlias

from specdec.atomic_file import replacing
from specdec.checks import check_choice, check_integer, check_number
from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.errors import CheckpointError, InputError, shown

__all__ = ["DATA", "LOSSES", "TrainingSettings"]

Loss: TypeAlias = Literal["fkl-tvd"] | DivergenceName
Data: TypeAlias = Literal["target", "draft", "mixture", "text"]

LOSSES: tuple[Loss, ...] = ("fkl-tvd", *DIVERGENCES)
DATA: tuple[Data, ...] = ("target", "draft", "mixture", "text")
_FREE = ("minutes", "threads")
"""What may change when a training goes on."""


@dataclass(frozen=True)
class TrainingSettings:
    """All that decides what a training does, but for the target and the prompts themselves.

    Attributes
    ----------
    kind : str
        Name of the kind of draft.
    loss : str
        "fkl", "rkl", "jsd", "tvd": a divergence of DistillSpec; "fkl-tvd": forward KL at first, the total
        variation distance, which is the chance of a rejection, in the end.
    beta : float
        Of "jsd".
    temperature : float
        Of the laws that are compared.
    data : str
        Who writes the texts: the target, the draft as it is by then, half of them each, or nobody: "text"
        takes the file of prompts itself, cut into pieces.
    seed : int
    minutes : float or None
        What the training may take; the number of steps follows from it.
    steps : int or None
        Steps, in place of minutes.
    length : int
        Tokens of a text.
    batch : int
        Texts a step.
    passes : int
        How often a text is trained on. Texts of the draft: once.
    learning_rate : float
        Largest of the schedule.
    top : int
        Tokens of a law that are kept one by one; the others are one event. 0: all.
    weights : str
        Number format of the draft's file, "bf16" or "f32".
    begin : str or None
        Folder of the weights to begin with.
    after : tuple of str
        Folders of the drafts whose guesses this one shall complete.
    threads : int
    device : str
        Of torch.
    shape : mapping of str to str
        The kind's own settings, by name.
    target, prompts : str
        What identifies the target and the prompts.
    """

    kind: str
    loss: Loss = "fkl-tvd"
    beta: float = 0.5
    temperature: float = 1.0
    data: Data = "target"
    seed: int = 0
    minutes: float | None = None
    steps: int | None = None
    length: int = 256
    batch: int = 16
    passes: int = 4
    learning_rate: float = 4e-3
    top: int = 0
    weights: str = "bf16"
    begin: str | None = None
    after: tuple[str, ...] = ()
    threads: int = 1
    device: str = "cpu"
    shape: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    prompts: str = ""

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LOSSES)
        check_choice("data", self.data, DATA)
        check_choice("weights", self.weights, ("bf16", "f32"))
        for name, low in (
            ("seed", 0),
            ("length", 8),
            ("batch", 1),
            ("passes", 1),
            ("top", 0),
            ("threads", 1),
        ):
            check_integer(name, getattr(self, name), low)
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        positive = "a finite number above 0"
        for name in ("temperature", "learning_rate", "minutes"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), positive, lambda x: 0.0 < x < 1e9)
        if self.minutes is not None and self.steps is not None:
            raise InputError("minutes and steps are both given; expected one of them")
        check_number("beta", self.beta, "a number above 0 and below 1", lambda x: 0.0 < x < 1.0)
        if self.data in ("draft", "mixture") and self.passes != 1:
            object.__setattr__(self, "passes", 1)

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        with replacing(path) as file:
            file.write(json.dumps(asdict(self), indent=1).encode())

    def check_same(self, path: Path, prompts: str) -> None:
        """Refuse to go on with a training that began with other settings.

        Parameters
        ----------
        path : Path
            File of the settings that it began with.
        prompts : str
            What the prompts are called in a message.

        Raises
        ------
        InputError
            Says which setting it is.
        CheckpointError
            The file is damaged.
        """
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(stored, dict):
                raise ValueError("it is no object")
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: expected the settings of a training ({error})") from error
        ours = json.loads(json.dumps(asdict(self)))
        for each in fields(self):
            name = each.name
            if name not in _FREE and stored.get(name) != ours[name]:
                if name == "prompts":
                    raise InputError(
                        f"{prompts}: other prompts than those that the training in {path.parent.parent} "
                        "began with; expected the same content, or another folder"
                    )
                raise InputError(
                    f"{name} is {shown(ours[name])}, but the training in {path.parent.parent} began with "
                    f"{shown(stored.get(name))}; expected the same command, or another folder"
                )
