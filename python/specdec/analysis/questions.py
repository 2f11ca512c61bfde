"""Questions that a benchmark asks: files of Spec-Bench and SPEED-Bench, and any JSONL of prompts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from specdec.checks import as_integer, check_integer, check_items, check_path
from specdec.errors import InputError, MissingPackageError, kind_of
from specdec.fields import as_json, parse_json

_TURNS: Final = ("turns", "prompt", "messages", "question", "text")
"""Fields that may hold what is asked; the first that a line has counts."""
_IDS: Final = ("question_id", "id", "task_id", "prompt_id")
"""Fields that name a question; the first that a line has counts."""
_PLACEHOLDER: Final = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench's files hold in place of texts that its authors may not pass on."""


@dataclass(frozen=True)
class Question:
    """What a benchmark asks a model, in one or several turns.

    `id` differs for each question of a list, `category` is what its figures are counted with, `turns` are
    what the user says, at least one, and `system` is a message before the first turn, for the chat template.
    InputError if a value is none of these.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]
    system: str | None = None

    def __post_init__(self) -> None:
        number = self.id if isinstance(self.id, str) and self.id else as_integer(self.id)
        expected = "a sequence of at least one text"
        turns = () if isinstance(self.turns, str) else tuple(check_items("turns", self.turns, expected))
        for name, fits, wanted in (
            ("id", number is not None, "an integer or a text"),
            ("category", _is_text(self.category), "a text"),
            ("turns", bool(turns), expected),
            ("system", self.system is None or isinstance(self.system, str), "a text, or None"),
        ):
            if not fits:
                raise InputError.of(name, getattr(self, name), wanted)
        for i, turn in enumerate(turns):
            if not _is_text(turn):
                raise InputError.of(f"turns[{i}]", turn, _A_TEXT)
        object.__setattr__(self, "id", number)
        object.__setattr__(self, "turns", turns)


_A_TEXT: Final = "a text of at least one character"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


QuestionsLike: TypeAlias = str | os.PathLike[str] | Iterable[Question | str]
"""A file of questions, or questions and prompts."""


def read_questions(
    path: str | os.PathLike[str], *, categories: Sequence[str] | None = None, limit: int | None = None
) -> list[Question]:
    """Read the questions of a benchmark.

    A file whose name ends with ``.parquet`` is read with pyarrow; SPEED-Bench comes in such files, as its
    authors' ``prepare_data.py`` writes them. Any other is JSONL: a question a line, empty lines aside. A line
    is a text, or an object with these fields:

    - ``turns`` (Spec-Bench, SPEED-Bench), else ``prompt``, ``messages``, ``question`` or ``text``: what is
      asked, a text or a list of texts. ``messages`` are objects with ``role`` and ``content``; what the user
      says there are the turns, what the system says first is `Question.system`, and the assistant's messages
      are left out.
    - ``question_id``, else ``id``, ``task_id`` or ``prompt_id``: an integer or a text; by default the number
      of the line.
    - ``category``: a text; by default the name of the file, without its ending.

    Parameters
    ----------
    path : path-like
    categories, limit : sequence of str, int, optional
        Read the questions of these categories alone, and the first so many of each, at least 1.

    Returns
    -------
    list of Question
        In the order of the file, at least one.

    Raises
    ------
    InputError
        The file cannot be read, is no JSONL or Parquet, has no question or two with one id or none of a
        category, or a field is something else. The message names the file, the line and the field.
    MissingPackageError
        A Parquet file, and pyarrow is not installed: ``pip install pyarrow``.

    Examples
    --------
    >>> questions = specdec.read_questions("Spec-Bench/data/spec_bench/question.jsonl")
    >>> len(questions), questions[0].category
    (480, 'writing')
    """
    file = check_path("path", path)
    read = _parquet_rows if file.suffix == ".parquet" else _json_lines
    questions: list[Question] = []
    places: dict[int | str, str] = {}
    for number, place, value in read(file):
        question = _question(file, number, place, value)
        if question.id in places:
            raise InputError(
                f"{place}: the id {as_json(question.id)} is that of {places[question.id]} too; expected "
                "another for each question"
            )
        places[question.id] = place.removeprefix(f"{file}, ")
        questions.append(question)
    if not questions:
        raise InputError(f"{file}: has no question; expected at least one")
    return _chosen(questions, categories, limit)


def _chosen(questions: list[Question], categories: Sequence[str] | None, limit: int | None) -> list[Question]:
    """The questions of some categories, the first ones of each."""
    known = list(dict.fromkeys(question.category for question in questions))
    wanted = known if categories is None else check_items("categories", categories, "a sequence of texts")
    if isinstance(categories, str) or not wanted:
        raise InputError.of("categories", categories, "a sequence of at least one text")
    for one in wanted:
        if not isinstance(one, str) or one not in known:
            raise InputError.of("categories", one, f"some of {', '.join(map(repr, known))}", verb="has")
    most = len(questions) if limit is None else check_integer("limit", limit, 1)
    counts = dict.fromkeys(known, 0)
    kept = []
    for question in questions:
        counts[question.category] += 1
        if question.category in wanted and counts[question.category] <= most:
            kept.append(question)
    return kept


def questions_of(given: QuestionsLike) -> list[Question]:
    """The argument `questions` as questions with different ids: a file is read, a text is a question."""
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
            raise InputError.of(f"questions[{i}]", item, "a specdec.Question, or a text", found=kind_of(item))
        if item.id in questions:
            raise InputError.of("questions", item.id, "different ids", verb="has twice the id")
        questions[item.id] = item
    if not questions:
        raise InputError("questions is empty; expected at least one")
    return list(questions.values())


def _json_lines(file: Path) -> Iterator[tuple[int, str, Any]]:
    """(number, place, value) of each line that is not empty."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from error
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            value = parse_json(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: is no JSON ({error}); expected an object a line") from error
        yield number, place, value


def _parquet_rows(file: Path) -> Iterator[tuple[int, str, Any]]:
    """(number, place, value) of each row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackageError(
            "a .parquet file needs pyarrow, which is not installed: pip install pyarrow"
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
    except (pyarrow.ArrowException, OSError, ValueError, ArithmeticError) as error:  # these of its values
        raise InputError(
            f"{file}: is no Parquet file ({error}); expected one with a question a row"
        ) from error


def _question(file: Path, number: int, place: str, value: Any) -> Question:
    """The question of a line or row."""
    given = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(given, dict):
        expected = "a text, or an object with 'turns' or 'prompt'"
        raise InputError(f"{place}: is {as_json(value)}; expected {expected}")
    name = _first_of(given, _TURNS)
    if name is None:
        names = ", ".join(map(repr, _TURNS))
        raise InputError(f"{place}: has none of the fields {names}; expected what is asked in one of them")
    asked, system = given[name], None
    if name == "messages":
        turns, system = _turns_of_messages(place, asked)
    elif isinstance(asked, list):
        turns = [_text(place, f"{name}[{i}]", one) for i, one in enumerate(asked)]
    else:
        turns = [_text(place, name, asked, "a text, or a list of texts")]
    if not turns:
        raise _error(place, name, asked, "at least one text")
    for i, turn in enumerate(turns):
        if turn.startswith(_PLACEHOLDER):
            expected = "the text itself, which the prepare_data.py of SPEED-Bench's authors fetches"
            raise _error(place, f"{name}[{i}]", turn, expected)
    named = _first_of(given, _IDS)
    question_id = number if named is None else given[named]
    if isinstance(question_id, bool) or not isinstance(question_id, int | str) or question_id == "":
        raise _error(place, named or "id", question_id, "an integer or a text")
    category = given.get("category")
    category = file.stem if category is None else _text(place, "category", category)
    return Question(question_id, category, tuple(turns), system)


def _first_of(value: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The first of some fields that an object has, null not counted."""
    return next((name for name in names if value.get(name) is not None), None)


def _text(place: str, name: str, value: Any, expected: str = _A_TEXT) -> str:
    if not _is_text(value):
        raise _error(place, name, value, expected)
    text: str = value
    return text


def _turns_of_messages(place: str, value: Any) -> tuple[list[str], str | None]:
    """(what the user says, what the system says first) of a conversation."""
    expected = "an object with 'role' and 'content'"
    if not isinstance(value, list):
        raise _error(place, "messages", value, f"a list; each is {expected}")
    said: dict[str, list[str]] = {"user": [], "system": []}
    for i, message in enumerate(value):
        if not isinstance(message, dict):
            raise _error(place, f"messages[{i}]", message, expected)
        role = message.get("role")
        if role == "user" or (role == "system" and i == 0):
            said[role].append(_text(place, f"messages[{i}].content", message.get("content")))
        elif role != "assistant":
            roles = "'user' or 'assistant', or 'system' of the first message"
            raise _error(place, f"messages[{i}].role", role, roles)
    return said["user"], next(iter(said["system"]), None)


def _error(place: str, name: str, value: Any, expected: str) -> InputError:
    return InputError(f"{place}: field '{name}' is {as_json(value)}; expected {expected}")
