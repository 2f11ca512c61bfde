"""Random weights of learnt drafts, for any target, and what they compute, in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import specdec
from specdec.drafts.learnt.folder import LearntWeights

Array = NDArray[np.float64]


def random_heads(
    target: specdec.Model,
    *,
    n_heads: int = 3,
    n_blocks: int = 1,
    see_guesses: bool = False,
    shared_output: bool = False,
    tokens: Sequence[int] | None = None,
    seed: int = 0,
) -> LearntWeights:
    """Heads near the target's own: each guesses about what the target has guessed last.

    Drafts of a target that repeats itself are right now and then.
    """
    rng = np.random.default_rng(seed)
    config = target.config
    d = config.d_model

    def random(n_rows: int, n_cols: int, scale: float = 0.3) -> NDArray[np.float32]:
        return (rng.standard_normal((n_rows, n_cols)) * scale / np.sqrt(n_cols)).astype(np.float32)

    own = target.core.matrix("token_embedding" if config.tied else "head")
    tensors = {}
    for k in range(n_heads):
        head = f"heads.{k}."
        if see_guesses:
            weight = random(d, (2 + k) * d, 3.0)
            weight[:, :d] += np.eye(d, dtype=np.float32)
            tensors[f"{head}input.weight"] = weight
        for b in range(n_blocks):
            tensors[f"{head}blocks.{b}.weight"] = random(d, d, 1.0)
            tensors[f"{head}blocks.{b}.bias"] = random(1, d)[0]
        if not shared_output:
            rows = own if tokens is None else own[list(tokens)]
            tensors[f"{head}output.weight"] = rows * (1.0 + random(*rows.shape))
    fields = {
        "n_heads": n_heads, "n_blocks": n_blocks, "see_guesses": see_guesses, "shared_output": shared_output
    }  # fmt: skip
    taps = [config.n_layer + 1]
    return LearntWeights.of("heads", target, fields, tensors, taps=taps, tokens=tokens)


def heads_logits(
    weights: LearntWeights, target: specdec.Model, text: Sequence[int], guesses: Sequence[int] = (),
    source: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """The logits [n_vocab] of the token behind some guesses behind a text, by the head of that place.

    The arithmetic of the papers in float64, on the target's own hidden state and tables.
    """
    k, d = len(guesses), target.config.d_model
    held = {name: tensor.array().astype(np.float64) for name, tensor in weights._held.items()}
    layer = target.config.n_layer + 1
    x = target.hidden_states(text[:-1], [layer], source)[layer][-1].astype(np.float64)
    if weights.fields.boolean("see_guesses", default=False):
        table = target.core.token_table().astype(np.float64)
        seen = [table[token] for token in (text[-1], *guesses)]
        x = held[f"heads.{k}.input.weight"] @ np.concatenate([x, *seen])
    for b in range(weights.fields.integer("n_blocks", minimum=0)):
        y = held[f"heads.{k}.blocks.{b}.weight"] @ x + held[f"heads.{k}.blocks.{b}.bias"]
        x = x + y / (1.0 + np.exp(-y))
    assert x.shape == (d,)
    kept = slice(None) if weights.tokens is None else weights.tokens
    if weights.fields.boolean("shared_output", default=False):
        config = target.config
        found = (
            target.core.matrix("token_embedding" if config.tied else "head")[kept] @ x * config.logit_scale
        )
        cap = config.logit_softcap
        found = cap * np.tanh(found / cap) if cap > 0 else found
    else:
        found = held[f"heads.{k}.output.weight"] @ x
    logits = np.full(target.config.n_vocab, -np.inf)
    logits[kept] = found
    return logits
