"""Shared code of the harness integrations: pairs by name, totals of speculation statistics."""

from __future__ import annotations

import pytest

import specdec
from specdec.errors import InputError
from specdec.integrations.pair import EvaluatedPair, Tally
from trained import MODELS

Embedded = tuple[specdec.Model, specdec.Model]


@pytest.fixture(scope="module")
def embedded() -> Embedded:
    return specdec.embedded_pair()


def test_pairs_by_name(embedded: Embedded) -> None:
    pair = EvaluatedPair.open("embedded", "embedded")
    assert (pair.target, pair.name, pair.draft_name) == (embedded[0], "embedded", "embedded")
    assert EvaluatedPair.open("embedded", "none").draft is EvaluatedPair.open("embedded").draft is None
    int8 = EvaluatedPair.open(str(MODELS / "target"), "prompt-lookup", dtype="int8", n_ctx=64)
    assert (int8.target.dtype, int8.target.config.n_ctx, int8.draft_name) == ("int8", 64, "prompt-lookup")
    given = EvaluatedPair.open(*embedded)
    assert given.draft is embedded[1] and given.draft_name == str(embedded[1].path)
    assert given.description("auto", "block")["gamma"] == "auto"
    for models, name, value, what in (
        (("embedded",), "n_ctx", 64, "the bundled target"),
        ((embedded[0],), "dtype", "int8", "a loaded model"),
        (embedded, "draft_dtype", "int8", "a loaded draft"),
        (("embedded", "none"), "draft_dtype", "int8", "no draft"),
    ):
        with pytest.raises(InputError, match=f"{name} is {value!r}, with {what}; expected None"):
            EvaluatedPair.open(*models, **{name: value})
    with pytest.raises(InputError, match="has no tokenizer"):
        EvaluatedPair.open(embedded[0].path, tokenizer=False)


def test_what_speculation_did_is_summed(embedded: Embedded) -> None:
    prompts = ["The rain had fallen", "She opened the letter"]
    results = specdec.generate(*embedded, prompts, max_new_tokens=20, temperature=0.7, seed=1)
    tally = Tally().add(results[:1], 1.0).add(results[1:], 3.0)
    figures, traces = tally.figures(), [result.trace for result in results]
    assert figures["n_texts"] == 2 and figures["n_tokens"] == sum(len(result.tokens) for result in results)
    assert figures["n_calls"] == sum(trace.n_calls for trace in traces)
    betas = [beta for trace in traces for one in trace.rounds for beta in one.betas]
    assert figures["acceptance_rate"] == pytest.approx(sum(betas) / len(betas), rel=1e-12)
    assert figures["tokens_per_s"] == figures["n_tokens"] / 4.0
    assert Tally().figures()["acceptance_rate"] is None
