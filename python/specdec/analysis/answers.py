"""Answers to the questions of a benchmark, and their files, in the format of Spec-Bench."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from specdec.analysis.questions import Question
from specdec.atomic_file import replacing
from specdec.decoding.result import Result
from specdec.errors import InputError
from specdec.fields import MAX_TIME, Fields, as_json, read_json_object
from specdec.trace import Step, steps_of

_OURS: Final = "specdec"
"""The field of a line with what Spec-Bench's own have no place for."""
_OF_REPLY: Final = ("tokens", "n_prompt_tokens", "finish_reason", "prefill_s", "rounds_s")
"""Fields of `Reply` in it; those of its steps are there too, each as a list."""


@dataclass(frozen=True)
class Reply:
    """The answer to one turn of a question; `tokens` are the new ids, an end-of-text token included.

    `n_prompt_tokens` counts earlier turns too; of an encoder-decoder it counts the source. `wall_s` are the
    seconds of the whole call, of which the models read the prompt in `prefill_s` and decoded in `rounds_s`.
    `steps` has one for each run of the target.
    """

    text: str
    tokens: tuple[int, ...]
    n_prompt_tokens: int
    finish_reason: str
    wall_s: float
    prefill_s: float
    rounds_s: float
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, result: Result, wall_s: float) -> Reply:
        """From a run that took `wall_s` seconds."""
        prompt = result.prompt_ids if result.source_ids is None else result.source_ids
        return cls(
            text=result.text or "",
            tokens=tuple(result.tokens),
            n_prompt_tokens=len(prompt),
            finish_reason=result.finish_reason,
            wall_s=wall_s,
            prefill_s=result.trace.prefill_s,
            rounds_s=result.trace.rounds_s,
            steps=steps_of(result.trace),
        )


@dataclass(frozen=True)
class Answer:
    """The answers to a question, turn by turn: fewer than it has turns where `left_out` says why."""

    replies: tuple[Reply, ...]
    left_out: str = ""

    @property
    def n_tokens(self) -> int:
        """New tokens of all turns."""
        return sum(len(reply.tokens) for reply in self.replies)

    @property
    def wall_s(self) -> float:
        """Seconds of all turns."""
        return sum(reply.wall_s for reply in self.replies)

    @property
    def rounds_s(self) -> float:
        """Seconds of the rounds of all turns."""
        return sum(reply.rounds_s for reply in self.replies)


class AnswerFile:
    """The answers of one way to decode in one repetition: a line for each question, appended.

    A line has the fields of Spec-Bench, whose own tools read it, and one more, "specdec", from which the
    answer is read again. A last line without an end, of a program that was killed while it wrote, does not
    count and is overwritten. What cannot be read, written or understood raises InputError, which names file,
    line and field.
    """

    def __init__(self, path: Path, model_id: str) -> None:
        self.path = path
        self.model_id = model_id
        self._answers: dict[int | str, tuple[str, Answer]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        self._found, self._size = len(data), data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._size].split(b"\n")[:-1], start=1):
            question_id, digest, answer = _read(f"{path}, line {number}", line)
            self._answers[question_id] = digest, answer

    def find(self, question: Question) -> Answer | None:
        """The answer to a question, None where there is none yet; another question of its id is refused."""
        digest, answer = self._answers.get(question.id, ("", None))
        if answer is not None and digest != _digest(question):
            raise InputError(
                f"{self.path}: has an answer to another question {as_json(question.id)}; expected another "
                "folder for the answers to other questions"
            )
        return answer

    def add(self, question: Question, answer: Answer) -> None:
        """Append an answer; refused if another program has changed the file meanwhile."""
        line = json.dumps(_line(question, answer, self.model_id), ensure_ascii=False, allow_nan=False)
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            with open(self.path, "ab") as file:
                if file.tell() != self._found:
                    raise InputError(f"{self.path}: has been changed by another program; expected none")
                file.truncate(self._size)
                file.write(data)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        self._size += len(data)
        self._found = self._size
        self._answers[question.id] = _digest(question), answer


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write down what answers are made with, or, where that is written already, see that it is the same."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with replacing(path) as file:
                file.write((json.dumps(settings, indent=1) + "\n").encode("utf-8"))
            return
    except OSError as error:
        raise InputError(f"{path}: cannot be read or written: {error.strerror or error}") from error
    found = read_json_object(path, InputError)
    for name in {**settings, **found}:
        if found.get(name) != settings.get(name):
            raise InputError(
                f"{path}: field '{name}' is {as_json(found.get(name))}, and this run has "
                f"{as_json(settings.get(name))}; expected the same, or another folder for its answers"
            )


def _digest(question: Question) -> str:
    """A digest that differs for another question of the same id."""
    said = json.dumps([question.category, question.system, *question.turns])
    return blake2b(said.encode(), digest_size=8).hexdigest()


def _line(question: Question, answer: Answer, model_id: str) -> dict[str, Any]:
    """A line of a file of answers."""
    replies = answer.replies
    return {
        "question_id": question.id,
        "category": question.category,
        "answer_id": uuid.uuid4().hex,
        "model_id": model_id,
        "choices": [
            {
                "index": 0,
                "turns": [reply.text for reply in replies],
                "decoding_steps": [len(reply.steps) for reply in replies],
                "new_tokens": [len(reply.tokens) for reply in replies],
                "wall_time": [reply.wall_s for reply in replies],
                "accept_lengths": [step.n_emitted for reply in replies for step in reply.steps],
            }
        ],
        "tstamp": time.time(),
        _OURS: {
            "question": _digest(question),
            "left_out": answer.left_out,
            "replies": [
                {name: getattr(reply, name) for name in _OF_REPLY}
                | {name: [getattr(step, name) for step in reply.steps] for name in Step._fields}
                for reply in replies
            ],
        },
    }


def _read(place: str, line: bytes) -> tuple[int | str, str, Answer]:
    """(id of the question, its digest, the answer) of a line."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is no JSON ({error}); expected an answer") from error
    found = Fields(values, place, kind=InputError)
    choices, ours = found.inner_items("choices"), found.inner(_OURS)
    if len(choices) != 1:
        raise found.error("choices", "a list with one object")
    texts, seconds = choices[0].texts("turns"), choices[0].amounts("wall_time")
    replies = ours.inner_items("replies")
    if not 0 < len(replies) == len(texts) == len(seconds):
        raise ours.error("replies", "as many as choices[0].turns and choices[0].wall_time, at least one")
    read = tuple(map(_reply, replies, texts, seconds))
    question_id = found.given("question_id")
    if isinstance(question_id, bool) or not isinstance(question_id, int | str):
        raise found.error("question_id", "an integer or a str")
    return question_id, ours.text("question"), Answer(read, ours.text("left_out"))


def _reply(found: Fields, text: str, wall_s: float) -> Reply:
    *counts, _ = Step._fields
    columns = [found.integers(name) for name in counts]
    betas = found.rows_of_amounts("betas")
    if {len(column) for column in columns} != {len(betas)}:
        raise found.error("betas", f"as many as {', '.join(counts)} have")
    tokens = found.integers("tokens")
    if not tokens or len(tokens) != sum(columns[-1]):
        raise found.error("tokens", "as many as n_emitted adds up to, at least one")
    return Reply(
        text=text,
        tokens=tuple(tokens),
        n_prompt_tokens=found.integer("n_prompt_tokens", minimum=0),
        finish_reason=found.text("finish_reason"),
        wall_s=wall_s,
        prefill_s=found.amount("prefill_s", below=MAX_TIME),
        rounds_s=found.amount("rounds_s", below=MAX_TIME),
        steps=tuple(map(Step._make, zip(*columns, map(tuple, betas), strict=True))),
    )
