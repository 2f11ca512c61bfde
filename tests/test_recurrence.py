"""The gated delta rule and Mamba-2: kernels in every instruction set, their specification, transformers."""

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

N_TOKENS, D_KEY, D_VALUE, SKIP = 11, 52, 32, 0.75
PROGRAM = """
import sys
import numpy as np
from specdec import _core
from test_recurrence import SKIP, head
for skip in (None, SKIP):
    for together in range(4):
        for found in _core._recurrence(*head(), together, skip):
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
    rows = query[:, None], key[:, None], value[:, None], decay[:, None]
    expected = []
    for found in (
        bits.exact_delta_rule(*rows, beta[:, None]),
        bits.exact_mamba2(*rows, bits.softplus(a + bias)[:, None], np.array([SKIP], np.float32)),
    ):
        expected += 4 * [x.tobytes().hex() for x in (found[0], found[1][-1], decay)]
    assert in_instruction_sets(PROGRAM) == dict.fromkeys(
        in_instruction_sets("pass"), " ".join(expected) + " "
    )


def test_the_specified_bits_are_near_the_papers() -> None:
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
    time, skip = softplus[:, None], np.array([SKIP])
    found = bits.exact_mamba2(*single[:4], time.astype(np.float32), skip.astype(np.float32), parents)
    for ours, exact in zip(found, recurrence.mamba2(*rows, decay[:, None], time, skip, parents), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.oracle
def test_transformers_computes_the_same_mamba2() -> None:
    import torch
    from transformers.models.granitemoehybrid import modeling_granitemoehybrid as theirs

    rng = np.random.default_rng(3)
    query, key = rng.normal(size=(2, 20, 2, 12))
    value, x, bias = rng.normal(size=(20, 6, 32)), rng.normal(size=(20, 6)), rng.normal(size=6)
    rate, skip = -np.exp(rng.normal(size=6)), rng.normal(size=6)
    state = torch.zeros(1, 6, 32, 12)
    wide = [torch.tensor(one)[:, None].expand(6, 32).float() for one in (rate, skip, bias)]
    out = [
        theirs.mamba2_selective_state_update(
            state, torch.tensor(value[None, row]).float(),
            torch.tensor(x[None, row, :, None]).expand(1, 6, 32).float(),
            wide[0][..., None].expand(6, 32, 12), torch.tensor(key[None, row]).float(),
            torch.tensor(query[None, row]).float(), wide[1], dt_bias=wide[2], dt_softplus=True,
        )[0].numpy()
        for row in range(20)
    ]  # fmt: skip
    grouped = [np.repeat(part, 3, axis=1) for part in (query, key)]
    time = np.logaddexp(0, x + bias)
    ours, states = recurrence.mamba2(*grouped, value, np.exp(rate * time), time, skip)
    np.testing.assert_allclose(ours, np.stack(out), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(states[-1].swapaxes(1, 2), state[0].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
def test_transformers_computes_the_same_delta_rule() -> None:
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


KINDS = ("delta", "mamba2")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_has_one_state_however_it_was_read(kind: str) -> None:
    """In slices, token by token, and in trees most of whose nodes are dropped."""
    small = VARIANTS[kind] | {"n_ctx": 6000, "n_layer": 2, "mixers": [kind, "attention"], "windows": [0, 9]}
    model = build(small, random_tensors(small))
    ids = np.random.default_rng(5).integers(0, small["n_vocab"], 5000).tolist()
    in_slices, alone, in_trees = (decoder_of(model, max_nodes=24) for _ in range(3))
    in_slices.prefill(ids[:4990])
    for token in ids[:4990]:
        alone.forward([token], [-1])
        alone.keep([0])
    for _, tokens, parents, path in trees_along(ids[:4990], small["n_vocab"]):
        in_trees.forward(tokens, parents)
        in_trees.keep(path)
    for token in ids[in_trees.n_committed : 4990]:
        in_trees.forward([token], [-1])
        in_trees.keep([0])
    rest = ids[4990:], list(range(-1, 9))
    expected = in_slices.forward(*rest)
    assert np.array_equal(alone.forward(*rest), expected)
    assert np.array_equal(in_trees.forward(*rest), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("reach", "width"), [(60, 60), (3, 60), (60, 4), (1, 60)])
def test_nodes_of_trees_have_the_bits_of_their_paths(reach: int, width: int, kind: str) -> None:
    """Random, deep and wide trees and a chain: tiles of nodes on the way are kept, shared and overwritten."""
    config = VARIANTS[kind]
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


@pytest.mark.parametrize("kind", KINDS)
def test_cached_texts_have_no_log(kind: str) -> None:
    config = VARIANTS[kind]
    model, n_bytes = build(config, random_tensors(config)), []
    draft = build(config, random_tensors(config))
    for gamma in (1, 15):
        session = Session(model, draft, [[4, 5, 6]], gamma=gamma, temperature=0.0, max_new_tokens=4)
        session.prefill()
        text = session.cached_text(0)
        assert session.cached_size(0) == (text.tokens.tolist(), None, text.n_bytes, text.n_low)
        n_bytes.append(text.n_bytes)
    assert n_bytes[0] == n_bytes[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_position": "both"}, r"mixers\[0\] is a mixer next to attention, expected norm_position"),
        (
            {"mixers": ["none", "attention", "mamba2"], "d_ffs": [0, 1, 1]},
            "d_ff is 0 in layer 0, expected 1 or",
        ),
        (
            {"mixers": ["attention"] * 3, "d_ffs": [0, 1, 1], "parallel": "one_norm"},
            "mixers or d_ffs has layers",
        ),
        ({"mixer_scales": [1.0, 0.0, 1.0, 1.0, 1.0]}, r"mixer_scales\[1\] is 0, expected a number above 0"),
        ({"mixer_scales": [1.0]}, "mixer_scales has 1 entries, expected 5"),
        ({"gated": False}, "mlp_gate_scale is set, expected gated"),
    ],
)
def test_halves_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(VARIANTS["mamba2-and-attention-factors"] | changes, {})


def test_groups_of_norms_divide_the_values() -> None:
    with pytest.raises(ValueError, match="n_mixer_norm_groups is 3, expected 0 or a divisor of .*, 128"):
        build(VARIANTS["mamba2"] | {"n_mixer_norm_groups": 3}, {})


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
