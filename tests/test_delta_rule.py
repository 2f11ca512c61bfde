"""The gated delta rule: kernels in every instruction set, their specification, and transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from specdec.reference import bits, recurrence
from support.compiled import in_instruction_sets, prompt_logits, prompts_in_slices_of, trees_along
from support.sessions import Session
from test_interrupt import WIDE_DELTA, StopError, alarms, wide_model
from worlds.canonical import VARIANTS, build, decoder_of, random_tensors

N_TOKENS, D_KEY, D_VALUE = 11, 52, 32
PROGRAM = """
import sys
import numpy as np
from specdec import _core
from test_delta_rule import head
for together in range(4):
    for found in _core._delta_rule(*head(), together):
        sys.stdout.write(np.asarray(found).tobytes().hex() + " ")
"""


def head(n_tokens: int = N_TOKENS, d_key: int = D_KEY) -> list[np.ndarray]:
    """Query, key and value of one head; a, b, bias and rate of every token, over their whole ranges."""
    rng = np.random.default_rng(7)
    rows = [rng.normal(size=(n_tokens, width)) for width in (d_key, d_key, D_VALUE)]
    rows[1][2] = 0.0  # a key of length 0
    numbers = [rng.normal(size=n_tokens) for _ in range(4)]
    numbers[0][:8] = -95.0, 95.0, 20.5, -20.0, 0.0, -1.0, 1e-20, 15.0
    return [x.astype(np.float32) for x in (*rows, *numbers[:3], -np.exp(2.0 * numbers[3]))]


@needs_hooks
def test_every_instruction_set_computes_the_specified_bits() -> None:
    query, key, value, a, b, bias, rate = head()
    decay, beta = bits.exact_decay(a, bias, rate), bits.sigmoid(b)
    gates = decay[:, None], beta[:, None]
    out, states = bits.exact_delta_rule(query[:, None], key[:, None], value[:, None], *gates)
    expected = [x.tobytes().hex() for x in (out, states[-1], decay)]
    assert in_instruction_sets(PROGRAM) == dict.fromkeys(
        in_instruction_sets("pass"), " ".join(4 * expected) + " "
    )


def test_the_specified_bits_are_near_the_paper() -> None:
    query, key, value, a, b, bias, rate = (x.astype(np.float64) for x in head(40))
    softplus = np.logaddexp(0.0, a + bias)
    np.testing.assert_allclose(bits.softplus(a + bias), softplus, rtol=3e-7, atol=1e-38)
    decay, beta = np.exp(rate * softplus), 1 / (1 + np.exp(-b))
    parents = [-1, 0, 1, 1, *range(3, 39)]
    gates = decay[:, None], beta[:, None]
    rows = query[:, None], key[:, None], value[:, None]
    single = [x.astype(np.float32) for x in (*rows, *gates)]
    found = bits.exact_delta_rule(*single, parents=parents)
    for ours, exact in zip(found, recurrence.delta_rule(*rows, *gates, parents), strict=True):
        np.testing.assert_allclose(ours, exact, atol=2e-6)


@pytest.mark.oracle
def test_transformers_computes_the_same() -> None:
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5

    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(size=(20, heads, 32)) for heads in (2, 2, 6))
    log_decay, beta = -np.exp(rng.normal(size=(20, 6))), rng.random((20, 6))
    tensors: Any = [torch.tensor(x[None]).float() for x in (query, key, value, log_decay, beta)]
    theirs, state = modeling_qwen3_5.torch_recurrent_gated_delta_rule(
        *tensors, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    tiled = np.arange(6).reshape(2, 3).T.ravel()  # their value heads are grouped by key head
    rows = query, key, value[:, tiled], np.exp(log_decay)[:, tiled], beta[:, tiled]
    ours, states = recurrence.delta_rule(*rows)
    np.testing.assert_allclose(ours, theirs[0][:, tiled], atol=1e-6)
    np.testing.assert_allclose(states[-1], state[0][tiled], atol=1e-6)


SMALL = VARIANTS["delta"] | {"n_ctx": 6000, "n_layer": 2, "mixers": ["delta", "attention"], "windows": [0, 9]}


@pytest.mark.slow
def test_a_long_text_has_one_state_however_it_was_read() -> None:
    """In slices, token by token, and in trees most of whose nodes are dropped."""
    model = build(SMALL, random_tensors(SMALL))
    ids = np.random.default_rng(5).integers(0, SMALL["n_vocab"], 5000).tolist()
    in_slices, alone, in_trees = (decoder_of(model, max_nodes=24) for _ in range(3))
    in_slices.prefill(ids[:4990])
    for token in ids[:4990]:
        alone.forward([token], [-1])
        alone.keep([0])
    for _, tokens, parents, path in trees_along(ids[:4990], SMALL["n_vocab"]):
        in_trees.forward(tokens, parents)
        in_trees.keep(path)
    for token in ids[in_trees.n_committed : 4990]:
        in_trees.forward([token], [-1])
        in_trees.keep([0])
    rest = ids[4990:], list(range(-1, 9))
    expected = in_slices.forward(*rest)
    assert np.array_equal(alone.forward(*rest), expected)
    assert np.array_equal(in_trees.forward(*rest), expected)


@pytest.mark.parametrize(("reach", "width"), [(60, 60), (3, 60), (60, 4), (1, 60)])
def test_nodes_of_trees_have_the_bits_of_their_paths(reach: int, width: int) -> None:
    """Random, deep and wide trees and a chain: tiles of inner nodes are kept, shared and overwritten."""
    config = VARIANTS["delta"]
    model, rng = build(config, random_tensors(config)), np.random.default_rng(reach)
    decoder, text = decoder_of(model, max_nodes=60, n_threads=2), rng.integers(0, 101, 9).tolist()
    decoder.prefill(text)
    tokens = rng.integers(0, 101, 60).tolist()
    parents = [-1, *(int(rng.integers(max(0, i - reach), min(i, width))) for i in range(1, 60))]
    paths: list[list[int]] = []
    for node, found in enumerate(decoder.forward(tokens, parents)):
        paths.append([*(paths[parents[node]] if node else []), tokens[node]])
        assert np.array_equal(found, prompt_logits(model, text + paths[-1])[-1]), node


@needs_hooks
def test_a_prompt_that_overflows_is_read_again_to_name_the_place() -> None:
    """The state already has the slice, numbers that are not finite included."""
    config, spike = VARIANTS["delta"], 100
    tensors = random_tensors(config)
    tensors["token_embedding"][:, 3] = 0.0
    tensors["token_embedding"][spike, 3] = 1.0
    for name in ("0.mixer_out", "0.mlp_down", "1.attn_out", "1.mlp_down"):  # these do not change the state
        tensors[f"layers.{name}.weight"][3] = 0.0
    tensors["layers.2.mixer_in.weight"][-1, 3] = 3e38
    tensors["layers.2.mixer_conv"][-1] = 1e3
    ids = np.random.default_rng(2).integers(0, spike, 200)
    ids[170] = spike
    with prompts_in_slices_of(64):
        decoder = decoder_of(build(config, tensors))
    with pytest.raises(specdec.NotFiniteError, match="layer 2 .of 0 to 2. at position 170 "):
        decoder.prefill(ids, finite=True)
    assert decoder.n_committed == 0
    decoder.prefill(ids[:170], finite=True)
    assert np.array_equal(
        decoder.forward([5], [-1])[0], prompt_logits(build(config, tensors), [*ids[:170], 5])[-1]
    )


@pytest.mark.parametrize("mixers", [["delta", "attention", "delta"], []])
@pytest.mark.parametrize("kind", ["key", "value"])
def test_heads_whose_dimensions_overflow_are_refused(mixers: list[str], kind: str) -> None:
    sizes = {f"n_mixer_{kind}_head": 2**17, f"d_mixer_{kind}": 2**15, "mixers": mixers}
    with pytest.raises(ValueError, match=rf"n_mixer_{kind}_head \* d_mixer_{kind} is {2**32}, expected "):
        build(VARIANTS["delta"] | sizes, {})


def test_cached_texts_have_no_log() -> None:
    config = VARIANTS["delta"]
    model, n_bytes = build(config, random_tensors(config)), []
    draft = build(config, random_tensors(config))
    for gamma in (1, 15):
        session = Session(model, draft, [[4, 5, 6]], gamma=gamma, temperature=0.0, max_new_tokens=4)
        session.prefill()
        text = session.cached_text(0)
        assert session.cached_size(0) == (text.tokens.tolist(), None, text.n_bytes, text.n_low)
        n_bytes.append(text.n_bytes)
    assert n_bytes[0] == n_bytes[1]


@pytest.mark.slow
def test_a_pass_that_is_stopped_while_it_folds_leaves_no_trace() -> None:
    """Some tiles contain the accepted tokens; for others these are still in the log."""
    model = wide_model(WIDE_DELTA, "rows")
    ids, tree, stops = list(range(200)), [-1, *range(119)], 0

    def begun() -> Any:
        decoder = decoder_of(model, max_nodes=120)
        decoder.prefill(ids[:20])
        decoder.forward(ids[20:60], tree[:40])
        decoder.keep(range(35))
        return decoder

    expected = begun().forward(ids[60:180], tree)
    for n_looks in range(1, 6):
        left, decoder = [n_looks], begun()

        def stop(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise StopError

        try:
            with alarms(stop):
                decoder.forward(ids[60:180], tree)
        except StopError:
            stops += 1
        assert decoder.n_committed == 55
        assert np.array_equal(decoder.forward(ids[60:180], tree), expected)
    assert stops > 1
