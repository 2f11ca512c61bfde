"""Scores: several choices behind one context, as multiple-choice tasks have them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Report, Spread
from benchmarks.shapes import SHAPES, random_model, write_checkpoint
from benchmarks.turns import DTYPES, Options, progress, ratios, take_turns
from specdec import _core

Ids = list[int]


def scores_options(options: Options) -> None:
    options.many("--models", str, ["L60M", "paper97"], choices=SHAPES, metavar="SHAPE")
    options.many("--dtypes", str, ["f32", "bf16"], choices=DTYPES)
    options.add("--context", type=int, default=600, help="tokens that the choices share")
    options.add("--choices", type=int, default=8)
    options.add("--tokens", type=int, default=10, help="of a choice, on average: 1 to twice as many less 1")
    options.add(
        "--work", type=Path, metavar="FOLDER", help="for models of transformers; kept. Without: specdec alone"
    )
    options.repeats(5)


def scores(args: argparse.Namespace, report: Report) -> None:
    """Choices behind one context: together, one by one, and by transformers.

    "read" is what cannot be spared: the context is read once as a prompt, without logits, then all tokens of
    the choices as one tree, with logits that nobody looks at. "together" are the scores of all choices by one
    call, "one by one" a call for each, "transformers" torch with a cache of the context that is repeated for
    a batch of all choices, padded on the right. All take turns. That together and one by one are the same
    bits is checked; transformers must agree within 0.01 in f32 (0.5 in bf16).
    """
    columns = {"model": "", "format": "", "read ms": ".0f", "together ms": ".0f", "together over read": ".2f"}
    columns |= {"one by one over together": ".1f", "transformers over together": ".2f"}
    table = report.table(
        columns, f"{args.choices} choices behind {args.context} tokens, {args.threads} threads"
    )
    for name in progress(args.models, "models"):
        for dtype in args.dtypes:
            model = random_model(name, dtype, n_threads=args.threads)
            context, choices = _texts(SHAPES[name]["n_vocab"], args)
            jobs: dict[str, Callable[[], float]] = {
                "read": lambda m=model, c=context, all_=choices: _read(m, c, all_, args.threads),
                "together": lambda m=model, c=context, all_=choices: _timed(
                    _together, m, c, all_, args.threads
                ),
                "alone": lambda m=model, c=context, all_=choices: _timed(_alone, m, c, all_, args.threads),
            }
            expected = _alone(model, context, choices, args.threads)
            if not np.array_equal(_together(model, context, choices, args.threads), expected):
                raise RuntimeError("choices that are scored together have other bits than one by one")
            if args.work is not None and dtype in ("f32", "bf16"):
                jobs["transformers"] = _transformers(name, dtype, context, choices, expected, args)
            found = take_turns(jobs, args.repeats)
            together = found["together"]
            table.row(
                name, dtype, *(Spread.of(1e3 * t for t in found[job]) for job in ("read", "together")),
                ratios(together, found["read"]), ratios(found["alone"], together),
                ratios(found["transformers"], together) if "transformers" in found else None,
            )  # fmt: skip


def _texts(n_vocab: int, args: argparse.Namespace) -> tuple[Ids, list[Ids]]:
    """The context, and the choices."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2 * args.tokens, args.choices)
    context: Ids = rng.integers(0, n_vocab, args.context).tolist()
    return context, [rng.integers(0, n_vocab, n).tolist() for n in lengths]


def _timed(score: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    score(*arguments)
    return time.perf_counter() - begun


def _read(model: _core.Model, context: Ids, choices: list[Ids], n_threads: int) -> float:
    """Seconds of reading the context and then the choices."""
    tokens, parents = [context[-1]], [-1]
    for choice in choices:
        for i, token in enumerate(choice[:-1]):
            parents.append(0 if i == 0 else len(tokens) - 1)
            tokens.append(token)
    begun = time.perf_counter()
    decoder = _core.Decoder(
        model, capacity=len(context) + len(tokens), max_nodes=len(tokens), n_threads=n_threads
    )
    decoder.prefill(context[:-1])
    decoder.forward(tokens, parents)
    return time.perf_counter() - begun


def _together(model: _core.Model, context: Ids, choices: list[Ids], n_threads: int) -> np.ndarray:
    texts = [[*context, *choice] for choice in choices]
    lengths = np.array([len(text) for text in texts], np.int32)
    given = np.full(len(texts), len(context), np.int32)
    flat = np.concatenate([np.array(text, np.int32) for text in texts])
    return _core.score_texts(model, (flat, lengths), given, n_threads=n_threads)[0]


def _alone(model: _core.Model, context: Ids, choices: list[Ids], n_threads: int) -> np.ndarray:
    return np.concatenate([_together(model, context, [choice], n_threads) for choice in choices])


def _transformers(
    name: str, dtype: str, context: Ids, choices: list[Ids], expected: np.ndarray, args: argparse.Namespace
) -> Callable[[], float]:
    """The same by torch: a job that gives its seconds, whose scores have been compared."""
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    folder = write_checkpoint(name, args.work / f"{name}-{dtype}", dtype)
    number = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=number).eval()
    before, last = torch.tensor([context[:-1]]), context[-1]
    width = max(map(len, choices))
    rows = torch.tensor([[last, *choice[:-1], *[0] * (width - len(choice))] for choice in choices])
    wanted = torch.tensor([[*choice, *[0] * (width - len(choice))] for choice in choices])
    real = torch.tensor([[i < len(choice) for i in range(width)] for choice in choices])

    def score() -> np.ndarray:
        cache = transformers.DynamicCache()
        model(input_ids=before, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(len(choices))
        logits = model(input_ids=rows, past_key_values=cache, use_cache=True).logits
        log_probs = torch.log_softmax(logits.float(), -1).gather(-1, wanted[..., None])[..., 0]
        return log_probs[real].numpy()

    difference = np.abs(score() - expected).max()
    if difference > (0.01 if dtype == "f32" else 0.5):
        raise RuntimeError(f"transformers and specdec differ by {difference:.3g}")
    return lambda: _timed(score)
