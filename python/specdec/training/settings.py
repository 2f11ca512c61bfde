"""Options of a training, of the command line too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.errors import CheckpointError, InputError
from specdec.fields import read_json_object
from specdec.settings_table import check_settings, choice, integer, number, other

Loss: TypeAlias = Literal["fkl-tvd"] | DivergenceName
Data: TypeAlias = Literal["target", "draft", "mixture", "text"]

LOSSES: tuple[Loss, ...] = ("fkl-tvd", *DIVERGENCES)
DATA: tuple[Data, ...] = ("target", "draft", "mixture", "text")
WEIGHTS = ("bf16", "f32")
_FREE = ("minutes", "threads")  # options that may change when a training continues


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
        Forward or reverse Kullback-Leibler divergence, Jensen-Shannon divergence, or total variation distance
        (the rejection probability); "fkl-tvd" moves from the first to the last.
    beta : float
        Weight of the Jensen-Shannon divergence.
    temperature : float
        Temperature of the compared distributions.
    data : {"target", "draft", "mixture", "text"}
        Source of the texts: the target, the current draft, both alternating (on-policy data of DistillSpec),
        or pieces of the prompt file.
    seed : int
        Seed of texts and steps.
    minutes : float or None
        Time limit of the whole training, from loading to measuring; short limits may be exceeded. None: 10.
    steps : int or None
        Number of steps instead of minutes: a seed then fixes the weights to the bit, on one machine and
        number of threads.
    length : int or None
        Tokens per text. None: 256 or the context length, less if time is short.
    batch : int
        Texts per step.
    passes : int
        How many times to train on each text; once on texts of the draft.
    learning_rate : float or None
        None: the method's default.
    top : int
        Tokens of a distribution to learn individually. 0: all, or 256 for vocabularies above 8192.
    weights : {"bf16", "f32"}
        Number format of the draft's file.
    begin : path-like or None
        Folder of a draft to start from. None: random weights.
    after : sequence of path-like
        Folders of drafts to complement: the new draft learns the residual after their draft tokens.
    threads : int or None
        None: :func:`specdec.threads.default_threads`.
    device : str or None
        Torch device. None: "cuda" if available, else "cpu".
    shape : mapping
        Settings of the method, such as ``{"d_model": 96}``.
    """

    loss: Loss = choice("fkl-tvd", LOSSES, help=_words(LOSSES), flag="LOSS")
    beta: float = number(
        0.5, "a number above 0 and below 1", lambda x: 0.0 < x < 1.0, help="of jsd (default: 0.5)", flag="B"
    )
    temperature: float = _positive(1.0, help="of the compared distributions (default: 1)", flag="T")
    data: Data = choice("target", DATA, help=f"source of the texts: {_words(DATA)}", flag="DATA")
    seed: int = integer(0, 0, help="(default: 0)", flag="S")
    minutes: float | None = _positive(None, help="time limit of the whole training (default: 10)", flag="M")
    steps: int | None = integer(
        None, 1, help="number of steps instead of minutes, for reproducible weights", flag="N"
    )
    length: int | None = integer(None, 8, help="tokens per text (default: 256)", flag="N")
    batch: int = integer(16, 1, help="texts per step (default: 16)", flag="N")
    passes: int = integer(4, 1, help="passes over each text (default: 4)", flag="N")
    learning_rate: float | None = _positive(None, help="(default: the method's)", flag="R")
    top: int = integer(0, 0, help="tokens of a distribution to learn individually (0: most)", flag="K")
    weights: str = choice("bf16", WEIGHTS, help=f"format of the file: {_words(WEIGHTS)}", flag="FORMAT")
    begin: Any = other(None, help="folder of a draft to start from", flag="DIR", value_type=str)
    after: Any = other((), help="drafts that the new one complements", flag="DIR", many=True)
    threads: int | None = integer(
        None, 1, help="(default: SPECDEC_NUM_THREADS, or the available CPUs)", flag="N"
    )
    device: str | None = other(
        None, help="torch device (default: cuda if available, else cpu)", flag="NAME", value_type=str
    )
    shape: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.minutes is not None and self.steps is not None:
            raise InputError.of("steps", self.steps, "None, as minutes is given")
        if self.data in ("draft", "mixture"):
            object.__setattr__(self, "passes", 1)


@dataclass(frozen=True)
class TrainingSettings(TrainingOptions):
    """Resolved options of a training, and the identity of its target and prompts."""

    length: int = 256
    learning_rate: float = 4e-3
    threads: int = 1
    device: str = "cpu"
    method: str = ""
    target: str = ""
    prompts: str = ""

    def check_same(self, path: Path, prompts: str) -> None:
        """Refuse to continue a training whose settings file `path` differs."""
        stored, ours = read_json_object(path), json.loads(json.dumps(asdict(self)))
        folder = path.parent.parent
        if "method" not in stored:
            raise CheckpointError(f"{path}: was written by another version; expected a new folder")
        for name in ours:
            if name not in _FREE and stored.get(name) != ours[name]:
                if name == "prompts":
                    found = f"{prompts}: not the prompts of the training in {folder}"
                    raise InputError(f"{found}; expected the same content, or another folder")
                begun = f"{stored.get(name)!r}, as in the training in {folder}"
                raise InputError.of(name, ours[name], f"{begun}, or another folder")
