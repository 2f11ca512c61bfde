"""Many prompts at once: tokens per second, plain and speculative, beside other engines.

    python benchmarks/bench_batch.py --work FOLDER
    python benchmarks/bench_batch.py --work FOLDER --formats f32 --at-once 1 16 --gammas 0 3 --rounds 3

Prints Markdown. Engines, FOLDER and turns are those of `bench_peers.py`. A value is new tokens per second,
from the call to its return: prompts of 16 to 48 random tokens are read and each is continued by --tokens.
There are twice as many prompts as are decoded at once (four at least), so that places change hands. A cell
shows the median over rounds; the last column is the median of the rounds' ratios. An engine that cannot says
why.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_peers import Answer, available_gigabytes, compete, installed, n_gigabytes
from bench_verify import machine
from peers import BATCHES

FORMATS = ("f32", "bf16")
PACKAGES = ("llama_cpp_python", "openvino_genai", "transformers", "torch")


def compare(pair: str, number: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One pair in one format, every gamma and number of prompts at once: print a table, return it."""
    target, draft = pair.split("+")
    job = {"format": number, "work": str(args.work), "n_threads": args.threads}
    print(f"\n### {pair}, {number}, acceptance {args.alpha:g}: new tokens/s of all prompts together\n")
    print("| gamma | at once |", " | ".join(args.engines), "| specdec, times the best peer |")
    print("|---" * (len(args.engines) + 3) + "|")
    found, refusals, settings = [], [], {}
    for gamma, n_at_once in itertools.product(args.gammas, args.at_once):
        drafted = {**job, "shape": draft, "alpha": args.alpha} if gamma else None
        load = {
            "target": {**job, "shape": target}, "draft": drafted, "gamma": gamma, "n_at_once": n_at_once,
        }  # fmt: skip

        def turns(round_: int, n_at_once: int = n_at_once) -> Iterator[tuple[str, Answer]]:
            request = {"do": "batch", "n_prompts": max(4, 2 * n_at_once), "n": args.tokens}
            yield "rate", request | {"seed": 100 + round_}

        gigabytes = 1.0 + n_gigabytes(target, number) + (n_gigabytes(draft, number) if gamma else 0)
        contest = compete(args.engines, load, turns, gigabytes, args)
        rates, reasons = {}, {}
        for name, column in contest.columns.items():
            settings[name] = column.settings or settings.get(name, "")
            if "rate" in column.values and not column.reason:
                rates[name] = statistics.median(column.values["rate"])
            else:
                reasons[name] = column.reason or "–"
        ratios = {
            name: contest.ratio(name, "rate", higher_is_better=True)
            for name in contest.beside
            if {name, "specdec"} <= rates.keys()
        }
        peer = min(ratios, key=ratios.__getitem__, default=None)
        texts = [f"{rates[name]:,.0f}" if name in rates else "no" for name in args.engines]
        refusals += [f"{name}: {why}" for name, why in reasons.items() if f"{name}: {why}" not in refusals]
        last = f"**{ratios[peer]:.2f}** ({peer})" if peer else "no peer"
        print(f"| {gamma or 'plain'} | {n_at_once} |", " | ".join(texts), f"| {last} |", flush=True)
        found.append(
            {
                "pair": pair, "format": number, "gamma": gamma, "at_once": n_at_once, "rates": rates,
                "reasons": reasons, "ratios": ratios,
            }
        )  # fmt: skip
    print("\n" + "\n".join(f"{name}: {text}." for name, text in settings.items() if text))
    if refusals:
        print("\nNo: " + "; ".join(refusals) + ".", flush=True)
    return found


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="for models; kept")
    parser.add_argument("--pairs", nargs="+", default=["paper97+paper6"])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--engines", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 4, 16, 64], metavar="N")
    parser.add_argument("--gammas", nargs="+", type=int, default=[0, 3], help="0: plain decoding")
    parser.add_argument("--alpha", type=float, default=0.8, help="share of drafted tokens that is right")
    parser.add_argument("--tokens", type=int, default=64, help="new ones for each prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--memory", type=float, help="gigabytes for all engines together; default 3/4 of free"
    )
    parser.add_argument("--json", type=Path, help="write all numbers there")
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    args.engines = ["specdec", *(name for name in args.engines if name != "specdec")]
    if args.memory is None:
        args.memory = 0.75 * available_gigabytes()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that workers end too
    print("; ".join(f"{package} {installed(package)}" for package in PACKAGES) + ".")
    print(f"{machine()}; {args.threads} threads, {args.rounds} rounds, {args.tokens} tokens a prompt.")
    found = [
        row
        for pair, number in itertools.product(args.pairs, args.formats)
        for row in compare(pair, number, args)
    ]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
