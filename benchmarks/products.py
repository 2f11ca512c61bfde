"""Speed of matrix products with many rows, compared with the processor's peak."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from benchmarks.interleaved import Options, progress, ratios
from benchmarks.machine import WEIGHT_BYTES, Machine
from benchmarks.report import Report, Spread
from specdec import _core
from specdec.models import thresholds

#: Matrices of a layer, [n_out, n_in]: queries, keys and values; output; gate and up, or up; down.
LAYERS: dict[str, list[tuple[int, int]]] = {
    "L1B": [(2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)],
    "paper97": [(2304, 768), (768, 768), (3072, 768), (768, 3072)],
    "t5-base": [(2304, 768), (768, 768), (4096, 768), (768, 2048)],
    "eight": [(24, 8), (8, 8)],  # for tests
}

POOL_BYTES = 48 << 20
"""Bytes of matrix copies that products cycle through, as a forward pass does through the layers."""

MOST_COPIES = 64

PEAK_STEPS = 20_000
"""Rounds of multiply-adds before a product: a tenth of a millisecond."""


class ProductMethod(NamedTuple):
    """How a product is computed, and the instruction loop to compare it with."""

    dtype: str
    engine: str
    unit: str

    def __str__(self) -> str:
        return self.dtype if self.engine == "rows" else f"{self.dtype} {self.engine}"


def products_options(options: Options) -> None:
    options.many("--models", str, ["L1B", "paper97", "t5-base"], choices=LAYERS)
    options.many("--dtypes", str, list(WEIGHT_BYTES), choices=WEIGHT_BYTES)
    options.many("--rows", int, [16, 32, 64, 128, 256, 512, 2048])
    options.repeats(5)


def products(args: argparse.Namespace, report: Report) -> None:
    """Gop/s of the products of a layer with M rows: four formats, prompts in tiles, OpenBLAS.

    Needs a build with test hooks (SPECDEC_TESTING=ON). "of peak" is relative to a loop of multiply-adds in
    registers that runs for a tenth of a millisecond right before each product: floats for f32, the faster of
    floats and bf16 pairs for bf16, codes for int8 and int4 (without AMX), tiles for "tiles". Rows are
    prepared in advance. OpenBLAS computes in f32; the environment variable OPENBLAS_CORETYPE selects its
    kernel.
    """
    if not hasattr(_core, "_product_times"):
        raise SystemExit(
            "times of products need a build with test hooks: pip install . -C cmake.define.SPECDEC_TESTING=ON"
        )
    thresholds.settle()
    machine = Machine(args.threads, buffer_mib=2, probe_mib=2)
    rounded = max(("f32", "bf16"), key=machine.peak)
    units = {"f32": "f32", "bf16": rounded, "int8": "int8", "int4": "int4"}
    methods = [ProductMethod(dtype, "rows", units[dtype]) for dtype in args.dtypes]
    methods += [ProductMethod(dtype, "tiles", "tiles") for dtype in args.dtypes if dtype != "f32"]
    if "f32" in args.dtypes:
        methods.append(ProductMethod("f32", "blas", "f32"))
    report.say(f"\n{_core.openblas()}; row kernels: {_core.kernels()}")
    named = {
        method.unit: f"{machine.instruction(method.unit)} {1e-9 * machine.peak(method.unit):.0f}"
        for method in methods
    }
    report.say("Gop/s in registers, at best: " + "; ".join(f"{unit} {name}" for unit, name in named.items()))
    columns = {"M": "d"}
    for method in methods:
        columns |= {str(method): ".0f", f"{method}, of peak": ".2f"}
    if "f32" in args.dtypes:
        columns["f32 over f32 blas"] = ".2f"
    for model in args.models:
        found = {method: _times(model, method, machine, args) for method in progress(methods, model)}
        table = report.table(columns, f"{model}, {args.threads} threads")
        for i, m in enumerate(args.rows):
            n_ops = 2e-9 * m * sum(n_out * n_in for n_out, n_in in LAYERS[model])
            cells: list[Any] = []
            for method in methods:
                seconds, peak_seconds = found[method]
                cells += [Spread.of(n_ops / t for t in seconds[i]), ratios(peak_seconds[i], seconds[i])]
            if "f32" in args.dtypes:
                rows, blas = (found[ProductMethod("f32", engine, "f32")][0][i] for engine in ("rows", "blas"))
                cells.append(ratios(blas, rows))
            table.row(m, *cells)
    machine.close()


def _times(
    model: str, method: ProductMethod, machine: Machine, args: argparse.Namespace
) -> tuple[list[list[float]], list[list[float]]]:
    """Return seconds of a layer's products, and seconds at the peak, for each number of rows."""
    seconds = np.zeros((len(args.rows), args.repeats))
    at_peak = np.zeros_like(seconds)
    for n_out, n_in in LAYERS[model]:
        weights = 0.02 * np.random.default_rng(0).standard_normal((n_out, n_in), np.float32)
        peaks: list[float] = []
        found = _core._product_times(  # type: ignore[attr-defined]
            weights, dtype=method.dtype, engine=method.engine, rows=args.rows,
            n_matrices=int(np.clip(POOL_BYTES / (n_out * n_in * WEIGHT_BYTES[method.dtype]), 1, MOST_COPIES)),
            repeats=args.repeats + 1, n_threads=args.threads,
            before=lambda peaks=peaks: peaks.append(machine.rate(method.unit, PEAK_STEPS)),
        )  # fmt: skip
        rates = np.array(peaks).reshape(args.repeats + 1, len(args.rows))[1:].T
        seconds += np.array(found)[1:].T
        at_peak += 2.0 * n_out * n_in * np.array(args.rows)[:, None] / rates
    return seconds.tolist(), at_peak.tolist()
