"""Every draft that needs no training, on prose and on text that copies: acceptance, cost, speed.

    python benchmarks/bench_drafts.py
    python benchmarks/bench_drafts.py --drafts bigram context-copy --kinds code --gammas 4 8 16

Prints Markdown, for the embedded pair: a table of every (draft, kind of prompt) at temperature 0 and 1 with
alpha, c, tokens per call and the speed-up over plain decoding for the best fixed gamma, and what
`gamma="auto"` makes of it. Plain decoding and all settings of one draft take turns on the same prompts, and
medians of the repetitions count; time is by the clock on the wall, without the prompts' prefill.

Prose and lists are the target's own text. The embedded target does not copy what it is shown, so rewriting,
code and JSON are texts that it is made to write, by a transform, in the plain runs too, at temperature 0;
there the seconds of draft and target alone count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import specdec
from bench_copy import GIVEN, Text
from machine import describe
from specdec import drafts
from specdec.progress import progress_bar

PROSE = (
    "Once upon a time",
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    '"My dear sir," said the old gentleman,',
    "The captain of the ship",
)
LISTS = ("one, two, three, four, one, two,", "Monday, Tuesday, Wednesday, Thursday, Monday,")

# What the target is asked to continue, and, where it is made to write it, what it writes (bench_copy.py).
KINDS: dict[str, Sequence[tuple[str, str | None]]] = {
    "prose": [(prompt, None) for prompt in PROSE],
    "list": [(prompt, None) for prompt in LISTS],
    "rewriting": [GIVEN["rewrite a passage"]],
    "code": [GIVEN["edit code: names"], GIVEN["edit code: new lines"]],
    "JSON": [GIVEN["go on with JSON"]],
}

TABLE_PROMPTS = (
    "The sun was setting when",
    "In the year 1815",
    "My father was",
    '"I do not know," said she,',
    "There was once a king who",
    "The rain had not ceased",
)
"""What n-gram tables are made from: the target's own text after these."""


@dataclass(frozen=True)
class Draft:
    """A way to draft, and what of it is tried."""

    name: str
    make: Callable[[specdec.Model, specdec.Model], Any]
    gammas: tuple[int | None, ...] = (1, 2, 3, 4, 6, 8)
    """Fixed gammas to try; None is the draft's own number of nodes."""


def table(n: int) -> Callable[[specdec.Model, specdec.Model], Any]:
    def make(target: specdec.Model, draft: specdec.Model) -> Any:
        return drafts.Ngram.from_results(
            specdec.generate(target, None, TABLE_PROMPTS, max_new_tokens=400), target, n=n
        )

    return make


def best(target: specdec.Model, draft: specdec.Model) -> Any:
    return drafts.Best(drafts.ContextCopy(), draft)


COPIES = (2, 4, 8, 12, 16, 24)
OWN = (None,)
"""Of trees, whose size is part of the draft."""
DRAFTS = (
    Draft("model", lambda target, draft: draft),
    Draft("model, grown tree of 6", lambda target, draft: drafts.Model(draft, tree=drafts.Grown(6)), OWN),
    Draft("model, 2 chains of 3", lambda target, draft: drafts.Model(draft, tree=drafts.Chains(2)), (6,)),
    Draft(
        "model, drafted by a bigram", lambda target, draft: drafts.Model(draft, draft=table(2)(target, draft))
    ),
    Draft("random", lambda target, draft: drafts.Random(), (1, 2, 4)),
    Draft("unigram", table(1), (1, 2, 4)),
    Draft("bigram", table(2)),
    Draft("4-gram", table(4)),
    Draft("4-gram, online", lambda target, draft: drafts.OnlineNgram(table(4)(target, draft))),
    Draft("context copy", lambda target, draft: drafts.ContextCopy(), COPIES),
    Draft("input copy", lambda target, draft: drafts.InputCopy(), COPIES),
    Draft("early exit 3", lambda target, draft: drafts.EarlyExit(3), (1, 2, 4)),
    Draft("skip layers", lambda target, draft: drafts.SkipLayers(attn=(3,), mlp=(2, 3)), (1, 2, 4)),
    Draft("lookahead", lambda target, draft: drafts.Lookahead(), OWN),
    Draft("best of copy and model", best, OWN),
)


@dataclass
class Cell:
    """One draft with one gamma, on the prompts of one kind, at one temperature."""

    ratios: list[float]
    traces: list[specdec.Trace]

    @property
    def speed_up(self) -> float:
        """Over plain decoding: the median of the repetitions."""
        return statistics.median(self.ratios)

    def mean(self, figure: str) -> float:
        """Of a figure of the traces, over all runs."""
        values = [getattr(trace, figure) for trace in self.traces]
        return statistics.mean(values)


def seconds_a_token(
    target: specdec.Model, draft: Any, texts: Sequence[Text], options: dict[str, Any], gamma: Any
) -> tuple[float, list[specdec.Trace]]:
    seconds, n_tokens, traces = 0.0, 0, []
    for i, text in enumerate(texts):
        own = {**options, "seed": options["seed"] + i}
        if text.given:
            own |= {"transform": text.transform(), "max_new_tokens": len(text.output)}
        begun = time.perf_counter()
        result = specdec.generate(target, draft, text.prompt, gamma=gamma, ignore_eos=True, **own)
        trace = result.trace
        wall = time.perf_counter() - begun - trace.prefill_s
        seconds += trace.draft_s + trace.verify_s if text.given else wall
        n_tokens += len(result.tokens)
        traces.append(trace)
    return seconds / n_tokens, traces


def compare(
    target: specdec.Model,
    draft: Any,
    texts: Sequence[Text],
    gammas: Sequence[Any],
    repeats: int,
    done: Callable[[], object],
    **options: Any,
) -> dict[Any, Cell]:
    """The cells of plain decoding (0) and of all gammas, taking turns."""
    cells: dict[Any, Cell] = {gamma: Cell([], []) for gamma in (0, *gammas)}
    for repetition in range(-1, repeats):  # the first warms up, and is not counted
        times: dict[Any, float] = {}
        plain: list[specdec.Trace] = []  # gamma 0 comes first
        for gamma in cells:
            times[gamma], traces = seconds_a_token(
                target, draft, texts, options | {"seed": 1000 * (repetition + 1)}, gamma
            )
            if gamma == 0:
                plain = traces
            if repetition >= 0:
                pairs = zip(traces, plain, strict=True)
                cells[gamma].traces += [one.against(base) if gamma != 0 else one for one, base in pairs]
            done()
        if repetition >= 0:
            for gamma, cell in cells.items():
                cell.ratios.append(times[0] / times[gamma])
    return cells


def row(name: str, kind: str, temperature: float, cells: dict[Any, Cell]) -> str:
    fixed = {gamma: cell for gamma, cell in cells.items() if gamma not in (0, "auto")}
    best = max(fixed, key=lambda gamma: fixed[gamma].speed_up)
    cell, auto = fixed[best], cells["auto"]
    shown = "own" if best is None else best
    return (
        f"| {name} | {kind} | {temperature:g} | {cell.mean('acceptance_rate'):.2f} | "
        f"{cell.mean('cost_coefficient'):.3f} | {shown} | {cell.mean('tokens_per_call'):.2f} | "
        f"{cell.speed_up:.2f} | {auto.mean('tokens_per_call'):.2f} | {auto.speed_up:.2f} | "
        f"{auto.speed_up / cell.speed_up:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [draft.name for draft in DRAFTS]
    parser.add_argument("--drafts", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--gammas", nargs="+", type=int, help="instead of each draft's own list")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", help="number format of the target; by default the checkpoint's")
    arguments = parser.parse_args()

    target, small = specdec.embedded_pair()
    if arguments.dtype:
        target = specdec.load(target.path, dtype=arguments.dtype)
    print(f"{describe()}; {target}; {arguments.tokens} tokens, median of {arguments.repeats}\n")
    print(
        "| draft | text | T | alpha | c | best gamma | tokens/call | speed-up | auto: tokens/call | speed-up "
        "| auto / best |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    chosen = [draft for draft in DRAFTS if draft.name in arguments.drafts]
    n_cells = sum(len(arguments.gammas or draft.gammas) + 2 for draft in chosen)
    n_settings = sum(1 if KINDS[kind][0][1] else len(arguments.temperatures) for kind in arguments.kinds)
    n_runs = n_cells * n_settings * (arguments.repeats + 1)
    bar = progress_bar(n_runs, "run")
    try:
        for draft in chosen:
            guesser = draft.make(target, small)
            for kind in arguments.kinds:
                texts = [Text(target, prompt, output, arguments.tokens) for prompt, output in KINDS[kind]]
                for temperature in arguments.temperatures[: 1 if texts[0].given else None]:
                    cells = compare(
                        target, guesser, texts, [*(arguments.gammas or draft.gammas), "auto"],
                        arguments.repeats, lambda: bar.update(1),
                        temperature=temperature, max_new_tokens=arguments.tokens,
                    )  # fmt: skip
                    print(row(draft.name, kind, temperature, cells), flush=True)
    finally:
        bar.close()


if __name__ == "__main__":
    main()
