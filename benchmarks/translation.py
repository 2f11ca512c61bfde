"""Tables 2 and 3 of the paper (arXiv 2211.17192) for translators: a T5 target, T5 drafts and n-grams."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import specdec
from benchmarks.paper import speedup_table
from benchmarks.report import Report
from benchmarks.turns import DTYPES, Options, progress
from specdec.drafts import Bigram, Unigram

MODELS = ("small", "tiny")
LONGEST = 64  # new tokens of a translation


def translation_options(options: Options) -> None:
    options.add(
        "--work", type=Path, default=Path("training/work/translation"), metavar="FOLDER",
        help="what the training of the translators wrote: target, small, tiny, train.tsv, test.tsv",
    )  # fmt: skip
    options.add("--dtype", choices=DTYPES, help="number format of all models; default: as they are stored")
    options.add("--sentences", type=int, default=1000, help="of the test, at most")
    options.add("--counted", type=int, default=5000, help="translations of the target for the n-grams")
    options.many("--gamma", int, (3, 5, 7))
    options.add("--timed", type=int, default=1000, help="new tokens of a timed run")
    options.repeats(5)


def translation(args: argparse.Namespace, report: Report) -> None:
    """Translation by a T5 target: quality, acceptance rates, speed-ups measured and expected.

    Quality is chrF and BLEU (sacrebleu; BLEU over characters) of the greedy translations of held-out
    sentences by the target alone and with each draft; that these are the same tokens is asserted. Acceptance
    rates are those of Corollary 3.6 on the target's translations of the sentences, with their 95 % intervals.
    The n-grams are counted on translations of training sentences that the target wrote at temperature 1.
    """
    folder = args.work
    if not (folder / "target").is_dir():
        raise SystemExit(f"{folder}: there is no folder target; training/README.md says how to train one")
    target = specdec.load(folder / "target", args.dtype)
    models = {name: specdec.load(folder / name, args.dtype) for name in MODELS if (folder / name).is_dir()}
    for name, model in {"target": target, **models}.items():
        share = model.n_parameters / target.n_parameters
        report.say(f"- {name}: {model.n_parameters / 1e6:.2f} M parameters ({share:.2%}) in {model.dtype}")
    sources, references = read_pairs(folder / "test.tsv", args.sentences)
    report.say(f"- {len(sources)} held-out sentences, gamma {', '.join(map(str, args.gamma))}")

    written = specdec.generate(
        target, None, read_pairs(folder / "train.tsv", args.counted)[0], max_new_tokens=LONGEST,
        temperature=1.0, batch_size=16, n_threads=args.threads,
    )  # fmt: skip
    counted = [result.tokens for result in written]
    n_vocab = target.config.n_vocab
    drafts = {**models, "bigram": Bigram(counted, n_vocab), "unigram": Unigram(counted, n_vocab)}
    report.say(f"- n-grams: {sum(map(len, counted))} tokens of {len(counted)} translations of the target")

    quality(target, drafts, sources, references, args, report)
    found = {
        name: specdec.measure(
            target, draft, sources, gammas=args.gamma, leniences=(1.0,), n_tokens=LONGEST * len(sources),
            timing=specdec.Timing(args.repeats, args.timed), n_threads=args.threads,
        )
        for name, draft in progress(drafts.items(), "drafts")
    }  # fmt: skip
    acceptance_table(found, report)
    exact = [(name, row) for name, one in found.items() for row in one.rows]
    speedup_table(exact, report, "Table 2: speed-up measured, predicted, and ideal (Theorem 3.8)")


def read_pairs(file: Path, n: int) -> tuple[list[str], list[str]]:
    """The first n sources and their references: lines of both, separated by a tab."""
    lines = file.read_text(encoding="utf-8").splitlines()[:n]
    sources, references = zip(*(line.split("\t") for line in lines), strict=True)
    return list(sources), list(references)


def quality(
    target: specdec.Model,
    drafts: Mapping[str, Any],
    sources: Sequence[str],
    references: Sequence[str],
    args: argparse.Namespace,
    report: Report,
) -> None:
    """A table of chrF and BLEU at temperature 0: the target alone, with each draft, and each draft alone."""
    import sacrebleu

    def translated(model: specdec.Model, draft: Any, gamma: int) -> list[specdec.Result]:
        return specdec.generate(
            model, draft, sources, gamma=gamma, max_new_tokens=LONGEST, batch_size=16, n_threads=args.threads
        )

    def row(name: str, gamma: int | None, results: Sequence[specdec.Result]) -> None:
        texts = [result.text for result in results]
        chrf = sacrebleu.corpus_chrf(texts, [references]).score
        bleu = sacrebleu.corpus_bleu(texts, [references], tokenize="char").score
        n_tokens = sum(result.trace.n_tokens for result in results)
        table.row(name, gamma, chrf, bleu, n_tokens / sum(result.trace.n_calls for result in results))

    columns = {"text of": "", "gamma": "d", "chrF": ".2f", "BLEU, characters": ".2f", "tokens per run": ".2f"}
    table = report.table(columns, "Quality at temperature 0")
    plain = translated(target, None, 1)
    row("target alone", None, plain)
    for name, draft in drafts.items():
        for gamma in args.gamma:
            found = translated(target, draft, gamma)
            for one, other in zip(plain, found, strict=True):
                if one.tokens != other.tokens or one.text != other.text:
                    raise RuntimeError(f"{name}, gamma {gamma}: the text is not that of plain decoding")
            row(f"target, with {name}", gamma, found)
    for name, draft in drafts.items():
        if isinstance(draft, specdec.Model):
            row(f"{name} alone", None, translated(draft, None, 1))
    report.say("\nThe texts of the target, alone and with every draft and gamma, are the same tokens.")


def acceptance_table(found: Mapping[str, specdec.Measurement], report: Report) -> None:
    """Table 3, with the cost coefficient c of each draft (Definition 3.7)."""
    rates = {"alpha": ".3f", "95 % interval": "", "c": ".3f", "tokens": "d"}
    table = report.table({"draft": "", "temperature": "g", **rates}, "Table 3: acceptance")
    for name, one in found.items():
        for row in {row.temperature: row for row in one.rows}.values():
            interval = f"{row.alpha_low:.3f} to {row.alpha_high:.3f}"
            table.row(name, row.temperature, row.alpha, interval, row.c, row.n_tokens)
