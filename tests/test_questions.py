"""Files of questions: what is read of them, and what is said of damaged ones."""

from __future__ import annotations

import json
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
    {
        "question_id": 161,
        "category": "translation",
        "turns": ["Translate: Guten Tag"],
        "reference": ["Hello"],
    },
]
SPEED_BENCH = {
    "question_id": "coding-7",
    "category": "coding",
    "sub_category": "python",
    "turns": ["Sort a list.", "And in place?"],
    "source": "some/source",
    "src_id": "7",
    "difficulty": None,
    "multiturn": True,
}


def written(folder: Path, *lines: Any, name: str = "questions.jsonl") -> Path:
    path = folder / name
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_files_of_spec_bench_and_speed_bench(tmp_path: Path) -> None:
    path = written(tmp_path, *SPEC_BENCH, "", SPEED_BENCH)
    assert specdec.read_questions(path) == [
        Question(81, "writing", ("Write a note.", "Now without the letter e.")),
        Question(161, "translation", ("Translate: Guten Tag",)),
        Question("coding-7", "coding", ("Sort a list.", "And in place?")),
    ]


SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "user", "content": "b"},
]


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


@pytest.mark.parametrize(
    "lines, message",
    [
        ([GOOD, "{"], "line 2: is no JSON"),
        ([GOOD, "[1, 2]"], r"line 2: is \[1, 2\]; expected a text, or an object"),
        (["{}"], "line 1: has none of the fields 'turns', 'prompt', 'messages', 'question', 'text'"),
        ([GOOD, "", '{"turns": []}'], r"line 3: field 'turns' is \[\]; expected at least one text"),
        (['{"turns": ["a", 5]}'], r"line 1: field 'turns\[1\]' is 5; expected a text"),
        (['{"turns": [""]}'], r"field 'turns\[0\]' is \"\"; expected a text of at least one character"),
        (['{"prompt": {"a": 1}}'], r"field 'prompt' is \{\"a\": 1\}; expected a text, or a list of texts"),
        (['{"text": "a", "category": 3}'], "field 'category' is 3; expected a text"),
        (['{"text": "a", "id": 1.5}'], "field 'id' is 1.5; expected an integer or a text"),
        (['{"text": "a", "id": true}'], "field 'id' is true; expected an integer"),
        (['{"text": "a", "id": 1}', '{"text": "b", "id": 1}'], "line 2: the id 1 is that of line 1 too"),
        (['{"text": NaN}'], "line 1: is no JSON"),
        (['{"messages": [{"role": "tool"}]}'], r"field 'messages\[0\].role' is \"tool\"; expected 'user'"),
        (['{"messages": [{"role": "user", "content": [1]}]}'], r"'messages\[0\].content' is \[1\]"),
        (['{"messages": [{"role": "assistant", "content": "a"}]}'], "'messages' is .*at least one text"),
        (['{"messages": "a"}'], "field 'messages' is \"a\"; expected a list"),
        (["[" * 100_000], "line 1: is no JSON"),
        (["", "  "], "has no question"),
    ],
)
def test_damaged_files(tmp_path: Path, lines: list[str], message: str) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(InputError, match=message) as error:
        specdec.read_questions(path)
    assert str(path) in str(error.value)


def test_what_is_no_file_of_questions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.jsonl: cannot be read: No such file"):
        specdec.read_questions(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        specdec.read_questions(tmp_path)
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "a"}\n\xff\xfe\n')
    with pytest.raises(InputError, match="bytes.jsonl, line 2: is no JSON"):
        specdec.read_questions(tmp_path / "bytes.jsonl")


def test_texts_that_the_authors_of_speed_bench_do_not_pass_on(tmp_path: Path) -> None:
    text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    path = written(tmp_path, SPEED_BENCH | {"turns": [text + "\n\n{question}"]})
    with pytest.raises(InputError, match=r"line 1: field 'turns\[0\]' is \"FULL .* prepare_data.py"):
        specdec.read_questions(path)


@pytest.mark.parametrize(
    "value, message",
    [
        (["a", 5], r"questions\[1\] is an int; expected a specdec.Question, or a text"),
        (["a", ""], r"questions\[1\]: turns\[0\] is ''"),
        ([], "questions is empty"),
        (7, "questions is 7; expected a path, or questions and prompts"),
        ([Question(3, "c", ("a",)), Question(3, "d", ("b",))], "questions has twice the id 3"),
    ],
)
def test_what_are_no_questions(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        specdec.bench("no such model", None, value)


@pytest.mark.parametrize(
    "name, value", [("id", 1.5), ("category", ""), ("turns", "a"), ("turns", ()), ("system", 3)]
)
def test_a_question_checks_its_fields(name: str, value: Any) -> None:
    assert Question(1, "c", ["a"]).turns == ("a",)  # type: ignore[arg-type]
    with refuses(name, value):
        Question(**{"id": 1, "category": "c", "turns": ("a",), name: value})


@pytest.mark.oracle
def test_a_parquet_file_as_pyarrow_writes_it(tmp_path: Path) -> None:
    """SPEED-Bench comes so."""
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "test.parquet"
    rows = [SPEED_BENCH, SPEED_BENCH | {"question_id": "coding-8", "turns": ["a"]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert specdec.read_questions(path) == [
        Question("coding-7", "coding", ("Sort a list.", "And in place?")),
        Question("coding-8", "coding", ("a",)),
    ]
    parquet.write_table(pyarrow.Table.from_pylist([*rows, {"question_id": "x", "turns": ["a", None]}]), path)
    with pytest.raises(InputError, match=r"test.parquet, row 3: field 'turns\[1\]' is null"):
        specdec.read_questions(path)
    parquet.write_table(pyarrow.table({"text": [b"a"]}), path)
    with pytest.raises(InputError, match=r"test.parquet, row 1: field 'text' is b'a'; expected a text"):
        specdec.read_questions(path)
    broken = pyarrow.StringArray.from_buffers(
        1, pyarrow.py_buffer(np.array([0, 1], np.int32)), pyarrow.py_buffer(b"\xff")
    )
    year = pyarrow.array([2**60], pyarrow.timestamp("us"))  # more than datetime has
    for name, value in (("prompt", broken), ("written", year)):
        columns = {"text": pyarrow.array(["a"]), name: value}
        parquet.write_table(pyarrow.table(columns), path)
        with pytest.raises(InputError, match="test.parquet: is no Parquet file"):
            specdec.read_questions(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="test.parquet: is no Parquet file"):
        specdec.read_questions(path)
    with pytest.raises(InputError, match="gone.parquet: cannot be read: no such file"):
        specdec.read_questions(tmp_path / "gone.parquet")


def test_a_parquet_file_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(specdec.MissingPackageError, match="pip install pyarrow"):
        specdec.read_questions(tmp_path / "a.parquet")
