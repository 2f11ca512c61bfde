"""Every way to draft: speed on several kinds of text, and what drafting itself costs.

Learnt drafts (`Heads`, `Recurrent`, `LookAheadEmbeddings`, `Eagle`, `MTP`) are not among them: each belongs
to the target that it was trained for, and the program `learnt` takes them. `Online` is that of `online`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.builds import ROOT, Builds
from benchmarks.decodings import Cell, Decodings, Run, run_cells
from benchmarks.report import Report, Spread
from benchmarks.shapes import NARROW
from benchmarks.texts import KINDS, work
from benchmarks.turns import Options, load_pair, median, ratios, take_turns
from sessions import begin_session, rounds_of
from specdec import _core
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


_FORMER_NAMES = {
    "DynamicTree": "Grown",
    "Ensemble": "Best",
    "ModelDraft": "Model",
    "ParallelChains": "Chains",
    "StaticTree": "Shape",
}


def _named(name: str) -> Any:
    """A class of `specdec.drafts`; an older build that is timed beside this one has its former name."""
    return getattr(ways, name) if hasattr(ways, name) else getattr(ways, _FORMER_NAMES[name])


SHORT, CHAINS, COPIES, OWN = (1, 2, 4), (1, 2, 3, 4, 6, 8), (2, 4, 8, 12, 16, 24), (None,)
"""Gammas to try; None is the draft's own number of nodes, as of trees, whose size is part of the draft."""

DRAFTS: dict[str, tuple[Make, Sequence[int | None]]] = {
    "model": (lambda target, draft: draft, CHAINS),
    "model, grown tree of 6": (
        lambda target, draft: _named("ModelDraft")(draft, tree=_named("DynamicTree")(6)),
        OWN,
    ),
    "model, 2 chains of 3": (
        lambda target, draft: _named("ModelDraft")(draft, tree=_named("ParallelChains")(2)),
        (6,),
    ),
    "model, drafted by a bigram": (
        lambda target, draft: _named("ModelDraft")(draft, draft=_table(2)(target, draft)),
        CHAINS,
    ),
    "random": (lambda target, draft: ways.Random(), SHORT),
    "unigram": (_table(1), SHORT),
    "bigram": (_table(2), CHAINS),
    "4-gram": (_table(4), CHAINS),
    "4-gram, online": (lambda target, draft: ways.OnlineNgram(_table(4)(target, draft)), CHAINS),
    "context copy": (lambda target, draft: ways.ContextCopy(), COPIES),
    "input copy": (lambda target, draft: ways.InputCopy(), COPIES),
    "suffix memory": (lambda target, draft: ways.SuffixMemory(), COPIES),
    "token recycling": (lambda target, draft: ways.TokenRecycling(), OWN),
    "early exit 3": (lambda target, draft: ways.EarlyExit(3), SHORT),
    "skip layers": (lambda target, draft: ways.SkipLayers(attn=(3,), mlp=(2, 3)), SHORT),
    "lookahead": (lambda target, draft: ways.Lookahead(), OWN),
    "best of copy and model": (lambda target, draft: _named("Ensemble")(ways.ContextCopy(), draft), OWN),
}


def _trees(n: int, sampling: bool) -> dict[str, tuple[Make, int]]:
    """Ways to spend n guesses a round, and chains; with the gamma of each."""
    shapes: dict[str, Any] = {f"ParallelChains({k})": _named("ParallelChains")(k) for k in (2, 4)}
    if sampling:
        for how in ("sample", "without replacement"):
            shapes[f"StaticTree.expected, {how}"] = _named("StaticTree").expected(n, how=how)
    else:
        shapes["StaticTree.expected, top-k"] = _named("StaticTree").expected(n, (0.88, 0.06, 0.02), "top-k")
    for width, steps in ((2, n), (3, 8)):
        shapes[f"DynamicTree(width={width}, steps={steps})"] = _named("DynamicTree")(
            n, width=width, steps=steps
        )
    chains: dict[str, tuple[Make, int]] = {
        f"chain of {k}": (lambda _, draft: draft, k) for k in (2, 3, 4, 6, n)
    }
    made = lambda tree: lambda _, draft: _named("ModelDraft")(draft, tree=tree)  # noqa: E731
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


# ---------------------------------------------------------------------------------------------- costs

COPYING: dict[str, object] = {
    "plain": None,
    "ContextCopy": ("context_copy", {"documents": None, "min_match": 2, "n_candidates": 1}),
    "ContextCopy, 4 candidates": ("context_copy", {"documents": None, "min_match": 2, "n_candidates": 4}),
    "InputCopy": ("input_copy", {"source": None, "start": 0, "min_match": 3, "n_candidates": 1}),
}
GREEDY = {"temperature": 0.0}


def costs_options(options: Options) -> None:
    options.pair()
    options.add("--text", type=Path, help="UTF-8, to copy; default: this repository's sources")
    options.many("--lengths", int, [1_000, 10_000, 100_000], help="tokens of a context that is copied")
    options.add("--gamma", type=int, default=8, help="of drafts that copy")
    options.many("--nodes", int, [4, 8, 16, 32], help="of trees")
    options.add("--cache", type=int, default=128, help="tokens in the KV cache of a forward")
    options.add("--rounds", type=int, default=60, help="of a tree's round")
    options.repeats(5)


def costs(args: argparse.Namespace, report: Report) -> None:
    """What drafting costs: a round with a draft that copies, by context; a tree's round over a chain's.

    Copying: microseconds per token of building a suffix automaton, and what a round of a session spends
    outside the target's forward pass, of it the proposal (a tiny target with a window of 8 tokens, so that
    the context costs nothing else). The texts: --text, and one token again and again.

    Trees: the target's forward of n + 1 rows, and a round but for the draft's forwards, of which a tree
    needs fewer, each over that of a chain of n nodes. Nothing is accepted there, so that chain and trees
    stand at the same position of the text, and every sibling is tried.
    """
    target, draft = load_pair(args.target, args.draft, args.dtype)
    _copying_costs(target, args, report)
    table = report.table(
        {"what": "", "n": "d", "chain ms": ".3f", "binary tree / chain": ".3f", "four chains / chain": ".3f"},
        "A round with n guesses: a tree over a chain",
    )
    for n in args.nodes:
        jobs = {"the target's forward": _forward_jobs(target, n, args)}
        for temperature in (0.0, 1.0):
            name = f"a round without drafting, temperature {temperature:g}"
            jobs[name] = _round_jobs(target, draft, n, temperature, args)
        for what, job in jobs.items():
            take_turns(job, 3)  # warm caches and threads
            times = take_turns(job, args.rounds)
            over = [ratios(times[name], times["chain"]) for name in ("binary", "fan")]
            table.row(what, n, Spread.of(1e3 * t for t in times["chain"]), *over)


def _copying_costs(target: specdec.Model, args: argparse.Namespace, report: Report) -> None:
    assert target.tokenizer is not None
    text = args.text.read_text(encoding="utf-8") if args.text else _sources()
    natural = target.tokenizer.encode(text[: 8 * max(args.lengths)], add_bos=False)
    names = {f"{name}: us a round{of}": ".1f" for name in COPYING for of in ("", ", proposal")}
    columns = {"text": "", "tokens": "d", "us per token read": ".2f", "bytes per token": ".0f", **names}
    table = report.table(columns, f"Copying, gamma {args.gamma}")
    for name, ids in {"natural": natural, "one token": [7] * max(args.lengths)}.items():
        for n in (n for n in args.lengths if n <= len(ids)):
            array = np.array(ids[:n], np.int32)
            seconds = []
            for _ in range(args.repeats):
                begun = time.perf_counter()
                automaton = _core.Automaton(array)
                seconds.append(1e6 * (time.perf_counter() - begun) / n)
            tiny = _tiny_target(target.config["n_vocab"], n + 64)
            rounds = [
                us for method in COPYING.values() for us in _round_us(tiny, method, ids[:n], args.gamma)
            ]
            table.row(name, n, Spread.of(seconds), automaton.n_bytes / n, *rounds)


def _tiny_target(n_vocab: int, n_ctx: int) -> _core.Model:
    sizes = {"n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_model": 16, "d_head": 16, "d_ff": 16}
    frequencies = [10000.0 ** (-i / 8) for i in range(8)]
    config = next(iter(NARROW.values())) | sizes
    config |= {"inv_freq": frequencies, "tied": True, "sliding_window": 8, "n_vocab": n_vocab, "n_ctx": n_ctx}
    rng = np.random.default_rng(0)
    shapes = _core.tensor_shapes(config).items()
    return _core.Model(config, ((n, rng.standard_normal(s).astype(np.float32), "f32") for n, s in shapes))


def _sources() -> str:
    """The text of this repository's sources and documents."""
    files = [path for part in ("docs", "python", "csrc", "tests") for path in (ROOT / part).rglob("*")]
    kinds = {".md", ".py", ".c", ".h"}
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(files) if path.suffix in kinds)


def _round_us(target: _core.Model, draft: Any, prompt: list[int], gamma: int) -> tuple[float, float]:
    """Microseconds of a round outside the target's forward pass, and of the proposal; medians."""
    session = begin_session(
        target, draft, [prompt], gamma=gamma if draft else 0, n_threads=1, max_new_tokens=60,
        sampling=GREEDY, draft_sampling=GREEDY,
    )  # fmt: skip
    records = []
    while batch := rounds_of(session):
        records += batch
    session.close()
    outside = median(record["draft_s"] + record["other_s"] for record in records)
    return 1e6 * outside, 1e6 * median(record["draft_s"] for record in records)


def _parents(n_nodes: int) -> dict[str, list[int]]:
    """A chain, a tree in which every node has two children, four chains side by side."""
    return {
        "chain": list(range(n_nodes)),
        "binary": [(node - 1) // 2 for node in range(1, n_nodes + 1)],
        "fan": [max(0, node - 4) for node in range(1, n_nodes + 1)],
    }


def _forward_jobs(
    model: specdec.Model, n_nodes: int, args: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    """Seconds of a forward of a root with so many nodes."""
    ids = np.random.default_rng(0).integers(0, model.config["n_vocab"], args.cache + n_nodes + 1).tolist()

    def job(parents: list[int]) -> Callable[[], float]:
        options = {"capacity": len(ids), "max_nodes": n_nodes + 1, "n_threads": args.threads}
        decoder = _core.Decoder(model.core, **options)
        decoder.prefill(ids[: args.cache])

        def run() -> float:
            begun = time.perf_counter()
            decoder.forward(ids[args.cache :], [-1, *parents])
            return time.perf_counter() - begun

        return run

    return {name: job(parents) for name, parents in _parents(n_nodes).items()}


def _round_jobs(
    target: specdec.Model, draft: specdec.Model, n_nodes: int, temperature: float, args: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    """Seconds of a round, but for the draft's forwards.

    The target is biased to one token and the draft away from it, so that nothing is accepted.
    """
    how, token = "without replacement" if temperature > 0 else "top-k", 300
    settings = {"temperature": temperature}

    def job(name: str, parents: list[int]) -> Callable[[], float]:
        described = ("static_tree", {"model": draft.core, "parents": parents, "how": how})
        session = begin_session(
            target.core, draft.core if name == "chain" else described, [list(range(100, 180))], gamma=n_nodes,
            n_threads=args.threads, seed=1, max_new_tokens=args.rounds + n_nodes + 9,
            sampling=settings | {"logit_bias": {token: 1000.0}},
            draft_sampling=settings | {"logit_bias": {token: float("-inf")}},
        )  # fmt: skip

        def run() -> float:
            (record,) = rounds_of(session)
            if len(record["drafted"]) != n_nodes or record["path"]:
                raise RuntimeError("a round of another size, or an accepted draft")
            return record["verify_s"] + record["other_s"]

        return run

    return {name: job(name, parents) for name, parents in _parents(n_nodes).items()}
