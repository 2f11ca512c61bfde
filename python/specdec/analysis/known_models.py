"""Small models that could draft for a target, by name: public models that have its vocabulary.

`known_models.json` has vocabularies with some of their tokens by id, and small models with millions of
weights. Marks of GPT-2, Llama 2, Phi 3 and T5 are tested on their tokenizers. Others are as published: Llama
3 in tokenizer.py of meta-llama/llama3; Gemma, SmolLM 2, Pythia, OPT, OLMo 2 in the tokenizer.json of the
models (the last mark of OLMo 2 is not in cl100k_base); Qwen's in its tokenizer_config.json, as the first ids
after vocab.json. None of the models was downloaded to make this table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from specdec.models.model import Model
from specdec.models.tokenizer import ByteTokenizer


@dataclass(frozen=True)
class KnownModel:
    """A public model on the hub, and about how many weights it has."""

    name: str
    n_parameters: int


class KnownVocabulary(NamedTuple):
    """A vocabulary of several public models, small ones first; with an encoder, they are encoder-decoders.

    `marks` are some of its tokens by id: the first vocabulary of the table that has its marks counts.
    """

    name: str
    marks: Mapping[int, bytes]
    models: tuple[KnownModel, ...]
    has_encoder: bool = False


@cache
def known_vocabularies() -> tuple[KnownVocabulary, ...]:
    """Vocabularies whose small models are known."""
    table = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    return tuple(
        KnownVocabulary(
            row["name"],
            {int(token): text.encode() for token, text in row["marks"].items()},
            tuple(KnownModel(name, millions * 1_000_000) for name, millions in row["models"].items()),
            row.get("has_encoder", False),
        )
        for row in table
    )


def vocabulary_of(target: Model) -> KnownVocabulary | None:
    """The known vocabulary that a target has; None for any other, and without a tokenizer of bytes."""
    if not isinstance(target.tokenizer, ByteTokenizer):
        return None
    tokens = dict(enumerate(target.tokenizer.vocabulary()))
    for known in known_vocabularies():
        if known.has_encoder == (target.config.encoder is not None) and known.marks.items() <= tokens.items():
            return known
    return None


def known_models(target: Model) -> tuple[KnownModel, ...]:
    """Known models with the target's vocabulary and at most half of its weights, small ones first."""
    known = vocabulary_of(target)
    models = () if known is None else known.models
    return tuple(model for model in models if 2 * model.n_parameters <= target.n_parameters)
