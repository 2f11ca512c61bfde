"""Benchmark questions and answers: files of Spec-Bench and SPEED-Bench, or any JSONL of prompts."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

from specdec.atomic_file import replacing
from specdec.checks import as_integer, check_integer, check_items, check_path
from specdec.decoding.result import Result
from specdec.errors import InputError, MissingPackageError, type_of
from specdec.fields import MAX_TIME, Fields, as_json, parse_json, read_json_object
from specdec.trace import Step, steps_of

_TURNS: Final = ("turns", "prompt", "messages", "question", "text")
"""Fields that may hold the question; the first one present counts."""
_IDS: Final = ("question_id", "id", "task_id", "prompt_id")
"""Fields that may hold the id; the first one present counts."""
_PLACEHOLDER: Final = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Placeholder in SPEED-Bench's files for texts that its authors may not redistribute."""


@dataclass(frozen=True)
class Question:
    """A benchmark question, of one or more turns.

    `id` is unique in a list of questions, `category` groups the results, `turns` are the user's messages (at
    least one), and `system` is an optional system message for the chat template.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]
    system: str | None = None

    def __post_init__(self) -> None:
        number = self.id if isinstance(self.id, str) and self.id else as_integer(self.id)
        if number is None:
            raise InputError.of("id", self.id, "an integer or a text")
        expected = "a sequence of at least one text"
        turns = () if isinstance(self.turns, str) else tuple(check_items("turns", self.turns, expected))
        if not turns:
            raise InputError.of("turns", self.turns, expected)
        texts = {"category": self.category} | {f"turns[{i}]": turn for i, turn in enumerate(turns)}
        for name, text in texts.items():
            if not isinstance(text, str) or not text:
                raise InputError.of(name, text, "a non-empty text")
        if not (self.system is None or isinstance(self.system, str)):
            raise InputError.of("system", self.system, "a text, or None")
        object.__setattr__(self, "id", number)
        object.__setattr__(self, "turns", turns)


QuestionsLike: TypeAlias = str | os.PathLike[str] | Iterable[Question | str]
"""A file of questions, or a sequence of questions and prompts."""


def read_questions(
    path: str | os.PathLike[str], *, categories: Sequence[str] | None = None, limit: int | None = None
) -> list[Question]:
    """Read benchmark questions from a file.

    A ``.parquet`` file, as SPEED-Bench's ``prepare_data.py`` writes it, is read with pyarrow. Any other file
    is JSONL with one question per line: a text, or an object with these fields:

    - ``turns`` (Spec-Bench, SPEED-Bench), or ``prompt``, ``messages``, ``question`` or ``text``: the
      question, a text or a list of texts. ``messages`` has objects with ``role`` and ``content``: user
      messages become the turns, a first system message becomes `Question.system`.
    - ``question_id``, or ``id``, ``task_id`` or ``prompt_id``: an integer or a text; by default the line
      number.
    - ``category``: a text; by default the name of the file without its suffix.

    Parameters
    ----------
    path : path-like
    categories, limit : sequence of str, int, optional
        Read only these categories, and only the first `limit` questions of each.

    Returns
    -------
    list of Question
        In the order of the file, at least one.

    Raises
    ------
    InputError
        If the file cannot be read, is not JSONL or Parquet, has no question (of a category), or a duplicate
        or invalid field. The message names the file, the line and the field.
    MissingPackageError
        If a Parquet file is given and pyarrow is not installed: ``pip install 'specdec-cpu[parquet]'``.

    Examples
    --------
    >>> questions = specdec.read_questions("Spec-Bench/data/spec_bench/question.jsonl")
    >>> len(questions), questions[0].category
    (480, 'writing')
    """
    file = check_path("path", path)
    read = _parquet_rows if file.suffix == ".parquet" else _json_lines
    questions: list[Question] = []
    locations: dict[int | str, str] = {}
    for number, location, value in read(file):
        question = _question(file, number, location, value)
        if question.id in locations:
            found = f"{as_json(question.id)}, as in {locations[question.id]}"
            raise InputError.of(f"{location}: id", question.id, "another for each question", found)
        locations[question.id] = location.removeprefix(f"{file}, ")
        questions.append(question)
    if not questions:
        raise InputError(f"{file}: has no questions; expected at least one")
    return _chosen(questions, categories, limit)


def _chosen(questions: list[Question], categories: Sequence[str] | None, limit: int | None) -> list[Question]:
    """Select the first questions of some categories."""
    known = list(dict.fromkeys(question.category for question in questions))
    wanted = known if categories is None else check_items("categories", categories, "a sequence of texts")
    if isinstance(categories, str) or not wanted:
        raise InputError.of("categories", categories, "a sequence of at least one text")
    for one in wanted:
        if not isinstance(one, str) or one not in known:
            raise InputError.of("categories", one, f"some of {', '.join(map(repr, known))}", verb="has")
    most = len(questions) if limit is None else check_integer("limit", limit, 1)
    of_category = ([one for one in questions if one.category == name][:most] for name in wanted)
    kept = {one.id for several in of_category for one in several}
    return [question for question in questions if question.id in kept]


def questions_of(given: QuestionsLike) -> list[Question]:
    """Return the `questions` argument as questions with distinct ids; paths are read, texts converted."""
    if isinstance(given, str | os.PathLike):
        return read_questions(given)
    questions: dict[int | str, Question] = {}
    for i, item in enumerate(check_items("questions", given, "a path, or questions and prompts")):
        if isinstance(item, str):
            try:
                item = Question(i + 1, "prompts", (item,))
            except InputError as error:
                raise InputError(f"questions[{i}]: {error}") from None
        if not isinstance(item, Question):
            raise InputError.of(f"questions[{i}]", item, "a specdec.Question, or a text", found=type_of(item))
        if item.id in questions:
            raise InputError.of("questions", item.id, "distinct ids", verb="has twice the id")
        questions[item.id] = item
    if not questions:
        raise InputError("questions is empty; expected at least one")
    return list(questions.values())


def _json_lines(file: Path) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, location, value) for each non-empty line."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from error
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        location = f"{file}, line {number}"
        try:
            value = parse_json(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{location}: is not valid JSON ({error}); expected objects") from error
        yield number, location, value


def _parquet_rows(file: Path) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, location, value) for each row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackageError(
            "a .parquet file needs pyarrow, which is not installed: pip install 'specdec-cpu[parquet]'"
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                for value in batch.to_pylist():
                    number += 1
                    yield number, f"{file}, row {number}", value
    except FileNotFoundError as error:
        raise InputError(f"{file}: cannot be read: no such file") from error
    except (pyarrow.ArrowException, OSError, ValueError, ArithmeticError) as error:  # the last two: values
        raise InputError(f"{file}: is not a Parquet file ({error}); expected one question per row") from error


def _question(file: Path, number: int, location: str, value: Any) -> Question:
    """Make the question of a line or row; errors name the location and field."""
    given = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(given, dict):
        raise InputError.of(location, value, "a text, or an object with 'turns' or 'prompt'")
    given = {name: one for name, one in given.items() if one is not None}
    asked = next((name for name in _TURNS if name in given), None)
    if asked is None:
        names = ", ".join(map(repr, _TURNS))
        raise InputError(f"{location}: has none of the fields {names}; expected the question in one of them")
    turns, system = {asked: given[asked]}, None
    if asked == "messages":
        turns, system = _turns_of_messages(location, given[asked])
    elif isinstance(given[asked], list):
        turns = {f"{asked}[{i}]": turn for i, turn in enumerate(given[asked])}
    elif not isinstance(given[asked], str) or not given[asked]:
        raise InputError.of(f"{location}: {asked}", given[asked], "a text, or a list of texts")
    for name, turn in turns.items():
        if isinstance(turn, str) and turn.startswith(_PLACEHOLDER):
            expected = "the text itself: run SPEED-Bench's prepare_data.py to fetch it"
            raise InputError.of(f"{location}: {name}", turn, expected)
    names_id = next((name for name in _IDS if name in given), "id")
    category = given.get("category", file.stem)
    try:
        return Question(given.get(names_id, number), category, tuple(turns.values()), system)
    except InputError as error:
        fields = {"id": names_id, "turns": asked} | {f"turns[{i}]": name for i, name in enumerate(turns)}
        name = str(fields.get(str(error.argument), error.argument))
        raise InputError.of(f"{location}: {name}", error.value, str(error.expected)) from None


def _turns_of_messages(location: str, value: Any) -> tuple[dict[str, Any], Any]:
    """Return (user messages by field, first system message) of a conversation."""
    expected = "an object with 'role' and 'content'"
    if not isinstance(value, list):
        raise InputError.of(f"{location}: messages", value, f"a list; each is {expected}")
    turns, system = {}, None
    for i, message in enumerate(value):
        if not isinstance(message, dict):
            raise InputError.of(f"{location}: messages[{i}]", message, expected)
        role, content = message.get("role"), message.get("content")
        if role == "system" and i == 0:
            if not isinstance(content, str) or not content:
                expected = "a non-empty text"
                raise InputError.of(f"{location}: messages[0].content", content, expected)
            system = content
        elif role == "user":
            turns[f"messages[{i}].content"] = content
        elif role != "assistant":
            roles = "'user' or 'assistant', or 'system' for the first message"
            raise InputError.of(f"{location}: messages[{i}].role", role, roles)
    return turns, system


_OURS: Final = "specdec"
"""Field of a line for data that Spec-Bench's fields cannot hold."""
_OF_REPLY: Final = ("tokens", "n_prompt_tokens", "finish_reason", "prefill_s", "rounds_s")
"""Its fields of a `Reply`; those of the steps are there too, each as a list."""


@dataclass(frozen=True)
class Reply:
    """Reply to one turn: its `tokens`, end of text included, were made in `steps` target forward passes.

    `n_prompt_tokens` includes earlier turns, or is the source. `wall_s` is the time of the whole call,
    `prefill_s` of prompt processing and `rounds_s` of decoding, in seconds.
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
        """Make the reply of a run that took `wall_s` seconds."""
        prompt, trace = result.prompt_ids if result.source_ids is None else result.source_ids, result.trace
        return cls(
            result.text or "", tuple(result.tokens), len(prompt), result.finish_reason, wall_s,
            trace.prefill_s, trace.rounds_s, steps_of(trace),
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Replies to a question, turn by turn; `left_out` says why turns are missing, if any."""

    replies: tuple[Reply, ...]
    left_out: str = ""

    @property
    def n_tokens(self) -> int:
        """Number of new tokens over all turns."""
        return sum(len(reply.tokens) for reply in self.replies)


class AnswerFile:
    """Answers of one configuration in one repetition: a JSONL file, appended question by question.

    Lines have Spec-Bench's fields, and "specdec", from which answers are read back. An incomplete last line,
    of an interrupted program, is overwritten. InputError names file, line and field.
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
        """Return the stored answer to a question, or None; raises if its id belongs to another question."""
        digest, answer = self._answers.get(question.id, ("", None))
        if answer is not None and digest != _digest(question):
            expected = "another folder for other questions"
            found = f"{self.path}: has the answer to a different question {as_json(question.id)}"
            raise InputError(f"{found}; expected {expected}")
        return answer

    def add(self, question: Question, answer: Answer) -> None:
        """Append an answer; raises if another program has changed the file."""
        line = json.dumps(_line(question, answer, self.model_id), ensure_ascii=False, allow_nan=False)
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            with open(self.path, "ab") as file:
                if file.tell() != self._found:
                    raise InputError(f"{self.path}: was changed by another program")
                file.truncate(self._size)
                file.write(data)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        self._size += len(data)
        self._found = self._size
        self._answers[question.id] = _digest(question), answer


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Record the settings of the answers, or check that the recorded ones are equal."""
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
            ours, theirs = (as_json(one.get(name)) for one in (settings, found))
            expected = f"{ours}, as in this run, or another folder for its answers"
            raise InputError.of(f"{path}: {name}", found.get(name), expected, theirs)


def _digest(question: Question) -> str:
    """Return a digest that differs for other questions of the same id."""
    said = json.dumps([question.category, question.system, *question.turns])
    return blake2b(said.encode(), digest_size=8).hexdigest()


def _line(question: Question, answer: Answer, model_id: str) -> dict[str, Any]:
    """Return a line of the answer file."""
    replies = answer.replies
    choice = {
        "index": 0, "turns": [reply.text for reply in replies],
        "decoding_steps": [len(reply.steps) for reply in replies],
        "new_tokens": [len(reply.tokens) for reply in replies],
        "wall_time": [reply.wall_s for reply in replies],
        "accept_lengths": [step.n_emitted for reply in replies for step in reply.steps],
    }  # fmt: skip
    ours = [
        {name: getattr(reply, name) for name in _OF_REPLY}
        | {name: [getattr(step, name) for step in reply.steps] for name in Step._fields}
        for reply in replies
    ]
    return {
        "question_id": question.id, "category": question.category, "answer_id": uuid.uuid4().hex,
        "model_id": model_id, "choices": [choice], "tstamp": time.time(),
        _OURS: {"question": _digest(question), "left_out": answer.left_out, "replies": ours},
    }  # fmt: skip


def _read(location: str, line: bytes) -> tuple[int | str, str, Answer]:
    """Return (question id, its digest, answer) of a line."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: is not valid JSON ({error}); expected an answer") from error
    found = Fields(values, location, error_type=InputError)
    choices, ours = found.inner_items("choices"), found.inner(_OURS)
    if len(choices) != 1:
        raise found.error("choices", "a list with one object")
    texts, seconds = choices[0].texts("turns"), choices[0].amounts("wall_time")
    replies = ours.inner_items("replies")
    if not 0 < len(replies) == len(texts) == len(seconds):
        raise ours.error("replies", "one per choices[0].turns and choices[0].wall_time, at least one")
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
        raise found.error("betas", f"as many entries as {', '.join(counts)}")
    tokens = found.integers("tokens")
    if not tokens or len(tokens) != sum(columns[-1]):
        raise found.error("tokens", "the sum of n_emitted, at least one")
    prefill_s, rounds_s = (found.amount(name, below=MAX_TIME) for name in ("prefill_s", "rounds_s"))
    n_prompt, reason = found.integer("n_prompt_tokens", minimum=0), found.text("finish_reason")
    steps = map(Step._make, zip(*columns, map(tuple, betas), strict=True))
    return Reply(text, tuple(tokens), n_prompt, reason, wall_s, prefill_s, rounds_s, tuple(steps))
