"""Whether attention over long caches runs at the speed of reading the cache once for all rows.

    python benchmarks/bench_attention.py
    python benchmarks/bench_attention.py --lengths 128 4096 --rows 1 5 --cache-dtypes bf16

Prints Markdown. A model that is hardly more than its attention (eight layers, narrow everywhere else) runs
one forward of M nodes over caches of several lengths and over an empty one; the difference is the attention.
Beside it stands the least time the machine needs: that of reading keys and values once, or that of the
multiply-adds, at the peak of the cache's number format, of M rows of all query heads. Short caches of this
small model stay in the processor's own caches, and reading is timed there: see `Machine.bandwidth_again`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench_roofline import forward_jobs, n_cache_bytes, n_matrix_weights
from machine import DISTURBED, WEIGHT_BYTES, Job, Machine, Sample, describe, states, take_turns
from specdec import _core
from specdec.models.checkpoints import CanonicalTensor
from specdec.models.checkpoints.rotary import rotary_frequencies

#: (query heads, heads with keys and values), all of 64 numbers: as in L1B and paper97.
HEADS = {"32 heads on 4": (32, 4), "12 heads": (12, 12)}
D_HEAD = 64


def narrow_config(n_head: int, n_kv_head: int, n_ctx: int) -> dict[str, Any]:
    return {
        **{"n_vocab": 64, "n_ctx": n_ctx, "n_layer": 8, "n_head": n_head, "n_kv_head": n_kv_head},
        **{"d_model": 64, "d_head": D_HEAD, "d_ff": 64, "norm": "rms", "norm_eps": 1e-5},
        **{"position": "rotary", "inv_freq": rotary_frequencies(D_HEAD, 10_000.0), "activation": "silu"},
        **{"gated": True, "tied": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False},
        **{"sliding_window": 0},
    }


def random_tensors(config: dict[str, Any]) -> Iterator[CanonicalTensor]:
    rng = np.random.default_rng(0)
    for name, shape in _core.tensor_shapes(config).items():
        yield name, rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1), "f32"


def measure(
    config: dict[str, Any], cache_dtype: str, machine: Machine, args: argparse.Namespace
) -> dict[tuple[int, int], list[Sample]]:
    """Samples by (cache length, M), those of the empty cache too."""
    model = _core.Model(config, random_tensors(config), dtype="f32", cache_dtype=cache_dtype)
    n_weight_bytes = int(n_matrix_weights(config) * WEIGHT_BYTES["f32"])
    jobs: dict[tuple[int, int], tuple[Job, int]] = {}
    for length in (0, *args.lengths):
        decoder = _core.Decoder(
            model, capacity=max(length, 1), max_nodes=max(args.rows), n_threads=args.threads
        )
        n_bytes = n_weight_bytes + n_cache_bytes(config, length, cache_dtype)
        for m, job in forward_jobs(decoder, config["n_vocab"], length, args.rows).items():
            jobs[length, m] = job, n_bytes
    machine.pin_threads()
    return take_turns(machine, jobs, args.repeats)


def print_table(
    config: dict[str, Any], cache_dtype: str, samples: dict[tuple[int, int], list[Sample]], peak: float
) -> None:
    everything = [sample for found in samples.values() for sample in found]
    disturbed = sum(sample.lost > DISTURBED for sample in everything)
    print(
        f"{disturbed} of {len(everything)} samples shared their cores with something else.\n\n"
        "| cache | read at GB/s | M | attention ms | t(M)/t(1) | reading once ms | multiply-adds ms "
        "| times the greater |\n|---|---|---|---|---|---|---|---|"
    )
    rows = sorted({m for _, m in samples})
    nothing = {m: statistics.median(s.seconds for s in samples[0, m]) for m in rows}
    for length in sorted({length for length, _ in samples if length > 0}):
        for bandwidth, is_in in states([s for m in rows for s in samples[length, m]]):
            reading = n_cache_bytes(config, length, cache_dtype) / bandwidth
            first = math.nan
            for m in rows:
                found = [s.seconds for s in samples[length, m] if is_in(s)]
                if not found:
                    continue
                seconds = statistics.median(found) - nothing[m]
                first = seconds if m == 1 else first
                computing = 4 * m * length * config["n_layer"] * config["n_head"] * config["d_head"] / peak
                print(
                    f"| {length} | {bandwidth / 1e9:.0f} | {m} | {1e3 * seconds:.3f} | {seconds / first:.2f} "
                    f"| {1e3 * reading:.3f} | {1e3 * computing:.3f} "
                    f"| **{seconds / max(reading, computing):.2f}** |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5, 9])
    parser.add_argument("--cache-dtypes", nargs="+", choices=("f32", "bf16"), default=["f32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    args.rows = sorted({1, *args.rows})

    machine = Machine(args.threads)
    print(f"{describe()}, {args.threads} threads")
    for heads, (n_head, n_kv_head) in HEADS.items():
        config = narrow_config(n_head, n_kv_head, max(args.lengths) + max(args.rows))
        for cache_dtype in args.cache_dtypes:
            print(f"\n## {heads}, {config['n_layer']} layers, {cache_dtype} cache\n")
            print_table(
                config, cache_dtype, measure(config, cache_dtype, machine, args), machine.peak(cache_dtype)
            )


if __name__ == "__main__":
    main()
