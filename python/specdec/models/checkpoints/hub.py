"""Repositories on the Hugging Face Hub, through ``huggingface_hub``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from specdec.checks import check_path
from specdec.errors import CheckpointError, InputError, MissingHubError, SpecdecError, shown, type_of

DESCRIBING: Final = (
    "added_tokens.json", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
    "model.safetensors.index.json", "sentencepiece.bpe.model", "source.spm", "special_tokens_map.json",
    "spiece.model", "target.spm", "target_vocab.json", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json",
)  # fmt: skip
"""Files that describe a model in a Hugging Face folder."""

TEMPLATES: Final = "additional_chat_templates/*.jinja"
"""Additional chat templates in a Hugging Face folder."""

_COMPLETE: Final = (".gguf", ".specdec")
_LLAMA2C: Final = ("tokenizer.bin", "tokenizer.model")
_LLAMA2C_TABLES: Final = ("tok*.bin", "tok*.model")


def is_describing(name: str) -> bool:
    """Return whether `describing_files` can include this name, relative to the folder."""
    folder, _, last = name.rpartition("/")
    if not folder:
        return last in DESCRIBING or last in _LLAMA2C or any(fnmatchcase(last, of) for of in _LLAMA2C_TABLES)
    return f"{folder}/*.jinja" == TEMPLATES and fnmatchcase(last, "*.jinja")


def describing_files(path: Path) -> list[Path]:
    """List files, existing or not, that describe the model at `path`; none if one file holds everything."""
    if path.suffix in _COMPLETE and not path.is_dir():
        return []
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".bin" and not path.is_dir():
        named = [folder / name for name in _LLAMA2C]
        found = {file for names in _LLAMA2C_TABLES for file in folder.glob(names)}
        return named + sorted(found - {*named, path})
    return [folder / name for name in DESCRIBING] + sorted(folder.glob(TEMPLATES))


# The hub's rule: letters, digits, "-", "_" and ".", one slash. Relative paths ("./x", "../x") do not match.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

# A file in a repository: hf://org/name/folder/file.gguf.
_FILE = re.compile(r"hf://([^/:]+/[^/:]+)/([^:\\]+\.gguf)")
# A GGUF file by its type: org/name:Q4_K_M, with or without hf:// in front.
_TAGGED = re.compile(r"(?:hf://)?([^/:]+/[^/:]+)(?::([A-Za-z0-9_.-]{1,40}))?")
# End of such a file name after the type: the part number of a split file.
_PART = r"(?:-\d{5}-of-\d{5})?\.gguf"

# Names without organization that the hub still accepts.
_FORMER = {
    "distilgpt2": "distilbert/distilgpt2",
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
}

# Files that the loader reads; repositories also hold the weights in other formats.
_WANTED = ["*.safetensors", "*.json", *(name for name in DESCRIBING if not name.endswith(".json"))]
_UNWANTED = ["*/*", "consolidated*"]


@dataclass(frozen=True)
class HubOptions:
    """Arguments of ``huggingface_hub``; None means its default."""

    revision: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    token: str | bool | None = None

    def __post_init__(self) -> None:
        if self.revision is not None and not (isinstance(self.revision, str) and self.revision):
            raise InputError.of("revision", self.revision, "a branch, a tag, a commit or None")
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", check_path("cache_dir", self.cache_dir))
        if not isinstance(self.token, str | bool | None):
            raise InputError.of("token", None, "a str, True, False or None", type_of(self.token))


@dataclass(frozen=True)
class HubName:
    """A `repository` on the hub, "org/name", and a GGUF `file` in it or the `tag` of one: "Q4_K_M"."""

    repository: str
    file: str = ""
    tag: str = ""


def parse_hub_name(text: str) -> HubName | None:
    """Parse ``org/name``, ``org/name:Q4_K_M`` or ``hf://org/name/file.gguf``; None for anything else."""
    if (found := _FILE.fullmatch(text)) and is_repository_name(found[1]):
        parts = found[2].split("/")
        return None if {"", ".", ".."} & set(parts) else HubName(found[1], file=found[2])
    if (found := _TAGGED.fullmatch(text)) and is_repository_name(found[1]):
        return HubName(found[1], tag=found[2] or "")
    return HubName(text) if is_repository_name(text) else None


def is_repository_name(text: str) -> bool:
    """Return whether ``text`` is ``org/name``, or one of the few names without organization."""
    return text in _FORMER or _REPOSITORY.fullmatch(text) is not None


def fetch(name: HubName, options: HubOptions | None = None) -> Path:
    """Return a repository's local folder, or the first part of a GGUF file, downloading if needed."""
    options = options or HubOptions()
    if not (name.file or name.tag):
        return download(name.repository, options)
    library = _import_library(name.repository)
    where: dict[str, Any] = {"revision": options.revision, "token": options.token}
    with _hub_errors(name.repository, options):
        there = library.HfApi().list_repo_files(name.repository, **where)
        wanted = _of_tag(name, there) if name.tag else _with_parts(name.file, there)
        where["cache_dir"] = options.cache_dir
        paths = [library.hf_hub_download(name.repository, file, **where) for file in wanted]
    return Path(paths[0])


def _with_parts(file: str, there: Sequence[str]) -> list[str]:
    """List a file and, if it is split, its other parts."""
    if (part := re.fullmatch(r"(.*)-\d{5}(-of-\d{5}\.gguf)", file)) is None:
        return [file]
    pattern = re.compile(re.escape(part[1]) + r"-\d{5}" + re.escape(part[2]))
    return sorted(name for name in there if pattern.fullmatch(name)) or [file]


def _of_tag(name: HubName, there: Sequence[str]) -> list[str]:
    """List the file of a type, or its parts."""
    pattern = re.compile(rf"(?:.*[-._/])?{re.escape(name.tag)}{_PART}", re.IGNORECASE)
    models = sorted(file for file in there if file.endswith(".gguf") and "mmproj" not in file)
    whole = {file: re.sub(_PART + "$", "", file) for file in models}
    found = [file for file in models if pattern.fullmatch(file)]
    n = len({whole[file] for file in found})
    if n != 1:
        has = f"has {n} GGUF files of type {shown(name.tag)}"
        listed = ", ".join(dict.fromkeys(whole.values())) or "no GGUF file"
        raise CheckpointError(f"{name.repository}: {has}; expected the type of one of: {listed}")
    return found


def download(name: str, options: HubOptions | None = None) -> Path:
    """Return the local folder of a hub repository, downloading what the hub's cache lacks."""
    options = options or HubOptions()
    library = _import_library(name)
    where = {"revision": options.revision, "cache_dir": options.cache_dir, "token": options.token}
    with _hub_errors(name, options):
        name = _FORMER.get(name, name)
        folder = library.snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, **where)
        # Separate call, because * in a pattern matches slashes too.
        library.snapshot_download(name, allow_patterns=[TEMPLATES], **where)
    return Path(folder)


def _import_library(name: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        how = "to download it from the Hugging Face Hub: pip install 'specdec-cpu[hub]'"
        raise MissingHubError(f"{name}: no such file or folder; {how}") from error
    return huggingface_hub


@contextmanager
def _hub_errors(name: str, options: HubOptions) -> Iterator[None]:
    """Turn exceptions of the library into a CheckpointError that names the repository."""
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:  # errors of the library and of its HTTP client share no base class
        at = "" if options.revision is None else f" at revision {shown(options.revision)}"
        what = f"no such file or folder on disk, and the download from the Hugging Face Hub failed{at}"
        cause = " ".join(str(error).split())
        raise CheckpointError(f"{name}: {what}: {type(error).__name__}: {cause}") from error
