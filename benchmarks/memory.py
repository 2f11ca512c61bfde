"""Drafts that remember: the same requests again, and with small changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import specdec
from benchmarks.report import Report, Speedup
from benchmarks.turns import Options, load_pair
from specdec import drafts as ways

TASKS = (
    "The {} was sitting at the window when",
    "In the year 1815 the {} came to",
    "My father, who was a {}, said",
    "There was once a {} who lived",
)
REQUESTS: dict[str, tuple[str, ...]] = {
    "first": ("captain", "doctor"),
    "the same again": ("captain", "doctor"),
    "with a change": ("farmer", "teacher"),
    "changed back": ("doctor", "captain"),
}
"""Requests of each turn: the tasks, with each of these words in them."""

Make = Callable[[specdec.Model], Any]

DRAFTS: dict[str, Make] = {
    "model": lambda small: small,
    "ContextCopy": lambda small: ways.ContextCopy(),
    "SuffixMemory": lambda small: ways.SuffixMemory(),
    "TokenRecycling": lambda small: ways.TokenRecycling(),
    "Ensemble": lambda small: ways.Ensemble(ways.SuffixMemory(), small),
}
"""From the pair's draft to the draft that is tried: a new one that remembers nothing yet."""


def memory_options(options: Options) -> None:
    options.pair()
    options.many("--drafts", str, DRAFTS, choices=DRAFTS, metavar="NAME", help=", ".join(DRAFTS))
    options.many("--temperature", float, [0.0, 1.0])
    options.add("--tokens", type=int, default=150)
    options.add("--auto", action="store_true", help='gamma="auto"; else each draft\'s own gamma')
    options.repeats(3)


def memory(args: argparse.Namespace, report: Report) -> None:
    """What drafts bring that remember earlier requests, turn by turn.

    A turn is eight requests, one call each: four tasks with two words in them. The turns come one after the
    other with the same draft, which remembers from call to call: first requests, the same requests again,
    requests with another word, and the first ones once more. Plain decoding and the draft take turns, request
    by request; time is by the clock on the wall, without the prompts. Each repetition begins with a draft
    that remembers nothing. At temperature 0 a repeated request has the same output; above, every request has
    a seed of its own.
    """
    target, small = load_pair(args.target, args.draft, args.dtype)
    columns = {"draft": "", "T": "g", "requests": "", "tokens per run": ".2f", "measured speed-up": ".2f"}
    table = report.table(columns)
    options = {"max_new_tokens": args.tokens, "ignore_eos": True, "n_threads": args.threads}
    for name in args.drafts:
        for temperature in args.temperature:
            speeds: dict[str, list[float]] = {turn: [] for turn in REQUESTS}
            tokens: dict[str, list[float]] = {turn: [] for turn in REQUESTS}
            for repeat in range(args.repeats):
                draft = DRAFTS[name](small)
                for number, (turn, words) in enumerate(REQUESTS.items()):
                    plain_s = draft_s = n_tokens = n_calls = 0.0
                    for i, prompt in enumerate(task.format(word) for task in TASKS for word in words):
                        how = options | {"temperature": temperature, "seed": [(repeat, number * 100 + i)]}
                        plain = specdec.generate(target, None, prompt, **how)
                        run = specdec.generate(
                            target, draft, prompt, gamma="auto" if args.auto else None, **how
                        )
                        if temperature == 0.0 and run.tokens != plain.tokens:
                            raise RuntimeError(f"{name}: the output is not that of plain decoding")
                        plain_s += plain.trace.total_s
                        draft_s += run.trace.total_s
                        n_tokens += run.trace.n_tokens
                        n_calls += run.trace.n_calls
                    speeds[turn].append(plain_s / draft_s)
                    tokens[turn].append(n_tokens / n_calls)
            for turn in REQUESTS:
                speedup = Speedup.over(speeds[turn], tokens[turn])
                table.row(name, temperature, turn, speedup.tokens_per_run, speedup)
