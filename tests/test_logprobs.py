"""Log-probabilities of generated tokens and prompts, and several samples per prompt."""

from __future__ import annotations

import json
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from compiled import blocks_of_a_stored_token, blocks_of_a_token, counted_work
from refusals import refuses
from specdec import PromptCache, drafts, reference
from worlds.encoder_decoders import EncoderDecoder

pytestmark = pytest.mark.usefixtures("one_thread")
Pair = tuple[specdec.Model, specdec.Model]
PROMPT = [1, 5, 9, 30, 7, 12]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2}
SAMPLED |= {"logit_bias": {7: -2.0}, "seed": 5}
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True, "logits": True}


def one(*arguments: Any, **options: Any) -> specdec.Result:
    out = specdec.generate(*arguments, **OPTIONS | options)
    assert isinstance(out, specdec.Result)
    return out


def assert_said_alike(found: specdec.Result, expected: specdec.Result) -> None:
    assert found.tokens == expected.tokens
    assert np.array_equal(found.logprobs, expected.logprobs)  # type: ignore[arg-type]
    assert found.top_logprobs == expected.top_logprobs


HOW: dict[str, dict[str, Any]] = {"greedy": {}}
HOW |= {rule: {**SAMPLED, "verify": rule} for rule in ("coupled", "block")}


@pytest.mark.parametrize("how", HOW)
def test_model_logprobs_equal_those_of_score(pair: Pair, how: str) -> None:
    for gamma in (0, 1, 5):
        found = one(*pair, PROMPT, gamma=gamma, logprobs=3, prompt_logprobs=2, **HOW[how])
        scored = pair[0].score([[*PROMPT, *found.tokens]], top_logprobs=3)[0]
        assert np.array_equal(np.concatenate([found.prompt_logprobs, found.logprobs]), scored.log_probs)
        assert found.top_logprobs == scored.top_logprobs[len(PROMPT) - 1 :]
        assert found.prompt_top_logprobs == [pairs[:2] for pairs in scored.top_logprobs[: len(PROMPT) - 1]]


def sampled_probs(found: specdec.Result, at: int, settings: dict[str, Any]) -> np.ndarray:
    """Return the probabilities by `specdec.distribution`, after penalty and bias."""
    assert found.logits is not None
    tokens, penalty = [*found.prompt_ids, *found.tokens[:at]], settings.get("repetition_penalty", 1.0)
    logits = reference.adjusted_logits(found.logits[at], tokens, penalty, settings.get("logit_bias"))
    known = {name: settings[name] for name in ("temperature", "top_k", "top_p") if name in settings}
    return specdec.distribution(logits, **{"temperature": 0.0} | known)


@pytest.mark.parametrize("how", HOW)
def test_sampled_logprobs_equal_those_of_distribution(pair: Pair, how: str) -> None:
    settings = HOW[how]
    for gamma in (0, 4):
        found = one(*pair, PROMPT, gamma=gamma, logprobs=30, logprobs_of="sampling", **settings)
        for at, token in enumerate(found.tokens):
            probs = sampled_probs(found, at, settings)
            assert found.logprobs[at] == math.log(probs[token])
            best = sorted(np.flatnonzero(probs).tolist(), key=lambda token: -probs[token])[:30]
            assert found.top_logprobs[at] == [(token, math.log(probs[token])) for token in best]


def test_neither_draft_nor_batch_changes_a_bit(pair: Pair) -> None:
    target, draft = pair
    prompts = [PROMPT, [3], [*PROMPT, 4, 4], PROMPT[:3]]
    tree = drafts.ModelDraft(draft, tree=drafts.StaticTree((2, 2, 1), "without replacement"))
    cases: list[tuple[Any, dict[str, Any]]] = [
        (draft, {"gamma": 3}), (tree, {}), (drafts.PromptLookup(), {"gamma": 6}), (draft, {"gamma": "auto"}),
        (draft, {"batch_size": 2, "stop": ["no such text"]}), (draft, {"prompt_cache": PromptCache()}),
    ]  # fmt: skip
    for source in ("model", "sampling"):
        options = {"logprobs": 4, "logprobs_of": source, **SAMPLED, "verify": "coupled", "seed": [1, 2, 3, 4]}
        plain = [one(target, None, prompt, **options | {"seed": i}) for i, prompt in enumerate(prompts, 1)]
        for by, settings in cases:
            found = specdec.generate(target, by, prompts, **OPTIONS | options | settings)
            for result, expected in zip(found, plain, strict=True):
                assert_said_alike(result, expected)


def test_a_transform_affects_the_sampled_logprobs(pair: Pair) -> None:
    def double(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        return np.where(np.arange(len(probs)) % 2 == len(tokens) % 2, probs, 0.0)

    found = one(*pair, PROMPT, transform=double, temperature=1.0, seed=2, logprobs=0, logprobs_of="sampling")
    assert found.top_logprobs is None
    for at in range(len(found.tokens)):
        probs = double(sampled_probs(found, at, {"temperature": 1.0}), [*PROMPT, *found.tokens[:at]])
        assert found.logprobs[at] == pytest.approx(math.log(probs[found.tokens[at]] / probs.sum()), abs=1e-12)


def test_a_text_that_ends_has_one_for_each_token(pair: Pair) -> None:
    target, draft = pair
    whole = one(target, None, PROMPT, logprobs=1)
    stop = whole.tokens[7]
    found = one(target, draft, PROMPT, gamma=6, stop=stop, logprobs=1)
    n = len(found.tokens)
    assert n < len(whole.tokens) and found.finish_reason == "stop"
    assert np.array_equal(found.logprobs, whole.logprobs[:n]) and found.top_logprobs == whole.top_logprobs[:n]
    with specdec.stream(target, draft, PROMPT, logprobs=1, prompt_logprobs=0, **OPTIONS) as stream:
        list(stream)
    assert_said_alike(stream.result, whole)
    assert np.array_equal(stream.result.prompt_logprobs, target.score(PROMPT))
    assert stream.result.prompt_top_logprobs is None
    alone = one(target, draft, [3], prompt_logprobs=1)
    assert alone.prompt_logprobs.shape == (0,) and alone.prompt_top_logprobs == []
    assert alone.logprobs is None and alone.top_logprobs is None


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, [3, 4], [3]]])
def test_what_scores_of_prompts_take_is_part_of_the_prefill(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, prompts: list[list[int]]
) -> None:
    now, score_texts = [0.0], specdec._core.score_texts

    def slow(*arguments: Any, **options: Any) -> Any:
        now[0] += 100.0
        return score_texts(*arguments, **options)

    monkeypatch.setattr("specdec._core.score_texts", slow)
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("specdec.decoding.scheduler.time", clock)
    found = specdec.generate(*pair, prompts, prompt_logprobs=0, batch_size=2, max_new_tokens=4)
    assert all(100.0 <= result.trace.prefill_s < 101.0 for result in found)
    found = specdec.generate(*pair, prompts, batch_size=2, max_new_tokens=4)
    assert all(result.trace.prefill_s < 1.0 for result in found)


def test_translators() -> None:
    pair = EncoderDecoder("t5")
    sources = pair.sources(9, 12)
    found = specdec.generate(
        pair.target, pair.draft, sources, decoder_prompt=[5, 6], logprobs=2, prompt_logprobs=1, **OPTIONS
    )
    for source, result in zip(sources, found, strict=True):
        text = [*result.prompt_ids, *result.tokens]
        scored = pair.target.score([text], sources=source, top_logprobs=2)[0]
        assert np.array_equal(np.concatenate([result.prompt_logprobs, result.logprobs]), scored.log_probs)
        assert result.top_logprobs == scored.top_logprobs[len(result.prompt_ids) - 1 :]
        again = one(pair.target, pair.draft, source, decoder_prompt=[5, 6], prompt_logprobs=1)
        assert again.tokens == result.tokens and np.array_equal(again.logits, result.logits)  # type: ignore[arg-type]
        assert np.array_equal(again.prompt_logprobs, result.prompt_logprobs)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- samples of a prompt


def test_samples_are_equal_prompts_in_a_batch(pair: Pair) -> None:
    prompts = [PROMPT, [3, 4]]
    options = OPTIONS | SAMPLED
    found: Any = specdec.generate(*pair, prompts, n=3, **options)
    repeated = specdec.generate(*pair, [prompt for prompt in prompts for _ in range(3)], **options)
    assert found == [repeated[:3], repeated[3:]]
    assert [r.seed for samples in found for r in samples] == [(5, i) for i in range(6)]
    assert len({tuple(r.tokens) for r in found[0]}) > 1
    few: Any = specdec.generate(*pair, PROMPT, n=5, prompt_logprobs=0, batch_size=2, **options)
    assert few[:3] == found[0] and len(few) == 5
    assert all(np.array_equal(r.prompt_logprobs, pair[0].score(PROMPT)) for r in few)
    assert one(*pair, PROMPT, n=1, **SAMPLED) == few[0]


@needs_hooks
def test_a_prompt_is_read_once_for_all_samples(pair: Pair) -> None:
    """Rows before the root are not read unless the prompt is scored."""
    prompt = [1, *range(3, 60)]
    of_a_token, stored = blocks_of_a_token(pair[0]), blocks_of_a_stored_token(pair[0])
    for options in ({}, {"prompt_logprobs": 1}, {"prompt_logprobs": 1, "prompt_cache": PromptCache()}):
        for n in (1, 8):
            with counted_work() as work:
                specdec.generate(pair[0], None, prompt, n=n, max_new_tokens=1, **options)
            assert work.blocks == (of_a_token if options else stored) * (len(prompt) - 1) + of_a_token * n


def test_a_prompt_that_has_been_scored_is_gone_on_from(pair: Pair) -> None:
    target, draft = pair
    blas = specdec.load(target.path, prefill="blas", tokenizer=target.tokenizer)
    for model, drafting in (
        (target, [draft, None, drafts.EarlyExit(1), drafts.PromptLookup()]),
        (blas, [None]),
    ):
        prompt = [1, *range(3, 60)]
        plain = one(model, None, prompt, logprobs=1)
        for by in drafting:
            found = one(model, by, prompt, logprobs=1, prompt_logprobs=0)
            assert_said_alike(found, plain)
            assert np.array_equal(found.logits, plain.logits)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- dicts


def test_dicts_and_pickles_keep_them(pair: Pair) -> None:
    out = one(*pair, PROMPT, logprobs=2, prompt_logprobs=1)
    described = json.loads(json.dumps(out.to_dict()))
    for again in (specdec.Result.from_dict(described), pickle.loads(pickle.dumps(out))):
        assert_said_alike(again, out)
        assert np.array_equal(again.prompt_logprobs, out.prompt_logprobs)  # type: ignore[arg-type]
        assert again.prompt_top_logprobs == out.prompt_top_logprobs
    damage: list[tuple[str, Any, str]] = [
        ("logprobs", [], "logprobs"), ("logprobs", [None] * 24, "logprobs[0]"),
        ("top_logprobs", [1] * 24, "top_logprobs"), ("prompt_top_logprobs", [[1]] * 5, "prompt_top_logprobs"),
        ("prompt_top_logprobs", [[(-1, 0.0)]] * 5, "prompt_top_logprobs[0]"),
    ]  # fmt: skip
    for field, value, named in damage:
        with refuses(named):
            specdec.Result.from_dict(described | {field: value})
