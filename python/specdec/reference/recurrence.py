"""The gated delta rule (Yang et al., arXiv 2412.06464) and Mamba-2 (Dao and Gu, arXiv 2405.21060)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def delta_rule(
    query: Array, key: Array, value: Array, decay: Array, beta: Array,
    parents: Sequence[int] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the outputs [n_rows, n_value_head, d_value] and the states after each row (equation 10).

    A state S [n_value_head, d_key, d_value] begins as zeros. A row decays its parent's state. By the share
    beta it replaces the state's value for its key by its own value, then reads the result with its query: S'
    = decay · S + key (value - key · decay · S) beta; out = query · S'.

    Parameters
    ----------
    query, key : ndarray, [n_rows, n_key_head, d_key]
        Scaled here to length 1 (to 1 / sqrt(Σ x² + 1e-6)), the query then by 1 / sqrt(d_key). Value head h
        uses key head h mod n_key_head.
    value : ndarray, [n_rows, n_value_head, d_value]
    decay, beta : ndarray, [n_rows, n_value_head]
        Both 0 to 1.
    parents : sequence of int, [n_rows], optional
        A parent is an earlier row; -1 is the empty text. Default: the row before.
    """
    query = query / np.sqrt((query**2).sum(-1, keepdims=True) + 1e-6) / np.sqrt(query.shape[-1])
    key = key / np.sqrt((key**2).sum(-1, keepdims=True) + 1e-6)
    head = np.arange(value.shape[1]) % key.shape[1]
    query, key = query[:, head], key[:, head]
    states = np.zeros((len(value) + 1, *key.shape[1:], value.shape[2]), value.dtype)  # the last one stays 0
    for row in range(len(value)):
        parent = row - 1 if parents is None else parents[row]
        state = states[parent] * decay[row, :, None, None]
        change = (value[row] - np.einsum("hkv,hk->hv", state, key[row])) * beta[row, :, None]
        states[row] = state + key[row, :, :, None] * change[:, None]
    return np.einsum("rhkv,rhk->rhv", states[:-1], query), states[:-1]


def mamba2(
    query: Array, key: Array, value: Array, decay: Array, time: Array, skip: Array,
    parents: Sequence[int] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the outputs [n_rows, n_value_head, d_value] and the states after each row (equation 16).

    The paper's C, B and x are the query, key and value. A row decays its parent's state, adds its value for a
    time step, and reads the result: S' = decay · S + key (time · value); out = query · S' + skip · value.

    Parameters
    ----------
    query, key : ndarray, [n_rows, n_key_head, d_key]
        Value head h uses key head h mod n_key_head.
    value : ndarray, [n_rows, n_value_head, d_value]
    decay, time : ndarray, [n_rows, n_value_head]
    skip : ndarray, [n_value_head]
    parents
        As in `delta_rule`.
    """
    head = np.arange(value.shape[1]) % key.shape[1]
    query, key = query[:, head], key[:, head]
    states = np.zeros((len(value) + 1, *key.shape[1:], value.shape[2]), value.dtype)  # the last one stays 0
    for row in range(len(value)):
        parent = row - 1 if parents is None else parents[row]
        added = key[row, :, :, None] * (time[row, :, None] * value[row])[:, None]
        states[row] = states[parent] * decay[row, :, None, None] + added
    read: Array = np.einsum("rhkv,rhk->rhv", states[:-1], query)
    return read + skip[:, None] * value, states[:-1]
