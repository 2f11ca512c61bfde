"""Captured hidden states: cached with their tokens, for drafts that use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from specdec import reference
from trained import small_pair
from worlds.canonical import LLAMA, VARIANTS, build, decoder_of, random_tensors

N_LAYER = LLAMA["n_layer"]
CAPTURES = [0, 1, N_LAYER, N_LAYER + 1]


def ids(n: int, seed: int = 3) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, LLAMA["n_vocab"], n).tolist()
    return found


def expected(config: dict[str, Any], text: list[int], layer: int) -> np.ndarray:
    """A hidden state of the reference: the logits of the first layers, with the identity as their head."""
    changes: dict[str, Any] = {
        "tied": False, "head_bias": False, "logit_scale": 1.0, "logit_softcap": 0.0,
        "n_layer": min(layer, config["n_layer"]),
    }  # fmt: skip
    if layer <= config["n_layer"]:
        changes["output_norm"] = False
    head = np.eye(config["d_model"])
    return reference.logits(
        config | changes, random_tensors(config) | {"head.weight": head, "head": head}, text
    )


@pytest.mark.parametrize("name", ["llama", "gpt-tanh", "qk-norm-head-softcaps-both-norms"])
def test_hidden_states_are_those_of_the_reference(name: str) -> None:
    config, text = VARIANTS[name], ids(70)
    decoder = decoder_of(build(config, random_tensors(config)), captures=CAPTURES)
    decoder.prefill(text)
    for layer in CAPTURES:
        np.testing.assert_allclose(decoder.captured(layer), expected(config, text, layer), atol=2e-4)


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_bits_of_a_hidden_state_depend_on_its_text_alone(dtype: str) -> None:
    """Nodes of trees that are kept, dropped and moved, against one prompt."""
    model, text, rng = build(LLAMA, random_tensors(LLAMA), dtype=dtype), ids(60), np.random.default_rng(0)
    whole = decoder_of(model, captures=CAPTURES)
    whole.prefill(text)
    decoder = decoder_of(model, max_nodes=12, captures=CAPTURES, n_threads=2)
    decoder.prefill(text[:20])
    while decoder.n_committed < 56:
        first, tokens, parents, path = decoder.n_committed, [], [], []
        for token in text[first : first + 4]:
            for _ in range(int(rng.integers(0, 3))):
                tokens.append(int(rng.integers(0, 100)))
                parents.append(path[-1] if path else -1)
            parents.append(path[-1] if path else -1)
            path.append(len(tokens))
            tokens.append(token)
        if parents.count(-1) > 1:  # one root: the first token of the text
            tokens, parents, path = text[first : first + 4], [-1, 0, 1, 2], [0, 1, 2, 3]
        decoder.forward(tokens, parents)
        for layer in CAPTURES:
            found = decoder.captured(layer)[first + np.array(path)]
            assert np.array_equal(found, whole.captured(layer)[first : first + 4])
        decoder.keep(path[:3])
    for layer in CAPTURES:
        n = decoder.n_committed
        assert np.array_equal(decoder.captured(layer)[:n], whole.captured(layer)[:n])


def test_a_model_gives_hidden_states_of_a_text() -> None:
    model, _ = small_pair()
    n_layer = model.config["n_layer"]
    states = model.hidden_states("It was a dark", [n_layer + 1, 2])
    assert list(states) == [2, n_layer + 1]
    assert states[2].shape == (len(model.tokenizer.encode("It was a dark")), model.config["d_model"])
    assert not np.array_equal(states[2], states[n_layer + 1])
    for layers in ([], [-1], [8], [1.5], ["1"]):
        with pytest.raises(specdec.InputError, match="layers"):
            model.hidden_states("It was", layers)


def test_a_decoder_refuses_hidden_states_that_it_does_not_keep() -> None:
    model = build(LLAMA, random_tensors(LLAMA))
    with pytest.raises(ValueError, match="hidden state 2 is not kept"):
        decoder_of(model, captures=[1]).captured(2)
    for captures in ([N_LAYER + 2], [-1]):
        with pytest.raises(ValueError, match="expected 0 to"):
            decoder_of(model, captures=captures)
