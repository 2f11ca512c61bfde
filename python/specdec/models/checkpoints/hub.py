"""Repositories on the Hugging Face Hub, through ``huggingface_hub`` (the extra ``huggingface_hub``)."""

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
"""Those of a Hugging Face folder, by name."""

TEMPLATES: Final = "additional_chat_templates/*.jinja"
"""Chat templates beside the first, in such a folder."""

_COMPLETE: Final = (".gguf", ".specdec")
_LLAMA2C: Final = ("tokenizer.bin", "tokenizer.model")
_LLAMA2C_TABLES: Final = ("tok*.bin", "tok*.model")


def is_describing(name: str) -> bool:
    """Whether `describing_files` has files of this name, relative to the folder, for some model."""
    folder, _, last = name.rpartition("/")
    if not folder:
        return last in DESCRIBING or last in _LLAMA2C or any(fnmatchcase(last, of) for of in _LLAMA2C_TABLES)
    return f"{folder}/*.jinja" == TEMPLATES and fnmatchcase(last, "*.jinja")


def describing_files(place: Path) -> list[Path]:
    """The files, there or not, that describe what is at a `place`; none beside one that holds all of it."""
    if place.suffix in _COMPLETE and not place.is_dir():
        return []
    folder = place if place.is_dir() else place.parent
    if place.suffix == ".bin" and not place.is_dir():
        named = [folder / name for name in _LLAMA2C]
        found = {file for names in _LLAMA2C_TABLES for file in folder.glob(names)}
        return named + sorted(found - {*named, place})
    return [folder / name for name in DESCRIBING] + sorted(folder.glob(TEMPLATES))


# The hub's own rule: words of letters, digits, "-", "_" and ".", one slash. A name that could be a relative
# path on this disk ("./x", "../x") does not match.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

# A file of a repository: hf://org/name/folder/file.gguf.
_FILE = re.compile(r"hf://([^/:]+/[^/:]+)/([^:\\]+\.gguf)")
# A GGUF file by its type: org/name:Q4_K_M, with or without hf:// in front.
_TAGGED = re.compile(r"(?:hf://)?([^/:]+/[^/:]+)(?::([A-Za-z0-9_.-]{1,40}))?")
# How the name of such a file ends behind the type: with the number of a part, if it was split.
_PART = r"(?:-\d{5}-of-\d{5})?\.gguf"

# Names from before there were organizations, which the hub still takes.
_FORMER = {
    "distilgpt2": "distilbert/distilgpt2",
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
}

# Everything the loader reads and nothing else: repositories also hold the same weights in other formats.
_WANTED = ["*.safetensors", "*.json", *(name for name in DESCRIBING if not name.endswith(".json"))]
_UNWANTED = ["*/*", "consolidated*"]


@dataclass(frozen=True)
class HubOptions:
    """How a repository is fetched: each argument is that of ``huggingface_hub``, None its default."""

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
    """A `repository` of the hub, "org/name", and a GGUF `file` of it, or the `tag` of one: "Q4_K_M"."""

    repository: str
    file: str = ""
    tag: str = ""


def parse_hub_name(text: str) -> HubName | None:
    """What ``org/name``, ``org/name:Q4_K_M`` or ``hf://org/name/file.gguf`` asks for; None of others."""
    if (found := _FILE.fullmatch(text)) and is_repository_name(found[1]):
        parts = found[2].split("/")
        return None if {"", ".", ".."} & set(parts) else HubName(found[1], file=found[2])
    if (found := _TAGGED.fullmatch(text)) and is_repository_name(found[1]):
        return HubName(found[1], tag=found[2] or "")
    return HubName(text) if is_repository_name(text) else None


def is_repository_name(text: str) -> bool:
    """Whether ``text`` has the form ``org/name``, or is one of the few names without organization."""
    return text in _FORMER or _REPOSITORY.fullmatch(text) is not None


def fetch(name: HubName, options: HubOptions | None = None) -> Path:
    """The local folder of a repository, or the first part of a GGUF file; downloaded if need be."""
    options = options or HubOptions()
    if not (name.file or name.tag):
        return download(name.repository, options)
    library = _import_library(name.repository)
    where: dict[str, Any] = {"revision": options.revision, "token": options.token}
    with _hub_errors(name.repository, options):
        there = library.HfApi().list_repo_files(name.repository, **where)
        wanted = _of_tag(name, there) if name.tag else _with_parts(name.file, there)
        where["cache_dir"] = options.cache_dir
        places = [library.hf_hub_download(name.repository, file, **where) for file in wanted]
    return Path(places[0])


def _with_parts(file: str, there: Sequence[str]) -> list[str]:
    """A file and, if it is a part of one that was split, its other parts."""
    if (part := re.fullmatch(r"(.*)-\d{5}(-of-\d{5}\.gguf)", file)) is None:
        return [file]
    pattern = re.compile(re.escape(part[1]) + r"-\d{5}" + re.escape(part[2]))
    return sorted(name for name in there if pattern.fullmatch(name)) or [file]


def _of_tag(name: HubName, there: Sequence[str]) -> list[str]:
    """The file of a type, or its parts."""
    pattern = re.compile(rf"(?:.*[-._/])?{re.escape(name.tag)}{_PART}", re.IGNORECASE)
    models = sorted(file for file in there if file.endswith(".gguf") and "mmproj" not in file)
    whole = {file: re.sub(_PART + "$", "", file) for file in models}
    found = [file for file in models if pattern.fullmatch(file)]
    n = len({whole[file] for file in found})
    if n != 1:
        has = f"has {n} GGUF files of the type {shown(name.tag)}"
        listed = ", ".join(dict.fromkeys(whole.values())) or "no GGUF file"
        raise CheckpointError(f"{name.repository}: {has}; expected one of: {listed}")
    return found


def download(name: str, options: HubOptions | None = None) -> Path:
    """The local folder of a hub repository, downloaded where the hub's cache does not have it."""
    options = options or HubOptions()
    library = _import_library(name)
    where = {"revision": options.revision, "cache_dir": options.cache_dir, "token": options.token}
    with _hub_errors(name, options):
        name = _FORMER.get(name, name)
        folder = library.snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, **where)
        # By itself, as a pattern's * stands for slashes too.
        library.snapshot_download(name, allow_patterns=[TEMPLATES], **where)
    return Path(folder)


def _import_library(name: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        how = "to fetch it from the Hugging Face Hub: pip install 'specdec-cpu[hub]'"
        raise MissingHubError(f"{name}: no such file or folder; {how}") from error
    return huggingface_hub


@contextmanager
def _hub_errors(name: str, options: HubOptions) -> Iterator[None]:
    """Whatever the library raises becomes a CheckpointError that names the repository."""
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:  # the library's own errors, and those of its HTTP client, share no base class
        at = "" if options.revision is None else f" at revision {shown(options.revision)}"
        what = f"no such file or folder here, and the Hugging Face Hub did not give it{at}"
        cause = " ".join(str(error).split())
        raise CheckpointError(f"{name}: {what}: {type(error).__name__}: {cause}") from error
