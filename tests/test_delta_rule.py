"""The gated delta rule: kernels in every instruction set, their specification, and transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec.reference import bits, recurrence
from support.compiled import in_instruction_sets

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
    tiled = np.arange(6).reshape(2, 3).T.ravel()  # their value heads follow each other by key head
    rows = query, key, value[:, tiled], np.exp(log_decay)[:, tiled], beta[:, tiled]
    ours, states = recurrence.delta_rule(*rows)
    np.testing.assert_allclose(ours, theirs[0][:, tiled], atol=1e-6)
    np.testing.assert_allclose(states[-1], state[0][tiled], atol=1e-6)
