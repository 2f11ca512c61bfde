"""Retired words and British spellings do not occur in code, comments, messages, pages or notebooks."""

from __future__ import annotations

import io
import json
import re
import tokenize
from pathlib import Path

import pytest

from test_codebase import name, project_files, read

RETIRED = set(
    "anew behind beside form forms guess guessed guesses guessing law laws learnt readings ride rider riders "
    "rides riding tap tapped taps told watched".split()
)
"""Words that may not occur, not even in an identifier."""
IN_NAMES = set("beginning kind kinds place places room rooms wake way ways".split())
"""Words that no identifier of the package has; prose may use them."""
BRITISH = re.compile(
    r"(?:olour|eighbour|ehaviour|avour|onour|licence|uantis|nitialis|ormalis|okenis|erialis|ecognis|"
    r"rganis|modell(?:ed|ing)|labell|travell|\bcentre|\banalyse)\w*"
)  # without the start of a word, which takes a time quadratic in its length to search for
ALLOWED = re.compile(
    r"closed[- ]forms?|waveform|\b(?:dtype|parameter|found)\.kind|kind=\"stable\"|in[-_ ]?place|"
    r"form-action|WakeConditionVariable", re.I
)  # fmt: skip
"""Terms of mathematics, and names of other libraries and protocols."""
SUFFIXES = (".py", ".pyi", ".c", ".h", ".md", ".toml", ".cmake", ".yml", ".ipynb")
EXCEPTIONS = ("tests/test_words.py", "docs/GLOSSARY.md", "CHANGELOG.md")
FILES = [
    path for path in project_files()
    if path.suffix in SUFFIXES and "results" not in path.parts and name(path) not in EXCEPTIONS
]  # fmt: skip


def words_of(text: str) -> set[str]:
    """Words of a text, with identifiers split at underscores and capitals."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def text_of(path: Path) -> str:
    """Text of a file; of a notebook its prose."""
    cells = json.loads(read(path))["cells"] if path.suffix == ".ipynb" else None
    prose = ["".join(cell["source"]) for cell in cells or [] if cell["cell_type"] == "markdown"]
    return read(path) if cells is None else "\n".join(prose)


def names_in_code(path: Path) -> set[str]:
    text = ALLOWED.sub("", read(path))
    if path.suffix in (".py", ".pyi"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME}
    return set(
        re.findall(r"[A-Za-z]\w*", re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.DOTALL))
    )


def test_retired_words_do_not_occur() -> None:
    texts = [(name(path), ALLOWED.sub("", text_of(path))) for path in FILES]
    found = [(at, sorted(words_of(text) & RETIRED) + BRITISH.findall(text.lower())) for at, text in texts]
    assert [(at, words) for at, words in found if words] == []


@pytest.mark.parametrize("folder", ["python", "csrc"])
def test_names_have_the_words_of_the_glossary(folder: str) -> None:
    files = [
        path for path in FILES if name(path).startswith(f"{folder}/") and path.suffix not in (".md", ".toml")
    ]
    assert [(name(f), n) for f in files for n in names_in_code(f) if words_of(n) & IN_NAMES] == []
