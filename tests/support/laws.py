"""Samples against laws: chi-square tests of the first tokens of a text, and the trained pair they run on.

With a fresh seed a right program fails one of these tests with probability FALSE_ALARM. Seeds are fixed, so
nothing fails at random; to change what is drawn from them is a fresh seed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import specdec
from specdec import reference
from tiny_models import llama2c_tensors, write_llama2c

FALSE_ALARM = 1e-3
Probs = NDArray[np.float64]
Tokens = tuple[int, ...]


def p_value(counts: dict[Tokens, int], law: dict[Tokens, float]) -> float:
    """Pearson's p value; cells expected less than 5 times are pooled. What cannot happen has p = 0."""
    total = sum(counts.values())
    if not counts.keys() <= law.keys():
        return 0.0
    cells = [(counts.get(tokens, 0), total * probability) for tokens, probability in law.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = sorted((cell for cell in cells if cell[1] >= 5), key=lambda cell: cell[1])
    if rare:
        pooled = (sum(count for count, _ in rare), sum(expected for _, expected in rare))
        if pooled[1] < 5:
            least = cells.pop(0)
            pooled = (pooled[0] + least[0], pooled[1] + least[1])
        cells.append(pooled)
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    assert len(cells) > 8, "too few cells to see anything"
    return float(stats.chi2.sf(statistic, len(cells) - 1))


def count(samples: NDArray[np.integer]) -> dict[Tokens, int]:
    """How often each row occurs."""
    rows, counts = np.unique(samples, axis=0, return_counts=True)
    return {tuple(map(int, row)): int(n) for row, n in zip(rows, counts, strict=True)}


Conditional = Callable[[Tokens], Probs]


def conditional(
    logits: Callable[[list[int]], NDArray[np.float32]], prompt: list[int], **settings: Any
) -> Conditional:
    """Distribution of the next token after the prompt and some new tokens, from a model's own logits."""
    known: dict[Tokens, Probs] = {}

    def probs(new: Tokens) -> Probs:
        if new not in known:
            known[new] = reference.distribution(logits([*prompt, *new])[-1], **settings)
        return known[new]

    return probs


def beta(target: Conditional, draft: Conditional) -> float:
    """Chance that the first draft is accepted."""
    return float(np.minimum(target(()), draft(())).sum())


def law_of(target: Conditional, length: int) -> dict[Tokens, float]:
    """Probability of every sequence of this many new tokens."""
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        law = {
            (*new, int(token)): probability * float(target(new)[token])
            for new, probability in law.items()
            for token in np.flatnonzero(target(new))
        }
    return law


# -------------------------------------------------------------------------------- a trained pair

PROMPT = [1, 370]  # of stories260K; "big": many things may follow


def stories260k(shared: Path) -> Path:
    return shared / "models" / "stories260K" / "stories260K.bin"


def early_exit(shared: Path, n_layers: int, folder: Path) -> specdec.Model:
    """The first of stories260K's five layers: a draft."""
    return first_layers(stories260k(shared), n_layers, folder)


def first_layers(file: Path, n_layers: int, folder: Path) -> specdec.Model:
    """A llama2.c model without its last layers."""
    header = struct.unpack("<7i", file.read_bytes()[:28])
    numbers, tensors = np.fromfile(file, "<f4", offset=28), {}
    for name, like in llama2c_tensors(header).items():
        array, numbers = numbers[: like.size].reshape(like.shape), numbers[like.size :]
        tensors[name] = array[:n_layers] if like.shape[0] == header[2] else array
    assert len(numbers) == 0
    draft = folder / f"draft{n_layers}.bin"
    write_llama2c(draft, (*header[:2], n_layers, *header[3:]), tensors)
    return specdec.load(draft, tokenizer=False)
