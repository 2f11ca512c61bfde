"""Texts for benchmarks of drafts: prompts to continue, and forced texts.

The embedded target does not copy its prompt. So rewriting, code and JSON are forced by a transform of its
distribution, in plain runs too, at temperature 0: all forward passes are real, and draft tokens are accepted
as if a model wrote this text. The transform takes many microseconds per token, so only draft and target are
timed.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.interleaved import PROMPTS

PASSAGE = """The old man put down his hat upon the table, and looked at the fire for a long time without a
word. Outside, the wind was rising, and the rain had begun to beat against the windows. At last he turned
to his daughter, and said that the ship would not come before the spring. She had known it since the
morning, when the captain's wife passed by the gate and did not stop. But she said nothing, and went on
with her sewing."""
REWRITTEN = """The old man laid his hat on the table, and looked at the fire for a long time without a
word. Outside, the wind was rising, and the rain had begun to beat against the windows. At last he turned
to his daughter and said that the ship would not come before the summer. She had known it since the
morning, when the captain's wife had passed the gate and did not stop. But she said nothing, and went on
with her work."""

CODE = """def read_rows(path, separator=","):
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            values = line.rstrip("\\n").split(separator)
            rows.append([value.strip() for value in values])
    return rows
"""
EDITED_CODE = """def read_rows(path, separator=",", skip=0):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number < skip:
                continue
            values = line.rstrip("\\n").split(separator)
            rows.append([value.strip() for value in values])
    return rows
"""
RENAMED = CODE.replace("rows", "table").replace('separator=","', 'separator=";"')
MORE_CODE = """

def write_rows(path, rows, separator=","):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            values = [str(value).strip() for value in row]
            file.write(separator.join(values) + "\\n")


def read_columns(path, separator=","):
    rows = read_rows(path, separator)
    return [[row[i] for row in rows] for i in range(len(rows[0]))]
"""


CHARACTERS = 2_000_000
"""Characters to read from a file."""


def records(first: int, last: int) -> str:
    names = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "John"]
    rows = [
        {
            "id": 1000 + i,
            "name": names[i % 8],
            "city": ["London", "Paris", "Rome"][i % 3],
            "active": i % 4 > 0,
        }
        for i in range(first, last)
    ]
    return "".join(f"  {json.dumps(row)},\n" for row in rows)


#: Prompts, each with its forced output or None.
TEXT_TYPES: dict[str, Sequence[tuple[str, str | None]]] = {
    "prose": [(prompt, None) for prompt in PROMPTS],
    "list": [
        (prompt, None)
        for prompt in ("one, two, three, four, one, two,", "Monday, Tuesday, Wednesday, Thursday, Monday,")
    ],
    "rewriting": [(f"Rewrite this:\n{PASSAGE}\n\nRewritten:\n", REWRITTEN)],
    "code": [
        (f"# Say table for rows, separate by semicolons.\n{CODE}\n# Renamed:\n", RENAMED),
        (f"# Let it skip lines.\n{CODE}\n# With skip:\n", EDITED_CODE),
    ],
    "more code": [(CODE, MORE_CODE)],
    "JSON": [("[\n" + records(0, 5), records(5, 10))],
}


def work(target: specdec.Model, text_type: str, n_tokens: int) -> list[tuple[Any, dict[str, Any]]]:
    """Return prompts of a text type as token ids, each with options of `specdec.generate`."""
    assert target.tokenizer is not None
    encode = target.tokenizer.encode
    found: list[tuple[Any, dict[str, Any]]] = []
    for prompt, output in TEXT_TYPES[text_type]:
        ids = encode(prompt)
        if output is None:
            found.append((ids, {"max_new_tokens": n_tokens}))
        else:
            tokens = encode(output, add_bos=False)
            found.append((ids, {"max_new_tokens": len(tokens), "transform": _writing(ids + tokens)}))
    return found


def _writing(text: list[int]) -> Callable[[np.ndarray, list[int]], np.ndarray]:
    """Return a transform that forces a text."""

    def follow(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        probs[:] = 0.0
        n = len(tokens)
        probs[text[n] if n < len(text) and tokens[-1] == text[n - 1] else 0] = 1.0
        return probs

    return follow


def spread_prompts(text: str, model: specdec.Model, n_prompts: int, n_tokens: int) -> list[list[int]]:
    """Return prompts of up to `n_tokens` tokens, spread over a text."""
    assert model.tokenizer is not None
    starts = np.linspace(0, max(len(text) - 20 * n_tokens, 0), n_prompts).astype(int)
    pieces = [text[start : start + 20 * n_tokens] for start in starts]
    return [model.tokenizer.encode(piece)[:n_tokens] for piece in pieces]


def read_text(path: Path) -> str:
    """Read the start of a text file, of an archive's texts, or of HumanEval's code."""
    if path.name.endswith(".tar.xz"):
        texts: list[str] = []
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".txt") else None
                if file is not None:
                    texts.append(file.read(CHARACTERS).decode("utf-8", "ignore"))
                if sum(map(len, texts)) > CHARACTERS:
                    break
        return "".join(texts)[:CHARACTERS]
    if path.name.endswith(".jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return "".join(row["prompt"] + row["canonical_solution"] for row in rows)[:CHARACTERS]
    return path.read_text(encoding="utf-8")[:CHARACTERS]
