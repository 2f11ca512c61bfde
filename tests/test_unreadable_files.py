"""Unreadable files and folders: each reader raises a named exception, never a bare OSError."""

from __future__ import annotations

import builtins
import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz.files import FILE_FORMATS, files_of, use
from specdec.errors import SpecdecError

# Of the families one: their folders are opened by the same functions. Prompt caches ignore such files.
FORMATS = [
    name for name in FILE_FORMATS if "For" not in name and "Model" not in name and name != "prompts"
] + ["LlamaForCausalLM"]
FUNCTIONS = ((os, "stat"), (os, "open"), (os, "listdir"), (os, "scandir"), (io, "open"), (builtins, "open"))


def forbid(patched: pytest.MonkeyPatch, path: Path, *, within: bool) -> None:
    """Make the system refuse access to a file, or with `within` to a folder's contents."""

    def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any = ".", *arguments: Any, **options: Any) -> Any:
            if isinstance(target, str | os.PathLike):
                asked = Path(os.path.abspath(target))
                is_read = function is not os_stat
                if (path in asked.parents) if within else (asked == path and is_read):
                    raise PermissionError(13, "Permission denied", str(target))
            return function(target, *arguments, **options)

        return call

    os_stat = os.stat
    for module, name in FUNCTIONS:
        patched.setattr(module, name, refusing(getattr(module, name)))


def made(file_format: str, folder: Path) -> list[Path]:
    for name, data in files_of(file_format).items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files_of(file_format)]


def read(file_format: str, folder: Path) -> None:
    """Read, or accept a named refusal: a missing file may not be needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            use(file_format, folder)
        except SpecdecError as error:
            assert str(folder) in str(error) or "cannot" in str(error)


IN_PLACE: dict[str, Callable[[Path], None]] = {
    "folder": Path.mkdir,
    "loop": lambda file: file.symlink_to(file.name),
    "dangling link": lambda file: file.symlink_to("nothing"),
    "nothing": lambda file: None,
}


@pytest.mark.parametrize("what", IN_PLACE)
@pytest.mark.parametrize("file_format", FORMATS)
def test_unreadable_objects_instead_of_a_file(tmp_path: Path, file_format: str, what: str) -> None:
    for i in range(len(files_of(file_format))):
        folder = tmp_path / f"{i}"
        folder.mkdir()
        file = made(file_format, folder)[i]
        file.unlink()
        IN_PLACE[what](file)
        read(file_format, folder)


@pytest.mark.parametrize("file_format", FORMATS)
def test_files_of_another_user(tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = made(file_format, tmp_path)
    read(file_format, tmp_path)  # imports what reading needs
    for file in files:
        with monkeypatch.context() as patched:
            forbid(patched, file, within=False)
            read(file_format, tmp_path)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_folder_of_another_user(tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made(file_format, tmp_path)
    read(file_format, tmp_path)  # imports what reading needs
    with monkeypatch.context() as patched:
        forbid(patched, tmp_path, within=True)
        with pytest.raises(SpecdecError):
            use(file_format, tmp_path)
