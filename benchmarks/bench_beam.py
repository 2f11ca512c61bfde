"""Beam search by speculation (A.4) beside plain beam search: steps a round, nodes, and the clock on the wall.

    python benchmarks/bench_beam.py
    python benchmarks/bench_beam.py --dtype f32 int8 --width 2 4 --draft-width 1 2 4 --gamma 1 2 4

The pair that comes with the package continues a few openings; that both searches find the same beams, tokens
and scores, is checked. Columns, for each width w, draft width u and gamma:

- *levels*: steps of the search for each forward pass of the target: 1 in plain search, at most gamma + 1;
- *nodes*: rows of such a pass, at most w + u · gamma;
- *cost*: what a round costs in forward passes of plain beam search, by the clock;
- *plain / speculative*: seconds of the plain search over those of the speculative one, rounds alone, without
  the prompt: above 1 speculation is faster. Searches take turns; the median over openings and repeats, and
  the lowest and highest;
- *draft, verify, other*: where the rounds of the speculative search spend their time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics

from tqdm import tqdm

import specdec
from machine import describe

OPENINGS = (
    "It was a dark and stormy night",
    "Once upon a time",
    "The door was opened by",
    "In the morning they",
    '"I do not know,"',
)


class Cell:
    """The searches of one width, draft width and gamma."""

    def __init__(self, width: int, draft_width: int, gamma: int) -> None:
        self.width, self.draft_width, self.gamma = width, draft_width, gamma
        self.ratios: list[float] = []
        self.plain: list[specdec.BeamTrace] = []
        self.found: list[specdec.BeamTrace] = []

    def run(self, pair: tuple[specdec.Model, specdec.Model], opening: str, n: int, n_threads: int) -> None:
        """One search of each kind."""
        target, draft = pair
        options = {"width": self.width, "max_new_tokens": n, "n_threads": n_threads, "ignore_eos": True}
        plain = specdec.beam_search(target, None, opening, **options)
        found = specdec.beam_search(
            target, draft, opening, draft_width=self.draft_width, gamma=self.gamma, **options
        )
        assert found.beams == plain.beams, "speculative and plain beam search differ"
        self.ratios.append(plain.trace.rounds_s / found.trace.rounds_s)
        self.plain.append(plain.trace)
        self.found.append(found.trace)

    def row(self) -> str:
        """Its line of the table."""
        calls = sum(trace.n_target_calls for trace in self.found)
        levels = sum(trace.n_levels for trace in self.found) / calls
        nodes = sum(trace.n_nodes for trace in self.found) / calls
        ratio = statistics.median(self.ratios)
        total = sum(trace.rounds_s for trace in self.found)
        shares = (
            100 * sum(getattr(trace, part) for trace in self.found) / total
            for part in ("draft_s", "verify_s", "other_s")
        )
        return (
            f"| {self.width} | {self.draft_width} | {self.gamma} | {levels:.2f} | {nodes:.1f} "
            f"| {levels / ratio:.2f} | **{ratio:.2f}** ({min(self.ratios):.2f} to {max(self.ratios):.2f}) "
            f"| {' | '.join(f'{share:.0f} %' for share in shares)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="+", default=["bf16"], help="number formats of both models")
    parser.add_argument("--width", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--draft-width", type=int, nargs="+", default=[1, 2, 4], help="multiples of the width"
    )
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=60, help="new tokens of a search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{describe()}, {args.threads} threads, {args.tokens} tokens\n")
    for dtype in args.dtype:
        pair = specdec.embedded_pair(dtype)
        cells = [
            Cell(width, width * times, gamma)
            for width, times, gamma in itertools.product(args.width, args.draft_width, args.gamma)
        ]
        for width in args.width:  # warm caches and threads
            specdec.beam_search(*pair, OPENINGS[0], width=width, n_threads=args.threads)
        turns = list(itertools.product(range(args.repeats), OPENINGS, cells))
        for _, opening, cell in tqdm(turns, desc=dtype, disable=None):
            cell.run(pair, opening, args.tokens, args.threads)
        plain_ms = {
            width: 1e3
            * statistics.median(
                trace.rounds_s / trace.n_levels
                for cell in cells
                if cell.width == width
                for trace in cell.plain
            )
            for width in args.width
        }
        times = ", ".join(f"{ms:.2f} ms at width {width}" for width, ms in plain_ms.items())
        print(f"## {dtype}: a step of plain beam search takes {times}\n")
        print("| w | u | gamma | levels | nodes | cost | plain / speculative | draft | verify | other |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        print(*(cell.row() for cell in cells), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
