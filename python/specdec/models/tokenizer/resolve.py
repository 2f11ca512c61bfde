"""Resolution of ``tokenizer=`` to a tokenizer: from files, an object, or none."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specdec.checks import check_path
from specdec.errors import InputError, TokenizerError, type_of
from specdec.models.tokenizer.added_tokens import library_errors, read_settings, read_side_tokens
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Tokenizer, Utf8Tokenizer
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer, check_tokenizer_json
from specdec.models.tokenizer.llama2c_tokenizer import Llama2cTokenizer
from specdec.models.tokenizer.sentencepiece_file import (
    NumberedPieces,
    SentencePieceTokenizer,
    m2m_of,
    marian_of,
    open_m2m,
    open_marian,
)


def adapted(
    given: Any, *, bos_id: int | None = None, eos_ids: tuple[int, ...] | None = None
) -> Tokenizer | None:
    """Wrap an object of ``transformers`` or ``tokenizers``, adding its EOS; None for any other object."""
    source = f"the {type(given).__name__}"
    if hasattr(given, "to_str") and hasattr(given, "get_vocab") and hasattr(given, "id_to_token"):
        return HFTokenizer(_copy(given, source), source, bos_id=bos_id, eos_ids=eos_ids or ())
    if not (hasattr(given, "convert_ids_to_tokens") and hasattr(given, "eos_token_id")):
        return None
    own = () if given.eos_token_id is None else (given.eos_token_id,)
    ends: dict[str, Any] = {
        "bos_id": given.bos_token_id if bos_id is None else bos_id,
        "eos_ids": tuple(dict.fromkeys([*(eos_ids or ()), *own])),
    }
    with library_errors(f"{source} cannot be read"):
        if hasattr(given, "spm_files"):
            return marian_of(given, source, **ends)
        if hasattr(given, "lang_token_to_id") and hasattr(given, "spm_file"):
            return m2m_of(given, source, **ends)
    library_tokenizer = getattr(given, "backend_tokenizer", None)
    if library_tokenizer is None:
        return SlowTokenizer(given, **ends)
    return HFTokenizer(_copy(library_tokenizer, source), source, **ends)


def _copy(library_tokenizer: Any, source: str) -> Any:
    """Copy a tokenizer, because specdec turns padding and truncation off."""
    with library_errors(f"{source} cannot be copied"):
        return type(library_tokenizer).from_str(library_tokenizer.to_str())


class SlowTokenizer:
    """A Python tokenizer of ``transformers``, used through its methods only."""

    def __init__(self, given: Any, *, bos_id: int | None, eos_ids: tuple[int, ...]) -> None:
        self._given, self._name = given, f"the {type(given).__name__}"
        self.eos_ids = eos_ids
        with library_errors(f"{self._name} cannot encode"):
            whole, inner = self._ids("a", True), self._ids("a", False)
            self.n_vocab = len(given)
        starts = [at for at in range(len(whole) + 1) if whole[at : at + len(inner)] == inner]
        self.before = tuple(whole[: starts[0]]) if starts else ()
        self.after = tuple(whole[starts[0] + len(inner) :]) if starts else ()
        self.bos_id: int | None = self.before[0] if self.before else bos_id

    def _ids(self, text: str, special: bool) -> list[int]:
        return [int(token) for token in self._given.encode(text, add_special_tokens=special)]

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Encode text; see `Tokenizer`."""
        if not isinstance(text, str):
            raise InputError.of("text", text, "a str", type_of(text))
        with library_errors(f"{self._name} cannot encode this text"):
            return [*(self.before if add_bos else ()), *self._ids(text, False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, skipping special tokens."""
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        with library_errors(f"{self._name} cannot decode these ids"):
            text: str = self._given.decode([int(token) for token in ids], **options)
        return text


# Language tokens of mBART ("en_XX"), NLLB ("eng_Latn") and M2M-100 ("__en__").
_LANGUAGE: Final = re.compile(
    r"(?:__)?([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3})|(?<=__)[a-z]{2,3}(?=__))(?:__)?"
)


class SourceTokenizer:
    """Tokenizer of encoder inputs: adds the special tokens that an encoder expects.

    Parameters
    ----------
    tokenizer : Tokenizer
        Encodes the text.
    before, after : tuple of int
        Ids around the text, such as the source language and EOS.
    languages : mapping of str to int
        Ids of language tokens by code.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: tuple[int, ...], after: tuple[int, ...],
        languages: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.tokenizer, self.before, self.after = tokenizer, before, after
        self.languages = dict(languages)

    def __repr__(self) -> str:
        return f"SourceTokenizer({self.tokenizer!r}, before={self.before}, after={self.after})"

    def encode(self, text: str) -> list[int]:
        """Encode a source.

        Raises
        ------
        InputError
            `text` is not a str, or has a lone surrogate.
        """
        return [*self.before, *self.tokenizer.encode(text, add_bos=False), *self.after]

    def language_id(self, name: str, code: Any) -> int:
        """Return the id of a language code; messages name the argument `name`.

        Raises
        ------
        InputError
            The model does not have this language, or has no languages.
        """
        if code in self.languages:
            return self.languages[code]
        few = ", ".join(list(self.languages)[:6])
        expected = f"one of the {len(self.languages)} languages of the tokenizer, such as {few}"
        raise InputError.of(name, code, expected if few else "None: the tokenizer has no languages")

    def in_language(self, code: str) -> SourceTokenizer:
        """Return a tokenizer of sources in another language; raises as `language_id`."""
        ours, known = self.language_id("src_lang", code), set(self.languages.values())
        before, after = (
            tuple(ours if token in known else token for token in side) for side in (self.before, self.after)
        )
        return SourceTokenizer(self.tokenizer, before, after, self.languages)


def source_side(tokenizer: Tokenizer | None) -> SourceTokenizer | None:
    """Return the tokenizer of a model's sources, which appends EOS if nothing else follows."""
    if tokenizer is None:
        return None
    pieces = tokenizer.source_side if isinstance(tokenizer, NumberedPieces) else tokenizer
    before, after = (tuple(getattr(pieces, side, ())) for side in ("before", "after"))
    special = pieces.special_tokens() if isinstance(pieces, ByteTokenizer) else {}
    languages = {match[1]: i for name, i in special.items() if (match := _LANGUAGE.fullmatch(name))}
    return SourceTokenizer(pieces, before, after or tuple(pieces.eos_ids[:1]), languages)


_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")
_NAMES = (
    "tokenizer.json, tokenizer.model, spiece.model, or vocab.json with merges.txt, with "
    "sentencepiece.bpe.model or with source.spm and target.spm"
)


def resolve_tokenizer(
    given: Any, folder: Path, *, bos_id: int | None = None, eos_ids: tuple[int, ...] | None = None,
    n_vocab: int | None = None,
) -> Tokenizer | None:  # fmt: skip
    """Resolve a caller's ``tokenizer=``.

    Parameters
    ----------
    given : None, False, path-like or Tokenizer
        As in :func:`specdec.load`.
    folder : Path
        The model's folder.
    bos_id, eos_ids
        From the model's configuration; None: the tokenizer's own. A `Tokenizer` object keeps its own; an
        object of transformers adds its EOS.
    n_vocab : int, optional
        Number of ids of the model, which bounds BOS and EOS of its own tokenizer.

    Raises
    ------
    TokenizerError
        Damaged or missing files, a missing library, or an object that is not a tokenizer.
    """
    if given is False:
        return None
    if given is None:
        return _in_folder(folder, n_vocab, bos_id=bos_id, eos_ids=eos_ids)
    if isinstance(given, str | os.PathLike):
        return load_tokenizer(given, bos_id=bos_id, eos_ids=eos_ids)
    if (tokenizer := adapted(given, bos_id=bos_id, eos_ids=eos_ids)) is not None:
        return tokenizer
    wanted = ("encode", "decode", "n_vocab", "bos_id", "eos_ids")
    if missing := ", ".join(name for name in wanted if not hasattr(given, name)):
        raise TokenizerError(
            f"tokenizer is {type_of(given)} without {missing}; expected None, False, a path, an object of "
            "transformers or tokenizers, or an object with the attributes of specdec.tokenizer.Tokenizer"
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
        this order), or with the files of Marian, M2M-100 or ByT5. Or a file: tokenizer.json, GPT-2's
        vocab.json (with merges.txt next to it, named alike), a SentencePiece ``.model``, or a llama2.c
        ``.bin``.
    bos_id, eos_ids
        From the model's configuration; None: the tokenizer's own.

    Raises
    ------
    TokenizerError
        Damaged or missing files, or a missing library.
    """
    location = check_path("tokenizer", path, TokenizerError)
    open_it = _in_folder if location.is_dir() else _of_file
    found = open_it(location, None, bos_id=bos_id, eos_ids=eos_ids)
    if found is None:
        raise TokenizerError(f"{location}: has no tokenizer; expected {_NAMES}")
    return found


def _of_file(location: Path, n_vocab: int | None, **ends: Any) -> Tokenizer:
    if not location.is_file():
        raise TokenizerError(f"{location}: no such file; expected a tokenizer file or folder")
    if location.suffix == ".bin":
        return Llama2cTokenizer(location, **ends)
    if location.suffix not in (".model", ".json"):
        raise TokenizerError(f"{location}: expected a folder, or a .json, .model or .bin tokenizer")
    side = read_side_tokens(location.parent, n_vocab, **ends)
    if location.suffix == ".model":
        return SentencePieceTokenizer.from_file(location, side)
    values = read_settings(location)
    if isinstance(values.get("model"), dict):  # in a vocab.json, "model" is a token
        check_tokenizer_json(values, location)
        vocab = values["model"].get("vocab")  # a list in Unigram, where ids are indices
        return HFTokenizer.from_file(location, side, vocab if isinstance(vocab, dict) else None)
    merges = location.with_name(location.name.replace("vocab", "merges")).with_suffix(".txt")
    if "vocab" in location.name and merges.is_file():
        return HFTokenizer.from_bpe_files(location, merges, side)
    raise TokenizerError(f"{location}: expected a tokenizer.json, or a vocab.json with merges.txt next to it")


def _in_folder(folder: Path, n_vocab: int | None, **ends: Any) -> Tokenizer | None:
    if (folder / "source.spm").is_file():  # before a tokenizer.json, which has one side only
        return open_marian(folder, **ends)
    settings = folder / "tokenizer_config.json"
    name = next((name for name in _FILES if (folder / name).is_file()), None)
    if name == "vocab.json" and (folder / "sentencepiece.bpe.model").is_file():
        return open_m2m(folder, read_settings(settings), **ends)
    if name is not None:
        return _of_file(folder / name, n_vocab, **ends)
    values = read_settings(settings)
    is_byt5 = values.get("tokenizer_class") == "ByT5Tokenizer"
    return Utf8Tokenizer(str(settings), values, **ends) if is_byt5 else None


def why_no_tokenizer(path: Path) -> str:
    """Explain, for a message, why the model at `path` has no tokenizer, and what to do."""
    folder = path if path.is_dir() else path.parent
    why, how = "", "token ids"
    if found := sorted(folder.glob("tok*.bin")):  # of llama2.c; a folder may have several
        why = f"; found {', '.join(map(str, found))}"
        how = "token ids, or load the model with tokenizer= and that path"
    elif path.is_dir() and not any((path / name).is_file() for name in _FILES):
        why = f", because it has no {_NAMES}"
        how = "token ids, or load the model with tokenizer= and the path of a tokenizer"
    return f"{path} was loaded without tokenizer{why}; expected {how}"
