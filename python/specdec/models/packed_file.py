"""Packed files, ``.specdec``: a loaded model as it lies in memory, which the next load maps.

A file is a magic number, the length and the checksum of a header, the header (JSON), and at multiples of a
page the blocks of the core's memory and the files of the tokenizer. What the blocks mean is the core's own
matter: a file is for the layout that wrote it, and refused by any other. The blocks are mapped. A file that
is replaced by another one of its name stays mapped; one that is written to or cut short is noticed when a
computation begins, by its size and time. Cut short during a computation, it ends the process (SIGBUS).
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from specdec import _core
from specdec.atomic_file import replacing
from specdec.errors import CheckpointError, SpecdecError, TokenizerError, pass_signals_on
from specdec.fields import Fields, as_json, read_json_object
from specdec.models.chat_template import ChatTemplate, resolve_chat_template
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.checkpoints.generation_config import read_generation_defaults
from specdec.models.checkpoints.gguf_file import GGUFFile, is_gguf, read_gguf
from specdec.models.checkpoints.gguf_model import chat_template_of
from specdec.models.checkpoints.gguf_writing import write_gguf
from specdec.models.checkpoints.hub import describing_files, is_describing
from specdec.models.checkpoints.llama2c_file import LLAMA2C, own_tokenizer
from specdec.models.checkpoints.peft_folder import ADAPTER_FILES
from specdec.models.model_texts import LaterTexts, ModelTexts
from specdec.models.number_formats import CacheDtype, PrefillMethod, one_dtype
from specdec.models.tokenizer import Tokenizer, resolve_tokenizer, source_side
from specdec.models.tokenizer.gguf_vocabulary import read_vocabulary

MAGIC: Final = b"SPECDEC\x01"
_HEAD: Final = struct.Struct("<8sQQ")  # magic number, bytes of the header, its checksum
_PAGE: Final = max(4096, mmap.ALLOCATIONGRANULARITY)
_PIECE: Final = 1 << 24
_MAX_HEADER: Final = 1 << 24  # bytes; objects made of JSON take some twenty times as many
_LONGEST_NAME: Final = 255  # bytes, in the file systems in use
_LONGEST_PATH: Final = 4096  # bytes, in the systems in use
_VOCABULARY: Final = "vocabulary.gguf"
_LAYOUT_FIELDS: Final = ("version", "byteorder", "pointer")

_NONE: Final = type(None)
_FIELDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "version": ((str,), "a text"),
    "byteorder": ((str,), "a text"),
    "pointer": ((int,), "a whole number"),
    "layout": ((int,), "a whole number"),
    "config": ((dict,), "an object"),
    "architecture": ((str,), "a text"),
    "dtype": ((str,), "a text"),
    "formats": ((dict, _NONE), "an object or null"),
    "types": ((str,), "a text"),
    "cache_dtype": ((str,), "a text"),
    "prefill": ((str,), "a text"),
    "source": ((dict,), "an object"),
    "adapter": ((dict, _NONE), "an object or null"),
    "blocks": ((list,), "a list"),
    "files": ((list,), "a list"),
    "default_sampling": ((dict,), "an object"),
    "decoder_start": ((list,), "a list"),
    "bos_id": ((int, _NONE), "a whole number or null"),
    "eos_ids": ((list,), "a list"),
}
"""The fields of a header: types, and what a message calls them."""

_BIASES: Final = "logit_bias"


def _as_json(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling settings as JSON has them: biases are pairs of token and number, null for minus infinity."""
    biases = sampling.get(_BIASES, {})
    pairs = [[token, bias if math.isfinite(bias) else None] for token, bias in biases.items()]
    return {**sampling, **({_BIASES: pairs} if pairs else {})}


def sampling_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling settings of a header."""
    sampling = dict(header["default_sampling"])
    if pairs := sampling.get(_BIASES):
        sampling[_BIASES] = {token: -math.inf if bias is None else bias for token, bias in pairs}
    return sampling


Records = list[list[Any]]
"""Name, size and time of files."""


def is_packed(path: Path) -> bool:
    """Whether a file begins as packed files do."""
    opened = OpenedFile(path)
    return opened.size >= len(MAGIC) and opened.read(0, len(MAGIC)).tobytes() == MAGIC


def records_of(path: Path) -> Records:
    """The files that a model on disk is read from: names, sizes, times in nanoseconds.

    `path`: A folder or a file.
    """
    found = _found_beside(path)
    if not path.is_dir():
        found |= {tensor.file for tensor in read_gguf(path)[1].values()} if is_gguf(path) else {path}
    return _stamped(path, found)


def _found_beside(path: Path) -> set[Path]:
    """The files of a model that lie under names of their own: all of a folder's."""
    found = {file for file in describing_files(path) if file.is_file()}
    return found | set(path.glob("*.safetensors")) if path.is_dir() else found


def _adapter_records(folder: Path) -> Records:
    return _stamped(folder, {folder / name for name in ADAPTER_FILES})


def _stamped(path: Path, files: set[Path]) -> Records:
    """Files of the model at a path: names, sizes, times; size -1 of one that is not there."""
    folder = path if path.is_dir() else path.parent
    records: Records = []
    for file in sorted(files):
        status = file.stat() if file.is_file() else None
        size, time = (status.st_size, status.st_mtime_ns) if status else (-1, 0)
        records.append([str(file.relative_to(folder)), size, time])
    return records


def _differs(place: Path, records: Records, found: Callable[[Path], Records]) -> bool:
    """Whether the files at a path exist and differ from the recorded ones."""
    try:
        return place.exists() and found(place) != records
    except OSError as error:
        pass_signals_on(error)
        return False


def cache_name(path: Path, arguments: Mapping[str, Any]) -> str:
    """The name of the packed file of a model on disk, loaded so, in a folder of such files."""
    told = json.dumps([str(path.resolve()), dict(arguments), _built()], sort_keys=True)
    digest = blake2b(told.encode("utf-8"), digest_size=12).hexdigest()
    return f"{path.resolve().stem}-{digest}.specdec"


def _built() -> dict[str, Any]:
    """What wrote a file, as far as it matters for who reads it."""
    return {"version": _core.__version__, "byteorder": sys.byteorder, "pointer": struct.calcsize("P")}


# --------------------------------------------------------------------------------------------- writing


def write_packed(
    path: Path,
    model: Any,
    source: Path,
    *,
    with_tokenizer: bool = True,
    n_threads: int = 1,
    adapter: Path | None = None,
) -> None:
    """Write a loaded model.

    `path`: A file that is there is replaced. `source`: The folder or file that it was read from, with the
    tokenizer beside its weights. `adapter`: The folder of the adapter that was merged into the weights.
    """
    core = model.core
    files = _files(source) if with_tokenizer else {}
    sizes = core.block_sizes()
    header: dict[str, Any] = {
        **_built(),
        "layout": core.layout,
        "config": core.config,
        "architecture": model.architecture,
        "dtype": core.dtype,
        "formats": model.formats,
        "types": model.types,
        "cache_dtype": core.cache_dtype,
        "prefill": core.prefill,
        "source": {"path": str(source.resolve()), "records": records_of(source)},
        "adapter": None if adapter is None else {"path": str(adapter), "records": _adapter_records(adapter)},
        "blocks": [],
        "files": [],
        "default_sampling": _as_json(model.default_sampling),
        "decoder_start": list(model.decoder_start),
        "bos_id": model.bos_id,
        "eos_ids": list(model.eos_ids),
    }
    for i, size in enumerate(sizes):
        pieces = ((first, min(_PIECE, size - first)) for first in range(0, size, _PIECE))
        sums = [_core.checksum(core.block(i, first, n), n_threads=n_threads) for first, n in pieces]
        header["blocks"].append({"bytes": size, "checksums": sums})
    for name, data in files.items():
        header["files"].append({"name": name, "bytes": len(data), "checksums": [_core.checksum(data)]})
    text = json.dumps(header).encode("utf-8")
    with replacing(path) as file:
        file.write(_HEAD.pack(MAGIC, len(text), _core.checksum(text)) + text)
        for i, size in enumerate(sizes):
            _pad(file)
            for first in range(0, size, _PIECE):
                file.write(core.block(i, first, min(_PIECE, size - first)))
        for data in files.values():
            _pad(file)
            file.write(data)


def _is_part(part: Any, *, named: bool) -> bool:
    """Whether an entry of a header says how many bytes a part has, their checksums and, of a file, a name."""
    if not isinstance(part, dict) or type(part.get("bytes")) is not int or part["bytes"] < 0:
        return False
    sums = part.get("checksums")
    if not isinstance(sums, list) or not all(type(checksum) is int for checksum in sums):
        return False
    n_pieces = 1 if named else max(1, -(-part["bytes"] // _PIECE))
    return len(sums) == n_pieces and (not named or _is_file(part.get("name")))


def _is_path(text: Any) -> bool:
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        parts = [len(os.fsencode(part)) for part in Path(text).parts]
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return max(parts, default=0) <= _LONGEST_NAME and sum(parts) + len(parts) < _LONGEST_PATH


def _is_below(name: Any) -> bool:
    if not _is_path(name):
        return False
    path = Path(name)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts


def _is_file(name: Any) -> bool:
    return _is_below(name) and (name == _VOCABULARY or is_describing(name))


def _is_record(record: Any) -> bool:
    if not isinstance(record, list) or [type(item) for item in record] != [str, int, int]:
        return False
    return _is_below(record[0])


def _pad(file: Any) -> None:
    file.write(b"\0" * (-file.tell() % _PAGE))


def _files(source: Path) -> dict[str, bytes]:
    """The files that say how texts are encoded and sampled."""
    if source.is_dir() or not is_gguf(source):
        folder = source if source.is_dir() else source.parent
        found = [file for file in describing_files(source) if file.is_file()]
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}
    whole = GGUFFile(OpenedFile(source))
    values = {key: whole.get(key) for key in whole if key.startswith("tokenizer.")}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made) / _VOCABULARY
        write_gguf(place, values, [], iter(()))
        return {_VOCABULARY: place.read_bytes()}


# --------------------------------------------------------------------------------------------- reading


class PackedFile:
    """A packed file, its header read and compared with this build."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = opened = OpenedFile(path)
        size = opened.size
        head = opened.read(0, min(size, _HEAD.size)).tobytes()
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            raise self.error(f"begins with {head[: len(MAGIC)]!r}; expected {MAGIC!r}, a packed file")
        _, n_text, checksum = _HEAD.unpack(head)
        most = min(size - _HEAD.size, _MAX_HEADER)
        if n_text > most:
            raise self.error(f"has a header of {n_text} bytes; expected at most {most}")
        text = opened.read(_HEAD.size, n_text).tobytes()
        if _core.checksum(text) != checksum:
            raise self.error("has a header with another checksum than when it was written; expected the same")
        self.header = self._read_header(text)
        built = _built()
        for name in _LAYOUT_FIELDS:
            if self.header[name] != built[name]:
                raise self.error(
                    f"was written with {name} {as_json(self.header[name])}; expected "
                    f"{as_json(built[name])}: convert the model again"
                )
        self._places(_HEAD.size + n_text, size)
        self._map = opened.map_copy()  # what the core writes anew is not written to the file
        self._check_source()

    def error(self, message: str) -> CheckpointError:
        """An exception that names the file."""
        return CheckpointError(f"{self.path}: {message}")

    def _read_header(self, text: bytes) -> dict[str, Any]:
        """The header, every field of which has its type; what the configuration says is for the core."""
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"has a header that is not valid JSON: {error}") from error
        if not isinstance(header, dict):
            raise self.error("has a header that is no object; expected one")
        for name, (kinds, expected) in _FIELDS.items():
            if name not in header:
                raise self.error(f"has a header without the field '{name}'; expected {expected}")
            value = header[name]
            if not isinstance(value, kinds) or (isinstance(value, bool)):
                raise self.error(f"header field '{name}' is {as_json(value)}; expected {expected}")
        if unknown := sorted(header.keys() - _FIELDS.keys()):
            raise self.error(f"has header field {as_json(unknown[0])}; expected {', '.join(_FIELDS)}")
        pairs = header["default_sampling"].get(_BIASES, [])
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in pairs
        ):
            raise self.error(
                f"header field '{_BIASES}' is {as_json(pairs)}; expected pairs of token and number"
            )
        for name in ("n_vocab", "n_ctx"):
            if type(header["config"].get(name)) is not int:
                raise self.error(f"header field 'config' has no whole number '{name}'; expected one")
        for name in ("source", "adapter"):
            source = header[name]
            if source is None:  # no adapter
                continue
            if not _is_path(source.get("path")) or not isinstance(source.get("records"), list):
                raise self.error(f"header field '{name}' is without 'path' and 'records'; expected both")
            if not all(map(_is_record, source["records"])):
                raise self.error(
                    f"header field '{name}' has other records than name, size and time; expected those"
                )
        for name in ("decoder_start", "eos_ids"):
            if not all(type(token) is int for token in header[name]):
                raise self.error(f"header field '{name}' has other items than whole numbers; expected those")
        for name in ("blocks", "files"):
            if not all(_is_part(part, named=name == "files") for part in header[name]):
                raise self.error(
                    f"header field '{name}' has a part without bytes, checksums"
                    + (" or the name of a file that describes a model" if name == "files" else "")
                    + "; expected all"
                )
        return header

    def _places(self, end: int, size: int) -> None:
        for part in (*self.header["blocks"], *self.header["files"]):
            part["first"] = end + -end % _PAGE
            end = part["first"] + part["bytes"]
        if end != size:
            raise self.error(f"has {size} bytes; expected {end} (is the file truncated?)")

    def _check_source(self) -> None:
        """Compare the files, if they are there, by names, sizes and times: none is read.

        Those that cannot be looked at, as by another user, count as files that are not there.
        """
        adapter, source = self.header["adapter"], self.header["source"]
        if adapter is not None and _differs(Path(adapter["path"]), adapter["records"], _adapter_records):
            raise self.error(f"was made with the adapter {adapter['path']}, whose files have changed since")

        def found(place: Path) -> Records:
            folder = place if place.is_dir() else place.parent
            return _stamped(
                place, {folder / record[0] for record in source["records"]} | _found_beside(place)
            )

        if _differs(Path(source["path"]), source["records"], found):
            raise self.error(
                f"was made of {source['path']}, whose files have changed since; expected the same: "
                f"convert it again"
            )

    def _view(self, part: Mapping[str, Any], n_threads: int) -> memoryview:
        view = memoryview(self._map)[part["first"] : part["first"] + part["bytes"]]
        if "name" in part:
            sums = [_core.checksum(view, n_threads=n_threads)]
        else:
            sums = _core.checksums(view, _PIECE, n_threads=n_threads).tolist()
        if sums != part["checksums"]:
            raise self.error(f"has other bytes from {part['first']} on than were written; expected the same")
        return view

    def core(self, cache_dtype: CacheDtype | None, prefill: PrefillMethod, n_threads: int) -> _core.Model:
        """The model, over the mapped file."""
        header = self.header
        views = [self._view(part, n_threads) for part in header["blocks"]]
        if (prefill == "blas") != (header["prefill"] == "blas"):
            raise self.error(
                f"was loaded with prefill {header['prefill']!r}, which has another layout; expected the same"
            )
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
            raise self.error(
                f"has another layout than this build: {error}: convert the model again"
            ) from error
        if core.layout != header["layout"]:
            raise self.error(
                f"has the layout {header['layout']}; expected {core.layout}: convert the model again"
            )
        return core

    def texts(self, tokenizer: Any) -> LaterTexts:
        """Tokenizers and chat templates: those that a caller gives, or those of the file, made later."""
        if tokenizer is not None:
            folder = self.path.parent
            given = resolve_tokenizer(tokenizer, folder), resolve_chat_template(tokenizer, folder)
            return LaterTexts.of(self._with_source(*given))
        parts = {part["name"]: self._view(part, 1) for part in self.header["files"]}
        return LaterTexts(lambda: self._with_source(*self._made_of(parts)))

    def _with_source(self, tokenizer: Tokenizer | None, template: ChatTemplate | None) -> ModelTexts:
        encodes = self.header["config"].get("encoder") is not None
        return ModelTexts(tokenizer, template, source_side(tokenizer) if encodes else None)

    def _made_of(self, parts: Mapping[str, memoryview]) -> tuple[Tokenizer | None, ChatTemplate | None]:
        """The tokenizer and the chat templates of files, by name."""
        self.opened.check_unchanged()
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            try:
                for name, data in parts.items():
                    place = folder / name
                    place.parent.mkdir(exist_ok=True)
                    place.write_bytes(data)
            except OSError as error:  # no room, or a name that is too long there
                raise self.error(
                    f"holds the file '{name}', which cannot be written to a temporary folder: "
                    f"{error.strerror}"
                ) from error
            try:
                return self._read_from(folder)
            except (CheckpointError, TokenizerError) as error:  # the folder is not there any more
                raise type(error)(str(error).replace(str(folder), str(self.path))) from error

    def _read_from(self, folder: Path) -> tuple[Tokenizer | None, ChatTemplate | None]:
        """The same, of a folder that has these files."""
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
