"""Helpers that call models and products of the compiled core: one file to change when the core changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from specdec import _core
from specdec.models.number_formats import fastest_prefill as fastest_prefill

Array = NDArray[Any]
Model = _core.Model
Decoder = _core.Decoder
Ngram = _core.Ngram
LookAheadEmbeddings = _core.LookAheadEmbeddings
product = _core.product
score_texts = _core.score_texts
tensor_shapes = _core.tensor_shapes


def prompt_logits(
    model: Model, ids: Sequence[int], *, pieces: Sequence[int] = (), capacity: int = 0, **options: Any
) -> Array:
    """Logits [n_ids, n_vocab] of a text read by a new decoder, in one call or split before the `pieces`."""
    decoder = Decoder(model, capacity=capacity or len(ids), **options)
    parts = np.split(np.array(ids), pieces)
    return np.concatenate([np.asarray(decoder.prefill(part.tolist(), logits=True)) for part in parts])


def token_logits(model: Model, token: int, source: Any = None) -> Array:
    """Logits [n_vocab] of a token without history, computed by the row kernels like generated tokens."""
    found: Array = Decoder(model, capacity=1, source=source).forward([token], [-1])[0]
    return found


def trees_along(
    ids: Sequence[int], n_vocab: int, seed: int = 3
) -> Iterator[tuple[int, list[int], list[int], list[int]]]:
    """Random trees along a text: preceding tokens, tokens and parents of nodes, and the text's path."""
    rng, first = np.random.default_rng(seed), 0
    while first < len(ids) - 8:
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        for token in ids[first : first + int(rng.integers(1, 7))]:
            for _ in range(int(rng.integers(0, 3)) if path else 0):  # wrong draft tokens anywhere in the tree
                parents.append(int(rng.integers(0, len(tokens))))
                tokens.append(int(rng.integers(0, n_vocab)))
            parents.append(path[-1] if path else -1)
            path.append(len(tokens))
            tokens.append(token)
        yield first, tokens, parents, path
        first += len(path)


def scores_of(
    model: Model, texts: Sequence[Sequence[int]], given: Any = None, **options: Any
) -> tuple[Any, ...]:
    """Score texts together with `_core.score_texts`. `given`: leading tokens of each that are not scored."""
    flat, lengths = np.concatenate(texts).astype(np.int32), np.array([*map(len, texts)], np.int32)
    n_given = np.ones(len(texts), np.int32) if given is None else np.array(given, np.int32)
    found: tuple[Any, ...] = score_texts(model, (flat, lengths), n_given, **options)
    return found


def score(model: Model, ids: Sequence[int], source: Any = None, **options: Any) -> Array:
    """ln p of each token of a text except the first."""
    sources = None if source is None else (np.array(source, np.int32), np.array([len(source)], np.int32))
    found: Array = scores_of(model, [ids], sources=sources, **options)[0]
    return found


def quantized(rows: Array, kind: str, **options: Any) -> NDArray[np.uint8]:
    """Quantize rows to blocks of a GGUF type, such as "q8_0"; return the bytes."""
    return np.frombuffer(_core.quantize(rows, kind, **options), np.uint8)


class Work:
    """Forward passes of the core, and layer blocks applied to tokens, in a block of code."""

    blocks = forwards = 0


@contextmanager
def counted_work() -> Iterator[Work]:
    """Count the work done inside; needs the test hooks."""
    work = Work()
    before = _core._forward_work(), _core._forward_count()
    yield work
    work.blocks, work.forwards = _core._forward_work() - before[0], _core._forward_count() - before[1]


def blocks_of_a_token(*models: Any) -> int:
    """Layer blocks that a token passes through in all of these models; None is no model."""
    return sum(2 * model.config["n_layer"] for model in models if model is not None)


def blocks_of_a_stored_token(*models: Any) -> int:
    """Layer blocks of a prompt token whose row nothing reads; it ends in the last layer."""
    return sum(2 * (model.config["n_layer"] - 1) for model in models if model is not None)


@contextmanager
def prompts_in_slices_of(n_tokens: int) -> Iterator[None]:
    """Set the prompt slice of models made inside."""
    _core._prompt_slice(n_tokens)
    try:
        yield
    finally:
        _core._prompt_slice(0)


def rows_computed(work: Callable[[], object], n_layer: int) -> float:
    """Count the token rows that forward passes compute inside."""
    with counted_work() as done:
        work()
    return done.blocks / (2 * n_layer)


def weighed_scores(scores: Array, scale: float, n_sum: Sequence[int]) -> tuple[Any, ...]:
    """Attention weights of scores [n_chunks, n_rows, 32], and the largest score and sum of each row."""
    found: tuple[Any, ...] = _core._weigh_scores(scores, scale, list(n_sum))
    return found


def in_instruction_sets(
    program: str, *arguments: str, kernels: Iterable[str] | None = None
) -> dict[str, str]:
    """Run a Python program with some or all instruction sets of this machine; return its output by set."""
    here = Path(__file__).parents[1]
    paths = os.pathsep.join([str(here), str(here / "support"), *sys.path])
    common = os.environ | {"PYTHONPATH": paths, "SPECDEC_THRESHOLDS": "off"}
    found = {}
    for name in specdec.available_kernels() if kernels is None else kernels:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=240,
            env=common | {"SPECDEC_KERNELS": name},
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"
        found[name] = done.stdout
    return found
