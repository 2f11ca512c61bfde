"""Words that the glossary retires occur nowhere: in code, comments, docstrings, messages and pages."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from test_codebase import name, project_files, read

RETIRED = {
    "anew": "again", "behind": "after", "beside": "next to, with", "form": "constraint, shape, case",
    "forms": "constraints", "guess": "draft token; propose", "guessed": "drafted", "guesses": "draft tokens",
    "guessing": "drafting", "law": "distribution", "laws": "distributions, logprobs", "learnt": "learned",
    "readings": "retokenized text", "ride": "extra query tokens", "rider": "extra query tokens",
    "riders": "extra query tokens", "rides": "extra query tokens", "riding": "extra query tokens",
    "tap": "capture", "tapped": "captured", "taps": "captures", "told": "notified, given",
    "watched": "recorded",
}  # fmt: skip
"""Words that may not occur, not even in an identifier, and what to write."""

IN_NAMES = {
    "beginning": "prompt", "kind": "type, method", "kinds": "types", "place": "index, position",
    "places": "indices, positions", "room": "capacity", "rooms": "capacities", "wake": "resume",
    "way": "method", "ways": "methods",
}  # fmt: skip
"""Words that no identifier of the package has; prose may use them."""

BRITISH = re.compile(
    r"\w*(?:olour|eighbour|ehaviour|avour|onour|licence|uantis|nitialis|ormalis|okenis|erialis|ecognis|"
    r"rganis|modell(?:ed|ing)|labell|travell|\bcentre|\banalyse)\w*", re.IGNORECASE
)  # fmt: skip
ALLOWED = re.compile(
    r"closed[- ]forms?|waveform|\b(?:dtype|parameter|found)\.kind|kind=\"stable\"|in[-_ ]?place",
    re.IGNORECASE,
)
"""Names of other libraries, and terms of mathematics."""

SUFFIXES = (".py", ".pyi", ".c", ".h", ".md", ".toml", ".cmake", ".yml")
EXCEPTIONS = ("tests/test_words.py", "docs/GLOSSARY.md", "CHANGELOG.md")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_C_PROSE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


def parts(name: str) -> set[str]:
    """The words of an identifier: split at underscores and capitals."""
    return {part.lower() for piece in name.split("_") for part in _PART.findall(piece)}


def names_in_code(path: Path, text: str) -> set[str]:
    if path.suffix in (".py", ".pyi"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME}
    return set(_NAME.findall(_C_PROSE.sub(" ", text)))


FILES = [
    path for path in project_files()
    if path.suffix in SUFFIXES and "results" not in path.parts and name(path) not in EXCEPTIONS
]  # fmt: skip


def test_retired_words_do_not_occur() -> None:
    found = [
        f"{name(path)}:{number}: {word}: write {RETIRED.get(word, 'US spelling')}"
        for path in FILES
        for number, line in enumerate(read(path).splitlines(), 1)
        for kept in [ALLOWED.sub("", line)]
        for word in [
            *sorted(RETIRED.keys() & {part for entry in _NAME.findall(kept) for part in parts(entry)}),
            *BRITISH.findall(kept),
        ]
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["python", "csrc"])
def test_names_have_the_words_of_the_glossary(folder: str) -> None:
    found = [
        f"{name(path)}: {entry}: write {IN_NAMES[word]}"
        for path in FILES
        if name(path).startswith(f"{folder}/") and path.suffix in (".py", ".pyi", ".c", ".h")
        for entry in sorted(names_in_code(path, ALLOWED.sub("", read(path))))
        for word in sorted(parts(entry) & IN_NAMES.keys())
    ]
    assert not found, "\n".join(found)
