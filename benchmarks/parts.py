"""What the time of a forward pass goes to: products, attention, and all that is neither."""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.report import Report
from benchmarks.turns import DTYPES, Options, core_model, median, progress
from specdec import _core


def parts_options(options: Options) -> None:
    options.many("--models", str, ["target", "paper97", "L1B"], help="target, draft; a shape; a path")
    options.many("--dtypes", str, DTYPES, choices=DTYPES)
    options.many("--rows", int, [1, 5, 9, 17, 64])
    options.add("--cache", type=int, default=128, help="tokens in the KV cache")
    options.repeats(15)


def parts(args: argparse.Namespace, report: Report) -> None:
    """The time of a forward pass of M rows, divided by what the calling thread does.

    That needs a build with the test hooks (SPECDEC_TESTING=ON). A clock is read whenever the thread begins
    something else, which takes some per cent of the time of small models. Columns are microseconds, medians
    over all turns: "waiting" is for other threads at the ends of loops, "loops" what posting these takes,
    "other" all else, also handing the logits to Python; "not products" the share of a forward that is neither
    products nor logits.
    """
    if not hasattr(_core, "_profile_begin"):
        raise SystemExit(
            "parts of a forward need a build of specdec with the test hooks: "
            "pip install . -C cmake.define.SPECDEC_TESTING=ON"
        )
    for model in args.models:
        for dtype in args.dtypes:
            _table(model, dtype, args, report)


def _table(model: str, dtype: str, args: argparse.Namespace, report: Report) -> None:
    core = core_model(model, dtype, n_threads=args.threads)
    rows = max(args.rows)
    ids = np.random.default_rng(0).integers(0, core.config["n_vocab"], args.cache + rows).tolist()
    decoder = _core.Decoder(core, capacity=args.cache, max_nodes=rows, n_threads=args.threads)
    decoder.prefill(ids[: args.cache])
    samples: dict[int, dict[str, list[float]]] = {m: defaultdict(list) for m in args.rows}
    for turn in progress(range(args.repeats + 1), f"{model} {dtype}"):
        for m, found in samples.items():
            decoder.forward(ids[:m], list(range(-1, m - 1)))  # the rows before were others
            one = _sample(decoder, ids[:m])
            if turn > 0:
                for name, seconds in one.items():
                    found[name].append(1e6 * seconds)
    names = list(samples[args.rows[0]])
    columns = {"M": "d", "all": ".0f", **dict.fromkeys(names, ".1f"), "not products": ".2f"}
    table = report.table(columns, f"{model}, {dtype}, cache of {args.cache}, {args.threads} threads, us")
    for m, found in samples.items():
        each = {name: median(values) for name, values in found.items()}
        total = sum(each.values())
        table.row(m, total, *each.values(), 1 - (each["products"] + each["logits"]) / total)


def _sample(decoder: Any, tokens: list[int]) -> dict[str, float]:
    """Seconds by activity."""
    parents = list(range(-1, len(tokens) - 1))
    _core._profile_begin()  # type: ignore[attr-defined]
    try:
        decoder.forward(tokens, parents)
    finally:
        seconds: dict[str, float] = _core._profile_end()  # type: ignore[attr-defined]
    return seconds
