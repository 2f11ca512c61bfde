"""The paper's tables (arXiv 2211.17192) for the embedded pair, which has its sizes, on real text."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdec
from benchmarks.interleaved import DTYPES, PROMPTS, Options
from benchmarks.report import Report, Speedup
from benchmarks.texts import read_text, spread_prompts
from specdec import drafts as methods

_TREE = (2, 2, 1)  # children per node at each depth

DRAFTS: dict[str, Callable[[specdec.Model, list[specdec.Result]], Any]] = {
    "model (3.9M)": lambda draft, _: draft,
    "tree of the model's draft tokens": lambda draft, _: methods.ModelDraft(
        draft, tree=methods.StaticTree(_TREE)
    ),
    "prompt lookup": lambda draft, _: methods.PromptLookup(),
    "4-grams": lambda draft, results: methods.Ngram.from_results(results, draft, n=4),
}
"""Maps the draft model and texts of the target to a draft."""


def paper_pair_options(options: Options) -> None:
    options.many("--formats", str, DTYPES, choices=DTYPES, help="of the target")
    options.add("--draft-dtype", default="int8", choices=DTYPES)
    options.many("--temperature", float, [0.0, 0.6, 1.0])
    options.many("--gamma", int, [2, 3, 4, 5])
    options.add("--heads", type=Path, metavar="DIR", help="heads of the target, from training/train_heads.py")
    options.add("--text", type=Path, help="take prompts from this text")
    options.add("--prompts", type=int, default=10, help="of --text")
    options.add("--tokens", type=int, default=2000, help="of the target at each temperature")
    options.add("--timed", type=int, default=500, help="new tokens of a timed run")
    options.add("--counted", type=int, default=20_000, help="tokens of the target for the 4-grams")
    options.many("--drafts", str, DRAFTS, choices=DRAFTS, metavar="NAME", help=", ".join(DRAFTS))
    options.repeats(5)


def paper_pair(args: argparse.Namespace, report: Report) -> None:
    """Table 2 of the paper for its GPT-like pair in each number format, then other drafts of that target.

    alpha follows Corollary 3.6 on tokens that the target generates (section 4.2); the expected speed-up
    follows Theorem 3.8, above temperature 0 with the tokens of block verification. 4-grams are counted on the
    target's text at temperature 1. For other engines see `peers-pairs --pairs embedded+embedded-draft` and
    `peers-exact --target embedded`.
    """
    prompts: Any = list(PROMPTS)
    columns = {
        "format": "", "T": "g", "gamma": "d", "alpha": ".3f", "c": ".3f", "t(gamma+1)/t(1)": ".2f",
        "expected": ".2f", "measured speed-up": ".2f", "tokens per pass": ".2f",
    }  # fmt: skip
    table = report.table(columns, "Table 2: speed-up expected by Theorem 3.8, and measured")
    for number in args.formats:
        target, draft = specdec.embedded_pair(number, args.draft_dtype)
        if args.text is not None:
            prompts = spread_prompts(read_text(args.text), target, args.prompts, 32)
        found = specdec.measure(
            target, draft, prompts, gammas=args.gamma, temperatures=args.temperature, leniences=[1.0],
            n_tokens=args.tokens, timing=specdec.Timing(args.repeats, args.timed), n_threads=args.threads,
        )  # fmt: skip
        for row in found.rows:
            table.row(
                number, row.temperature, row.gamma, row.alpha, row.c, row.verify_ratio, row.ideal_speedup,
                _speedup(row), row.tokens_per_call,
            )  # fmt: skip
    target, draft = specdec.embedded_pair(None, args.draft_dtype)
    results = _written(target, draft, args.counted, args.threads)
    drafts = {name: DRAFTS[name](draft, results) for name in args.drafts}
    if args.heads is not None:
        drafts["heads"] = methods.DecodingHeads(args.heads)
        drafts["model + heads"] = methods.Ensemble(draft, methods.DecodingHeads(args.heads))
    compared = specdec.compare(
        target, drafts, prompts, temperatures=args.temperature, n_tokens=args.timed, repeats=args.repeats,
        n_threads=args.threads,
    )  # fmt: skip
    columns = {"draft": "", "T": "g", "gamma": "d", "measured speed-up": ".2f", "tokens per pass": ".2f"}
    table = report.table(columns, f"Drafts of the target in {target.dtype}")
    for row in compared.rows:
        table.row(row.draft, row.temperature, row.gamma, _speedup(row), row.tokens_per_call)


def _speedup(row: specdec.ExperimentRow) -> Any:
    if row.speedup is None:
        return None
    spread = row.speedup.median, row.speedup.low, row.speedup.high
    return Speedup(*spread, row.tokens_per_call, bool(row.invalid))


def _written(
    target: specdec.Model, draft: specdec.Model, n_tokens: int, n_threads: int
) -> list[specdec.Result]:
    """Generate texts of the target at temperature 1."""
    length = target.config.n_ctx // 2
    n_texts = math.ceil(n_tokens / length)
    return specdec.generate(
        target, draft, [PROMPTS[i % len(PROMPTS)] for i in range(n_texts)], max_new_tokens=length,
        temperature=1.0, seed=[(1, i) for i in range(n_texts)], n_threads=n_threads, ignore_eos=True,
    )  # fmt: skip
