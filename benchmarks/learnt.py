"""Drafts that are learnt, beside all others: what they take to train, and what they bring."""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specdec
from benchmarks.decodings import Cell, Decodings, Run, run_cells
from benchmarks.drafts import DRAFTS
from benchmarks.report import Report
from benchmarks.texts import work
from benchmarks.turns import Options, progress
from specdec import drafts as ways

CHAINS = (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class Tried:
    """A draft of the table.

    Attributes
    ----------
    name : str
    ways : mapping of str to object
        The ways to use it, by name: drafts as `specdec.generate` takes them; in trees, for example.
    n_parameters : int or None
        None: it has none.
    minutes : float
        Of training; NaN: it was not trained, or nobody wrote down how long.
    target : specdec.Model or None
        Its own target, where training changed that; None: the target of the table.
    """

    name: str
    ways: Mapping[str, Any]
    n_parameters: int | None = None
    minutes: float = math.nan
    target: specdec.Model | None = None


def learnt_options(options: Options) -> None:
    options.pair()
    options.many("--learnt", Path, [], metavar="FOLDER", help="of drafts that `specdec train draft` wrote")
    options.many(
        "--drafts",
        str,
        DRAFTS,
        choices=DRAFTS,
        metavar="NAME",
        help="others, to compare: " + ", ".join(DRAFTS),
    )
    options.many("--gamma", int, CHAINS, help="of chains")
    options.many("--nodes", int, [4, 8], help="of trees")
    options.many("--temperature", float, [0.0, 1.0])
    options.add("--tokens", type=int, default=200, help="new tokens of a text")
    options.repeats(5)


def learnt(args: argparse.Namespace, report: Report) -> None:
    """Every draft on prose: parameters, minutes of training, alpha, c, tokens per run, speed-up.

    Plain decoding and all settings of one draft take turns on the same prompts; time is by the clock on the
    wall, without the prefill of prompts. A row shows the fastest way to use a draft, chains of some guesses
    and trees of so many nodes, picked afterwards; and gamma="auto" with chains. A draft that was trained with
    its target, such as an exit, is compared with that target's own plain decoding.
    """
    decodings = Decodings(args.target, args.draft, args.dtype, args.threads)
    report.say(f"\n{decodings.described()}")
    figures = {"way": "", "alpha": ".2f", "c": ".3f", "tokens per run": ".2f", "measured speed-up": ".2f"}
    table = report.table(
        {
            "draft": "",
            "parameters": "",
            "minutes": ".1f",
            "T": "g",
            **figures,
            "auto: measured speed-up": ".2f",
        }
    )
    found = [_opened(folder, decodings.target, args.nodes) for folder in args.learnt]
    found += [_other(name, decodings) for name in args.drafts]
    for tried in progress(found, "drafts"):
        for temperature in args.temperature:
            cells = _cells(decodings, tried, args, temperature)
            auto = cells.pop(("chain", "auto"))
            # an invalid speed-up is no result, so it is not the best one
            best = max(cells, key=lambda key: (not cells[key].speedup.invalid, cells[key].speedup.median))
            way = best[0] if best[1] is None else f"{best[0]} of {best[1]}"
            size = "–" if tried.n_parameters is None else f"{tried.n_parameters:,}"
            row = [tried.name, size, tried.minutes, temperature, way, *_figures(cells[best]), auto.speedup]
            table.row(*row)


def _figures(cell: Cell) -> list[Any]:
    return [
        cell.mean("acceptance_rate"), cell.mean("cost_coefficient"), cell.tokens_per_run, cell.speedup,
    ]  # fmt: skip


def _opened(folder: Path, target: specdec.Model, nodes: list[int]) -> Tried:
    """A draft that was trained, as a chain and in trees."""
    own = None
    if (folder / "specdec_exit.json").exists():
        own = target = specdec.load(folder)
    draft = ways.load(folder, target)
    found: dict[str, Any] = {"chain": draft}
    if not isinstance(draft, ways.EarlyExit):
        for n in nodes:
            found[f"sampled tree of {n}"] = ways.load(folder, target, tree=ways.StaticTree.expected(n))
            found[f"grown tree of {n}"] = ways.load(folder, target, tree=ways.DynamicTree(n))
    summary = folder / "training" / "summary.json"
    if not summary.exists():
        return Tried(folder.name, found, target=own)
    said = json.loads(summary.read_text(encoding="utf-8"))
    name = f"{folder.name} ({said['kind']})"
    return Tried(name, found, n_parameters=said["n_parameters"], minutes=said["minutes"], target=own)


def _other(name: str, decodings: Decodings) -> Tried:
    make, gammas = DRAFTS[name]
    draft = make(decodings.target, decodings.draft)
    n_parameters = draft.n_parameters if isinstance(draft, specdec.Model) else None
    return Tried(name, {"own" if gammas == (None,) else "chain": draft}, n_parameters=n_parameters)


def _cells(
    decodings: Decodings, tried: Tried, args: argparse.Namespace, temperature: float
) -> dict[tuple[str, Any], Cell]:
    """Of (way, gamma), in turns with plain decoding; gamma None is the way's own."""
    keys: list[tuple[str, Any]] = []
    for way in tried.ways:
        keys += [("chain", gamma) for gamma in (*args.gamma, "auto")] if way == "chain" else [(way, None)]
    if "chain" not in tried.ways:
        keys.append(("chain", "auto"))
    plain = ("", 0)
    ours = copy.copy(decodings)
    ours.target = tried.target or decodings.target

    def run(turn: int, key: tuple[str, Any]) -> list[Run]:
        way, gamma = key
        draft = None if key == plain else tried.ways.get(way, next(iter(tried.ways.values())))
        texts = work(ours.target, "prose", args.tokens)
        return [ours.decode(draft, texts, seed=1000 * turn, gamma=gamma, temperature=temperature)]

    found = run_cells(keys, run, args.repeats, plain, equal=temperature == 0)
    del found[plain]
    return found
