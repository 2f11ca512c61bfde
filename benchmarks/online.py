"""Drafts that learn while they serve: alpha over texts that change their kind, and what learning costs."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.builds import ROOT
from benchmarks.report import Report, Spread
from benchmarks.texts import read_text, spread_prompts
from benchmarks.turns import Options, load_pair, progress, ratios
from specdec import drafts as ways

SHARED = Path(os.environ.get("SPECDEC_SHARED") or ROOT.parent / "shared") / "data"
TEXTS = {
    "novels": SHARED / "novels.tar.xz",
    "wikitext": SHARED / "wikitext2" / "wiki.valid.txt",
    "code": SHARED / "humaneval" / "HumanEval.jsonl.gz",
}
"""Texts of several kinds, in the order in which they are served."""
Make = Callable[[argparse.Namespace, specdec.Model, specdec.Model, list[list[int]]], Any]


def _table(
    args: argparse.Namespace, target: specdec.Model, small: specdec.Model, first: list[list[int]]
) -> Any:
    """Of what the target writes after texts of the first kind."""
    found = specdec.generate(
        target, None, first, max_new_tokens=args.tokens, temperature=args.temperature, seed=1 << 20,
        ignore_eos=True, n_threads=args.threads,
    )  # fmt: skip
    return ways.Ngram.from_results(found, target, n=4)


DRAFTS: dict[str, Make] = {
    "table": _table,
    "model": lambda args, target, small, first: ways.ModelDraft(small),
    "learnt": lambda args, target, small, first: ways.load(args.learnt, target),
}
"""Drafts that learn, at their beginning."""


def _online_options(options: Options) -> None:
    options.pair()
    options.many("--drafts", str, ["table", "model"], choices=DRAFTS, metavar="NAME", help=", ".join(DRAFTS))
    options.add("--learnt", type=Path, metavar="FOLDER", help="of the draft `learnt`, such as a Recurrent")
    options.add(
        "--texts", nargs="+", metavar="NAME=FILE", default=[f"{name}={path}" for name, path in TEXTS.items()],
        help="kinds of text, in order: .txt, .jsonl.gz of prompts, .tar.xz of texts",
    )  # fmt: skip
    options.add("--prompt", type=int, default=32, help="tokens of a prompt")
    options.add("--tokens", type=int, default=64, help="new tokens of a request")
    options.add("--temperature", type=float, default=1.0)
    options.add("--gamma", type=int, default=4)


def online_options(options: Options) -> None:
    _online_options(options)
    options.add("--requests", type=int, default=128, help="of each kind")
    options.add("--parts", type=int, default=4, help="of each kind, that are shown apart")
    options.add("--every", type=int, default=8, help="requests between two times of learning")
    options.add("--plot", type=Path, metavar="FILE", help="draw alpha over requests (matplotlib)")
    options.repeats(1)


def online(args: argparse.Namespace, report: Report) -> None:
    """Alpha over texts that change their kind, with and without learning.

    The same requests, prompts cut from texts of one kind after the other, are served with a draft as it is
    and with `Online` of that draft, which learns after every so many requests. A row is a part of the
    requests of a kind; alpha is the mean of the chances that the verified guesses had, and its interval is
    two standard errors over requests to either side.
    """
    target, small = load_pair(args.target, args.draft, args.dtype)
    kinds = _requests(args, target, args.requests)
    table = report.table({"draft": "", "text": "", "part": "d", "alpha as it was": "", "alpha learning": ""})
    drawn: dict[str, list[np.ndarray]] = {}
    for name in args.drafts:
        begun = DRAFTS[name](args, target, small, kinds[next(iter(kinds))])
        served = [_alphas(args, target, begun, kinds), _alphas(args, target, _learning(begun, None), kinds)]
        drawn[name] = served
        for k, kind in enumerate(kinds):
            for part in range(args.parts):
                cells = []
                for alphas in served:
                    of_kind = alphas[k * args.requests : (k + 1) * args.requests]
                    cells.append(_mean(np.array_split(of_kind, args.parts)[part]))
                table.row(name, kind, part + 1, *cells)
    if args.plot is not None:
        _plot(args, list(kinds), drawn)


def online_serving_options(options: Options) -> None:
    _online_options(options)
    options.add("--requests", type=int, default=32, help="of each kind")
    options.add("--interval", type=float, default=1.0, help="seconds between two times of learning")
    options.repeats(5)


def online_serving(args: argparse.Namespace, report: Report) -> None:
    """What serving costs while a draft learns in the background.

    All requests are served in one batch, in turns with the draft as it is and with `Online` of it, whose
    thread learns meanwhile. Times are by the clock on the wall. The ratio is of the seconds for a round,
    since what is learnt changes how many tokens a round brings.
    """
    target, small = load_pair(args.target, args.draft, args.dtype)
    kinds = _requests(args, target, args.requests)
    prompts = [prompt for requests in kinds.values() for prompt in requests]
    columns = {"draft": "", "ms per token": ".3f", "while learning": ".3f", "a round": ".3f", "updates": "d"}
    table = report.table(columns)
    for name in args.drafts:
        begun = DRAFTS[name](args, target, small, kinds[next(iter(kinds))])
        plain: list[tuple[float, float]] = []
        learning: list[tuple[float, float]] = []
        n_updates = 0
        for repeat in progress(range(args.repeats), name):
            draft = _learning(begun, args.interval)
            for way in (begun, draft) if repeat % 2 == 0 else (draft, begun):
                times = plain if way is begun else learning
                times.append(_timed(args, target, way, prompts, repeat))
                if way is draft:
                    draft.close()  # nobody learns beside the other
            n_updates += draft.n_updates
        table.row(
            name,
            Spread.of(1e3 * token for token, _ in plain),
            Spread.of(1e3 * token for token, _ in learning),
            ratios([round_ for _, round_ in learning], [round_ for _, round_ in plain]),
            n_updates,
        )


def _learning(begun: Any, interval: float | None) -> ways.Online:
    return ways.Online(begun, interval=interval)


def _timed(
    args: argparse.Namespace, target: specdec.Model, draft: Any, prompts: list[list[int]], seed: int
) -> tuple[float, float]:
    """(seconds for a token, seconds for a round)."""
    begun = time.perf_counter()
    runs = _served(args, target, draft, prompts, seed)
    seconds = time.perf_counter() - begun
    n_rounds = sum(len(run.trace.rounds) for run in runs)
    return seconds / sum(len(run.tokens) for run in runs), seconds / n_rounds


def _served(
    args: argparse.Namespace, target: specdec.Model, draft: Any, prompts: Sequence[list[int]], seed: int
) -> list[specdec.Result]:
    return specdec.generate(
        target, draft, list(prompts), max_new_tokens=args.tokens, temperature=args.temperature, seed=seed,
        gamma=args.gamma, ignore_eos=True, n_threads=args.threads,
    )  # fmt: skip


def _alphas(
    args: argparse.Namespace, target: specdec.Model, draft: Any, kinds: dict[str, list[list[int]]]
) -> np.ndarray:
    """Of each request; NaN where no guess was verified."""
    found: list[float] = []
    prompts = [prompt for requests in kinds.values() for prompt in requests]
    for begin in progress(range(0, len(prompts), args.every), type(draft).__name__):
        runs = _served(args, target, draft, prompts[begin : begin + args.every], begin)
        betas = [[beta for round_ in run.trace.rounds for beta in round_.betas] for run in runs]
        found += [float(np.mean(each)) if each else float("nan") for each in betas]
        if isinstance(draft, ways.Online):
            draft.learn()
    return np.array(found)


def _mean(alphas: np.ndarray) -> str:
    """With two standard errors."""
    known = alphas[~np.isnan(alphas)]
    if len(known) < 2:
        return "-"
    return f"{known.mean():.3f} ± {2 * known.std(ddof=1) / len(known) ** 0.5:.3f}"


def _requests(args: argparse.Namespace, target: specdec.Model, n: int) -> dict[str, list[list[int]]]:
    """For each kind of text n prompts, from places all over it."""
    found = {}
    for item in args.texts:
        name, _, path = item.partition("=")
        found[name] = spread_prompts(read_text(Path(path)), target, n, args.prompt)
    return found


def _plot(args: argparse.Namespace, kinds: Sequence[str], drawn: dict[str, list[np.ndarray]]) -> None:
    """Alpha over requests, as a mean of as many as a part has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    width = max(args.requests // args.parts, 1)
    figure, axes = plt.subplots(len(drawn), 1, figsize=(8, 3 * len(drawn)), squeeze=False, sharex=True)
    for ax, (name, served) in zip(axes[:, 0], drawn.items(), strict=True):
        for alphas, label, style in zip(served, ("as it was", "learning"), ("--", "-"), strict=True):
            means = [np.nanmean(alphas[max(0, i - width + 1) : i + 1]) for i in range(len(alphas))]
            ax.plot(means, style, label=label)
        for k, kind in enumerate(kinds):
            ax.axvline(k * args.requests, color="0.8", zorder=0)
            ax.text(k * args.requests, 0.02, f" {kind}", transform=ax.get_xaxis_transform())
        ax.set_ylabel(f"alpha, {name}")
        ax.legend()
    axes[-1, 0].set_xlabel("request")
    figure.savefig(args.plot, dpi=150, bbox_inches="tight")
    plt.close(figure)
