"""Tokenizer files: published vocabularies, folders that hold them, and a tokenizer.json of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PUBLISHED = {
    "GPT-2": {"vocab.json": "gpt2_vocab.json", "merges.txt": "gpt2_merges.txt"},
    "Llama 2": {"tokenizer.model": "llama2_tokenizer.model"},
    "T5": {"tokenizer.json": "t5-small.tokenizer.json"},
    "Phi-3": {"tokenizer.json": "phi3.tokenizer.json"},
    "Qwen2.5": {"vocab.json": "qwen2.5_vocab.json", "merges.txt": "qwen2.5_merges.txt"},
}
"""File names of each family in a model's folder and in the shared data."""


def published_folder(family: str, shared: Path, folder: Path) -> Path:
    """Return the family's files by their names in a model's folder."""
    folder.mkdir(exist_ok=True)
    for name, stored in PUBLISHED[family].items():
        (folder / name).symlink_to(shared / "data" / "tokenizers" / stored)
    kind = "Qwen2Tokenizer" if family == "Qwen2.5" else None
    return write_json(folder, **{} if kind is None else {"tokenizer_config": {"tokenizer_class": kind}})


def write_json(folder: Path, **files: Any) -> Path:
    """Write JSON files, given by name and content."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def word_level(**parts: Any) -> dict[str, Any]:
    """A tokenizer.json with three words."""
    from tokenizers import Tokenizer, models

    library = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    made: dict[str, Any] = json.loads(library.to_str())
    return made | parts


def trained_pieces(path: Path, lines: list[str], **settings: Any) -> Path:
    """Train a SentencePiece model on lines of text."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path.with_suffix("")), num_threads=1, minloglevel=2,
        hard_vocab_limit=False, **settings,
    )  # fmt: skip
    return path.with_suffix(".model").rename(path)
