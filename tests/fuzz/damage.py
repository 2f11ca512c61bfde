"""Damaged files: each must load and decode, raise a named exception, or warn about a field.

A mutation is a list of plain values, ``[action, file, ...]``, so it can be printed and left out. Offsets past
the end wrap around; a path that another mutation has removed is skipped.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.files import Files, files_of, use
from fuzz.running import Case, Failure, limited
from specdec import _core
from specdec.errors import SpecdecError
from worlds.draws import Draws
from worlds.families import CONFIGS

Mutation = list[Any]

NUMBERS = (
    "-1", "0", "1", "2", "3", "7", "255", "65536", "67108864", "2147483647", "2147483648", "4294967295",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "1e999", "-1e999", "NaN",
    "Infinity", "1e-400", "0.5", "1e308", "-0.0", "1" + 5000 * "0", "100000000",
)  # fmt: skip
OTHERS = (
    "null", "true", "false", '""', '"x"', '"\\ud800"', '"\\u0000"', "[]", "{}", "[[]]", "[0]", "[null]",
    '{"a": 1}', '"1"', '"../../x"', '"\\u001b[31m"', "[1, 2, 3]", '"' + 3000 * "a" + '"',
    '"a/b/c"', '"' + 300 * "x" + '"', '"' + 2000 * "x/" + 'y"', '"/dev/full"',
)  # fmt: skip


class _Pairs(list):  # type: ignore[type-arg]
    """A JSON object as its (name, value) pairs, so that a name may occur twice."""


class _Raw(str):
    """JSON text that is written unchanged."""


def draw_mutation(draws: Draws, files: Files) -> Mutation:
    """Draw a random mutation of one of the files."""
    named = [name for name in ("config.json", "adapter_config.json") if name in files]
    file = draws.choice([*files, *named * 2])
    data, suffix = files[file], Path(file).suffix
    if suffix in _TEXTS and draws.chance(0.7):
        return ["edit", file, *_draw_edit(draws, _TEXTS[suffix][0](data))]
    return ["splice", file, *_draw_splice(draws, data)]


def _draw_splice(draws: Draws, data: bytes) -> list[Any]:
    """[first byte, number of bytes removed, inserted bytes in hex]."""
    n = len(data)
    at = draws.randrange(max(1, n) if draws.chance(0.5) else 1 + max(1, n) // 20)  # headers come first
    action, size = draws.weighted(flip=4, number=3, cut=3, insert=4), draws.one(1, 2, 4, 8, 17, 64, 300, n)
    if action == "flip":
        return [at, 1, bytes(byte ^ 1 << draws.randrange(8) for byte in data[at : at + 1]).hex()]
    if action == "number":  # the length of a header comes first
        odd = (0, 1, 7, 8, 2**24, 0x7F800000, 0x7FC00000, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
        number, width = draws.one(*odd, n, n - 8, n - 7, st.integers(-300, 300)), draws.one(4, 4, 8)
        at = draws.one(0, at, at - at % 4, at - at % 4)
        return [at, width, (number % 256**width).to_bytes(width, "little").hex()]
    if action == "cut":
        return [draws.one(0, 4, 8, at, at, at, at), size, ""]
    odd_text = (b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xf0\x9f", b"\xef\xbb\xbf", b'"', b"\\", b"}", b"\n")
    run, noise = bytes([draws.one(0, 255, 32, 65, 0x80)]) * min(size, 300), draws.random().randbytes(8)
    new = draws.one(*odd_text, data[at : at + size], run, noise)
    return [draws.one(at, at, n), draws.one(0, len(new)), new.hex()]


def _draw_edit(draws: Draws, text: bytes) -> list[Any]:
    """[path, action, JSON text or number]."""
    document = _parsed(text)
    paths = list(_paths(document))
    if draws.chance(0.3):  # long lists are only a part of a file
        paths = [path for path in paths if len(path) < 3] or paths
    numbers = [path for path in paths if isinstance(_at(document, path), int | float)]
    is_size = bool(numbers) and draws.chance(0.4)
    path = draws.choice(numbers if is_size else paths)
    others = {"delete": 2, "duplicate": 2, "rename": 1, "deep": 0.4, "many": 0.5}
    action = draws.weighted(set=6, scale=6 if is_size else 3, **({} if is_size else others))
    values: dict[str, Callable[[], Any]] = {
        "scale": lambda: draws.one(-1, 3, 0.5, 1.5, 2 ** draws.randint(1, 28), 2 ** draws.randint(1, 70)),
        "delete": lambda: None,
        "rename": lambda: draws.one('""', '"\\ud800"', '"x"', '"__metadata__"', '"vocab_size"'),
        "deep": lambda: draws.one(3, 900, 20_000), "many": lambda: draws.one(2, 200, 20_000),
    }  # fmt: skip
    if action in values:
        return [path, action, values[action]()]
    return [path, action, draws.choice(NUMBERS if is_size or draws.chance(0.6) else OTHERS)]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    yield list(path)
    inner = value if isinstance(value, _Pairs) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _paths(item, (*path, key))


def _at(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = dict(value)[key] if isinstance(value, _Pairs) else value[key]
    return value


def apply(mutation: Mutation, files: Files) -> None:
    """Apply a mutation to the files."""
    action, file, *rest = mutation
    data = files[file]
    if action == "edit":
        text_of, with_text = _TEXTS[Path(file).suffix]
        files[file] = with_text(data, _edited(text_of(data), *rest))
    else:
        at, n_gone, new = rest
        at %= len(data) + 1
        files[file] = data[:at] + bytes.fromhex(new) + data[at + n_gone :]


def _header(data: bytes) -> bytes:
    """Read as much of a safetensors header as is valid."""
    n = int.from_bytes(data[:8], "little")
    return data[8 : 8 + min(n, len(data))]


def _with_header(data: bytes, header: bytes) -> bytes:
    begun, rest = header + b" " * (-len(header) % 8), data[8 + len(_header(data)) :]
    return struct.pack("<Q", len(begun)) + begun + rest


_PACKED = struct.Struct("<8sQQ")  # a packed file begins so: magic number, length and checksum of the header
_PAGE = 4096


def _packed_header(data: bytes) -> bytes:
    """Read as much of a packed file's header as is valid."""
    n = _PACKED.unpack_from(data)[1] if len(data) >= _PACKED.size else 0
    return data[_PACKED.size : _PACKED.size + min(n, len(data))]


def _with_packed_header(data: bytes, header: bytes) -> bytes:
    """Replace a packed file's header, with a correct checksum; the data stays aligned to pages."""
    if len(data) < _PACKED.size:
        return data
    magic, n, _ = _PACKED.unpack_from(data)
    end = _PACKED.size + n
    begun = _PACKED.pack(magic, len(header), _core.checksums(header)[0]) + header
    return begun + bytes(-len(begun) % _PAGE) + data[end + -end % _PAGE :]


_TEXTS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, bytes], bytes]]] = {
    ".json": (lambda data: data, lambda data, text: text),
    ".safetensors": (_header, _with_header),
    ".specdec": (_packed_header, _with_packed_header),
}
"""Reader and writer of the JSON in a file."""


def _parsed(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_Pairs)


def _edited(text: bytes, path: list[Any], action: str, value: Any) -> bytes:
    try:
        document = _parsed(text)
        return _text(_edit(document, path, action, value)).encode("utf-8", "surrogatepass")
    except (ArithmeticError, ValueError, LookupError, TypeError, RecursionError):
        return text


def _edit(document: Any, path: list[Any], action: str, value: Any) -> Any:
    holder: Any = [document]
    at = 0
    for key in path:
        holder, at = holder[at][1] if isinstance(holder, _Pairs) else holder[at], key
        if isinstance(holder, _Pairs):
            at = [name for name, _ in holder].index(key)
    in_object = isinstance(holder, _Pairs)
    name, old = holder[at] if in_object else (None, holder[at])

    def put(new: Any) -> None:
        holder[at] = (name, new) if in_object else new

    if action == "set":
        put(_Raw(value))
    elif action == "scale":
        put(type(old)(old * value) if isinstance(old, int | float) else old)
    elif action == "delete" and path:
        del holder[at]
    elif action == "duplicate":
        holder.append((name, _Raw(value)) if in_object else old)
    elif action == "rename" and in_object:
        holder[at] = (json.loads(value), old)
    elif action == "deep":
        put(_Raw("[" * value + "]" * value))
    elif action == "many":
        text = _text(old)
        n = min(value, 2_000_000 // len(text))
        if isinstance(old, _Pairs) and old:  # other names for its last entry
            old += [(f"{old[-1][0]}{i}", old[-1][1]) for i in range(n)]
        else:
            put(old * n if isinstance(old, list) and old else _Raw("[" + ",".join([text] * n) + "]"))
    return document if path else holder[0]


def _text(value: Any) -> str:
    if isinstance(value, _Raw):
        return str(value)
    if isinstance(value, _Pairs):
        return "{" + ", ".join(f"{json.dumps(name)}: {_text(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


MEMORY_CONSTANT, MEMORY_FACTOR = 256 << 20, 3
"""Limit of the address space for reading, in bytes: a constant, and a multiple of the files' size."""


def file_case(draws: Draws, kind: str) -> Case:
    """Draw a damaged file of a type, or a valid one with an unknown field."""
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
    *CONFIGS, "llama", "metaspace", "shards", "codes", "gpt2", "byt5", "gptq", "awq", "adapter",
    "adapter_merged", "adapter_dora",
}  # fmt: skip


def check_file(case: Case) -> str:
    """Write the damaged files to a new folder, and use them."""
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
