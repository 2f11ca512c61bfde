"""Every way to draft: speed on several kinds of text, and what drafting itself costs.

Learned drafts (`DecodingHeads`, `RecurrentDraft`, `LookAheadEmbeddings`, `Eagle`, `MTP`) need
their own target: see the program `learned`, and `online` for `OnlineDraft`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import specdec
from benchmarks.builds import Builds
from benchmarks.decodings import Cell, Decodings, Run, run_cells
from benchmarks.report import Report, Spread
from benchmarks.texts import KINDS, work
from benchmarks.turns import Options, ratios
from specdec import drafts as ways

TABLE_PROMPTS = (
    "The sun was setting when",
    "In the year 1815",
    "My father was",
    '"I do not know," said she,',
    "There was once a king who",
    "The rain had not ceased",
)
"""What n-gram tables are made from: the target's own text after these."""

Make = Callable[[specdec.Model, specdec.Model], Any]
"""From target and draft to the draft that is tried."""


def _table(n: int) -> Make:
    def make(target: specdec.Model, draft: specdec.Model) -> Any:
        results = specdec.generate(target, None, TABLE_PROMPTS, max_new_tokens=400)
        texts = [result.prompt_ids + result.tokens for result in results]
        return ways.Ngram(texts, target.config["n_vocab"], n=n)

    return make


SHORT, CHAINS, COPIES, OWN = (1, 2, 4), (1, 2, 3, 4, 6, 8), (2, 4, 8, 12, 16, 24), (None,)
"""Gammas to try; None is the draft's own number of nodes, as of trees, whose size is part of the draft."""

DRAFTS: dict[str, tuple[Make, Sequence[int | None]]] = {
    "model": (lambda target, draft: draft, CHAINS),
    "model, grown tree of 6": (
        lambda target, draft: ways.ModelDraft(draft, tree=ways.DynamicTree(6)),
        OWN,
    ),
    "model, 2 chains of 3": (
        lambda target, draft: ways.ModelDraft(draft, tree=ways.ParallelChains(2)),
        (6,),
    ),
    "model, drafted by a bigram": (
        lambda target, draft: ways.ModelDraft(draft, draft=_table(2)(target, draft)),
        CHAINS,
    ),
    "random": (lambda target, draft: ways.RandomDraft(), SHORT),
    "unigram": (_table(1), SHORT),
    "bigram": (_table(2), CHAINS),
    "4-gram": (_table(4), CHAINS),
    "4-gram, online": (lambda target, draft: ways.OnlineNgram(_table(4)(target, draft)), CHAINS),
    "context copy": (lambda target, draft: ways.PromptLookup(), COPIES),
    "input copy": (lambda target, draft: ways.InputCopy(), COPIES),
    "suffix memory": (lambda target, draft: ways.SuffixDecoding(), COPIES),
    "token recycling": (lambda target, draft: ways.TokenRecycling(), OWN),
    "early exit 3": (lambda target, draft: ways.EarlyExit(3), SHORT),
    "skip layers": (lambda target, draft: ways.SkipLayers(attn=(3,), mlp=(2, 3)), SHORT),
    "lookahead": (lambda target, draft: ways.Lookahead(), OWN),
    "best of copy and model": (lambda target, draft: ways.Ensemble(ways.PromptLookup(), draft), OWN),
}


def _trees(n: int, sampling: bool) -> dict[str, tuple[Make, int]]:
    """Ways to spend n guesses a round, and chains; with the gamma of each."""
    shapes: dict[str, Any] = {f"ParallelChains({k})": ways.ParallelChains(k) for k in (2, 4)}
    if sampling:
        for how in ("sample", "without replacement"):
            shapes[f"StaticTree.expected, {how}"] = ways.StaticTree.expected(n, how=how)
    else:
        shapes["StaticTree.expected, top-k"] = ways.StaticTree.expected(n, (0.88, 0.06, 0.02), "top-k")
    for width, steps in ((2, n), (3, 8)):
        shapes[f"DynamicTree(width={width}, steps={steps})"] = ways.DynamicTree(n, width=width, steps=steps)
    chains: dict[str, tuple[Make, int]] = {
        f"chain of {k}": (lambda _, draft: draft, k) for k in (2, 3, 4, 6, n)
    }
    made = lambda tree: lambda _, draft: ways.ModelDraft(draft, tree=tree)  # noqa: E731
    return chains | {name: (made(tree), n) for name, tree in shapes.items()}


class Tried(Decodings):
    """Runs with a draft of this page."""

    def __init__(self, target: str | None, draft: str | None, dtype: str | None, n_threads: int) -> None:
        super().__init__(target, draft, dtype, n_threads)
        self._made: dict[str, Any] = {}

    def tried(
        self, name: str, kind: str, n_tokens: int, temperature: float, seed: int, gamma: Any, nodes: int = 0
    ) -> Run:
        """A run with a draft of `DRAFTS`, or with a tree of so many nodes; plainly with gamma 0."""
        made = None
        if gamma != 0:
            key = f"{name} {nodes} {temperature > 0}"
            if key not in self._made:
                make, _ = _trees(nodes, temperature > 0)[name] if nodes else DRAFTS[name]
                self._made[key] = make(self.target, self.draft)
            made = self._made[key]
        given = KINDS[kind][0][1] is not None
        return self.decode(
            made, work(self.target, kind, n_tokens), seed=seed, gamma=gamma, temperature=temperature,
            models_only=given,
        )  # fmt: skip


def drafts_options(options: Options) -> None:
    options.pair()
    options.many("--drafts", str, DRAFTS, choices=DRAFTS, metavar="NAME", help=", ".join(DRAFTS))
    options.many("--trees", int, [], metavar="NODES", help="instead: trees of the model's guesses")
    options.many("--kinds", str, KINDS, choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    options.many("--gamma", int, [], help="instead of each draft's own list")
    options.many("--temperature", float, [0.0, 1.0])
    options.add("--every-gamma", action="store_true", help="a row for every gamma, not for the best alone")
    options.add("--tokens", type=int, default=200)
    options.repeats(5)
    options.against()


def drafts(args: argparse.Namespace, report: Report) -> None:
    """Every draft on prose and on text that copies: acceptance, cost, speed, the best gamma and "auto".

    Plain decoding and all settings of one draft take turns on the same prompts; time is by the clock on the
    wall, without the prompts' prefill. Prose and lists are the target's own text; the other kinds are made
    (texts.py), at temperature 0. A row shows the fastest fixed gamma, picked afterwards, and gamma="auto".
    """
    settings = {"target": args.target, "draft": args.draft, "dtype": args.dtype, "n_threads": args.threads}
    with Builds(args.against, Tried, **settings) as builds:
        report.say(f"\n{builds.described or builds.all[0].ask('described')}")
        over = {"over other build": ".3f"} if args.against else {}
        head = {"draft": "", "text": "", "T": "g", "gamma": "", **FIGURES}
        if args.trees:
            columns = head | {"nodes": "d", "ms a token": ".3f"} | over
        elif args.every_gamma:
            columns = head | over
        else:
            auto = {"auto: tokens per run": ".2f", "auto: measured speed-up": ".2f", "auto / best": ".2f"}
            columns = head | over | auto | {f"auto {name}": digits for name, digits in over.items()}
        table = report.table(columns)
        for kind in args.kinds:
            made = KINDS[kind][0][1] is not None
            for temperature in [0.0] if made else args.temperature:
                for nodes in args.trees:
                    trees = [
                        (name, nodes_, nodes) for name, (_, nodes_) in _trees(nodes, temperature > 0).items()
                    ]
                    for (name, gamma, _), cell in _cells(builds, args, kind, temperature, trees).items():
                        ms = Spread.of(1e3 * run["seconds"] for run in cell.runs)
                        row = [name, kind, temperature, str(gamma), *_figures(cell), nodes, ms]
                        table.row(*row, *_against(cell))
                for name in [] if args.trees else args.drafts:
                    gammas: list[Any] = [*(args.gamma or DRAFTS[name][1]), "auto"]
                    keys = [(name, gamma, 0) for gamma in gammas]
                    cells = _cells(builds, args, kind, temperature, keys)
                    if args.every_gamma:
                        for (_, gamma, _), cell in cells.items():
                            shown = "own" if gamma is None else str(gamma)
                            table.row(name, kind, temperature, shown, *_figures(cell), *_against(cell))
                    else:
                        table.row(name, kind, temperature, *_best_and_auto(cells))


def _cells(
    builds: Builds, args: argparse.Namespace, kind: str, temperature: float, keys: list[Any]
) -> dict[Any, Cell]:
    """Of (name, gamma, nodes), in turns with plain decoding."""

    def run(turn: int, key: Any) -> list[Run]:
        name, gamma, nodes = key
        return builds.ask(
            turn, "tried", name=name, kind=kind, n_tokens=args.tokens, temperature=temperature,
            seed=1000 * turn, gamma=gamma, nodes=nodes,
        )  # fmt: skip

    plain = ("", 0, 0)
    found = run_cells(keys, run, args.repeats, plain, equal=temperature == 0)
    del found[plain]
    return found


def _best_and_auto(cells: dict[Any, Cell]) -> list[Any]:
    """Cells of a row, from the gamma on. An invalid speed-up is no result, so it is not the best one."""
    fixed = {gamma: cell for (_, gamma, _), cell in cells.items() if gamma != "auto"}
    auto = next(cell for (_, gamma, _), cell in cells.items() if gamma == "auto")
    best = max(fixed, key=lambda gamma: (not fixed[gamma].speedup.invalid, fixed[gamma].speedup.median))
    cell = fixed[best]
    faster = ratios([run["seconds"] for run in cell.runs], [run["seconds"] for run in auto.runs])
    row = ["own" if best is None else str(best), *_figures(cell), *_against(cell)]
    return [*row, auto.tokens_per_run, auto.speedup, faster, *_against(auto)]


def _against(cell: Cell) -> list[Spread]:
    return [cell.against] if cell.other else []


FIGURES = {
    "alpha": ".2f", "c": ".3f", "tokens per run": ".2f", "measured speed-up": ".2f", "predicted": ".2f",
    "ideal": ".2f",
}  # fmt: skip


def _figures(cell: Cell) -> list[Any]:
    return [
        cell.mean("acceptance_rate"), cell.mean("cost_coefficient"), cell.tokens_per_run, cell.speedup,
        cell.mean("predicted_speedup"), cell.mean("ideal_speedup"),
    ]  # fmt: skip
