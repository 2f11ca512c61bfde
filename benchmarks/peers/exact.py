"""Exactness of speculative decoding: the same two tests for every engine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import specdec
from benchmarks.builds import Answer, Worker
from benchmarks.interleaved import Options
from benchmarks.peers.agreement import (
    Distribution,
    count,
    expected_noise,
    first_difference,
    joint_distribution,
    marginal,
    p_value,
    probability,
    softmax,
    total_variation,
)
from benchmarks.peers.comparing import begin, engine_options, engine_process, installed
from benchmarks.peers.engine import EMBEDDED, Job
from benchmarks.peers.engines import WRITERS
from benchmarks.report import Report
from benchmarks.texts import read_text, spread_prompts

LENGTH = 3
SMALL = "eight"
#: Targets of the greedy texts, each with a draft: random weights, and a trained model.
LARGE = ("L25M", "embedded")

#: Package of each engine, whose version is shown.
PACKAGE = {
    "specdec": "specdec", "transformers": "transformers", "openvino": "openvino_genai",
    "llama-cpp-python": "llama_cpp_python",
}  # fmt: skip
NAMES = {"openvino": "OpenVINO GenAI"}


@dataclass
class Sampled:
    """Samples of an engine, compared with the distribution."""

    n: int
    off: list[float]
    """Total variation of each token, then of all together."""
    noise: list[float]
    p: float
    tokens_a_run: float


class RefusedError(Exception):
    """An engine refused a request, with the reason."""


def asked(worker: Worker, do: str, **request: Any) -> Answer:
    """Return the answer, or raise a RefusedError with the reason."""
    answer = worker.ask(do, **request)
    if "error" in answer:
        print(answer["error"], file=sys.stderr)
        raise RefusedError(answer["error"].strip().splitlines()[-1])
    if "unsupported" in answer:
        raise RefusedError(answer["unsupported"])
    return answer


class Contestant:
    """An engine process with a model pair, plain (gamma 0) or speculative."""

    def __init__(self, engine: str, shape: str, number: str, gamma: int, args: argparse.Namespace) -> None:
        n_threads = 1 if shape == SMALL else args.threads
        job = {"format": number, "work": str(args.work), "n_threads": n_threads}
        draft = {**job, "shape": f"{shape}-draft"} if gamma else None
        load = {"target": {**job, "shape": shape}, "draft": draft, "gamma": gamma, "writes": True}
        converter = engine_process(engine, args.work, n_threads)
        try:
            asked(converter, "prepare", **load)
        finally:
            converter.close()
        self.worker = engine_process(engine, args.work, n_threads)
        try:
            self.settings = asked(self.worker, "load", **load)["settings"]
        except RefusedError:
            self.worker.close()
            raise

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def ask(self, do: str, **request: Any) -> Answer:
        """See `asked`."""
        return asked(self.worker, do, **request)


def target_distribution(args: argparse.Namespace) -> tuple[Distribution, str]:
    """Return the joint distribution after the prompt, and the engine that computed its logits."""
    job = Job(SMALL, "f32", args.work, args.threads)
    prompt, n_vocab = job.ids(8), job.config["n_vocab"]
    tokens = range(n_vocab - 1)  # the end token ends a text
    texts = [(), *((a,) for a in tokens), *((a, b) for a in tokens for b in tokens)]
    for engine in ("transformers", "specdec"):
        worker = engine_process(engine, args.work, args.threads)
        try:
            asked(worker, "load", target={**vars(job), "work": str(job.work)})
            rows = asked(worker, "logits", prompts=[[*prompt, *text] for text in texts])["logits"]
        except RefusedError as reason:
            print(f"{engine}: {reason}", file=sys.stderr)
            continue
        finally:
            worker.close()
        conditional = dict(zip(texts, map(softmax, rows), strict=True))
        return joint_distribution(conditional.__getitem__, LENGTH, n_vocab), engine
    raise SystemExit("no engine computed the target's logits")


def sampled(
    engine: str, gamma: int, distribution: Distribution, args: argparse.Namespace
) -> tuple[Sampled, str]:
    """Sample and compare with the distribution; also return the engine's settings."""
    prompt = Job(SMALL, "f32", args.work, args.threads).ids(8)
    with Contestant(engine, SMALL, "f32", gamma, args) as contestant:
        # Two tokens more than needed, so the last round's draft is not truncated.
        of = {"ids": prompt, "n": LENGTH + 2, "seed": args.seed}
        answer = contestant.ask("sample", of={**of, "n_samples": args.samples, "seconds": args.seconds})
    counts = count(answer["tokens"], LENGTH, len(distribution))
    n = int(counts.sum())
    parts = [(marginal(counts, i), marginal(distribution, i)) for i in range(LENGTH)] + [
        (counts, distribution)
    ]
    return Sampled(
        n,
        [total_variation(*part) for part in parts],
        [expected_noise(n, part) for _, part in parts],
        p_value(counts, distribution),
        answer["n_tokens"] / (answer["n_tokens"] - answer["n_accepted"]),
    ), contestant.settings


def greedy(engine: str, number: str, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Compare speculative with plain texts, interleaved by prompt; also return the engine's settings."""
    job = Job(args.target, number, args.work, args.threads)
    pairs: list[tuple[Answer, Answer]] = []
    with (
        Contestant(engine, args.target, number, 0, args) as one,
        Contestant(engine, args.target, number, args.gamma, args) as two,
    ):
        prompts = _prompts(job, args)
        for contestant in (one, two):  # warm up
            contestant.ask("write", prompts=prompts[:1], n=args.tokens)
        for prompt in prompts:
            plain, speculative = (each.ask("write", prompts=[prompt], n=args.tokens) for each in (one, two))
            pairs.append((plain, speculative))
    differences = [first_difference(a["tokens"][0], b["tokens"][0]) for a, b in pairs]
    found = {
        "n": len(prompts),
        "equal": differences.count(None),
        "first": min((1 + d for d in differences if d is not None), default=None),
        "tokens_a_run": speculative["n_tokens"] / (speculative["n_tokens"] - speculative["n_accepted"]),
        "rates": [
            [len(answer["tokens"][0]) / answer["seconds"] for answer in answers]
            for answers in zip(*pairs, strict=True)
        ],
    }
    if "logits" in plain:
        found["equal logits"] = sum(a["logits"] == b["logits"] for a, b in pairs)
    return found, two.settings


def _prompts(job: Job, args: argparse.Namespace) -> list[list[int]]:
    """Return random ids, or for a trained model 32 tokens each, spread over a text."""
    if args.target not in EMBEDDED:
        return [job.ids(32, seed) for seed in range(args.prompts)]
    return spread_prompts(read_text(args.text), specdec.load(job.checkpoint), args.prompts, 32)


def sampled_text(result: Sampled, verdict: bool) -> str:
    """Return a table cell."""
    off = [f"{off:.3f} ({noise:.3f})" for off, noise in zip(result.off, result.noise, strict=True)]
    p = f"p = {probability(result.p)}" if result.p >= 0.001 else f"**p {probability(result.p)}**"
    if not verdict:
        return f"N {result.n}: {off[-1]}, {p}"
    return f"N {result.n}: {'; '.join(off[:-1])}; joint {off[-1]}, {p}; {result.tokens_a_run:.2f} a run"


def greedy_text(result: dict[str, Any]) -> str:
    """Return a table cell."""
    text = f"{result['equal']}/{result['n']}"
    if result["first"] is not None:
        text = f"**{text}**, from token {result['first']}"
    if "equal logits" in result:
        text += f", logits {result['equal logits']}/{result['n']}"
    plain, speculative = result["rates"]
    speedup = median(b / a for a, b in zip(plain, speculative, strict=True))
    rates = f"{median(plain):.0f} to {median(speculative):.0f} tokens/s, {speedup:.2f}"
    return f"{text}; {result['tokens_a_run']:.2f} a run; {rates}"


def exactness_options(options: Options) -> None:
    engine_options(options, WRITERS)
    options.add("--target", choices=LARGE, default=LARGE[0], help="of the greedy texts")
    options.add("--text", type=Path, metavar="FILE", help="source of prompts for embedded")
    options.add("--greedy-only", action="store_true", help="skip the sampling tests")
    options.add("--samples", type=int, default=200_000, help="largest number of samples per engine")
    options.add("--seconds", type=float, default=90, help="time limit of sampling per engine")
    options.add("--prompts", type=int, default=8)
    options.add("--tokens", type=int, default=64)
    options.add("--gamma", type=int, default=3)
    options.add("--seed", type=int, default=1, help="of the first text; incremented for others")


def exactness(args: argparse.Namespace, report: Report) -> None:
    """Exactness of speculative decoding: the same two tests for every engine.

    Sampling: three tokens after a prompt, at temperature 1, with a target of eight tokens and a draft with
    another distribution. The joint distribution is computed from the target's float32 logits, of transformers
    if installed. From N texts with distinct seeds, "off by" is the total variation from it, of the first,
    second and third token and of all three together, with the expected value for N exact samples in brackets.
    p is the p-value of a G-test of the joint counts. Plain sampling with the same engine is the control.

    Greedy: speculative and plain texts of a target with 25 million random weights, or of the embedded target,
    in the same engine and number format: the number of equal texts, and the first token (from 1) that
    differs. For specdec the logits are compared too, bit by bit. "a run" is tokens per target forward pass,
    by the engine's counts: above 1, drafts were accepted. Then tokens per second of whole calls, plain and
    speculative interleaved, and the median of their ratios.
    """
    begin(args, report)
    if args.target in EMBEDDED and args.text is None:
        raise SystemExit("--target embedded needs a text for its prompts: --text FILE")
    columns = ["engine"]
    distribution = None
    if not args.greedy_only:
        distribution, source = target_distribution(args)
        report.say(f"- distribution of {LENGTH} tokens of {len(distribution)} from logits of {source} in f32")
        columns += ["plain sampling, off by (expected)"]
        columns += ["speculative sampling, off by (expected): tokens 1; 2; 3; joint"]
    config = Job(args.target, "f32", args.work, args.threads).config
    report.say(
        f"- gamma {args.gamma}; greedy: {args.prompts} prompts, {args.tokens} tokens, "
        f"{config['n_layer']} layers of {config['d_model']}"
    )
    for number in args.formats:
        if (path := Job(args.target, number, args.work, args.threads).gguf) is not None:
            types = specdec.load(path, tokenizer=False).types
            report.say(f"- the file in {number}: matrices, the most first, in {types}")
    table = report.table(dict.fromkeys([*columns, *(f"greedy, {number}" for number in args.formats)], ""))
    settings = {}
    for engine in args.engines:
        name = NAMES.get(engine, engine)
        row = [f"{name} {installed(PACKAGE[engine])}" if engine in PACKAGE else name]
        for gamma in (0, args.gamma) if distribution is not None else ():
            try:
                found, settings[name] = sampled(engine, gamma, distribution, args)
                row.append(sampled_text(found, gamma > 0))
            except RefusedError as reason:
                row.append(str(reason))
        for number in args.formats:
            try:
                texts, settings[name] = greedy(engine, number, args)
                row.append(greedy_text(texts))
            except RefusedError as reason:
                row.append(str(reason))
        table.row(*row)
    report.say()
    for name, text in settings.items():
        if text:
            report.say(f"- {name}: {text}.")
