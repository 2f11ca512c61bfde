"""Program: scripts, texts that a draft of another vocabulary knows little of, by gamma="auto"."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec
from benchmarks.report import Report, Spread
from benchmarks.turns import Options, median, progress, ratios, take_turns
from specdec import drafts

WAYS = ("intersection", "text", "auto")
SCRIPTS = {
    "Latin": "The quick brown fox, 1234 times, isn't here.\n\nIt is.",
    "Cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Chinese": "敏捷的棕色狐狸跳过了懒狗。",
    "Japanese": "いろはにほへと ちりぬるを。",
    "Korean": "키스의 고유조건은 입술끼리 만나야 하고",
    "Devanagari": "ऋषियों को सताने वाले दुष्ट राक्षसों",
    "Arabic": "نص حكيم له سر قاطع وذو شأن عظيم",
    "Hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "Thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 🇫🇷!",
    "code": 'def f(x):\n    return {"a": [x ** 2 for _ in range(3)]}\n\n\t# ok',
}


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def scripts_options(options: Options) -> None:
    options.many("--drafts", Path, [], metavar="PATH", help="of drafts; a .bin has its tok*.bin beside it")
    options.many("--temperature", float, [0.0])
    options.many("--ways", str, WAYS, choices=WAYS)
    options.add("--tokens", type=int, default=200, help="new tokens of a text")
    options.add(
        "--clock", choices=CLOCKS, default="wall", help="processor: of one thread, without other processes"
    )
    options.repeats(5)


def scripts(args: argparse.Namespace, report: Report) -> None:
    """gamma="auto" beside plain decoding: the embedded target, drafts of other vocabularies, ten scripts.

    Plain decoding and all ways take turns on each text. What was learnt of a text before is kept, as in any
    process. Drafting: its share of the time of a run, seconds of the draft and seconds that rounds with its
    guesses took longer than those without, both of the same run, so that a busy machine changes it little.
    A speed-up is the time of plain decoding over that with the draft, the reading of prompts included.
    """
    target, _ = specdec.embedded_pair()
    for path in args.drafts:
        beside: dict[str, Any] = {"tokenizer": next(path.parent.glob("tok*.bin"))} if path.suffix else {}
        small = specdec.load(path, **beside)
        made = {way: drafts.ModelDraft(small, vocabulary=way) for way in args.ways}
        for temperature in args.temperature:
            table = report.table(
                {"text": ""}
                | {f"{way}: {what}": digits for way in made for what, digits in _COLUMNS.items()},
                f"{path.stem} at temperature {temperature:g}",
            )
            totals: dict[str, list[float]] = {}
            for name, text in progress(SCRIPTS.items(), path.stem):
                row = _row(target, made, text, temperature, args, totals)
                table.row(name, *row)
            over = [ratios(totals["plain"], totals[way]) for way in made]
            table.row("all", *(cell for spread in over for cell in (None, None, spread)))


_COLUMNS = {"drafting": ".1%", "tokens per run": ".2f", "speed-up": ".3f"}


def _drafting(trace: specdec.Trace) -> float:
    """The share of a run's time that drafting took; what it brought is not counted."""
    without = [one.verify_s + one.other_s for one in trace.rounds if one.n_drafted == 0]
    usual = median(without) if without else 0.0
    more = sum(one.verify_s + one.other_s - usual for one in trace.rounds if one.n_drafted > 0)
    return (trace.draft_s + max(more, 0.0)) / trace.rounds_s


def _row(
    target: specdec.Model,
    made: dict[str, drafts.ModelDraft],
    text: str,
    temperature: float,
    args: argparse.Namespace,
    totals: dict[str, list[float]],
) -> list[float | Spread]:
    """The cells of one text; its times are added to the totals, turn by turn."""
    traces: dict[str, specdec.Trace] = {}
    shares: dict[str, list[float]] = {}

    def job(way: str, draft: drafts.ModelDraft | None) -> Callable[[], float]:
        def run() -> float:
            begun = CLOCKS[args.clock]()
            trace = specdec.generate(
                target, draft, text, max_new_tokens=args.tokens, temperature=temperature, seed=1,
                n_threads=args.threads, gamma=None if draft is None else "auto", ignore_eos=True,
            ).trace  # fmt: skip
            seconds = CLOCKS[args.clock]() - begun
            traces[way] = trace
            shares.setdefault(way, []).append(_drafting(trace))
            return seconds

        return run

    jobs = {"plain": job("plain", None)} | {way: job(way, draft) for way, draft in made.items()}
    times = take_turns(jobs, args.repeats)
    for way, seconds in times.items():
        totals[way] = [a + b for a, b in zip(totals.get(way, [0.0] * len(seconds)), seconds, strict=True)]
    cells: list[float | Spread] = []
    for way in made:
        cells += [median(shares[way]), traces[way].tokens_per_call, ratios(times["plain"], times[way])]
    return cells
