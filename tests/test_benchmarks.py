"""The benchmarks: command-line parser, result files, small runs of those that need no other engine."""

from __future__ import annotations

import csv
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import missing
import specdec

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import decodings, engine
from benchmarks.__main__ import PROGRAMS, main, parser
from benchmarks.builds import Builds
from benchmarks.interleaved import core_model_and_formats
from benchmarks.kernels import n_matrix_bytes
from benchmarks.machine import FILE_BYTES, WEIGHT_BYTES
from benchmarks.peers.comparing import Column, Contest
from benchmarks.peers.engine import CACHE, CELLS
from benchmarks.peers.engine import Engine as PeerEngine
from benchmarks.report import Report, Speedup, Spread
from benchmarks.shapes import SHAPES, write_checkpoint, write_gguf

ROOT = Path(__file__).parents[1]
REQUIRED = {name: ["--work", "FOLDER"] for name in PROGRAMS if name.startswith("peers")}
REQUIRED["serving"] = ["--work", "FOLDER"]
REQUIRED["checkpoint"] = ["eight", "FOLDER"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_parser_of_each_program(name: str) -> None:
    assert f"`{name}" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    args = parser().parse_args([name, *REQUIRED.get(name, [])])
    assert args.name == name and args.save is None and args.threads == 2


def test_result_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "today"
    report = Report("toy", ["toy", "--work", "some/folder", "--drafts", "a b"], folder, "machine-x")
    table = report.table({"M": "d", "name": "", "ms": ".1f", "measured": ".2f"}, "First")
    table.row(1, "a|b", Spread.of([3.0, 1.0, 2.26]), Speedup.over([1.5, 1.6, 1.4], [2.0, 2.0, 2.0]))
    table.row(2, None, math.nan, Speedup.over([2.5, 2.6, 1.0], [2.0, 2.0, 2.0]))
    report.table({"more": ".0f"}, "Second").row(0.5)
    report.close()

    text = (folder / "toy.md").read_text(encoding="utf-8")
    assert text.rstrip("\n") in capsys.readouterr().out  # the file has the printed text
    assert "`python -m benchmarks toy --work PATH --drafts 'a b'`" in text
    for said in ("machine-x", "commit", "load average at the beginning", "Load average at the end"):
        assert said in text
    assert "| 1 | a\\|b | 2.3 (1.0 to 3.0) | **1.50** (1.40 to 1.60) |" in text
    assert "| 2 | – | – | invalid: 2.50 is above 2.00 tokens per pass |" in text

    with open(folder / "toy.csv", newline="", encoding="utf-8") as file:
        one, two, more = csv.DictReader(file)
    assert (one["table"], one["M"], one["name"]) == ("First", "1", "a|b")
    assert [float(one[f"ms{end}"]) for end in ("", " min", " max")] == [2.26, 1.0, 3.0]
    assert [float(one[f"measured{end}"]) for end in ("", " min", " max")] == [1.5, 1.4, 1.6]
    assert two["measured"] == two["measured min"] == "" and "is above" in two["measured invalid"]
    assert (more["table"], more["more"], more["M"]) == ("Second", "0.5", "")

    with pytest.raises(SystemExit, match="label"):
        Report("toy", ["toy"], folder, "machine-x")


def test_what_a_failed_run_found_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(args: Any, report: Report) -> None:
        """A row, then an error."""
        report.table({"M": "d"}).row(7)
        raise RuntimeError("no more")

    monkeypatch.setitem(PROGRAMS, "machine", (fails, lambda options: None))
    with pytest.raises(RuntimeError, match="no more"):
        main(["machine", "--save"], tmp_path)
    assert "| 7 |\n\nEnded early: RuntimeError" in (tmp_path / "machine.md").read_text(encoding="utf-8")
    assert (tmp_path / "machine.csv").read_text(encoding="utf-8") == "table,M\n,7\n"


def test_a_speedup_above_the_tokens_per_pass_is_an_error_of_measuring() -> None:
    assert not Speedup.over([1.9, 2.0, 2.5], [2.0, 2.0, 2.0]).invalid  # the median is not above
    assert Speedup.over([2.1], [2.0]).invalid
    assert Speedup.over([2.1, 1.6, 3.2], [2.0, 1.5, 3.5]).invalid  # each with the tokens of its own run


def test_plain_decoding_runs_in_every_repeat() -> None:
    asked: list[tuple[int, int]] = []

    def run(repeat: int, gamma: int) -> list[dict[str, Any]]:
        asked.append((repeat, gamma))
        found = {"seconds": 1.0 / (1 + gamma), "n_tokens": 8, "n_calls": 2, "tokens": [[1]], "rounds": []}
        return [found, found | {"seconds": 2.0}]

    cells = decodings.run_cells([1, 2], run, 2, 0, equal=True)
    assert asked == [(repeat, gamma) for repeat in range(3) for gamma in (0, 1, 2)]  # the first warms up
    assert cells[2].speedup == Speedup(3.0, 3.0, 3.0, 4.0, False)
    assert cells[2].against == Spread(6.0, 6.0, 6.0)

    def wrong(repeat: int, gamma: int) -> list[dict[str, Any]]:
        return [{"tokens": [[gamma]]}]

    with pytest.raises(RuntimeError, match="differs from plain decoding"):
        decodings.run_cells([1], wrong, 1, 0, equal=True)


def test_builds_alternate() -> None:
    calls: list[int] = []

    def order(number: int) -> Any:
        return SimpleNamespace(ask=lambda: calls.append(number) or number)

    builds = Builds(None, order, number=0)
    builds.all += Builds(None, order, number=1).all
    assert [builds.ask(repeat, "ask") for repeat in range(3)] == [[0, 1]] * 3
    assert calls == [0, 1, 1, 0, 0, 1]


TOY = {
    "forward": "--models eight --dtypes f32 --rows 2 --cache 8",
    "mtp": "--shapes L25M --heads 0 100 --gamma 2 --tokens 8 --dtypes int8 --repeats 1",
    "fixed-acceptance": "--pairs eight+eight-draft --tokens 8 --gamma 2 --alpha 0.8 --cache 16",
    "speed": "--tokens 4 --gamma 2 --temperature 0 1",
    "drafts": "--tokens 4 --drafts random --texts list --gamma 2 --temperature 1",
    "adaptive": "--tokens 4 --batch 1 3 --gamma 2 --temperature 1 --repeats 1 --cold",
    "prompt-caches": "--pairs eight+eight-draft --prompt 100 --dtypes f32",
    "products": "--models eight --dtypes f32 bf16 int8 --rows 1 3",
}


@pytest.mark.parametrize("name", TOY)
def test_a_small_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = [name, *TOY[name].split(), "--repeats", "1", "--threads", "1", "--save", "toy"]
    try:
        main(words, tmp_path)
    except (RuntimeError, SystemExit) as error:
        if name in ("fixed-acceptance", "mtp", "parts", "products") and "SPECDEC_TESTING=ON" in str(error):
            pytest.skip(missing.HOOKS)
        raise
    with open(tmp_path / f"{name}-toy.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(any(value for value in row.values()) for row in rows)


class Noting(PeerEngine):
    """Records the length of the cache before and after each run."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(ids=lambda n: list(range(n)), context=CACHE, config={}))
        self.length, self.runs = 0, []

    @classmethod
    def prepare(cls, job: Any) -> None:
        raise NotImplementedError

    def prefill(self, ids: list[int]) -> Any:
        return self.forward(ids)

    def forward(self, ids: list[int]) -> Any:
        time.sleep(1e-3)
        self.runs.append((self.length, self.length + len(ids)))
        self.length += len(ids)

    def trim(self, n: int) -> None:
        self.length = min(self.length, n)


def test_bursts_of_peers_begin_with_the_same_cache() -> None:
    noting = Noting()
    for cell in (*CELLS, "plain", "prefill 512", "t(9)"):
        noting.runs.clear()
        begun = time.perf_counter()
        samples = noting.burst(cell, 0.03)
        assert samples and sum(samples) < time.perf_counter() - begun
        n = 0 if cell.startswith("prefill") else CACHE
        runs = [run for run in noting.runs if run != (0, CACHE)] or noting.runs  # one fills the cache
        assert set(runs) == {(n, n + CELLS[cell])}
        assert len(runs) > len(samples)  # some warm up
    noting = Noting()
    for n_runs in (2, 3):  # the first run of a cell is a warm-up; a run longer than its burst counts
        assert len(noting.burst("prefill 32", 1e-6)) == 1 and len(noting.runs) == n_runs


def test_every_setting_of_specdec_is_compared_with_peers_alone() -> None:
    times = {"specdec": [3.0, 3.0], "specdec, tiles": [1.0, 1.0], "one": [2.0, 4.0], "other": [6.0, 8.0]}
    contest = Contest({name: Column({"cell": values}) for name, values in times.items()})
    contest.paired = {name: {"cell": times["specdec"]} for name in list(times)[1:]}
    assert contest.best("cell", higher_is_better=False) == ("one", Spread.of([2 / 3, 4 / 3]))
    found = contest.best("cell", higher_is_better=False, setting="specdec, tiles")
    assert found == ("one", Spread.of([2.0, 4.0]))
    assert contest.best("other", higher_is_better=False) is None


def peers(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Rows of the one table of a comparison with peers."""
    monkeypatch.chdir(ROOT)
    program, *rest = words.split()
    given = ["--work", str(folder / "work"), "--threads", "1", *(word.replace("~", " ") for word in rest)]
    (table,) = main([program, *given]).tables
    return table.rows


QUICK = "--repeats 1 --seconds 0.01 --prefill-seconds 0.01 --cells plain prefill~32 --shapes paper6"


@pytest.mark.slow
def test_specdec_next_to_itself_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "peers-batch --formats int8 --pairs paper6+paper6 --engines specdec,~auto specdec,~plain"
    plain, drafted = peers(f"{words} --at-once 2 --tokens 4 --repeats 1", tmp_path, monkeypatch)
    assert plain[:2] == (0, 2) and isinstance(plain[2], Spread) and plain[3] == "without a draft"
    assert all(isinstance(cell, Spread) for cell in (*drafted[2:5], drafted[-1]))


@pytest.mark.slow
@pytest.mark.oracle
def test_forwards_next_to_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's layout, whose linear layers torch does not quantize as they are."""
    _, row = peers(f"peers --engines transformers --formats int8 {QUICK}", tmp_path, monkeypatch)[:2]
    assert isinstance(row[1], Spread) and isinstance(row[2], Spread)
    assert 0.01 < row[-1] < 0.3  # quantized, and the same model


def test_a_build_without_hooks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(target: Any, draft: Any, prompts: Any, **options: Any) -> None:
        raise ValueError(f"draft: there is no method '{draft[0]}'")

    monkeypatch.setattr(engine, "begin_session", session)
    bench: Any = SimpleNamespace(target=None, text=[1, 2], prompt=[1])
    with pytest.raises(RuntimeError, match="SPECDEC_TESTING=ON"):
        engine._fixed_acceptance(bench, None, 0.5, {})


def test_two_builds(tmp_path: Path) -> None:
    """This build against itself, each in a process of its own."""
    words = ["forward", *TOY["forward"].split(), "--repeats", "1", "--threads", "1", "--save"]
    report = main([*words, "--against", sys.executable], tmp_path)
    (table,) = report.tables
    assert [row[0] for row in table.rows] == [1, 2]
    assert all(row[3].median > 0 for row in table.rows)
    assert "PATH" in (tmp_path / "forward.md").read_text(encoding="utf-8")


def test_bytes_of_gguf_files_are_those_of_their_types(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    sizes = {ggml_type.name.lower(): sizes for ggml_type, sizes in gguf.GGML_QUANT_SIZES.items()}
    for name, n_bytes in FILE_BYTES.items():
        if name in sizes and name not in WEIGHT_BYTES:
            assert n_bytes == sizes[name][1] / sizes[name][0], name
    path = write_gguf("eight", tmp_path / "eight.gguf", "Q4_K_M")
    held = [tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2]
    expected = sum(tensor.n_bytes for tensor in held if tensor.name != "token_embd.weight")
    core, formats = core_model_and_formats(str(path), None)
    assert len(set(formats.values())) > 1
    assert n_matrix_bytes(core.config, core.dtype, formats) == expected
    words = ["forward", "--models", str(path), "--rows", "2", "--cache", "8", "--repeats", "1"]
    (table,) = main(words).tables
    assert table.title == "eight.gguf, file, cache of 8" and len(table.rows) == 2


@pytest.mark.parametrize("name", ["Qwen3.5-0.8B", "LFM2-1.2B"])
def test_bytes_of_a_gguf_file_with_matrices_in_f32(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    monkeypatch.setitem(SHAPES, name, SHAPES[name] | {"n_vocab": 300, "d_model": 64, "d_ff": 96})
    path = write_gguf(name, tmp_path / "small.gguf", "Q8_0")
    held = [tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert {tensor.tensor_type.name for tensor in held} == {"F32", "Q8_0"}
    core, formats = core_model_and_formats(str(path), None)
    assert n_matrix_bytes(core.config, core.dtype, formats) == sum(tensor.n_bytes for tensor in held)


@pytest.mark.slow
def test_one_gguf_file_for_all_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """specdec's speculative texts are its plain ones; an engine that reads no such files says so."""
    pytest.importorskip("gguf")
    words = "--formats Q4_K_M --engines transformers"
    more = "--target embedded --greedy-only --text README.md --prompts 2 --tokens 8"
    exact = peers(f"peers-exact {words} {more}", tmp_path, monkeypatch)
    assert exact[0][1].startswith("2/2, logits 2/2; ") and "GGUF" in exact[1][1]
    ours, theirs = peers(f"peers {words} {QUICK}", tmp_path, monkeypatch)[:2]
    assert isinstance(ours[1], Spread) and 0.01 < ours[-1] < 1 and "GGUF" in theirs[1]


@pytest.mark.parametrize("name", ["Qwen3.5-0.8B", "LFM2-1.2B"])
def test_folders_of_hybrids_are_read_as_their_shapes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"n_vocab": 300, "d_model": 64, "d_ff": 96}
    monkeypatch.setitem(SHAPES, name, SHAPES[name] | small)
    config = specdec.load(write_checkpoint(name, tmp_path), "bf16").core.config
    frequencies = config.pop("inv_freq"), SHAPES[name]["inv_freq"]
    np.testing.assert_allclose(*frequencies, rtol=1e-6)
    assert {field: config[field] for field in SHAPES[name] if field != "inv_freq"} == {
        field: value for field, value in SHAPES[name].items() if field != "inv_freq"
    }
