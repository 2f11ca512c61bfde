"""Is speculative output the target's? The same two tests for specdec and for other engines.

    python benchmarks/bench_exactness.py --work FOLDER
    python benchmarks/bench_exactness.py --work FOLDER --engines specdec openvino --seconds 300

Prints a table in Markdown. The engines come with ``pip install 'specdec[bench]'``; FOLDER takes their models
and is kept. llama.cpp's server is built of llama-cpp-python's sources, or named by the environment variable
LLAMA_SERVER. Each engine is a process of its own.

*Sampling*: three tokens after a prompt, at temperature 1 without any other setting, by a target of eight
tokens with a draft of another law. Their joint law is known: it is computed from the target's logits in
float32, of transformers where it is installed. From N texts, each of its own seed:

- *off by* is the total variation from that law, of the first, second and third token by itself and of all
  three together, which sees what tokens have to do with each other; beside it, in brackets, what N exact
  samples are expected to be off by;
- *p* is that of a G-test of the joint counts: the chance that exact samples are as far off. Small is wrong.

Plain sampling by the same engine is the control: were it off too, speculation would not be to blame.

*Greedy*: texts of a target of 25 million random weights, by speculation and plainly, in the same engine and
number format. How many of the prompts' texts are equal, and the first token (from 1) that differs in any.
For specdec the logits that the tokens were chosen from are compared as well, bit by bit.

*a run* are tokens per run of the target, by the engine's own counts: above 1, drafts were accepted.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agreement import (
    Law,
    count,
    expected_noise,
    first_difference,
    joint_law,
    marginal,
    p_value,
    probability,
    softmax,
    total_variation,
)
from bench_peers import PACKAGES, Answer, Worker, installed
from machine import describe
from peers import WRITERS
from peers.engine import FORMATS, Job
from shapes import SHAPES
from specdec.progress import progress_bar

LENGTH = 3
SMALL, LARGE = "eight", "L25M"

#: What a user has to install for an engine, to stand beside its name.
PACKAGE = {
    "specdec": "specdec",
    "transformers": "transformers",
    "openvino": "openvino_genai",
    "onnxruntime": "onnxruntime_genai",
    "llama-cpp-python": "llama_cpp_python",
    "ctranslate2": "ctranslate2",
}
NAMES = {"openvino": "OpenVINO GenAI", "onnxruntime": "ONNX Runtime GenAI", "ctranslate2": "CTranslate2"}


@dataclass
class Sampled:
    """What an engine drew, held against the law."""

    n: int
    off: list[float]
    """Of each token by itself, then of all together."""
    noise: list[float]
    p: float
    tokens_a_run: float


@dataclass
class Row:
    """An engine: results by column, or why there are none."""

    sampled: dict[str, Sampled | str] = field(default_factory=dict)
    greedy: dict[str, dict[str, Any] | str] = field(default_factory=dict)
    settings: str = ""


class RefusedError(Exception):
    """An engine cannot do what was asked; says why."""


def asked(worker: Worker, do: str, **request: Any) -> Answer:
    """Its answer; RefusedError with the reason if there is none."""
    answer = worker.ask(do, **request)
    if "error" in answer:
        print(answer["error"], file=sys.stderr)
        raise RefusedError(answer["error"].strip().splitlines()[-1])
    if "unsupported" in answer:
        raise RefusedError(answer["unsupported"])
    return answer


class Contestant:
    """An engine with a pair, plainly (gamma 0) or by speculation, in a process of its own."""

    def __init__(self, engine: str, shape: str, number: str, gamma: int, args: argparse.Namespace) -> None:
        n_threads = 1 if shape == SMALL else args.threads
        job = {"format": number, "work": str(args.work), "n_threads": n_threads}
        draft = {**job, "shape": f"{shape}-draft"} if gamma else None
        load = {"target": {**job, "shape": shape}, "draft": draft, "gamma": gamma, "writes": True}
        converter = Worker(engine, args.work, n_threads)
        try:
            asked(converter, "prepare", **load)
        finally:
            converter.close()
        self.worker = Worker(engine, args.work, n_threads)
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


def law_of_target(args: argparse.Namespace) -> tuple[Law, str]:
    """The joint law after the prompt, and whose logits it comes from."""
    job = Job(SMALL, "f32", args.work, args.threads)
    prompt, n_vocab = job.ids(8), job.config["n_vocab"]
    tokens = range(n_vocab - 1)  # nothing is looked up after the end token
    texts = [(), *((a,) for a in tokens), *((a, b) for a in tokens for b in tokens)]
    for engine in ("transformers", "specdec"):
        worker = Worker(engine, args.work, args.threads)
        try:
            asked(worker, "load", target={**vars(job), "work": str(job.work)})
            rows = asked(worker, "logits", prompts=[[*prompt, *text] for text in texts])["logits"]
        except RefusedError as reason:
            print(f"{engine}: {reason}", file=sys.stderr)
            continue
        finally:
            worker.close()
        conditional = dict(zip(texts, map(softmax, rows), strict=True))
        return joint_law(conditional.__getitem__, LENGTH, n_vocab), engine
    raise SystemExit("no engine gave the target's logits")


def sampled(engine: str, gamma: int, law: Law, args: argparse.Namespace) -> tuple[Sampled, str]:
    """Draw, and compare with the law; also the engine's settings."""
    prompt = Job(SMALL, "f32", args.work, args.threads).ids(8)
    with Contestant(engine, SMALL, "f32", gamma, args) as contestant:
        # Two tokens more than are looked at, so that the drafts of a round are not cut short.
        of = {"ids": prompt, "n": LENGTH + 2, "seed": args.seed}
        answer = contestant.ask("sample", of={**of, "n_samples": args.samples, "seconds": args.seconds})
    counts = count(answer["tokens"], LENGTH, len(law))
    n = int(counts.sum())
    parts = [(marginal(counts, i), marginal(law, i)) for i in range(LENGTH)] + [(counts, law)]
    return Sampled(
        n,
        [total_variation(*part) for part in parts],
        [expected_noise(n, part_law) for _, part_law in parts],
        p_value(counts, law),
        answer["n_tokens"] / (answer["n_tokens"] - answer["n_accepted"]),
    ), contestant.settings


def greedy(engine: str, number: str, args: argparse.Namespace) -> dict[str, Any]:
    """Speculative texts beside plain ones."""
    job = Job(LARGE, number, args.work, args.threads)
    prompts = [job.ids(32, seed) for seed in range(args.prompts)]
    answers = {}
    for gamma in (0, args.gamma):
        with Contestant(engine, LARGE, number, gamma, args) as contestant:
            answers[gamma] = contestant.ask("write", prompts=prompts, n=args.tokens)
    plain, speculative = answers[0], answers[args.gamma]
    differences = [
        first_difference(*texts) for texts in zip(plain["tokens"], speculative["tokens"], strict=True)
    ]
    found = {
        "n": len(prompts),
        "equal": differences.count(None),
        "first": min((1 + d for d in differences if d is not None), default=None),
        "tokens_a_run": speculative["n_tokens"] / (speculative["n_tokens"] - speculative["n_accepted"]),
    }
    if "logits" in plain:
        pairs = zip(plain["logits"], speculative["logits"], strict=True)
        found["equal logits"] = sum(a == b for a, b in pairs)
    return found


def sampled_text(result: Sampled | str, verdict: bool) -> str:
    """A cell of the table."""
    if isinstance(result, str):
        return result
    off = [f"{off:.3f} ({noise:.3f})" for off, noise in zip(result.off, result.noise, strict=True)]
    p = f"p = {probability(result.p)}" if result.p >= 0.001 else f"**p {probability(result.p)}**"
    if not verdict:
        return f"N {result.n}: {off[-1]}, {p}"
    return f"N {result.n}: {'; '.join(off[:-1])}; joint {off[-1]}, {p}; {result.tokens_a_run:.2f} a run"


def greedy_text(result: dict[str, Any] | str) -> str:
    """A cell of the table."""
    if isinstance(result, str):
        return result
    text = f"{result['equal']}/{result['n']}"
    if result["first"] is not None:
        text = f"**{text}**, from token {result['first']}"
    if "equal logits" in result:
        text += f", logits {result['equal logits']}/{result['n']}"
    return f"{text}; {result['tokens_a_run']:.2f} a run"


def examine(engine: str, law: Law, args: argparse.Namespace, bar: Any) -> Row:
    """Both tests on an engine."""
    row = Row()
    for name, gamma in (("plain", 0), ("speculative", args.gamma)):
        try:
            row.sampled[name], row.settings = sampled(engine, gamma, law, args)
        except RefusedError as reason:
            row.sampled[name] = str(reason)
        bar.update(1)
    for number in args.formats:
        try:
            row.greedy[number] = greedy(engine, number, args)
        except RefusedError as reason:
            row.greedy[number] = str(reason)
        bar.update(1)
    return row


def print_row(engine: str, row: Row, formats: list[str]) -> None:
    name = NAMES.get(engine, engine)
    if engine in PACKAGE:
        name += f" {installed(PACKAGE[engine])}"
    cells = [sampled_text(row.sampled["plain"], False), sampled_text(row.sampled["speculative"], True)]
    cells += [greedy_text(row.greedy[number]) for number in formats]
    print("|", " | ".join([name, *(cell.replace("|", "\\|") for cell in cells)]), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the engines' models")
    parser.add_argument("--engines", nargs="+", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--samples", type=int, default=200_000, help="texts for each law, at most")
    parser.add_argument("--seconds", type=float, default=90, help="time to sample each law, at most")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--gamma", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first text; the others count on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)

    law, source = law_of_target(args)
    config = SHAPES[LARGE]
    print(f"{describe()}; {args.threads} threads\n\n`python {' '.join(sys.argv)}`\n")
    print(f"Law of {LENGTH} tokens of {len(law)} from logits of {source} in f32, gamma {args.gamma}; greedy:")
    print(
        f"{args.prompts} prompts, {args.tokens} tokens, {config['n_layer']} layers of {config['d_model']}.\n"
    )
    print("| engine | plain sampling, off by (expected) | speculative sampling, off by (expected):", end="")
    print(" tokens 1; 2; 3; joint |", " | ".join(f"greedy, {number}" for number in args.formats), "|")
    print("|---" * (3 + len(args.formats)) + "|", flush=True)
    rows = {}
    bar = progress_bar(len(args.engines) * (2 + len(args.formats)), "cell")
    try:
        for engine in args.engines:
            rows[engine] = examine(engine, law, args, bar)
            print_row(engine, rows[engine], args.formats)
    finally:
        bar.close()
    print()
    for engine, row in rows.items():
        if row.settings:
            print(f"{NAMES.get(engine, engine)}: {row.settings}.")
    print("Versions:", ", ".join(f"{name} {installed(name)}" for name in PACKAGES))
    if args.json:
        plain = functools.partial(json.dumps, default=vars, indent=1)
        args.json.write_text(plain({"law": np.asarray(law).tolist(), "rows": rows}))


if __name__ == "__main__":
    main()
