"""Datasets and sweeps over the machines of a cluster: guarantees of `specdec.ray`, on a local cluster.

The expected records are those of one process. Tests that need no cluster are in the default tier.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from specdec.ray.blocks import write_block
from specdec.ray.generating import open_generation
from specdec.ray.jobs import Placement, described, placement_on
from specdec.ray.records import OutputFolder, records_of
from specdec.ray.scoring import open_scoring
from trained import MODELS, small_pair
from worlds.encoder_decoders import EncoderDecoder

TARGET, DRAFT = str(MODELS / "target"), str(MODELS / "draft")

PROMPTS: list[Any] = [
    "Once upon a time", "It was a dark and stormy night", [5, 77, 300], "The old house", "He said that",
    "In the morning", "A", "She had never seen",
]  # fmt: skip

# --------------------------------------------------------------------------- without a cluster


def test_actors_have_the_cpus_that_they_need() -> None:
    assert placement_on([16, 16, 40], None, None) == Placement(n_actors=4, n_threads=16, n_cpus=16)
    assert placement_on([16, 16, 40], None, 4) == Placement(n_actors=18, n_threads=4, n_cpus=4)
    assert placement_on([0, 8], 3, None) == Placement(n_actors=3, n_threads=8, n_cpus=8)
    assert placement_on([200], None, None) == Placement(n_actors=3, n_threads=64, n_cpus=64)
    assert placement_on([], 2, 4) == Placement(n_actors=2, n_threads=4, n_cpus=4)
    with pytest.raises(specdec.InputError, match=r"n_threads is 9, .* have \[8, 4\] CPUs; expected at most"):
        placement_on([8, 4, 0], None, 9)


def test_measuring_actors_are_alone_on_a_machine() -> None:
    for machines in ([8], [8, 8, 16], [4, 6, 7], [1, 1], [3, 32, 64]):
        placement = placement_on(machines, None, None, alone=True)
        assert all(2 * placement.n_cpus > n for n in machines)
        assert placement.n_actors == sum(placement.n_cpus <= n for n in machines)
        assert placement.n_threads == min(n for n in machines if placement.n_cpus <= n)


NO_RAY = SimpleNamespace(data=SimpleNamespace(Dataset=type(None)))
"""A stand-in for the package ray, sufficient for lists of records."""


def test_records_are_json() -> None:
    found = records_of(
        NO_RAY, [{"prompt": np.array([1, 2]), "n": np.int64(3)}, "text", (1, 2), np.array([4])]
    )
    assert found == [{"prompt": [1, 2], "n": 3}, "text", [1, 2], [4]]
    assert json.loads(json.dumps(found)) == found
    refused: list[tuple[Any, str]] = [
        ("Once upon a time", "data is a str"), ({"prompt": ["a"]}, "data is a dict"),
        ([], "data has no records"), (7, "data is 7"),
        (["a", {"prompt": b"x"}], "record 1['prompt'] is b'x'"),
        ([{"weight": float("nan")}], "record 0['weight'] is nan"),
    ]  # fmt: skip
    for data, message in refused:
        with pytest.raises(specdec.InputError, match=re.escape(message)):
            records_of(NO_RAY, data)


def doubled(first: int, records: list[Any]) -> list[dict[str, Any]]:
    """Work of `write_block`: double each number, reject -1."""
    if -1 in records:
        raise specdec.InputError(f"{records.index(-1)} is negative")
    return [{"index_seen": index, "double": 2 * number} for index, number in enumerate(records, first)]


def test_a_refused_record_is_named_or_kept() -> None:
    given = json.dumps({"first": 10, "records": [1, -1, 3]})
    with pytest.raises(specdec.InputError, match="record 11: InputError: 0 is negative"):
        write_block(given, doubled, "raise")
    lines = [json.loads(line) for line in write_block(given, doubled, "keep").splitlines()]
    assert lines == [
        {"index": 10, "record": 1, "index_seen": 10, "double": 2},
        {"index": 11, "record": -1, "error": "InputError: 0 is negative"},
        {"index": 12, "record": 3, "index_seen": 12, "double": 6},
    ]


def test_a_folder_keeps_to_its_run(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    asked = {"target": "a", "seed": None, "options": {"temperature": 1}}
    begun = OutputFolder.begin(out, "generate", asked, {"seed": 5})
    assert begun.run["seed"] == 5
    again = OutputFolder.begin(out, "generate", asked, {"seed": 6})
    assert again.run == begun.run
    OutputFolder.begin(out, "generate", asked | {"seed": 5}, {"seed": 6})
    zero = OutputFolder.begin(tmp_path / "zero", "generate", asked | {"seed": 0}, {"seed": 6})
    assert zero.run["seed"] == 0  # the requested one
    for changes, message in (
        ({"seed": 4}, "holds a run with seed 5, but this run has 4; expected the same run"),
        ({"target": "b"}, "holds a run with target 'a', but this run has 'b'"),
        ({"options": {"temperature": 0.5}}, "options {'temperature': 1}, but this run has"),
    ):
        with pytest.raises(specdec.InputError, match=message):
            OutputFolder.begin(out, "generate", asked | changes, {"seed": 6})
    with pytest.raises(specdec.InputError, match="holds a run of 'generate'; expected one of sweep"):
        OutputFolder.open(out, "sweep")
    with pytest.raises(specdec.InputError, match="holds no run"):
        specdec.ray.Records(tmp_path)
    with pytest.raises(specdec.InputError, match="holds files, but no run.json; expected an empty folder"):
        OutputFolder.begin(tmp_path, "generate", asked, {"seed": 6})
    (out / "run.json").write_text("[1]")
    with pytest.raises(specdec.InputError, match="run.json: expected a run file"):
        OutputFolder.begin(out, "generate", asked, {"seed": 6})


def test_descriptions_are_the_same_in_every_process(tmp_path: Path) -> None:
    class Own:
        def propose(self) -> None: ...

    target, _ = small_pair()
    assert described({"a": (1, None), 2: Path("x")}) == {"a": [1, None], "2": "x"}
    assert described(specdec.drafts.EarlyExit(2)) == repr(specdec.drafts.EarlyExit(2))
    assert re.fullmatch(r".*target \(bf16, cache bf16, prefill rows, files [0-9a-f]{32}\)", described(target))
    folder = shutil.copytree(small_pair()[1].path, tmp_path / "draft")
    before = described(specdec.load(folder))
    assert described(specdec.load(folder)) == before
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert described(specdec.load(folder)) != before  # other weights under one path
    for value in (Own(), test_records_are_json, target, specdec.Sampling(temperature=0.5)):
        assert " at 0x" not in described(value)


OPTIONS: list[dict[str, Any]] = [
    {"temperature": -1.0}, {"on_error": "skip"}, {"seed": -1}, {"gamma": "auto", "temperature": 1.0},
    {"gamma": "auto", "lenience": 0.5}, {"gamma": specdec.AdaptiveGamma()}, {"prompt_cache": 8},
    {"node_budget": 8}, {"logits": 8}, {"max_length": 8},
]  # fmt: skip


def test_arguments_are_checked_before_ray_starts(tmp_path: Path) -> None:
    for options in OPTIONS:
        with pytest.raises(specdec.InputError, match=next(iter(options))):
            specdec.ray.generate(TARGET, DRAFT, PROMPTS, tmp_path / "out", **options)
    with pytest.raises(specdec.InputError, match=r"prompts\[0\] is .*; expected a text or token ids"):
        specdec.ray.sweep(TARGET, {"small": DRAFT}, [{"prompt": "Once"}], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def generation(target: Any, draft: Any, *, by_seed: bool = False, start: Any = None, **options: Any) -> Any:
    """Do an actor's work in this process."""
    fields = {"column": "prompt", "chat": False, "decoder_prompt": start}
    return open_generation(target, draft, fields, options | {"n_threads": 1}, 5, by_seed, "raise")


def test_drafts_that_go_by_earlier_texts_or_times() -> None:
    """Refused if the text of a seed depends on draft tokens."""
    for made in (specdec.drafts.Ensemble(DRAFT), specdec.drafts.TokenRecycling()):
        generation(TARGET, lambda target, made=made: made)
        with pytest.raises(specdec.InputError, match="that uses earlier texts or measured times"):
            generation(TARGET, lambda target, made=made: made, by_seed=True)


def test_encoder_decoders() -> None:
    """Sources and decoder prompts; scores of texts given sources."""
    models = EncoderDecoder()
    target, sources = models.target, models.sources(5, 9, 7)
    options = {"max_new_tokens": 6, "gamma": 2, "temperature": 1.0, "ignore_eos": True}
    block = json.dumps({"first": 3, "records": sources})
    do = generation(lambda: target, lambda target: models.draft, start=[4, 8], **options)
    expected = specdec.generate(
        target, models.draft, sources, decoder_prompt=[4, 8], seed=[(5, i) for i in (3, 4, 5)], **options
    )
    assert [json.loads(line)["tokens"] for line in do(block).splitlines()] == [r.tokens for r in expected]

    rows = [{"text": [1, 2, 3 + i], "from": source} for i, source in enumerate(sources)]
    scoring = open_scoring(lambda: target, {"column": "text", "source": "from"}, {"n_threads": 1}, "raise")
    found = scoring(json.dumps({"first": 0, "records": rows})).splitlines()
    scores = target.score([row["text"] for row in rows], sources=sources)
    assert [json.loads(line)["log_probs"] for line in found] == [score.log_probs.tolist() for score in scores]


# ------------------------------------------------------------------------------- on a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two single-CPU machines, simulated by Ray's test cluster; a test may kill the second."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    started = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    machine = started.add_node(**small)
    ray.init(address=started.address, log_to_driver=False, logging_level="error")
    yield SimpleNamespace(started=started, second=machine, ray=ray)
    ray.shutdown()
    started.shutdown()


def one_process(prompts: list[Any], **options: Any) -> list[specdec.Result]:
    """Generate for the same prompts with `specdec.generate`."""
    return specdec.generate(specdec.load(TARGET), specdec.load(DRAFT), prompts, **options)


def assert_equal(records: Any, prompts: list[Any], results: list[specdec.Result]) -> None:
    """Check that every record occurs once, in order, with the result of one process."""
    assert len(records) == len(prompts) == len(results)
    for index, (record, prompt, result) in enumerate(zip(records, prompts, results, strict=True)):
        trace, tops = result.trace, [[list(pair) for pair in row] for row in result.top_logprobs]
        assert record == {
            "index": index, "record": prompt, "text": result.text, "tokens": result.tokens,
            "finish_reason": result.finish_reason, "stop": result.stop, "seed": list(result.seed),
            "n_prompt_tokens": len(result.prompt_ids), "n_calls": trace.n_calls, "n_drafted": trace.n_drafted,
            "n_accepted": trace.n_accepted, "logprobs": result.logprobs.tolist(), "top_logprobs": tops,
        }  # fmt: skip


@pytest.mark.oracle
def test_one_of_two_machines_is_killed(cluster: Any, tmp_path: Path) -> None:
    """Half-way, within a block: no record is lost or repeated, and each equals that of one process."""
    prompts, n_blocks = PROMPTS * 4, 16
    settings = {"temperature": 0.8, "max_new_tokens": 12, "gamma": 3, "seed": 11, "logprobs": 2}
    out, begun, stuck = tmp_path / "out", tmp_path / "begun", tmp_path / "stuck"
    begun.mkdir()
    second = cluster.second.node_id

    def transform(probs: Any, tokens: Any) -> Any:
        """Wait for both machines to begin; on the second one end no block once six are done."""
        import ray

        assert os.environ["SPECDEC_NUM_THREADS"] == "1"
        here = ray.get_runtime_context().get_node_id()
        (begun / here).touch()
        while len(list(begun.iterdir())) < 2:
            time.sleep(0.02)
        if here == second and len(list(out.glob("block-*"))) >= 6:
            stuck.touch()
            time.sleep(600)
        return probs

    def kill() -> None:
        while not stuck.exists():
            time.sleep(0.02)
        cluster.started.remove_node(cluster.second, allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    records = specdec.ray.generate(TARGET, DRAFT, prompts, out, block_size=2, transform=transform, **settings)
    assert stuck.exists()
    files = sorted(path.name for path in out.glob("block-*"))
    assert files == [f"block-{i:06d}.jsonl" for i in range(n_blocks)]
    assert_equal(records, prompts, one_process(prompts, **settings))
    assert records[-1] == list(records)[-1]
    assert records[3:5] == list(records)[3:5]


@pytest.mark.oracle
def test_failures_are_retried_and_an_interrupted_run_goes_on(cluster: Any, tmp_path: Path) -> None:
    """On one machine: a reason that passes, a process that ends, a record that is refused."""
    data = [{"text": prompt, "id": i} for i, prompt in enumerate(PROMPTS)]
    data[5]["text"] = [1] * 10_000
    settings = {"max_new_tokens": 4, "gamma": 2, "seed": 3}
    out, once, twice = tmp_path / "out", tmp_path / "once", tmp_path / "twice"

    def transform(probs: Any, tokens: Any) -> Any:
        if not once.exists():
            once.touch()
            raise OSError("the first call fails")
        if not twice.exists():
            twice.touch()
            os._exit(1)
        return probs

    def generate(**options: Any) -> Any:
        given = {"column": "text", "block_size": 2, "transform": transform, **settings, **options}
        return specdec.ray.generate(TARGET, DRAFT, data, out, **given)

    with pytest.raises(
        specdec.WorkerError,
        match="1 block of 4 could not be done; block-000002.jsonl: record 5: ContextLengthError: ",
    ):
        generate()
    with pytest.raises(specdec.InputError, match="lacks 1 block of 4; expected a finished run"):
        specdec.ray.Records(out)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert len(before) == 4  # three blocks and run.json
    records = generate(on_error="keep", block_size=None)
    assert {path: path.stat().st_mtime_ns for path in before} == before  # they are not repeated

    good = [i for i in range(8) if i != 5]
    assert records[5]["record"] == data[5]
    assert records[5]["error"].startswith("ContextLengthError: ") and "text" not in records[5]
    results = one_process([data[i]["text"] for i in good], **(settings | {"seed": [(3, i) for i in good]}))
    assert [records[i]["tokens"] for i in good] == [result.tokens for result in results]
    with pytest.raises(specdec.InputError, match="holds a run with seed 3, but this run has 4"):
        generate(seed=4)
    records.save(tmp_path / "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(records)
    assert records.to_dataset().count() == 8


@pytest.mark.oracle
def test_scores_are_those_of_one_process(cluster: Any, tmp_path: Path) -> None:
    """A model goes to the actors as a reference, in its own number format."""
    model = specdec.load(TARGET, "int8")
    rows = [{"question": prompt, "answer": end} for prompt in PROMPTS[:2] for end in (" and", " is")]
    out, asked = tmp_path / "out", {"column": "answer", "context": "question", "top_logprobs": 2}
    found = specdec.ray.score(model, cluster.ray.data.from_items(rows), out, block_size=3, **asked)
    assert [record["record"] for record in found] == rows
    assert list(specdec.ray.score(model, rows, out, **asked)) == list(found)  # all of it is done
    mixed = ["Once upon a time", [4, 5, 6], ("It was", " dark"), ([7, 8], [9])]
    more = specdec.ray.score(model, mixed, tmp_path / "more", block_size=4)
    pairs = [(row["question"], row["answer"]) for row in rows]
    for records, requests, k in ((found, pairs, 2), (more, mixed, 0)):
        for record, score in zip(records, model.score(requests, top_logprobs=k), strict=True):
            assert record["tokens"] == score.tokens and record["log_probs"] == score.log_probs.tolist()
            assert record["greedy"] == score.greedy.tolist() and record["is_greedy"] == score.is_greedy
            assert (record["total"], record["n_tokens"]) == (score.total, score.n_tokens)
            if k:
                tops = [[list(pair) for pair in row] for row in score.top_logprobs]
                assert record["top_logprobs"] == tops
            else:
                assert "top_logprobs" not in record


@pytest.mark.oracle
def test_a_block_that_ends_its_process_is_given_up(cluster: Any, tmp_path: Path) -> None:
    def transform(probs: Any, tokens: Any) -> Any:
        if tokens[0] == 7:
            os._exit(1)
        return probs

    data = [[8, 9], [7, 9], [6, 9]]
    message = r"1 block of 3 could not be done; block-000001.jsonl: its process ended 2 times"
    how: Any = {"max_new_tokens": 2, "transform": transform, "block_size": 1, "retries": 1}
    with pytest.raises(specdec.WorkerError, match=message):
        specdec.ray.generate(TARGET, None, data, tmp_path / "out", **how)
    files = sorted(path.name for path in (tmp_path / "out").glob("block-*"))
    assert files == ["block-000000.jsonl", "block-000002.jsonl"]
    with pytest.raises(specdec.WorkerError, match="cannot be used on machine .*CheckpointNotFound"):
        specdec.ray.generate(str(tmp_path / "nothing"), None, PROMPTS, tmp_path / "more", retries=0)


@pytest.mark.oracle
def test_a_sweep_goes_on(cluster: Any, tmp_path: Path) -> None:
    """One table of all combinations; finished cells are not measured again; alpha is that of `measure`."""
    asked: Any = {"gammas": (1, 3), "n_tokens": 8, "seed": 2}
    timing: Any = {"temperatures": (0.0, 1.0), "formats": ("bf16", "int8"), "timing": specdec.Timing(1, 4)}
    drafts = {"embedded": DRAFT, "unigram": unigram}
    out = tmp_path / "sweep"
    found = specdec.ray.sweep(TARGET, drafts, PROMPTS[:2], out, **asked, **timing)
    expected = [*product(("bf16", "int8"), ("embedded", "unigram"), (0.0, 1.0), (1, 3))]
    assert [(row.format, row.draft, row.temperature, row.gamma) for row in found.rows] == expected
    assert all(row.measured > 0 and row.c > 0 and row.n_threads == 1 and row.machine for row in found.rows)

    cells = sorted(out.glob("cell-*"))
    assert len(cells) == 8
    before = {path: path.stat().st_mtime_ns for path in cells}
    cells[3].unlink()
    assert len(specdec.ray.Sweep.load(out).rows) == 14
    again = specdec.ray.sweep(TARGET, drafts, PROMPTS[:2], out, **asked, **timing)
    changed = [path for path in cells if path.stat().st_mtime_ns != before[path]]
    assert changed == [cells[3]]
    assert [(row.format, row.draft, row.alpha) for row in again.rows] == [
        (row.format, row.draft, row.alpha) for row in found.rows
    ]
    target = specdec.load(TARGET, "int8")
    measured = specdec.measure(
        target, specdec.load(DRAFT), PROMPTS[:2], temperatures=(1.0,), leniences=(1.0,), timing=False, **asked
    )
    wanted = ("int8", "embedded", 1.0)
    row = next(row for row in found.rows if (row.format, row.draft, row.temperature) == wanted)
    assert row.alpha == measured.rows[0].alpha
    assert "16 combinations" in str(found) and "unigram" in str(found)
    assert found.best in found.rows or all(row.invalid for row in found.rows)
    with pytest.raises(specdec.InputError, match="holds a run with formats"):
        specdec.ray.sweep(TARGET, drafts, PROMPTS[:2], out, **(asked | timing | {"formats": ("f32",)}))


def unigram(target: specdec.Model) -> Any:
    """A draft that each process creates."""
    return specdec.drafts.Unigram([[5, 6, 7, 300, 300]], n_vocab=target.config["n_vocab"])
