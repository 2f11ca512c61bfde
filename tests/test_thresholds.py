"""Thresholds of the kernels: they change no bit, are measured once, and are stored in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from blocks import random_blocks
from compiled import product, prompt_logits
from specdec import _core, reference
from specdec.errors import InputError
from specdec.models import thresholds
from specdec.models.number_formats import DTYPES
from worlds.canonical import VARIANTS, build, random_tensors

NEVER = 1 << 20
NAMES = sorted(_core.own_thresholds())
FORMATS = _core.panel_formats()
DIRECT = ("q4_k", "q5_k", "q6_k")
"""Formats of GGUF files whose codes are unpacked as they are multiplied."""


def of_formats(values: list[int], direct: list[int], others: int) -> list[int]:
    """Values of a threshold: for the package's formats, for Q4_K, Q5_K and Q6_K, for the others."""
    given = dict(zip((*DTYPES, *DIRECT), (*values, *direct), strict=True))
    return [given.get(name, others) for name in FORMATS]


@pytest.fixture(autouse=True)
def same_after() -> Iterator[None]:
    """Restore the thresholds for other tests of the process."""
    before = _core.thresholds()
    yield
    _core.set_thresholds(before)


def forced(value: int, *names: str) -> dict[str, list[int]]:
    """The table's own thresholds, with a value replaced in some or all."""
    own = _core.own_thresholds()
    return {**own, **{name: [value] * len(FORMATS) for name in names or own}}


# ---------------------------------------------------------------------------------------------- bits


def each(values: Iterable[int], *names: str) -> Iterator[str]:
    """Set each value of each named threshold (default: all), with the others at their defaults."""
    for name in names or (None,):
        for value in values:
            _core.set_thresholds(forced(value, *([name] if name else [])))
            yield f"{name} {value}"


def rows_and_weights(n_rows: int, n_in: int = 163) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n_rows)
    return rng.standard_normal((n_rows, n_in), np.float32), rng.standard_normal((40, n_in), np.float32)


@pytest.mark.parametrize("dtype", [*DTYPES, *DIRECT, "q4_1", "q2_k", "iq4_xs"])
@pytest.mark.parametrize("n_rows", [1, 7, 12, 19, 65])
def test_no_threshold_changes_a_bit_of_a_product(dtype, n_rows) -> None:
    """Each at its minimum, at a middle value and out of reach; against the specification."""
    if dtype in DTYPES:
        x, weights = rows_and_weights(n_rows)
        expected = reference.product(x, weights, dtype)
    else:
        rng = np.random.default_rng(n_rows)
        x, weights = rng.standard_normal((n_rows, 512), np.float32), random_blocks(rng, dtype, 40, 512)
        expected = product(x, weights, dtype)
    for setting in each((1, 2, 5, 7, 12, NEVER), *NAMES):
        assert np.array_equal(product(x, weights, dtype), expected), setting
    if dtype in ("bf16", "int8", "int4"):  # rows of tiles are prepared alike, whatever those are
        expected = reference.product(x, weights, dtype, "tiles")
        for setting in each((1, 5, NEVER)):
            assert np.array_equal(product(x, weights, dtype, engine="tiles"), expected), setting


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 16, 17, 18, 33])
def test_tiles_of_codes_take_any_number_of_blocks(dtype, n_blocks) -> None:
    """A block of inputs is multiplied while others are stored and scaled; a part of a panel has 16."""
    _core.set_thresholds(forced(1, "tiles_from"))
    for n_rows in (2, 12, 13, 17, 25):
        x, weights = rows_and_weights(n_rows, 32 * n_blocks - n_rows % 3)
        found = product(x, weights, dtype)
        assert np.array_equal(found, reference.product(x, weights, dtype)), n_rows


@pytest.mark.parametrize("n_rows", [1, 13, 30])
def test_no_threshold_changes_which_numbers_of_bf16_are_flushed(n_rows) -> None:
    """Products and sums around the smallest normal number, by pairs and by floats, in one block and more."""
    rng = np.random.default_rng(n_rows)
    x, weights = rows_and_weights(n_rows, 301)
    x *= np.exp2(rng.integers(-70, -62, x.shape)).astype(np.float32)
    weights *= np.exp2(rng.integers(-70, -62, weights.shape)).astype(np.float32)
    expected = reference.product(x, weights, "bf16")
    assert 0.2 < np.mean(expected == 0) < 0.8
    for setting in each((1, NEVER), "floats_from"):
        assert np.array_equal(product(x, weights, "bf16"), expected), setting


@pytest.mark.parametrize(("dtype", "prefill"), [("bf16", "rows"), ("bf16", "tiles"), ("int4", "rows")])
def test_no_threshold_changes_a_bit_of_a_text(dtype, prefill) -> None:
    """Scores are products of bf16 with an odd number of inputs; a prompt of several blocks of rows."""
    config = VARIANTS["gpt-gelu"]
    assert config["d_head"] % 2 == 1
    model = build(config, random_tensors(config), dtype=dtype, cache_dtype="bf16", prefill=prefill)
    _core.set_thresholds(_core.own_thresholds())
    expected = prompt_logits(model, range(40))
    for setting in each((1, 5, NEVER)):
        assert np.array_equal(prompt_logits(model, range(40)), expected), setting


# -------------------------------------------------------------------------------------- the core's own


def test_thresholds_are_those_that_were_set() -> None:
    given = {name: [i + 1, i + 2, NEVER, *range(1, len(FORMATS) - 2)] for i, name in enumerate(NAMES)}
    _core.set_thresholds(given)
    assert _core.thresholds() == given
    assert _core.own_thresholds() != given


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"block_rows": [0] * len(FORMATS)}, ValueError, "block_rows of f32 is 0, expected 1 to 1048576"),
        ({"fetch_from": [1, NEVER + 1, *[1] * 13]}, ValueError, "fetch_from of bf16 is 1048577, expected"),
        ({"fetch_from": [1, 1, 1]}, InputError, "fetch_from has 3 numbers, expected 15"),
        ({"fetch_from": 3}, TypeError, "expected a sequence of integers"),
        ({"fetch_shape": [1, 1, 1, 1]}, TypeError, "fetch_shape"),
    ],
)
def test_wrong_thresholds_are_refused_and_change_nothing(change, error, message) -> None:
    before = _core.thresholds()
    with pytest.raises(error, match=message):
        _core.set_thresholds({**_core.own_thresholds(), **change})
    with pytest.raises(TypeError, match="fetch_from is missing"):
        _core.set_thresholds({})
    assert _core.thresholds() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [({"dtype": "f8"}, "dtype"), ({"n_rows": 0}, "n_rows is 0"), ({"n_in": 65537}, "n_in 65537"),
     ({"panels": np.ones(8, np.int32)}, "panels")],
)  # fmt: skip
def test_wrong_panels_are_refused(change, message) -> None:
    sound = {"panels": np.ones(1 << 12, np.float32), "dtype": "f32", "n_rows": 1, "n_in": 32, "near": False}
    assert _core.panel_seconds(sound["panels"], **{n: v for n, v in sound.items() if n != "panels"}) > 0.0
    given = sound | change
    with pytest.raises(ValueError, match=message):
        _core.panel_seconds(given.pop("panels"), **given)


# --------------------------------------------------------------------------------------------- choices


OWN = {
    "fetch_from": of_formats([6, 6, 4, 3], [3, 3, 3], 3),
    "fetch_from_near": of_formats([3, 3, 3, 3], [3, 3, 3], 3),
    "block_rows": of_formats([12, 12, 9, 9], [9, 9, 9], 9),
    "tiles_from": of_formats([NEVER, NEVER, 9, NEVER], [9, NEVER, NEVER], NEVER),
    "floats_from": [NEVER] * len(FORMATS),
}


class MadeUpMachine:
    """A product takes 2.5 s, minus the savings of each right choice, plus noise."""

    def __init__(self, best: dict[str, list[int]], saved: float, noise: float) -> None:
        self.best, self.saved, self.noise, self.rng = best, saved, noise, np.random.default_rng(0)

    def __call__(self, dtype: str, n_rows: int, near: bool) -> float:
        f = FORMATS.index(dtype)
        used = {name: values[f] for name, values in _core.thresholds().items()}
        best = {name: values[f] for name, values in self.best.items()}
        starts = ["floats_from", "tiles_from", "fetch_from_near" if near else "fetch_from"]
        n_right = sum((n_rows >= used[name]) == (n_rows >= best[name]) for name in starts)
        n_right += used["block_rows"] == best["block_rows"]
        return (2.5 - n_right * self.saved) * self.rng.uniform(1.0, 1.0 + self.noise)


def test_the_best_thresholds_are_found() -> None:
    best = {
        "fetch_from": of_formats([4, 6, 1, NEVER], [1, 2, NEVER], 3),
        "fetch_from_near": of_formats([3, NEVER, 9, 2], [2, 3, 1], 3),
        "block_rows": of_formats([7, 12, 5, 8], [9, 5, 7], 9),
        "tiles_from": of_formats([NEVER, NEVER, NEVER, 5], [6, 4, NEVER], NEVER),
        "floats_from": of_formats([NEVER, 3, NEVER, NEVER], [NEVER] * 3, NEVER),
    }
    assert thresholds._measured(OWN, MadeUpMachine(best, 0.5, 0.02)) == best


@pytest.mark.parametrize(("saved", "noise"), [(0.0, 0.2), (0.06, 0.0)])
def test_thresholds_without_effect_stay(saved, noise) -> None:
    """Neither noise nor a gain within noise decides anything."""
    of_all = {"fetch_from": 1, "fetch_from_near": NEVER, "block_rows": 6, "tiles_from": 5, "floats_from": 1}
    best = {name: [value] * len(FORMATS) for name, value in of_all.items()}
    assert thresholds._measured(OWN, MadeUpMachine(best, saved, noise)) == OWN


def test_measured_thresholds_can_be_used(monkeypatch) -> None:
    """A measurement leaves the thresholds unchanged, even if it is interrupted."""
    before = forced(2)
    _core.set_thresholds(before)
    found = thresholds.measured()

    def interrupted(*args: object, **options: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(_core, "panel_seconds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thresholds.measured()
    assert _core.thresholds() == before
    _core.set_thresholds(found)
    assert _core.thresholds() == found


# ------------------------------------------------------------------------------------------- the file


@pytest.fixture
def process(monkeypatch, tmp_path):
    """Simulate a new process without measured thresholds, in which measurements give the given number."""
    values: list[int] = []

    def measured() -> dict[str, list[int]]:
        values.append(process.value)
        return forced(process.value)

    def process(value: int = 7) -> int:
        """Settle like a new process; return the number of measurements."""
        process.value, before = value, len(values)
        monkeypatch.setattr(thresholds, "_settled", False)
        _core.set_thresholds(_core.own_thresholds())
        thresholds.settle()
        thresholds.settle()
        return len(values) - before

    monkeypatch.setattr(thresholds, "measured", measured)
    monkeypatch.setattr(_core, "kernels", lambda: "avx2")  # of "ref" nothing is measured
    monkeypatch.setenv("SPECDEC_THRESHOLDS", str(tmp_path / "a" / "folder"))
    return process


def the_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.json")
    return path


def test_thresholds_are_measured_once_on_a_machine(process, tmp_path) -> None:
    assert process(7) == 1
    assert _core.thresholds() == forced(7)
    assert process(8) == 0
    assert _core.thresholds() == forced(7), "those of the file"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [the_file(tmp_path).name]


def damages() -> dict[str, bytes]:
    sound = {"key": None, "thresholds": forced(9)}
    changes: dict[str, dict[str, Any]] = {
        "no thresholds": {"thresholds": 3}, "one missing": {"thresholds": {"block_rows": [1] * 15}},
        "one wrong": {"thresholds": forced(9) | {"fetch_from": [0] * 15}},
        "no number": {"thresholds": forced(9) | {"fetch_from": ["a"] * 15}},
        "of another processor": {"key": {"processor": "another"}},
    }  # fmt: skip
    damaged = {"empty": b"", "no JSON": b"\xff{", "deep": b"[" * 50000, "no object": b"[1, 2]"}
    return damaged | {name: json.dumps(sound | change).encode() for name, change in changes.items()}


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_measured_again(process, tmp_path, damage) -> None:
    process(7)
    path = the_file(tmp_path)
    key = path.read_bytes().partition(b'"key": ')[2].partition(b"}")[0] + b"}"
    path.write_bytes(damages()[damage].replace(b"null", key))
    assert process(8) == 1
    assert _core.thresholds() == forced(8)
    assert process(9) == 0, "the file is sound again"
    assert _core.thresholds() == forced(8)


def test_a_pipe_in_place_of_the_file_does_not_block(process, tmp_path) -> None:
    process(7)
    path = the_file(tmp_path)
    path.unlink()
    os.mkfifo(path)
    thread = threading.Thread(target=process, args=(8,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert _core.thresholds() == forced(8)
    assert path.is_file()


def test_a_file_belongs_to_its_kernels(process, monkeypatch) -> None:
    process(7)
    for name in ("kernels_digest", "processor", "kernels"):
        monkeypatch.setattr(_core, name, lambda name=name: f"another {name}")
        assert process(8) == 1, name
    assert process(9) == 0


@pytest.mark.parametrize("reason", ["a file in place of the folder", "no home"])
def test_an_unwritable_folder_is_not_an_error(process, monkeypatch, tmp_path, reason) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "a file").write_text("")
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    folder = "" if reason == "no home" else str(tmp_path / "a file" / "below")
    monkeypatch.setenv("SPECDEC_THRESHOLDS", folder)
    assert process(7) == 1
    assert process(8) == 1
    assert _core.thresholds() == forced(8)


def test_nothing_is_measured_if_disabled_or_with_ref(process, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPECDEC_THRESHOLDS", "off")
    assert process(7) == 0
    monkeypatch.setenv("SPECDEC_THRESHOLDS", str(tmp_path))
    monkeypatch.setattr(_core, "kernels", lambda: "ref")
    assert process(7) == 0
    assert _core.thresholds() == _core.own_thresholds()
    assert not list(tmp_path.iterdir())


def test_files_are_in_the_users_cache(process, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPECDEC_THRESHOLDS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard requires to be ignored
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    process()
    assert the_file(tmp_path).parent == tmp_path / "home" / ".cache" / "specdec" / "thresholds"
    the_file(tmp_path).unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process()
    assert the_file(tmp_path).parent == tmp_path / "cache" / "specdec" / "thresholds"


def test_threads_that_load_at_once_measure_once(process, monkeypatch) -> None:
    measure, started, n_before = thresholds.measured, threading.Barrier(4), list[int]()
    process(7)
    monkeypatch.setenv("SPECDEC_THRESHOLDS", "")
    monkeypatch.setattr(thresholds, "_path", lambda folder, key: None)
    monkeypatch.setattr(thresholds, "measured", lambda: n_before.append(1) or measure())
    monkeypatch.setattr(thresholds, "_settled", False)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: (started.wait(), thresholds.settle()), range(4)))
    assert len(n_before) == 1


def test_importing_measures_nothing_and_loading_does(tmp_path) -> None:
    script = """
import pathlib, sys
import specdec
from specdec import _core
def files(): return len(list(pathlib.Path(sys.argv[1]).glob("*.json")))
def is_own(): return _core.thresholds() == _core.own_thresholds()
print(files(), is_own(), "specdec.models.thresholds" in sys.modules)
specdec.embedded_pair()
print(files())
"""
    environment = {**os.environ, "SPECDEC_THRESHOLDS": str(tmp_path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["0", "True", "False", "0" if specdec.kernels() == "ref" else "1"]
    if specdec.kernels() != "ref":
        content = json.loads(the_file(tmp_path).read_bytes())
        _core.set_thresholds(content["thresholds"])
        assert content["key"]["kernels"] == specdec.kernels()
