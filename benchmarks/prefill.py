"""What multiplies the rows of a source or of a prompt: the row kernels beside OpenBLAS and tiles."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.report import Report, Spread
from benchmarks.turns import Options, progress, ratios
from specdec import _core

#: Sizes of a layer: d_model, heads, size of a head, d_ff; gated, as in T5 v1.1.
LAYERS: dict[str, tuple[int, int, int, int]] = {
    "t5-small": (512, 6, 64, 1024),
    "t5-base": (768, 12, 64, 2048),
    "t5-large": (1024, 16, 64, 2816),
    "t5-xl": (2048, 32, 64, 5120),
    "eight": (8, 1, 8, 8),  # for tests
}

MINIMUM_S = 0.02
"""A sample is so many seconds of runs."""


def prefill_options(options: Options) -> None:
    options.many("--layers", str, ["t5-small", "t5-base", "t5-large", "t5-xl"], choices=LAYERS)
    options.many("--rows", int, [16, 32, 64, 128, 256, 512, 1024, 2048])
    options.many("--dtypes", str, ["bf16", "int8"], help="formats of the row kernels beside f32")
    options.add("--depth", type=int, default=2, help="layers of the encoder")
    options.repeats(9)


def prefill(args: argparse.Namespace, report: Report) -> None:
    """A layer of an encoder, of one source of M rows, by the row kernels and by OpenBLAS.

    All take turns. Times are of a layer, attention among it; Gop/s counts the products with matrices alone.
    OpenBLAS computes in f32. OPENBLAS_CORETYPE in the environment chooses its kernel.
    """
    report.say(f"\n{_core.openblas()}; row kernels: {_core.kernels()}")
    others = [(dtype, "rows") for dtype in args.dtypes]
    others += [(dtype, "tiles") for dtype in args.dtypes if dtype != "f32"]
    engines = {("f32", "rows"), ("f32", "blas"), *others}
    columns = {"M": "d", "f32 rows ms": ".3f", "f32 blas ms": ".3f", "rows over blas": ".2f"}
    columns |= {"rows Gop/s": ".0f", "blas Gop/s": ".0f"}
    columns |= {f"{dtype} {'ms' if engine == 'rows' else engine + ' ms'}": ".3f" for dtype, engine in others}
    for layer in args.layers:
        encoders = {engine: _encoder(layer, *engine, args) for engine in sorted(engines)}
        n_weights = _weights(layer)
        table = report.table(columns, f"{layer}, {args.threads} threads")
        for m in progress(args.rows, layer):
            source = np.random.default_rng(m).integers(0, 64, m).tolist()
            times: dict[tuple[str, str], list[float]] = {engine: [] for engine in encoders}
            for _ in range(args.repeats):
                for engine, model in encoders.items():
                    times[engine].append(1e3 * _seconds(model, source, args.threads) / args.depth)
            rows, blas = times["f32", "rows"], times["f32", "blas"]
            table.row(
                m, Spread.of(rows), Spread.of(blas), ratios(rows, blas),
                *(Spread.of(2e-6 * m * n_weights / t for t in one) for one in (rows, blas)),
                *(Spread.of(times[other]) for other in others),
            )  # fmt: skip


def _seconds(model: _core.Model, source: list[int], n_threads: int) -> float:
    """Of a run."""
    begun, n = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < MINIMUM_S or n == 0:
        model.encode(source, n_threads=n_threads)
        n += 1
    return passed / n


def _weights(layer: str) -> int:
    d_model, n_head, d_head, d_ff = LAYERS[layer]
    return 4 * d_model * n_head * d_head + 3 * d_model * d_ff


def _encoder(layer: str, dtype: str, prefill: str, args: argparse.Namespace) -> _core.Model:
    """Random weights; of the decoder, which is not run, there is as little as can be."""
    d_model, n_head, d_head, d_ff = LAYERS[layer]
    block: dict[str, Any] = {
        "n_vocab": 64, "n_ctx": max(args.rows), "n_layer": args.depth, "n_head": n_head, "n_kv_head": n_head,
        "d_model": d_model, "d_head": d_head, "d_ff": d_ff, "norm": "rms", "norm_eps": 1e-6,
        "position": "none", "inv_freq": [], "activation": "gelu_tanh", "gated": True, "tied": False,
        "qkv_bias": False, "out_bias": False, "mlp_bias": False, "sliding_window": 0,
        "relative_buckets": [*range(16), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113, 128],
    }  # fmt: skip
    decoder = {"n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_head": 8, "d_ff": 8, "relative_buckets": []}
    config = block | decoder | {"encoder": block | {"shared_embedding": True}}
    rng = np.random.default_rng(0)
    tensors = (
        (name, (0.02 * rng.standard_normal(shape, np.float32)), "f32")
        for name, shape in _core.tensor_shapes(config).items()
    )
    cache_dtype = "f32" if dtype == "f32" else "bf16"
    return _core.Model(
        config, tensors, dtype=dtype, cache_dtype=cache_dtype, prefill=prefill, n_threads=args.threads
    )
