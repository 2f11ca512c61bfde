"""Random weights of learned drafts for any target, and their outputs in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from sessions import Session
from specdec import _core, drafts
from specdec.drafts.learned.folder import LearnedWeights
from worlds.canonical import with_drafts

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.float32]]


def learned_weights(
    method: str, target: specdec.Model, fields: dict[str, Any], tensors: dict[str, Any], **options: Any
) -> LearnedWeights:
    """In-memory weights of a learned draft, as after training; options: captures, tokens."""
    return LearnedWeights.of(method, target, fields, tensors, **options)


def read_weights(folder: Path) -> LearnedWeights:
    """Read the weights of a folder, of any method."""
    return LearnedWeights.read(folder)


def tensors_of(weights: LearnedWeights) -> dict[str, Any]:
    """Arrays of the weights by name; those of in-memory weights are writable."""
    return {name: tensor.array() for name, tensor in weights._held.items()}


def random_heads(
    target: specdec.Model, *, n_heads: int = 3, n_blocks: int = 1, see_draft_tokens: bool = False,
    shared_output: bool = False, tokens: Sequence[int] | None = None, seed: int = 0,
) -> LearnedWeights:  # fmt: skip
    """Heads near the target's own: each predicts roughly what the target predicted last; sometimes right."""
    rng = np.random.default_rng(seed)
    config = target.config
    d = config.d_model

    def random(n_rows: int, n_cols: int, scale: float = 0.3) -> NDArray[np.float32]:
        return (rng.standard_normal((n_rows, n_cols)) * scale / np.sqrt(n_cols)).astype(np.float32)

    own = target.core.matrix("token_embedding" if config.tied else "head")
    tensors: dict[str, Any] = {}
    for k in range(n_heads):
        head = f"heads.{k}."
        if see_draft_tokens:
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
        "n_heads": n_heads, "n_blocks": n_blocks, "see_draft_tokens": see_draft_tokens,
        "shared_output": shared_output,
    }  # fmt: skip
    return learned_weights("heads", target, fields, tensors, captures=[config.n_layer + 1], tokens=tokens)


def heads_logits(
    weights: LearnedWeights, target: specdec.Model, text: Sequence[int], draft_tokens: Sequence[int] = (),
    source: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Logits [n_vocab] after a text and some draft tokens, by that head, in float64 by the papers."""
    k, d = len(draft_tokens), target.config.d_model
    held = {name: array.astype(np.float64) for name, array in tensors_of(weights).items()}
    layer = target.config.n_layer + 1
    x = target.hidden_states(text[:-1], [layer], source)[layer][-1].astype(np.float64)
    if weights.fields.boolean("see_draft_tokens", default=False):
        table = target.core.token_table().astype(np.float64)
        seen = [table[token] for token in (text[-1], *draft_tokens)]
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


# ---------------------------------------------------------------------------- recurrent drafts


def recurrent_tensors(n_vocab: int, n_outputs: int, shape: Sequence[int], seed: int = 0) -> Arrays:
    """The tensors of a recurrent draft; shape: d_embed, d_hidden, n_layers."""
    rng = np.random.default_rng(seed)
    d_embed, d_hidden, n_layers = shape

    def normal(*size: int) -> NDArray[np.float32]:
        return rng.normal(0.0, 0.5, size).astype(np.float32)

    tensors = {"embedding.weight": normal(n_vocab, d_embed)}
    for i in range(n_layers):
        tensors[f"cells.{i}.weight_ih"] = normal(3 * d_hidden, d_hidden if i else d_embed)
        tensors[f"cells.{i}.weight_hh"] = normal(3 * d_hidden, d_hidden)
        tensors[f"cells.{i}.bias_ih"] = normal(3 * d_hidden)
        tensors[f"cells.{i}.bias_hh"] = normal(3 * d_hidden)
    return tensors | {"output.weight": normal(n_outputs, d_hidden), "output.bias": normal(n_outputs)}


def recurrent_weights(
    target: specdec.Model, ids: Sequence[int], shape: Sequence[int] = (5, 9, 1),
    tokens: Sequence[int] | None = None, seed: int = 0,
) -> LearnedWeights:  # fmt: skip
    """A recurrent draft for a target that prefers the frequent tokens of a text."""
    n_vocab = target.config["n_vocab"]
    tensors = recurrent_tensors(n_vocab, n_vocab if tokens is None else len(tokens), shape, seed)
    counts = np.bincount(ids, minlength=n_vocab).astype(np.float32) + 0.5
    frequencies = np.log(counts if tokens is None else counts[list(tokens)])
    tensors["output.bias"] += frequencies - frequencies.mean()
    fields = dict(zip(("d_embed", "d_hidden", "n_layers"), shape, strict=True))
    return learned_weights("recurrent", target, fields, tensors, tokens=tokens)


def recurrent_logits(tensors: Arrays, ids: Sequence[int], n_layers: int) -> NDArray[np.float64]:
    """The outputs after each token, in float64, from the equations of a GRU as torch has them."""
    weights: dict[str, Any] = {name: array.astype(np.float64) for name, array in tensors.items()}

    def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1.0 / (1.0 + np.exp(-x))

    rows = weights["embedding.weight"][list(ids)]
    for i in range(n_layers):
        weight_ih, weight_hh, bias_ih, bias_hh = (
            weights[f"cells.{i}.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        state, states = np.zeros(weight_hh.shape[1]), []
        for row in rows:
            of_input = np.split(weight_ih @ row + bias_ih, 3)
            of_state = np.split(weight_hh @ state + bias_hh, 3)
            reset, update = (sigmoid(of_input[j] + of_state[j]) for j in (0, 1))
            new = np.tanh(of_input[2] + reset * of_state[2])
            state = (1.0 - update) * new + update * state
            states.append(state)
        rows = np.array(states)
    return rows @ weights["output.weight"].T + weights["output.bias"]


def recurrent_network(
    n_vocab: int, shape: Sequence[int], dtype: Any = "f32", tensors: Arrays | None = None, **options: Any
) -> _core.Recurrent:
    """A recurrent draft of the core; shape: d_embed, d_hidden, n_layers."""
    tensors = recurrent_tensors(n_vocab, n_vocab, shape) if tensors is None else tensors
    sizes = dict(zip(("d_embed", "d_hidden", "n_layers"), shape, strict=True))
    config = {"n_vocab": n_vocab, "n_draft_vocab": len(tensors["output.bias"]), **sizes}
    listed = [(name, array, "f32") for name, array in tensors.items()]
    return _core.Recurrent(config, listed, dtype=dtype, **options)


# ----------------------------------------------------------------------- look-ahead embeddings


def look_ahead_weights(target: specdec.Model, n_tokens: int = 3, seed: int = 0) -> LearnedWeights:
    """Look-ahead embeddings for a target, with the scale of its layers' inputs."""
    rng = np.random.default_rng(seed)
    d_model = target.config["d_model"]
    embeddings = rng.normal(0.0, 0.5, (n_tokens, d_model)).astype(np.float32)
    fields = {"n_tokens": n_tokens}
    return learned_weights("look_ahead_embeddings", target, fields, {"embeddings": embeddings})


# ---------------------------------------------------------------------------------- sessions


def open_session(
    target: specdec.Model, draft: Any, prompts: Sequence[Sequence[int]], **options: Any
) -> Session:
    """A session at temperature 1, prompts read, that records draft distributions; draft: one or its
    description.
    """
    own = isinstance(draft, drafts.Draft)
    how: dict[str, Any] = {
        "gamma": draft.gamma if own else 4, "max_new_tokens": 20, "sampling": {"temperature": 1.0},
        "draft_sampling": {"temperature": 1.0}, "seeds": [(5, i) for i in range(len(prompts))],
        "n_threads": 1,
    }  # fmt: skip
    description = draft.describe(target) if own else draft
    session = Session(target.core, description, prompts, **(how | options))
    with_drafts(session).prefill()
    return session


def all_records(session: Session) -> list[dict[str, Any]]:
    """Run a session to its end, close it, and return its rounds."""
    records = []
    while found := session.round():
        records += found
    session.close()
    return records


def check_distributions(
    target: specdec.Model, draft: Any, prompts: Sequence[Sequence[int]],
    expected: Callable[[list[int], list[int]], Any], *, rtol: float = 0.0, atol: float = 0.0, **options: Any,
) -> tuple[int, int]:  # fmt: skip
    """Compare each node with ``expected(text, draft tokens before it)``; return nodes, accepted nodes."""
    n_nodes = n_accepted = 0
    texts = [list(prompt) for prompt in prompts]
    for record in all_records(open_session(target, draft, prompts, **options)):
        text, paths = texts[record["sequence"]], list[list[int]]([[]])
        nodes = zip(record["drafted"], record["parents"], record["draft_probs"][1:], strict=True)
        for token, parent, probs in nodes:
            np.testing.assert_allclose(probs, expected(text, paths[parent]), rtol=rtol, atol=atol)
            paths.append([*paths[parent], token])
        n_nodes += len(record["drafted"])
        n_accepted += len(record["accepted"])
        text += record["tokens"]
    return n_nodes, n_accepted
