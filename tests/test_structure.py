"""Size and structure of the code base: budgets that only a decision raises.

If a change exceeds a budget, look for something to remove. Lower a budget that has become far too large.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import specdec
from test_codebase import C_FILES, PACKAGE, ROOT, code, modules, name

SUFFIXES = (".py", ".pyi", ".c", ".h")

LINES = {
    "benchmarks": 6350,
    "csrc": 38880,
    "csrc/base": 1350,
    "csrc/beam": 650,
    "csrc/binding": 6600,
    "csrc/blas": 300,
    "csrc/decode": 4100,
    "csrc/draft": 6900,
    "csrc/kernels": 5730,
    "csrc/model": 11050,
    "csrc/testing": 680,
    "csrc/verify": 1430,
    "python/specdec": 54800,
    "python/specdec/*": 3670,
    "python/specdec/analysis": 4350,
    "python/specdec/commands": 2000,
    "python/specdec/decoding": 6100,
    "python/specdec/display": 360,
    "python/specdec/drafts": 7050,
    "python/specdec/integrations": 1290,
    "python/specdec/models": 17550,
    "python/specdec/plot": 1730,
    "python/specdec/ray": 1280,
    "python/specdec/reference": 2400,
    "python/specdec/serve": 4620,
    "python/specdec/training": 1800,
    "python/specdec/verification": 900,
    "tests": 55700,
    "tests/fuzz": 2550,
    "tests/support": 3160,
    "tests/worlds": 3900,
    "training": 1820,
}
"""Maximum lines of a folder with its subfolders; with "*" at the end, of the files in the folder itself."""

MAX_FUNCTION_LINES = 60
"""Maximum lines of a function without docstring and signature."""

WIDE_FUNCTIONS = {
    "asynchronous.agenerate", "asynchronous.astream", "beam_search.beam_search",
    "distributions.adjusted_logits", "engine.submit",
    "generate.generate", "generate.stream", "generating.generate", "harness_model.__init__", "loading.load",
    "scoring.score", "sweeping.sweep",
}  # fmt: skip
"""Functions of more than `MAX_PARAMETERS`."""
MAX_PARAMETERS = 12

MAX_PUBLIC_NAMES = 239
"""Names in `specdec.__all__` and in those of its public modules."""

MAX_INTERNAL_TESTS = 48
"""Test modules that import the core, or a module of the package that is not public."""


def lines_of(area: str) -> int:
    paths = ROOT.glob(area) if area.endswith("*") else (ROOT / area).rglob("*")
    return sum(path.read_bytes().count(b"\n") for path in paths if path.suffix in SUFFIXES)


def test_areas_keep_their_budgets() -> None:
    found = {area: lines_of(area) for area in LINES}
    assert {area: n for area, n in found.items() if n > LINES[area]} == {}


def test_every_area_has_a_budget() -> None:
    roots = (PACKAGE, ROOT / "csrc")
    folders = {path for root in roots for path in root.iterdir() if path.is_dir() and lines_of(name(path))}
    assert {name(path) for path in folders} <= set(LINES)


def python_functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


C_FUNCTION = re.compile(r"^\w[^\n;=]*?(\w+)\([^;{]*\)\s*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)


def c_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Names of the functions that a C file defines, and the lines of their bodies."""
    for match in C_FUNCTION.finditer(code(path)):
        yield match[1], match[2].count("\n")


def test_functions_fit_a_screen() -> None:
    lengths = {f"{path.stem}.{function}": n for path in C_FILES for function, n in c_functions(path)}
    assert len(lengths) > 1500
    lengths |= {f"{path.stem}.{node.name}": body_lines(node) for path, node in python_functions()}
    assert {function: n for function, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def n_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def test_functions_take_few_parameters() -> None:
    found = {
        f"{path.stem}.{node.name}" for path, node in python_functions() if n_parameters(node) > MAX_PARAMETERS
    }
    assert found <= WIDE_FUNCTIONS, found - WIDE_FUNCTIONS


def test_there_are_few_public_names() -> None:
    listed = [import_module(f"specdec.{entry}").__all__ for entry in specdec._MODULES]
    assert sum(map(len, [specdec.__all__, *listed])) <= MAX_PUBLIC_NAMES


# --------------------------------------------------------------------- tests through public interfaces


EXTRAS = {"specdec.serve", "specdec.integrations.inspect", "specdec.integrations.lm_eval"}
"""Public packages of extras, which docs/SERVER.md and docs/EVALUATION.md describe."""
PUBLIC = {"specdec", *(f"specdec.{entry}" for entry in specdec._MODULES), *EXTRAS}
INTERNAL = {f"specdec.{module}" for module in modules()} - PUBLIC | {"specdec._core"}


def imports_internals(text: str) -> bool:
    """Whether a module imports the core, or a module of the package that is not public."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return not INTERNAL.isdisjoint(found)


def test_internal_imports_are_seen() -> None:
    seen = {
        "from specdec import _core": True, "import specdec.decoding.engine": True,
        "def f():\n    from specdec.models.loading import load": True, "from specdec import models": True,
        "import specdec\nfrom specdec import Engine, drafts": False,
        "from specdec.drafts import Ngram\nfrom specdec.errors import InputError": False,
    }  # fmt: skip
    assert {text: imports_internals(text) for text in seen} == seen


def test_most_tests_use_public_interfaces() -> None:
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    internal = [path.name for path in paths if imports_internals(path.read_text(encoding="utf-8"))]
    assert len(internal) <= MAX_INTERNAL_TESTS, internal
