"""Prompt caches on disk: texts that models have processed, as files of a folder.

A folder has a subfolder for each model, named by a digest of all that the bits of a text depend on: weights,
adapter, configuration, number formats, prefill method, and specdec's version and kernels. A file,
``DIGEST.prompt``, holds one text:

====================  ======================================================================================
magic number          ``SPECTXT`` and the version of the format, 1; then the bytes of the header, the number
                      of tokens, and the checksum of both: 32 bytes, little-endian
header                JSON: the fields of `_NAMES`
tokens                int32, little-endian
panels                keys, values and captured hidden states of 32 tokens each, from token ``first`` on
rest                  what belongs to the whole text: layers with sliding windows, recurrent states and their
                      snapshots, keys and values of the source
checksums             64 bits for each piece of `_PIECE` bytes (whole panels) of panels and rest
====================  ======================================================================================

Panels before ``first`` are those of another file, ``parent``, which has the same tokens there. So a
conversation adds only its new tokens, and prompts with a common prefix store it once. Files appear under
their names when they are complete, and never change. The modification time is that of the last use; where
the folder outgrows its limit, the least recently used files are removed.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from specdec import _core
from specdec.atomic_file import replacing
from specdec.decoding.cached_tokens import CachedTokens
from specdec.errors import CheckpointError, InputError, pass_signals_on, warn
from specdec.fields import Fields, parse_json
from specdec.models.checkpoints.file_tensor import OpenedFile

PANEL: Final = 32
"""Tokens of a panel: a file is written or read if it has so many more than the cache has."""

MAGIC: Final = b"SPECTXT\x01"
_HEAD: Final = struct.Struct("<8sQQQ")
_NAMES: Final = ("model", "source", "captures", "shape", "first", "parent", "panel_bytes", "rest_bytes")
"""Fields of a header: digest of the model; source, captures and shape of the `_core.CachedText`."""
_MOST_HEADER: Final = 1 << 24
_PIECE: Final = 1 << 22
_DIGEST: Final = re.compile(r"[0-9a-f]{24}")
_FILE: Final = re.compile(r"[0-9a-f]{24}\.prompt")
_PART: Final = re.compile(r"\.[0-9a-f]+\.part")
_STALE_S: Final = 3600.0
"""Age of an unfinished file whose writer no longer exists."""


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=12)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def digest_of(model: _core.Model) -> str:
    """Return a digest of all that the bits of a model's texts, and the layout of its files, depend on."""
    names = ("dtype", "cache_dtype", "prefill", "prompt_slice", "layout", "config")
    depends_on = {name: getattr(model, name) for name in names}
    depends_on |= {
        "weights": model.digest(), "version": _core.__version__, "kernels": _core.kernels_digest(),
        "byteorder": sys.byteorder, "blas": _core.openblas() if model.prefill == "blas" else None,
    }  # fmt: skip
    return _digest(json.dumps(depends_on, sort_keys=True).encode())


@dataclass(frozen=True, eq=False)
class _StoredText:
    """A file with a valid header."""

    path: Path
    known: CachedTokens
    shape: tuple[int, ...]
    first: int
    parent: str | None
    panel_bytes: int
    rest_bytes: int
    start: int = 0  # of the panels

    @classmethod
    def read(cls, path: Path) -> _StoredText:
        """Read and check the header of a file."""
        opened = OpenedFile(path)
        head = opened.read(0, min(opened.size, _HEAD.size)).tobytes()
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            raise CheckpointError(f"{path}: starts with {head[: len(MAGIC)]!r}; expected {MAGIC!r}")
        _, n_header, n_tokens, checksum = _HEAD.unpack(head)
        start = _HEAD.size + n_header + 4 * n_tokens
        if n_header > _MOST_HEADER or start > opened.size:
            raise CheckpointError(f"{path}: ends within its header (is it truncated?)")
        data = opened.read(_HEAD.size, start - _HEAD.size)
        if int(_core.checksums(data.data)[0]) != checksum:
            raise CheckpointError(f"{path}: has a damaged header (wrong checksum)")
        tokens = data[n_header:].view("<i4").astype(np.int32)
        try:
            header = parse_json(data[:n_header].tobytes())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: has a header that is not valid JSON: {error}") from error
        found = replace(cls._of(Fields(header, path, "header."), tokens, opened.size), start=start)
        if found.end != opened.size:
            raise CheckpointError(f"{path}: has {opened.size} bytes; expected {found.end} (is it truncated?)")
        if found.name != path.name:
            raise CheckpointError(f"{path}: holds another text; expected it with the name {found.name}")
        return found

    @classmethod
    def _of(cls, header: Fields, tokens: Any, size: int) -> _StoredText:
        path: Path = header.file
        for name in _NAMES:
            header.given(name)
        if unknown := header.as_dict().keys() - set(_NAMES):
            raise header.error(min(unknown), f"no field but {', '.join(_NAMES)}")
        if header.text("model") != path.parent.name:
            raise header.error("model", f"{path.parent.name}, the name of its folder")
        shape = tuple(header.integers("shape"))
        if len(shape) < 4 or not len(tokens):
            raise header.error("shape", "four numbers or more, of one token or more")
        source = None if header.raw("source") is None else tuple(header.integers("source"))
        parent = header.text("parent", default=None)
        first = header.integer("first", minimum=0)
        if first % PANEL or first > len(tokens) or (first > 0) != (parent is not None):
            raise header.error("first", "whole panels of a parent, or 0")
        low, of_windows = shape[2:4]
        snapshots = tuple(at for at in shape[4:] if at >= of_windows)
        known = CachedTokens(tokens, source, tuple(header.integers("captures")), low, snapshots)
        sizes = [header.integer(name, minimum=0, maximum=size) for name in ("panel_bytes", "rest_bytes")]
        return cls(path, known, shape, first, parent, *sizes)

    @property
    def n_prompt(self) -> int:
        """Number of leading tokens that were read as a prompt."""
        return self.shape[1]

    @property
    def n_panels(self) -> int:
        """Number of panels of the whole text."""
        return -(-len(self.known.tokens) // PANEL)

    def _sizes(self) -> list[int]:
        """Return the bytes of each piece."""
        n_panels, panels = self.n_panels - self.first // PANEL, max(1, _PIECE // max(1, self.panel_bytes))
        found = [min(panels, n_panels - p) * self.panel_bytes for p in range(0, n_panels, panels)]
        return found + [min(_PIECE, self.rest_bytes - at) for at in range(0, self.rest_bytes, _PIECE)]

    @property
    def end(self) -> int:
        """Bytes of a file whose panels begin at `start`."""
        return self.start + sum(self._sizes()) + 8 * len(self._sizes())

    @property
    def name(self) -> str:
        """Name of the file: a digest of its text, by which others refer to its panels."""
        known = self.known
        others = json.dumps([known.source, known.captures, self.n_prompt])
        return f"{_digest(known.tokens.tobytes(), others.encode())}.prompt"

    def header(self) -> bytes:
        """Return head, header and tokens as bytes."""
        known = self.known
        fields = {
            "model": self.path.parent.name, "source": known.source, "captures": known.captures,
            "shape": self.shape, "first": self.first, "parent": self.parent,
            "panel_bytes": self.panel_bytes, "rest_bytes": self.rest_bytes,
        }  # fmt: skip
        text = json.dumps(fields).encode()
        data = text + known.tokens.astype("<i4").tobytes()
        return _HEAD.pack(MAGIC, len(text), len(known.tokens), int(_core.checksums(data)[0])) + data

    def write(self, text: _core.CachedText) -> None:
        """Write the file."""
        at, sums = self.first // PANEL * self.panel_bytes, []
        with replacing(self.path) as file:
            file.write(self.header())
            for size in self._sizes():
                piece = text.image(at, size)
                sums.append(int(_core.checksums(piece)[0]))
                file.write(piece)
                at += size
            file.write(struct.pack(f"<{len(sums)}Q", *sums))

    def pieces(self, opened: OpenedFile, n_bytes: int) -> Iterator[memoryview]:
        """Yield the first bytes of panels and rest, in pieces whose checksums are right."""
        sizes = self._sizes()
        sums = opened.read(self.start + sum(sizes), 8 * len(sizes)).view("<u8").tolist()
        at = 0
        for size, checksum in zip(sizes, sums, strict=True):
            if at >= n_bytes:
                return
            piece = opened.read(self.start + at, size).data
            if int(_core.checksums(piece)[0]) != checksum:
                where = f"is damaged from byte {self.start + at} (wrong checksum)"
                error = CheckpointError(f"{self.path}: {where}")
                error.file = self.path
                raise error
            yield piece[: n_bytes - at]
            at += size


_Chain: TypeAlias = list[tuple[_StoredText, int]]
"""Files whose panels make a text, the first ones first, each with the number of panels up to its last."""


class PromptFiles:
    """The files of a prompt cache, with an index of their headers, for any number of threads and processes.

    Nothing here raises for what is in the folder, or for what it cannot store: a warning names the file.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._lock = threading.Lock()
        self._index: dict[Path, dict[str, _StoredText]] = {}
        self._ignored: set[Path] = set()
        self._waiting: dict[int, _core.CachedText] = {}  # to be written, by their ids
        self._writer: threading.Thread | None = None
        self._failed = False  # the last text could not be stored
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
            foreign = [entry for entry in sorted(path.iterdir()) if not _DIGEST.fullmatch(entry.name)]
        except OSError as error:
            raise InputError.of(
                "path", str(path), "a folder for files", f"{path}: {_reason(error)}"
            ) from error
        for entry in foreign:
            self._ignore(entry, "is not part of a prompt cache")

    def after_fork(self) -> None:
        """Drop what belongs to threads of the process that forked this one, which writes its own texts."""
        self._lock, self._writer = threading.Lock(), None
        self._waiting.clear()

    def folder(self, model: _core.Model) -> Path:
        """Return the folder of a model's texts; the first call for a model reads its weights."""
        return self.path / digest_of(model)

    # ------------------------------------------------------------------------------------------- reading

    def find(self, model: _core.Model, wanted: CachedTokens, least: int) -> _core.CachedText | None:
        """Return the text with the longest common prefix, of at least `least` tokens."""
        folder = self.folder(model)
        with self._lock:
            index = self._scan(folder)
            found = [(stored.known.begins(wanted), stored) for stored in index.values()]
        for n, stored in sorted(found, key=lambda one: -one[0]):
            if n < least:
                return None
            with self._lock:
                chain = self._chain(stored, n)
            if chain is None:
                continue
            try:
                text = self._load(model, chain, n)
            except MemoryError:
                return None
            except (CheckpointError, ValueError) as error:
                pass_signals_on(error)
                self._forget(getattr(error, "file", None) or stored.path, error)
                continue
            self._touch(chain)
            return text
        return None

    def _scan(self, folder: Path) -> dict[str, _StoredText]:
        """Return the index of a folder, with the headers of new files."""
        index = self._index.setdefault(folder, {})
        try:
            names = set(os.listdir(folder))
        except FileNotFoundError:
            names = set()
        except OSError as error:
            self._ignore(folder, f"cannot be read: {_reason(error)}")
            names = set()
        for name in index.keys() - names:
            del index[name]
        for name in names - index.keys():
            path = folder / name
            if path in self._ignored or _PART.fullmatch(name):
                continue
            if not _FILE.fullmatch(name):
                self._ignore(path, "is not part of a prompt cache")
                continue
            try:
                index[name] = _StoredText.read(path)
            except FileNotFoundError:
                pass  # another process has removed it
            except CheckpointError as error:
                self._ignore(path, str(error).removeprefix(f"{path}: "))
        return index

    def _chain(self, stored: _StoredText, n: int) -> _Chain | None:
        """Return the files with the panels of n tokens, each with its number of panels, the first ones first.

        All tokens, if something belongs to the text as a whole. The last file is that of the text. None if a
        file is missing.
        """
        index = self._index[stored.path.parent]
        n_panels = stored.n_panels if stored.rest_bytes > 0 else -(-n // PANEL)
        found: _Chain = []
        one: _StoredText | None = stored
        for _ in range(len(index) + 1):
            if one is None or one.known.captures != stored.known.captures:
                return None
            if one.known.n_common(stored.known) < min(n_panels * PANEL, len(stored.known.tokens)):
                return None
            if n_panels > one.first // PANEL or not found:
                found.append((one, n_panels))
            n_panels = min(n_panels, one.first // PANEL)
            if n_panels == 0:
                return found[::-1]
            one = index.get(str(one.parent))
        return None

    def _load(self, model: _core.Model, chain: _Chain, n: int) -> _core.CachedText:
        """Restore a text; only its first n tokens, if nothing belongs to the text as a whole."""
        stored = chain[-1][0]
        known, shape = stored.known, stored.shape
        if stored.rest_bytes > 0:
            n = len(known.tokens)
        elif n < len(known.tokens):
            shape = (shape[0], min(stored.n_prompt, n), *shape[2:])
        opened = [(one, OpenedFile(one.path), n_panels) for one, n_panels in chain]  # before they are removed

        def pieces() -> Iterator[memoryview]:
            for one, file, n_panels in opened:
                n_bytes = (n_panels - one.first // PANEL) * one.panel_bytes
                yield from one.pieces(file, n_bytes + (one.rest_bytes if one is stored else 0))

        source = None if known.source is None else list(known.source)
        return _core.CachedText(model, known.tokens[:n], source, known.captures, shape, pieces())

    def _touch(self, chain: _Chain) -> None:
        """Mark files as used; a parent after its children, so that it is removed later."""
        for one, _ in reversed(chain):
            with suppress(OSError):  # removed, or a folder that cannot be written to
                os.utime(one.path)

    def _forget(self, path: Path, error: Exception) -> None:
        """Remove a file that could not be used from the index; one that was removed leaves it by itself."""
        if isinstance(error, FileNotFoundError):
            return
        with self._lock:
            self._index[path.parent].pop(path.name, None)
        self._ignore(path, str(error).removeprefix(f"{path}: "))

    def _ignore(self, path: Path, message: str) -> None:
        if path not in self._ignored:
            self._ignored.add(path)
            warn(f"{path}: {message}; ignored by the prompt cache")

    # ------------------------------------------------------------------------------------------- writing

    def keep(self, text: _core.CachedText) -> None:
        """Store a text soon, in a thread of its own, which the interpreter waits for at its end."""
        with self._lock:
            self._waiting[id(text)] = text
            alive = self._writer is not None and self._writer.is_alive()
            ends = not threading.main_thread().is_alive()
            if not alive and not ends:
                self._writer = threading.Thread(target=self._write_all, name="specdec-prompt-files")
                self._writer.start()
        if ends:  # the interpreter waits for no new thread
            self._write_all()

    def drop(self, text: _core.CachedText) -> None:
        """Do not store a text that still waits."""
        with self._lock:
            self._waiting.pop(id(text), None)

    def flush(self) -> None:
        """Wait until all texts are stored."""
        while (writer := self._writer) is not None:
            writer.join()
            if writer is self._writer:
                return

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._writer = None
                    return
                text = self._waiting.pop(next(iter(self._waiting)))
            try:
                self._write(text)
                self._failed = False
            except OSError as error:
                if not self._failed:
                    warn(f"{self.path}: a prompt could not be stored: {_reason(error)}")
                self._failed = True

    def _write(self, text: _core.CachedText) -> None:
        folder = self.folder(text.model)
        known = CachedTokens.of(text)
        n = len(known.tokens)
        with self._lock:
            index = self._scan(folder)
            there, chain = self._longest(known, index)
            stored = self._planned(text, known, index, folder)
            parents = self._chain(stored, n) or []
        of_source = 0 if there or known.source is None else len(known.source)
        if n - there + of_source < PANEL:
            self._touch(chain)
            return
        self._touch(parents)
        kept = {one.path for one, _ in parents}
        if not self._evict(len(stored.header()) + stored.end, kept):
            return
        folder.mkdir(exist_ok=True)
        stored.write(text)
        with self._lock:
            self._ignored.discard(stored.path)
        self._touch(parents)

    def _longest(self, known: CachedTokens, index: dict[str, _StoredText]) -> tuple[int, _Chain]:
        """Return how many tokens of a text the files have, and which of them."""
        agreed = [(one.known.begins(known), one) for one in index.values()]
        for n, one in sorted(agreed, key=lambda pair: -pair[0]):
            if n == 0:
                break
            if (chain := self._chain(one, n)) is not None:
                return n, chain
        return 0, []

    def _planned(
        self, text: _core.CachedText, known: CachedTokens, index: dict[str, _StoredText], folder: Path
    ) -> _StoredText:
        """Return the file of a text, with the parent that has most of its panels."""
        tokens, shape = known.tokens, text.shape
        panel_bytes, n_bytes = text.image_sizes
        rest_bytes = n_bytes - -(-len(tokens) // PANEL) * panel_bytes
        stored = _StoredText(folder, known, shape, 0, None, panel_bytes, rest_bytes)
        stored = replace(stored, path=folder / stored.name)
        for one in index.values():
            if one.known.captures != known.captures or one.path == stored.path:
                continue
            n = one.known.n_common(known)
            if text.model.prefill != "rows":  # other bits than those of generated tokens
                n = min(n, one.n_prompt, stored.n_prompt)
            first = n - n % PANEL
            if first > stored.first and self._chain(one, first) is not None:
                stored = replace(stored, first=first, parent=one.path.name)
        while stored.parent is not None and index[stored.parent].first >= stored.first:
            stored = replace(stored, parent=index[stored.parent].parent)
        return stored

    def files(self) -> list[tuple[int, int, Path]]:
        """Return time of last use in nanoseconds, bytes and path of all files, the least recent first."""
        found = []
        for folder in self.path.iterdir():
            if not _DIGEST.fullmatch(folder.name):
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                for path in folder.iterdir():
                    if _FILE.fullmatch(path.name) or _PART.fullmatch(path.name):
                        with suppress(FileNotFoundError):
                            status = path.stat()
                            found.append((status.st_mtime_ns, status.st_size, path))
        return sorted(found)

    def _evict(self, n_bytes: int, kept: set[Path]) -> bool:
        """Remove the least recently used files, but not those `kept`; return whether n_bytes fit."""
        files = self.files()
        total, now = sum(size for _, size, _ in files), time.time_ns()
        for used, size, path in files:
            is_part = _PART.fullmatch(path.name) is not None
            is_stale = is_part and now - used > _STALE_S * 1e9
            if is_stale or (total + n_bytes > self.max_bytes and not is_part and path not in kept):
                path.unlink(missing_ok=True)
                total -= size
        return total + n_bytes <= self.max_bytes

    def clear(self) -> None:
        """Remove all files."""
        with self._lock:
            self._waiting.clear()
        self.flush()
        for _, _, path in self.files():
            path.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
