"""Program: vocabularies, drafts with other vocabularies: acceptance and speed, and what re-encoding costs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import specdec
from benchmarks.report import Report, Speedup
from benchmarks.shapes import random_model
from benchmarks.turns import PROMPTS, Options, median, take_turns
from specdec import _core, drafts
from specdec.drafts.translation import translation_of
from specdec.models.tokenizer.byte_tokenizer import encode_continuing

WAYS = ("same", "intersection", "text", "auto")
STEP = 3
"""Tokens of a round in the measurement of re-encoding."""


def vocabularies_options(options: Options) -> None:
    options.many(
        "--drafts", Path, [], metavar="FOLDER", help="of drafts, as training/train_vocabularies.py writes"
    )
    options.many("--temperature", float, [0.0, 1.0])
    options.add("--gamma", type=int, default=4)
    options.add("--tokens", type=int, default=100, help="new tokens of a text")
    options.many("--contexts", int, [100, 1000, 8000], help="tokens of the text, where re-encoding is timed")
    options.add(
        "--round-of", default="L1B", help="shape of the target whose rounds re-encoding is compared with"
    )
    options.add("--round-dtype", default="int8")
    options.repeats(3)


def vocabularies(args: argparse.Namespace, report: Report) -> None:
    """The embedded target with drafts of other vocabularies, by both ways, beside plain decoding.

    Plain decoding and all ways of a draft take turns on the same prompts. Shared: tokens that both
    vocabularies have, of the draft's. Named: the mean share of the draft's law that the target can name.
    """
    target, _ = specdec.embedded_pair()
    table = report.table(
        {
            "draft": "", "shared": ".2f", "temperature": "g", "way": "", "named": ".3f", "acceptance": ".3f",
            "tokens per run": ".2f", "speed-up": ".2f", "speed-up auto gamma": ".2f",
        }
    )  # fmt: skip
    for folder in args.drafts:
        small = specdec.load(folder)
        for temperature in args.temperature:
            _rows(table, target, small, folder.name, temperature, args)
    _re_encoding(args, report)


def _rows(
    table: Any, target: Any, small: Any, name: str, temperature: float, args: argparse.Namespace
) -> None:
    same = not drafts.ModelDraft(small).translates(target)
    ways = ["same"] if same else WAYS[1:]
    made = {way: drafts.ModelDraft(small, vocabulary=way) for way in ways}  # type: ignore[arg-type]
    traces: dict[Any, Any] = {}

    def job(key: Any, draft: Any, gamma: Any) -> Any:
        def run() -> float:
            begun = time.perf_counter()
            traces[key] = [
                specdec.generate(
                    target, draft, prompt, max_new_tokens=args.tokens, temperature=temperature, seed=i,
                    n_threads=args.threads, gamma=gamma, ignore_eos=True,
                ).trace
                for i, prompt in enumerate(PROMPTS)
            ]  # fmt: skip
            return time.perf_counter() - begun

        return run

    jobs = {"plain": job("plain", None, None)}
    for way, draft in made.items():
        jobs[way] = job(way, draft, args.gamma)
        jobs[way, "auto"] = job((way, "auto"), draft, "auto")
    times = take_turns(jobs, args.repeats)
    shared = 1.0 if same else translation_of(target, small).n_shared / small.config["n_vocab"]
    for way, draft in made.items():
        drafted = sum(trace.n_drafted for trace in traces[way])
        accepted = sum(trace.n_accepted for trace in traces[way])
        per_run = [
            sum(t.n_tokens for t in traces[k]) / sum(t.n_calls for t in traces[k])
            for k in (way, (way, "auto"))
        ]
        speedups = [
            Speedup.over(
                [a / b for a, b in zip(times["plain"], times[key], strict=True)], [runs] * args.repeats
            )
            for key, runs in zip((way, (way, "auto")), per_run, strict=True)
        ]
        table.row(
            name,
            shared,
            temperature,
            way,
            draft.named_share(target),
            accepted / max(drafted, 1),
            per_run[0],
            *speedups,
        )


def _re_encoding(args: argparse.Namespace, report: Report) -> None:
    """Seconds in which a text that grows by some tokens is read again, by the tokens before."""
    if not args.drafts:
        return
    target, _ = specdec.embedded_pair()
    small = specdec.load(args.drafts[-1])
    if not drafts.ModelDraft(small).translates(target):
        return
    decoder = _core.Decoder(
        random_model(args.round_of, args.round_dtype, n_threads=args.threads),
        capacity=140,
        max_nodes=5,
        n_threads=args.threads,
    )
    decoder.prefill(list(range(1, 101)))
    round_s = median(_forward(decoder, 5) for _ in range(2 * args.repeats + 1))
    report.say(
        f"\nA forward of 5 rows of {args.round_of} in {args.round_dtype} after 100 tokens, "
        f"{args.threads or 'all'} threads: {1e3 * round_s:.1f} ms; a round takes longer."
    )
    table = report.table(
        {
            "tokens before": "d", "reading, whole [ms]": ".2f", "reading, a round [us]": ".0f",
            "writing, a round [us]": ".0f", "of a round": ".2%",
        },
        "Re-encoding",
    )  # fmt: skip
    translation = translation_of(target, small)
    text = 'It was a fine day, and the captain said: "We\'ll sail at 7!" ' * 1000
    ids = target.tokenizer.encode(text)  # type: ignore[union-attr]
    for n in args.contexts:
        whole, each, write = zip(
            *(_times(target, translation, ids, n) for _ in range(args.repeats)), strict=True
        )
        share = (median(each) + median(write)) / round_s
        table.row(n, 1e3 * median(whole), 1e6 * median(each), 1e6 * median(write), share)


def _times(target: Any, translation: Any, ids: Sequence[int], n: int) -> tuple[float, float, float]:
    """Seconds of a whole reading, of a round's, and of cutting some written words for the target."""
    rounds = 40
    begun = time.perf_counter()
    translation.read([ids[:n]])
    whole = time.perf_counter() - begun
    begun = time.perf_counter()
    translation.read([ids[: n + STEP * i] for i in range(rounds + 1)])
    each = (time.perf_counter() - begun - whole) / rounds
    text = target.tokenizer.decode(ids[n : n + 5 * STEP])
    begun = time.perf_counter()
    for _ in range(rounds):
        encode_continuing(target.tokenizer, text)
    return whole, max(each, 0.0), (time.perf_counter() - begun) / rounds


def _forward(decoder: Any, n: int) -> float:
    begun = time.perf_counter()
    decoder.forward(list(range(1, n + 1)), list(range(-1, n - 1)))
    seconds = time.perf_counter() - begun
    decoder.cut(100)
    return seconds
