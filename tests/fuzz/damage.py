"""Damaged files: what is read must decode, or be refused by a named exception.

Some files are sound except for an unknown field, which a warning must name.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from pathlib import Path

from fuzz.files import files_of, use
from fuzz.mutations import apply, draw_mutation
from fuzz.running import Case, Failure, limited
from specdec.errors import SpecdecError
from worlds.draws import Draws
from worlds.families import CONFIGS

__all__ = ["check_file", "file_case"]

MEMORY_CONSTANT, MEMORY_FACTOR = 256 << 20, 3
"""Bytes of addresses that reading may take: the constant, and so many times the files."""


def file_case(draws: Draws, kind: str) -> Case:
    """A damaged file of a kind, or a sound one with an unknown field."""
    files = files_of(kind)
    described = [name for name in _DESCRIBING if name in files and kind in _OF_MODELS]
    if described and draws.chance(0.15):
        value = draws.one(0, -1.5, True, False, "", "text", [], [1], {}, {"a": 1})
        name = f"{draws.one('invented', 'use', 'num', 'attention', 'rope')}_{draws.randrange(10**6)}"
        invented = [draws.choice(described), name, value]
        return {"check": "file", "kind": kind, "mutations": [], "invented": invented}
    mutations = [draw_mutation(draws, files) for _ in range(draws.one(1, 1, 1, 2, 4))]
    return {"check": "file", "kind": kind, "mutations": mutations}


# Files that describe a model, its texts or an adapter; the kinds that have them as transformers writes them.
_DESCRIBING = ("config.json", "generation_config.json", "adapter_config.json")
_OF_MODELS = {
    *CONFIGS, "llama", "metaspace", "shards", "codes", "gpt2", "byt5", "adapter", "adapter_merged",
    "adapter_dora",
}  # fmt: skip


def check_file(case: Case) -> str:
    """Write the files, damaged, to a folder of their own, and use them."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        files = dict(files_of(case["kind"]))
        for mutation in case["mutations"]:
            apply(mutation, files)
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
            raise Failure(f"field {invented!r} of {file} is without effect, and no warning names it")
    except SpecdecError as error:
        try:
            str(error).encode()
        except UnicodeEncodeError:
            raise Failure(f"the message of {error!a} cannot be printed") from error
        return "refused"
    finally:
        shutil.rmtree(folder)
    return "passed"
