"""The amount of work in each stage of a training, chosen so that all of it takes the given minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specdec.fields import Fields, read_json_object
from specdec.models.model import Model
from specdec.time_limit import TimeLimit
from specdec.training.training_texts import STEPS_OF_GROUP, Prompts, continued

MOST_HELD_OUT: Final = 16  # texts at each temperature, if there is time
LENGTHS: Final = (256, 128, 64, 32)  # tokens of a text: the longest for which there is time is taken
_FEWEST_HELD_OUT: Final = 2
_PROBED: Final = 8  # tokens of each text that measure the speed
_STEPS: Final = 20  # for which there must be time when the length of texts is chosen
_MEASURING, _WRITING = 0.3, 0.3  # shares: held-out texts and measuring on them; texts to train on
_CAUTION: Final = 1.5  # safety factor: speed is measured on short texts, maybe in an idle moment
_OF_HELD_OUT: Final = 6  # times a token of a held-out text is computed: written, and in two drafts' betas


@dataclass(frozen=True)
class WritingSpeed:
    """Seconds that the target takes for a token, in a batch of texts and in a text alone."""

    batch_s: float
    single_s: float

    @classmethod
    def measured(
        cls, target: Model, prompts: Prompts, *, batch: int, n_threads: int, limit: TimeLimit
    ) -> WritingSpeed:
        """Measure it on a few tokens of `batch` texts at once, and of one, by the clock of `limit`."""
        seconds = []
        for n_texts in (batch, 1):
            begun = limit.spent_s
            given = [list(prompts.train[i % len(prompts.train)]) for i in range(n_texts)]
            length = min(max(map(len, given)) + _PROBED, target.config.n_ctx)
            seeds = [(0, i) for i in range(n_texts)]
            texts = continued(target, n_threads, given, length=length, temperature=1.0, seed=seeds)
            n_new = sum(len(text) for text in texts) - sum(map(len, given))
            seconds.append((limit.spent_s - begun) / max(1, n_new))
        return cls(*seconds)

    def held_out_s(self, n_texts: int, length: int) -> float:
        """Estimate the seconds to write held-out texts at two temperatures, and to measure two drafts."""
        return n_texts * length * (_OF_HELD_OUT * self.batch_s + 2 * self.single_s)

    def measuring_s(self, n_texts: int, length: int) -> float:
        """Estimate the part of `held_out_s` that comes after the training."""
        return self.held_out_s(n_texts, length) - 2 * n_texts * length * self.batch_s

    def reading_s(self, n_texts: int, length: int) -> float:
        """Estimate the seconds to look at texts of two temperatures once."""
        return 2 * n_texts * length * self.batch_s


def affordable_length(speed: WritingSpeed, batch: int, seconds: float, n_ctx: int) -> int:
    """Return the longest of `LENGTHS` with which some steps fit into the seconds; else the shortest."""
    lengths = sorted({min(length, n_ctx) for length in LENGTHS}, reverse=True)
    for length in lengths:
        steps_s = length * batch * (1 + _STEPS) * speed.batch_s
        if _CAUTION * (steps_s + speed.held_out_s(_FEWEST_HELD_OUT, length)) <= seconds:
            return length
    return lengths[-1]


@dataclass(frozen=True)
class TrainingPlan:
    """Numbers of texts of a training."""

    n_held_out: int  # at each temperature, which drafts are measured on
    n_texts: int  # written at once to train on: those of STEPS_OF_GROUP steps; if fewer, the only ones

    @classmethod
    def whole(cls, batch: int) -> TrainingPlan:
        """Return that without a limit of time."""
        return cls(MOST_HELD_OUT, STEPS_OF_GROUP * batch)

    @classmethod
    def within(cls, seconds: float, speed: WritingSpeed, *, length: int, batch: int) -> TrainingPlan:
        """Return that which fits into the seconds: at least two held-out texts, and those of a step."""
        most = cls.whole(batch)
        seconds /= _CAUTION
        n_held_out = max(int(_MEASURING * seconds / speed.held_out_s(1, length)), _FEWEST_HELD_OUT)
        n_texts = max(int(_WRITING * seconds / (length * speed.batch_s)), batch)
        return cls(min(n_held_out, most.n_held_out), min(n_texts, most.n_texts))

    @classmethod
    def load(cls, path: Path, batch: int) -> TrainingPlan:
        """Read it from a file."""
        fields, most = Fields(read_json_object(path), path), vars(cls.whole(batch))
        return cls(**{name: fields.integer(name, maximum=largest) for name, largest in most.items()})
