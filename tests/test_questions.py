"""Files of questions: what is read from them, and errors for damaged ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import Question
from specdec.errors import InputError

SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write a note.", "Now without the letter e."]},
    {"question_id": 161, "category": "translation", "turns": ["Guten Tag"], "reference": ["Hello"]},
]
SPEED_BENCH = {
    "question_id": "coding-7", "category": "coding", "sub_category": "python", "src_id": "7",
    "turns": ["Sort a list.", "And in location?"], "source": "some/source", "difficulty": None,
    "multiturn": True,
}  # fmt: skip


def written(folder: Path, *lines: Any, name: str = "questions.jsonl", **how: str) -> Path:
    path = folder / name
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", **how)
    return path


def test_files_of_spec_bench_and_speed_bench(tmp_path: Path) -> None:
    path = written(tmp_path, *SPEC_BENCH, "", SPEED_BENCH)
    assert specdec.read_questions(path) == [
        Question(81, "writing", ("Write a note.", "Now without the letter e.")),
        Question(161, "translation", ("Guten Tag",)),
        Question("coding-7", "coding", ("Sort a list.", "And in location?")),
    ]


SAID = [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": []}, {"role": "user", "content": "b"},
]  # fmt: skip


@pytest.mark.parametrize(
    "line, expected",
    [
        ('"Once"', Question(1, "mine", ("Once",))),
        ({"prompt": "a"}, Question(1, "mine", ("a",))),
        ({"prompt": ["a", "b"], "prompt_id": 5}, Question(5, "mine", ("a", "b"))),
        ({"task_id": "H/0", "prompt": "def f():", "test": "x"}, Question("H/0", "mine", ("def f():",))),
        ({"question": "How many?", "answer": "#### 3"}, Question(1, "mine", ("How many?",))),
        ({"text": "a", "category": "c", "id": "x"}, Question("x", "c", ("a",))),
        ({"turns": None, "text": "a"}, Question(1, "mine", ("a",))),
        ({"messages": SAID}, Question(1, "mine", ("a", "b"), "Be brief.")),
        ('\ufeff{"text": "a"}\r', Question(1, "mine", ("a",))),
    ],
)  # fmt: skip
def test_any_jsonl_of_prompts(tmp_path: Path, line: Any, expected: Question) -> None:
    assert specdec.read_questions(written(tmp_path, line, name="mine.jsonl")) == [expected]


GOOD = '{"turns": ["a"]}'
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


@pytest.mark.parametrize(
    "lines, location",
    [
        ([GOOD, "[1, 2]"], "line 2"), ([GOOD, "", '{"turns": []}'], "line 3: turns"),
        (['{"turns": ["a", 5]}'], "line 1: turns[1]"), (['{"turns": [""]}'], "line 1: turns[0]"),
        (['{"prompt": {"a": 1}}'], "line 1: prompt"), (['{"text": "a", "category": 3}'], "line 1: category"),
        (['{"text": "a", "id": 1.5}'], "line 1: id"), (['{"text": "a", "task_id": true}'], "line 1: task_id"),
        (['{"text": "a", "id": 1}', '{"text": "b", "id": 1}'], "line 2: id"),
        (['{"messages": [{"role": "tool"}]}'], "line 1: messages[0].role"),
        (['{"messages": [{"role": "user", "content": [1]}]}'], "line 1: messages[0].content"),
        (['{"messages": [{"role": "assistant", "content": "a"}]}'], "line 1: messages"),
        (['{"messages": "a"}'], "line 1: messages"), (['{"messages": [1]}'], "line 1: messages[0]"),
        (['{"messages": [{"role": "system"}]}'], "line 1: messages[0].content"),
        (['{"messages": [{"role": "system", "content": ""}]}'], "line 1: messages[0].content"),
        ([{"turns": [f"{PLACEHOLDER} USING SPECDEC_BENCH"]}], "line 1: turns[0]"),
    ],
)  # fmt: skip
def test_damaged_fields(tmp_path: Path, lines: list[Any], location: str) -> None:
    path = written(tmp_path, *lines)
    with refuses(f"{path}, {location}"):
        specdec.read_questions(path)


def test_what_is_no_file_of_questions(tmp_path: Path) -> None:
    gone = tmp_path / "nothing.jsonl"
    for path, message in (
        (written(tmp_path, GOOD, "{", name="1"), "line 2: is not valid JSON"),
        (written(tmp_path, '{"text": NaN}', name="2"), "line 1: is not valid JSON"),
        (written(tmp_path, "[" * 100_000, name="3"), "line 1: is not valid JSON"),
        (written(tmp_path, "\udcff", name="4", errors="surrogateescape"), "line 1: is not valid JSON"),
        (written(tmp_path, "{}", name="5"), "line 1: has none of the fields 'turns', 'prompt', 'messages'"),
        (written(tmp_path, '{"prompt": 5}', name="7"), "line 1: prompt is 5; expected a text, or a list"),
        (written(tmp_path, "", "  ", name="6"), "has no question"), (gone, "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}(, |: ){message}"):
            specdec.read_questions(path)


@pytest.mark.parametrize(
    "value, name",
    [
        (["a", 5], "questions[1]"), (7, "questions"), (["a", ""], None), ([], None),
        ([Question(3, "c", ("a",)), Question(3, "d", ("b",))], "questions"),
    ],
)  # fmt: skip
def test_what_are_no_questions(value: Any, name: str | None) -> None:
    with pytest.raises(InputError, match="^questions") as caught:
        specdec.bench("no such model", None, value)
    assert name is None or caught.value.argument == name


@pytest.mark.parametrize(
    "name, value", [("id", 1.5), ("category", ""), ("turns", "a"), ("turns", ()), ("system", 3)]
)
def test_a_question_checks_its_fields(name: str, value: Any) -> None:
    assert Question(1, "c", ["a"]).turns == ("a",)  # type: ignore[arg-type]
    with refuses(name, value):
        Question(**{"id": 1, "category": "c", "turns": ("a",), name: value})


def test_categories_and_limit_choose(tmp_path: Path) -> None:
    path = written(tmp_path, *({"id": i, "text": "a", "category": "xyx"[i]} for i in range(3)))
    for chosen, ids in (({"limit": 1}, [0, 1]), ({"categories": ["x"]}, [0, 2]), ({}, [0, 1, 2])):
        assert [one.id for one in specdec.read_questions(path, **chosen)] == ids
    for name, value in (("categories", "x"), ("categories", []), ("categories", ["z"]), ("limit", 0)):
        with refuses(name):
            specdec.read_questions(path, **{name: value})


@pytest.mark.oracle
def test_a_parquet_file_as_pyarrow_writes_it(tmp_path: Path) -> None:
    """SPEED-Bench has this format."""
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "test.parquet"
    rows = [SPEED_BENCH, SPEED_BENCH | {"question_id": "coding-8", "turns": ["a"]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert specdec.read_questions(path) == [
        Question("coding-7", "coding", ("Sort a list.", "And in location?")),
        Question("coding-8", "coding", ("a",)),
    ]
    for table, location in (
        (pyarrow.Table.from_pylist([*rows, {"question_id": "x", "turns": ["a", None]}]), "row 3: turns[1]"),
        (pyarrow.table({"text": [b"a"]}), "row 1: text"),
    ):
        parquet.write_table(table, path)
        with refuses(f"{path}, {location}"):
            specdec.read_questions(path)
    broken = pyarrow.StringArray.from_buffers(
        1, pyarrow.py_buffer(np.array([0, 1], np.int32)), pyarrow.py_buffer(b"\xff")
    )
    year = pyarrow.array([2**60], pyarrow.timestamp("us"))  # more than datetime has
    for name, value in (("prompt", broken), ("written", year)):
        columns = {"text": pyarrow.array(["a"]), name: value}
        parquet.write_table(pyarrow.table(columns), path)
        with pytest.raises(InputError, match="test.parquet: is not a Parquet file"):
            specdec.read_questions(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="test.parquet: is not a Parquet file"):
        specdec.read_questions(path)
    with pytest.raises(InputError, match="gone.parquet: cannot be read: no such file"):
        specdec.read_questions(tmp_path / "gone.parquet")


def test_a_parquet_file_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(specdec.MissingPackageError, match=r"pip install 'specdec-cpu\[parquet\]'"):
        specdec.read_questions(tmp_path / "a.parquet")
