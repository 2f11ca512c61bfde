"""Small models that could draft for a target, by name: public models that have its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specdec.models.model import Model
from specdec.models.tokenizer import ByteTokenizer

__all__ = ["KNOWN", "KnownModel", "KnownVocabulary", "known_models", "vocabulary_of"]


@dataclass(frozen=True)
class KnownModel:
    """A public model on the hub, and about how many weights it has."""

    name: str
    n_parameters: int


@dataclass(frozen=True)
class KnownVocabulary:
    """A vocabulary that several public models have; `models` are small ones first.

    `marks` are some of its tokens by id, as `ByteTokenizer.vocabulary` has them: the first vocabulary of the
    table that has its marks counts. `has_encoder`: these are encoder-decoders.
    """

    name: str
    marks: Mapping[int, bytes]
    models: tuple[KnownModel, ...]
    has_encoder: bool = False


def _models(*given: tuple[str, int]) -> tuple[KnownModel, ...]:
    """Models of hub names and millions of weights."""
    return tuple(KnownModel(name, millions * 1_000_000) for name, millions in given)


# Marks of GPT-2, Llama 2, Phi 3 and T5 are tested on their tokenizers. Others are as published: Llama 3 in
# tokenizer.py of meta-llama/llama3; Gemma, SmolLM 2, Pythia, OPT, OLMo 2 in the tokenizer.json of
# the models below; Qwen's in its tokenizer_config.json, as the first ids behind vocab.json.
KNOWN: Final[tuple[KnownVocabulary, ...]] = (
    KnownVocabulary(
        "Qwen 2, 2.5 and 3",
        {151643: b"<|endoftext|>", 151644: b"<|im_start|>"},
        _models(
            ("Qwen/Qwen2.5-0.5B-Instruct", 494),
            ("Qwen/Qwen3-0.6B", 596),
            ("Qwen/Qwen2.5-1.5B-Instruct", 1544),
            ("Qwen/Qwen3-1.7B", 1721),
        ),
    ),
    KnownVocabulary(
        "Llama 3",
        {128000: b"<|begin_of_text|>", 128001: b"<|end_of_text|>"},
        _models(("meta-llama/Llama-3.2-1B-Instruct", 1236), ("meta-llama/Llama-3.2-3B-Instruct", 3213)),
    ),
    KnownVocabulary("Phi 3 and 3.5", {2: b"</s>", 32000: b"<|endoftext|>", 32007: b"<|end|>"}, ()),
    KnownVocabulary(
        "Llama 2",
        {2: b"</s>", 15043: b" Hello"},
        _models(("JackFram/llama-68m", 68), ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1100)),
    ),
    KnownVocabulary(
        "Gemma 1 and 2",
        {1: b"<eos>", 2: b"<bos>", 106: b"<start_of_turn>", 107: b"<end_of_turn>"},
        _models(("google/gemma-2-2b-it", 2614)),
    ),
    KnownVocabulary(
        "Gemma 3",
        {1: b"<eos>", 2: b"<bos>", 105: b"<start_of_turn>", 106: b"<end_of_turn>"},
        _models(("google/gemma-3-270m-it", 268), ("google/gemma-3-1b-it", 1000)),
    ),
    KnownVocabulary(
        "SmolLM 2",
        {0: b"<|endoftext|>", 1: b"<|im_start|>", 2: b"<|im_end|>"},
        _models(("HuggingFaceTB/SmolLM2-135M-Instruct", 135), ("HuggingFaceTB/SmolLM2-360M-Instruct", 362)),
    ),
    KnownVocabulary(
        "Pythia",
        {0: b"<|endoftext|>", 1: b"<|padding|>"},
        _models(
            ("EleutherAI/pythia-14m", 14), ("EleutherAI/pythia-70m", 70), ("EleutherAI/pythia-160m", 162)
        ),
    ),
    KnownVocabulary(
        "GPT-2, GPT-Neo, GPT-J and Phi 1 to 2",
        {50256: b"<|endoftext|>", 15496: b"Hello"},
        _models(("distilbert/distilgpt2", 82), ("openai-community/gpt2", 124)),
    ),
    KnownVocabulary(
        "OPT",
        {1: b"<pad>", 2: b"</s>", 31414: b"Hello"},
        _models(("facebook/opt-125m", 125), ("facebook/opt-350m", 331)),
    ),
    KnownVocabulary(
        "OLMo 2",
        {100257: b"<|endoftext|>", 9906: b"Hello", 100277: b"<|pad|>"},  # the last is not in cl100k_base
        _models(("allenai/OLMo-2-0425-1B-Instruct", 1485)),
    ),
    KnownVocabulary(
        "T5 and Flan-T5",
        {0: b"<pad>", 1: b"</s>", 32099: b"<extra_id_0>"},
        _models(("google/flan-t5-small", 77), ("google/flan-t5-base", 248)),
        has_encoder=True,
    ),
)
"""Vocabularies whose small models are known. None of them was downloaded to make this table."""


def vocabulary_of(target: Model) -> KnownVocabulary | None:
    """The known vocabulary that a target has; None for any other, and without a tokenizer of bytes."""
    if not isinstance(target.tokenizer, ByteTokenizer):
        return None
    tokens = target.tokenizer.vocabulary()
    for known in KNOWN:
        fits = known.has_encoder == (target.config.encoder is not None)
        if fits and all(i < len(tokens) and tokens[i] == name for i, name in known.marks.items()):
            return known
    return None


def known_models(target: Model) -> tuple[KnownModel, ...]:
    """Known models with the target's vocabulary and at most half of its weights, small ones first."""
    known = vocabulary_of(target)
    models = () if known is None else known.models
    return tuple(model for model in models if 2 * model.n_parameters <= target.n_parameters)
