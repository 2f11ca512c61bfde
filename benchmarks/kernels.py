"""Time of forward passes and of attention."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.builds import Builds
from benchmarks.interleaved import (
    DTYPES,
    Options,
    core_model_and_formats,
    median,
    progress,
    ratios,
)
from benchmarks.machine import DISTURBED, FILE_BYTES, NUMBER_BYTES, Machine, Sample, bracketed, states
from benchmarks.report import Report, Spread
from benchmarks.shapes import NARROW
from specdec import _core

SAMPLE_S = 0.005  # seconds per sample, to amortize startup


class Forwards:
    """Forward passes of M rows of one model on caches of several lengths.

    Parameters
    ----------
    model : str
        See :func:`core_model`.
    dtype, cache_dtype : str or None
        Number formats.
    lengths : list of int
        Tokens in each KV cache.
    rows : int
        The largest M.
    n_threads : int
    limits : bool
        Measure memory bandwidth with each sample.
    """

    def __init__(
        self,
        model: str,
        dtype: str | None,
        lengths: list[int],
        rows: int,
        n_threads: int,
        limits: bool = False,
        cache_dtype: str | None = None,
    ) -> None:
        core, formats = core_model_and_formats(model, dtype, cache_dtype, n_threads)
        self.config, self.dtype, self.cache_dtype = core.config, core.dtype, core.cache_dtype
        self._n_weight_bytes = n_matrix_bytes(self.config, self.dtype, formats)
        n_vocab = self.config["n_vocab"]
        self._ids = np.random.default_rng(0).integers(0, n_vocab, max(lengths) + rows).tolist()
        self._decoders = {}
        for length in lengths:
            options = {"capacity": max(length, 1), "max_nodes": rows, "n_threads": n_threads}
            decoder = self._decoders[length] = _core.Decoder(core, **options)
            if length > 0:
                decoder.prefill(self._ids[:length])
        self._n_calls: dict[tuple[int, int], int] = {}
        self._machine = None
        if limits:
            self._run(lengths[0], rows, 1)  # the core starts its threads
            self._machine = Machine(n_threads)
            self._machine.pin_threads()

    def facts(self) -> dict[str, Any]:
        """Return the quantities of the roofline."""
        machine = self._machine
        logits = np.zeros((17, self.config["n_vocab"]), np.float32)
        return {
            "dtype": self.dtype,
            "n_weights": n_matrix_weights(self.config),
            "n_layer": self.config["n_layer"],
            "width": self.config["n_head"] * self.config["d_head"],
            "n_bytes": [self.n_bytes(length) for length in self._decoders],
            "cache_bytes": [n_cache_bytes(self.config, n, self.cache_dtype) for n in self._decoders],
            "peak": machine.peak(self.dtype) if machine else math.nan,
            "cache_peaks": [machine.peak(d) if machine else math.nan for d in (self.cache_dtype, "f32")],
            "instruction": machine.instruction(self.dtype) if machine else "",
            "copy_s": median(_seconds(logits.copy) for _ in range(50)),
        }

    def n_bytes(self, length: int) -> int:
        """Return the bytes a forward pass reads: all matrices, and keys and values of `length` tokens."""
        return self._n_weight_bytes + n_cache_bytes(self.config, length, self.cache_dtype)

    def sample(self, m: int, length: int) -> list[float] | None:
        """Return (seconds, memory bytes/s, share of time lost to other processes) for a chain of M nodes.

        Without `limits` return the median seconds, NaN and NaN. None if the bandwidth changed.
        """
        if (length, m) not in self._n_calls:
            self._run(length, m, 3)
            self._n_calls[length, m] = max(1, math.ceil(SAMPLE_S / median(self._run(length, m, 3))))
        n_calls = self._n_calls[length, m]
        if self._machine is None:
            self._run(length, m, 1)
            return [median(self._run(length, m, n_calls)), math.nan, math.nan]

        def job() -> tuple[float, float]:
            if n_calls > 1:
                self._run(length, m, 1)  # wakes the threads and refills the caches after the probe
            begun, cpu = time.perf_counter(), time.process_time()
            self._run(length, m, n_calls)
            cpu = time.process_time() - cpu
            return (time.perf_counter() - begun) / n_calls, cpu / n_calls

        found = bracketed(self._machine, job, self.n_bytes(length))
        return None if found is None else [found.seconds, found.bandwidth, found.lost]

    def _run(self, length: int, m: int, n_calls: int) -> list[float]:
        forward, tokens, parents = self._decoders[length].forward, self._ids[:m], list(range(-1, m - 1))
        return [_seconds(lambda: forward(tokens, parents)) for _ in range(n_calls)]


def _seconds(function: Callable[[], object]) -> float:
    """Time a call, without freeing its result."""
    begun = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - begun
    del result
    return seconds


def n_matrix_weights(config: dict[str, Any]) -> int:
    """Count the elements of matrices that a forward pass reads completely."""
    return sum(_matrices(config).values())


def n_matrix_bytes(config: dict[str, Any], dtype: str, formats: Mapping[str, str]) -> int:
    """Return the bytes of these matrices, in `dtype` or the GGUF types in `formats`, else f32."""
    sizes, other = _matrices(config).items(), "f32" if formats else dtype
    return int(sum(n_weights * FILE_BYTES[formats.get(name, other)] for name, n_weights in sizes))


def _matrices(config: dict[str, Any]) -> dict[str, int]:
    rows_only = {"position_embedding"} | ({"token_embedding"} if not config["tied"] else set())
    shapes = _core.tensor_shapes(config).items()
    return {name: math.prod(shape) for name, shape in shapes if len(shape) == 2 and name not in rows_only}


def n_cache_bytes(config: dict[str, Any], n_tokens: int, cache_dtype: str) -> int:
    """Return the bytes of keys and values of n_tokens."""
    per_token = 2 * config["n_layer"] * config["n_kv_head"] * config["d_head"]
    return int(per_token * n_tokens * NUMBER_BYTES[cache_dtype])


# -------------------------------------------------------------------------------------------- forward


def forward_options(options: Options) -> None:
    options.many(
        "--models", str, ["target", "draft"], help="target or draft of the embedded pair, a shape, or a path"
    )
    options.many("--dtypes", str, [None], choices=DTYPES, help="default: as stored; bf16 for a shape")
    options.add("--roofline", action="store_true", help="compare with the machine's limits")
    options.add("--rows", type=int, default=17, help="largest M")
    options.add("--cache", type=int, default=128, help="tokens in the KV cache")
    options.repeats(15)
    options.against()


def forward(args: argparse.Namespace, report: Report) -> None:
    """t(M), the time of a forward pass of M rows, and t(M) / t(1).

    --roofline compares with roofline(M) = max(bytes / bandwidth, 2 M weights / peak) of the model: bytes of
    all matrices in their formats and of the KV cache, and the number of matrix elements. Bandwidth is
    measured right before and after each sample (for small models by reading the same bytes repeatedly,
    possibly from caches); peak is the measured rate of multiply-adds. Medians are then taken separately for
    each state of the machine's memory.
    """
    for model in args.models:
        for dtype in args.dtypes:
            settings = {
                "model": model, "dtype": dtype, "lengths": [args.cache], "rows": args.rows,
                "n_threads": args.threads, "limits": args.roofline,
            }  # fmt: skip
            with Builds(args.against, Forwards, **settings) as builds:
                if builds.described:
                    report.say(f"\n{builds.described}")
                _forward_table(builds, model, args, report)


def _forward_table(builds: Builds, model: str, args: argparse.Namespace, report: Report) -> None:
    facts = builds.ask(0, "facts")[0]
    model = Path(model).name
    rows = range(1, args.rows + 1)
    found: dict[int, list[list[Sample]]] = {m: [[] for _ in builds.all] for m in rows}
    for repeat in progress(range(args.repeats), f"{model} {facts['dtype']}"):
        for m in rows:
            samples = builds.ask(repeat, "sample", m=m, length=args.cache)
            if None not in samples:  # ratios need all builds
                for kept, sample in zip(found[m], samples, strict=True):
                    kept.append(Sample(*sample))
    title = f"{model}, {facts['dtype']}, cache of {args.cache}"
    if args.roofline:
        _say_limits(facts, args, [s for m in rows for s in found[m][0]], report)
    if len(builds.all) == 2:
        _compared(found, facts, title, args, report)
    elif args.roofline:
        for bandwidth, is_in in states([s for m in rows for s in found[m][0]]):
            here = {m: [s for s in found[m][0] if is_in(s)] for m in rows}
            _roofline_table(here, facts, f"{title}, memory at {bandwidth / 1e9:.0f} GB/s", bandwidth, report)
    else:
        table = report.table({"M": "d", "t(M) ms": ".3f", "t(M)/t(1)": ".2f"}, title)
        first = [s.seconds for s in found[1][0]]
        for m in rows:
            times = [s.seconds for s in found[m][0]]
            table.row(m, Spread.of(1e3 * t for t in times), ratios(times, first))


def _say_limits(
    facts: dict[str, Any], args: argparse.Namespace, samples: list[Sample], report: Report
) -> None:
    n_bytes = facts["n_bytes"][0]
    disturbed = sum(sample.lost > DISTURBED for sample in samples)
    report.say(
        f"\n{facts['n_weights'] / 1e6:.1f} M weights in matrices, {n_bytes / 1e6:.1f} MB with the KV cache; "
        f"peak {facts['peak'] / 1e9:.0f} Gop/s ({facts['instruction']}).\n"
        f"Copying the logits of 17 rows to Python takes {1e3 * facts['copy_s']:.3f} ms. "
        f"{disturbed} of {len(samples)} samples shared their cores with other processes."
    )


def over_roofline(facts: dict[str, Any], m: int, sample: Sample) -> float:
    """Return a sample's time relative to the roofline."""
    return sample.seconds / _least(facts, m, sample.bandwidth)


def _least(facts: dict[str, Any], m: int, bandwidth: float) -> float:
    return max(facts["n_bytes"][0] / bandwidth, 2 * m * facts["n_weights"] / facts["peak"])


def _roofline_table(
    found: dict[int, list[Sample]], facts: dict[str, Any], title: str, bandwidth: float, report: Report
) -> None:
    table = report.table(
        {
            "M": "d", "samples": "d", "t(M) ms": ".3f", "t(M)/t(1)": ".2f", "roofline ms": ".3f",
            "limit": "", "t(M)/roofline(M)": ".2f",
        },
        title,
    )  # fmt: skip
    first = median(s.seconds for s in found[1])
    for m, samples in found.items():
        if not samples:
            table.row(m, 0, None, None, None, "", None)
            continue
        memory = facts["n_bytes"][0] / bandwidth
        least = _least(facts, m, bandwidth)
        table.row(
            m, len(samples), Spread.of(1e3 * s.seconds for s in samples),
            median(s.seconds for s in samples) / first, 1e3 * least,
            "memory" if memory >= least else "arithmetic",
            Spread.of(over_roofline(facts, m, s) for s in samples),
        )  # fmt: skip


def _compared(
    found: dict[int, list[list[Sample]]], facts: dict[str, Any], title: str, args: argparse.Namespace,
    report: Report,
) -> None:  # fmt: skip
    columns = {"M": "d", "this build ms": ".3f", "other build ms": ".3f", "this over other": ".3f"}
    if args.roofline:
        columns |= {"this over roofline": ".2f", "other over roofline": ".2f"}
    table = report.table(columns, title)
    middles = []
    for m, samples in found.items():
        if not samples[0]:
            table.row(m, *[None] * (len(columns) - 1))
            continue
        this, other = ([s.seconds for s in one] for one in samples)
        ratio = ratios(this, other)
        middles.append(ratio.median)
        cells = [median(1e3 * t for t in this), median(1e3 * t for t in other), ratio]
        if args.roofline:
            cells += [median(over_roofline(facts, m, s) for s in one) for one in samples]
        table.row(m, *cells)
    report.say(
        f"\nthis over other, all M: median {median(middles):.3f}, {min(middles):.3f} to {max(middles):.3f}"
    )


# ------------------------------------------------------------------------------------------ attention


def attention_options(options: Options) -> None:
    options.many("--lengths", int, [128, 1024, 4096])
    options.many("--rows", int, [1, 5, 9])
    options.many("--cache-dtypes", str, ["f32", "bf16", "int8"], choices=("f32", "bf16", "int8"))
    options.repeats(15)


def attention(args: argparse.Namespace, report: Report) -> None:
    """Attention over long caches, compared with reading the cache once for all rows.

    A narrow model (eight layers, heads of 64) runs a forward pass of M rows on caches of several lengths and
    on an empty one; the difference is the attention. It is compared with the machine's limit: reading keys
    and values once, or the multiply-adds of M rows of all query heads: those with keys at the peak of the
    cache's number format, those with values at that of f32, in which they are computed.
    """
    rows, lengths = sorted({1, *args.rows}), [0, *args.lengths]
    for heads in NARROW:
        for cache_dtype in args.cache_dtypes:
            one = Forwards(heads, "f32", lengths, max(rows), args.threads, True, cache_dtype)
            facts = one.facts()
            found: dict[tuple[int, int], list[Sample]] = {(n, m): [] for n in lengths for m in rows}
            for _ in progress(range(args.repeats), f"{heads} {cache_dtype}"):
                for (length, m), kept in found.items():
                    sample = one.sample(m, length)
                    if sample is not None:
                        kept.append(Sample(*sample))
            table = report.table(
                {
                    "cache": "d", "memory GB/s": ".0f", "M": "d", "attention ms": ".3f", "t(M)/t(1)": ".2f",
                    "reading once ms": ".3f", "multiply-adds ms": ".3f", "times the greater": ".2f",
                },
                f"{heads}, {cache_dtype} cache",
            )  # fmt: skip
            nothing = {m: median(s.seconds for s in found[0, m]) for m in rows}
            for length, n_bytes in zip(lengths[1:], facts["cache_bytes"][1:], strict=True):
                for bandwidth, is_in in states([s for m in rows for s in found[length, m]]):
                    reading, first = n_bytes / bandwidth, math.nan
                    for m in rows:
                        times = [s.seconds - nothing[m] for s in found[length, m] if is_in(s)]
                        if not times:
                            continue
                        seconds = median(times)
                        first = seconds if m == 1 else first
                        products = 2 * m * length * facts["n_layer"] * facts["width"]
                        work = sum(products / peak for peak in facts["cache_peaks"])
                        least = max(reading, work)
                        table.row(
                            length, bandwidth / 1e9, m, 1e3 * seconds, seconds / first,
                            1e3 * reading, 1e3 * work, Spread.of(t / least for t in times),
                        )  # fmt: skip
