"""t(M), the time of one forward of M positions, beside the least time the machine needs for it.

    python benchmarks/bench_roofline.py
    python benchmarks/bench_roofline.py --shapes L1B --dtypes bf16 int4 --json FILE

Prints Markdown. roofline(M) = max(bytes / bandwidth, 2 M weights / peak) over the whole model: bytes are
those of all packed matrices and of the KV cache, weights the matrices' elements; bandwidth is what the
machine read right before and after each sample (for small models: reading as many bytes again and again,
which caches may hold); peak is what its multiply-add instruction reaches. The embedding table, of which a
forward reads M rows, is not counted. The values of M take turns; medians are reported, for each state of the
machine's memory by itself.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from machine import DISTURBED, NUMBER_BYTES, WEIGHT_BYTES, Job, Machine, Sample, describe, states, take_turns
from shapes import SHAPES, random_model
from specdec import _core

GOALS = {"f32": 1.25, "bf16": 1.25, "int8": 1.4, "int4": 1.4}
SAMPLE_S = 0.005  # small models run several times in a sample, so that a sample is not all starting up


def n_matrix_weights(config: dict[str, Any]) -> int:
    """Elements of the matrices that a forward reads whole."""
    shapes = _core.tensor_shapes(config)
    rows_only = {"position_embedding"} | ({"token_embedding"} if not config["tied"] else set())
    return sum(
        math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name not in rows_only
    )


def n_cache_bytes(config: dict[str, Any], n_tokens: int, cache_dtype: str) -> int:
    """Bytes of the keys and values of n_tokens."""
    per_token = 2 * config["n_layer"] * config["n_kv_head"] * config["d_head"]
    return per_token * n_tokens * NUMBER_BYTES[cache_dtype]


def forward_jobs(decoder: _core.Decoder, n_vocab: int, n_cache: int, rows: Sequence[int]) -> dict[int, Job]:
    """By M: one forward of a chain of M nodes."""
    ids = np.random.default_rng(0).integers(0, n_vocab, n_cache + max(rows)).tolist()
    if n_cache > 0:
        decoder.prefill(ids[:n_cache])

    def job(m: int) -> Job:
        tokens, parents = ids[:m], list(range(-1, m - 1))

        def run(n_calls: int) -> tuple[float, float]:
            begun, cpu_begun = time.perf_counter(), time.process_time()
            for _ in range(n_calls):
                decoder.forward(tokens, parents)
            cpu_seconds = time.process_time() - cpu_begun
            return (time.perf_counter() - begun) / n_calls, cpu_seconds / n_calls

        run(3)
        expected, _ = run(3)
        n_calls = math.ceil(SAMPLE_S / expected)

        def sample() -> tuple[float, float]:
            if expected < 4 * SAMPLE_S:
                run(1)  # the probe sent the threads to sleep and filled the caches with other things
            return run(n_calls)

        return sample

    return {m: job(m) for m in rows}


def logits_copy_s(m: int, n_vocab: int) -> float:
    """Seconds of handing [m, n_vocab] logits to Python in a new array, as each forward here does."""
    logits = np.zeros((m, n_vocab), np.float32)
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        logits.copy()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(name: str, dtype: str, machine: Machine, args: argparse.Namespace) -> dict[str, Any]:
    """All samples of a model, and what its roofline is made of."""
    config, cache_dtype = SHAPES[name], "f32" if dtype == "f32" else "bf16"
    model = random_model(name, dtype, cache_dtype, n_threads=args.threads)
    rows = range(1, args.rows + 1)
    decoder = _core.Decoder(model.core, capacity=args.cache, max_nodes=args.rows, n_threads=args.threads)
    jobs = forward_jobs(decoder, config["n_vocab"], args.cache, rows)
    machine.pin_threads()
    n_weights = n_matrix_weights(config)
    n_bytes = int(n_weights * WEIGHT_BYTES[dtype]) + n_cache_bytes(config, args.cache, cache_dtype)
    return {
        "shape": name,
        "dtype": dtype,
        "n_weights": n_weights,
        "n_bytes": n_bytes,
        "peak": machine.peak(dtype),
        "logits_copy_s": logits_copy_s(args.rows, config["n_vocab"]),
        "samples": take_turns(machine, {m: (job, n_bytes) for m, job in jobs.items()}, args.repeats),
    }


def memory_s(result: dict[str, Any], bandwidth: float) -> float:
    return result["n_bytes"] / bandwidth


def arithmetic_s(result: dict[str, Any], m: int) -> float:
    return 2 * m * result["n_weights"] / result["peak"]


def over_roofline(result: dict[str, Any], m: int, sample: Sample) -> float:
    """How many times the least time a sample took."""
    return sample.seconds / max(memory_s(result, sample.bandwidth), arithmetic_s(result, m))


def print_table(result: dict[str, Any]) -> None:
    samples = result["samples"]
    m_last = max(samples)
    print(
        f"\n## {result['shape']}, {result['dtype']}\n\n"
        f"{result['n_weights'] / 1e6:.1f} M weights in matrices, {result['n_bytes'] / 1e6:.1f} MB with the "
        f"KV cache; peak {result['peak'] / 1e9:.0f} Gop/s. "
        f"Goal: at most {GOALS[result['dtype']]} times the roofline. "
        f"Handing the logits to Python is {1e3 * result['logits_copy_s']:.3f} ms of t({m_last})."
    )
    everything = [sample for found in samples.values() for sample in found]
    disturbed = sum(sample.lost > DISTURBED for sample in everything)
    print(f"{disturbed} of {len(everything)} samples shared their cores with something else.")
    for bandwidth, is_in in states(everything):
        here = {m: [s for s in found if is_in(s)] for m, found in samples.items()}
        print(
            f"\nMemory at {bandwidth / 1e9:.0f} GB/s ({sum(map(len, here.values()))} samples):\n\n"
            "| M | t(M) ms | t(M)/t(1) | roofline ms | limit | t(M)/roofline(M) | goal |\n"
            "|---|---|---|---|---|---|---|"
        )
        for m, found in here.items():
            if not found:
                print(f"| {m} | – | – | – | – | – | – |")
                continue
            seconds = statistics.median(s.seconds for s in found)
            first = statistics.median(s.seconds for s in here[1]) if here[1] else math.nan
            ratio = statistics.median(over_roofline(result, m, s) for s in found)
            memory, arithmetic = memory_s(result, bandwidth), arithmetic_s(result, m)
            limit = "memory" if memory > arithmetic else "arithmetic"
            goal = "met" if ratio <= GOALS[result["dtype"]] else "**missed**"
            print(
                f"| {m} | {1e3 * seconds:.3f} | {seconds / first:.2f} | {1e3 * max(memory, arithmetic):.3f} "
                f"| {limit} | **{ratio:.2f}** | {goal} |"
            )


def as_json(result: dict[str, Any]) -> dict[str, Any]:
    rows = {
        m: [(s.seconds, s.bandwidth, s.lost, over_roofline(result, m, s)) for s in found]
        for m, found in result["samples"].items()
    }
    return {**result, "samples": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["paper97", "L1B"])
    parser.add_argument("--dtypes", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--rows", type=int, default=17, help="largest M")
    parser.add_argument("--cache", type=int, default=128, help="tokens in the KV cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--json", type=Path, help="write every sample: seconds, bytes/s, share lost, times the roofline"
    )
    args = parser.parse_args()

    machine = Machine(args.threads)
    heading = f"{describe()}, {args.threads} threads, KV cache of {args.cache}"
    print(heading)
    for dtype in args.dtypes:
        print(f"- {dtype}: peak {machine.peak(dtype) / 1e9:.0f} Gop/s ({machine.instruction(dtype)})")
    results = []
    for name in args.shapes:
        for dtype in args.dtypes:
            result = measure(name, dtype, machine, args)
            print_table(result)
            results.append(as_json(result))
    if args.json:
        args.json.write_text(json.dumps({"machine": heading, "results": results}, indent=1))


if __name__ == "__main__":
    main()
