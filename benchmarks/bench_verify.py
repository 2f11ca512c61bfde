"""What verification costs: t(M) / t(1) of the target's forward, and tokens/s plain and speculative.

    python benchmarks/bench_verify.py
    python benchmarks/bench_verify.py --target PATH --draft PATH --gamma 5

Prints Markdown. Everything is measured side by side in one run: the values of M, and plain and
speculative decoding, take turns, and medians are reported, because the speed of a machine that is
shared changes within seconds. Only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import specdec
from specdec import _core

PROMPTS = (
    "Once upon a time",
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    '"My dear sir," said the old gentleman,',
    "The captain of the ship",
)


def machine() -> str:
    """Processor and kernel set, to stand beside the numbers."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        names = {key.strip(): value.strip() for key, value in fields.items()}
        name = (
            f"{names.get('model name', name)} (family {names.get('cpu family')}, model {names.get('model')})"
        )
    return f"{name}, kernels {_core.kernels()}"


def take_turns(jobs: dict[object, Callable[[], float]], repeats: int) -> dict[object, float]:
    """Median of what each job returns; one after the other, `repeats` times."""
    values: dict[object, list[float]] = {key: [] for key in jobs}
    for _ in range(repeats):
        for key, job in jobs.items():
            values[key].append(job())
    return {key: statistics.median(found) for key, found in values.items()}


def read_probe(n_bytes: int = 1 << 28) -> Callable[[], float]:
    """Seconds one thread takes to read a GiB of memory that no cache holds."""
    block = np.ones(n_bytes // 8)

    def probe() -> float:
        begun = time.perf_counter()
        block.sum()
        return (time.perf_counter() - begun) * (1 << 30) / n_bytes

    return probe


def forward_times(
    model: specdec.Model, rows: range, cache: int, n_threads: int, repeats: int
) -> dict[object, float]:
    """Median seconds of a forward of M nodes on a cache of `cache` tokens, by M."""
    decoder = _core.Decoder(model.core, capacity=cache + 1, max_nodes=max(rows), n_threads=n_threads)
    ids = np.random.default_rng(0).integers(0, model.config.n_vocab, cache + max(rows)).tolist()
    decoder.prefill(ids[:cache])

    def job(m: int) -> Callable[[], float]:
        tokens, parents = ids[:m], list(range(-1, m - 1))

        def run() -> float:
            begun = time.perf_counter()
            decoder.forward(tokens, parents)
            return time.perf_counter() - begun

        return run

    jobs = {m: job(m) for m in rows}
    take_turns(jobs, 3)  # warm caches and threads
    return take_turns(jobs, repeats)


def generation_speeds(
    target, draft, gamma: int, temperature: float, n_tokens: int, n_threads: int, repeats: int
):
    """Median tokens/s plain and speculative by the clock on the wall over all prompts, and the traces."""
    results: dict[str, list[specdec.Result]] = {"plain": [], "speculative": []}

    def job(name: str, with_draft) -> Callable[[], float]:
        def run() -> float:
            begun = time.perf_counter()
            done = [
                specdec.generate(
                    target,
                    with_draft,
                    prompt,
                    gamma=gamma,
                    max_new_tokens=n_tokens,
                    temperature=temperature,
                    seed=len(results[name]) // len(PROMPTS),
                    n_threads=n_threads,
                    ignore_eos=True,
                )
                for prompt in PROMPTS
            ]
            seconds = time.perf_counter() - begun
            results[name] += done
            return sum(len(r.tokens) for r in done) / seconds

        return run

    speeds = take_turns({"plain": job("plain", None), "speculative": job("speculative", draft)}, repeats)
    if temperature == 0:
        for plain, speculative in zip(results["plain"], results["speculative"], strict=True):
            assert plain.tokens == speculative.tokens, "greedy outputs differ"
    pairs = zip(results["speculative"], results["plain"], strict=True)
    return speeds, [speculative.trace.against(plain.trace) for speculative, plain in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--cache", type=int, default=128, help="tokens in the KV cache of the forward")
    parser.add_argument("--tokens", type=int, default=200, help="new tokens of a generation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    if (args.target is None) != (args.draft is None):
        parser.error("--target and --draft go together")
    target, draft = (
        specdec.embedded_pair() if args.target is None else map(specdec.load, (args.target, args.draft))
    )

    probe = read_probe()
    print(f"{machine()}, {args.threads} threads, one thread reads {1.074 / probe():.0f} GB/s\n")
    for name, model in (("target", target), ("draft", draft)):
        n_bytes = model.core.n_bytes / 1e6
        print(f"{name}: {model.core.n_parameters / 1e6:.2f} M parameters, {n_bytes:.1f} MB packed")
    times = {
        name: forward_times(model, range(1, 18), args.cache, args.threads, 30 * args.repeats)
        for name, model in (("target", target), ("draft", draft))
    }
    print(f"\n## t(M), cache {args.cache}\n\n| M | target ms | t(M)/t(1) | draft ms |\n|---|---|---|---|")
    for m, t in times["target"].items():
        print(f"| {m} | {1e3 * t:.3f} | {t / times['target'][1]:.2f} | {1e3 * times['draft'][m]:.3f} |")
    print(f"\nc = t_draft(1) / t_target(1) = {times['draft'][1] / times['target'][1]:.3f}")

    print(
        f"\n## {args.tokens} new tokens after each of {len(PROMPTS)} prompts\n\n"
        "| temperature | gamma | plain tokens/s | speculative tokens/s | speed-up | alpha "
        "| tokens per call | c | predicted | ideal (Theorem 3.8) |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for temperature in (0.0, 1.0):
        for gamma in args.gamma:
            speeds, traces = generation_speeds(
                target, draft, gamma, temperature, args.tokens, args.threads, args.repeats
            )
            mean = {
                figure: statistics.mean(getattr(trace, figure) for trace in traces)
                for figure in (
                    "acceptance_rate",
                    "tokens_per_call",
                    "cost_coefficient",
                    "predicted_speedup",
                    "ideal_speedup",
                )
            }
            print(
                f"| {temperature:g} | {gamma} | {speeds['plain']:.0f} | {speeds['speculative']:.0f} "
                f"| **{speeds['speculative'] / speeds['plain']:.2f}** | {mean['acceptance_rate']:.3f} "
                f"| {mean['tokens_per_call']:.2f} | {mean['cost_coefficient']:.3f} "
                f"| {mean['predicted_speedup']:.2f} | {mean['ideal_speedup']:.2f} |"
            )


if __name__ == "__main__":
    main()
