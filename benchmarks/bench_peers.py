"""specdec beside other engines: the same random weights, in one run, taking turns.

    python benchmarks/bench_peers.py --work FOLDER
    python benchmarks/bench_peers.py --work FOLDER --shapes paper6 --formats f32 int8 --rounds 9
    python benchmarks/bench_peers.py --work FOLDER --end-to-end --alpha 0.8 --gammas 0 3 5 7

Prints Markdown. The engines come with ``pip install 'specdec[bench]'``; FOLDER takes their models (30 GB for
all; they are kept). llama-cpp-python is to be built for this processor, with ``--no-binary llama-cpp-python``
and ``CMAKE_ARGS=-DGGML_NATIVE=ON``. llama.cpp's server, for the second part, is built of the same sources
into FOLDER, or named by the environment variable LLAMA_SERVER.

Each engine is a process of its own, which holds one model at a time and is stopped (SIGSTOP) while another
works. In every round each engine has a short burst of each cell; a cell shows the median over rounds, and a
ratio is the median of the rounds' ratios, because the speed of a shared machine changes within seconds. When
the models do not fit in memory together (--memory), the peers come in groups, specdec among each.

Cells: *plain*, tokens/s of forwards of one position on a cache of 128; *t(5)* and *t(9)*, one forward of 5 or
9 positions there, all logits; *prefill*, from an empty cache to the last position's logits. The last column
says how far eight positions' logits are from specdec's in f32, in standard deviations of the logits.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bench_verify import machine, read_probe
from peers import ENGINES, PAIRS
from peers.engine import CELLS, FORMATS
from shapes import DOUBTFUL, SHAPES
from specdec import _core

PACKAGES = (
    "llama_cpp_python",
    "openvino",
    "openvino_genai",
    "onnxruntime_genai",
    "transformers",
    "torch",
    "ctranslate2",
)
BITS = {"f32": 32, "bf16": 16, "int8": 8.5, "int4": 4.5}
Answer = dict[str, Any]


class Worker:
    """An engine's process (see peers/worker.py), stopped but while it answers.

    Parameters
    ----------
    engine : str
    work : Path
        Where its log goes.
    n_threads : int
    """

    def __init__(self, engine: str, work: Path, n_threads: int) -> None:
        self.engine = engine
        self.log = work / "logs" / f"{engine}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        here = str(Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": str(n_threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peers.worker", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            env={**environment, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            preexec_fn=os.setpgrp,  # a group of its own: its children stop and end with it
        )
        atexit.register(self.close)

    def ask(self, do: str, **request: Any) -> Answer:
        """Send a request and wait for the answer."""
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            return {"error": f"its process ended with status {self.process.wait()}, see {self.log}"}
        os.killpg(self.process.pid, signal.SIGSTOP)
        return json.loads(answer)

    def close(self) -> None:
        """End it and its children."""
        atexit.unregister(self.close)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Column:
    """What one engine did: a value per cell and round, or why there is none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    reason: str = ""
    settings: str = ""
    difference: float | None = None

    def refuse(self, answer: Answer) -> bool:
        """Note why, if the answer says that it cannot."""
        if "error" in answer:
            print(answer["error"], file=sys.stderr)
            self.reason = answer["error"].strip().splitlines()[-1]
        self.reason = answer.get("unsupported", self.reason)
        return "error" in answer or "unsupported" in answer


@dataclass
class Contest:
    """specdec and its peers on one thing to do; for each peer, specdec's values in the peer's rounds."""

    columns: dict[str, Column]
    beside: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def ratio(self, peer: str, cell: str, higher_is_better: bool) -> float:
        """How many times as fast as a peer specdec is: the median over rounds."""
        rounds = zip(
            self.beside[peer][cell], self.columns[peer].values[cell], strict=False
        )  # one may end early
        return statistics.median(
            ours / theirs if higher_is_better else theirs / ours for ours, theirs in rounds
        )


def compete(
    engines: list[str],
    load: Answer,
    turns: Callable[[int], Iterator[tuple[str, Answer]]],
    gigabytes: float,
    args: argparse.Namespace,
    check: Callable[[Worker, Column], None] = lambda worker, column: None,
) -> Contest:
    """Let engines take turns.

    Parameters
    ----------
    engines : list of str
        specdec first.
    load : dict
        The request that loads, and before that prepares, the model or models.
    turns : callable
        Cells and their requests in a round.
    gigabytes : float
        Memory one engine needs.
    args : Namespace
        The command line.
    check : callable
        What else to ask an engine that has loaded.
    """
    contest = Contest({name: Column() for name in engines})
    able = []
    for name in engines:
        worker = Worker(name, args.work, args.threads)
        if not contest.columns[name].refuse(worker.ask("prepare", **load)):
            able.append(name)
        worker.close()
    if "specdec" not in able:
        return contest
    peers, size = able[1:], max(1, int(args.memory / gigabytes) - 1)
    groups = [peers[i : i + size] for i in range(0, len(peers), size)] or [[]]
    for group in groups:
        workers = {}
        for name in ["specdec", *group]:
            worker, column = Worker(name, args.work, args.threads), contest.columns[name]
            answer = worker.ask("load", **load)
            column.settings = answer.get("settings", "")
            if column.refuse(answer):
                worker.close()
            else:
                workers[name] = worker
                check(worker, column)
        beside: dict[str, list[float]] = {}
        for round_ in range(args.rounds):
            for cell, request in turns(round_):
                names = list(workers) if "specdec" in workers else []
                for name in names[round_ % len(names) :] + names[: round_ % len(names)] if names else []:
                    answer = workers[name].ask(**request)
                    if contest.columns[name].refuse(answer):
                        workers.pop(name).close()
                        continue
                    values = beside if name == "specdec" else contest.columns[name].values
                    values.setdefault(cell, []).append(answer["value"])
        for worker in workers.values():
            worker.close()
        for name in group:
            contest.beside[name] = beside
        for cell, values in beside.items():
            contest.columns["specdec"].values.setdefault(cell, []).extend(values)
    return contest


def installed(package: str) -> str:
    """Its version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def available_gigabytes() -> float:
    """Memory that can be had without swapping."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024 / 1e9


def n_gigabytes(shape: str, number: str) -> float:
    """What a model's weights and a process around them take."""
    weights = sum(np.prod(s, dtype=float) for s in _core.tensor_shapes(SHAPES[shape]).values())
    return 0.5 + weights * BITS[number] / 8e9


def goal(shape: str, number: str, cell: str) -> float | None:
    """How many times as fast as the best peer of the format specdec is to be; None where nothing is set."""
    if cell == "plain":
        return 1.3 if shape == "paper6" else 1.0
    if cell == "t(5)":
        return 1.1 if number in ("f32", "bf16") else 1.4
    return 1.0 if cell.startswith("prefill") else None


def verdict(ratio: float, wanted: float | None) -> str:
    """In words."""
    if wanted is None:
        return "no goal"
    return (
        f"{wanted:.1f}: met" if ratio >= wanted else f"{wanted:.1f}: **missed by {1 - ratio / wanted:.0%}**"
    )


def compare(shape: str, number: str, args: argparse.Namespace, references: dict[str, Any]) -> dict[str, Any]:
    """Plain decoding, verification and prefill of one model in one format: print a table, return it."""
    cells = args.cells
    job = {"shape": shape, "format": number, "work": str(args.work), "n_threads": args.threads}

    def check(worker: Worker, column: Column) -> None:
        answer = worker.ask("check")
        if not column.refuse(answer):
            logits = np.array(answer["logits"])
            column.difference = float(np.abs(logits - references[shape]).max() / references[shape].std())

    if shape not in references:
        worker = Worker("specdec", args.work, args.threads)
        worker.ask("load", target={**job, "format": "f32"})
        references[shape] = np.array(worker.ask("check")["logits"])
        worker.close()
    requests = [(cell, {"do": "time", "cell": cell, "seconds": args.seconds}) for cell in cells]
    contest = compete(
        args.engines, {"target": job}, lambda round_: iter(requests), n_gigabytes(shape, number), args, check
    )

    print(f"\n### {shape}, {number}\n")
    print(
        "| engine |", " | ".join(f"{c}, {'tokens/s' if c == 'plain' else 'ms'}" for c in cells), "| off by |"
    )
    print("|---" * (len(cells) + 2) + "|")
    found: dict[str, Any] = {"shape": shape, "format": number, "cells": {}, "engines": {}}
    for name, column in contest.columns.items():
        medians = {cell: statistics.median(values) for cell, values in column.values.items()}
        found["engines"][name] = {"seconds": medians, "reason": column.reason, "off": column.difference}
        texts = [
            "–"
            if c not in medians
            else f"{1 / medians[c]:,.1f}"
            if c == "plain"
            else f"{1e3 * medians[c]:,.2f}"
            for c in cells
        ]
        if column.reason:
            texts[0] = column.reason.replace("|", "\\|")
        off = "" if column.difference is None else f"{column.difference:.1g}"
        print(f"| {name} |", " | ".join(texts), f"| {off} |")
    ratios, goals = [], []
    for cell in cells:
        peers = [name for name in contest.beside if cell in contest.columns[name].values]
        if not peers or contest.columns["specdec"].reason:
            ratios.append("no peer")
            goals.append("")
            continue
        best = {name: contest.ratio(name, cell, higher_is_better=False) for name in peers}
        peer = min(best, key=best.__getitem__)
        wanted = goal(shape, number, cell)
        found["cells"][cell] = {"peer": peer, "ratio": best[peer], "goal": wanted, "ratios": best}
        ratios.append(f"**{best[peer]:.2f}** ({peer})")
        goals.append(verdict(best[peer], wanted))
    print("| *specdec, times the best peer* |", " | ".join(ratios), "| |")
    print("| *goal* |", " | ".join(goals), "| |\n")
    for name, column in contest.columns.items():
        if column.settings:
            print(f"{name}: {column.settings}.", flush=True)
    return found


def end_to_end(pair: str, number: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Speculative decoding of a pair in one format, for each gamma: print a table, return it."""
    target, draft = pair.split("+")
    job = {"format": number, "work": str(args.work), "n_threads": args.threads}
    n = args.tokens or (64 if target == "L1B" else 256)
    found = []
    print(f"\n### {pair}, {number}, acceptance {args.alpha:g}: tokens/s\n")
    print("| gamma |", " | ".join(args.pair_engines), "| specdec, times the best peer | goal |")
    print("|---" * (len(args.pair_engines) + 3) + "|")
    for gamma in args.gammas:
        drafted = {**job, "shape": draft, "alpha": args.alpha} if gamma else None
        load = {"target": {**job, "shape": target}, "draft": drafted, "gamma": gamma}
        gigabytes = n_gigabytes(target, number) + (n_gigabytes(draft, number) if gamma else 0)

        def turns(round_: int) -> Iterator[tuple[str, Answer]]:
            yield "rate", {"do": "rate", "seed": 100 + round_, "n": n}

        contest = compete(args.pair_engines, load, turns, gigabytes, args)
        rates, reasons = {}, {}
        for name, column in contest.columns.items():
            if "rate" in column.values and not column.reason:
                rates[name] = statistics.median(column.values["rate"])
            else:
                reasons[name] = column.reason or "–"
        ratios = {
            p: contest.ratio(p, "rate", higher_is_better=True)
            for p in contest.beside
            if {p, "specdec"} <= rates.keys()
        }
        peer = min(ratios, key=ratios.__getitem__, default=None)
        wanted = 1.5 if gamma else None
        texts = [f"{rates[name]:,.1f}" if name in rates else reasons[name] for name in args.pair_engines]
        last = f"**{ratios[peer]:.2f}** ({peer}) | {verdict(ratios[peer], wanted)}" if peer else "no peer | "
        print(f"| {gamma or 'plain'} |", " | ".join(texts), f"| {last} |", flush=True)
        found.append(
            {
                "pair": pair,
                "format": number,
                "gamma": gamma,
                "rates": rates,
                "reasons": reasons,
                "ratios": ratios,
            }
        )
    return found


def duel(pair: str, found: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any] | None:
    """The best of specdec's formats and gammas against llama.cpp's best, in turns; print it, return it."""
    target, draft = pair.split("+")
    n = args.tokens or (64 if target == "L1B" else 256)
    best: dict[str, dict[str, Any]] = {}
    for name in ("specdec", "llama.cpp"):
        ran = [row for row in found if row["pair"] == pair and name in row["rates"]]
        if not ran:
            return None
        best[name] = max(ran, key=lambda row: row["rates"][name])
    workers = {name: Worker(name, args.work, args.threads) for name in best}
    rates: dict[str, list[float]] = {name: [] for name in best}
    for name, row in best.items():
        job = {"format": row["format"], "work": str(args.work), "n_threads": args.threads}
        drafted = {**job, "shape": draft, "alpha": args.alpha} if row["gamma"] else None
        workers[name].ask("load", target={**job, "shape": target}, draft=drafted, gamma=row["gamma"])
    for round_, name in itertools.product(range(2 * args.rounds), best):
        rates[name].append(workers[name].ask("rate", seed=100 + round_, n=n)["value"])
    for worker in workers.values():
        worker.close()
    ratio = statistics.median(ours / theirs for ours, theirs in zip(*rates.values(), strict=True))
    said = [
        f"{name} in {row['format']}, {'gamma ' + str(row['gamma']) if row['gamma'] else 'plain'}: "
        f"{statistics.median(rates[name]):,.1f} tokens/s"
        for name, row in best.items()
    ]
    print(f"\n{pair}, best of all settings: {'; '.join(said)}.")
    print(f"Ratio **{ratio:.2f}**, goal {verdict(ratio, 2.0)}.", flush=True)
    return {"pair": pair, "ratio": ratio, **{name: row["format"] for name, row in best.items()}}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="for models; kept")
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=[s for s in SHAPES if s not in DOUBTFUL]
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each burst, at least one sample")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--memory", type=float, help="gigabytes for all engines together; default 3/4 of free"
    )
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--end-to-end", action="store_true", help="compare speculative decoding instead")
    parser.add_argument("--pairs", nargs="+", default=["paper97+paper6", "L1B+L60M"])
    parser.add_argument("--alpha", type=float, default=0.8, help="share of drafted tokens that is right")
    parser.add_argument("--gammas", nargs="+", type=int, default=[0, 3, 5, 7], help="0: plain decoding")
    parser.add_argument("--tokens", type=int, help="per run; default 64 for L1B, else 256")
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    args.engines = ["specdec", *(name for name in args.engines if name != "specdec")]
    args.pair_engines = [name for name in args.engines if name in PAIRS]
    if args.memory is None:
        args.memory = 0.75 * available_gigabytes()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that workers end too
    print("; ".join(f"{package} {installed(package)}" for package in PACKAGES) + ".")
    probe = read_probe()
    speeds = sorted(1 / probe() for _ in range(20))
    print(f"{machine()}; {args.threads} threads, {args.rounds} rounds; one thread reads")
    print(f"{speeds[0]:.0f} to {speeds[-1]:.0f} GiB/s (median {statistics.median(speeds):.0f}).")
    if args.end_to_end:
        found = [
            row
            for pair, number in itertools.product(args.pairs, args.formats)
            for row in end_to_end(pair, number, args)
        ]
        duels = [duel(pair, found, args) for pair in args.pairs]
        results: Any = {"settings": found, "duels": duels}
    else:
        references: dict[str, Any] = {}
        results = [
            compare(shape, number, args, references)
            for shape, number in itertools.product(args.shapes, args.formats)
        ]
        summarise(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def summarise(results: list[dict[str, Any]]) -> None:
    """Print how many goals were met, and the misses."""
    cells = [
        (r["shape"], r["format"], cell, c) for r in results for cell, c in r["cells"].items() if c["goal"]
    ]
    missed = [row for row in cells if row[3]["ratio"] < row[3]["goal"]]
    print(
        f"\n{len(cells) - len(missed)} of {len(cells)} goals met. Missed:\n" if missed else "\nAll goals met."
    )
    for shape, number, cell, c in missed:
        print(f"- {shape} {number} {cell}: {c['ratio']:.2f} of {c['peer']}, goal {c['goal']:.1f}")


if __name__ == "__main__":
    main()
