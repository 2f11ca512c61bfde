"""Atomic file writes: a file is written completely or not at all, and nothing else is touched."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lazily import torch
from specdec import InputError, SkipSearch, SkipTrial
from specdec.atomic_file import replacing
from specdec.drafts import Ngram


def write_table(path: Path) -> None:
    Ngram([0, 1, 2, 0, 1], 3, 2).save(path)


def write_search(path: Path) -> None:
    trial = SkipTrial((1,), (0, 1), 2, 1.25, 50.0, 40.0, 0.5, 1.75)
    SkipSearch("tiny", {"temperature": 0.0}, (trial,)).save(path)


def write_training_state(path: Path) -> None:
    loop = runpy.run_path(str(Path(__file__).parents[1] / "training" / "loop.py"))
    loop["save_checkpoint"](path, torch.nn.Linear(2, 2), SimpleNamespace(state_dict=dict), 7)
    assert torch.load(path, weights_only=True)["step"] == 7


WRITERS = [write_table, write_search, pytest.param(write_training_state, marks=pytest.mark.oracle)]


@pytest.mark.parametrize("write", WRITERS)
def test_files_with_foreseeable_names_are_left_alone(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Another program's file or link, under a name that temporary files often have."""
    path, victim = tmp_path / "kept.x", tmp_path / "victim"
    victim.write_bytes(b"of another")
    names = [f"kept.x.{os.getpid()}.part", "kept.x.part", "kept.part", ".kept.x.part", "kept.x.tmp"]
    for i, name in enumerate(names):
        if i % 2:
            (tmp_path / name).symlink_to(victim)
        else:
            (tmp_path / name).write_bytes(b"of another")
    write(path)
    write(path)
    assert path.stat().st_size > 20 and not path.is_symlink()
    for name in (*names, "victim"):
        assert (tmp_path / name).read_bytes() == b"of another"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["kept.x", "victim", *names])


def test_what_was_there_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        partial = next(other for other in tmp_path.iterdir() if other != path)
        assert re.fullmatch(r"\.[0-9a-f]{16}\.part", partial.name)
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "file") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_missing_folders_and_folders_at_the_path_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as absent, replacing(tmp_path / "no" / "file"):
        raise AssertionError
    assert absent.value.filename == str(tmp_path / "no" / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, replacing(tmp_path / "folder") as file:
        file.write(b"x")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "folder"), None)
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.parametrize("write", [write_table, write_search])
def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], None]) -> None:
    """One without a name is refused; ``~`` is the home folder."""
    for path in ("", ".", "..", "/", "x/.."):
        with pytest.raises(InputError, match=r"path '.*' has no file name"):
            write(path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write("~/kept")
    assert (tmp_path / "kept").is_file()
