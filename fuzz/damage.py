"""Damaged files: what is read must decode, or be refused by a named exception."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from fuzz.draws import Draws
from fuzz.failures import Failure
from fuzz.files import KINDS, files_of, use
from fuzz.memory import limited
from fuzz.mutations import apply, draw_mutation
from specdec.errors import SpecdecError

__all__ = ["check_file", "file_case"]

MEMORY_CONSTANT, MEMORY_FACTOR = 256 << 20, 3
"""Bytes of addresses that reading may take: the constant, and so many times the files."""


def file_case(seed: int, index: int) -> dict[str, Any]:
    """Damaged file number `index` of a seed."""
    draws = Draws.of("file", seed, index)
    kind = KINDS[index % len(KINDS)]
    files = files_of(kind)
    mutations = [draw_mutation(draws, files) for _ in range(draws.one(1, 1, 1, 2, 4))]
    return {"check": "file", "kind": kind, "mutations": mutations}


def _damaged(kind: str, mutations: list[Any]) -> dict[str, bytes]:
    files = dict(files_of(kind))
    for mutation in mutations:
        apply(mutation, files)
    return files


def check_file(case: dict[str, Any]) -> str:
    """Write the files, damaged, to a folder of their own, and use them."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        files = _damaged(case["kind"], case["mutations"])
        for name, data in files.items():
            (folder / name).write_bytes(data)
        memory = MEMORY_CONSTANT + MEMORY_FACTOR * sum(map(len, files.values()))
        with limited(memory), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(case["kind"], folder)
    except SpecdecError as error:
        try:
            str(error).encode()
        except UnicodeEncodeError:
            name = type(error).__name__
            raise Failure("exception", f"the message of {name} cannot be printed: {str(error)!a}") from error
        return "refused"
    finally:
        shutil.rmtree(folder)
    return "passed"
