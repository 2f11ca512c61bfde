"""Type checking of the package: every public name, and the types of a user's script."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

import specdec
from specdec import DecodingOptions
from specdec.decoding.options import SampleOptions
from specdec.settings_table import DOORS, table_of

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
specdec.ray.generate("target", "draft", ["Once"], "out", seed=1, gamma=4, min_tokens=2)
specdec.ray.generate("target", "draft", ["Once"], "out", gama=4)  # expected: error
specdec.ray.generate("target", "draft", ["Once"], "out", n=2)  # expected: error
specdec.ray.sweep("target", {"small": "draft"}, ["Once"], "out", seed=1, top_k=4)
specdec.ray.sweep("target", {"small": "draft"}, ["Once"], "out", top_k="all")  # expected: error
specdec.load("model", "int3")  # expected: error
specdec.load("model", cache_dtype="int4")  # expected: error
specdec.drafts.StaticTree([2, 1], how="nonsense")  # expected: error
specdec.nonsense  # expected: error
if one.finish_reason == "nonsense":  # expected: error
    pass
"""


def imports_for_type_checkers() -> dict[str, str]:
    """Names that `specdec/__init__.py` imports, including those for type checkers only, and their modules."""
    module = ast.parse(Path(specdec.__file__).read_text(encoding="utf-8"))
    body = list(module.body)
    for node in module.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            body += node.body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def test_type_checkers_see_every_public_name() -> None:
    found = imports_for_type_checkers()
    assert set(dir(specdec)) - set(found) == set()
    homes = {name: f"specdec.{home}" for name, home in specdec._HOMES.items()}
    wanted = {**homes, **dict.fromkeys(specdec._MODULES, "specdec")}
    assert {name: found[name] for name in wanted} == wanted


def test_every_door_has_the_settings_of_the_table() -> None:
    """Its source writes them out, with the types and defaults of the table."""
    doors = {
        "generate": specdec.generate, "stream": specdec.stream, "agenerate": specdec.agenerate,
        "astream": specdec.astream, "submit": specdec.Engine.submit,
    }  # fmt: skip
    types = get_type_hints(DecodingOptions)
    assert {*doors} == {*DOORS}
    assert get_type_hints(SampleOptions) == {name: types[name] for name in table_of(DecodingOptions)}
    for door, function in doors.items():
        rows, hints = table_of(DecodingOptions, door), get_type_hints(function)
        parameters = inspect.signature(function).parameters.values()
        assert {one.name for one in parameters} - {"self"} == {*hints} - {"return"}
        found = {one.name: (hints[one.name], one.default) for one in parameters if one.name in types}
        assert found == {name: (types[name], row.default) for name, row in rows.items()}, door


def public_callables(modules: Iterable[ModuleType]) -> Iterator[tuple[str, Callable[..., object]]]:
    """Each public function and class, and the methods and properties of these classes, by name."""
    for module in modules:
        for entry in module.__all__:
            value = getattr(module, entry)
            if inspect.isclass(value):
                yield f"{module.__name__}.{entry}", value
                for member in dir(value):
                    if not member.startswith("_") or member in ("__init__", "__call__"):
                        function = plain_function(inspect.getattr_static(value, member, None))
                        if function is not None:
                            yield f"{module.__name__}.{entry}.{member}", function
            elif inspect.isfunction(value):
                yield f"{module.__name__}.{entry}", value


def plain_function(member: object) -> Callable[..., object] | None:
    """The function that a method or property of a class wraps."""
    for attribute in ("fget", "__func__", "func"):  # a property, a class or static method, a cached property
        member = getattr(member, attribute, member)
    return member if inspect.isfunction(member) else None


TORCH = pytest.param(["training"], 3, marks=pytest.mark.oracle, id="what needs torch")


@pytest.mark.parametrize(("names", "least"), [([n for n in specdec._MODULES if n != "training"], 300), TORCH])
def test_types_of_every_public_callable_can_be_read_at_run_time(names: list[str], least: int) -> None:
    modules = [*([specdec] if len(names) > 1 else []), *(getattr(specdec, name) for name in names)]
    found, wrong = list(public_callables(modules)), []
    for name, value in found:
        try:
            get_type_hints(value)
        except Exception as error:
            wrong.append(f"{name}: {error!r}")
    assert not wrong, f"import these types outside of `if TYPE_CHECKING`: {'; '.join(wrong)}"
    assert len(found) > least


def test_generate_has_the_types_of_its_results_at_run_time() -> None:
    if sys.version_info >= (3, 11):
        overloads = [get_type_hints(entry) for entry in typing.get_overloads(specdec.generate)]
        one, several = specdec.Result, list[specdec.Result]
        of_samples = one | several | list[several]
        wanted = [one, several, one | several, one, several, of_samples]
        assert [entry["return"] for entry in overloads] == wanted


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
