"""Mixtures of experts: what a forward pass reads, and whether gamma="auto" sees it."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.machine import WEIGHT_BYTES
from benchmarks.report import Report, Spread
from benchmarks.shapes import MIXTURES, random_model
from benchmarks.turns import DTYPES, Options, median, progress, ratios
from specdec import _core
from specdec.models.model_config import ModelConfig

SHAPES = tuple(name for name in MIXTURES if name != "eight_of_experts")


def experts_options(options: Options) -> None:
    options.many("--shapes", str, SHAPES, choices=tuple(MIXTURES))
    options.many("--dtypes", str, ["int8", "int4"], choices=DTYPES)
    options.many("--rows", int, [1, 2, 3, 5, 9, 17, 33])
    options.many("--alphas", float, [0.5, 0.7, 0.85, 0.95], help="how often the draft is right")
    options.many("--gamma", int, [1, 4], help="to compare gamma auto with")
    options.add("--draft", default="L60M", help="the shape that drafts")
    options.add("--tokens", type=int, default=400, help="new tokens of a run")
    options.repeats(9)


def experts(args: argparse.Namespace, report: Report) -> None:
    """t(M) of mixtures of experts beside the bytes that M rows read; gamma="auto" beside plain decoding.

    The weights are random, so the rows of a pass choose their experts independently, which is the worst case:
    tokens of a real text share more. The draft is right after a share alpha of the tokens (`shapes.py`).
    What gamma="auto" learns is kept from turn to turn.
    """
    for shape in args.shapes:
        for dtype in args.dtypes:
            core = random_model(shape, dtype, n_threads=args.threads)
            _forwards(core, f"{shape}, {dtype}", args, report)
            _decodings(core, f"{shape}, {dtype}", args, report)


def _weights(config: dict[str, Any]) -> tuple[int, int]:
    """Elements of the matrices that every forward pass reads, and of one expert."""
    fixed = one = 0
    for name, shape in _core.tensor_shapes(config).items():
        if len(shape) == 1 or name == "token_embedding":
            continue
        if ".experts." not in name:
            fixed += math.prod(shape)
        elif name.startswith("layers.0.experts.0."):
            one += math.prod(shape)
    return fixed, one


def _forwards(core: _core.Model, title: str, args: argparse.Namespace, report: Report) -> None:
    config = core.config
    most = max(args.rows)
    ids = np.random.default_rng(0).integers(0, config["n_vocab"], 64 + most).tolist()
    decoder = _core.Decoder(core, capacity=64, max_nodes=most, n_threads=args.threads)
    decoder.prefill(ids[:64])
    seconds: dict[int, list[float]] = {m: [] for m in args.rows}
    read: dict[int, float] = {}
    for _ in progress(range(args.repeats), title):
        for m in args.rows:
            tokens, parents, times = ids[64 : 64 + m], list(range(-1, m - 1)), []
            decoder.forward(tokens, parents)
            for _ in range(3):
                before, begun = decoder.experts_read, time.perf_counter()
                decoder.forward(tokens, parents)
                times.append(time.perf_counter() - begun)
                read[m] = decoder.experts_read - before
            seconds[m].append(median(times))
    fixed, one = _weights(config)
    n_bytes = {m: (fixed + one * read[m]) * WEIGHT_BYTES[core.dtype] for m in args.rows}
    first = args.rows[0]
    columns = {
        "M": "d", "experts of a layer": ".1f", "MB read": ".0f", "bytes over those of the first": ".2f",
        "t(M) ms": ".2f", "t(M) over that of the first": ".2f", "GB/s": ".1f",
    }  # fmt: skip
    table = report.table(columns, f"{title}: one forward pass")
    for m in args.rows:
        table.row(
            m, read[m] / config["n_layer"], n_bytes[m] / 1e6, n_bytes[m] / n_bytes[first],
            Spread.of(1e3 * t for t in seconds[m]), ratios(seconds[m], seconds[first]),
            Spread.of(n_bytes[m] / t / 1e9 for t in seconds[m]),
        )  # fmt: skip


def _model(core: _core.Model, name: str) -> specdec.Model:
    return specdec.Model(core, ModelConfig.from_canonical(core.config), None, Path(name), name)


def _decodings(core: _core.Model, title: str, args: argparse.Namespace, report: Report) -> None:
    target = _model(core, "target")
    prompt = [token % core.config["n_vocab"] for token in range(16)]
    columns = {
        "alpha": ".2f", "gamma": "", "tokens/s": ".1f", "over plain decoding": ".3f",
        "tokens per run": ".2f", "experts of a layer": ".1f",
    }  # fmt: skip
    table = report.table(columns, f"{title}: decoding {args.tokens} tokens")
    for alpha in args.alphas:
        draft = _model(random_model(args.draft, core.dtype, alpha=alpha, n_threads=args.threads), "draft")
        learnt = specdec.AdaptiveGamma()
        settings: dict[str, Any] = {"plain": 0, "auto": learnt} | {str(gamma): gamma for gamma in args.gamma}
        rates: dict[str, list[float]] = {name: [] for name in settings}
        last: dict[str, specdec.Trace] = {}
        for turn in progress(range(args.repeats + 1), f"{title}, alpha {alpha:g}"):
            for name, gamma in settings.items():
                result = specdec.generate(
                    target, draft if gamma != 0 else None, prompt, gamma=gamma or 4, ignore_eos=True,
                    max_new_tokens=args.tokens, temperature=0.0, n_threads=args.threads,
                )  # fmt: skip
                if turn > 0 or args.repeats == 1:  # in the first turn gamma="auto" learns
                    rates[name].append(result.trace.tokens_per_s)
                last[name] = result.trace
        for name in settings:
            table.row(
                alpha, name, Spread.of(rates[name]), _over(rates[name], rates["plain"]),
                last[name].tokens_per_call, last[name].experts_per_call,
            )  # fmt: skip


def _over(rates: Iterable[float], plain: Iterable[float]) -> Spread:
    return Spread.of(rate / base for rate, base in zip(rates, plain, strict=True))
