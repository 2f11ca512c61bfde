"""Trees against chains: what a round costs, tokens a round at an equal number of guesses, time per token.

    python benchmarks/bench_trees.py
    python benchmarks/bench_trees.py --target PATH --draft PATH --nodes 4 8 16 32

Prints Markdown. Everything that is compared takes turns in one run, and medians are reported, because the
speed of a machine that is shared changes within seconds. Only ratios of one run mean something.

The first table is the promise that a round with a tree of n nodes costs what one with a chain of n nodes
costs, plus 3 % at most: the target's forward of n + 1 rows, and a round but for the draft's forwards, of
which a tree needs fewer. The second is what a tree is for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import specdec
from bench_verify import PROMPTS, machine, take_turns
from specdec import _core
from specdec.drafts import Chains, Draft, Grown, Model, Shape

Drafting = tuple["specdec.Model | Draft", int]
"""A draft and its gamma."""


def binary(n_nodes: int) -> list[int]:
    """Parents of a tree in which every node has two children."""
    return [(node - 1) // 2 for node in range(1, n_nodes + 1)]


def fan(n_nodes: int) -> list[int]:
    """Parents of four chains side by side."""
    return [max(0, node - 4) for node in range(1, n_nodes + 1)]


def forward_jobs(
    model: specdec.Model, n_nodes: int, cache: int, n_threads: int
) -> dict[object, Callable[[], float]]:
    """Seconds of a forward of a root with a chain, a binary tree and four chains of so many nodes."""
    ids = np.random.default_rng(0).integers(0, model.config.n_vocab, cache + n_nodes + 1).tolist()
    shapes = {"chain": list(range(n_nodes)), "binary": binary(n_nodes), "fan": fan(n_nodes)}

    def job(parents: list[int]) -> Callable[[], float]:
        decoder = _core.Decoder(
            model.core, capacity=cache + n_nodes + 1, max_nodes=n_nodes + 1, n_threads=n_threads
        )
        decoder.prefill(ids[:cache])

        def run() -> float:
            begun = time.perf_counter()
            decoder.forward(ids[cache:], [-1, *parents])
            return time.perf_counter() - begun

        return run

    return {name: job(parents) for name, parents in shapes.items()}


def round_jobs(
    target: specdec.Model,
    draft: specdec.Model,
    n_nodes: int,
    temperature: float,
    n_threads: int,
    n_rounds: int,
) -> dict[object, Callable[[], float]]:
    """Seconds of a round, but for the draft's forwards.

    The target is biased to one token and the draft away from it, so that nothing is accepted: every round of
    chain and trees stands at the same place of the text, and every sibling is tried.
    """
    how = "without replacement" if temperature > 0 else "top-k"
    drafts = {
        "chain": ("model", draft.core),
        "binary": ("model", draft.core, ("shape", how, binary(n_nodes))),
        "fan": ("model", draft.core, ("shape", how, fan(n_nodes))),
    }
    token = 300
    settings = {"temperature": temperature}

    def job(described: tuple[object, ...]) -> Callable[[], float]:
        session = _core.Session(
            target.core, described, [list(range(100, 180))], gamma=n_nodes,
            max_new_tokens=n_rounds + n_nodes + 9, seeds=[(1, 0)], n_threads=n_threads,
            sampling=settings | {"logit_bias": {token: 1000.0}},
            draft_sampling=settings | {"logit_bias": {token: float("-inf")}},
        )  # fmt: skip
        session.prefill()

        def run() -> float:
            (record,) = session.round()
            assert len(record["drafted"]) == n_nodes and not record["accepted"]
            return float(record["verify_s"] + record["other_s"])

        return run

    return {name: job(described) for name, described in drafts.items()}


def candidates(draft: specdec.Model, n_nodes: int, temperature: float) -> dict[str, Drafting]:
    """Ways to spend so many guesses a round."""
    found: dict[str, Drafting] = {"chain": (draft, n_nodes)}
    for k in (2, 4):
        found[f"Chains({k})"] = Model(draft, tree=Chains(k)), n_nodes
    if temperature > 0:
        for how in ("sample", "without replacement"):
            found[f"Shape.expected, {how}"] = Model(draft, tree=Shape.expected(n_nodes, how=how)), n_nodes
    else:
        greedy = Shape.expected(n_nodes, (0.88, 0.06, 0.02), "top-k")
        found["Shape.expected, top-k"] = Model(draft, tree=greedy), n_nodes
    for width, steps in ((2, n_nodes), (3, 8)):
        grown = Grown(n_nodes, width=width, steps=steps)
        found[f"Grown(width={width}, steps={steps})"] = Model(draft, tree=grown), n_nodes
    return found


def generation_jobs(
    target: specdec.Model, ways: dict[str, Drafting], temperature: float, n_tokens: int, n_threads: int
) -> tuple[dict[object, Callable[[], float]], dict[str, list[specdec.Result]]]:
    """Seconds per token of all prompts by the clock on the wall, and the results as they come."""
    results: dict[str, list[specdec.Result]] = {name: [] for name in ways}

    def job(name: str) -> Callable[[], float]:
        draft, gamma = ways[name]

        def run() -> float:
            begun = time.perf_counter()
            done = [
                specdec.generate(
                    target, draft, prompt, gamma=gamma, max_new_tokens=n_tokens, temperature=temperature,
                    seed=len(results[name]) // len(PROMPTS), n_threads=n_threads, ignore_eos=True,
                )
                for prompt in PROMPTS
            ]  # fmt: skip
            seconds = time.perf_counter() - begun
            results[name].extend(done)
            return seconds / sum(len(result.tokens) for result in done)

        return run

    return {name: job(name) for name in ways}, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--cache", type=int, default=128, help="tokens in the KV cache of the forward")
    parser.add_argument("--tokens", type=int, default=120, help="new tokens of a generation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of a generation")
    parser.add_argument("--rounds", type=int, default=60, help="of a round whose cost is measured")
    args = parser.parse_args()
    if (args.target is None) != (args.draft is None):
        parser.error("--target and --draft go together")
    target, draft = (
        specdec.embedded_pair() if args.target is None else map(specdec.load, (args.target, args.draft))
    )
    print(f"{machine()}, {args.threads} threads\n")

    print("## A round with n guesses: a tree over a chain\n")
    print("| what | n | chain, ms | binary tree | four chains |\n|---|---|---|---|---|")
    for n_nodes in args.nodes:
        jobs = {"the target's forward": forward_jobs(target, n_nodes, args.cache, args.threads)}
        for temperature in (0.0, 1.0):
            name = f"a round without drafting, temperature {temperature:g}"
            jobs[name] = round_jobs(target, draft, n_nodes, temperature, args.threads, args.rounds)
        for what, job in jobs.items():
            take_turns(job, 3)  # warm caches and threads
            times = take_turns(job, args.rounds)
            chain = times["chain"]
            print(
                f"| {what} | {n_nodes} | {1e3 * chain:.3f} | {times['binary'] / chain:.3f} "
                f"| {times['fan'] / chain:.3f} |"
            )

    print("\n## Tokens a call and time a token, n guesses a round\n")
    print("| temperature | n | draft | tokens per call | time per token, ms | over the fastest chain |")
    print("|---|---|---|---|---|---|")
    for temperature in (0.0, 1.0):
        chains = {f"chain of {gamma}": (draft, gamma) for gamma in (2, 3, 4, 6)}
        for n_nodes in args.nodes:
            ways = {**chains, **candidates(draft, n_nodes, temperature)}
            jobs, results = generation_jobs(target, ways, temperature, args.tokens, args.threads)
            times = take_turns(jobs, args.repeats)
            fastest = min(times[name] for name in (*chains, "chain"))
            for name, seconds in times.items():
                done = results[str(name)]
                calls = sum(len(result.trace.rounds) for result in done)
                tokens = sum(len(result.tokens) for result in done)
                print(
                    f"| {temperature:g} | {n_nodes} | {name} | {tokens / calls:.2f} | {1e3 * seconds:.3f} "
                    f"| {fastest / seconds:.2f} |"
                )
            if temperature == 0:
                outputs = {tuple(tuple(result.tokens) for result in done) for done in results.values()}
                assert len({output[: len(PROMPTS)] for output in outputs}) == 1, "greedy outputs differ"


if __name__ == "__main__":
    main()
