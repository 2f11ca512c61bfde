"""Speed of specdec beside other engines on encoder-decoders: sources, positions, texts, speculation."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.builds import Answer, Worker
from benchmarks.encoder_decoders import CHAINED, CONFIGS, TIMED
from benchmarks.peers.comparing import (
    BITS,
    Column,
    begin,
    compete,
    competing_options,
    engine_process,
    say_settings,
)
from benchmarks.peers.engines import TRANSLATORS
from benchmarks.peers.translator import CELLS
from benchmarks.report import Report, Spread
from benchmarks.turns import Options

FORMATS = ("f32", "int8")
#: Millions of parameters: what an engine needs memory for.
_SIZES = {"t5-v1.1-small": 77, "t5-v1.1-base": 248, "t5-2-layers": 9, "bart-base": 139, "opus-mt": 75}


def translators_options(options: Options) -> None:
    competing_options(options, TRANSLATORS, 7)
    options.many("--shapes", str, TIMED, choices=CONFIGS)
    options.many("--cells", str, CELLS, choices=CELLS)
    options.many("--pairs", str, ["t5-v1.1-small+t5-2-layers", "t5-v1.1-base+t5-2-layers"])
    options.many("--gamma", int, [0, 3, 5, 7], help="of the pairs; 0: plain decoding")
    options.add("--alpha", type=float, default=0.8, help="share of drafted tokens that is right")
    options.add("--tokens", type=int, default=96, help="new tokens of a run of a pair")
    options.add("--seconds", type=float, default=0.1, help="of each burst, at least one sample")


def translators(args: argparse.Namespace, report: Report) -> None:
    """Encoder-decoders of specdec, transformers and CTranslate2, with transformers' assisted generation.

    One sequence, temperature 0. Cells: plain, the time of one of 33 tokens after a source of 128; t(1) and
    t(5), one forward of the decoder of 1 or 5 positions after a source of 128 and a text of 64 tokens, all
    logits; first N, from a source of N tokens to the logits of the first token: the encoder, keys and values
    of cross-attention in all layers, one position of the decoder; encoder N, the encoder alone. In every
    round each engine has a short burst of each cell. "off by" is the largest difference, in nats, of the
    log-probabilities of 32 tokens from specdec's in f32; "text" how many of the first 32 tokens of a text are
    those of specdec in f32. Ratios above 1 are specdec's.

    Of pairs: tokens per second, without what happens before the first token; each text must be the target's.
    """
    args.formats = [number for number in args.formats if number in FORMATS]
    begin(args, report)
    for shape, number in itertools.product(args.shapes, args.formats):
        _cells(shape, number, args, report)
    for pair, number in itertools.product(args.pairs, args.formats):
        _pair(pair, number, args, report)


def _engines(number: str, args: argparse.Namespace) -> list[str]:
    """Without those that the format has not."""
    only = {"specdec, OpenBLAS": "f32", "specdec, tiles": "int8", "transformers, oneDNN": "int8"}
    return [name for name in args.engines if only.get(name, number) == number]


def _load(args: argparse.Namespace, target: str, number: str, draft: str | None, gamma: int) -> Answer:
    job = {"format": number, "work": str(args.work), "n_threads": args.threads}
    drafted = {**job, "shape": draft, "alpha": args.alpha} if draft else None
    return {"translates": True, "target": {**job, "shape": target}, "draft": drafted, "gamma": gamma}


def _gigabytes(shape: str, number: str) -> float:
    """transformers quantises a model that it has read in f32."""
    return 1.0 + _SIZES[shape] * (32 + (BITS[number] if number != "f32" else 0)) / 8e3


def _cells(shape: str, number: str, args: argparse.Namespace, report: Report) -> None:
    """A table of the cells: a row for each engine."""
    worker = engine_process("specdec", args.work, args.threads)
    loaded = worker.ask("load", **_load(args, shape, "f32", None, 0))
    reference = worker.ask("compare") if "error" not in loaded else loaded
    worker.close()
    if "error" in reference:
        raise SystemExit(reference["error"])

    def check(worker: Worker, column: Column) -> None:
        answer = worker.ask("compare")
        if not column.refuse(answer):
            differences = np.subtract(answer["log_probabilities"], reference["log_probabilities"])
            column.difference = float(np.abs(differences).max())
            equal = [a == b for a, b in zip(answer["text"], reference["text"], strict=True)]
            column.agreement = f"{sum(equal)} of {len(equal)}"

    requests = [(cell, {"do": "time", "cell": cell, "seconds": args.seconds}) for cell in args.cells]
    contest = compete(
        _engines(number, args), _load(args, shape, number, None, 0), lambda _: iter(requests),
        _gigabytes(shape, number), args, check,
    )  # fmt: skip
    table = report.table(
        {
            "engine": "",
            **dict.fromkeys((f"{cell}, ms" for cell in args.cells), ".2f"),
            "off by": ".1g",
            "text": "",
        },
        f"{shape}, {number}",
    )
    for name, column in contest.columns.items():
        values = [column.values.get(cell) for cell in args.cells]
        times: list[Any] = [v and Spread.of(1e3 * seconds for seconds in v) for v in values]
        if column.reason:
            times[0] = column.reason
        table.row(name, *times, column.difference, column.agreement)
    best = [contest.best(cell, higher_is_better=False) for cell in args.cells]
    table.row("fastest peer", *(found and found[0] for found in best), None, None)
    table.row("specdec, times as fast", *(found and found[1] for found in best), None, None)
    for name, column in contest.columns.items():
        if name.startswith("specdec, ") and not column.reason:
            best = [contest.best(cell, higher_is_better=False, setting=name) for cell in args.cells]
            table.row(f"{name}, times as fast", *(found and found[1] for found in best), None, None)
    say_settings(contest.columns, report)


def _pair(pair: str, number: str, args: argparse.Namespace, report: Report) -> None:
    """A table of tokens/s: a row for every gamma."""
    target, draft = pair.split("+")
    if target not in CHAINED or draft not in CHAINED:
        raise SystemExit(f"{pair}: a pair is of {', '.join(CHAINED)}")
    engines = [name for name in _engines(number, args) if not name.startswith("specdec, ")]
    table = report.table(
        {"gamma": "d", **dict.fromkeys(engines, ".1f"), "fastest peer": "", "specdec, times as fast": ".2f"},
        f"{pair}, {number}, acceptance {args.alpha:g}: tokens/s",
    )
    for gamma in args.gamma:
        load = _load(args, target, number, draft if gamma else None, gamma)

        def turns(round_: int) -> Iterator[tuple[str, Answer]]:
            yield "rate", {"do": "rate", "seed": 100 + round_, "n": args.tokens}

        gigabytes = _gigabytes(target, number) + (_gigabytes(draft, number) if gamma else 0)
        contest = compete(engines, load, turns, gigabytes, args)
        cells = [
            Spread.of(column.values["rate"])
            if "rate" in column.values and not column.reason
            else column.reason or "no"
            for column in contest.columns.values()
        ]
        table.row(gamma, *cells, *(contest.best("rate", higher_is_better=True) or (None, None)))
