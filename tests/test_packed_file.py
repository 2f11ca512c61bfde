"""Packed files: memory images of models, mapped by the next load, and their cache."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses, refuses_field
from specdec import _core
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError, SpecdecError, TokenizerError
from specdec.models import packed_file
from specdec.models.checkpoints import gguf_file
from specdec.models.model import LaterTexts, ModelTexts
from specdec.tokenizer import resolve_tokenizer
from trained import DRAFT
from worlds.folders import llama_config, write_hf, write_llama2c, write_llama2c_tokenizer
from worlds.gguf_files import CASES

TEXT = "Once upon a time"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_the_same_model(tmp_path: Path, dtype: str) -> None:
    model = specdec.load(DRAFT, dtype)
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", dtype)
    packed = specdec.load(path)
    assert packed.core.dtype == dtype and packed.config == model.config
    assert packed.architecture == model.architecture and packed.path == path
    assert packed.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)
    assert packed.tokenizer.eos_ids == model.tokenizer.eos_ids
    assert np.array_equal(packed.logits(TEXT), model.logits(TEXT))
    assert np.array_equal(packed.core.token_table(), model.core.token_table())
    del model
    out = specdec.generate(packed, packed, TEXT, max_new_tokens=8, gamma=3)
    assert out.tokens == specdec.generate(packed, None, TEXT, max_new_tokens=8).tokens


@pytest.mark.parametrize("name", ["t5", "mixtral", "gemma3", "gpt2", "bloom"])
def test_families(tmp_path: Path, name: str) -> None:
    folder = write_hf(tmp_path / "folder", *CASES[name].folder())
    model = specdec.load(folder, "int8")
    path = specdec.convert(folder, tmp_path / "model.specdec", "int8")
    source = None if model.config.encoder is None else [3, 9, 4]
    ids = list(range(1, 12))
    assert np.array_equal(specdec.load(path).logits(ids, source), model.logits(ids, source))


def test_of_a_llama2c_file_with_its_tokenizer(tmp_path: Path) -> None:
    names = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"%c" % i for i in range(97, 113))]
    tokens = [(name, 0.0) for name in names]
    write_llama2c(tmp_path / "model.bin")
    write_llama2c_tokenizer(tmp_path / "tok19.bin", tokens)
    model = specdec.load(tmp_path / "model.bin")
    packed = specdec.load(specdec.convert(tmp_path / "model.bin", tmp_path / "model.specdec"))
    assert packed.tokenizer.encode("bad") == model.tokenizer.encode("bad")
    assert packed.tokenizer.eos_ids == model.tokenizer.eos_ids == (1, 2)
    assert np.array_equal(packed.logits("bad"), model.logits("bad"))
    (tmp_path / "tok19.bin").unlink()
    with pytest.raises(CheckpointError, match="model.bin, which has changed"):
        specdec.load(packed.path)


def test_a_packed_file_of_a_gguf_file_needs_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source file is not read either; its change is detected."""
    source = specdec.convert(DRAFT, tmp_path / "model.gguf", "Q8_0")
    path = specdec.convert(source, tmp_path / "model.specdec")
    model, packed = specdec.load(source), specdec.load(path)
    assert packed.dtype == model.dtype == "file"
    assert packed.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)
    expected = model.logits(TEXT)
    gguf_file._types.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert np.array_equal(specdec.load(path).logits(TEXT), expected)
    os.utime(source, ns=(1, 1))
    with pytest.raises(CheckpointError, match=r"model.gguf, which has changed"):
        specdec.load(path)
    source.unlink()
    assert np.array_equal(specdec.load(path).logits(TEXT), expected)


def test_chat_templates_and_sampling(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(DRAFT, folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    said = {"do_sample": True, "temperature": 0.5, "suppress_tokens": [3], "sequence_bias": [[[4], -1.5]]}
    said |= {"bad_words_ids": [[5, 6]], "min_new_tokens": 2}
    (folder / "generation_config.json").write_text(json.dumps(said))
    packed = specdec.load(specdec.convert(folder, tmp_path / "model.specdec"))
    assert packed.default_sampling["logit_bias"] == {3: -np.inf, 4: -1.5}
    assert packed.chat_template.render([{"role": "user", "content": "a"}]) == "a"
    assert packed.default_sampling == specdec.load(folder).default_sampling != {}
    assert specdec.load(tmp_path / "model.specdec", tokenizer=False).tokenizer is None


def test_texts_are_made_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, for any caller, after a checksum of their bytes."""
    path = specdec.convert(DRAFT, tmp_path / "model.specdec")
    made: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(resolve_tokenizer(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(packed_file, "resolve_tokenizer", counted)
    model = specdec.load(path, n_threads=2)
    assert np.isfinite(model.logits([3, 9, 4])).all() and made == []
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: model.tokenizer, range(64)))
    assert len(made) == 1 and all(one is made[0] for one in found)
    whole = path.read_bytes()
    at = whole.rindex(b'"model"')
    path.write_bytes(whole[:at] + b"@" + whole[at + 1 :])
    with pytest.raises(CheckpointError, match="model.specdec: is damaged from byte"):
        specdec.load(path)
    assert len(made) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_texts_of_a_process_that_is_forked_while_they_are_made() -> None:
    begun, go_on, texts = threading.Event(), threading.Event(), ModelTexts(None)

    def make() -> ModelTexts:
        begun.set()
        go_on.wait(60)
        return texts

    later = LaterTexts(make)
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(later.get)
        assert begun.wait(60)
        child = os.fork()
        if child == 0:
            go_on.set()
            answer = ThreadPoolExecutor(1).submit(later.get)
            wait([answer], 10)
            os._exit(0 if answer.done() and answer.result() is texts else 1)
        go_on.set()
        assert made.result() is texts
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_tokenizer_that_cannot_be_made(tmp_path: Path) -> None:
    """With a right checksum: ids still decode, and using the tokenizer raises an error about the file."""
    path = specdec.convert(DRAFT, tmp_path / "model.specdec")
    with_header(path, lambda header: None, {"tokenizer.json": b"["})
    model = specdec.load(path)
    assert np.isfinite(model.logits([3, 9, 4])).all()
    for _ in range(2):
        with pytest.raises(TokenizerError, match="model.specdec/tokenizer.json"):
            _ = model.tokenizer


def test_the_file_is_never_written(tmp_path: Path) -> None:
    path = specdec.convert(DRAFT, tmp_path / "model.specdec")
    before = path.read_bytes()
    first, second = specdec.load(path), specdec.load(path)
    assert np.array_equal(first.logits(TEXT), second.logits(TEXT))
    del first
    assert path.read_bytes() == before and second.logits(TEXT).shape[0] > 0
    assert pickle.loads(pickle.dumps(second)) is second


def with_header(
    path: Path, change: Callable[[dict[str, Any]], object], files: Mapping[str, bytes] | None = None
) -> Path:
    """Rewrite a file with another header and other stored files, with right checksums and offsets."""
    whole = path.read_bytes()
    magic, n, _ = struct.unpack_from("<8sQQ", whole)
    header, end, parts = json.loads(whole[24 : 24 + n]), 24 + n, []
    for part in header["blocks"] + header["files"]:
        begin = end + -end % mmap.ALLOCATIONGRANULARITY
        end = begin + part["bytes"]
        data = (files or {}).get(part.get("name"))
        if data is not None:
            part |= {"bytes": len(data), "checksums": _core.checksums(data).tolist()}
        parts.append(whole[begin:end] if data is None else data)
    change(header)
    text = json.dumps(header).encode()
    made = struct.pack("<8sQQ", magic, len(text), _core.checksums(text)[0]) + text
    for data in parts:
        made += bytes(-len(made) % mmap.ALLOCATIONGRANULARITY) + data
    path.write_bytes(made)
    return path


def test_files_that_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(DRAFT, folder)
    good = specdec.convert(folder, tmp_path / "model.specdec", "int8")
    bad = tmp_path / "bad.specdec"
    for values, message in (
        ({"version": "0"}, 'was written with version "0"; expected'),
        ({"byteorder": "big"}, 'was written with byteorder "big"; expected "little"'),
        ({"layout": 1}, "has the layout 1; expected "),
        ({"dtype": "int4"}, "has another layout than this build: a block of"),
    ):
        shutil.copy(good, bad)
        with pytest.raises(CheckpointError, match=message):
            specdec.load(with_header(bad, lambda header, more=values: header.update(more)))
    whole = good.read_bytes()
    bad.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="is the file truncated"):
        specdec.load(bad)
    rng = np.random.default_rng(3)
    for at in [*rng.integers(8, 1000, 20), *rng.integers(8192, len(whole) // 2, 20)]:
        bad.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match="bad.specdec: "):
            specdec.load(bad)
    for name, value in (("dtype", "f32"), ("n_ctx", 7)):
        with refuses(name, value):
            specdec.load(good, **{name: value})
    with pytest.raises(CheckpointError, match="was written with prefill 'rows', which has another layout"):
        specdec.load(good, prefill="blas")
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(CheckpointError, match="folder, which has changed; expected the same"):
        specdec.load(good)
    shutil.rmtree(folder)
    assert specdec.load(good).core.dtype == "int8"


def test_headers_of_other_fields(tmp_path: Path) -> None:
    """With a right checksum, unlike random damage: each field removed or of another type."""
    folder = write_hf(tmp_path / "folder", llama_config())
    good = specdec.convert(folder, tmp_path / "model.specdec", "int8")
    whole = good.read_bytes()
    header = json.loads(whole[24 : 24 + struct.unpack_from("<8sQQ", whole)[1]])
    bad = tmp_path / "bad.specdec"
    others: list[object] = [None, "x", -1, [3], {"a": 1}]
    cases: list[Any] = [{name: value} for name in header for value in others]
    of = header["config"]
    cases += [{"config": of | {name: value}} for name in [*of, "new"] for value in others[1:]]
    cases += [{"blocks": [{}]}, {"files": [{"name": "../x"}]}]
    refused = 0
    for values in cases:
        shutil.copy(good, bad)
        try:
            specdec.load(with_header(bad, lambda header, more=values: header.update(more)))
        except SpecdecError:
            refused += 1
    assert refused > len(header) * 2


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(DRAFT, folder)
    cache = tmp_path / "cache"
    model = specdec.load(folder, "int8", cache=cache)
    (file,) = cache.iterdir()
    again = specdec.load(folder, "int8", cache=cache)
    assert (model.path, again.path) == (folder, file)
    assert np.array_equal(model.logits(TEXT), again.logits(TEXT))
    assert specdec.load(folder, "bf16", cache=cache).path == folder and len(list(cache.iterdir())) == 2
    os.utime(folder / "config.json", ns=(1, 1))
    assert specdec.load(folder, "int8", cache=cache).path == folder  # written again
    assert specdec.load(folder, "int8", cache=cache).path == file
    file.write_bytes(file.read_bytes()[:-1])
    assert specdec.load(folder, "int8", cache=cache).path == folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    specdec.load(folder, cache=True)
    assert len(list((tmp_path / "home" / "specdec" / "packed").iterdir())) == 1
    with pytest.raises(InputError, match="tokenizer is given with cache="):
        specdec.load(folder, tokenizer=DRAFT, cache=cache)
    with pytest.raises(CheckpointNotFoundError, match="expected a model on disk with cache="):
        specdec.load("org/name", cache=cache)


_MASK, _FACTOR = (1 << 64) - 1, 0x9E3779B97F4A7C15


def _mixed(x: int) -> int:
    x = (x ^ (x >> 32)) * _FACTOR & _MASK
    return x ^ (x >> 29)


def sum_of(data: bytes, **options: int) -> int:
    return int(_core.checksums(data, **options)[0])


def _checksum(data: bytes) -> int:
    """Compute the checksum that csrc/kernels/checksum.c specifies."""
    total = _mixed(len(data))
    for i, begin in enumerate(range(0, len(data), 1 << 20)):
        piece = data[begin : begin + (1 << 20)]
        words = np.frombuffer(piece + bytes(64 - len(piece) % 64), "<u8").reshape(-1, 8)
        first = np.array([_mixed(lane + len(piece)) for lane in range(8)], np.uint64)
        second = np.zeros(8, np.uint64)
        for line in words:
            first = first + line
            first = first << np.uint64(29) | first >> np.uint64(35)
            second = second + first
        found = 0
        for one, two in zip(first.tolist(), second.tolist(), strict=True):
            found = _mixed((found + _mixed(one) + two) & _MASK)
        total = (total + _mixed((found + _mixed(i)) & _MASK)) & _MASK
    return total


SIZES = (0, 1, 63, 64, 4097, (1 << 20) + 4160)


@pytest.mark.parametrize("n", SIZES)
def test_the_checksum_is_the_specified_one(n: int) -> None:
    data = np.random.default_rng(n).integers(0, 256, n, np.uint8).tobytes()
    assert sum_of(data) == _checksum(data)


def test_checksums_of_threads_changes_and_stretches() -> None:
    data, stretch = np.random.default_rng(1).integers(0, 256, 5_000_001, np.uint8), 1 << 21
    whole = data.tobytes()
    expected = sum_of(whole)
    assert sum_of(whole, n_threads=2) == expected
    for at in (0, 7, 64, 1 << 20, len(data) - 1):
        assert sum_of(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) != expected
    assert expected not in (sum_of(whole[:-1]), sum_of(np.roll(data, 64).tobytes()))
    each = [sum_of(whole[begin : begin + stretch]) for begin in range(0, len(data), stretch)]
    for n_threads in (1, 2):
        assert _core.checksums(whole, stretch, n_threads=n_threads).tolist() == each
    assert _core.checksums(b"", stretch).tolist() == [sum_of(b"")]
    with pytest.raises(ValueError, match="stretch is 1000, expected a multiple of 1048576"):
        _core.checksums(whole, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", _core.available_kernels())
def test_every_instruction_set_has_the_specified_checksums(kernels: str) -> None:
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    check = "import test_packed_file as t; [t.test_the_checksum_is_the_specified_one(n) for n in t.SIZES]"
    environment = os.environ | {"SPECDEC_KERNELS": kernels, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


CHANGES = {"cut short": 8192, "emptied": 0, "lengthened": 1, "written": -4096}


def overwrite(path: Path, change: str) -> None:
    """Change a file in place; a truncated one is only shortened."""
    if change in ("cut short", "emptied"):
        os.truncate(path, CHANGES[change])
        return
    with path.open("r+b") as file:
        file.seek(CHANGES[change] if change == "written" else 0, os.SEEK_END)
        file.write(bytes(1000))


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_changed_while_a_model_of_it_is_in_use(tmp_path: Path, change: str) -> None:
    """Every call detects it before computing: no crash, no wrong values."""
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    draft_path = specdec.convert(DRAFT, tmp_path / "draft.specdec", "int4")
    model, draft, plain = specdec.load(path), specdec.load(draft_path), specdec.load(DRAFT, "int8")
    other = model.with_chat_template("{{ messages[0].content }}")
    assert np.array_equal(model.logits(TEXT), plain.logits(TEXT))
    with specdec.Engine(plain, draft) as drafted, specdec.Engine(model) as engine:
        engine.submit(TEXT, max_new_tokens=3).result(60)
        drafted.submit(TEXT, max_new_tokens=3).result(60)
        overwrite(path, change)
        overwrite(draft_path, change)
        calls: list[Callable[[], object]] = [
            lambda: model.logits(TEXT), lambda: model.score(TEXT), lambda: model.score([TEXT]),
            lambda: model.hidden_states(TEXT, [1]), lambda: other.logits(TEXT),
            lambda: specdec.generate(model, None, TEXT, max_new_tokens=3),
            lambda: specdec.generate(plain, draft, TEXT, max_new_tokens=3),
            lambda: specdec.beam_search(model, None, TEXT, width=2, max_new_tokens=3),
            lambda: engine.submit(TEXT, max_new_tokens=3).result(60),
            lambda: drafted.submit(TEXT, max_new_tokens=3).result(60),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(CheckpointError, match=r"\.specdec: changed while in use"):
                call()
        for name in ("dtype", "n_parameters", "n_bytes"):  # without reading the file
            assert getattr(model, name) == getattr(plain, name)
        assert "n_vocab" in repr(model)
        fresh = specdec.load(DRAFT, "int8")
        assert np.array_equal(fresh.logits(TEXT), plain.logits(TEXT))


def test_texts_of_a_file_that_is_cut_short_before_they_are_made(tmp_path: Path) -> None:
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    model = specdec.load(path)
    os.truncate(path, 0)
    with pytest.raises(CheckpointError, match="changed while in use"):
        _ = model.tokenizer


def test_a_file_that_is_replaced_in_use(tmp_path: Path) -> None:
    """A model keeps its file; the next load uses the new one."""
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    model = specdec.load(path)
    expected = model.logits(TEXT)
    specdec.convert(DRAFT, path, "int4", force=True)
    assert np.array_equal(model.logits(TEXT), expected)
    assert specdec.load(path).dtype == "int4"


NAMES = [
    "a/b/c", "x" * 300, "x/" * 600 + "y", "config.json/x", "notes.txt", "additional_chat_templates/a/b.jinja",
    "\ud800", "", ".", "a\0b", "/etc/passwd", "../x", "\u00e9" * 200, "additional_chat_templates/" + "x" * 300
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_that_no_packed_file_holds(tmp_path: Path, name: str) -> None:
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    with_header(path, lambda header: header["files"][0].update(name=name))
    with refuses_field(path, "header.files[0].name"):
        specdec.load(path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800", "x/" * 3000])
def test_names_of_a_source_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """The source counts as missing; a record outside its folder is refused."""
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    specdec.load(with_header(path, lambda header: header["source"].update(path=name)))
    with refuses_field(path, "header.source.records"):
        specdec.load(with_header(path, lambda header: header["source"].update(records=[["../x", 1, 2]])))


def test_a_source_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inaccessible source counts as missing."""
    folder = tmp_path / "folder"
    shutil.copytree(DRAFT, folder)
    path = specdec.convert(folder, tmp_path / "model.specdec", "int8")
    expected = specdec.load(path).logits(TEXT)
    stat = Path.stat

    def refused(self: Path, **options: Any) -> os.stat_result:
        if folder in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", refused)
    assert np.array_equal(specdec.load(path).logits(TEXT), expected)


def test_a_full_disk_for_the_files_of_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    model = specdec.load(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CheckpointError, match="model.specdec: .*No space left"):
        _ = model.tokenizer
