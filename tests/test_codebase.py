"""The code base: rules of ARCHITECTURE.md and CONTRIBUTING.md, checked on the files."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.resources
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import specdec
from specdec import _core

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "python" / "specdec"

BELOW: dict[str, list[str]] = {
    "base": [], "kernels": ["base"], "blas": ["base"], "verify": ["kernels"],
    "model/weights": ["kernels", "blas"], "model/cache": ["model/weights"], "model/layers": ["model/cache"],
    "model/uses": ["model/layers"], "decode": ["verify", "model/uses"], "beam": ["verify", "model/uses"],
    "draft": ["decode"], "draft/model": ["draft"], "draft/tables": ["draft"], "draft/copy": ["draft"],
    "draft/learned": ["draft"], "draft/several": ["draft"],
}  # fmt: skip
"""Folders of the core and those each is built on: it may include from itself, from these and from what they
are built on. ``binding`` is built on all of them, ``testing`` on all and ``binding``."""
BELOW["binding"] = list(BELOW)
BELOW["testing"] = list(BELOW)

MAX_LINES = 600
MAX_COLUMNS = 110

C_FILES = sorted(path for path in CSRC.rglob("*.[ch]"))
HEADERS = [path for path in C_FILES if path.suffix == ".h" and not path.stem.endswith("_template")]

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^">]+)[">]', re.MULTILINE)


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    """File name for messages and test ids."""
    return path.relative_to(ROOT).as_posix()


def code(path: Path) -> str:
    """Text of a C file with comments and string literals blanked; line numbers stay."""

    said = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    return said.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), read(path))


def project_files(root: Path = ROOT) -> Iterator[Path]:
    """Every text file of the project.

    Git's files; without git those in the project's folders. Other files in the checkout, such as a virtual
    environment of any name, do not count.
    """
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached"]
        listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        paths = [root / entry for entry in listing.split("\0") if entry]
    else:
        parts = ["csrc", "python", "tests", "docs", "benchmarks", "notebooks", "training"]
        paths = [*root.glob("*"), *(path for part in parts for path in (root / part).rglob("*"))]
    for path in sorted(paths):
        if path.is_file() and b"\0" not in path.read_bytes()[:8192]:
            yield path


def folder_of(path: Path) -> str:
    """Folder of a core file, as named in `BELOW`."""
    return path.parent.relative_to(CSRC).as_posix()


def within_reach(folder: str) -> set[str]:
    """A folder and all folders it may include."""
    return {folder}.union(*(within_reach(below) for below in BELOW[folder]))


def test_folders_are_built_on_what_the_table_says() -> None:
    """Every C file is in a folder of `BELOW`, and CMake builds it on the folders listed there."""
    assert {folder_of(path) for path in C_FILES} == {*BELOW}, "BELOW in this file names the folders of csrc"
    for folder in BELOW.keys() - {"binding", "testing"}:
        call = re.search(r"sd_add_folder\(([\w ]+)\)", read(CSRC / folder / "CMakeLists.txt"))
        wanted = [entry.replace("/", "_") for entry in (folder, *BELOW[folder])]
        assert call and call[1].split() == wanted, folder


def test_includes_follow_the_order_of_folders() -> None:
    """By bare name, so a name means one file."""
    headers = [path for path in C_FILES if path.suffix == ".h"]
    home = {header.name: folder_of(header) for header in headers}
    assert len(home) == len(headers), "two headers have one name"
    wrong = []
    for path in C_FILES:
        known = within_reach(folder_of(path))
        for mark, included in INCLUDE.findall(read(path)):
            if mark == "<" and included in home:
                wrong.append(f"{name(path)}: <{included}> is our own; write it in quotes")
            elif mark != "<" and home.get(included) not in known:
                wrong.append(f'{name(path)}: "{included}" is of no folder that it is built on')
    assert wrong == []


def test_c_files_stay_short_and_narrow() -> None:
    """Comments too, which clang-format does not wrap; a long file is split by its nouns."""
    lines = {name(path): read(path).splitlines() for path in C_FILES}
    assert {path: len(found) for path, found in lines.items() if len(found) > MAX_LINES} == {}
    assert [(path, line) for path, found in lines.items() for line in found if len(line) > MAX_COLUMNS] == []


def test_one_folder_includes_python() -> None:
    headers = {"Python.h", "numpy/arrayobject.h", "structmember.h"}
    found = [path for path in C_FILES if headers & {entry for _, entry in INCLUDE.findall(read(path))}]
    assert {folder_of(path) for path in found} == {"binding"}


SYSTEM = {f"csrc/base/system{end}" for end in (".h", "_posix.c", "_windows.c")}
"""The files that call the operating system."""


@pytest.mark.parametrize(
    ("calls", "allowed"),
    [
        (("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "free"), {"csrc/base/memory.c"}),
        (("pthread_create", "_beginthreadex"), SYSTEM),
        (("sd_thread_start",), {"csrc/base/pool.c", *SYSTEM}),
        (("exit", "abort", "longjmp", "printf", "puts", "strcpy", "strcat", "sprintf", "alloca"), set()),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_calls_stay_where_they_belong(calls: tuple[str, ...], allowed: set[str]) -> None:
    """Memory comes from sd_alloc, threads from the pool, and a library neither ends nor prints."""
    pattern = re.compile(rf"(?<![\w.>])({'|'.join(calls)})\s*\(")
    found = {name(path): match[1] for path in C_FILES for match in pattern.finditer(code(path))}
    assert {path: call for path, call in found.items() if path not in allowed} == {}


def declarations(path: Path) -> list[str]:
    """Top-level declarations of a header, one line each, without braced blocks."""
    text = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", code(path), flags=re.MULTILINE)
    while "{" in text:
        text, n_blocks = re.subn(r"\{[^{}]*\}", block_end, text)
        assert n_blocks, f"{name(path)}: braces do not match"
    return [" ".join(entry.split()) for entry in text.split(";") if entry.strip()]


def block_end(match: re.Match[str]) -> str:
    """Text that replaces a block: nothing before a type's name, else the end of a declaration."""
    return "" if re.match(r"\s*\w+\s*;", match.string[match.end() :]) else ";"


def declared_name(declaration: str) -> str:
    """Name introduced by a top-level declaration."""
    pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
    if declaration.startswith("typedef"):
        return pointer[1] if pointer else declaration.split()[-1].lstrip("*")
    function = re.search(r"\b(?!__attribute__|SD_)(\w+)\s*\(", declaration)
    return function[1] if function else declaration.split()[-1]


def test_headers_are_guarded_and_their_names_carry_the_prefix() -> None:
    wrong = []
    for path in HEADERS:
        text = read(path)
        found = [declared_name(declaration) for declaration in declarations(path)]
        wrong += [(name(path), entry) for entry in found if not entry.startswith(("sd_", "sdk_"))]
        macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", code(path), re.MULTILINE)
        prefixes = ("SD_", "SDK_", "SPECDEC_", "PY_")
        wrong += [(name(path), macro) for macro in macros if not macro.startswith(prefixes)]
        if not text.startswith("/* "):
            wrong.append((name(path), "does not begin with a comment"))
        if "\n#pragma once\n" not in text:
            wrong.append((name(path), "is not guarded by a pragma"))
    assert wrong == []


def test_extension_exports_its_init_function_alone() -> None:
    assert dynamic_symbols(_core.__file__, "--defined-only") == {"PyInit__core"}


def dynamic_symbols(library: str | Path, *options: str) -> set[str]:
    """Dynamic symbols of a library, without versions; skips where there is no ``nm`` for ELF."""
    if sys.platform != "linux" or shutil.which("nm") is None:
        pytest.skip("needs Linux and nm (binutils)")
    command = ["nm", "-D", "--format=posix", *options, str(library)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[0].split("@")[0] for line in listing.splitlines() if line.strip()}


def stub() -> ast.Module:
    return ast.parse(read(PACKAGE / "_core.pyi"))


def is_typed_dict(node: ast.stmt) -> bool:
    """A dict or tuple with named fields, which the module makes and does not name."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(ast.unparse(base) in ("TypedDict", "NamedTuple") for base in bases)


def defined_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Public names (and ``__version__``) that a stub's module or class body defines."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not is_typed_dict(node):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return {key: node for key, node in found.items() if not key.startswith("_") or key == "__version__"}


def public(namespace: object) -> set[str]:
    return {key for key in dir(namespace) if not key.startswith("_")}


def test_stub_and_module_have_the_same_names_and_members() -> None:
    assert set(defined_names(stub().body)) == public(_core) | {"__version__"}
    for node in stub().body:
        if isinstance(node, ast.ClassDef) and not is_typed_dict(node):
            assert set(defined_names(node.body)) == public(getattr(_core, node.name)), node.name


def stub_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in stub().body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{member.name}", member)
                for member in node.body
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_")
            )


def test_text_signatures_match_the_stub() -> None:
    """The text signature of each function has the stub's parameters, in order, with their parameter kinds."""
    wrong = [fault for path, node in stub_functions() if (fault := difference(path, node))]
    assert wrong == []


def difference(path: str, node: ast.FunctionDef) -> str | None:
    """Describe how a function of the core differs from the stub's."""
    target: object = _core
    for part in path.split("."):
        target = getattr(target, part)
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        return None
    if not getattr(target, "__text_signature__", None):
        return f"{path} has no text signature"
    arguments = node.args
    wanted = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    wanted += ["*" + argument.arg for argument in arguments.kwonlyargs]
    got = [
        ("*" if parameter.kind is parameter.KEYWORD_ONLY else "") + parameter.name
        for parameter in inspect.signature(target).parameters.values()  # type: ignore[arg-type]
    ]
    wanted, got = ([entry for entry in names if entry != "self"] for names in (wanted, got))
    return None if wanted == got else f"{path} takes {got}; the stub has {wanted}"


LAYERS = [
    ["errors"], ["checks"], ["fields"],
    [
        "atomic_file", "containers", "divergences", "progress", "settings_table", "system", "tables",
        "text_files", "theory", "threads", "time_limit",
    ],
    ["trace"], ["models"], ["checkpoints", "tokenizer"], ["display"], ["verification"], ["drafts"],
    ["decoding"], ["analysis"], ["plot"], ["training"], ["ray", "serve"], ["integrations"], ["commands"],
    ["__main__"],
]  # fmt: skip
"""Folders and modules of the package; each may import from its own layer's folder and from layers before it.

`reference` is not in the list: it imports nothing of the package.
"""


def layer_of(module: str) -> str:
    """The entry of `LAYERS` for a module: its folder, but the trainer of a draft is part of training."""
    return "training" if module.endswith(".trainer") else module.partition(".")[0]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name in it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found[""]  # the package itself, which maps each public name to its module
    return found


def imports() -> dict[str, set[str]]:
    """Imports of each module from the package: at its top, in functions, and for type checkers."""
    paths = modules()
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = []
        for node in ast.walk(ast.parse(read(path))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name(path)} has a relative import"
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        inner = [entry.removeprefix("specdec.") for entry in names if entry.startswith("specdec.")]
        found[module] = {longest_module(entry, paths) for entry in inner} - {module, ""}
    return found


def longest_module(dotted: str, paths: dict[str, Path]) -> str:
    """The module that contains a dotted name; "" for the core and for the package itself."""
    while dotted and dotted not in paths:
        dotted = dotted.rpartition(".")[0]
    return dotted


def test_imports_of_the_package_follow_the_layers() -> None:
    """From later layers to earlier ones; and within a folder there is no circle."""
    order = {entry: i for i, layer in enumerate(LAYERS) for entry in layer}
    arrows = {(module, other) for module, others in imports().items() for other in others}
    tops = {module.partition(".")[0] for module in modules()}
    assert tops == {*order, "reference"}, "a folder or module that LAYERS does not name"
    wrong = []
    for module, other in sorted(arrows):
        above, below = layer_of(module), layer_of(other)
        if above != below and ("reference" in (above, below) or order[above] <= order[below]):
            wrong.append((module, other))
    assert wrong == []


def test_calls_that_systems_do_not_share_are_in_one_place() -> None:
    """Of C, headers that not every system has; of Python, what Windows lacks."""
    headers = r"#\s*include <(pthread|unistd|dlfcn|sched|signal|time|sys/\w+|windows|io|process)\.h>"
    assert {name(path) for path in C_FILES if re.search(headers, read(path))} == SYSTEM
    calls = r"\bos\.(register_at_fork|fork\b|preadv?\b|O_NONBLOCK|O_CLOEXEC)|\bimport (resource|fcntl)\b"
    found = {module for module, path in modules().items() if re.search(calls, read(path))}
    assert found == {"system", "models.template_worker"}  # the second runs alone


def test_imports_of_the_package_have_no_circle() -> None:
    left = imports()
    while free := [module for module, others in left.items() if not others & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}


def test_no_two_modules_or_classes_have_one_name() -> None:
    """Except `reference` and the folders of learned drafts, which have the same modules for each method."""
    stems = Counter(
        path.stem for module, path in modules().items()
        if path.stem not in ("__init__", "__main__")
        and not module.startswith(("reference.", "drafts.learned."))
    )  # fmt: skip
    bodies = (ast.parse(read(path)).body for path in modules().values())
    classes = Counter(node.name for body in bodies for node in body if isinstance(node, ast.ClassDef))
    found = stems.items() | {(entry, n) for entry, n in classes.items() if not entry.startswith("_")}
    assert [entry for entry, times in found if times > 1] == []


def test_dir_shows_what_is_public() -> None:
    assert set(dir(specdec)) == {*specdec.__all__, *specdec._MODULES}
    assert not hasattr(specdec, "no_such_name")
    for entry in dir(specdec):
        assert inspect.getdoc(getattr(specdec, entry)), f"specdec.{entry} has no docstring"
    for entry in specdec._MODULES:
        assert importlib.import_module(f"specdec.{entry}") is getattr(specdec, entry)


def test_import_needs_numpy_alone() -> None:
    script = """
import sys
before = set(sys.modules)
import specdec
loaded = {module.partition(".")[0] for module in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"numpy", "specdec"}))
"""
    assert python("-c", script).split() == []


def test_tests_run_on_what_is_installed() -> None:
    """The package comes from an installation (editable or not), never from the current folder."""
    assert importlib.metadata.distribution("specdec-cpu").version == specdec.__version__
    assert Path(_core.__file__).parent != PACKAGE


def test_types_are_installed_with_the_package() -> None:
    """PEP 561: without the marker type checkers ignore every annotation and the stub."""
    package = importlib.resources.files("specdec")
    assert (package / "py.typed").is_file() and (package / "_core.pyi").is_file()
    assert "Typing :: Typed" in importlib.metadata.metadata("specdec-cpu").get_all("Classifier", [])


def of_project(pattern: str) -> str:
    """Match a pattern in the project's settings."""
    found = re.search(pattern, read(ROOT / "pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert found, pattern
    return found[1]


def test_version_is_written_once() -> None:
    version = of_project(r'^version = "([^"]+)"')
    assert specdec.__version__ == version
    assert f"## {version}" in read(ROOT / "CHANGELOG.md")
    pattern = re.compile(rf"(?<![\w.]){re.escape(version)}(?![\w.])")
    sources = {".py", ".pyi", ".c", ".h", ".txt", ".cmake", ".md", ".toml"}
    found = {name(path) for path in project_files() if path.suffix in sources and pattern.search(read(path))}
    found = {entry for entry in found if not entry.startswith("benchmarks/results/")}  # of past versions
    assert found - {"CHANGELOG.md"} == {"pyproject.toml"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the project's settings, a test, and a virtual environment with an unusual name."""
    environment = tmp_path / "myenv"
    for folder in (tmp_path / "tests", environment / "bin", environment / "lib" / "site-packages"):
        folder.mkdir(parents=True)
        (folder / "test_a.py").write_text('"""A test."""\n\n\ndef test_nothing() -> None: ...\n')
        (folder / "page.md").write_text("[nowhere](nowhere.md)\n")
    (environment / "pyvenv.cfg").write_text("home = nowhere\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("with_git", [True, False])
def test_files_of_an_environment_in_the_checkout_are_not_the_projects(checkout: Path, with_git: bool) -> None:
    if with_git:
        if shutil.which("git") is None:
            pytest.skip("needs git")
        for command in (["init", "-q"], ["add", "pyproject.toml", "tests"]):
            subprocess.run(["git", *command], cwd=checkout, check=True)
    found = [path.relative_to(checkout).as_posix() for path in project_files(checkout)]
    assert found == ["pyproject.toml", "tests/page.md", "tests/test_a.py"]


@pytest.mark.parametrize(
    ("tool", "words", "wanted"),
    [
        ("pytest", "--collect-only -q -p no:cacheprovider", {"tests/test_a.py::test_nothing"}),
        ("ruff", "check --show-files .", {"pyproject.toml", "tests/test_a.py"}),
    ],
)
def test_tools_pass_by_an_environment(checkout: Path, tool: str, words: str, wanted: set[str]) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed (the extra `lint`)")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", tool, *words.split()]
    run = subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    lines = run.stdout.replace(f"{checkout}/", "").splitlines()
    assert {line for line in lines if "::" in line or tool == "ruff"} == wanted


def test_lint_looks_at_every_python_file() -> None:
    included = of_project(r"^include = \[(.*?)\]")
    folders = {entry.partition("/")[0] for entry in re.findall(r'"([^"]+)"', included)}
    sources = {".py", ".pyi", ".ipynb"}
    linted = {path.relative_to(ROOT).parts[0] for path in project_files() if path.suffix in sources}
    assert linted <= folders


def test_no_path_of_a_machine() -> None:
    roots = "|".join(["home", "root", "work", "mnt", "opt", "Users", "private"])
    pattern = re.compile(rf"(?<![\w.~/:>-])/(?:{roots})/\w.*")
    found = ((name(path), pattern.findall(read(path))) for path in project_files())
    assert [f"{path}: {paths}" for path, paths in found if paths] == []


def file_index() -> ModuleType:
    """The site's script that writes the file index."""
    spec = importlib.util.spec_from_file_location("files", ROOT / "docs" / "site" / "files.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_and_every_folder_has_a_description() -> None:
    """The first sentence of a docstring or of the comment at the top, from which the site makes its index."""
    index = file_index()
    found = {name(folder): index.about_folder(folder) for _, folder, _ in index.folders()}
    found |= {name(path): index.about_file(path) for _, _, files in index.folders() for path in files}
    assert {"csrc/decode", "python/specdec/decoding", "csrc/decode/round.c"} <= found.keys()
    assert {name(path) for path in modules().values() if not path.stem.startswith("__")} <= found.keys()
    assert [entry for entry, text in found.items() if len(text) < 10] == []


DRAFT_LISTS = ["docs/WHICH_DRAFT.md", "tests/support/drafters.py", "tests/fuzz/drafts.py"]
"""Files that name every drafting method, which `NAMES` registers."""


def methods_of(base: type) -> list[type]:
    """The concrete subclasses of a class."""
    found = []
    for entry in base.__subclasses__():
        found += methods_of(entry) if inspect.isabstract(entry) else [entry]
    return found


def test_every_draft_is_public_and_in_every_list() -> None:
    """Except `PythonDraft`, which wraps a user's object, and abstract classes. `Unigram` and `Bigram`
    count as `Ngram`."""
    for module in modules():
        if module.startswith("drafts."):
            try:
                importlib.import_module(f"specdec.{module}")
            except ImportError as error:
                if "torch" not in str(error):  # which networks and trainers need, and no draft
                    raise
    classes = [entry for entry in methods_of(specdec.drafts.Draft) if entry.__module__.startswith("specdec.")]
    found = sorted({entry.__name__ for entry in classes} - {"PythonDraft"})
    assert "Lookahead" in found
    texts = {path: read(ROOT / path) for path in DRAFT_LISTS}
    registered = {name.draft.__name__ for name in specdec.drafts.NAMES.values()}
    lists = {path: set(re.findall(r"\w+", text)) for path, text in texts.items()}
    lists |= {"specdec.drafts": set(specdec.drafts.__all__), "NAMES": registered}
    assert [(entry, path) for path, known in lists.items() for entry in found if entry not in known] == []


def test_tools_and_commands_are_the_same_everywhere() -> None:
    """`make dev` builds with what an isolated build has; hooks lint as `make lint` does."""
    block = of_project(r"\[build-system\]\nrequires = \[(.*?)\]")
    required = [entry.partition(";")[0].strip() for entry in re.findall(r'"([^"]+)"', block)]
    makefile = read(ROOT / "Makefile")
    assert [entry for entry in required if f'"{entry}"' not in makefile] == []
    pinned = set(re.findall(r'"([\w-]+==[\d.]+)"', of_project(r"^lint = \[(.*?)\]")))
    assert set(re.findall(r'"([\w-]+==[\d.]+)"', read(ROOT / ".pre-commit-config.yaml"))) <= pinned
    commands = {'pip install . && specdec "Once upon a time"', "pip install '.[test]' && pytest"}
    assert commands <= set(read(ROOT / "README.md").splitlines())


def python(*arguments: str) -> str:
    """Run a new Python process, which must succeed; return its output."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_readme_example_runs() -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```", read(ROOT / "README.md"), re.MULTILINE | re.DOTALL)
    python("-c", snippet)


def test_pages_have_links_that_lead_somewhere_and_no_install_by_name() -> None:
    """PyPI has another project named specdec: install this one by `pip install .` or as specdec-cpu."""
    named = re.compile(r"pip install [^`\n&]*\bspecdec\b(?!-cpu)")
    pages = [path for path in project_files() if path.suffix in (".md", ".py", ".ipynb")]
    wrong = [name(path) for path in pages if named.search(read(path))]
    for path in pages:
        links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", read(path)) if path.suffix == ".md" else []
        wrong += [f"{name(path)}: {link}" for link in links if not (path.parent / link).exists()]
    assert wrong == []


def test_headings_of_docstrings_are_lines() -> None:
    heading = re.compile(
        r"(Parameters|Attributes|Returns|Yields|Raises|Warns|Notes|Examples) +-{3,}|>>> .*>>> "
    )
    assert [key for key, path in modules().items() if heading.search(read(path))] == []
