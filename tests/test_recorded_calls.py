"""Recorded calls: texts, logits, log-probabilities and traces keep their bits across refactoring.

``python tests/test_recorded_calls.py`` records them again, after a change that intentionally changes bits.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import drafts
from trained import small_pair

FILE = Path(__file__).parent / "data" / "recorded_calls.json"
N_CALLS, N_PER_ITEM = 500, 25
PROMPTS = (
    "Once upon a time", "The dog and the cat went to the park. The dog and the cat", "Lily",
    "Tom had a red ball. One day, he saw a big", "",
)  # fmt: skip


def sampling(draw: random.Random) -> dict[str, Any]:
    """Settings of the distribution."""
    settings: dict[str, Any] = {"temperature": draw.choice([0.0, 0.0, 0.6, 1.0, 1.3])}
    choices: dict[str, list[Any]] = {
        "top_k": [1, 5, 40], "top_p": [0.3, 0.9], "min_p": [0.05, 0.5], "repetition_penalty": [1.2],
        "presence_penalty": [0.5], "frequency_penalty": [-0.3, 0.4], "logit_bias": [{13: 2.0, 300: -4.0}],
    }  # fmt: skip
    for name, values in choices.items():
        if draw.random() < 0.15:
            settings[name] = draw.choice(values)
    return settings


def generation(draw: random.Random) -> dict[str, Any]:
    """A call of `specdec.generate`."""
    options = sampling(draw)
    options |= {"gamma": draw.choice([0, 1, 2, 4, 7]), "max_new_tokens": draw.choice([1, 5, 20])}
    options["seed"] = draw.randrange(1000)
    draft = draw.choice([None, *DRAFTS])
    if draft == "model":
        options["verify"] = draw.choice(["rejection", "block", "coupled"])
        if options["verify"] == "rejection" and draw.random() < 0.3:
            options["lenience"] = 0.5
        if draw.random() < 0.2:
            options["draft_sampling"] = {"temperature": 0.8, "top_k": 10}
    if draft is None or draft in ("lookahead", "tree", "dynamic"):
        del options["gamma"]
    more: dict[str, list[Any]] = {
        "logprobs": [0, 3], "prompt_logprobs": [0, 2], "stop": ["the", [13, " was"]],
        "regex": ["[a-z ]{3,40}\\."],
        "schema": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}],
        "ignore_eos": [True],
    }  # fmt: skip
    for name, values in more.items():
        if draw.random() < 0.1 and not ("regex" in options and name == "schema"):
            options[name] = draw.choice(values)
    several = draw.random()
    prompt: Any = draw.choice(PROMPTS)
    if several < 0.15:
        prompt = draw.sample(PROMPTS, 3)
        options["batch_size"] = draw.choice([1, 2, 16])
    elif several < 0.25:
        options["n"] = 3
    elif several < 0.5 and "constraint" not in options:
        options["logits"] = True
    return {
        "target": draw.choice(["f32", "f32", "bf16", "int8", "int4"]), "draft": draft, "prompt": prompt,
    } | options  # fmt: skip


def calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of a function and the arguments of each recorded call."""
    draw = random.Random(36)
    for index in range(N_CALLS):
        if index % 20 == 19:
            call = {"draft": draw.choice([None, "model"]), "prompt": draw.choice(PROMPTS[:4])}
            yield "beam_search", {"target": "f32", **call, "width": draw.choice([1, 3]), "max_new_tokens": 8}
        else:
            yield "engine" if index % 10 == 7 else "generate", generation(draw)


@cache
def models(dtype: str) -> tuple[specdec.Model, specdec.Model]:
    return small_pair(dtype, "f32")


@cache
def counts() -> list[int]:
    text = "Once upon a time there was a little girl. The dog was big. She saw the cat and the dog. " * 8
    return list(models("f32")[0].tokenizer.encode(text))


DRAFTS: dict[str, Callable[[specdec.Model], Any]] = {
    "model": lambda draft: draft,
    "tree": lambda draft: drafts.ModelDraft(draft, tree=drafts.StaticTree([2, 2, 1])),
    "dynamic": lambda draft: drafts.ModelDraft(draft, tree=drafts.DynamicTree(10)),
    "copy": lambda draft: drafts.PromptLookup(), "input": lambda draft: drafts.InputCopy(),
    "bigram": lambda draft: drafts.Bigram(counts(), draft.tokenizer.n_vocab),
    "ngram": lambda draft: drafts.Ngram(counts(), draft.tokenizer.n_vocab),
    "online-ngram": lambda draft: drafts.OnlineNgram(), "suffix": lambda draft: drafts.SuffixDecoding(),
    "recycling": lambda draft: drafts.TokenRecycling(), "lookahead": lambda draft: drafts.Lookahead(3, 3),
    "exit": lambda draft: drafts.EarlyExit(2), "random": lambda draft: drafts.RandomDraft(),
    "ensemble": lambda draft: drafts.Ensemble(drafts.PromptLookup(), draft, adaptive=False),
}  # fmt: skip


def digest(*values: Any) -> str:
    """Digest arrays and JSON values by the first digits of SHA-256."""
    sums = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            sums.update(repr((value.shape, value.dtype.str)).encode() + np.ascontiguousarray(value).tobytes())
        else:
            sums.update(json.dumps(value).encode())
    return sums.hexdigest()[:12]


def rounds(trace: specdec.Trace) -> list[list[Any]]:
    """Contents of a trace, without times."""
    return [
        [r.index, list(r.drafted), list(r.parents), list(r.path), list(r.tokens), r.kept, list(r.betas)]
        for r in trace.rounds
    ]


def of_result(result: Any) -> list[str]:
    """Digests of one text: tokens and text, numbers, trace."""
    if isinstance(result, list):
        return [digest(*column) for column in zip(*(of_result(entry) for entry in result), strict=True)]
    numbers = [result.logits if result.logits is not None else None]
    for name in ("logprobs", "prompt_logprobs"):
        values = getattr(result, name)
        numbers.append(None if values is None else [None if x is None else float(x) for x in values])
    return [
        digest(list(result.tokens), result.text, str(result.finish_reason)),
        digest(*numbers),
        digest(rounds(result.trace)),
    ]


def run(function: str, call: dict[str, Any]) -> list[str]:
    """Run a call; return its digests, or the type of its error."""
    options = dict(call)
    target, small = models(options.pop("target"))
    name, prompt = options.pop("draft"), options.pop("prompt")
    if "draft_sampling" in options:
        options["draft_sampling"] = specdec.Sampling(**options["draft_sampling"])
    draft = None if name is None else DRAFTS[name](small)
    try:
        if function == "beam_search":
            found = specdec.beam_search(target, draft, prompt, **options)
            return [digest([[list(beam.tokens), beam.score] for beam in found.beams])]
        options.setdefault("verify", "rejection")  # the default when these calls were recorded
        if function == "engine":
            for left_out in ("logits", "batch_size"):
                options.pop(left_out, None)
            gamma = {"gamma": options.pop("gamma")} if "gamma" in options else {}
            text = prompt if isinstance(prompt, str) else prompt[0]
            with specdec.Engine(target, draft, n_slots=2, **gamma) as engine:
                result = engine.submit(text, **options).result()
            return of_result(result)[:2]
        return of_result(specdec.generate(target, draft, prompt, **options))
    except specdec.SpecdecError as error:
        return [type(error).__name__]


ITEMS = [
    pytest.param(first, marks=[pytest.mark.slow] if first >= 2 * N_PER_ITEM else [])
    for first in range(0, N_CALLS, N_PER_ITEM)
]


@pytest.mark.parametrize("first", ITEMS)
def test_recorded_calls_keep_their_bits(first: int) -> None:
    """On every instruction set, too."""
    recorded = json.loads(FILE.read_text("utf-8"))
    moved = {}
    for index, (function, call) in list(enumerate(calls()))[first : first + N_PER_ITEM]:
        found = run(function, call)
        if found != recorded[index]:
            moved[index] = (function, call, recorded[index], found)
    assert moved == {}


if __name__ == "__main__":
    lines = [json.dumps(run(function, call)) for function, call in calls()]
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
