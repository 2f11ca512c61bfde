"""Small random encoder-decoders, from canonical configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import specdec
from specdec.models.model import ModelTexts
from specdec.models.model_config import ModelConfig
from specdec.tokenizer import SourceTokenizer
from toy_pair import ToyTokenizer
from worlds.canonical import LLAMA, Tensors, build, perturbed, random_tensors

SIZES: dict[str, Any] = LLAMA | {
    "n_vocab": 61, "n_ctx": 96, "n_layer": 2, "n_head": 4, "n_kv_head": 4, "d_model": 24, "d_head": 6,
    "d_ff": 40, "inv_freq": [],
}  # fmt: skip
T5: dict[str, Any] = SIZES | {
    "position": "none", "activation": "gelu_tanh", "score_scales": [1.0, 1.0],
    "relative_buckets": [0, 1, 2, 3, 5, 9, 20],
}  # fmt: skip
BART: dict[str, Any] = SIZES | {
    "norm": "layer", "position": "learned", "activation": "gelu", "gated": False, "qkv_bias": True,
    "out_bias": True, "mlp_bias": True, "norm_position": "residual", "output_norm": False,
    "embedding_norm": True, "head_bias": True,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "t5": T5 | {"encoder": T5 | {"shared_embedding": True, "n_ctx": 128}},
    "bart": BART | {"encoder": BART | {"shared_embedding": True, "head_bias": False}},
    "two vocabularies": BART | {"encoder": BART | {"head_bias": False, "n_vocab": 67, "n_layer": 1}},
}
"""Relative positions and norms before each half; learned ones and norms of the stream; other source ids."""

START = (0,)


class EncoderDecoder:
    """A target, and a similar draft with perturbed weights of the target."""

    def __init__(self, name: str = "t5", *, blur: float = 0.01, text: bool = False, **changes: Any) -> None:
        config = CONFIGS[name]
        self.config: dict[str, Any] = config | changes | {"encoder": config["encoder"] | changes}
        config = self.config
        self.tensors = lively_tensors(config)
        tokenizer = ToyTokenizer() if text else None
        self.target = model_of(config, self.tensors, tokenizer)
        self.draft = model_of(config, perturbed(self.tensors, blur), tokenizer)

    @property
    def n_source_vocab(self) -> int:
        return self.config["encoder"]["n_vocab"]

    def sources(self, *lengths: int, seed: int = 3) -> list[list[int]]:
        """Random sources of these lengths."""
        rng = np.random.default_rng(seed)
        return [rng.integers(3, self.n_source_vocab, n).tolist() for n in lengths]


def model_of(
    config: dict[str, Any], tensors: Tensors, tokenizer: Any = None,
    end_of_source: tuple[int, ...] | None = None, architecture: str = "random", **formats: Any,
) -> specdec.Model:  # fmt: skip
    """Make a model of some weights; its sources end with these ids, by default the tokenizer's end token."""
    source, start = None, ()
    if config.get("encoder") is not None:
        start = START
        if tokenizer:
            ends = tokenizer.eos_ids if end_of_source is None else end_of_source
            source = SourceTokenizer(tokenizer, (), ends, {})
    return specdec.Model(
        build(config, tensors, **formats), ModelConfig.from_canonical(config),
        ModelTexts(tokenizer, source_tokenizer=source), Path("random"), architecture, decoder_start=start,
    )  # fmt: skip


def lively_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random weights with which a text depends on its tokens and its source."""
    tensors = random_tensors(config, seed)
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            tensors[name] = tensor * np.float32(0.1)
        elif "embedding.weight" in name:
            tensors[name] = tensor * np.float32(6.0)
        elif "_out.weight" in name or "_down.weight" in name:
            tensors[name] = tensor * np.float32(3.0)
    return tensors


def decoder_only(n_vocab: int = SIZES["n_vocab"], tokenizer: Any = None) -> specdec.Model:
    """A model without an encoder, with random weights."""
    config = T5 | {"n_vocab": n_vocab}
    return model_of(config, lively_tensors(config, seed=5), tokenizer)
