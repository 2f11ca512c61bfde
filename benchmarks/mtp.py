"""Native multi-token prediction drafts with the whole head of their target, and with some of its rows."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np

from benchmarks.engine import Decoding
from benchmarks.interleaved import Options, median, progress
from benchmarks.report import Report, Speedup, Spread
from benchmarks.shapes import SHAPES, random_model, round_to_bf16
from specdec import _core
from specdec.drafts.trees import describe_shape
from specdec.models.model_config import ModelConfig


class Acceptance:
    """A target with random weights, and random MTP blocks for it by the number of rows of their heads."""

    def __init__(self, shape: str, dtype: str, heads: list[int], n_tokens: int, n_threads: int) -> None:
        self.target = random_model(shape, dtype)
        config = ModelConfig.from_canonical(SHAPES[shape])
        self.blocks = {rows: self._block(config, dtype, rows % config.n_vocab) for rows in heads}
        self.draft: Any = None
        self.n_tokens, self.n_threads = n_tokens, n_threads
        self.prompt = np.random.default_rng(0).integers(0, config.n_vocab, 64).tolist()
        self.text = self.prompt + Decoding(self, 0, None, 0).finish().tokens  # type: ignore[arg-type]

    def _block(self, config: ModelConfig, dtype: str, rows: int) -> Any:
        """Return a draft's description; 0 rows: the whole head."""
        own = config.alone(config.last_attention) | {
            "features": "joined", "feature_width": config.d_model, "feature_norms": True, "tied": False,
            "shared_head": True, "shared_embedding": True, "n_draft_tokens": rows,
        }  # fmt: skip
        rng = np.random.default_rng(1)
        tensors = (
            (
                name,
                round_to_bf16(rng.standard_normal(size, np.float32) * np.float32(0.02) + ("norm" in name)),
                "bf16",
            )
            for name, size in _core.tensor_shapes(own).items()
        )
        ids = np.arange(rows) if rows else None
        model = _core.Model(own, tensors, dtype=dtype, cache_dtype="bf16", target=self.target, head_rows=ids)
        layers = [config.n_layer + 1]
        eagle = _core.Eagle(model, layers=layers, tokens=ids, normed_feedback=True)
        return describe_shape(None, eagle)

    def cell(self, rows: int, gamma: int, alpha: float, seed: int) -> dict[str, float]:
        """Measure plain decoding and drafts of one kind, interleaved in slices."""
        self.draft = self.blocks[rows]
        plain, run = Decoding(self, 0, None, 0), Decoding(self, gamma, alpha, seed)  # type: ignore[arg-type]
        while plain.advance() + run.advance() > 0:
            pass
        if self.prompt + run.tokens != self.text:
            raise RuntimeError("speculative and plain decoding differ")
        step = median(one["draft_s"] / gamma for one in run.rounds if len(one["drafted"]) == gamma)
        verified = median(one["verify_s"] for one in run.rounds)
        one_s = median(one["verify_s"] for one in plain.rounds)
        as_run = self.n_tokens / len(run.rounds)
        measured = plain.round_s * as_run / run.round_s
        return {"c": step / one_s, "rows": verified / one_s, "as_run": as_run, "measured": measured}


def mtp_options(options: Options) -> None:
    options.many("--shapes", str, ["Qwen3.5-2B"], help="targets")
    options.many("--dtypes", str, ["int8", "int4"], help="number formats of both models")
    options.many("--heads", int, [0, 32768], help="rows of the head that the draft reads; 0: all")
    options.many("--gamma", int, [1, 2, 3, 4])
    options.add("--alpha", type=float, default=0.65, help="acceptance rate")
    options.add("--tokens", type=int, default=60, help="new tokens of a run")
    options.repeats(3)


def mtp(args: argparse.Namespace, report: Report) -> None:
    """Cost of a multi-token prediction draft, and speed-up at a given acceptance rate.

    Target and block have random weights; each draft token is replaced by a correct one with probability
    alpha, else by a wrong one, which needs a build with test hooks (SPECDEC_TESTING=ON). The output must
    equal plain decoding. c is a draft step over a plain step, t(gamma + 1) verification over a plain step.
    """
    columns = {
        "format": "", "head": "d", "gamma": "d", "c": ".3f", "t(gamma + 1)": ".2f", "tokens per pass": ".2f",
        "measured speed-up": ".2f",
    }  # fmt: skip
    for shape in args.shapes:
        table = report.table(columns, f"{shape}, alpha {args.alpha}")
        for dtype in args.dtypes:
            of = Acceptance(shape, dtype, args.heads, args.tokens, args.threads)
            keys = list(itertools.product(args.heads, args.gamma))
            of.cell(*keys[-1], args.alpha, 0)  # warms up
            found: dict[tuple[int, int], list[dict[str, float]]] = {key: [] for key in keys}
            for repeat, key in progress(
                list(itertools.product(range(args.repeats), keys)), f"{shape} {dtype}"
            ):
                found[key].append(of.cell(*key, args.alpha, repeat))
            for (rows, gamma), cells in found.items():
                by_name = {name: [cell[name] for cell in cells] for name in cells[0]}
                speed_up = Speedup.over(by_name["measured"], by_name["as_run"])
                costs = (Spread.of(by_name["c"]), median(by_name["rows"]), median(by_name["as_run"]))
                table.row(dtype, rows or SHAPES[shape]["n_vocab"], gamma, *costs, speed_up)
