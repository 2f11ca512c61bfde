"""Perplexity of a pair and its acceptance rate by position, every 50 tokens.

    python training/positions.py
    python training/positions.py --target work/target --draft work/draft

The first table uses windows of the held-out novels: perplexity of both models, and alpha at temperature 1
(the mean of Σ min(target, draft)) and 0 (the share of equal argmaxes). The second uses text that the target
generates after the first tokens of such windows: alpha at the same temperatures. Greedy text of a small model
soon repeats itself, which is easy to draft; so the second table also has alpha at temperature 0 outside of
repetitions, and the share of text outside of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import specdec

SEED = 17760704
NAMES = ("target", "draft")
N_PROMPT = 16  # prompt tokens from a novel
LONGEST = 64  # longest period of a repetition in tokens

Array = NDArray[np.float64]


def distributions(model: specdec.Model, ids: list[int], n_threads: int) -> Array:
    """Return distributions [len(ids), n_vocab] at temperature 1, row i after ids[: i + 1]."""
    return specdec.distribution(model.logits(ids, n_threads=n_threads))


def judge(target: Array, draft: Array) -> dict[str, Array]:
    """Return the acceptance rate [n_positions] at both temperatures."""
    return {
        "T=1": np.minimum(target, draft).sum(axis=1),
        "T=0": (target.argmax(axis=1) == draft.argmax(axis=1)).astype(np.float64),
    }


def repeats(tokens: list[int]) -> NDArray[np.bool_]:
    """Return whether each token is part of an immediate repetition.

    A passage with period p <= LONGEST repeats if at least max(p, 4) tokens equal those p positions before
    them.
    """
    ids = np.asarray(tokens)
    found = np.zeros(len(ids), bool)
    for period in range(1, LONGEST + 1):
        run = 0
        for i in range(period, len(ids)):
            run = run + 1 if ids[i] == ids[i - period] else 0
            if run >= period and run >= 4:
                found[i - run + 1 : i + 1] = True
    return found


def by_position(columns: dict[str, Array], step: int, length: int) -> list[str]:
    """Return table rows of means over windows and `step` positions; columns are [n_windows, length]."""
    rows = ["| positions | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    spans = [(first, min(first + step, length)) for first in range(0, length, step)] + [(0, length)]
    for first, last in spans:
        cells = []
        for name, values in columns.items():
            part = values[:, first:last]
            mean = np.nanmean(part) if not np.isnan(part).all() else np.nan
            cells.append(f"{np.exp(mean):.1f}" if "perplexity" in name else f"{mean:.3f}")
        span = "all" if (first, last) == (0, length) else f"{first} to {last - 1}"
        rows.append(f"| {span} | " + " | ".join(cells) + " |")
    return rows


def held_out(target: specdec.Model, draft: specdec.Model, windows: list[list[int]], n_threads: int) -> dict:
    """Return perplexities and acceptance rates on the novels."""
    found: dict[str, list[Array]] = {}
    for ids in windows:
        probs = [distributions(model, ids[:-1], n_threads) for model in (target, draft)]
        rows = np.arange(len(ids) - 1)
        scores = {
            f"{name} perplexity": -np.log(p[rows, ids[1:]]) for name, p in zip(NAMES, probs, strict=True)
        }
        for name, values in {**scores, **{f"alpha {k}": v for k, v in judge(*probs).items()}}.items():
            found.setdefault(name, []).append(values)
    return {name: np.array(values) for name, values in found.items()}


def own_text(target: specdec.Model, draft: specdec.Model, windows: list[list[int]], n_threads: int) -> dict:
    """Return acceptance rates on the target's text at each temperature, after the prompt."""
    columns: dict[str, Array] = {}
    prompts = [ids[:N_PROMPT] for ids in windows]
    length = len(windows[0]) - 1
    for temperature, name in ((1.0, "T=1"), (0.0, "T=0")):
        results = specdec.generate(
            target, None, prompts, max_new_tokens=length - N_PROMPT, temperature=temperature, seed=SEED,
            ignore_eos=True, n_threads=n_threads,
        )  # fmt: skip
        alpha = np.full((len(prompts), length), np.nan)
        new = np.ones_like(alpha)
        for i, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            text = [*prompt, *result.tokens]
            both = judge(*(distributions(model, text[:-1], n_threads) for model in (target, draft)))
            alpha[i, N_PROMPT - 1 : len(text) - 1] = both[name][N_PROMPT - 1 :]
            new[i, : len(text) - 1] = ~repeats(text)[1:]
        columns[f"alpha {name}"] = alpha
        if temperature == 0.0:
            new[np.isnan(alpha)] = np.nan
            columns["alpha T=0, no repetition"] = np.where(new == 1.0, alpha, np.nan)
            columns["share of text"] = new
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="folder; default: the embedded pair")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--valid", type=Path, default=Path(__file__).parent / "work" / "valid.npy")
    parser.add_argument("--windows", type=int, default=64, help="of the novels, evenly spaced")
    parser.add_argument("--length", type=int, default=500, help="positions of a window")
    parser.add_argument("--step", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    shipped = specdec.embedded_pair()
    target = shipped[0] if args.target is None else specdec.load(args.target)
    draft = shipped[1] if args.draft is None else specdec.load(args.draft)
    novels = np.load(args.valid, mmap_mode="r")
    starts = np.linspace(0, len(novels) - args.length - 1, args.windows).astype(int)
    windows = [novels[start : start + args.length + 1].tolist() for start in starts]
    for title, measure in (
        (f"Held-out novels, {args.windows} windows of {args.length} tokens", held_out),
        (f"The target's own text after {N_PROMPT} tokens of each", own_text),
    ):
        columns = measure(target, draft, windows, args.threads)
        print(f"{title}:\n", *by_position(columns, args.step, args.length), sep="\n", end="\n\n", flush=True)


if __name__ == "__main__":
    main()
