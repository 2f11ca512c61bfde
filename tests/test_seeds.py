"""Contract 3, seeds: with the coupled rule, equal seeds give equal tokens for every draft and gamma.

At temperature 0 every rule gives the tokens of greedy decoding. Tokens and logits are equal to the last bit,
in every number format, alone and in a batch, for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from compiled import Model
from specdec import Sampling, reference
from specdec.drafts import Bigram, Unigram
from weights import distribution
from worlds.canonical import GPT, LLAMA, build, perturbed, random_tensors, run_session

PROMPTS = [[3], list(range(7)), list(range(30, 60)), [5, 9] * 50]
SAMPLING = {"temperature": 0.9, "top_p": 0.95, "min_p": 0.001}
RULES = ["rejection", "traversal", "coupled", "k-sequential", "classical"]
# Number formats of target, its cache, and drafts.
FORMATS = {
    "f32": ("f32", "f32", "int4"), "bf16": ("bf16", "bf16", "f32"), "int8": ("int8", "f32", "int8"),
    "int4": ("int4", "bf16", "bf16"),
}  # fmt: skip

Outputs = tuple[list[list[int]], list[Any], list[Any]]


@pytest.fixture(scope="module", params=FORMATS.values(), ids=FORMATS.keys())
def models(request: pytest.FixtureRequest) -> dict[str, Model]:
    """Return a target, a draft that often agrees with it, and an unrelated one."""
    dtype, cache_dtype, draft_dtype = request.param
    base, scale = (LLAMA, 0.02) if dtype != "int8" else (GPT, 0.1)
    tensors = random_tensors(base)
    small = base | {"n_layer": 1, "d_ff": 20}
    return {
        "target": build(base, tensors, dtype=dtype, cache_dtype=cache_dtype),
        "friend": build(base, perturbed(tensors, scale), dtype=draft_dtype, cache_dtype=cache_dtype),
        "stranger": build(small, random_tensors(small, seed=99), dtype=draft_dtype),
    }


@pytest.fixture(scope="module")
def plain(models: dict[str, Model]) -> Outputs:
    return run_session(models["target"], None, PROMPTS, rule="coupled", **SAMPLING)


def assert_equal(got: Outputs, expected: Outputs) -> None:
    assert got[0] == expected[0]
    for row, wanted in zip(got[1], expected[1], strict=True):
        assert np.array_equal(row, wanted)


@pytest.mark.grid
@pytest.mark.parametrize("gamma", [1, 2, 4, 8])
@pytest.mark.parametrize("draft", ["friend", "stranger", "target"])
def test_coupled_output_is_plain_output(
    models: dict[str, Model], plain: Outputs, draft: str, gamma: int
) -> None:
    options: dict[str, Any] = {"rule": "coupled", "gamma": gamma, **SAMPLING}
    got = run_session(models["target"], models[draft], PROMPTS, n_threads=1 + gamma % 2, **options)
    assert_equal(got, plain)
    accepted = [len(record["accepted"]) for record in got[2]]
    drafted = [len(record["drafted"]) for record in got[2]]
    if draft == "target":
        assert accepted == drafted
    elif draft == "friend":
        assert 0 < sum(accepted) < sum(drafted), "else the test shows less than it seems to"


def test_coupled_tokens_win_the_race_of_the_reference(models: dict[str, Model], plain: Outputs) -> None:
    """The noise is keyed by seed, sequence, position and token only."""
    for i, prompt in enumerate(PROMPTS):
        for offset, (token, logits) in enumerate(zip(plain[0][i], plain[1][i], strict=True)):
            noise = reference.noise(1, i, len(prompt) + offset, len(logits))
            probs = distribution(logits, temperature=0.9, top_p=0.95, min_p=0.001)
            assert reference.race(probs, noise) == token


@pytest.mark.parametrize("gamma", [1, 5])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_greedy_at_temperature_zero(models: dict[str, Model], rule: str, gamma: int) -> None:
    expected = run_session(models["target"], None, PROMPTS)
    assert_equal(run_session(models["target"], models["friend"], PROMPTS, gamma=gamma, rule=rule), expected)


# ------------------------------------------------------------------------------------------ generate


def test_a_seed_gives_one_text_whatever_drafts(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """Tables, models with their own settings, gammas, batches: one text per seed."""
    target, draft = pair
    prompt, n_vocab = [1, 9, 30, 9, 44], len(target.logits([1])[0])
    text = np.random.default_rng(0).integers(n_vocab, size=300)
    drafts: list[Any] = [draft, target, Unigram(text, n_vocab), Bigram(text, n_vocab)]
    common: dict[str, Any] = {
        "verify": "coupled", "temperature": 1.1, "top_k": 30, "max_new_tokens": 25, "ignore_eos": True,
    }  # fmt: skip
    texts = []
    for seed in (1, 2, 3):
        wanted = specdec.generate(target, None, prompt, seed=seed, **common).tokens
        texts.append(tuple(wanted))
        for gamma, guesser in enumerate(drafts, start=2):
            got = specdec.generate(target, guesser, prompt, seed=seed, gamma=gamma, **common)
            assert got.tokens == wanted
        for settings in (Sampling(0.0), Sampling(2.0, top_p=0.5)):
            got = specdec.generate(target, draft, prompt, seed=seed, draft_sampling=settings, **common)
            assert got.tokens == wanted
        batch = specdec.generate(target, draft, [[4, 5], prompt, prompt], seed=[9, seed, (seed, 1)], **common)
        assert batch[1].tokens == wanted
        assert batch[2].tokens != wanted
    assert len(set(texts)) == 3


def test_other_rules_do_not_promise_that(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """The standard rule gives other texts for other gammas, so the test above can fail."""
    how: dict[str, Any] = {"temperature": 1.1, "seed": 1, "max_new_tokens": 25, "ignore_eos": True}
    texts = [specdec.generate(*pair, [1, 9, 30], gamma=gamma, **how).tokens for gamma in (1, 2, 4)]
    assert texts[0] != texts[1] or texts[1] != texts[2]
