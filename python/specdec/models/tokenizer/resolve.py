"""Which tokenizer a model gets: the one beside it, the one at a path, an object, or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from specdec.checks import check_path
from specdec.errors import TokenizerError, kind_of
from specdec.models.tokenizer.added_tokens import read_settings, read_side_tokens
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.interface import Tokenizer
from specdec.models.tokenizer.llama2c_tokenizer import Llama2cTokenizer
from specdec.models.tokenizer.numbered_pieces import open_m2m, open_marian
from specdec.models.tokenizer.objects import adapted
from specdec.models.tokenizer.precheck import check_tokenizer_json
from specdec.models.tokenizer.sentencepiece_file import SentencePieceTokenizer
from specdec.models.tokenizer.utf8_tokenizer import Utf8Tokenizer

__all__ = ["load_tokenizer", "resolve_tokenizer", "why_no_tokenizer"]

_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")
_NAMES = (
    "tokenizer.json, tokenizer.model, spiece.model, or vocab.json with merges.txt, with "
    "sentencepiece.bpe.model or with source.spm and target.spm"
)


def resolve_tokenizer(
    given: Any,
    folder: Path,
    *,
    bos_id: int | None = None,
    eos_ids: tuple[int, ...] | None = None,
    n_vocab: int | None = None,
) -> Tokenizer | None:
    """The tokenizer that a caller's ``tokenizer=`` means.

    Parameters
    ----------
    given : None, False, path-like or Tokenizer
        None: the one in ``folder``, if there is one. False: none. A path: the one at that path. An object of
        ``transformers`` (AutoTokenizer gives one) or ``tokenizers``: that tokenizer.
    folder : Path
        Where the model is.
    bos_id, eos_ids
        What the model's configuration says; None: the tokenizer's own. An object with specdec's methods keeps
        its own, and one of transformers has its own beside them.
    n_vocab : int, optional
        The number of ids of the model in `folder`, within which its own tokenizer must name BOS and EOS.

    Raises
    ------
    TokenizerError
        Damaged or missing files, a missing library, or an object that is no tokenizer.
    """
    if given is False:
        return None
    if given is None:
        return _in_folder(folder, bos_id, eos_ids, n_vocab)
    if isinstance(given, str | os.PathLike):
        return load_tokenizer(given, bos_id=bos_id, eos_ids=eos_ids)
    if (tokenizer := adapted(given, bos_id=bos_id, eos_ids=eos_ids)) is not None:
        return tokenizer
    missing = [
        name for name in ("encode", "decode", "n_vocab", "bos_id", "eos_ids") if not hasattr(given, name)
    ]
    if missing:
        raise TokenizerError(
            f"tokenizer is {kind_of(given)} without {', '.join(missing)}; expected None, "
            "False, a path, an "
            f"object of transformers or tokenizers, or one with the attributes of specdec.tokenizer.Tokenizer"
        )
    own: Tokenizer = given
    return own


def load_tokenizer(
    path: str | os.PathLike[str], *, bos_id: int | None = None, eos_ids: tuple[int, ...] | None = None
) -> Tokenizer:
    """Read a tokenizer.

    Parameters
    ----------
    path : path-like
        A folder with tokenizer.json, tokenizer.model, spiece.model, or vocab.json and merges.txt (tried in
        this order), or with the files of Marian, M2M-100 or ByT5; or one file: tokenizer.json, GPT-2's
        vocab.json (merges.txt is looked for beside it, with "merges" in place of "vocab" in its name), a
        SentencePiece ``.model``, or a llama2.c ``.bin``.
    bos_id, eos_ids
        What the model's configuration says; None: the tokenizer's own.

    Raises
    ------
    TokenizerError
        Damaged or missing files, or a missing library.
    """
    location = check_path("tokenizer", path, TokenizerError)
    if location.is_dir():
        found = _in_folder(location, bos_id, eos_ids, None)
        if found is None:
            raise TokenizerError(f"{location}: holds no tokenizer; expected {_NAMES}")
        return found
    return _of_file(location, bos_id, eos_ids, None)


def _of_file(
    location: Path, bos_id: int | None, eos_ids: tuple[int, ...] | None, n_vocab: int | None
) -> Tokenizer:
    """The tokenizer of one file, with the side files of its folder."""
    if not location.is_file():
        raise TokenizerError(f"{location}: no such file; expected a tokenizer")
    if location.suffix == ".bin":
        return Llama2cTokenizer(location, bos_id=bos_id, eos_ids=eos_ids)
    ends: dict[str, Any] = {"bos_id": bos_id, "eos_ids": eos_ids}
    side = read_side_tokens(location.parent, n_vocab)
    if location.suffix == ".model":
        return SentencePieceTokenizer.from_file(location, side, **ends)
    if location.suffix == ".json":
        values = read_settings(location)
        if isinstance(values.get("model"), dict):  # in a vocab.json, "model" is a word with an id
            check_tokenizer_json(values, location)
            vocab = values["model"].get("vocab")  # a list in Unigram, where ids are places
            return HFTokenizer.from_file(
                location, side, vocab=vocab if isinstance(vocab, dict) else None, **ends
            )
        merges = location.with_name(location.name.replace("vocab", "merges")).with_suffix(".txt")
        if "vocab" in location.name and merges.is_file():
            return HFTokenizer.from_bpe_files(location, merges, side, **ends)
        raise TokenizerError(
            f"{location}: is neither a tokenizer.json nor a vocab.json with merges.txt beside it"
        )
    raise TokenizerError(f"{location}: expected a folder, or a .json, .model or .bin tokenizer")


def _in_folder(
    folder: Path, bos_id: int | None, eos_ids: tuple[int, ...] | None, n_vocab: int | None
) -> Tokenizer | None:
    ends: dict[str, Any] = {"bos_id": bos_id, "eos_ids": eos_ids}
    if (folder / "source.spm").is_file():  # before a tokenizer.json, which has one side
        return open_marian(folder, **ends)
    for name in _FILES:
        if not (folder / name).is_file():
            continue
        if name == "vocab.json" and (folder / "sentencepiece.bpe.model").is_file():
            return open_m2m(folder, read_settings(folder / "tokenizer_config.json"), **ends)
        return _of_file(folder / name, bos_id, eos_ids, n_vocab)
    settings = read_settings(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") == "ByT5Tokenizer":
        return Utf8Tokenizer(str(folder / "tokenizer_config.json"), settings, **ends)
    return None


def why_no_tokenizer(path: Path) -> str:
    """The part of a message about the model at `path` without a tokenizer, with a way out."""
    folder = path if path.is_dir() else path.parent
    if found := sorted(folder.glob("tok*.bin")):  # those of llama2.c, of which a folder may hold several
        return (
            f"{path} was loaded without tokenizer; found {', '.join(str(one) for one in found)}: "
            "pass tokenizer= with its path when the model is loaded, or token ids"
        )
    if path.is_dir() and not any((path / name).is_file() for name in _FILES):
        return (
            f"{path} was loaded without tokenizer, as no {_NAMES} was found in it; expected token ids, or "
            "tokenizer= with the path of one when the model is loaded"
        )
    return f"{path} was loaded without tokenizer; expected token ids"
