"""The file index of the site, printed as Markdown: every source file with the first sentence about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"The core": "csrc", "The package": "python/specdec", "Benchmarks": "benchmarks"}
SUFFIXES = (".py", ".c", ".h")


def about_folder(folder: Path) -> str:
    """Return the first sentence of ``__init__.py``, or of the comment at the top of its CMakeLists.txt."""
    if (folder / "__init__.py").exists():
        return about_file(folder / "__init__.py")
    listing = folder / "CMakeLists.txt"
    comment = re.match(r"(?:#.*\n)+", listing.read_text(encoding="utf-8")) if listing.exists() else None
    return first_sentence(re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE)) if comment else ""


def about_file(path: Path) -> str:
    """Return the first sentence of a docstring, or of the comment that begins a C file; "" for none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return first_sentence(ast.get_docstring(ast.parse(text)) or "")
    comment = re.match(r"/\*(.*?)\*/", text, re.DOTALL)
    return first_sentence(re.sub(r"\n \* ?", "\n", comment[1])) if comment else ""


def first_sentence(text: str) -> str:
    """Return the first paragraph of a text up to its first full stop, on one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[\w)\]`\"]\.) (?=[A-Z`(])", paragraph, maxsplit=1)[0]


def folders() -> Iterator[tuple[str, Path, list[Path]]]:
    """Yield a part of the index, a folder and its files: one of a C source and header of one name."""
    for part, top in PARTS.items():
        sources = [path for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
        for folder in sorted({path.parent for path in sources}):
            files = [path for path in sources if path.parent == folder and not path.name.startswith("__")]
            files = [path for path in files if path.suffix != ".c" or path.with_suffix(".h") not in files]
            yield part, folder, sorted(files)


def index() -> str:
    """Return the index as Markdown."""
    lines: list[str] = []
    for part, folder, files in folders():
        if f"## {part}" not in lines:
            lines += [f"## {part}", ""]
        lines += [f"**`{folder.relative_to(ROOT).as_posix()}`**: {about_folder(folder)}", ""]
        names = {path: path.stem if path.suffix == ".h" else path.name for path in files}
        lines += [*(f"- `{name}`: {about_file(path)}" for path, name in names.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(index())
