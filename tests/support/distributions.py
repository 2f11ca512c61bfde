"""Tests of samples against distributions: chi-square tests of first tokens, and the trained pair they use.

With a fresh seed, a correct program fails one of these tests with probability FALSE_ALARM. Seeds are fixed,
so nothing fails at random; a change of what is drawn from them counts as a fresh seed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

import specdec
from exact import Conditional, Probs, Tokens
from specdec import reference
from toy_pair import blurred
from trained import DRAFT, small_pair
from worlds.folders import Tensors, llama2c_tensors, write_llama2c

FALSE_ALARM = 1e-3


def p_value(counts: dict[Tokens, int], found: dict[Tokens, float]) -> float:
    """Pearson's p value; cells with under 5 expected counts are pooled. An impossible outcome gives 0."""
    total = sum(counts.values())
    if not counts.keys() <= found.keys():
        return 0.0
    cells = [(counts.get(tokens, 0), total * probability) for tokens, probability in found.items()]
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
    return float(scipy.stats.chi2.sf(statistic, len(cells) - 1))


def count(samples: NDArray[np.integer]) -> dict[Tokens, int]:
    """Count the occurrences of each row."""
    rows, counts = np.unique(samples, axis=0, return_counts=True)
    return {tuple(map(int, row)): int(n) for row, n in zip(rows, counts, strict=True)}


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
    """Acceptance probability of the first draft token."""
    return float(np.minimum(target(()), draft(())).sum())


# -------------------------------------------------------------------------------- trained models


class Trained(NamedTuple):
    """Trained target, two drafts, and a prompt with many likely continuations."""

    name: str
    target: specdec.Model
    near: specdec.Model
    far: specdec.Model
    prompt: list[int]


TRAINED = ["small", "stories260K"]
"""The first is in tests/models, the second needs the fixture `shared`."""


def trained(request: pytest.FixtureRequest, name: str, folder: Path) -> Trained:
    """Load one of TRAINED; its drafts are written to the folder."""
    if name == "small":
        tokenizer = small_pair()[1].tokenizer
        file, amounts = small_llama2c(folder), (0.3, 0.4)
        drafts = [blurred_llama2c(file, amount, folder / f"{amount}.bin") for amount in amounts]
        models = [specdec.load(path, tokenizer=False, prefill="rows") for path in (file, *drafts)]
        return Trained(name, *models, tokenizer.encode("He was"))
    file = stories260k(request.getfixturevalue("shared"))
    near, far = (first_layers(file, n_layers, folder) for n_layers in (3, 2))
    return Trained(name, specdec.load(file, tokenizer=False, prefill="rows"), near, far, [1, 370])  # "big"


def stories260k(shared: Path) -> Path:
    return shared / "models" / "stories260K" / "stories260K.bin"


def first_layers(file: Path, n_layers: int, folder: Path) -> specdec.Model:
    """Drop the last layers of a llama2.c model."""
    header, tensors = read_llama2c(file)
    tensors = {
        name: array[:n_layers] if array.shape[0] == header[2] else array for name, array in tensors.items()
    }
    draft = write_llama2c(folder / f"draft{n_layers}.bin", (*header[:2], n_layers, *header[3:]), tensors)
    return specdec.load(draft, tokenizer=False, prefill="rows")


def blurred_llama2c(file: Path, amount: float, path: Path) -> Path:
    """Add noise to the matrices of a llama2.c model; rotation tables and norms stay."""
    header, tensors = read_llama2c(file)
    matrices = {name: array for name, array in tensors.items() if name.startswith("w")}
    return write_llama2c(path, header, tensors | blurred(matrices, amount))


def read_llama2c(file: Path) -> tuple[tuple[int, ...], Tensors]:
    """Read the seven header values, and the tensors by name in file order."""
    header = struct.unpack("<7i", file.read_bytes()[:28])
    numbers, tensors = np.fromfile(file, "<f4", offset=28), {}
    for name, like in llama2c_tensors(header).items():
        array, numbers = numbers[: like.size].reshape(like.shape), numbers[like.size :]
        tensors[name] = array
    assert len(numbers) == 0
    return header, tensors


def small_llama2c(folder: Path) -> Path:
    """Write the small draft, whose trained weights are in every clone, as a llama2.c file."""
    config = json.loads((DRAFT / "config.json").read_text())
    assert config["tie_word_embeddings"] and config["rms_norm_eps"] == 1e-5 and config["rope_theta"] == 1e4
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes += ("num_key_value_heads", "vocab_size", "max_position_embeddings")
    header = tuple(config[size] for size in sizes)
    given = read_bf16(DRAFT / "model.safetensors")

    def stacked(name: str, n_heads: int = 0) -> NDArray[np.float32]:
        layers = [given[f"model.layers.{layer}.{name}.weight"] for layer in range(header[2])]
        return np.stack([neighbors(weight, n_heads) if n_heads else weight for weight in layers])

    tensors = llama2c_tensors(header) | {
        "token_embedding_table": given["model.embed_tokens.weight"],
        "rms_att_weight": stacked("input_layernorm"), "wq": stacked("self_attn.q_proj", header[3]),
        "wk": stacked("self_attn.k_proj", header[4]), "wv": stacked("self_attn.v_proj"),
        "wo": stacked("self_attn.o_proj"), "rms_ffn_weight": stacked("post_attention_layernorm"),
        "w1": stacked("mlp.gate_proj"), "w2": stacked("mlp.down_proj"), "w3": stacked("mlp.up_proj"),
        "rms_final_weight": given["model.norm.weight"],
    }  # fmt: skip
    assert set(tensors) == set(llama2c_tensors(header))
    return write_llama2c(folder / "small.bin", header, tensors)


def neighbors(weight: NDArray[np.float32], n_heads: int) -> NDArray[np.float32]:
    """Reorder rows as in llama2.c, which rotates adjacent pairs instead of halves of a head."""
    n_out, n_in = weight.shape
    halves = weight.reshape(n_heads, 2, n_out // n_heads // 2, n_in)
    return halves.swapaxes(1, 2).reshape(n_out, n_in)


def read_bf16(path: Path) -> Tensors:
    """Read the tensors of a bf16 safetensors file as float32."""
    content = path.read_bytes()
    (n_header,) = struct.unpack("<Q", content[:8])
    header, data, tensors = json.loads(content[8 : 8 + n_header]), content[8 + n_header :], {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "BF16"
            bits = np.frombuffer(data[slice(*entry["data_offsets"])], "<u2").astype(np.uint32) << 16
            tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors
