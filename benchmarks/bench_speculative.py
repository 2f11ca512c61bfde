"""End to end with drafts of known acceptance: the measured speed-up beside what is predicted.

    python benchmarks/bench_speculative.py
    python benchmarks/bench_speculative.py --pairs paper97+paper6 --dtype int8 --alpha 0.8 --gamma 4 5 6

The draft model does all its work, but then each of its guesses is made right with probability alpha and wrong
otherwise (the drafting method `fixed_acceptance` of the core), so that alpha is known and the same at every
position. The output must still be that of plain decoding, token by token, which is checked.

The method is part of a build with hooks only: ``pip install . -C cmake.define.SPECDEC_TESTING=ON``.

Columns, for each alpha and gamma:

- *measured*: seconds per token of plain decoding over those of speculative decoding, by the clock on the
  wall, all work of a round included (records, text); of slices of 20 ms the median one;
- *predicted*: `Trace.predicted_speedup` of the speculative run, with t(1) of the plain one, as
  users see it;
- *ideal*: its `Trace.ideal_speedup`, Theorem 3.8: were verification as fast as a plain step;
- *law*: E(tokens) · t(1) / (gamma · t_draft + t(gamma + 1)) with E(tokens) of equation (1) for this alpha,
  and forward passes timed alone, in the order of a round and on a cache as long as the text is on average;
- *ratio*: measured over law at the tokens per round that came about, which differ from E(tokens) by chance;
- *machinery*: share of a round that is no forward pass of either model.

Each speculative run takes turns with a plain one and with forward passes, slice by slice, and medians over
the repeats are reported: the speed of a shared machine changes within seconds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterable

import numpy as np

import specdec
from bench_roofline import logits_copy_s
from machine import describe
from shapes import random_model
from specdec import _core
from specdec.run import SLICE_S, SequenceState, continuation_decoder
from specdec.stopping import StopRules
from specdec.theory import expected_tokens
from specdec.trace import Trace

PAIRS = ("embedded", "paper97+paper6", "L1B+L60M")


def load_pair(name: str, dtype: str) -> tuple[specdec.Model, specdec.Model]:
    if name != "embedded":
        target, draft = name.split("+")
        return random_model(target, dtype), random_model(draft, dtype)
    return specdec.embedded_pair(dtype)


class Decoding:
    """One decoding of the benchmark's text, slice by slice, as `specdec.generate` does it."""

    def __init__(self, bench: Bench, gamma: int, alpha: float | None, seed: int, sampling: dict) -> None:
        settings = {"temperature": 0.0, **sampling}
        draft = bench.draft.core if gamma else None
        if alpha is not None:
            draft = ("fixed_acceptance", draft, alpha, [bench.text])
        self._session = _core.Session(
            bench.target.core, draft, [bench.prompt], gamma=gamma,
            max_new_tokens=bench.n_tokens, seeds=[(seed, 0)], n_threads=bench.n_threads,
            sampling=settings, draft_sampling=settings,
        )  # fmt: skip
        self._session.prefill()
        tokenizer = bench.target.tokenizer
        decoder = None if tokenizer is None else continuation_decoder(tokenizer, bench.prompt)
        self.state = SequenceState(decoder, StopRules(), bench.n_tokens, "length")
        self.slices: list[tuple[float, int]] = []  # seconds and rounds of each

    def advance(self) -> int:
        """Do the rounds of one slice; return how many they were."""
        begun = time.perf_counter()
        records = self._session.round(SLICE_S)
        for record in records:
            self.state.take(record)
        if self.state.finish_reason is not None:
            _ = self.state.text
        if records:
            self.slices.append((time.perf_counter() - begun, len(records)))
        return len(records)

    def finish(self) -> Decoding:
        """Do all rounds that are left."""
        while self.advance():
            pass
        self._session.close()
        return self

    @property
    def n_rounds(self) -> int:
        """Runs of the target."""
        return len(self.state.rounds)

    @property
    def round_s(self) -> float:
        """Seconds a round by the clock on the wall: the median slice, because some are interrupted."""
        return statistics.median(seconds / n for seconds, n in self.slices)

    @property
    def machinery_s(self) -> float:
        """Seconds a round that were no forward pass of either model, in the median slice."""
        rounds = iter(self.state.rounds)
        others = []
        for seconds, n in self.slices:
            forward = sum(r.draft_s + r.verify_s for r in itertools.islice(rounds, n))
            others.append((seconds - forward) / n)
        return statistics.median(others)


class Bench:
    """A pair, a prompt, and what plain decoding makes of it."""

    def __init__(self, name: str, dtype: str, cache: int, n_tokens: int, n_threads: int) -> None:
        self.target, self.draft = load_pair(name, dtype)
        self.n_threads = n_threads
        self.n_tokens = n_tokens
        n_prompt = max(2, cache - n_tokens // 2)  # the cache is `cache` tokens long on average
        rng = np.random.default_rng(0)
        self.ids = rng.integers(0, self.target.config.n_vocab, cache + 64).tolist()
        self.prompt = self.ids[:n_prompt]
        self.decoders = [
            _core.Decoder(model.core, capacity=cache + 64, max_nodes=64, n_threads=n_threads)
            for model in (self.target, self.draft)
        ]
        for decoder in self.decoders:
            decoder.prefill(self.ids[:cache])
        self.text = self.prompt + self.decode(0).finish().state.tokens

    def decode(self, gamma: int, alpha: float | None = None, seed: int = 0, **sampling: float) -> Decoding:
        """A decoding; with an alpha, by a draft of this acceptance rate."""
        return Decoding(self, gamma, alpha, seed, sampling)

    def forward_s(self, gamma: int) -> tuple[float, float]:
        """Seconds of gamma draft steps, and of the target's gamma + 1 rows after them."""
        target, draft = self.decoders
        tokens, parents = self.ids[: gamma + 1], list(range(-1, gamma))
        begun = time.perf_counter()
        for token in tokens[:gamma]:
            draft.forward([token], [-1])
        drafted = time.perf_counter()
        target.forward(tokens, parents)
        return drafted - begun, time.perf_counter() - drafted

    def cell(self, alpha: float, gamma: int, seed: int) -> dict[str, float]:
        """Everything about one alpha and gamma: plain, speculative and forward passes take turns."""
        plain, run = self.decode(0), self.decode(gamma, alpha, seed)
        one, steps, rows = [], [], []
        running = True
        while running:
            n_plain, n_rounds = plain.advance(), run.advance()
            running = n_plain + n_rounds > 0
            one += [self.forward_s(0)[1] for _ in range(n_plain)]
            for _ in range(n_rounds):
                steps_s, rows_s = self.forward_s(gamma)
                steps.append(steps_s / gamma)
                rows.append(rows_s)
        assert self.prompt + run.state.tokens == self.text, "speculative and plain decoding differ"
        # a Decoder hands out its logits in new arrays, which no round does
        copy_one, copy_rows = (logits_copy_s(m, self.target.config.n_vocab) for m in (1, gamma + 1))
        t_one, t_draft = statistics.median(one) - copy_one, statistics.median(steps) - copy_one
        t_rows = statistics.median(rows) - copy_rows
        round_s, as_run = gamma * t_draft + t_rows, self.n_tokens / run.n_rounds
        trace = Trace(run.state.rounds).against(Trace(plain.state.rounds))
        return {
            "as_run": as_run,
            "measured": plain.round_s * as_run / run.round_s,
            "predicted": trace.predicted_speedup,
            "ideal": trace.ideal_speedup,
            "law": expected_tokens(alpha, gamma) * t_one / round_s,
            "ratio": (plain.round_s / run.round_s) / (t_one / round_s),
            "c": t_draft / t_one,
            "machinery": run.machinery_s / run.round_s,
            "round_s": run.round_s,
        }


def table(bench: Bench, alphas: list[float], gammas: list[int], repeats: int) -> None:
    """Print a row for every alpha and gamma, and what they come to."""
    cells: dict[tuple[float, int], list[dict[str, float]]] = {(a, g): [] for a in alphas for g in gammas}
    bench.cell(alphas[0], max(gammas), 0)  # warm caches and threads
    for repeat in range(repeats):
        for (alpha, gamma), found in cells.items():
            found.append(bench.cell(alpha, gamma, repeat))
    print(
        "| alpha | gamma | tokens per round | (expected) | **measured** | predicted | ideal | law | ratio "
        "| c | round ms | machinery |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    medians = {}
    for (alpha, gamma), found in cells.items():
        m = medians[alpha, gamma] = {key: statistics.median(c[key] for c in found) for key in found[0]}
        print(
            f"| {alpha:g} | {gamma} | {m['as_run']:.2f} | {expected_tokens(alpha, gamma):.2f} "
            f"| **{m['measured']:.2f}** | {m['predicted']:.2f} | {m['ideal']:.2f} | {m['law']:.2f} "
            f"| {m['ratio']:.3f} "
            f"| {m['c']:.3f} | {1e3 * m['round_s']:.2f} | {100 * m['machinery']:.1f} % |"
        )
    print()
    for name, over in (("ratio", "ratio"), ("measured over predicted", "predicted"), ("over ideal", "ideal")):
        ratios = [m[over] if over == "ratio" else m["measured"] / m[over] for m in medians.values()]
        near = sum(abs(ratio - 1) <= 0.05 for ratio in ratios)
        print(
            f"{name}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}, "
            f"within 5 % in {near} of {len(ratios)}"
        )
    shares = [100 * m["machinery"] for m in medians.values()]
    print(f"machinery: median {statistics.median(shares):.1f} %, {min(shares):.1f} to {max(shares):.1f} %\n")


def sampling_table(bench: Bench, gammas: Iterable[int], repeats: int) -> None:
    """Print what the machinery costs when distributions are sampled, with the draft as it is."""
    print(
        "| sampling | gamma | tokens per round | round ms | machinery us | share |\n|---|---|---|---|---|---|"
    )
    ways = {
        "temperature 0": {"temperature": 0.0},
        "temperature 1": {"temperature": 1.0},
        "temperature 1, top_k 50": {"temperature": 1.0, "top_k": 50},
        "temperature 1, top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    }
    for gamma in gammas:
        runs: dict[str, list[Decoding]] = {way: [] for way in ways}
        for repeat in range(repeats):
            for way, sampling in ways.items():
                runs[way].append(bench.decode(gamma, seed=repeat, **sampling).finish())
        for way, found in runs.items():
            rounds = [run.n_rounds for run in found]
            print(
                f"| {way} | {gamma} | {statistics.mean(bench.n_tokens / n for n in rounds):.2f} "
                f"| {1e3 * statistics.median(run.round_s for run in found):.2f} "
                f"| {1e6 * statistics.median(run.machinery_s for run in found):.0f} "
                f"| {100 * statistics.median(run.machinery_s / run.round_s for run in found):.1f} % |"
            )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--dtype", nargs="+", default=["f32"], help="number formats of both models")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.5, 0.6, 0.7, 0.8, 0.9])
    parser.add_argument("--gamma", type=int, nargs="+", default=list(range(1, 11)))
    parser.add_argument("--cache", type=int, default=128, help="mean tokens in the KV cache")
    parser.add_argument("--tokens", type=int, default=100, help="new tokens of a run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if not hasattr(_core, "_alloc_live"):
        parser.error(
            "drafts of a given acceptance need a build with hooks: "
            "pip install . -C cmake.define.SPECDEC_TESTING=ON"
        )
    if not all(0 < alpha < 1 for alpha in args.alpha) or min(args.gamma) < 1:
        parser.error("expected alphas between 0 and 1 and gammas of at least 1")
    print(f"{describe()}, {args.threads} threads, {args.tokens} tokens, cache {args.cache}\n")
    for name in args.pairs:
        for dtype in args.dtype:
            bench = Bench(name, dtype, args.cache, args.tokens, args.threads)
            print(f"## {name}, {dtype}\n")
            table(bench, args.alpha, args.gamma, args.repeats)
            sampling_table(bench, [g for g in (4,) if g in args.gamma] or args.gamma[:1], args.repeats)


if __name__ == "__main__":
    main()
