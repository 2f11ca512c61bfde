"""Layers with windows or convolutions cache only what rows read: memory saved, and unchanged bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from allocations import bytes_held, needs_hooks
from compiled import Decoder, Model, prompt_logits, trees_along
from sessions import Session, all_rounds
from specdec import reference
from worlds.canonical import LLAMA, build, perturbed, random_tensors, run_session

# Texts wrap around the slots of these layers several times; one layer has all of them.
CONFIG: dict[str, Any] = LLAMA | {"n_ctx": 4096, "sliding_window": 9, "windows": [9, 0, 40]}
CONVOLUTIONS = LLAMA | {"n_ctx": 4096, "mixers": ["convolution", "attention", "convolution"], "conv_width": 5}
N_IDS = 700


def ids(n: int = N_IDS, seed: int = 5) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, CONFIG["n_vocab"], n).tolist()
    return found


@pytest.fixture(scope="module", params=["f32", "bf16", "int8", "convolutions"])
def model(request: pytest.FixtureRequest) -> Model:
    if request.param == "convolutions":
        return build(CONVOLUTIONS, random_tensors(CONVOLUTIONS))
    return build(CONFIG, random_tensors(CONFIG), dtype=request.param, cache_dtype=request.param)


def test_rows_are_those_of_the_reference_however_they_are_computed(model: Model) -> None:
    """As a prompt, in chains, and as nodes of trees."""
    text = ids()
    found = prompt_logits(model, text)
    if model.dtype == "f32":
        expected = reference.logits(model.config, random_tensors(model.config), text)
        np.testing.assert_allclose(found, expected, atol=5e-5)
    decoder = Decoder(model, capacity=N_IDS, max_nodes=7)
    for first in range(0, N_IDS, 7):
        chain = text[first : first + 7]
        logits = decoder.forward(chain, range(-1, len(chain) - 1))
        assert np.array_equal(logits, found[first : first + 7])
        decoder.keep(range(len(chain)))
    decoder = Decoder(model, capacity=N_IDS, max_nodes=24)
    for first, tokens, parents, path in trees_along(text, CONFIG["n_vocab"]):
        logits = decoder.forward(tokens, parents)
        assert np.array_equal(logits[path], found[first : first + len(path)])
        decoder.keep(path)


def test_a_text_that_is_cut_goes_on_with_the_same_bits(model: Model) -> None:
    """Near its end; further back, where windows have moved on, the cache is emptied."""
    text = ids()
    expected = prompt_logits(model, text)
    decoder = Decoder(model, capacity=N_IDS, max_nodes=7)
    decoder.prefill(text)
    for n in (N_IDS, N_IDS - 3, N_IDS - 5):
        decoder.cut(n)
        assert decoder.n_committed == n
        if n < N_IDS:
            chain = text[n : n + 2]
            assert np.array_equal(decoder.forward(chain, [-1, 0]), expected[n : n + 2])
            decoder.keep([0])
    for n in (-1, decoder.n_committed + 1):
        with pytest.raises(ValueError, match=rf"n is {n}, expected 0 to the {decoder.n_committed} tokens"):
            decoder.cut(n)
    decoder.cut(1)
    assert decoder.n_committed == 0
    decoder.prefill(text[:20])
    assert np.array_equal(decoder.forward(text[20:21], [-1]), expected[20:21])


def test_sessions_give_plain_texts_and_bits(model: Model) -> None:
    """Drafts with their own caches, nested; prompts with long and short common prefixes."""
    common = ids(300)
    prompts = [[*common, 3], common[:150], [*common[:290], 7, 8], ids(20, seed=6)]
    tensors = random_tensors(model.config)
    draft = build(model.config, perturbed(tensors, 0.03))
    small = ("model", {"model": build(model.config, perturbed(tensors, 0.05, seed=2))})
    plain = run_session(model, None, prompts, max_new_tokens=150)
    for description in (draft, ("nested", {"model": draft, "draft": small, "gamma": 3})):
        found = run_session(model, description, prompts, max_new_tokens=150, gamma=5)
        assert found[0] == plain[0]
        for one, other in zip(found[1], plain[1], strict=True):
            assert np.array_equal(one[: len(other)], other[: len(one)])


def test_a_window_of_its_own_is_that_of_the_configuration(model: Model) -> None:
    """Logits, and what it drafts for another model; layers keep shorter windows."""
    formats: Any = {"dtype": model.dtype, "cache_dtype": model.cache_dtype}
    tensors = perturbed(random_tensors(CONFIG), 0.03)
    windowed, whole = build(CONFIG, tensors, **formats).windowed(20), build(CONFIG, tensors, **formats)
    expected = build(CONFIG | {"windows": [9, 20, 20]}, tensors, **formats)
    assert windowed.config == expected.config and windowed.base is None
    assert np.array_equal(prompt_logits(windowed, ids()), prompt_logits(expected, ids()))
    assert not np.array_equal(prompt_logits(windowed, ids()), prompt_logits(whole, ids()))

    def rounds_with(draft: Model | None) -> list[dict[str, Any]]:
        given = draft and ("model", {"model": draft})
        session = Session(model, given, [ids(500)], gamma=4, max_new_tokens=60, temperature=0.7)
        session.prefill()
        return all_rounds(session)

    found = rounds_with(windowed)
    for name in ("tokens", "drafted", "accepted"):
        assert [one[name] for one in found] == [one[name] for one in rounds_with(expected)]
    with pytest.raises(ValueError, match="window is 0, expected 1 or more"):
        model.windowed(0)


@pytest.mark.parametrize("n_common", [0, 100, 520, 640])
def test_a_cached_text_continues_where_its_windows_remain(model: Model, n_common: int) -> None:
    """A text of 640 tokens is left at various positions; reading it again gives the same bits."""

    def session_of(prompt: list[int]) -> Session:
        return Session(model, None, [prompt], gamma=0, max_new_tokens=30, temperature=0.0, keep_logits=True)

    first, prompt = session_of(ids(640)), [*ids(640)[:n_common], *ids(60, seed=9)]
    first.prefill()
    cached, again = first.cached_text(0), session_of(prompt)
    n_known = again.begin_with(0, cached)
    assert n_known in (0, min(n_common, len(cached.tokens)))
    assert n_known > 0 or n_common < 520 or "mixers" in model.config
    for one, plain in zip(all_rounds(again), all_rounds(session_of(prompt)), strict=True):
        assert one["tokens"] == plain["tokens"] and np.array_equal(one["logits"], plain["logits"])


def test_a_prompt_that_fails_is_read_again(model: Model) -> None:
    """Its slices overwrite the convolution inputs of the previous text, which is then dropped."""
    text, tensors = ids(300), random_tensors(model.config)
    tensors["token_embedding"][100] = 3e38
    broken = build(model.config | {"embedding_scale": 2.0}, tensors, dtype=model.dtype)
    expected = prompt_logits(broken, text := [token % 100 for token in text])
    decoder = Decoder(broken, capacity=600, max_nodes=7)
    decoder.prefill(text[:200])
    with pytest.raises(specdec.NotFiniteError, match="position 290 is not finite"):
        decoder.prefill([*text[:90], 100], finite=True)
    n_left = decoder.n_committed
    assert n_left == (0 if "mixers" in model.config else 200)
    assert np.array_equal(decoder.prefill(text[n_left:], logits=True), expected[n_left:])
    decoder.cut(0)
    decoder.prefill(text[:24])
    decoder.cut(12)
    with pytest.raises(specdec.NotFiniteError, match="position 12 is not finite"):
        decoder.prefill([100], finite=True)
    decoder.cut(5)  # before the inputs that the convolutions still have
    n_left = decoder.n_committed
    assert np.array_equal(decoder.prefill(text[n_left:], logits=True), expected[n_left:])


def test_convolutions_are_chains_of_fused_multiplications() -> None:
    config = CONVOLUTIONS | {"conv_bias": True, "mixer_bias": True}
    tensors, text = random_tensors(config), ids(40)
    found = prompt_logits(build(config, tensors), text)
    assert np.array_equal(found, reference.exact_logits(config, tensors, text))


@needs_hooks
def test_layers_with_windows_take_the_memory_of_their_windows() -> None:
    sizes = {}
    layers: dict[str, dict[str, Any]] = {
        "all": {"windows": [0, 0, 0]}, "one": {"windows": [9, 0, 40]}, "none": {"windows": [9, 9, 9]},
        "convolutions": {"mixers": ["convolution"] * 3, "conv_width": 5},
    }  # fmt: skip
    for name, changes in layers.items():
        model = build(CONFIG | changes, random_tensors(CONFIG | changes))
        before = bytes_held()
        decoders = [Decoder(model, capacity=n) for n in (1000, 3000)]
        sizes[name] = bytes_held() - before
        del decoders
    per_layer = 2 * 4 * 4000 * CONFIG["n_kv_head"] * 32  # keys of 8 in f32, values in panels of 32
    assert sizes["all"] - sizes["one"] > 0.9 * per_layer
    assert sizes["one"] - sizes["none"] > 0.4 * per_layer
    assert sizes["convolutions"] < sizes["none"]
