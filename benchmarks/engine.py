"""Speed-ups with a draft model, measured and predicted."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import numpy as np

import specdec
from benchmarks.builds import Builds
from benchmarks.decodings import Decodings, run_cells, traces
from benchmarks.interleaved import PROMPTS, Options, median, progress
from benchmarks.report import Report, Speedup, Spread
from benchmarks.sessions import begin_session, rounds_of
from benchmarks.shapes import random_model
from specdec import _core
from specdec.theory import expected_tokens

SLICE_S = 0.02
PARTS = ("draft_s", "verify_s", "other_s")
RULES = ("rejection", "block", "traversal", "coupled", "classical", "k-sequential")

# ---------------------------------------------------------------------------------------------- speed


def speed_options(options: Options) -> None:
    options.pair()
    options.many("--gamma", int, [1, 2, 3, 4, 5, 6])
    options.many("--temperature", float, [0.0, 1.0])
    options.many("--verify", str, ["rejection"], choices=RULES, help="rules; all are equal at temperature 0")
    options.many("--lenience", float, [1.0], help="of the rule rejection")
    options.add("--tokens", type=int, default=200, help="new tokens after each of five prompts")
    options.repeats(9)
    options.against()


def speed(args: argparse.Namespace, report: Report) -> None:
    """Plain and speculative decoding of a pair: measured, predicted and ideal speed-up.

    Interleaved runs of plain decoding and all settings, in wall clock time without prefill. predicted is
    `Trace.predicted_speedup` with t(1) of the same repeat's plain run; ideal is `Trace.ideal_speedup`
    (Theorem 3.8, verification as fast as a plain step). At temperature 0 all texts must equal plain
    decoding's.
    """
    with Builds(
        args.against,
        Decodings,
        target=args.target,
        draft=args.draft,
        dtype=args.dtype,
        n_threads=args.threads,
    ) as builds:
        report.say(f"\n{builds.described or builds.all[0].ask('described')}")
        columns = {
            "temperature": "g", "gamma": "d", "rule": "", "plain tokens/s": ".0f", "tokens/s": ".0f",
            "measured speed-up": ".2f", "predicted": ".2f", "ideal": ".2f", "tokens per pass": ".2f",
            "alpha": ".3f", "c": ".3f",
        }  # fmt: skip
        if args.against:
            columns |= {"plain over other build": ".3f", "over other build": ".3f"}
        table = report.table(columns, f"{args.tokens} new tokens after each of {len(PROMPTS)} prompts")
        for temperature in args.temperature:
            keys = [
                (gamma, rule, lenience)
                for gamma, rule, lenience in itertools.product(args.gamma, args.verify, args.lenience)
                if (temperature > 0 or rule == args.verify[0]) and (lenience == 1.0 or rule == "rejection")
            ]

            def run(repeat: int, key: Any, temperature: float = temperature) -> list[Any]:
                gamma, rule, lenience = key
                return builds.ask(
                    repeat, "run", prompts=PROMPTS, n_tokens=args.tokens, seed=repeat, gamma=gamma,
                    temperature=temperature, verify=rule, lenience=lenience,
                )  # fmt: skip

            plain = (0, "rejection", 1.0)
            cells = run_cells(
                keys, run, args.repeats, plain, equal=temperature == 0 and args.lenience == [1.0]
            )
            for (gamma, rule, lenience), cell in cells.items():
                if gamma == 0:
                    continue
                name = rule if lenience == 1.0 else f"{rule}, l = {lenience:g}"
                row = [
                    temperature, gamma, name, Spread.of(1 / one["seconds"] for one in cell.plain),
                    Spread.of(1 / one["seconds"] for one in cell.runs), cell.speedup,
                    cell.mean("predicted_speedup"), cell.mean("ideal_speedup"), cell.tokens_per_call,
                    cell.mean("acceptance_rate"), cell.mean("cost_coefficient"),
                ]  # fmt: skip
                table.row(*row, *([cells[plain].against, cell.against] if args.against else []))


# ----------------------------------------------------------------------------------- fixed acceptance


class FixedAcceptance:
    """A model pair, a prompt, and drafts with a given acceptance rate.

    Parameters
    ----------
    pair : str
        "embedded", or two shapes joined by +.
    dtype : str
        Number format of both models.
    cache : int
        Mean tokens in the KV cache.
    n_tokens : int
        New tokens of a run.
    n_threads : int
    """

    def __init__(self, pair: str, dtype: str, cache: int, n_tokens: int, n_threads: int) -> None:
        if pair == "embedded":
            self.target, self.draft = (model.core for model in specdec.embedded_pair(dtype, dtype))
        else:
            self.target, self.draft = (random_model(name, dtype) for name in pair.split("+"))
        self.n_threads, self.n_tokens = n_threads, n_tokens
        self.n_vocab = self.target.config["n_vocab"]
        self.ids = np.random.default_rng(0).integers(0, self.n_vocab, cache + 64).tolist()
        self.prompt = self.ids[: max(2, cache - n_tokens // 2)]
        options = {"capacity": cache + 64, "max_nodes": 64, "n_threads": n_threads}
        self.decoders = [_core.Decoder(model, **options) for model in (self.target, self.draft)]
        for decoder in self.decoders:
            decoder.prefill(self.ids[:cache])
        self.text = self.prompt + Decoding(self, 0, None, 0).finish().tokens

    def forward_s(self, gamma: int) -> tuple[float, float]:
        """Time gamma draft steps, and then the target's gamma + 1 rows."""
        target, draft = self.decoders
        tokens, parents = self.ids[: gamma + 1], list(range(-1, gamma))
        begun = time.perf_counter()
        for token in tokens[:gamma]:
            draft.forward([token], [-1])
        drafted = time.perf_counter()
        target.forward(tokens, parents)
        return drafted - begun, time.perf_counter() - drafted

    def cell(self, alpha: float, gamma: int, seed: int) -> dict[str, Any]:
        """Measure one alpha and gamma: decoding and forward passes, interleaved in slices."""
        plain, run = Decoding(self, 0, None, 0), Decoding(self, gamma, alpha, seed)
        one, steps, rows = [], [], []
        while (n_plain := plain.advance()) + (n_rounds := run.advance()) > 0:
            one += [self.forward_s(0)[1] for _ in range(n_plain)]
            for _ in range(n_rounds):
                steps_s, rows_s = self.forward_s(gamma)
                steps.append(steps_s / gamma)
                rows.append(rows_s)
        if self.prompt + run.tokens != self.text:
            raise RuntimeError("speculative and plain decoding differ")
        # a Decoder copies its logits to new arrays, a round does not
        copy_one, copy_rows = (self._copy_s(m) for m in (1, gamma + 1))
        t_one, t_draft = median(one) - copy_one, median(steps) - copy_one
        t_round = gamma * t_draft + median(rows) - copy_rows
        as_run = self.n_tokens / len(run.rounds)
        return {
            "as_run": as_run,
            "measured": plain.round_s * as_run / run.round_s,
            "theory": float(expected_tokens(alpha, gamma)) * t_one / t_round,
            "ratio": (plain.round_s / run.round_s) / (t_one / t_round),
            "c": t_draft / t_one,
            "machinery": run.machinery_s / run.round_s,
            "round_s": run.round_s,
            "rounds": [run.rounds],
            "plain": [plain.rounds],
        }

    def _copy_s(self, m: int) -> float:
        logits, times = np.zeros((m, self.n_vocab), np.float32), []
        for _ in range(50):
            begun = time.perf_counter()
            logits.copy()
            times.append(time.perf_counter() - begun)
        return median(times)


class Decoding:
    """One decoding of the benchmark's text in slices, with acceptance rate alpha."""

    def __init__(
        self,
        of: FixedAcceptance,
        gamma: int,
        alpha: float | None,
        seed: int,
        sampling: dict[str, float] | None = None,
    ) -> None:
        settings = {"temperature": 0.0, **(sampling or {})}
        options = {
            "gamma": gamma, "max_new_tokens": of.n_tokens, "seed": seed, "n_threads": of.n_threads,
            "sampling": settings, "draft_sampling": settings,
        }  # fmt: skip
        draft = of.draft if gamma else None
        if alpha is None:
            self._session = begin_session(of.target, draft, [of.prompt], **options)
        else:
            self._session = _fixed_acceptance(of, draft, alpha, options)
        self._n_left = of.n_tokens
        self.tokens: list[int] = []
        self.rounds: list[dict[str, Any]] = []
        self.slices: list[tuple[float, int]] = []  # seconds and rounds

    def advance(self) -> int:
        """Run one slice and return its number of rounds."""
        begun = time.perf_counter()
        records = rounds_of(self._session, SLICE_S)
        for record in records:
            kept = min(self._n_left, len(record["tokens"]))
            self._n_left -= kept
            self.tokens += record["tokens"][:kept]
            self.rounds.append(
                {
                    "index": len(self.rounds), "kept": kept,
                    **{key: record[key] for key in ("drafted", "parents", "path", "tokens", "betas")},
                    **{key: record[key] for key in PARTS},
                }
            )  # fmt: skip
        if records:
            self.slices.append((time.perf_counter() - begun, len(records)))
        return len(records)

    def finish(self) -> Decoding:
        """Run all remaining rounds."""
        while self.advance():
            pass
        self._session.close()
        return self

    @property
    def round_s(self) -> float:
        """Wall clock seconds per round in the median slice."""
        return median(seconds / n for seconds, n in self.slices)

    @property
    def machinery_s(self) -> float:
        """Seconds per round outside forward passes, in the median slice."""
        rounds = iter(self.rounds)
        others = []
        for seconds, n in self.slices:
            forward = sum(r["draft_s"] + r["verify_s"] for r in itertools.islice(rounds, n))
            others.append((seconds - forward) / n)
        return median(others)


def _fixed_acceptance(
    of: FixedAcceptance, draft: Any, alpha: float, options: dict[str, Any]
) -> _core.Session:
    """Return a session whose draft is right with probability alpha."""
    described = ("fixed_acceptance", {"draft": draft, "alpha": alpha, "texts": [of.text]})
    try:
        return begin_session(of.target, described, [of.prompt], **options)
    except ValueError as error:
        if "no method" not in str(error):
            raise
        reason = error
    raise RuntimeError(
        "drafts with a given acceptance rate need a build with test hooks: "
        "pip install . -C cmake.define.SPECDEC_TESTING=ON"
    ) from reason


def _fixed_options(options: Options) -> None:
    options.many("--pairs", str, ["embedded", "paper97+paper6", "L1B+L60M"], help="embedded, or SHAPE+SHAPE")
    options.many("--dtypes", str, ["f32"], help="number formats of both models")
    options.add("--cache", type=int, default=128, help="mean tokens in the KV cache")
    options.add("--tokens", type=int, default=100, help="new tokens of a run")
    options.repeats(5)


def fixed_acceptance_options(options: Options) -> None:
    _fixed_options(options)
    options.many("--alpha", float, [0.5, 0.6, 0.7, 0.8, 0.9])
    options.many("--gamma", int, range(1, 11))
    options.against()


def fixed_acceptance(args: argparse.Namespace, report: Report) -> None:
    """Speed-up with drafts of a given acceptance rate: measured, predicted, ideal.

    The draft model does all its work, but each draft token is then replaced by a correct one with probability
    alpha, else by a wrong one. This needs a build with test hooks (SPECDEC_TESTING=ON). The output must equal
    plain decoding. Slices of plain decoding, speculative decoding and forward passes are interleaved.
    Columns:

    measured   wall clock time per token of plain over speculative decoding, in the median slice of 20 ms
    predicted  `Trace.predicted_speedup` of the speculative run, with t(1) of the plain one
    ideal      `Trace.ideal_speedup` (Theorem 3.8, verification as fast as a plain step)
    theory     E(tokens) t(1) / (gamma t_draft + t(gamma + 1)), with E(tokens) of equation (1) and separately
               timed forward passes, in the order of a round and on a cache of the same length
    ratio      measured over theory at the actual tokens per pass, which differ from E(tokens) by chance
    machinery  share of a round outside forward passes
    """
    if not all(0 < alpha < 1 for alpha in args.alpha) or min(args.gamma) < 1:
        raise SystemExit("expected alphas between 0 and 1 and gammas of at least 1")
    for pair, dtype in itertools.product(args.pairs, args.dtypes):
        settings = {
            "pair": pair, "dtype": dtype, "cache": args.cache, "n_tokens": args.tokens,
            "n_threads": args.threads,
        }  # fmt: skip
        with Builds(args.against, FixedAcceptance, **settings) as builds:
            if builds.described:
                report.say(f"\n{builds.described}")
            builds.ask(0, "cell", alpha=args.alpha[0], gamma=max(args.gamma), seed=0)  # warms up
            found: dict[tuple[float, int], list[list[dict[str, Any]]]] = {
                key: [] for key in itertools.product(args.alpha, args.gamma)
            }
            for repeat, key in progress(
                list(itertools.product(range(args.repeats), found)), f"{pair} {dtype}"
            ):
                found[key].append(builds.ask(repeat, "cell", alpha=key[0], gamma=key[1], seed=repeat))
            _fixed_table(found, f"{pair}, {dtype}", report)


def _fixed_table(
    found: dict[tuple[float, int], list[list[dict[str, Any]]]], title: str, report: Report
) -> None:
    columns = {
        "alpha": "g", "gamma": "d", "tokens per pass": ".2f", "(expected)": ".2f", "measured speed-up": ".2f",
        "predicted": ".2f", "ideal": ".2f", "theory": ".2f", "ratio": ".3f", "c": ".3f", "round ms": ".2f",
        "machinery %": ".1f",
    }  # fmt: skip
    two = len(next(iter(found.values()))[0]) == 2
    table = report.table(columns | ({"over other build": ".3f"} if two else {}), title)
    valid: dict[str, list[float]] = {"ratio": [], "measured over predicted": [], "measured over ideal": []}
    shares = []
    for (alpha, gamma), turns in found.items():
        cells = [repeat[0] for repeat in turns]
        middle = {key: median(cell[key] for cell in cells) for key in ("as_run", "theory", "ratio", "c")}
        figures = {
            name: median(
                getattr(traces({"rounds": cell["rounds"]}, {"rounds": cell["plain"]})[0], name)
                for cell in cells
            )
            for name in ("predicted_speedup", "ideal_speedup")
        }
        measured = Speedup.over([cell["measured"] for cell in cells], [cell["as_run"] for cell in cells])
        machinery = Spread.of(100 * cell["machinery"] for cell in cells)
        row = [
            alpha, gamma, middle["as_run"], float(expected_tokens(alpha, gamma)), measured,
            figures["predicted_speedup"], figures["ideal_speedup"], middle["theory"],
            middle["ratio"], middle["c"], Spread.of(1e3 * cell["round_s"] for cell in cells),
            machinery.median,
        ]  # fmt: skip
        if two:
            row.append(Spread.of(other["round_s"] / this["round_s"] for this, other in turns))
        table.row(*row)
        shares.append(machinery.median)
        if not measured.invalid:
            valid["ratio"].append(middle["ratio"])
            valid["measured over predicted"].append(measured.median / figures["predicted_speedup"])
            valid["measured over ideal"].append(measured.median / figures["ideal_speedup"])
    report.say()
    for name, values in valid.items():
        if values:
            near = sum(abs(value - 1) <= 0.05 for value in values)
            report.say(
                f"- {name}: median {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}, "
                f"within 5 % in {near} of {len(values)}"
            )
    report.say(f"- machinery: median {median(shares):.1f} %, {min(shares):.1f} to {max(shares):.1f} %")
