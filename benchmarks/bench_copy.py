"""Drafts that copy: what they cost as the context grows, and what they bring where texts copy.

    python benchmarks/bench_copy.py
    python benchmarks/bench_copy.py --text NOVEL.txt
    python benchmarks/bench_copy.py --target PATH --dtype bf16 --gamma 8

Prints Markdown. First, costs: microseconds per token of building a suffix automaton, and what a round of a
session spends outside the target's forward pass, of it the proposal, at contexts of several lengths (a tiny
target with a window of 8 tokens, so that the context costs nothing else; medians over rounds). The texts:
--text, or this repository's own sources; and one token again and again.

Second, speed: seconds per token of plain decoding over those with a draft, by the clock on the wall, prompts
not counted; runs take turns, medians over the repeats. In rows marked "own" the target writes what it writes
at temperature 0. In the others it is *made to write* a given text, by a transform of its distribution, in the
plain runs too: all forward passes are real, and the guesses are accepted as if a model wrote this text. That
is for targets that do not copy by themselves, like the embedded one. The transform's own time does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from machine import describe
from specdec import _core
from specdec.drafts import ContextCopy, InputCopy

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = (1_000, 10_000, 100_000)
GREEDY = {"temperature": 0.0}

TINY: dict[str, Any] = {
    "n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_model": 16, "d_head": 16, "d_ff": 16, "norm": "rms",
    "norm_eps": 1e-5, "position": "rotary", "inv_freq": [10000.0 ** (-i / 8) for i in range(8)],
    "activation": "silu", "gated": True, "tied": True, "qkv_bias": False, "out_bias": False,
    "mlp_bias": False, "sliding_window": 8,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- costs


def tiny_target(n_vocab: int, n_ctx: int) -> _core.Model:
    config = TINY | {"n_vocab": n_vocab, "n_ctx": n_ctx}
    rng = np.random.default_rng(0)
    shapes = _core.tensor_shapes(config).items()
    return _core.Model(config, ((n, rng.standard_normal(s).astype(np.float32), "f32") for n, s in shapes))


def sources() -> str:
    """The text of this repository's sources and documents."""
    files = [path for part in ("docs", "python", "csrc", "tests") for path in (ROOT / part).rglob("*")]
    kinds = {".md", ".py", ".c", ".h"}
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(files) if path.suffix in kinds)


def round_us(target: _core.Model, draft: object, prompt: list[int], gamma: int) -> tuple[float, float]:
    """Microseconds of a round outside the target's forward pass, and of the proposal; medians."""
    session = _core.Session(
        target, draft, [prompt], gamma=gamma if draft else 0, max_new_tokens=60, sampling=GREEDY,
        draft_sampling=GREEDY, seeds=[(0, 0)], n_threads=1,
    )  # fmt: skip
    session.prefill()
    records = []
    while batch := session.round():
        records += batch
    session.close()
    outside = statistics.median(r["draft_s"] + r["other_s"] for r in records)
    return 1e6 * outside, 1e6 * statistics.median(r["draft_s"] for r in records)


def costs(text: list[int], n_vocab: int, gamma: int, repeats: int) -> None:
    methods: dict[str, object] = {
        "plain": None,
        "ContextCopy": ("context_copy", None, 2, 1),
        "with 4 candidates": ("context_copy", None, 2, 4),
        "InputCopy": ("input_copy", None, 0, 3, 1),
    }
    print(
        f"## Costs, gamma {gamma}\n\n| text | tokens | us per token read | bytes per token "
        f"| {' | '.join(f'{name}: us a round (proposal)' for name in methods)} |\n"
        f"|---|---|---|---|{'---|' * len(methods)}"
    )
    for name, ids in {"natural": text, "one token": [7] * max(LENGTHS)}.items():
        for n in LENGTHS:
            if n > len(ids):
                print(f"| {name} | the text has {len(ids)} tokens only |")
                continue
            array = np.array(ids[:n], np.int32)
            seconds = []
            for _ in range(repeats):
                begun = time.perf_counter()
                automaton = _core.Automaton(array)
                seconds.append(time.perf_counter() - begun)
            target = tiny_target(n_vocab, n + 64)
            rounds = [round_us(target, method, ids[:n], gamma) for method in methods.values()]
            cells = " | ".join(f"{outside:.1f} ({proposal:.1f})" for outside, proposal in rounds)
            print(
                f"| {name} | {n} | {1e6 * statistics.median(seconds) / n:.2f} "
                f"| {automaton.n_bytes / n:.0f} | {cells} |"
            )
    print()


# ---------------------------------------------------------------------------------------------- speed

PASSAGE = """The old man put down his hat upon the table, and looked at the fire for a long time without a
word. Outside, the wind was rising, and the rain had begun to beat against the windows. At last he turned
to his daughter, and said that the ship would not come before the spring. She had known it since the
morning, when the captain's wife passed by the gate and did not stop. But she said nothing, and went on
with her sewing."""
REWRITTEN = """The old man laid his hat on the table, and looked at the fire for a long time without a
word. Outside, the wind was rising, and the rain had begun to beat against the windows. At last he turned
to his daughter and said that the ship would not come before the summer. She had known it since the
morning, when the captain's wife had passed the gate and did not stop. But she said nothing, and went on
with her work."""

CODE = """def read_rows(path, separator=","):
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            values = line.rstrip("\\n").split(separator)
            rows.append([value.strip() for value in values])
    return rows
"""
EDITED_CODE = """def read_rows(path, separator=",", skip=0):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number < skip:
                continue
            values = line.rstrip("\\n").split(separator)
            rows.append([value.strip() for value in values])
    return rows
"""
RENAMED = CODE.replace("rows", "table").replace('separator=","', 'separator=";"')
MORE_CODE = """

def write_rows(path, rows, separator=","):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            values = [str(value).strip() for value in row]
            file.write(separator.join(values) + "\\n")


def read_columns(path, separator=","):
    rows = read_rows(path, separator)
    return [[row[i] for row in rows] for i in range(len(rows[0]))]
"""


def records(first: int, last: int) -> str:
    names = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "John"]
    rows = [
        {
            "id": 1000 + i,
            "name": names[i % 8],
            "city": ["London", "Paris", "Rome"][i % 3],
            "active": i % 4 > 0,
        }
        for i in range(first, last)
    ]
    return "".join(f"  {json.dumps(row)},\n" for row in rows)


GIVEN = {
    "rewrite a passage": (f"Rewrite this:\n{PASSAGE}\n\nRewritten:\n", REWRITTEN),
    "edit code: names": (f"# Say table for rows, separate by semicolons.\n{CODE}\n# Renamed:\n", RENAMED),
    "edit code: new lines": (f"# Let it skip lines.\n{CODE}\n# With skip:\n", EDITED_CODE),
    "go on with code": (CODE, MORE_CODE),
    "go on with JSON": ("[\n" + records(0, 5), records(5, 10)),
}
OWN = {
    "own, an opening": "She looked out of the window, and",
    "own, a list": "one, two, three, four, one, two,",
}


class Text:
    """A prompt and what the target writes behind it."""

    def __init__(self, target: specdec.Model, prompt: str, output: str | None, n_own: int) -> None:
        tokenizer = target.tokenizer
        assert tokenizer is not None
        self.target = target
        self.prompt = tokenizer.encode(prompt)
        self.given = output is not None
        if output is not None:
            self.output = tokenizer.encode(output, add_bos=False)
        else:
            run = specdec.generate(target, None, self.prompt, max_new_tokens=n_own, ignore_eos=True)
            self.output = run.tokens

    def transform(self) -> Callable[[np.ndarray, list[int]], np.ndarray] | None:
        """What makes the target write the text, if it was given."""
        if not self.given:
            return None
        text = self.prompt + self.output

        def follow(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
            probs[:] = 0.0
            n = len(tokens)
            probs[text[n] if n < len(text) and tokens[-1] == text[n - 1] else 0] = 1.0
            return probs

        return follow

    def decode(self, draft: ContextCopy | InputCopy | None, gamma: int, n_threads: int) -> tuple[float, int]:
        """(seconds of all rounds, how many).

        Where the transform writes the text, the seconds of draft and target alone: it stands in for a model
        that would, and its own time, many microseconds a token, is no part of what is asked.
        """
        session = _core.Session(
            self.target.core, draft.describe(self.target) if draft else None, [self.prompt],
            gamma=gamma if draft else 0, max_new_tokens=len(self.output), sampling=GREEDY,
            draft_sampling=GREEDY, seeds=[(0, 0)], n_threads=n_threads, transform=self.transform(),
        )  # fmt: skip
        session.prefill()
        begun = time.perf_counter()
        found = []
        while batch := session.round(0.02):
            found += batch
        seconds = time.perf_counter() - begun
        if self.given:
            seconds = sum(record["draft_s"] + record["verify_s"] for record in found)
        session.close()
        written = [token for record in found for token in record["tokens"]]
        assert written[: len(self.output)] == self.output, "the draft changed the output"
        return seconds, len(found)


def rows_s(target: specdec.Model, gammas: Sequence[int], n_threads: int, repeats: int) -> dict[int, float]:
    """t(gamma + 1) / t(1) of the target's forward passes, on a cache of 256 tokens."""
    rows = [1] + [gamma + 1 for gamma in gammas]
    decoder = _core.Decoder(target.core, capacity=256 + max(rows), max_nodes=max(rows), n_threads=n_threads)
    decoder.prefill(list(range(256)))
    seconds: dict[int, list[float]] = {m: [] for m in rows}
    for _ in range(10 * repeats):
        for m in rows:
            begun = time.perf_counter()
            decoder.forward(list(range(m)), list(range(-1, m - 1)))
            seconds[m].append(time.perf_counter() - begun)
    one = statistics.median(seconds[1])
    return {gamma: statistics.median(seconds[gamma + 1]) / one for gamma in gammas}


def speeds(target: specdec.Model, gammas: list[int], n_threads: int, repeats: int) -> None:
    ratios = rows_s(target, gammas, n_threads, repeats)
    print(
        f"## Speed, {target.dtype}: over plain decoding, and in parentheses tokens a round\n\n"
        f"| text | new tokens | draft | {' | '.join(f'gamma {gamma}' for gamma in gammas)} |\n"
        f"|---|---|---|{'---|' * len(gammas)}\n"
        f"| | | *t(gamma + 1) / t(1)* | {' | '.join(f'{ratios[gamma]:.2f}' for gamma in gammas)} |"
    )
    texts = {name: Text(target, prompt, output, 200) for name, (prompt, output) in GIVEN.items()}
    texts |= {name: Text(target, prompt, None, 200) for name, prompt in OWN.items()}
    for name, text in texts.items():
        drafts: list[ContextCopy | InputCopy] = [ContextCopy()]
        if name.startswith(("rewrite", "edit")):
            drafts.append(InputCopy())
        runs: dict[Any, list[tuple[float, int]]] = {}
        for _ in range(repeats):
            for key in [None] + [(draft, gamma) for draft in drafts for gamma in gammas]:
                runs.setdefault(key, []).append(text.decode(*(key or (None, 0)), n_threads))
        plain = statistics.median(seconds for seconds, _ in runs[None])
        for draft in drafts:
            cells = []
            for gamma in gammas:
                seconds = statistics.median(seconds for seconds, _ in runs[draft, gamma])
                n_rounds = runs[draft, gamma][0][1]
                cells.append(f"**{plain / seconds:.2f}** ({len(text.output) / n_rounds:.2f})")
            print(f"| {name} | {len(text.output)} | {type(draft).__name__} | {' | '.join(cells)} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="UTF-8; default: this repository's sources")
    parser.add_argument("--target", help="default: the embedded pair's")
    parser.add_argument("--dtype", nargs="+", default=["bf16", "f32"])
    parser.add_argument("--gamma", type=int, nargs="+", default=[4, 8, 16, 24])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{describe()}, {args.threads} threads\n")
    for i, dtype in enumerate(args.dtype):
        target = specdec.load(args.target, dtype=dtype) if args.target else specdec.embedded_pair(dtype)[0]
        assert target.tokenizer is not None
        if i == 0:
            text = args.text.read_text(encoding="utf-8") if args.text else sources()
            ids = target.tokenizer.encode(text[: 8 * max(LENGTHS)], add_bos=False)
            costs(ids, target.config.n_vocab, 8, args.repeats)
        speeds(target, args.gamma, args.threads, args.repeats)


if __name__ == "__main__":
    main()
