"""Speed of specdec and other engines: forward passes, speculative decoding of one prompt, many prompts."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.builds import Answer, Worker
from benchmarks.interleaved import DTYPES, Options
from benchmarks.peers.engine import CACHE, CELLS
from benchmarks.peers.engines import BATCHES, ENGINES, PAIRS
from benchmarks.report import Report, Spread
from benchmarks.shapes import GGUF_TYPES, SHAPES, TIMED
from specdec import _core

PACKAGES = ("llama_cpp_python", "openvino", "openvino_genai", "transformers", "torch")
BITS = {
    **{"f32": 32, "bf16": 16, "int8": 8.5, "int4": 4.5},
    **{"Q8_0": 8.5, "Q4_0": 4.5, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.6},
    **{"Q4_K_S": 4.6, "Q4_K_M": 4.9, "Q5_K_S": 5.6, "Q5_K_M": 5.7},
}


def engine_process(engine: str, work: Path, n_threads: int) -> Worker:
    """Start the process of an engine."""
    log = work / "logs" / f"{engine}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        "OMP_NUM_THREADS": str(n_threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return Worker(sys.executable, "benchmarks.peers.worker", [engine], log, environment)


@dataclass
class Column:
    """Values of one engine per cell and repeat, or the reason why there are none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    reason: str = ""
    settings: str = ""
    cells: list[str] | None = None  # supported cells; None: all
    difference: float | None = None
    agreement: str | None = None

    def refuse(self, answer: Answer) -> bool:
        """Record the reason if the answer is a refusal, and return whether it is."""
        if "error" in answer:
            print(answer["error"], file=sys.stderr)
            self.reason = answer["error"].strip().splitlines()[-1]
        self.reason = answer.get("unsupported", self.reason)
        return "error" in answer or "unsupported" in answer


@dataclass
class Contest:
    """Results of specdec and its peers on one task, with specdec's values in each peer's repeats."""

    columns: dict[str, Column]
    paired: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def best(self, cell: str, higher_is_better: bool, setting: str = "specdec") -> tuple[str, Spread] | None:
        """Return the fastest peer and specdec's speed relative to it, by repeat; None without a peer.

        `setting` is the column of specdec; with groups of peers, only the first is in the repeats of every
        peer.
        """
        found = {}
        for peer, ours in self.paired.items():
            if peer.startswith("specdec"):  # another setting of specdec
                continue
            if setting != "specdec":
                ours = self.columns[setting].values
            pairs = list(zip(ours.get(cell, []), self.columns[peer].values.get(cell, []), strict=False))
            if pairs and not self.columns[peer].reason:  # engines may fail midway
                found[peer] = Spread.of(a / b if higher_is_better else b / a for a, b in pairs)
        peer = min(found, key=lambda name: found[name].median, default=None)
        return None if peer is None else (peer, found[peer])


def compete(
    engines: Sequence[str],
    load: Answer,
    requests: Callable[[int], Iterator[tuple[str, Answer]]],
    gigabytes: float,
    args: argparse.Namespace,
    check: Callable[[Worker, Column], None] = lambda worker, column: None,
) -> Contest:
    """Run engines interleaved.

    Parameters
    ----------
    engines : sequence of str
        Names, specdec first.
    load : dict
        Request that prepares and loads the models.
    requests : callable
        Yields cells and requests of a repeat.
    gigabytes : float
        Memory per engine.
    args : Namespace
        The command line.
    check : callable
        Called with each loaded engine.
    """
    contest = Contest({name: Column() for name in engines})
    able = [name for name in engines if not contest.columns[name].refuse(_prepare(name, load, args))]
    if "specdec" not in able:
        return contest
    peers, size = able[1:], max(1, int(args.memory / gigabytes) - 1)
    groups = [peers[i : i + size] for i in range(0, len(peers), size)] or [[]]
    for group in groups:
        workers = {}
        for name in ["specdec", *group]:
            worker, column = engine_process(name, args.work, args.threads), contest.columns[name]
            answer = worker.ask("load", **load)
            column.settings, column.cells = answer.get("settings", ""), answer.get("cells")
            if column.refuse(answer):
                worker.close()
            else:
                workers[name] = worker
                check(worker, column)
        paired: dict[str, list[float]] = {}
        for round_ in range(args.repeats):
            for cell, request in requests(round_):
                names = list(workers) if "specdec" in workers else []
                for name in names[round_ % len(names) :] + names[: round_ % len(names)] if names else []:
                    able_to = contest.columns[name].cells
                    if request["do"] == "time" and able_to is not None and cell not in able_to:
                        continue
                    answer = workers[name].ask(**request)
                    if contest.columns[name].refuse(answer):
                        workers.pop(name).close()
                        continue
                    values = paired if name == "specdec" else contest.columns[name].values
                    values.setdefault(cell, []).append(answer["value"])
        for worker in workers.values():
            worker.close()
        for name in group:
            contest.paired[name] = paired
        for cell, values in paired.items():
            contest.columns["specdec"].values.setdefault(cell, []).extend(values)
    return contest


#: Cached answers to prepare requests, which are slow even if all files exist.
_prepared: dict[str, Answer] = {}


def _prepare(name: str, load: Answer, args: argparse.Namespace) -> Answer:
    """Let an engine write its files, once for all numbers of sequences."""
    request = load | ({"n_at_once": 0} if "n_at_once" in load else {})
    key = json.dumps([name, request], sort_keys=True)
    if key not in _prepared:
        worker = engine_process(name, args.work, args.threads)
        _prepared[key] = worker.ask("prepare", **request)
        worker.close()
    return _prepared[key]


def installed(package: str) -> str:
    """Return the version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def n_gigabytes(shape: str, number: str) -> float:
    """Estimate the memory of a process with a model's weights."""
    weights = sum(np.prod(s, dtype=float) for s in _core.tensor_shapes(SHAPES[shape]).values())
    return 0.5 + weights * BITS[number] / 8e9


def engine_options(options: Options, engines: Mapping[str, str]) -> None:
    """Add the options of programs that run other engines."""
    options.work()
    options.many(
        "--formats", str, DTYPES, choices=(*DTYPES, *GGUF_TYPES),
        help="number formats, or GGUF types: one file for all engines that read GGUF",
    )  # fmt: skip
    options.many("--engines", str, engines, choices=engines)


def competing_options(options: Options, engines: Mapping[str, str], repeats: int) -> None:
    engine_options(options, engines)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    options.add(
        "--memory", type=float, default=0.75 * free, help="gigabytes for all engines; default: 3/4 of free"
    )
    options.repeats(repeats)


def begin(args: argparse.Namespace, report: Report) -> None:
    """Create the work folder, put specdec first, and report installed packages."""
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    args.engines = ["specdec", *(name for name in args.engines if name != "specdec")]
    report.say(f"- {', '.join(f'{package} {installed(package)}' for package in PACKAGES)}")


# ------------------------------------------------------------------------------------ forward passes


def forwards_options(options: Options) -> None:
    competing_options(options, ENGINES, 7)
    options.many("--shapes", str, TIMED, choices=SHAPES)
    options.many("--cells", str, CELLS, choices=CELLS)
    options.add("--context", type=int, default=CACHE, help="tokens in the cache of plain, t(5) and t(9)")
    options.add("--seconds", type=float, default=0.1, help="duration of each burst, at least one sample")
    options.add("--prefill-seconds", type=float, default=0.5, help="duration of prefill bursts")


def forwards(args: argparse.Namespace, report: Report) -> None:
    """Forward passes and prefill of specdec and other engines, in every number format.

    Cells: plain, a forward pass of one position on a cache of --context tokens; t(5) and t(9), one forward
    pass of 5 or 9 positions with all logits; prefill, from an empty cache to the last position's logits. All
    update the cache. In every repeat each engine runs a short burst of each cell. "off by" is the largest
    difference of eight positions' logits from specdec's in f32, in standard deviations of the logits. Ratios
    above 1 favor specdec.
    """
    begin(args, report)
    references: dict[str, Any] = {}
    for shape, number in itertools.product(args.shapes, args.formats):
        job = {"shape": shape, "format": number, "work": str(args.work), "n_threads": args.threads}
        job |= {"context": args.context}
        if shape not in references:
            worker = engine_process("specdec", args.work, args.threads)
            worker.ask("load", target={**job, "format": "f32"})
            references[shape] = np.array(worker.ask("check")["logits"])
            worker.close()

        def check(worker: Worker, column: Column, reference: Any = references[shape]) -> None:
            answer = worker.ask("check")
            if not column.refuse(answer):
                column.difference = float(
                    np.abs(np.array(answer["logits"]) - reference).max() / reference.std()
                )

        requests = []
        for cell in args.cells:
            seconds = args.prefill_seconds if cell.startswith("prefill") else args.seconds
            requests.append((cell, {"do": "time", "cell": cell, "seconds": seconds}))
        contest = compete(
            args.engines, {"target": job}, lambda _, requests=requests: iter(requests),
            n_gigabytes(shape, number), args, check,
        )  # fmt: skip
        columns = dict.fromkeys((f"{cell}, ms" for cell in args.cells), ".3f")
        table = report.table({"engine": "", **columns, "off by": ".1g"}, f"{shape}, {number}")
        for name, column in contest.columns.items():
            values = [column.values.get(cell) for cell in args.cells]
            times: list[Any] = [v and Spread.of(1e3 * seconds for seconds in v) for v in values]
            if column.reason:
                times[0] = column.reason
            table.row(name, *times, column.difference)
        best = [contest.best(cell, higher_is_better=False) for cell in args.cells]
        table.row("fastest peer", *(found and found[0] for found in best), None)
        table.row("specdec, times as fast", *(found and found[1] for found in best), None)
        for name, column in contest.columns.items():
            if name.startswith("specdec, ") and not column.reason:
                best = [contest.best(cell, higher_is_better=False, setting=name) for cell in args.cells]
                table.row(f"{name}, times as fast", *(found and found[1] for found in best), None)
        say_settings(contest.columns, report)


def say_settings(columns: Mapping[str, Column], report: Report) -> None:
    report.say()
    for name, column in columns.items():
        if column.settings:
            report.say(f"- {name}: {column.settings}.")


# ---------------------------------------------------------------------------------- whole decodings


def pairs_options(options: Options) -> None:
    competing_options(options, PAIRS, 7)
    options.many("--pairs", str, ["paper97+paper6", "L1B+L60M"])
    options.many("--gamma", int, [0, 3, 5, 7], help="0: plain decoding")
    options.add("--alpha", type=float, default=0.8, help="share of drafted tokens that is right")
    options.add("--tokens", type=int, help="per run; default 64 for L1B, else 256")


def pairs(args: argparse.Namespace, report: Report) -> None:
    """Speculative decoding of one prompt by specdec and other engines, with a known acceptance rate.

    Tokens per second without prefill. Each engine's text must equal the target's.
    """

    def request(round_: int, target: str, n_at_once: int) -> Answer:
        return {"do": "rate", "seed": 100 + round_, "n": args.tokens or (64 if target == "L1B" else 256)}

    args.at_once = [1]
    _rates(args, report, request, {})


def batches_options(options: Options) -> None:
    competing_options(options, BATCHES, 5)
    options.many("--pairs", str, ["paper97+paper6"])
    options.many("--at-once", int, [1, 4, 16, 64], metavar="N")
    options.many("--gamma", int, [0, 3], help="0: plain decoding")
    options.add("--alpha", type=float, default=0.8, help="share of drafted tokens that is right")
    options.add("--tokens", type=int, default=64, help="new ones for each prompt")


def batches(args: argparse.Namespace, report: Report) -> None:
    """Many prompts at once by specdec and other engines: total tokens per second, plain and speculative.

    New tokens per second of a whole call that continues prompts of 16 to 48 random tokens by --tokens. There
    are twice as many prompts as sequences at once (at least four), so slots are reused. Rows with a draft
    also include specdec with gamma="auto", and without the draft.
    """

    def request(round_: int, target: str, n_at_once: int) -> Answer:
        n_prompts = max(4, 2 * n_at_once)
        return {"do": "batch", "n_prompts": n_prompts, "n": args.tokens, "seed": 100 + round_}

    _rates(args, report, request, {"n_at_once": 0})


def _rates(
    args: argparse.Namespace,
    report: Report,
    request: Callable[[int, str, int], Answer],
    more: dict[str, int],
) -> None:
    """Measure tokens/s in a table per pair and format, a row per gamma and number of prompts at once."""
    begin(args, report)
    for pair, number in itertools.product(args.pairs, args.formats):
        target, draft = pair.split("+")
        job = {"format": number, "work": str(args.work), "n_threads": args.threads}
        columns: dict[str, str] = {"gamma": "d", "at once": "d", **dict.fromkeys(args.engines, ".1f")}
        columns |= {"fastest peer": "", "specdec, times as fast": ".2f"}
        if {"specdec, auto", "specdec, plain"} <= set(args.engines):
            columns["auto, times plain"] = ".2f"
        table = report.table(columns, f"{pair}, {number}, acceptance {args.alpha:g}: tokens/s")
        settings: dict[str, Column] = {}
        for gamma, n_at_once in itertools.product(args.gamma, args.at_once):
            drafted = {**job, "shape": draft, "alpha": args.alpha} if gamma else None
            load = {"target": {**job, "shape": target}, "draft": drafted, "gamma": gamma}
            load |= dict.fromkeys(more, n_at_once)

            def requests(
                round_: int, target: str = target, n: int = n_at_once
            ) -> Iterator[tuple[str, Answer]]:
                yield "rate", request(round_, target, n)

            gigabytes = 1.0 + n_gigabytes(target, number) + (n_gigabytes(draft, number) if gamma else 0)
            contest = compete(args.engines, load, requests, gigabytes, args)
            cells = [
                Spread.of(column.values["rate"])
                if "rate" in column.values and not column.reason
                else column.reason or "no"
                for column in contest.columns.values()
            ]
            peer, ratio = contest.best("rate", higher_is_better=True) or (None, None)
            row = [gamma, n_at_once, *cells, peer, ratio]
            if "auto, times plain" in columns:
                auto, plain = (contest.columns[f"specdec, {how}"].values for how in ("auto", "plain"))
                both = zip(auto.get("rate", []), plain.get("rate", []), strict=False)
                row.append(Spread.of(a / b for a, b in both) if "rate" in auto and "rate" in plain else None)
            table.row(*row)
            settings |= {name: column for name, column in contest.columns.items() if column.settings}
        say_settings(settings, report)
        _say_best(table.rows, args.engines, report)


def _say_best(rows: list[tuple[Any, ...]], engines: list[str], report: Report) -> None:
    """Report each engine's fastest setting."""
    for i, name in enumerate(engines, start=2):
        done = [row for row in rows if isinstance(row[i], Spread)]
        if done:
            gamma, n, rate = (best := max(done, key=lambda row: row[i].median))[0], best[1], best[i].median
            report.say(f"- {name}: at best {rate:.1f} tokens/s, with gamma {gamma}, {n} at once.")
