"""The rules of verification beside each other: tokens per run of the target, and speed.

    python benchmarks/bench_rules.py
    python benchmarks/bench_rules.py --target PATH --draft PATH --temperature 0.8 --gamma 2 4 8

Prints Markdown. Every rule samples the same number of tokens after the same prompts, and they take turns; a
speed-up is the median over the turns, against plain decoding in the same turn.
"""

from __future__ import annotations

import argparse
import statistics
import time

import specdec
from machine import describe

PROMPTS = (
    "Once upon a time",
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    "The captain of the ship",
    "My dear aunt",
)
WAYS = {
    "rejection": {},
    "block": {"verify": "block"},
    "coupled": {"verify": "coupled"},
    "classical": {"verify": "classical"},
    "rejection, l = 0.5": {"lenience": 0.5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--gamma", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=150, help="new tokens after each prompt")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if (args.target is None) != (args.draft is None):
        parser.error("--target and --draft go together")
    pair = (
        specdec.embedded_pair()
        if args.target is None
        else tuple(specdec.load(path) for path in (args.target, args.draft))
    )

    def run(gamma: int, turn: int, **how: object) -> tuple[int, int, float]:
        """(tokens, runs of the target, seconds of the rounds) of all prompts."""
        n_tokens, n_calls, begun, prefill_s = 0, 0, time.perf_counter(), 0.0
        for i, prompt in enumerate(PROMPTS):
            out = specdec.generate(
                pair[0], pair[1] if gamma else None, prompt, gamma=gamma, temperature=args.temperature,
                max_new_tokens=args.tokens, seed=[(turn, i)], n_threads=args.threads, ignore_eos=True, **how,
            )  # fmt: skip
            n_tokens += len(out.tokens)
            n_calls += out.trace.n_calls
            prefill_s += out.trace.prefill_s
        return n_tokens, n_calls, time.perf_counter() - begun - prefill_s

    print(f"{describe()}, {args.threads} threads; temperature {args.temperature:g}\n")
    print("| gamma | rule | tokens per run | speed-up |\n|---|---|---|---|")
    for gamma in args.gamma:
        counts = {way: [0, 0] for way in WAYS}
        ratios: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(args.turns):
            n_plain, _, plain_s = run(0, turn)
            for way, how in WAYS.items():
                n_tokens, n_calls, seconds = run(gamma, turn, **how)
                counts[way][0] += n_tokens
                counts[way][1] += n_calls
                ratios[way].append(plain_s / n_plain * n_tokens / seconds)
        for way, (n_tokens, n_calls) in counts.items():
            print(f"| {gamma} | {way} | {n_tokens / n_calls:.2f} | {statistics.median(ratios[way]):.2f} |")


if __name__ == "__main__":
    main()
