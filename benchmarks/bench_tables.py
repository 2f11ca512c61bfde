"""Tables 2 to 5 of the paper (arXiv 2211.17192) for a pair of models and for n-gram drafts.

    python benchmarks/bench_tables.py
    python benchmarks/bench_tables.py --text NOVEL.txt
    python benchmarks/bench_tables.py --target PATH --draft PATH

Prints Markdown. Acceptance rates are those of Corollary 3.6 on 10000 tokens of the target (section 4.2) at
each temperature, with their 95 % intervals. The n-gram drafts are counted on text that the target itself
wrote at temperature 1, or on the first half of a text given with --text; what is continued are beginnings of
other texts of the target, or places in the second half.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import specdec
from machine import describe
from specdec.analysis.measurement import tables
from specdec.drafts import Bigram, Unigram

OPENINGS = (
    "Once upon a time",
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    '"My dear sir," said the old gentleman,',
    "The captain of the ship",
)
PROMPT_TOKENS = 16  # of each text that is continued


def written(
    target: specdec.Model, draft: specdec.Model, n_texts: int, length: int, seed: int, n_threads: int
) -> list[list[int]]:
    """Texts of the target at temperature 1, from the openings in turn; the draft makes them sooner."""
    return [
        (result.prompt_ids + result.tokens)
        for i in range(n_texts)
        for result in [
            specdec.generate(
                target,
                draft,
                OPENINGS[i % len(OPENINGS)],
                max_new_tokens=length,
                temperature=1.0,
                seed=[(seed, i)],
                n_threads=n_threads,
                ignore_eos=True,
            )
        ]
    ]


def read(target: specdec.Model, path: Path, n_prompts: int) -> tuple[list[list[int]], list[list[int]]]:
    """(the first half of a text, beginnings at even distances in the second half), as token ids."""
    assert target.tokenizer is not None
    ids = target.tokenizer.encode(path.read_text(encoding="utf-8"))
    first, second = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    starts = np.linspace(0, len(second) - PROMPT_TOKENS, n_prompts).astype(int)
    return [first], [second[start : start + PROMPT_TOKENS] for start in starts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", help="number format of both, default: as they are stored")
    parser.add_argument("--text", type=Path, help="n-grams and prompts come from this text")
    parser.add_argument("--tokens", type=int, default=10_000, help="of the target at each temperature")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--counted", type=int, default=200_000, help="tokens of the target for the n-grams")
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--no-timing", action="store_true", help="acceptance rates alone: Tables 3 and 5")
    parser.add_argument("--timed", type=int, default=1000, help="new tokens of a timed run")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if (args.target is None) != (args.draft is None):
        parser.error("--target and --draft go together")
    target, draft = (
        specdec.embedded_pair(args.dtype, args.dtype)
        if args.target is None
        else (specdec.load(path, args.dtype) for path in (args.target, args.draft))
    )

    if args.text is None:
        length = min(400, target.config.n_ctx // 2)
        counted = written(target, draft, -(-args.counted // length), length, 1, args.threads)
        prompts = [
            text[:PROMPT_TOKENS]
            for text in written(target, draft, args.prompts, PROMPT_TOKENS, 2, args.threads)
        ]
    else:
        counted, prompts = read(target, args.text, args.prompts)
    n_vocab = target.config.n_vocab
    drafts = {"model": draft, "bigram": Bigram(counted, n_vocab), "unigram": Unigram(counted, n_vocab)}

    print(f"{describe()}, {args.threads} threads\n")
    for name, model in (("target", target), ("draft", draft)):
        print(f"{name}: {model.n_parameters / 1e6:.2f} M parameters in {model.dtype}")
    source = "text of the target" if args.text is None else args.text.name
    print(f"n-grams: {sum(map(len, counted))} tokens of {source}, {drafts['bigram'].n_ngrams[1]} pairs")
    found = {
        name: specdec.measure(
            target,
            one,
            prompts,
            gammas=args.gamma,
            n_tokens=args.tokens,
            timing=not args.no_timing,
            n_timed_tokens=args.timed,
            repeats=args.repeats,
            time_leniences=True,
            n_threads=args.threads,
        )
        for name, one in drafts.items()
    }
    for table in tables([row for one in found.values() for row in one.rows], found["model"].target):
        print(f"\n{table.markdown()}")
    # What is left concerns the law of the target, and each draft's betas.
    for table in found["model"].tables():
        if table.title.startswith("Time of"):
            print(f"\n{table.markdown()}")
    for one in found.values():
        print(f"\n{one.tables()[-1].markdown()}")


if __name__ == "__main__":
    main()
