"""Which files beside its weights say what a model is, how its texts are encoded and how it is sampled."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

__all__ = ["DESCRIBING", "TEMPLATES", "describing_files", "is_describing"]

DESCRIBING: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors.index.json",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "target.spm",
    "target_vocab.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Those of a Hugging Face folder, by name."""

TEMPLATES: Final = "additional_chat_templates/*.jinja"
"""Chat templates beside the first, in such a folder."""

_COMPLETE: Final = (".gguf", ".specdec")
_LLAMA2C: Final = ("tokenizer.bin", "tokenizer.model")
_LLAMA2C_TABLES: Final = ("tok*.bin", "tok*.model")


def is_describing(name: str) -> bool:
    """Whether `describing_files` has files of this name, relative to the folder, for some model."""
    folder, _, last = name.rpartition("/")
    if not folder:
        return last in DESCRIBING or last in _LLAMA2C or any(fnmatchcase(last, of) for of in _LLAMA2C_TABLES)
    return f"{folder}/*.jinja" == TEMPLATES and fnmatchcase(last, "*.jinja")


def describing_files(place: Path) -> list[Path]:
    """The files that describe a model, less those that hold weights.

    Parameters
    ----------
    place : Path
        The folder of the model, its file, or the file of a tokenizer.

    Returns
    -------
    list of Path
        Whether they are there or not: what is not there may come. None beside files that hold all of it.
    """
    if place.suffix in _COMPLETE and not place.is_dir():
        return []
    folder = place if place.is_dir() else place.parent
    if place.suffix == ".bin" and not place.is_dir():
        named = [folder / name for name in _LLAMA2C]
        found = {file for names in _LLAMA2C_TABLES for file in folder.glob(names)}
        return named + sorted(found - {*named, place})
    return [folder / name for name in DESCRIBING] + sorted(folder.glob(TEMPLATES))
