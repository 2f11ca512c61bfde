"""Decoding beside other busy processes: tokens/s by number of threads.

    python benchmarks/bench_threads.py
    python benchmarks/bench_threads.py --busy 0 2 --threads 1 2 8 --seconds 3

Prints Markdown. The numbers of busy processes (each a loop that never waits) and of threads take turns;
medians of tokens/s are reported, and their ratio to the first number of threads in the same state. The last
table shows what is left behind by one run with 64 threads: two threads before and after it. The models: the
embedded target, plain and with its draft at gamma 4, and random weights of 60M in bf16 (`shapes.py`), plain.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import specdec
from bench_verify import machine, take_turns
from shapes import random_model
from specdec import _core

PROMPT = "It was a dark and stormy night, and"
N_TOKENS = 64
Run = Callable[[int], float]
"""Tokens per second with a number of threads."""


def pair_run(draft: specdec.Model | None, target: specdec.Model, seconds: float) -> Run:
    def run(n_threads: int) -> float:
        begun, n_tokens = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begun) < seconds:
            out = specdec.generate(
                target, draft, PROMPT, gamma=4, max_new_tokens=N_TOKENS, n_threads=n_threads, ignore_eos=True
            )
            n_tokens += len(out.tokens)
        return n_tokens / elapsed

    return run


def shape_run(shape: str, dtype: str, seconds: float) -> Run:
    model = random_model(shape, dtype).core

    def run(n_threads: int) -> float:
        decoder = _core.Decoder(model, capacity=256, n_threads=n_threads)
        decoder.prefill(range(1, 65))
        begun, n_tokens = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begun) < seconds:
            decoder.forward([n_tokens % 100], [-1])
            decoder.keep([0])
            n_tokens += 1
            if decoder.n_committed == 256:
                decoder = _core.Decoder(model, capacity=256, n_threads=n_threads)
        return n_tokens / elapsed

    return run


def beside(n_busy: int, job: Callable[[], float]) -> float:
    """What `job` returns while `n_busy` processes compute."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_busy)]
    try:
        time.sleep(0.2 if n_busy else 0)
        return job()
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2], help="busy processes beside")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one sample")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shape", default="L60M")
    args = parser.parse_args()

    target, draft = specdec.embedded_pair()
    runs: dict[str, Run] = {
        "embedded target, plain": pair_run(None, target, args.seconds),
        "embedded pair, gamma 4": pair_run(draft, target, args.seconds),
        f"{args.shape} bf16, plain": shape_run(args.shape, "bf16", args.seconds),
    }
    print(f"{machine()}; samples of {args.seconds:g} s, medians of {args.repeats}\n")
    print(f"| model | busy processes | {' | '.join(f'{n} threads' for n in args.threads)} |")
    print(f"|---|---|{'---|' * len(args.threads)}")
    for name, run in runs.items():
        jobs = {
            (busy, n): lambda run=run, busy=busy, n=n: beside(busy, lambda: run(n))
            for busy in args.busy
            for n in args.threads
        }
        found = take_turns(jobs, args.repeats)
        for busy in args.busy:
            alone = found[busy, args.threads[0]]
            cells = [f"{found[busy, n]:.0f} ({found[busy, n] / alone:.2f})" for n in args.threads]
            print(f"| {name} | {busy} | {' | '.join(cells)} |", flush=True)

    print("\n| model | 2 threads | 2 threads after a run with 64 |\n|---|---|---|")
    for name, run in list(runs.items())[:2]:
        before = statistics.median(run(2) for _ in range(3))
        run(64)
        after = statistics.median(run(2) for _ in range(3))
        print(f"| {name} | {before:.0f} | {after:.0f} ({after / before:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
