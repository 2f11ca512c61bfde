"""What a training is asked for: a table of options, from which the command line is made too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.errors import InputError
from specdec.fields import read_json_object
from specdec.settings_table import check_settings, choice, integer, number, other

Loss: TypeAlias = Literal["fkl-tvd"] | DivergenceName
Data: TypeAlias = Literal["target", "draft", "mixture", "text"]

LOSSES: tuple[Loss, ...] = ("fkl-tvd", *DIVERGENCES)
DATA: tuple[Data, ...] = ("target", "draft", "mixture", "text")
WEIGHTS = ("bf16", "f32")
_FREE = ("minutes", "threads")  # what may change when a training continues


def _words(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]} (default: {words[0]})"


def _positive(default: float | None, **more: Any) -> Any:
    return number(default, "a finite number above 0", lambda x: 0.0 < x < 1e9, **more)


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `specdec.training.train_draft`.

    Attributes
    ----------
    loss : {"fkl-tvd", "fkl", "rkl", "jsd", "tvd"}
        Forward or reverse Kullback-Leibler divergence, Jensen-Shannon divergence (of `beta`), total variation
        distance, which is the chance of a rejection; or the first and then the last.
    beta : float
    temperature : float
        Of the distributions that are compared.
    data : {"target", "draft", "mixture", "text"}
        What writes the texts: the target; the draft as it is by then, or both in turn (DistillSpec's
        on-policy data); or nothing: pieces of the file of prompts.
    seed : int
    minutes : float or None
        Limit of all of it, from loading the target to measuring the draft, but for the least that a training
        needs; None: 10.
    steps : int or None
        In place of minutes: then a seed fixes the weights to the bit, on one machine and number of threads.
    length : int or None
        Tokens of a text; None: 256, or the context if that is shorter; less if the minutes are too few.
    batch : int
        Texts a step.
    passes : int
        How often a text is trained on; those of the draft once.
    learning_rate : float or None
        None: that of the method.
    top : int
        Tokens of a distribution that are learned one by one, not as one; 0: all, or 256 of more than 8192.
    weights : {"bf16", "f32"}
        Number format of the draft's file.
    begin : path-like or None
        Folder of a draft to begin with, in place of random weights.
    after : sequence of path-like
        Folders of drafts that the new one completes: it learns what remains after their draft tokens.
    threads : int or None
        None: :func:`specdec.threads.default_threads`.
    device : str or None
        Of torch. None: "cuda" where there is one, else "cpu".
    shape : mapping
        Settings of the method, such as ``{"d_model": 96}``.
    """

    loss: Loss = choice("fkl-tvd", LOSSES, help=_words(LOSSES), flag="LOSS")
    beta: float = number(
        0.5, "a number above 0 and below 1", lambda x: 0.0 < x < 1.0, help="of jsd (default: 0.5)", flag="B"
    )
    temperature: float = _positive(1.0, help="of the compared distributions (default: 1)", flag="T")
    data: Data = choice("target", DATA, help=f"what writes the texts: {_words(DATA)}", flag="DATA")
    seed: int = integer(0, 0, help="(default: 0)", flag="S")
    minutes: float | None = _positive(None, help="limit of all of it (default: 10)", flag="M")
    steps: int | None = integer(
        None, 1, help="steps in place of minutes: a seed then fixes the weights", flag="N"
    )
    length: int | None = integer(None, 8, help="tokens of a text (default: 256)", flag="N")
    batch: int = integer(16, 1, help="texts a step (default: 16)", flag="N")
    passes: int = integer(4, 1, help="how often a text is used (default: 4)", flag="N")
    learning_rate: float | None = _positive(None, help="(default: the method's)", flag="R")
    top: int = integer(0, 0, help="tokens of a distribution that are learned one by one", flag="K")
    weights: str = choice("bf16", WEIGHTS, help=f"of the file: {_words(WEIGHTS)}", flag="FORMAT")
    begin: Any = other(None, help="folder of a draft to begin with", flag="DIR", value_type=str)
    after: Any = other((), help="drafts that the new one shall complete", flag="DIR", many=True)
    threads: int | None = integer(
        None, 1, help="(default: SPECDEC_NUM_THREADS, or the CPUs at hand)", flag="N"
    )
    device: str | None = other(
        None, help="of torch (default: cuda where there is one, else cpu)", flag="NAME", value_type=str
    )
    shape: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.minutes is not None and self.steps is not None:
            raise InputError.of("steps", self.steps, "None with minutes: one of the two")
        if self.data in ("draft", "mixture"):
            object.__setattr__(self, "passes", 1)


@dataclass(frozen=True)
class TrainingSettings(TrainingOptions):
    """All that decides what a training does, settled, with what identifies the target and the prompts."""

    length: int = 256
    learning_rate: float = 4e-3
    threads: int = 1
    device: str = "cpu"
    method: str = ""  # the method's name
    target: str = ""
    prompts: str = ""

    def check_same(self, path: Path, prompts: str) -> None:
        """Refuse to continue a training that began with other settings, those of `path`, or other prompts."""
        stored, ours = read_json_object(path), json.loads(json.dumps(asdict(self)))
        folder = path.parent.parent
        for name in ours:
            if name not in _FREE and stored.get(name) != ours[name]:
                if name == "prompts":
                    begun = f"other prompts than those that the training in {folder} began with"
                    raise InputError(f"{prompts}: {begun}; expected the same content, or another folder")
                begun = f"{stored.get(name)!r}, with which the training in {folder} began"
                raise InputError.of(name, ours[name], f"{begun}, or another folder")
