"""Packed files, ``.specdec``: the memory image of a loaded model, which the next load maps.

A file has a magic number, length and checksum of a header, the header (JSON), and page-aligned blocks of the
core's memory and tokenizer files. Only the memory layout that wrote a file can read it. Replacing a mapped
file is safe. Writing to it or truncating it is detected by size and time before each computation; truncation
during a computation kills the process (SIGBUS).
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from specdec import _core
from specdec.atomic_file import replacing
from specdec.checks import check_path
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    SpecdecError,
    TokenizerError,
    pass_signals_on,
)
from specdec.fields import Fields, as_json, read_json_object
from specdec.models.chat_template import ChatTemplate, resolve_chat_template
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.checkpoints.generation_config import read_generation_defaults
from specdec.models.checkpoints.gguf_file import GGUFFile, is_gguf
from specdec.models.checkpoints.gguf_model import chat_template_of
from specdec.models.checkpoints.gguf_writing import write_gguf
from specdec.models.checkpoints.hub import describing_files, is_describing
from specdec.models.checkpoints.llama2c_file import LLAMA2C, own_tokenizer
from specdec.models.model import LaterTexts, Model, ModelTexts
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import CacheDtype, PrefillChoice, fastest_prefill, one_dtype
from specdec.models.origin import ModelOrigin, ReadFiles
from specdec.models.tokenizer import Tokenizer, resolve_tokenizer, source_side, warn_of_ids_beyond
from specdec.models.tokenizer.gguf_vocabulary import read_vocabulary

MAGIC: Final = b"SPECDEC\x01"
_HEAD: Final = struct.Struct("<8sQQ")  # magic number, header bytes, header checksum
_PAGE: Final = max(4096, mmap.ALLOCATIONGRANULARITY)
_PIECE: Final = 1 << 24
_MAX_HEADER: Final = 1 << 24  # bytes; parsed JSON takes some twenty times as many
_VOCABULARY: Final = "vocabulary.gguf"
_AGAIN: Final = ": convert the model again"
_SAME: Final = "; expected the same"

_NAMES: Final = frozenset(
    {
        "version", "byteorder", "pointer", "layout", "config", "architecture", "dtype", "formats", "types",
        "cache_dtype", "prefill", "source", "adapter", "blocks", "files", "default_sampling", "decoder_start",
        "bos_id", "eos_ids",
    }
)  # fmt: skip
"""Fields of a header."""

_BIASES: Final = "logit_bias"


def is_packed(path: Path) -> bool:
    """Return whether a file starts with the magic number."""
    opened = OpenedFile(path)
    return opened.size >= len(MAGIC) and opened.read(0, len(MAGIC)).tobytes() == MAGIC


def _recorded(files: ReadFiles | None) -> dict[str, Any] | None:
    """Return a JSON record of files: path, names, sizes and times in nanoseconds; None for None."""
    if files is None:
        return None
    records = [[record.name, record.size, record.changed_ns] for record in files.records]
    return {"path": str(files.path), "records": records}


def _differ(source: Mapping[str, Any], *, of_model: bool) -> bool:
    """Return whether recorded files exist and differ, or, `of_model`, the model has unrecorded files."""
    path = Path(source["path"])
    try:
        if not path.exists():
            return False
        folder = path if path.is_dir() else path.parent
        listed = {folder / name: [size, time] for name, size, time in source["records"]}
        unlisted = set(describing_files(path)) if of_model else set()
        if of_model and path.is_dir():
            unlisted |= set(path.glob("*.safetensors"))
        if any(file.is_file() for file in unlisted - listed.keys()):
            return True
        for file, state in listed.items():
            status = file.stat() if file.is_file() else None
            if state != ([status.st_size, status.st_mtime_ns] if status else [None, 0]):
                return True
    except OSError as error:
        pass_signals_on(error)
    return False


def _built() -> dict[str, Any]:
    """Return the properties of this build that a file must match."""
    return {"version": _core.__version__, "byteorder": sys.byteorder, "pointer": struct.calcsize("P")}


# --------------------------------------------------------------------------------------------- writing


def write_packed(path: Path, model: Model, *, with_tokenizer: bool = True, n_threads: int = 1) -> None:
    """Write or replace a packed file of a model loaded from disk, with its own tokenizer."""
    assert model.origin is not None
    files = _files(model.path) if with_tokenizer else {}
    core = model.core
    sizes = core.block_sizes()
    sampling = dict(model.default_sampling)
    if biases := sampling.get(_BIASES):  # JSON has no infinity
        sampling[_BIASES] = [[token, bias if math.isfinite(bias) else None] for token, bias in biases.items()]
    of_core = ("layout", "config", "dtype", "cache_dtype", "prefill")
    header: dict[str, Any] = {
        **_built(),
        **{name: getattr(core, name) for name in of_core},
        **{name: getattr(model, name) for name in ("architecture", "types", "bos_id")},
        **{name: list(getattr(model, name)) for name in ("decoder_start", "eos_ids")},
        "formats": dict(model.formats),
        "source": _recorded(model.origin.files),
        "adapter": _recorded(model.origin.adapter_files),
        "blocks": [],
        "files": [],
        "default_sampling": sampling,
    }
    for i, size in enumerate(sizes):
        sums = [int(_core.checksums(piece, n_threads=n_threads)[0]) for piece in _pieces(core, i, size)]
        header["blocks"].append({"bytes": size, "checksums": sums})
    for name, data in files.items():
        header["files"].append(
            {"name": name, "bytes": len(data), "checksums": _core.checksums(data).tolist()}
        )
    text = json.dumps(header).encode("utf-8")
    with replacing(path) as file:
        file.write(_HEAD.pack(MAGIC, len(text), int(_core.checksums(text)[0])) + text)
        for i, size in enumerate(sizes):
            _pad(file)
            for piece in _pieces(core, i, size):
                file.write(piece)
        for data in files.values():
            _pad(file)
            file.write(data)


def _check_part(part: Fields, *, named: bool) -> None:
    """Check size and checksums of an entry, and the name of a file."""
    size = part.integer("bytes", minimum=0, maximum=None)
    n_sums = len(part.integers("checksums", maximum=(1 << 64) - 1))
    if n_sums != (1 if named else max(1, -(-size // _PIECE))):
        raise part.error("checksums", "one checksum per piece")
    if named and (name := part.text("name")) != _VOCABULARY and not (_is_below(name) and is_describing(name)):
        raise part.error("name", "the name of a file that describes a model")


def _check_records(source: Fields) -> None:
    source.text("path")
    for record in source.items("records"):
        types = [type(item) for item in record] if isinstance(record, list) else []
        if types not in ([str, int, int], [str, type(None), int]) or not _is_below(record[0]):
            raise source.error("records", "lists of name, size and time", record)


def _is_below(name: str) -> bool:
    path = Path(name)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts


def _pieces(core: _core.Model, block: int, size: int) -> Iterator[Any]:
    return (core.block(block, first, min(_PIECE, size - first)) for first in range(0, size, _PIECE))


def _pad(file: Any) -> None:
    file.write(b"\0" * (-file.tell() % _PAGE))


def _files(source: Path) -> dict[str, bytes]:
    """Return the files that describe tokenizer, templates and sampling, by name."""
    if source.is_dir() or not is_gguf(source):
        folder = source if source.is_dir() else source.parent
        found = [file for file in describing_files(source) if file.is_file()]
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}
    whole = GGUFFile(OpenedFile(source))
    values = {key: whole.get(key) for key in whole if key.startswith("tokenizer.")}
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / _VOCABULARY
        write_gguf(file, values, [], iter(()))
        return {_VOCABULARY: file.read_bytes()}


# --------------------------------------------------------------------------------------------- reading


class PackedFile:
    """An opened packed file, with its header checked against this build."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = opened = OpenedFile(path)
        size = opened.size
        head = opened.read(0, min(size, _HEAD.size)).tobytes()
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            raise self.error(f"starts with {head[: len(MAGIC)]!r}; expected {MAGIC!r}, a packed file")
        _, n_text, checksum = _HEAD.unpack(head)
        most = min(size - _HEAD.size, _MAX_HEADER)
        if n_text > most:
            raise self.error(f"has a header of {n_text} bytes; expected at most {most}")
        text = opened.read(_HEAD.size, n_text).tobytes()
        if int(_core.checksums(text)[0]) != checksum:
            raise self.error(f"has a damaged header (wrong checksum); expected it as written{_AGAIN}")
        self.header = self._read_header(text)
        for name, value in _built().items():
            if self.header[name] != value:
                held, expected = as_json(self.header[name]), as_json(value)
                raise self.error(f"was written with {name} {held}; expected {expected}{_AGAIN}")
        end = _HEAD.size + n_text
        for part in (*self.header["blocks"], *self.header["files"]):
            part["first"] = end + -end % _PAGE
            end = part["first"] + part["bytes"]
        if end != size:
            raise self.error(f"has {size} bytes; expected {end} (is the file truncated?)")
        self._map = opened.map_copy()  # private: writes of the core do not reach the file
        self._check_source()

    def error(self, message: str) -> CheckpointError:
        """Return an exception that names the file."""
        return CheckpointError(f"{self.path}: {message}")

    def _read_header(self, text: bytes) -> dict[str, Any]:
        """Parse the header and check its types; the core checks the configuration."""
        try:
            header: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"has a header that is not valid JSON: {error}") from error
        fields = Fields(header, self.path, "header.")
        if unknown := sorted(header.keys() - _NAMES):
            raise fields.error(unknown[0], f"no field but {', '.join(sorted(_NAMES))}")
        for name in sorted(_NAMES):
            fields.given(name)
        for name in ("version", "byteorder", "architecture", "dtype", "types", "cache_dtype", "prefill"):
            fields.text(name)
        for name in ("pointer", "layout"):
            fields.integer(name, minimum=0, maximum=None)
        for name in ("n_vocab", "n_ctx"):
            fields.inner("config").integer(name)
        try:
            self.config = ModelConfig.from_canonical(header["config"])
        except (TypeError, ValueError, AttributeError) as error:
            raise fields.error("config", "a configuration of this version") from error
        fields.inner("formats")
        biases = fields.inner("default_sampling")
        if biases.has(_BIASES) and any(
            not isinstance(pair, list) or len(pair) != 2 for pair in biases.items(_BIASES)
        ):
            raise biases.error(_BIASES, "pairs of token id and number")
        fields.integer("bos_id", minimum=0, default=None)
        for name in ("decoder_start", "eos_ids"):
            fields.integers(name)
        for name in ("source", "adapter"):
            if name == "source" or header[name] is not None:
                _check_records(fields.inner(name))
        for name in ("blocks", "files"):
            for part in fields.inner_items(name):
                _check_part(part, named=name == "files")
        return header

    def _check_source(self) -> None:
        """Compare the source files, if present, by name, size and time."""
        adapter, source = self.header["adapter"], self.header["source"]
        if adapter is not None and _differ(adapter, of_model=False):
            raise self.error(f"was made with the adapter {adapter['path']}, which has changed{_SAME}{_AGAIN}")
        if _differ(source, of_model=True):
            raise self.error(f"was made from {source['path']}, which has changed{_SAME}{_AGAIN}")

    def _view(self, part: Mapping[str, Any], n_threads: int) -> memoryview:
        view = memoryview(self._map)[part["first"] : part["first"] + part["bytes"]]
        sums = _core.checksums(view, 0 if "name" in part else _PIECE, n_threads=n_threads)
        if sums.tolist() != part["checksums"]:
            found = f"is damaged from byte {part['first']} (wrong checksum)"
            raise self.error(f"{found}; expected the bytes as written{_AGAIN}")
        return view

    def core(self, cache_dtype: CacheDtype | None, prefill: PrefillChoice, n_threads: int) -> _core.Model:
        """Return the core's model over the mapped file."""
        header = self.header
        views = [self._view(part, n_threads) for part in header["blocks"]]
        own = header["prefill"]
        if prefill == "auto":
            fastest = fastest_prefill(_core.kernels(), header["dtype"])
            prefill = fastest if (fastest == "blas") == (own == "blas") else own
        if (prefill == "blas") != (own == "blas"):
            how = f"prefill {own!r}, which has another layout than {prefill!r}"
            raise self.error(f"was written with {how}{_SAME}{_AGAIN}")
        try:
            core = _core.Model(
                header["config"],
                (),
                dtype=one_dtype(header["dtype"]),
                formats=header["formats"] or None,
                cache_dtype=cache_dtype or header["cache_dtype"],
                prefill=prefill,
                packed=views,
            )
        except SpecdecError:
            raise
        except (TypeError, ValueError) as error:
            raise self.error(f"has another layout than this build: {error}{_AGAIN}") from error
        if core.layout != header["layout"]:
            raise self.error(f"has the layout {header['layout']}; expected {core.layout}{_AGAIN}")
        return core

    def texts(self, tokenizer: Any) -> ModelTexts | LaterTexts:
        """Return the caller's tokenizer and chat templates, or the file's, created on first use."""
        if tokenizer is not None:
            folder = self.path.parent
            given = resolve_tokenizer(tokenizer, folder), resolve_chat_template(tokenizer, folder)
            return self._with_source(*given)
        parts = {part["name"]: self._view(part, 1) for part in self.header["files"]}
        return LaterTexts(lambda: self._with_source(*self._made_of(parts)))

    def _with_source(self, tokenizer: Tokenizer | None, template: ChatTemplate | None) -> ModelTexts:
        header = self.header
        source = source_side(tokenizer) if header["config"].get("encoder") is not None else None
        return ModelTexts(tokenizer, template, source, header["bos_id"], tuple(header["eos_ids"]))

    def _made_of(self, parts: Mapping[str, memoryview]) -> tuple[Tokenizer | None, ChatTemplate | None]:
        """Create tokenizer and chat templates from the stored files."""
        self.opened.check_unchanged()
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            try:
                for name, data in parts.items():
                    target = folder / name
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(data)
            except (OSError, ValueError) as error:  # a full disk, or an invalid file name
                why = f"which cannot be written to a temporary folder: {error}"
                raise self.error(f"holds the file '{name}', {why}") from error
            try:
                return self._read_from(folder)
            except (
                CheckpointError,
                TokenizerError,
            ) as error:  # name the packed file, not the temporary folder
                raise type(error)(str(error).replace(str(folder), str(self.path))) from error

    def _read_from(self, folder: Path) -> tuple[Tokenizer | None, ChatTemplate | None]:
        """Read tokenizer and chat templates from a folder."""
        if (folder / _VOCABULARY).is_file():
            file = GGUFFile(OpenedFile(folder / _VOCABULARY))
            vocabulary = read_vocabulary(file, file.path)
            template = chat_template_of(file, vocabulary)
            return None if vocabulary is None else vocabulary.tokenizer, template
        if self.header["architecture"] == LLAMA2C:
            return own_tokenizer(folder / self.path.name, self.header["config"]["n_vocab"]), None
        ends: dict[str, Any] = {}
        if (folder / "config.json").is_file():
            config = folder / "config.json"
            fields = Fields(read_json_object(config), config)
            n_vocab = self.header["config"]["n_vocab"]
            defaults = read_generation_defaults(folder, fields, n_vocab, ids_only=True)
            ends = {"bos_id": defaults.bos_id, "eos_ids": defaults.eos_ids, "n_vocab": n_vocab}
        return resolve_tokenizer(None, folder, **ends), resolve_chat_template(None, folder)


# --------------------------------------------------------------------------------------------- loading


def packed_model(
    path: Path, arguments: Mapping[str, Any], load: Callable[..., Model], n_threads: int
) -> Model:
    """Load a packed file with the arguments of `load`, which is `specdec.load`."""
    file = PackedFile(path)
    header, config = file.header, file.header["config"]
    for name, held in (("dtype", header["dtype"]), ("n_ctx", config["n_ctx"])):
        if arguments[name] not in (None, held):
            raise InputError.of(name, arguments[name], f"None or {held!r}, as in {path}")
    core = file.core(arguments["cache_dtype"], arguments["prefill"], n_threads)
    texts = file.texts(arguments["tokenizer"])
    if isinstance(texts, ModelTexts) and texts.tokenizer is not None:
        warn_of_ids_beyond(texts.tokenizer, config["n_vocab"], path)
    again = {name: value for name, value in arguments.items() if name != "adapter"}
    again |= {"cache_dtype": core.cache_dtype, "prefill": core.prefill}
    sampling = dict(header["default_sampling"])
    if pairs := sampling.get(_BIASES):
        sampling[_BIASES] = {token: -math.inf if bias is None else bias for token, bias in pairs}
    return Model(
        core,
        file.config,
        texts,
        path,
        header["architecture"],
        sampling,
        decoder_start=tuple(header["decoder_start"]),
        origin=ModelOrigin(ReadFiles.of_model(path, [path]), None, again, load),
        formats=header["formats"],
        types=header["types"],
        mapped=file.opened,
    )


def cached_model(
    path: Path, cache: Any, arguments: dict[str, Any], load: Callable[..., Model], n_threads: int
) -> Model:
    """Load the packed file of a model from a cache folder, writing it if needed."""
    if not path.exists():
        raise CheckpointNotFoundError(f"{path}: no such file or folder; expected a model on disk with cache=")
    if arguments["tokenizer"] not in (None, False):
        raise InputError("tokenizer is given with cache=; expected None or False")
    if cache is True:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "specdec" / "packed"
    else:
        folder = check_path("cache", cache)
    if arguments.get("adapter") is not None:
        arguments = arguments | {"adapter": str(Path(arguments["adapter"]).resolve())}
    key = json.dumps([str(path.resolve()), arguments, _built()], sort_keys=True)
    digest = blake2b(key.encode("utf-8"), digest_size=12).hexdigest()
    cached = folder / f"{path.resolve().stem}-{digest}.specdec"
    if cached.is_file():
        try:
            return packed_model(cached, arguments, load, n_threads)
        except CheckpointError:
            pass  # damaged or out of date: written again
    model = load(path, **arguments, n_threads=n_threads)
    folder.mkdir(parents=True, exist_ok=True)
    write_packed(cached, model, with_tokenizer=arguments["tokenizer"] is None, n_threads=n_threads)
    return model
