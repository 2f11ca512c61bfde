"""The documentation site's configuration names every guide, every notebook and every public name."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import specdec

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"


def pages() -> dict[str, list[str]]:
    """Read the constant `PAGES` of the configuration without Sphinx."""
    module = ast.parse((SITE / "conf.py").read_text(encoding="utf-8"))
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "PAGES":
            return ast.literal_eval(statement.value)
    raise AssertionError("conf.py has no PAGES")


def stems(pattern: str) -> set[str]:
    """Repository files without their suffixes, as the configuration writes pages."""
    return {path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob(pattern)}


@pytest.mark.parametrize(
    ("heading", "pattern"),
    [("Guides", "docs/*.md"), ("Notebooks", "notebooks/*.ipynb"), ("Reference", "docs/site/api/*.md")],
)
def test_every_page_is_listed(heading: str, pattern: str) -> None:
    assert sorted(pages()[heading]) == sorted(stems(pattern))


def test_every_listed_page_exists() -> None:
    listed = [page for group in pages().values() for page in group]
    assert len(listed) == len(set(listed))
    assert [page for page in listed if not [*ROOT.glob(f"{page}.*")]] == []
    assert "CHANGELOG" in listed


def test_every_public_name_has_an_entry() -> None:
    """By its own directive, or as a member of a module that is shown whole."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (SITE / "api").glob("*.md"))
    entries = set(
        re.findall(r"^\.\. (?:autofunction|autoclass|autoexception|py:data):: (\S+)$", text, re.MULTILINE)
    )
    for name in re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE):
        entries |= {f"{name}.{member}" for member in import_module(name).__all__}

    public = {f"specdec.{name}" for name in specdec.__all__}
    for name in ("checkpoints", "drafts", "plot", "ray", "reference", "theory", "tokenizer", "training"):
        public |= {f"specdec.{name}.{member}" for member in getattr(specdec, name).__all__}
    missing = sorted(public - entries)
    assert not missing, f"not in docs/site/api: {', '.join(missing)}"
    assert {name for name in dir(specdec) if name not in specdec.__all__} == {
        "checkpoints", "drafts", "errors", "plot", "ray", "reference", "theory", "tokenizer", "training",
    }, "a new public module: give it a page in docs/site/api, and add it to this test"  # fmt: skip
