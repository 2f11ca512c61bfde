"""Damaged files: what is read must decode, or be refused by a named exception.

Some files are sound except for an unknown field, which a warning must name.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from fuzz.draws import Draws
from fuzz.failures import Failure
from fuzz.family_files import CONFIGS
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
    case = {"check": "file", "kind": kind, "mutations": mutations}
    described = [name for name in _DESCRIBING if name in files and kind in _OF_MODELS]
    if described and draws.chance(0.15):
        value = draws.one(0, -1.5, True, False, "", "text", [], [1], {}, {"a": 1})
        name = f"{draws.one('invented', 'use', 'num', 'attention', 'rope')}_{draws.randrange(10**6)}"
        case |= {"mutations": [], "invented": [draws.choice(described), name, value]}
    return case


# Files that describe a model, its texts or an adapter; the kinds that have them as transformers writes them.
_DESCRIBING = ("config.json", "generation_config.json", "adapter_config.json")
_OF_MODELS = {
    *CONFIGS, "llama", "metaspace", "shards", "codes", "gpt2", "byt5", "adapter", "adapter_merged",
    "adapter_dora",
}  # fmt: skip


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
        file, invented, value = case.get("invented", ("", "", None))
        if invented:
            files[file] = json.dumps({**json.loads(files[file]), invented: value}).encode()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        memory = MEMORY_CONSTANT + MEMORY_FACTOR * sum(map(len, files.values()))
        with limited(memory), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use(case["kind"], folder)
        named = {name for one in caught for name in getattr(one.message, "names", ())}
        if invented and invented not in named:
            raise Failure(
                "dropped", f"field {invented!r} of {file} is without effect, and no warning names it"
            )
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
