"""Speed and cost of every draft method that needs no training, on several types of text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import specdec
from benchmarks.builds import Builds
from benchmarks.decodings import Cell, Decodings, Run, run_cells
from benchmarks.interleaved import Options, ratios
from benchmarks.report import Report, Spread
from benchmarks.texts import TEXT_TYPES, work
from specdec import drafts as methods

TABLE_PROMPTS = (
    "The sun was setting when",
    "In the year 1815",
    "My father was",
    '"I do not know," said she,',
    "There was once a king who",
    "The rain had not ceased",
)
"""Prompts of the target's texts that n-gram tables are counted from."""

Make = Callable[[specdec.Model, specdec.Model], Any]
"""Maps target and draft model to the draft to measure."""


def _table(n: int) -> Make:
    def make(target: specdec.Model, draft: specdec.Model) -> Any:
        results = specdec.generate(target, None, TABLE_PROMPTS, max_new_tokens=400)
        texts = [result.prompt_ids + result.tokens for result in results]
        return methods.Ngram(texts, target.config["n_vocab"], n=n)

    return make


SHORT, CHAINS, COPIES, OWN = (1, 2, 4), (1, 2, 3, 4, 6, 8), (2, 4, 8, 12, 16, 24), (None,)
"""Gammas to try; None: the draft's own gamma, such as the size of its tree."""

DRAFTS: dict[str, tuple[Make, Sequence[int | None]]] = {
    "model": (lambda target, draft: draft, CHAINS),
    "model, grown tree of 6": (
        lambda target, draft: methods.ModelDraft(draft, tree=methods.DynamicTree(6)),
        OWN,
    ),
    "model, 2 chains of 3": (
        lambda target, draft: methods.ModelDraft(draft, tree=methods.ParallelChains(2)),
        (6,),
    ),
    "model, drafted by a bigram": (
        lambda target, draft: methods.ModelDraft(draft, draft=_table(2)(target, draft)),
        CHAINS,
    ),
    "random": (lambda target, draft: methods.RandomDraft(), SHORT),
    "unigram": (_table(1), SHORT),
    "bigram": (_table(2), CHAINS),
    "4-gram": (_table(4), CHAINS),
    "4-gram, online": (lambda target, draft: methods.OnlineNgram(_table(4)(target, draft)), CHAINS),
    "prompt lookup": (lambda target, draft: methods.PromptLookup(), COPIES),
    "input copy": (lambda target, draft: methods.InputCopy(), COPIES),
    "suffix decoding": (lambda target, draft: methods.SuffixDecoding(), COPIES),
    "token recycling": (lambda target, draft: methods.TokenRecycling(), OWN),
    "early exit 3": (lambda target, draft: methods.EarlyExit(3), SHORT),
    "skip layers": (lambda target, draft: methods.SkipLayers(attn=(3,), mlp=(2, 3)), SHORT),
    "lookahead": (lambda target, draft: methods.Lookahead(), OWN),
    "prompt lookup and model": (lambda target, draft: methods.Ensemble(methods.PromptLookup(), draft), OWN),
}


def _trees(n: int, sampling: bool) -> dict[str, tuple[Make, int]]:
    """Return trees of n draft tokens per round, and chains, with the gamma of each."""
    shapes: dict[str, Any] = {f"ParallelChains({k})": methods.ParallelChains(k) for k in (2, 4)}
    if sampling:
        for how in ("sample", "without replacement"):
            shapes[f"StaticTree.expected, {how}"] = methods.StaticTree.expected(n, how=how)
    else:
        shapes["StaticTree.expected, top-k"] = methods.StaticTree.expected(n, (0.88, 0.06, 0.02), "top-k")
    for width, steps in ((2, n), (3, 8)):
        shapes[f"DynamicTree(width={width}, steps={steps})"] = methods.DynamicTree(
            n, width=width, steps=steps
        )
    chains: dict[str, tuple[Make, int]] = {
        f"chain of {k}": (lambda _, draft: draft, k) for k in (2, 3, 4, 6, n)
    }
    made = lambda tree: lambda _, draft: methods.ModelDraft(draft, tree=tree)  # noqa: E731
    return chains | {name: (made(tree), n) for name, tree in shapes.items()}


class Tried(Decodings):
    """Runs with a draft of `DRAFTS` or a tree."""

    def __init__(self, target: str | None, draft: str | None, dtype: str | None, n_threads: int) -> None:
        super().__init__(target, draft, dtype, n_threads)
        self._made: dict[str, Any] = {}

    def tried(
        self,
        name: str,
        text_type: str,
        n_tokens: int,
        temperature: float,
        seed: int,
        gamma: Any,
        nodes: int = 0,
    ) -> Run:
        """Run a draft of `DRAFTS`, or a tree of `nodes`; gamma 0 decodes without a draft."""
        made = None
        if gamma != 0:
            key = f"{name} {nodes} {temperature > 0}"
            if key not in self._made:
                make, _ = _trees(nodes, temperature > 0)[name] if nodes else DRAFTS[name]
                self._made[key] = make(self.target, self.draft)
            made = self._made[key]
        given = TEXT_TYPES[text_type][0][1] is not None
        return self.decode(
            made, work(self.target, text_type, n_tokens), seed=seed, gamma=gamma, temperature=temperature,
            models_only=given,
        )  # fmt: skip


def drafts_options(options: Options) -> None:
    options.pair()
    options.many("--drafts", str, DRAFTS, choices=DRAFTS, metavar="NAME", help=", ".join(DRAFTS))
    options.many("--trees", int, [], metavar="NODES", help="measure trees of the model instead")
    options.many("--texts", str, TEXT_TYPES, choices=TEXT_TYPES, metavar="TYPE", help=", ".join(TEXT_TYPES))
    options.many("--gamma", int, [], help="default: a list for each draft")
    options.many("--temperature", float, [0.0, 1.0])
    options.add("--every-gamma", action="store_true", help="show every gamma, not only the best")
    options.add("--tokens", type=int, default=200)
    options.repeats(5)
    options.against()


def drafts(args: argparse.Namespace, report: Report) -> None:
    """Every draft on prose and on repetitive text: acceptance, cost, speed, the best gamma and "auto".

    Interleaved runs of plain decoding and all settings of a draft on the same prompts, in wall clock time
    without prefill. Prose and lists are the target's own text; the other texts are forced (texts.py), at
    temperature 0. A row shows the fastest fixed gamma, chosen afterwards, and gamma="auto".
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
            auto = {"auto: tokens per pass": ".2f", "auto: measured speed-up": ".2f", "auto / best": ".2f"}
            columns = head | over | auto | {f"auto {name}": digits for name, digits in over.items()}
        table = report.table(columns)
        for text_type in args.texts:
            made = TEXT_TYPES[text_type][0][1] is not None
            for temperature in [0.0] if made else args.temperature:
                for nodes in args.trees:
                    trees = [
                        (name, nodes_, nodes) for name, (_, nodes_) in _trees(nodes, temperature > 0).items()
                    ]
                    for (name, gamma, _), cell in _cells(builds, args, text_type, temperature, trees).items():
                        ms = Spread.of(1e3 * run["seconds"] for run in cell.runs)
                        row = [name, text_type, temperature, str(gamma), *_figures(cell), nodes, ms]
                        table.row(*row, *_against(cell))
                for name in [] if args.trees else args.drafts:
                    gammas: list[Any] = [*(args.gamma or DRAFTS[name][1]), "auto"]
                    keys = [(name, gamma, 0) for gamma in gammas]
                    cells = _cells(builds, args, text_type, temperature, keys)
                    if args.every_gamma:
                        for (_, gamma, _), cell in cells.items():
                            shown = "own" if gamma is None else str(gamma)
                            table.row(name, text_type, temperature, shown, *_figures(cell), *_against(cell))
                    else:
                        table.row(name, text_type, temperature, *_best_and_auto(cells))


def _cells(
    builds: Builds, args: argparse.Namespace, text_type: str, temperature: float, keys: list[Any]
) -> dict[Any, Cell]:
    """Measure (name, gamma, nodes), interleaved with plain decoding."""

    def run(repeat: int, key: Any) -> list[Run]:
        name, gamma, nodes = key
        return builds.ask(
            repeat, "tried", name=name, text_type=text_type, n_tokens=args.tokens, temperature=temperature,
            seed=1000 * repeat, gamma=gamma, nodes=nodes,
        )  # fmt: skip

    plain = ("", 0, 0)
    found = run_cells(keys, run, args.repeats, plain, equal=temperature == 0)
    del found[plain]
    return found


def _best_and_auto(cells: dict[Any, Cell]) -> list[Any]:
    """Return the cells of a row from the gamma on; an invalid speed-up cannot be the best one."""
    fixed = {gamma: cell for (_, gamma, _), cell in cells.items() if gamma != "auto"}
    auto = next(cell for (_, gamma, _), cell in cells.items() if gamma == "auto")
    best = max(fixed, key=lambda gamma: (not fixed[gamma].speedup.invalid, fixed[gamma].speedup.median))
    cell = fixed[best]
    faster = ratios([run["seconds"] for run in cell.runs], [run["seconds"] for run in auto.runs])
    row = ["own" if best is None else str(best), *_figures(cell), *_against(cell)]
    return [*row, auto.tokens_per_call, auto.speedup, faster, *_against(auto)]


def _against(cell: Cell) -> list[Spread]:
    return [cell.against] if cell.other else []


FIGURES = {
    "alpha": ".2f", "c": ".3f", "tokens per pass": ".2f", "measured speed-up": ".2f", "predicted": ".2f",
    "ideal": ".2f",
}  # fmt: skip


def _figures(cell: Cell) -> list[Any]:
    return [
        cell.mean("acceptance_rate"), cell.mean("cost_coefficient"), cell.tokens_per_call, cell.speedup,
        cell.mean("predicted_speedup"), cell.mean("ideal_speedup"),
    ]  # fmt: skip
