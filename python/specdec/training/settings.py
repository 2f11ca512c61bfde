"""What a training is asked for: a table of options, from which the command line is made too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from specdec.atomic_file import replacing
from specdec.checks import check_choice, check_integer, check_number
from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.errors import CheckpointError, InputError

Loss: TypeAlias = Literal["fkl-tvd"] | DivergenceName
Data: TypeAlias = Literal["target", "draft", "mixture", "text"]

LOSSES: tuple[Loss, ...] = ("fkl-tvd", *DIVERGENCES)
DATA: tuple[Data, ...] = ("target", "draft", "mixture", "text")
_FREE = ("minutes", "threads")
"""What may change when a training continues."""
_POSITIVE = "a finite number above 0"


def option(default: Any, help: str, **more: Any) -> Any:
    """Make a row of the table: `low` an integer's least value, `choices` words, `metavar` for the usage."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `specdec.training.train_draft`.

    Attributes
    ----------
    loss : {"fkl-tvd", "fkl", "rkl", "jsd", "tvd"}
        Forward or reverse Kullback-Leibler divergence, Jensen-Shannon divergence, total variation distance,
        which is the chance of a rejection; or the first and then the last.
    beta : float
        Of the Jensen-Shannon divergence.
    temperature : float
        Of the distributions that are compared.
    data : {"target", "draft", "mixture", "text"}
        What writes the texts: the target; the draft as it is by then, or both in turn (DistillSpec's
        on-policy data); or nothing: pieces of the file of prompts.
    seed : int
    minutes : float or None
        Limit of all of it, from loading the target to measuring the draft; None: 10. The trainer measures how
        fast the target writes and how long a step takes, and reports how many texts and steps that allows: at
        least two held-out texts, the texts of a step, and one step, however long they take.
    steps : int or None
        Steps in place of minutes: then a seed fixes the weights to the bit, on one machine and number of
        threads.
    length : int or None
        Tokens of a text; None: 256, or the context if that is shorter; less if the minutes are too few.
    batch : int
        Texts a step.
    passes : int
        How often a text is trained on; those of the draft once.
    learning_rate : float or None
        None: that of the method.
    top : int
        Tokens of a distribution that are learned one by one, the others as one; 0: all, of more than 8192
        tokens 256.
    weights : {"bf16", "f32"}
        Number format of the draft's file.
    begin : path-like or None
        Folder of a draft to begin with, in place of random weights.
    after : sequence of path-like
        Folders of drafts that the new one shall complete: it learns what the target's distribution leaves
        after their draft tokens.
    threads : int or None
        None: :func:`specdec.threads.default_threads`.
    device : str or None
        Of torch. None: "cuda" where there is one, else "cpu".
    shape : mapping
        Settings of the method, such as ``{"d_model": 96}``.
    """

    loss: Loss = option("fkl-tvd", "(default: fkl-tvd)", choices=LOSSES)
    beta: float = option(0.5, "of jsd (default: 0.5)", metavar="B")
    temperature: float = option(1.0, "of the compared distributions (default: 1)", metavar="T")
    data: Data = option("target", "what writes the texts (default: target)", choices=DATA)
    seed: int = option(0, "(default: 0)", low=0, metavar="S")
    minutes: float | None = option(None, "limit of all of it (default: 10)", type=float, metavar="M")
    steps: int | None = option(
        None, "steps in place of minutes: a seed then fixes the weights", low=1, metavar="N"
    )
    length: int | None = option(None, "tokens of a text (default: 256)", low=8, metavar="N")
    batch: int = option(16, "texts a step (default: 16)", low=1, metavar="N")
    passes: int = option(4, "how often a text is used (default: 4)", low=1, metavar="N")
    learning_rate: float | None = option(None, "(default: the kind's)", type=float, metavar="R")
    top: int = option(0, "tokens of a distribution that are learned one by one", low=0, metavar="K")
    weights: str = option("bf16", "of the file (default: bf16)", choices=("bf16", "f32"))
    begin: Any = option(None, "folder of a draft to begin with", type=str, metavar="DIR")
    after: Any = option((), "drafts that the new one shall complete", metavar="DIR", several=True)
    threads: int | None = option(
        None, "(default: SPECDEC_NUM_THREADS, or the CPUs at hand)", low=1, metavar="N"
    )
    device: str | None = option(
        None, "of torch (default: cuda where there is one, else cpu)", type=str, metavar="NAME"
    )
    shape: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in fields(self):
            value = getattr(self, row.name)
            if "choices" in row.metadata:
                check_choice(row.name, value, row.metadata["choices"])
            elif "low" in row.metadata and value is not None:
                check_integer(row.name, value, row.metadata["low"])
        for name in ("temperature", "learning_rate", "minutes"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), _POSITIVE, lambda x: 0.0 < x < 1e9)
        if self.minutes is not None and self.steps is not None:
            raise InputError.of("steps", self.steps, "None with minutes: one of the two")
        check_number("beta", self.beta, "a number above 0 and below 1", lambda x: 0.0 < x < 1.0)
        if self.data in ("draft", "mixture") and self.passes != 1:
            object.__setattr__(self, "passes", 1)


@dataclass(frozen=True)
class TrainingSettings(TrainingOptions):
    """All that decides what a training does, settled; `kind` is the method's name.

    `target` and `prompts` identify the target and the prompts.
    """

    length: int = 256
    learning_rate: float = 4e-3
    threads: int = 1
    device: str = "cpu"
    kind: str = ""
    target: str = ""
    prompts: str = ""

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        with replacing(path) as file:
            file.write(json.dumps({"kind": self.kind, **asdict(self)}, indent=1).encode())

    def check_same(self, path: Path, prompts: str) -> None:
        """Refuse to continue a training that began with other settings, which are in the file `path`.

        `prompts` is the name of the prompts in a message.
        """
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(stored, dict):
                raise ValueError("it is no object")
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: expected the settings of a training ({error})") from error
        ours = json.loads(json.dumps(asdict(self)))
        folder = path.parent.parent
        for name in ours:
            if name not in _FREE and stored.get(name) != ours[name]:
                if name == "prompts":
                    raise InputError(
                        f"{prompts}: other prompts than those that the training in {folder} "
                        "began with; expected the same content, or another folder"
                    )
                expected = (
                    f"{stored.get(name)!r}, with which the training in {folder} began, or another folder"
                )
                raise InputError.of(name, ours[name], expected)
