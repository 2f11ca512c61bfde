"""Origin of models and drafts: their files, change detection, and how another process finds them.

A pickle of a model or learned draft holds `ReadFiles` instead of weights: paths, sizes, modification times
and digests.
"""

from __future__ import annotations

import os
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

from specdec.checks import check_path
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError, type_of
from specdec.models.checkpoints.hub import HubName, HubOptions, describing_files, fetch, parse_hub_name

_FRESH_NS: Final = 2_000_000_000
"""Age below which a file's modification time is ignored, because file systems count time in steps."""
_PIECE: Final = 1 << 20
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubLocation:
    """A repository on the Hugging Face Hub, by the arguments of `specdec.load`."""

    name: str
    revision: str | None
    cache_dir: str | None

    @classmethod
    def of(cls, path: Any, revision: str | None = None, cache_dir: Any = None) -> HubLocation | None:
        """Return the location of a hub name; None for a path on disk."""
        if check_path("path", path, CheckpointError).exists():
            return None
        return cls(str(path), revision, None if cache_dir is None else str(cache_dir))


@dataclass(frozen=True)
class FileRecord:
    """State of a file: name relative to the folder, and size in bytes (None: no such file).

    `changed_ns`: Modification time; 0 to ignore it. `digest`: BLAKE2b in hexadecimal.
    """

    name: str
    size: int | None
    changed_ns: int = 0
    digest: str = ""


@dataclass(frozen=True)
class ReadFiles:
    """Files that something was read from, and their state.

    `folder`: Absolute path. `entry`: The requested file in it; empty: the folder. `hub`: Where to download a
    missing folder. `package`: Its name in ``specdec/embedded``, whose path differs between processes.
    """

    folder: str
    entry: str
    records: tuple[FileRecord, ...]
    hub: HubLocation | None = None
    package: str = ""
    _digests: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def at(cls, path: Path, read: Iterable[Path], *, hub: HubLocation | None = None) -> ReadFiles:
        """Record the files `read` for `path`, a folder or a file in it."""
        path = Path(os.path.abspath(path))
        folder, entry = (path, "") if path.is_dir() else (path.parent, path.name)
        if hub is not None and _COMMIT.fullmatch(folder.name):  # in the hub's cache
            hub = replace(hub, revision=folder.name)
        names = [os.path.relpath(os.path.abspath(file), folder) for file in dict.fromkeys(read)]
        with as_file(files("specdec") / "embedded") as ours:
            package = folder.name if folder.parent == Path(os.path.abspath(ours)) else ""
        return cls(str(folder), entry, tuple(_stamped(folder, name) for name in names), hub, package)

    @classmethod
    def of_model(cls, path: Path, weights: Iterable[Path], *, hub: HubLocation | None = None) -> ReadFiles:
        """Record a model's or tokenizer's files: weights, and files that describe them."""
        return cls.at(path, [*weights, *describing_files(path)], hub=hub)

    @property
    def path(self) -> Path:
        """Absolute path of the requested folder or file."""
        return Path(self.folder, self.entry)

    @property
    def digest(self) -> str:
        """BLAKE2b of the files' names and digests, independent of their path."""
        named = "".join(f"{record.name}\0{record.digest}\0" for record in self.records)
        return blake2b(named.encode(), digest_size=16).hexdigest()

    def reference(self) -> ReadFiles:
        """Return the files with digests, for a pickle; the first call reads them all."""
        now, records = time.time_ns(), []
        for record in self.records:
            file = Path(self.folder, record.name)
            if (found := _stamped(Path(self.folder), record.name)) != record:
                raise CheckpointError(
                    f"{file}: has changed since it was read ({_state(found)}, was {_state(record)}); "
                    "expected unchanged files for a pickle: load the model again"
                )
            if record.size is not None:
                if record.name not in self._digests:
                    self._digests[record.name] = _digest(file)
                at = 0 if now - record.changed_ns < _FRESH_NS else record.changed_ns
                record = replace(record, changed_ns=at, digest=self._digests[record.name])
            records.append(record)
        return replace(self, records=tuple(records), _digests={})

    def found(self) -> Path:
        """Return the path in this process if its files have equal sizes, and equal times or digests."""
        folder = self._found_folder()
        for record in self.records:
            _compare(folder / record.name, record)
        return folder / self.entry if self.entry else folder

    def _found_folder(self) -> Path:
        if self.package:
            with as_file(files("specdec") / "embedded" / self.package) as folder:
                return folder
        path = Path(self.folder)
        if self.hub is not None and not path.is_dir():
            name = parse_hub_name(self.hub.name) or HubName(self.hub.name)
            found = fetch(name, HubOptions(self.hub.revision, self.hub.cache_dir))
            return found if found.is_dir() else found.parent
        if not path.is_dir():
            raise CheckpointNotFoundError(f"{path}: no such folder; expected the pickled model's files")
        return path


def _compare(file: Path, record: FileRecord) -> None:
    now, then = _stamped(file.parent, file.name), "as when the pickled object was loaded"
    if now.size is None and record.size is not None:
        raise CheckpointNotFoundError(f"{file}: no such file; expected the pickled model's files")
    if record.size is None and now.size is not None:
        raise CheckpointError(f"{file}: did not exist when the pickled object was loaded; expected no file")
    if now.size != record.size:
        raise CheckpointError(f"{file}: has {now.size} bytes; expected {record.size}, {then}")
    if now.changed_ns != record.changed_ns and (digest := _digest(file)) != record.digest:
        raise CheckpointError(f"{file}: has the digest {digest}; expected {record.digest}, {then}")


def _digest(file: Path) -> str:
    digest = blake2b(digest_size=16)
    try:
        with file.open("rb") as stream:
            while piece := stream.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _stamped(folder: Path, name: str) -> FileRecord:
    try:
        status = (folder / name).stat()
    except OSError:
        return FileRecord(name, None)
    return FileRecord(name, status.st_size, status.st_mtime_ns)


def _state(record: FileRecord) -> str:
    return "missing" if record.size is None else f"{record.size} bytes, written at {record.changed_ns} ns"


@dataclass(frozen=True)
class ModelOrigin:
    """How a model was loaded; in a pickle with references to its files.

    `tokenizer_files`: Of a tokenizer given by path. `arguments`: Of `load`, which is `specdec.load`.
    `languages`: Arguments of `Model.with_languages`. `adapter_files`: Of a merged adapter. `key`: Unique,
    identifies the model in its process.
    """

    files: ReadFiles
    tokenizer_files: ReadFiles | None
    arguments: Mapping[str, Any]
    load: Callable[..., Any]
    languages: tuple[str | None, str | None] = (None, None)
    adapter_files: ReadFiles | None = None
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    def in_languages(self, src_lang: str | None, tgt_lang: str | None) -> ModelOrigin:
        """Return the origin for other languages; None: unchanged."""
        languages = src_lang or self.languages[0], tgt_lang or self.languages[1]
        return replace(self, languages=languages, key=secrets.token_hex(16))

    def reference(self) -> ModelOrigin:
        """Return the origin for a pickle; a tokenizer object must be picklable."""
        tokenizer = self.arguments.get("tokenizer")
        try:
            pickle.dumps(tokenizer)
        except Exception as error:  # whatever the object's own code raises
            found = f"{type_of(tokenizer)}, which cannot be pickled: {error}"
            expected = "a picklable tokenizer, or load the model with the path of one"
            raise InputError.of("tokenizer", tokenizer, expected, found) from error
        names = ("tokenizer_files", "adapter_files", "files")
        read: Any = {name: getattr(self, name) for name in names}
        return replace(self, **{name: of and of.reference() for name, of in read.items()})
