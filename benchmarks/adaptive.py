"""gamma="auto" against every fixed gamma and plain decoding, with prefill, by draft and batch."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import specdec
from benchmarks.drafts import DRAFTS
from benchmarks.interleaved import DTYPES, PROMPTS, Options, interleave, load_pair, median, ratios
from benchmarks.report import Report
from benchmarks.texts import read_text, spread_prompts


def adaptive_options(options: Options) -> None:
    options.add("--target", help="default: the embedded pair")
    options.add("--draft")
    options.many("--formats", str, ["int8"], choices=DTYPES, help="of both models")
    options.many("--drafts", str, ["model", "random"], choices=DRAFTS, metavar="NAME", help="as in drafts")
    options.many("--batch", int, [1, 4, 16, 64])
    options.many("--temperature", float, [0.0, 1.0])
    options.many("--gamma", int, [], help="default: a list for each draft")
    options.add("--text", type=Path, help="take prompts from this text")
    options.add("--prompt", type=int, default=32, help="tokens of a prompt of --text")
    options.many("--tokens", int, [128])
    options.add("--cold", action="store_true", help="let every call start without estimates")
    options.add("--busy", type=int, default=0, help="processes that take a core each meanwhile")
    options.repeats(5)


def adaptive(args: argparse.Namespace, report: Report) -> None:
    """Whether gamma="auto" is as fast as the best fixed gamma, and never slower than plain decoding.

    Interleaved calls of `specdec.generate` on the same prompts, other prompts in every repeat, in wall clock
    time with prefill. The first call of each setting is not counted, but teaches "auto" unless --cold. The
    best gamma is chosen afterwards, plain decoding included; for `auto / best` it is chosen on the other
    repeats, because a choice on the same repeat would favor the luckiest. `rounds that draft` and `gain` are
    those of the trace of "auto" in the last repeat: the gain is what it expects over plain decoding.
    """
    figures = {"best": ".2f", "auto": ".2f", "auto / best": ".3f", "rounds that draft": ".2f", "gain": ".2f"}
    columns = {"draft": "", "format": "", "T": "g", "batch": "d", "tokens": "d", "best gamma": "", **figures}
    table = report.table(columns)
    with ExitStack() as processes:
        for _ in range(args.busy):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            processes.callback(busy.wait)
            processes.callback(busy.kill)
        for dtype in args.formats:
            target, draft = load_pair(args.target, args.draft, dtype)
            for name in args.drafts:
                made = DRAFTS[name][0](target, draft)
                gammas = args.gamma or DRAFTS[name][1]
                for temperature in args.temperature:
                    for n_batch in args.batch:
                        for n_tokens in args.tokens:
                            how = {"temperature": temperature, "max_new_tokens": n_tokens}
                            cells = _cells(args, target, made, gammas, n_batch, how)
                            table.row(name, dtype, temperature, n_batch, n_tokens, *cells)


def _cells(
    args: argparse.Namespace, target: specdec.Model, draft: Any, gammas: Any, n_batch: int, how: Any
) -> list[Any]:
    """Return the cells of a row from the best gamma on."""
    auto: Any = specdec.AdaptiveGamma()
    last: list[specdec.Result] = []
    turns = dict.fromkeys(("plain", *gammas, "auto"), 0)

    def call(gamma: Any) -> float:
        nonlocal last
        turn = turns[gamma]
        turns[gamma] += 1
        used = None if gamma == "plain" else draft
        chosen = (specdec.AdaptiveGamma() if args.cold else auto) if gamma == "auto" else gamma
        given = prompts[turn :: args.repeats + 1]
        begun = time.perf_counter()
        last = specdec.generate(
            target, used, given, gamma=None if gamma == "plain" else chosen, seed=turn, batch_size=n_batch,
            n_threads=args.threads, ignore_eos=True, **how,
        )  # fmt: skip
        return time.perf_counter() - begun

    prompts = _prompts(args, target, n_batch * (args.repeats + 1))
    seconds = interleave({gamma: lambda gamma=gamma: call(gamma) for gamma in turns}, args.repeats + 1)
    seconds = {gamma: times[1:] for gamma, times in seconds.items()}
    speedups = {gamma: ratios(seconds["plain"], times) for gamma, times in seconds.items()}

    def best_of(repeats: Iterable[int]) -> Any:
        fixed = (gamma for gamma in turns if gamma != "auto")
        return max(fixed, key=lambda gamma: median(seconds["plain"][i] / seconds[gamma][i] for i in repeats))

    repeats = range(args.repeats)
    best = best_of(repeats)
    rounds = [round_ for result in last for round_ in result.trace.rounds]
    drafting = sum(round_.n_drafted > 0 for round_ in rounds) / len(rounds)
    gain = sum(round_.gain for round_ in rounds) / len(rounds)
    rivals = [best_of([other for other in repeats if other != i] or repeats) for i in repeats]
    relative = ratios([seconds[rival][i] for i, rival in enumerate(rivals)], seconds["auto"])
    return ["own" if best is None else str(best), speedups[best], speedups["auto"], relative, drafting, gain]


def _prompts(args: argparse.Namespace, target: specdec.Model, n: int) -> list[Any]:
    """Return n prompts; texts of `PROMPTS` repeat."""
    if args.text is not None:
        return spread_prompts(read_text(args.text), target, n, args.prompt)
    return [PROMPTS[i % len(PROMPTS)] for i in range(n)]
