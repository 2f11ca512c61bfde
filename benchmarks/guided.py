"""Output with a form: speculative guided decoding beside plain guided decoding, and what masks cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import specdec
from benchmarks.report import Report, Speedup
from benchmarks.shapes import Tensor, round_to_bf16
from benchmarks.turns import Options, load_pair
from specdec import _core
from specdec import drafts as ways
from specdec.commands.decoding_options import PAIR_GAMMA
from specdec.models.checkpoints import open_checkpoint
from specdec.models.model_config import ModelConfig
from specdec.trace import Trace

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 5, "maxLength": 30},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "occupation": {"enum": ["sailor", "farmer", "teacher", "doctor", "merchant"]},
        "married": {"type": "boolean"},
        "story": {"type": "string", "minLength": 60, "maxLength": 200},
    },
    "required": ["name", "age", "occupation", "married", "story"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "JSON schema": {"schema": PERSON},
    "list of schemas": {"schema": {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}},
    "regex": {"regex": r"([A-Z][a-z]{3,10} [A-Z][a-z]{3,10}, 18[0-9]{2}-[01][0-9]-[0-3][0-9]\n){8}"},
}
PROMPTS = (
    "The captain told us of himself:",
    "My father had a friend, of whom he wrote:",
    "In the book of the parish stood:",
    "She knew only this of the stranger:",
)

Make = Callable[[specdec.Model], Any]

DRAFTS: dict[str, Make] = {
    "model": lambda small: small,
    "tree": lambda small: ways.ModelDraft(small, tree=ways.DynamicTree(6)),
    "ContextCopy": lambda small: ways.ContextCopy(),
    "Ensemble": lambda small: ways.Ensemble(ways.ContextCopy(), small),
}


def enlarged(model: specdec.Model, n_layer: int, d_ff: int, dtype: str | None) -> specdec.Model:
    """A model with the same logits whose forward passes cost more: layers and units that add nothing.

    Parameters
    ----------
    model : specdec.Model
        One that was read from a folder, of Llama's layout.
    n_layer, d_ff : int
        As many layers, and units in each, as it shall have. The weights that lead from what is new to the
        residual stream are 0, the others are random.
    dtype : str or None
        None: bf16.
    """
    checkpoint = open_checkpoint(model.path)
    config = checkpoint.config | {"n_layer": n_layer, "d_ff": d_ff}
    known = {name: (array, form) for name, array, form in checkpoint.tensors()}
    rng = np.random.default_rng(0)

    def tensors() -> Iterator[Tensor]:
        for name, shape in _core.tensor_shapes(config).items():
            array, form = known.get(name, (np.zeros(0, np.uint16), "bf16"))
            if array.shape == tuple(shape):
                yield name, array, form
                continue
            inert = name.endswith(("mlp_down.weight", "attn_out.weight"))
            noise = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            values = round_to_bf16(noise * np.float32(not inert) + np.float32(name.endswith("norm.weight")))
            if array.size:
                values[tuple(slice(size) for size in array.shape)] = array
            yield name, values, "bf16"

    dtype = dtype or "bf16"
    core = _core.Model(config, tensors(), dtype=dtype, cache_dtype="f32" if dtype == "f32" else "bf16")
    return specdec.Model(core, ModelConfig.from_canonical(config), model.tokenizer, model.path, "enlarged")


def guided_options(options: Options) -> None:
    options.pair()
    options.add(
        "--enlarge", type=int, nargs=2, default=None, metavar=("LAYERS", "UNITS"),
        help="layers of the target, and units of each, of which those added do nothing: 97M parameters have "
        "12 and 6144",
    )  # fmt: skip
    options.many(
        "--drafts", str, ["model", "Ensemble"], choices=DRAFTS, metavar="NAME", help=", ".join(DRAFTS)
    )
    options.many("--forms", str, FORMS, choices=FORMS, metavar="NAME", help=", ".join(FORMS))
    options.many("--temperature", float, [0.0, 0.8])
    options.add("--tokens", type=int, default=400)
    options.add(
        "--gamma",
        type=int,
        default=None,
        help="by default 2 with the pair in the package, else the draft's own",
    )
    options.repeats(3)


def guided(args: argparse.Namespace, report: Report) -> None:
    """Seconds a token with a form: plain, plain with its form, and with drafts.

    Plain guided decoding reads what the form forces several tokens at a time too. Prompts are not counted.
    Free is plain decoding without a form, of as many tokens; what a token of plain guided decoding costs
    beside it is what masks cost, less what forced tokens save. Runs take turns, text by text.

    Every repeat writes the same texts in the same rounds. The last column is the speed-up if each round took
    the least time of its repeats: other processes on the machine can only add to that. Where a draft's rounds
    depend on times, the least of the runs is taken, of both.
    """
    target, small = load_pair(args.target, args.draft, args.dtype)
    if args.enlarge is not None:
        target = enlarged(target, *args.enlarge, args.dtype)
    columns = {"form": "", "draft": "", "T": "g", "tokens": "d", "free, µs a token": ".0f",
               "plain, µs a token": ".0f", "plain tokens per run": ".2f", "with draft, µs a token": ".0f",
               "tokens per run": ".2f", "measured speed-up": ".2f", "of least times": ".2f"}  # fmt: skip
    table = report.table(columns)
    for form in args.forms:
        for name in args.drafts:
            for temperature in args.temperature:
                table.row(form, name, temperature, *_compared(args, target, small, form, name, temperature))


def _compared(
    args: argparse.Namespace,
    target: specdec.Model,
    small: specdec.Model,
    form: str,
    name: str,
    temperature: float,
) -> tuple[Any, ...]:
    own = name != "model" or args.target is not None
    gamma = args.gamma if args.gamma is not None else None if own else PAIR_GAMMA
    speeds, tokens = [], []
    free_s = plain_s = draft_s = 0.0
    n_tokens = n_calls = n_plain_calls = n_repeats = 0
    traces: dict[str, list[list[Trace]]] = {"plain": [[] for _ in PROMPTS], "draft": [[] for _ in PROMPTS]}
    for _ in range(args.repeats):
        sums = {"plain": 0.0, "draft": 0.0}
        repeat_tokens = repeat_calls = 0
        for i, prompt in enumerate(PROMPTS):
            how: dict[str, Any] = {
                "temperature": temperature, "verify": "coupled" if temperature else "rejection",
                "seed": [(0, i)], "n_threads": args.threads,
            }  # fmt: skip
            plain = specdec.generate(target, None, prompt, max_new_tokens=args.tokens, **FORMS[form], **how)
            draft = DRAFTS[name](small)
            run = specdec.generate(
                target, draft, prompt, max_new_tokens=args.tokens, gamma=gamma, **FORMS[form], **how
            )
            n = len(plain.tokens)
            free = specdec.generate(target, None, prompt, max_new_tokens=n, ignore_eos=True, **how)
            if run.tokens != plain.tokens:
                raise RuntimeError(f"{name}, {form}: the output is not that of plain decoding")
            if "schema" in FORMS[form] and run.finish_reason == "stop":
                json.loads(run.text)
            sums["plain"] += plain.trace.total_s
            sums["draft"] += run.trace.total_s
            traces["plain"][i].append(plain.trace)
            traces["draft"][i].append(run.trace)
            free_s += free.trace.total_s
            repeat_tokens += n
            repeat_calls += run.trace.n_calls
            n_plain_calls += plain.trace.n_calls
        plain_s += sums["plain"]
        draft_s += sums["draft"]
        n_tokens += repeat_tokens
        n_calls += repeat_calls
        speeds.append(sums["plain"] / sums["draft"])
        tokens.append(repeat_tokens / repeat_calls)
        n_repeats += 1
    speedup = Speedup.over(speeds, tokens)
    leasts = [least_s(*both) for both in zip(traces["plain"], traces["draft"], strict=True)]
    return (
        n_tokens // n_repeats, 1e6 * free_s / n_tokens, 1e6 * plain_s / n_tokens, n_tokens / n_plain_calls,
        1e6 * draft_s / n_tokens, speedup.tokens_per_run, speedup,
        sum(least[0] for least in leasts) / sum(least[1] for least in leasts),
    )  # fmt: skip


def least_s(runs: Sequence[Trace], others: Sequence[Trace]) -> tuple[float, float]:
    """Seconds of the rounds of a text in two ways, each round as short as the shortest of its repeats.

    Parameters
    ----------
    runs, others : sequence of Trace
        Of the same text. Where repeats have different rounds, the shortest run of either way counts.
    """
    ways = [
        [[r.draft_s + r.verify_s + r.other_s for r in run.rounds] for run in way] for way in (runs, others)
    ]
    if any(len({tuple(r.drafted for r in run.rounds) for run in way}) > 1 for way in (runs, others)):
        one, other = (min(map(sum, way)) for way in ways)
    else:
        one, other = (sum(map(min, zip(*way, strict=True))) for way in ways)
    return one, other
