"""What a type checker sees of the package: every public name, and the types of a user's script."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import specdec
from specdec.decoding.options import BatchOptions, DecodingOptions, Options

ROOT = Path(__file__).parents[1]

SCRIPT = """\
import specdec

target, draft = specdec.embedded_pair(dtype="int8")
one = specdec.generate(target, draft, "Once upon a time", gamma="auto", verify="coupled")
several = specdec.generate(target, draft, ["Once upon a time", "It was"], batch_size=2)
reveal_type(one)  # expected: specdec.decoding.result.Result
reveal_type(several)  # expected: list[specdec.decoding.result.Result]
reveal_type(specdec.generate(target, draft, [1, 2, 3]))  # expected: specdec.decoding.result.Result
reveal_type(specdec.drafts.Bigram([1, 2], 3).smoothing)  # expected: 'interpolated'
for piece in specdec.stream(target, draft, "Once upon a time"):
    reveal_type(piece)  # expected: str
specdec.generate(target, draft, "Once", gama=4)  # expected: error
specdec.generate(target, draft, "Once", verify="nonsense")  # expected: error
specdec.generate(target, draft, "Once", gamma="fast")  # expected: error
specdec.stream(target, draft, "Once", batch_size=2)  # expected: error
specdec.verify([0], [[0.5, 0.5]], [], rule="nonsense")  # expected: error
specdec.load("model", "int3")  # expected: error
specdec.load("model", cache_dtype="int8")  # expected: error
specdec.drafts.StaticTree([2, 1], how="nonsense")  # expected: error
specdec.nonsense  # expected: error
if one.finish_reason == "nonsense":  # expected: error
    pass
"""


def imports_for_type_checkers() -> dict[str, str]:
    """Names that `specdec/__init__.py` imports, also those for type checkers only, and their modules."""
    module = ast.parse(Path(specdec.__file__).read_text(encoding="utf-8"))
    body = list(module.body)
    for node in module.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            body += node.body
    return {
        alias.asname or alias.name: node.module or ""
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_see_every_public_name() -> None:
    found = imports_for_type_checkers()
    assert set(dir(specdec)) - set(found) == set()
    homes = {name: f"specdec.{home}" for name, home in specdec._HOMES.items()}
    modules = {name: f"specdec.{home}".rpartition(".")[0] for name, home in specdec._MODULES.items()}
    wanted = {**homes, **modules}
    assert {name: found[name] for name in wanted} == wanted


def test_type_checkers_see_every_keyword_argument_of_generate() -> None:
    assert BatchOptions.__optional_keys__ == {field.name for field in fields(DecodingOptions)}
    parameters = inspect.signature(specdec.stream).parameters.values()
    by_keyword = {entry.name for entry in parameters if entry.kind is entry.KEYWORD_ONLY}
    assert Options.__optional_keys__ == by_keyword


@pytest.mark.slow
def test_a_users_script_has_the_types_that_it_should(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: pip install '.[lint]'")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict-equality", "--no-pretty", str(script)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found: dict[int, list[str]] = {}
    for line in output.splitlines():
        if entry := re.match(r".*script\.py:(\d+): (.*)", line):
            found.setdefault(int(entry[1]), []).append(entry[2])
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        _, _, expected = line.partition("  # expected: ")
        messages = found.get(number, [])
        if expected == "error":
            assert any(message.startswith("error: ") for message in messages), (line, output)
        elif expected:
            assert any(expected in message and "Revealed type" in message for message in messages), output
        else:
            assert not messages, (line, output)
    assert " error: " not in re.sub(r".*script\.py.*", "", output), output
