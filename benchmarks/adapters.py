"""Programs: adapters, what drafts of the base give an adapted target; adapter-costs, of a forward."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.drafts import DRAFTS
from benchmarks.kernels import n_matrix_bytes
from benchmarks.report import Report
from benchmarks.texts import spread_prompts
from benchmarks.turns import DTYPES, Options, core_model, median, ratios, take_turns
from sessions import begin_session, rounds_of
from specdec import _core

WINDOW, N_WINDOWS = 256, 32
"""Tokens that are scored together, and how many such pieces of a text."""

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_out", "mlp_gate", "mlp_up", "mlp_down")
"""What the adapters of `adapter-costs` are for, in every layer."""


def adapters_options(options: Options) -> None:
    options.many(
        "--adapters", Path, [], metavar="FOLDER", help="of adapters, as training/train_adapter.py writes"
    )
    options.many(
        "--drafts", str, ("model", "context copy", "4-gram"), choices=DRAFTS, metavar="NAME",
        help=", ".join(DRAFTS),
    )  # fmt: skip
    options.many(
        "--draft-adapters", Path, [], metavar="FOLDER", help="of the draft, one for each of --adapters"
    )
    options.many("--temperature", float, [0.0, 1.0])
    options.add("--gamma", type=int, default=4)
    options.add("--prompts", type=int, default=12)
    options.add("--tokens", type=int, default=100, help="new tokens of a text")


def adapters(args: argparse.Namespace, report: Report) -> None:
    """Drafts of the embedded target on that target with adapters and without, on text that adapters learnt.

    Loss: mean −ln p of a token of the held-out text, in nats. Alpha: the mean acceptance of verified
    positions, with its 95 % interval. Prompts are pieces of the held-out text; the drafts are those of the
    base, and of an n-gram the text that it counted is the base's own. "model, adapted" is the small model
    with an adapter of its own.
    """
    base, small = specdec.embedded_pair()
    losses = report.table(
        {"adapter": "", "held-out tokens": "d", "loss, base": ".3f", "loss, adapted": ".3f"}
    )
    held_out = {folder: (folder / "held_out.txt").read_text(encoding="utf-8") for folder in args.adapters}
    for folder, text in held_out.items():
        pieces = _windows(base, text)
        models = (base, base.with_adapter(folder))
        losses.row(folder.name, sum(map(len, pieces)), *(_loss(one, pieces, args.threads) for one in models))
    table = report.table(
        {
            "text": "", "draft": "", "T": "g", "target": "", "alpha": ".3f", "from": ".3f", "to": ".3f",
            "tokens per run": ".2f",
        }, "Acceptance",
    )  # fmt: skip
    named = {name: DRAFTS[name][0](base, small) for name in args.drafts}
    for i, (folder, text) in enumerate(held_out.items()):
        drafts = dict(named)
        if args.draft_adapters:
            drafts["model, adapted"] = small.with_adapter(args.draft_adapters[i])
        prompts = spread_prompts(text, base, args.prompts, 48)
        adapted = base.with_adapter(folder)
        for name, draft in drafts.items():
            for temperature in args.temperature:
                for what, adapter in (("base", None), ("adapted", adapted)):
                    results = specdec.generate(
                        base, draft, prompts, adapter=adapter, gamma=args.gamma, temperature=temperature,
                        max_new_tokens=args.tokens, seed=1, ignore_eos=True, n_threads=args.threads,
                    )  # fmt: skip
                    trace = specdec.Trace.joined(result.trace for result in results)
                    interval = trace.acceptance_interval()
                    table.row(
                        folder.name, name, temperature, what, trace.acceptance_rate, *interval,
                        trace.tokens_per_call,
                    )  # fmt: skip


def _windows(model: specdec.Model, text: str) -> list[list[int]]:
    """Pieces of a text from its beginning to its end."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text, add_bos=False)
    length = min(WINDOW, len(ids))
    starts = np.unique(np.linspace(0, len(ids) - length, N_WINDOWS).astype(int))
    return [ids[start : start + length] for start in starts]


def _loss(model: specdec.Model, pieces: Sequence[Sequence[int]], n_threads: int) -> float:
    scores = model.score(pieces, n_threads=n_threads)
    return float(-np.mean(np.concatenate([score.log_probs for score in scores])))


# ---------------------------------------------------------------------------------------------- costs


def adapter_costs_options(options: Options) -> None:
    options.many(
        "--models", str, ["target", "draft"], help="target, draft: of the embedded pair; a shape; a path"
    )
    options.many("--dtypes", str, [None], choices=DTYPES, help="default: as stored; bf16 for a shape")
    options.many("--ranks", int, [8, 16, 64])
    options.many("--rows", int, [1, 5, 9], metavar="M", help="rows of a sequence")
    options.add("--cache", type=int, default=64, help="tokens of a text where it begins")
    options.repeats(15)


def adapter_costs(args: argparse.Namespace, report: Report) -> None:
    """A run of the target with adapters beside all matrices of its layers, over one of the base.

    One text, and three texts in a batch, each with an adapter of its own or all without. The base and all
    ranks take turns; a turn is the quickest of nine runs, as other programs interrupt some.
    """
    for model in args.models:
        for dtype in args.dtypes:
            _costs_table(model, dtype, args, report)


def _costs_table(name: str, dtype: str | None, args: argparse.Namespace, report: Report) -> None:
    base = core_model(name, dtype, n_threads=args.threads)
    adapted = {rank: [_adapted(base, rank, seed) for seed in range(3)] for rank in args.ranks}
    shares = [
        _n_numbers(base.config, rank) * 4 / n_matrix_bytes(base.config, base.dtype, {}) for rank in args.ranks
    ]
    said = ", ".join(f"{rank}: {share:.1%}" for rank, share in zip(args.ranks, shares, strict=True))
    columns = {"texts": "d", "M": "d", "base [ms]": ".2f"}
    table = report.table(
        columns | {f"rank {rank} / base": ".3f" for rank in args.ranks}, f"{name}, {base.dtype}"
    )
    for n_texts in (1, 3):
        for m in args.rows:
            jobs = {0: _rounds(base, [None] * n_texts, m, args)}
            for rank, models in adapted.items():
                jobs[rank] = _rounds(base, models[:n_texts], m, args)
            for job in jobs.values():
                job()
            times = take_turns(jobs, args.repeats)
            over = [ratios(times[rank], times[0]) for rank in args.ranks]
            table.row(n_texts, m, 1e3 * median(times[0]), *over)
    report.say(f"\nBytes of one adapter over those of the base's matrices, by rank: {said}.")


def _adapted(base: _core.Model, rank: int, seed: int) -> _core.Model:
    rng, ranks, tensors = np.random.default_rng(seed), {}, []
    for name, (n_rows, n_cols) in _adaptable(base.config).items():
        ranks[name] = rank
        for part, shape in (("down", (rank, n_cols)), ("up", (n_rows, rank))):
            tensors.append((f"{name}.{part}", 0.01 * rng.standard_normal(shape, np.float32), "f32"))
    return base.adapted(ranks, tensors)


def _adaptable(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {
        name: (shape[0], shape[1])
        for name, shape in _core.tensor_shapes(config).items()
        if name.endswith(".weight") and name.split(".")[-2] in MATRICES
    }


def _n_numbers(config: dict[str, Any], rank: int) -> int:
    return sum(rank * sum(shape) for shape in _adaptable(config).values())


def _rounds(
    base: _core.Model, models: Sequence[_core.Model | None], m: int, args: argparse.Namespace
) -> Callable[[], float]:
    """Seconds of the target in a round of M rows for each text: the least of a few rounds."""
    sampling = {"temperature": 0.0}
    n_ctx, rng = base.config["n_ctx"], np.random.default_rng(0)
    prompts = [rng.integers(0, base.config["n_vocab"], args.cache).tolist() for _ in models]
    settings = [
        _core.Settings(max_new_tokens=n_ctx - args.cache, sampling=sampling, stop_ids=[], model=model)
        for model in models
    ]
    n_rounds = 9

    def begun() -> _core.Session:
        draft = ("random", {}) if m > 1 else None
        return begin_session(base, draft, prompts, gamma=m - 1, n_threads=args.threads, settings=settings)

    session = begun()

    def run() -> float:
        nonlocal session
        seconds: list[float] = []
        while len(seconds) < n_rounds:
            records = rounds_of(session)
            if len(records) < len(models) or any(record["n_rows"] != m for record in records):
                session.close()  # the context is full
                session = begun()
                continue
            seconds.append(records[0]["verify_s"])
        return min(seconds)

    return run
