"""Weight files as the package's readers see them: one file to change when the readers change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.checkpoints import open_checkpoint
from specdec.models.checkpoints import gguf_file
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.checkpoints.gguf_file import GGUFFile, read_gguf
from specdec.models.checkpoints.safetensors_file import open_weights, read_safetensors, write_safetensors
from specdec.models.families.gguf import ARCHITECTURES
from specdec.models.number_formats import widened
from specdec.models.tokenizer.gguf_vocabulary import WORDS, read_vocabulary, word_steps
from specdec.tokenizer import ByteTokenizer

GGUF_ARCHITECTURES = frozenset(ARCHITECTURES)
"""Supported ggml architectures."""
GGUF_WORDS: Mapping[str, tuple[str, ...]] = WORDS
"""How byte-level BPE cuts a text into words, by the names of GGUF files: steps, see `cut_into_words`."""


def tensors_in(path: Path) -> Mapping[str, Any]:
    """The tensors of a Hugging Face folder, a safetensors file or a GGUF file, by their names there."""
    if path.is_dir():
        return open_weights(path)
    return read_gguf(path)[1] if path.suffix == ".gguf" else read_safetensors(path)


def canonical(path: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a checkpoint as float32, by its canonical name."""
    return {name: widened(array, stored) for name, array, stored in open_checkpoint(path).tensors()}


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], **metadata: str) -> Path:
    """Write a safetensors file; uint16 has the bits of bf16."""
    write_safetensors(path, tensors, metadata)
    return path


def forget_gguf() -> None:
    """Reset to the state before any GGUF file was read: the package `gguf` is imported again."""
    gguf_file._types.cache_clear()


def gguf_metadata(path: Path) -> Mapping[str, Any]:
    """The metadata of a GGUF file: numbers, texts, lists of texts, and arrays as lists."""
    values = dict(GGUFFile(OpenedFile(path)))
    return {key: one.tolist() if isinstance(one, np.ndarray) else one for key, one in values.items()}


def gguf_tokenizer(path: Path) -> tuple[ByteTokenizer, Mapping[str, str]]:
    """The tokenizer of a GGUF file, with or without a model, and its named special tokens."""
    found = read_vocabulary(GGUFFile(OpenedFile(path)), path)
    assert found is not None and isinstance(found.tokenizer, ByteTokenizer)
    return found.tokenizer, found.special_tokens


def cut_into_words(text: str, pre: str) -> list[str]:
    """Split a text with the pre-tokenizer of this name."""
    places = [place for _, place in word_steps(WORDS[pre]).pre_tokenize_str(text)]
    return [text[begin:end] for begin, end in places]
