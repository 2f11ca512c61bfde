"""Tables 2 to 5 of the paper (arXiv 2211.17192) for a pair of models and for n-gram drafts."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.report import Report, Speedup
from benchmarks.turns import PROMPTS, Options, load_pair
from specdec.drafts import Bigram, Unigram

PROMPT_TOKENS = 16  # of each text that is continued


def paper_options(options: Options) -> None:
    options.pair()
    options.add("--text", type=Path, help="n-grams and prompts come from this text")
    options.add("--tokens", type=int, default=10_000, help="of the target at each temperature")
    options.add("--prompts", type=int, default=100)
    options.add("--counted", type=int, default=200_000, help="tokens of the target for the n-grams")
    options.many("--gamma", int, range(1, 9))
    options.add("--no-timing", action="store_true", help="acceptance rates alone: Tables 3 and 5")
    options.add("--timed", type=int, default=1000, help="new tokens of a timed run")
    options.repeats(9)


def paper(args: argparse.Namespace, report: Report) -> None:
    """Tables 2 to 5 of the paper: acceptance rates, speed-ups measured, predicted and ideal, lenience.

    Acceptance rates are those of Corollary 3.6 on 10000 tokens of the target (section 4.2) at
    each temperature, with their 95 % intervals. The n-gram drafts are counted on text that the target itself
    wrote at temperature 1, or on the first half of a text given with --text; what is continued are beginnings
    of other texts of the target, or positions in the second half.
    """
    target, draft = load_pair(args.target, args.draft, args.dtype)
    if args.text is None:
        length = min(400, target.config.n_ctx // 2)
        counted = _written(target, draft, -(-args.counted // length), length, 1, args.threads)
        texts = _written(target, draft, args.prompts, PROMPT_TOKENS, 2, args.threads)
        prompts = [text[:PROMPT_TOKENS] for text in texts]
    else:
        counted, prompts = _read(target, args.text, args.prompts)
    n_vocab = target.config.n_vocab
    drafts = {"model": draft, "bigram": Bigram(counted, n_vocab), "unigram": Unigram(counted, n_vocab)}
    for name, model in (("target", target), ("draft", draft)):
        report.say(f"- {name}: {model.n_parameters / 1e6:.2f} M parameters in {model.dtype}")
    source = "text of the target" if args.text is None else args.text.name
    n_pairs = drafts["bigram"].n_ngrams[1]
    report.say(f"- n-grams: {sum(map(len, counted))} tokens of {source}, {n_pairs} pairs")
    found = {
        name: specdec.measure(
            target, one, prompts, gammas=args.gamma, n_tokens=args.tokens, n_threads=args.threads,
            timing=False if args.no_timing else specdec.Timing(args.repeats, args.timed, leniences=True),
        )
        for name, one in drafts.items()
    }  # fmt: skip
    _tables(found, report)
    others = [table for table in found["model"].tables() if table.title.startswith("Time of")]
    for table in others + [one.tables()[-1] for one in found.values()]:
        copy = report.table(dict.fromkeys(table.head, ""), table.title)
        for row in table.rows:
            copy.row(*row)


def _tables(found: dict[str, specdec.Measurement], report: Report) -> None:
    rows = [(name, row) for name, one in found.items() for row in one.rows]
    exact = [(name, row) for name, row in rows if row.lenience == 1.0]
    sampling = {"draft": "", "temperature": "g"}

    table = report.table(
        {**sampling, "alpha": ".3f", "95 % interval": "", "tokens": "d"}, "Table 3: acceptance"
    )
    for (name, _), alike in itertools.groupby(exact, key=lambda pair: (pair[0], pair[1].temperature)):
        row = next(alike)[1]
        interval = f"{row.alpha_low:.3f} to {row.alpha_high:.3f}"
        table.row(name, row.temperature, row.alpha, interval, row.n_tokens)

    if any(row.speedup is not None for _, row in exact):
        speedup_table(exact, report, "Tables 2 and 4: speed-up measured, predicted, and ideal (Theorem 3.8)")

    columns = {**sampling, "lenience": "g", "alpha": ".2f", "best gamma": "d", "predicted": ".2f"}
    table = report.table(
        {**columns, "measured speed-up": ".2f"}, "Table 5: lenience, at the best predicted gamma"
    )
    for _, group in itertools.groupby(
        rows, key=lambda pair: (pair[0], pair[1].temperature, pair[1].lenience)
    ):
        alike = list(group)
        timed = [pair for pair in alike if pair[1].predicted_speedup is not None]
        name, best = max(timed, key=lambda pair: pair[1].predicted_speedup) if timed else alike[0]
        if not timed:
            table.row(name, best.temperature, best.lenience, best.alpha, None, None, None)
            continue
        table.row(
            name,
            best.temperature,
            best.lenience,
            best.alpha,
            best.gamma,
            best.predicted_speedup,
            _speedup(best),
        )


def speedup_table(rows: Iterable[tuple[str, specdec.ExperimentRow]], report: Report, title: str) -> None:
    """Tables 2 and 4: of each draft, temperature and gamma the speed-up measured, predicted and ideal."""
    columns = {
        "draft": "", "temperature": "g", "gamma": "d", "alpha": ".2f", "c": ".3f", "t(gamma+1)/t(1)": ".2f",
        "measured speed-up": ".2f", "predicted": ".2f", "ideal": ".2f", "tokens per run": ".2f",
    }  # fmt: skip
    table = report.table(columns, title)
    for name, row in rows:
        table.row(
            name, row.temperature, row.gamma, row.alpha, row.c, row.verify_ratio, _speedup(row),
            row.predicted_speedup, row.ideal_speedup, row.tokens_per_call,
        )  # fmt: skip


def _speedup(row: specdec.ExperimentRow) -> Any:
    if row.speedup is None:
        return None
    spread = row.speedup.median, row.speedup.low, row.speedup.high
    return Speedup(*spread, row.tokens_per_call, bool(row.invalid))


def _written(
    target: specdec.Model, draft: specdec.Model, n_texts: int, length: int, seed: int, n_threads: int
) -> list[list[int]]:
    """Texts of the target at temperature 1, from the prompts in turn; the draft makes them sooner."""
    texts = []
    for i in range(n_texts):
        result = specdec.generate(
            target, draft, PROMPTS[i % len(PROMPTS)], max_new_tokens=length, temperature=1.0,
            seed=[(seed, i)], n_threads=n_threads, ignore_eos=True,
        )  # fmt: skip
        texts.append(result.prompt_ids + result.tokens)
    return texts


def _read(target: specdec.Model, path: Path, n_prompts: int) -> tuple[list[list[int]], list[list[int]]]:
    """(the first half of a text, beginnings at even distances in the second half), as token ids."""
    assert target.tokenizer is not None
    ids = target.tokenizer.encode(path.read_text(encoding="utf-8"))
    first, second = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    starts = np.linspace(0, len(second) - PROMPT_TOKENS, n_prompts).astype(int)
    return [first], [second[start : start + PROMPT_TOKENS] for start in starts]
