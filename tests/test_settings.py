"""Settings beyond temperature and truncation, on whole runs: penalties, biases, transforms, the draft's own.

Plain decoding is compared with a loop in NumPy, speculative decoding with plain decoding.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from compiled import Decoder
from refusals import refuses
from sessions import Session
from specdec import InputError, Sampling, reference
from toy_pair import EOS
from weights import noise as noise_of
from worlds.folders import llama_config, tensors_for, write_hf

PROMPT = [1, 9, 30, 9, 44]
N_NEW = 40


def generate(pair: tuple[Any, ...], draft: bool, **how: Any) -> specdec.Result:
    options = {"max_new_tokens": N_NEW, "ignore_eos": True, "logits": True, "seed": 11} | how
    return specdec.generate(pair[0], pair[1] if draft else None, PROMPT, **options)


def decode(model: specdec.Model, choose: Any) -> list[int]:
    """Decode N_NEW tokens with single-node forward passes; ``choose(logits, tokens)`` returns the next."""
    decoder, tokens = Decoder(model.core, capacity=len(PROMPT) + N_NEW), list(PROMPT)
    decoder.prefill(PROMPT[:-1])
    for _ in range(N_NEW):
        logits = decoder.forward([tokens[-1]], [-1])[0]
        decoder.keep([0])
        tokens.append(int(choose(logits, tokens)))
    return tokens[len(PROMPT) :]


ADJUSTMENTS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3}, {"repetition_penalty": 0.8}, {"logit_bias": {7: 2.5, 30: -1.0}},
    {"repetition_penalty": 1.2, "logit_bias": {EOS: -math.inf, 9: 1.0, 60: 0.5}}, {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7}, {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": []},
    {"dry_multiplier": 2.0, "dry_base": 1.2, "dry_allowed_length": 0, "dry_penalty_last_n": 9,
     "dry_sequence_breakers": [[30, 9], [44]], "repetition_penalty": 1.1, "logit_bias": {9: 1.0}},
    {"frequency_penalty": -0.2, "presence_penalty": 0.4, "repetition_penalty": 1.1, "logit_bias": {9: 1.0}},
]  # fmt: skip


def adjusted(logits: NDArray[np.float32], tokens: list[int], how: dict[str, Any]) -> NDArray[np.float32]:
    return reference.adjusted_logits(logits, tokens, **how, n_prompt=len(PROMPT))


@pytest.mark.parametrize("how", ADJUSTMENTS)
def test_greedy_with_penalties_and_bias(pair: Any, how: dict[str, Any]) -> None:
    expected = decode(pair[0], lambda logits, tokens: np.argmax(adjusted(logits, tokens, how)))
    assert expected != generate(pair, False).tokens, "the settings must matter"
    plain = generate(pair, False, **how)
    assert plain.tokens == expected
    for gamma in (1, 3, 8):
        out = generate(pair, True, gamma=gamma, **how)
        assert out.tokens == expected
        assert np.array_equal(out.logits, plain.logits)  # as the model gave them, not adjusted
        assert out.trace.n_accepted > 0


@pytest.mark.parametrize("adjustment", ADJUSTMENTS)
def test_coupled_sampling_with_everything(pair: Any, adjustment: dict[str, Any]) -> None:
    """The race of the reference's noise over the reference's distribution, and the same for every draft."""
    how = {
        "temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "verify": "coupled", **adjustment,
    }  # fmt: skip

    def choose(logits: NDArray[np.float32], tokens: list[int]) -> int:
        row = adjusted(logits, tokens, adjustment)
        probs = specdec.distribution(row, temperature=0.9, top_k=20, top_p=0.9, min_p=0.02)
        noise = noise_of(11, 0, len(tokens), len(probs))
        return reference.race(probs, noise)

    expected = decode(pair[0], choose)
    assert generate(pair, False, **how).tokens == expected
    for draft_sampling in (None, Sampling(0.0), Sampling(1.5, repetition_penalty=2.0)):
        assert generate(pair, True, gamma=5, draft_sampling=draft_sampling, **how).tokens == expected


@pytest.mark.parametrize("how", ADJUSTMENTS)
def test_the_whole_distribution_is_adjusted(pair: Any, how: dict[str, Any]) -> None:
    """Tokens with negative logits too, which no argmax and no top-k sees; along drafts as well."""
    seen: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def watch(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        seen[tuple(tokens)] = probs
        return probs

    out = generate(pair, True, temperature=1.0, gamma=3, transform=watch, **how)
    n_negative = 0
    for i, logits in enumerate(out.logits):
        tokens = [*PROMPT, *out.tokens[:i]]
        expected = reference.distribution(adjusted(logits, tokens, how), 1.0)
        np.testing.assert_allclose(seen[tuple(tokens)], expected, rtol=2e-5, atol=1e-12)
        n_negative += int((logits[np.unique(tokens)] < 0).sum())
    assert n_negative > 0


def test_a_draft_with_the_same_adjustments_is_accepted_more(pair: Any) -> None:
    """By default the draft is penalized like the target, along its draft tokens too: equal models, beta 1."""
    same = (pair[0], pair[0])
    how: dict[str, Any] = {"temperature": 1.0, "repetition_penalty": 1.5, "logit_bias": {4: 2.0}, "gamma": 6}
    assert generate(same, True, **how).trace.acceptance_rate == pytest.approx(1.0, abs=1e-12)
    apart = generate(same, True, draft_sampling=Sampling(1.0), **how)
    assert apart.trace.acceptance_rate < 0.9


# ------------------------------------------------------------------------------------- the transform


def no_repeats(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
    """Forbid the last eight tokens; the result need not be normalized."""
    probs[tokens[-8:]] = 0.0
    return probs


def test_a_transform_is_given_the_tokens_and_decides(pair: Any) -> None:
    calls: list[tuple[int, ...]] = []

    def watch(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        calls.append(tuple(tokens))
        assert probs.sum() == pytest.approx(1.0, abs=1e-12)
        return no_repeats(probs, tokens)

    how: dict[str, Any] = {"temperature": 1.0, "verify": "coupled"}
    plain = generate(pair, False, transform=watch, **how)
    assert calls == [(*PROMPT, *plain.tokens[:i]) for i in range(N_NEW)]
    everything = [*PROMPT, *plain.tokens]
    for i in range(len(PROMPT), len(everything)):
        assert everything[i] not in everything[max(0, i - 8) : i]
    calls.clear()
    out = generate(pair, True, transform=watch, gamma=5, **how)
    assert out.tokens == plain.tokens
    assert set(calls) >= {(*PROMPT, *plain.tokens[:i]) for i in range(N_NEW)}


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_at_temperature_0_the_argmax_of_what_a_transform_returns_is_taken(pair: Any, verify: str) -> None:
    """Whatever other mass it leaves: there is no randomness, and plain and speculative texts are equal."""

    def spread(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        shared = 5.0 * np.roll(probs, 3) + 5.0 * np.roll(probs, 1)  # a tie, which the lower id wins
        return shared + 1.0

    def lowest(logits: NDArray[np.float32], tokens: list[int]) -> int:
        return min((int(np.argmax(logits)) + by) % len(logits) for by in (1, 3))

    expected = decode(pair[0], lowest)
    for seed in (1, 2):
        how: dict[str, Any] = {"transform": spread, "seed": seed, "verify": verify}
        assert generate(pair, False, **how).tokens == expected
        assert generate(pair, True, **how).tokens == expected


@pytest.mark.parametrize("verify", ["rejection", "block", "traversal", "coupled", "classical"])
def test_a_transform_is_called_once_for_every_verified_position(pair: Any, verify: str) -> None:
    """Whole-tree rules look at all positions, at the last if the path ends there; others at the path's."""
    calls: list[tuple[int, ...]] = []

    def watch(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        calls.append(tuple(tokens))
        return probs

    out = generate(pair, True, transform=watch, gamma=4, verify=verify, temperature=1.0)
    texts, text = [], tuple(PROMPT)
    for round_ in out.trace.rounds:
        whole = verify in ("block", "traversal")
        looked = round_.drafted if whole else [round_.drafted[node - 1] for node in round_.path]
        n_looked = len(looked) + (not whole or round_.n_accepted == len(looked))
        texts += [(*text, *looked[:n]) for n in range(n_looked)]
        text = (*text, *round_.tokens)
    assert calls == texts


def test_a_batch_is_transformed_sequence_by_sequence(pair: Any) -> None:
    prompts = [PROMPT, [3, 4], [20] * 30]
    how: dict[str, Any] = {
        "temperature": 1.0, "verify": "coupled", "transform": no_repeats, "max_new_tokens": 20,
    }  # fmt: skip
    batch = specdec.generate(*pair, prompts, seed=[5, 6, 7], **how)
    for prompt, seed, result in zip(prompts, (5, 6, 7), batch, strict=True):
        assert specdec.generate(pair[0], None, prompt, seed=[seed], **how).tokens == result.tokens


@pytest.mark.parametrize("draft", [False, True])
def test_what_a_transform_raises_comes_out(pair: Any, draft: bool) -> None:
    def fails(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        if len(tokens) > len(PROMPT) + 5:
            raise LookupError("no such table")
        return probs

    with pytest.raises(LookupError, match="no such table"):
        generate(pair, draft, temperature=1.0, transform=fails)


@pytest.mark.parametrize(
    "returned",
    [
        lambda probs: -probs, lambda probs: 0 * probs, lambda probs: probs[:-1], lambda probs: probs + np.nan,
        lambda probs: np.full_like(probs, np.inf), lambda probs: probs[None], lambda probs: 1e-320 * probs,
        lambda probs: np.full(61, 1.7e308),
    ],
)  # fmt: skip
def test_a_transform_that_gives_no_distribution_is_refused(pair: Any, returned: Any) -> None:
    with pytest.raises(InputError, match="transform returned"):
        generate(pair, True, temperature=1.0, transform=lambda probs, tokens: returned(probs))


def test_a_transform_cannot_enter_its_own_session(pair: Any) -> None:
    def enter(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        session.round()
        return probs

    session = Session(
        pair[0].core, None, [PROMPT], gamma=0, max_new_tokens=3, sampling={"temperature": 1.0},
        seeds=[(1, 0)], n_threads=1, transform=enter,
    )  # fmt: skip
    session.prefill()
    (record,) = session.round()
    with pytest.raises(RuntimeError, match="in use: another call of it has not returned"):
        raise record["error"]
    session.close()


def test_a_transform_may_generate(pair: Any) -> None:
    """Another run inside the function, on the same models."""

    def ask(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        again = specdec.generate(pair[0], None, tokens, max_new_tokens=1, ignore_eos=True).tokens[0]
        assert again == np.argmax(probs)
        return probs

    plain = generate(pair, False).tokens
    assert generate(pair, True, transform=ask).tokens == plain


# ------------------------------------------------------------------------------------------ lenience


def test_lenience_of_argmax_looks_at_the_distribution_before_it_is_standardized(pair: Any) -> None:
    """Accepted drafts are those with T(x) >= l max T at temperature 1; after a rejection comes the argmax."""
    lenience, n_lenient = 0.3, 0
    out = generate(pair, True, lenience=lenience, top_k=1, gamma=5)
    rows = iter(out.logits)
    for r in out.trace.rounds:
        for token, origin in zip(r.tokens[: r.kept], r.origin, strict=False):
            probs = reference.distribution(next(rows), 1.0)
            if origin == "draft":
                assert probs[token] >= lenience * probs.max()
                n_lenient += token != np.argmax(probs)
            else:
                assert token == np.argmax(probs)
    assert n_lenient > 0, "lenience must matter"
    assert generate(pair, False, lenience=lenience).tokens == generate(pair, False).tokens


# ----------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("min_p", 1.5), ("min_p", "a"), ("presence_penalty", math.nan), ("frequency_penalty", 1e39),
        *(("repetition_penalty", value) for value in (0, math.inf, 1e-38, 1e39)), ("logit_bias", [1, 2]),
        ("draft_sampling", 0.5), ("transform", 3), ("verify", "fair"), ("verify", "greedy"),
        ("lenience", 0.0), ("lenience", True),
    ],
)  # fmt: skip
def test_bad_settings_are_named(pair: Any, argument: str, value: Any) -> None:
    with refuses(argument, value):
        generate(pair, True, **{argument: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logit_bias": {3: 1e39}}, r"logit_bias\[3\] is 1e.39; expected a finite number"),
        ({"logit_bias": {3: math.nan}}, r"logit_bias\[3\] is nan"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias has the key -1"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias has the key 'a'"),
        ({"logit_bias": {61: 1.0}}, "logit_bias has token 61; expected ids from 0 to 60"),
        ({"draft_sampling": Sampling(logit_bias={99: 0.0})}, "logit_bias has token 99"),
        ({"logit_bias": dict.fromkeys(range(61), -math.inf)}, "forbids every token"),
        ({"lenience": 0.5, "verify": "block"}, "expected 1 with verify='block'"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named(pair: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(pair, True, **changes)


def test_settings_that_make_logits_infinite_are_named_in_the_run(tmp_path: Path) -> None:
    """Whether they do depends on the model: here on logits of some hundreds."""
    settings = llama_config()
    tensors = tensors_for(settings, 3)
    tensors["lm_head.weight"] *= 300.0
    model = specdec.load(write_hf(tmp_path, settings, tensors), tokenizer=False)
    prompt = list(range(40))
    row = model.logits(prompt)[-1][:40]
    worst = int(row.argmin())
    assert row.max() > 50 and row[worst] < -50
    for temperature in (0.0, 1.0):
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 3, "seed": 1}
        with pytest.raises(InputError, match="repetition_penalty: the logit of token .* becomes infinite"):
            specdec.generate(model, None, prompt, repetition_penalty=1.2e-38, **options)
        others = {token: -math.inf for token in range(61) if token != worst}
        with pytest.raises(InputError, match="repetition_penalty and logit_bias: no token is left"):
            specdec.generate(model, None, prompt, repetition_penalty=3e38, logit_bias=others, **options)
