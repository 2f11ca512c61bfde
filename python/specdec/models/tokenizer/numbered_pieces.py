"""A SentencePiece model whose pieces a vocab.json numbers: Marian's two sides, M2M-100."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specdec.errors import CheckpointError, TokenizerError
from specdec.fields import as_json, read_json_object
from specdec.models.tokenizer.byte_stream import Strip
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.library import library_errors
from specdec.models.tokenizer.sentencepiece_file import META, open_sentencepiece

__all__ = ["NumberedPieces", "m2m_of", "marian_of", "open_m2m", "open_marian"]

_SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>")
_UNKNOWN: Final = "<unk>"
_MOST_UNUSED: Final = 1 << 20  # ids without token, in a vocabulary of a small file
_CODE: Final = re.compile(r">>.*?<<")

# The languages of M2M-100 in the order of their ids, which follow those of vocab.json.
_LANGUAGES: Final[Mapping[str, str]] = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne "
    "nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo "
    "xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}


class NumberedPieces(ByteTokenizer):
    """A text cut into pieces by a SentencePiece model, each with its id of a vocabulary.

    Parameters
    ----------
    model : Path
        The SentencePiece model.
    numbers : mapping of str to int
        The ids of pieces and special tokens.
    source : str
        Where the vocabulary was read, for messages.
    codes : bool
        Whether a text may begin with a token such as ">>de<<", as Marian's of several target languages do.
    before : tuple of int
        As in `ByteTokenizer`.
    bos_id, eos_ids
        The model's own; None: "</s>" of the vocabulary ends a text.

    Attributes
    ----------
    source_side : NumberedPieces
        What sources are encoded by; itself where both sides have one vocabulary and one model.
    """

    def __init__(
        self,
        model: Path,
        numbers: Mapping[str, int],
        source: str,
        *,
        codes: bool = False,
        before: tuple[int, ...] = (),
        bos_id: int | None = None,
        eos_ids: tuple[int, ...] | None = None,
    ) -> None:
        self._library = open_sentencepiece(model)
        self._numbers, self._codes = dict(numbers), codes
        self.source_side = self
        n_ids = max(numbers.values(), default=-1) + 1
        if _UNKNOWN not in numbers or n_ids > len(numbers) + _MOST_UNUSED:
            raise TokenizerError(
                f"{source}: expected ids of pieces, among them {_UNKNOWN!r}, without large gaps"
            )
        vocabulary: list[bytes | None] = [None] * n_ids
        for piece, token_id in numbers.items():
            vocabulary[token_id] = piece.replace(META, " ").encode("utf-8", "replace")
        silent = {numbers[name] for name in _SPECIAL if name in numbers}
        silent |= {numbers[name] for name in numbers if _is_language(name)}
        if eos_ids is None:
            eos_ids = (numbers["</s>"],) if "</s>" in numbers else ()
        super().__init__(
            source,
            vocabulary=vocabulary,
            silent=frozenset(silent),
            strip=Strip.ONE_SPACE,
            bos_id=bos_id,
            eos_ids=eos_ids,
            adds_bos=False,
        )
        self.before = before

    def _encode(self, text: str) -> list[int]:
        found: list[str] = []
        if self._codes and (code := _CODE.match(text)):
            found, text = [code[0]], text[code.end() :]
        with library_errors(f"{self.source}: `sentencepiece` cannot encode this text"):
            found += self._library.encode(text, out_type=str)
        unknown = self._numbers[_UNKNOWN]
        return [self._numbers.get(piece, unknown) for piece in found]


def _is_language(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def open_marian(folder: Path, **ends: Any) -> NumberedPieces:
    """The target side of source.spm, target.spm and vocab.json, or of vocab.json and target_vocab.json.

    ``ends`` are ``bos_id`` and ``eos_ids``.
    """
    theirs, ours = folder / "vocab.json", folder / "target_vocab.json"
    both = (theirs, ours) if ours.is_file() else (theirs, theirs)
    models = folder / "source.spm", folder / "target.spm"
    return _two_sides(models, (_numbers(both[0]), _numbers(both[1])), (str(both[0]), str(both[1])), **ends)


def marian_of(given: Any, source: str, **ends: Any) -> NumberedPieces:
    """The same of a MarianTokenizer of transformers."""
    models = tuple(Path(file) for file in given.spm_files)
    target = given.target_encoder if given.separate_vocabs else given.encoder
    return _two_sides(models, (given.encoder, target), (source, source), **ends)


def _two_sides(
    models: Sequence[Path], numbers: Sequence[Mapping[str, int]], names: Sequence[str], **ends: Any
) -> NumberedPieces:
    """Of sources, then of texts: SentencePiece models, vocabularies, and where these were read.

    ``ends`` are ids of texts: a vocabulary of sources has an end of text of its own.
    """
    shared = numbers[0] == numbers[1]
    source = NumberedPieces(models[0], numbers[0], names[0], codes=shared, **(ends if shared else {}))
    target = NumberedPieces(models[1], numbers[1], names[1], codes=shared, **ends)
    target.source_side = source
    return target


def open_m2m(folder: Path, settings: Mapping[str, Any], **ends: Any) -> NumberedPieces:
    """sentencepiece.bpe.model and vocab.json, and the languages that follow its ids."""
    file = folder / "vocab.json"
    numbers = _numbers(file)
    kind = settings.get("language_codes") or "m2m100"
    if not isinstance(kind, str) or kind not in _LANGUAGES:
        raise TokenizerError(
            f"{file}: tokenizer_config.json has 'language_codes' {as_json(kind)}; expected one of "
            f"{', '.join(_LANGUAGES)}"
        )
    languages = {f"__{code}__": len(numbers) + i for i, code in enumerate(_LANGUAGES[kind].split())}
    source = settings.get("src_lang") or "en"
    if f"__{source}__" not in languages:
        raise TokenizerError(
            f"{file}: tokenizer_config.json has 'src_lang' {as_json(source)}; expected a language"
        )
    model, before = folder / "sentencepiece.bpe.model", (languages[f"__{source}__"],)
    return NumberedPieces(model, numbers | languages, str(file), before=before, **ends)


def m2m_of(given: Any, source: str, **ends: Any) -> NumberedPieces:
    """The same of an M2M100Tokenizer of transformers."""
    before = (given.get_lang_id(given.src_lang),)
    numbers = given.encoder | given.lang_token_to_id
    return NumberedPieces(Path(given.spm_file), numbers, source, before=before, **ends)


def _numbers(file: Path) -> dict[str, int]:
    """A vocab.json: each piece with an id of its own."""
    try:
        values = read_json_object(file)
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
    seen: set[int] = set()
    for piece, token_id in values.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0 or token_id in seen:
            raise TokenizerError(
                f"{file}: piece {as_json(piece)} has id {as_json(token_id)}; expected a whole number that no "
                "other has"
            )
        seen.add(token_id)
    return values
