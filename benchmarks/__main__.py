"""`python -m benchmarks NAME ...`: measure, print Markdown, and with --save write result files."""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    adaptive,
    drafts,
    engine,
    harness,
    kernels,
    mtp,
    paper_pair,
    peers,
    products,
    prompt_caches,
    serving,
)
from benchmarks.interleaved import Options
from benchmarks.report import Report, machine_name, result_folder

#: By name: the program and the function that adds its options.
PROGRAMS: dict[str, tuple[Callable[[argparse.Namespace, Report], None], Callable[[Options], None]]] = {
    "forward": (kernels.forward, kernels.forward_options),
    "attention": (kernels.attention, kernels.attention_options),
    "products": (products.products, products.products_options),
    "speed": (engine.speed, engine.speed_options),
    "fixed-acceptance": (engine.fixed_acceptance, engine.fixed_acceptance_options),
    "mtp": (mtp.mtp, mtp.mtp_options),
    "drafts": (drafts.drafts, drafts.drafts_options),
    "adaptive": (adaptive.adaptive, adaptive.adaptive_options),
    "prompt-caches": (prompt_caches.prompt_caches, prompt_caches.prompt_caches_options),
    "serving": (serving.serving, serving.serving_options),
    "peers": (peers.forwards, peers.forwards_options),
    "peers-pairs": (peers.pairs, peers.pairs_options),
    "peers-batch": (peers.batches, peers.batches_options),
    "peers-exact": (peers.exactness, peers.exactness_options),
    "paper-pair": (paper_pair.paper_pair, paper_pair.paper_pair_options),
    "harness": (harness.harness, harness.harness_options),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser with a subcommand for each program."""
    whole = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    names = whole.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, (run, options) in PROGRAMS.items():
        text = inspect.getdoc(run) or ""
        one = names.add_parser(
            name, help=text.splitlines()[0], description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        options(Options(one))
        one.add_argument("--threads", type=int, default=2)
        one.add_argument(
            "--save", nargs="?", const="", metavar="LABEL",
            help="write results/<date>-<machine>/<name>[-<label>].md and .csv",
        )  # fmt: skip
        one.add_argument(
            "--machine", default=machine_name(), help="machine name for --save; default: %(default)s"
        )
    return whole


def main(words: Sequence[str] | None = None, folder: Path | None = None) -> Report:
    """Run the command line; `folder` replaces today's result folder."""
    words = sys.argv[1:] if words is None else list(words)
    args = parser().parse_args(words)
    name = f"{args.name}-{args.save}" if args.save else args.name
    saved = None if args.save is None else folder or result_folder(args.machine)
    report = Report(name, words, saved, args.machine)
    try:
        PROGRAMS[args.name][0](args, report)
    except BaseException as error:
        report.say(f"\nEnded early: {type(error).__name__}")
        raise
    finally:
        report.close()
    return report


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # ends child processes too
    main()
