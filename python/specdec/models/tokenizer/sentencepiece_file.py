"""SentencePiece models, by the ``sentencepiece`` library: tokenizer.model, Marian, M2M-100."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specdec.errors import MissingTokenizerLibraryError, TokenizerError
from specdec.fields import as_json, read_json_object
from specdec.models.tokenizer.added_tokens import (
    AddedTokenFinder,
    SideTokens,
    import_tokenizers,
    library_errors,
    pieces_tokenizer,
)
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Strip

_VARINT, _BYTES, _FOUR_BYTES = 0, 2, 5  # wire types; a value of another one has 8 bytes
_BITS: Final = 3  # of a wire type


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def integer_field(number: int, value: int) -> bytes:
    """A field of a whole number."""
    return _varint(number << _BITS | _VARINT) + _varint(value)


def float_field(number: int, value: float) -> bytes:
    """A field of a float of 32 bits."""
    return _varint(number << _BITS | _FOUR_BYTES) + struct.pack("<f", value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of a text or of another message."""
    return _varint(number << _BITS | _BYTES) + _varint(len(value)) + value


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message that is not damaged: int, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = message[at]
        if value < 0x80:  # most numbers
            at += 1
            return value
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> _BITS, key & (1 << _BITS) - 1
        if kind == _VARINT:
            yield number, varint()
            continue
        size = varint() if kind == _BYTES else 4 if kind == _FOUR_BYTES else 8
        yield number, message[at : at + size]
        at += size


META: Final = "\u2581"  # "▁", the visible space

# Fields of sentencepiece_model.proto.
_PIECES, _TYPE, _NORMALIZER, _ADD_DUMMY_PREFIX = 1, 3, 3, 3
_USER_DEFINED: Final = 4


class SentencePieceTokenizer(ByteTokenizer):
    """A SentencePiece model, unigram, BPE or characters, and the tokens added to it; `from_file` reads one.

    A text is cut at its added tokens first: control and user-defined pieces, and those of side files.

    `source`: Where it was read, for messages. `finder`: Finds the added tokens of a text. `added`: The added
    tokens after the pieces, by id. `silent`: The special tokens. `prefixes_all`: Whether a text after an
    added token gets the space that the beginning of a text gets; an attribute too. `bos_id`, `eos_ids`: As in
    `ByteTokenizer`. `adds_bos`: Whether the model was trained with BOS, which the file does not say. Models
    with a SentencePiece file are.
    """

    reads_special_tokens = True

    def __init__(
        self,
        library: Any,
        source: str,
        *,
        finder: AddedTokenFinder | None,
        added: Mapping[int, bytes],
        silent: frozenset[int],
        prefixes_all: bool,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        adds_bos: bool = True,
    ) -> None:
        self._library, self._finder, self.prefixes_all = library, finder, prefixes_all
        self._after_token = library
        with library_errors(f"{source}: not a SentencePiece model"):
            n_pieces = _n_pieces(library, source)
            vocabulary: list[bytes | None] = [_piece_bytes(library, i) for i in range(n_pieces)]
            unknown = library.unk_id()
            replaced = {unknown: library.decode([unknown]).encode("utf-8")} if unknown >= 0 else {}
            strip = _strip_of(library)
        vocabulary += [None] * (max(added, default=-1) + 1 - n_pieces)
        for token_id, text in added.items():
            vocabulary[token_id] = text
        if finder is not None and not prefixes_all:
            self._after_token = _without_prefix(library, source)
        super().__init__(
            source,
            vocabulary=vocabulary,
            silent=silent,
            replaced=replaced,
            strip=strip,
            bos_id=bos_id,
            eos_ids=eos_ids,
            adds_bos=adds_bos,
        )
        self.added_ids = frozenset(added) if finder is None else frozenset(finder.tokens)

    @property
    def library(self) -> Any:
        """The tokenizer of the library."""
        return self._library

    @classmethod
    def from_file(
        cls,
        path: Path,
        side: SideTokens,
        *,
        bos_id: int | None = None,
        eos_ids: tuple[int, ...] | None = None,
    ) -> SentencePieceTokenizer:
        """Read a file, with the tokens of the files next to it.

        `bos_id`, `eos_ids`: The model's own, from its configuration; None: the side files', or else the
        file's.
        """
        library, source = open_sentencepiece(path), str(path)
        if not side.prefixes_text:
            library = _without_prefix(library, source)
        with library_errors(f"{source}: not a SentencePiece model"):
            n_pieces = _n_pieces(library, source)
            ids = {library.id_to_piece(i): i for i in range(n_pieces)}
            control = [i for i in range(n_pieces) if library.is_control(i)]
            user_defined = _user_defined(library.serialized_model_proto())
            ends = {"bos_token": library.bos_id(), "eos_token": library.eos_id()}
        with library_errors(f"{source}: the tokens of {side.folder} cannot be added"):
            adding = _adding(ids, control, user_defined, side, source)
            added = adding.get_added_tokens_decoder()
            bos_id, eos_ids = side.end_ids(adding.token_to_id, bos_id, eos_ids, own=ends)
            finder = AddedTokenFinder(adding, source) if added else None
        return cls(
            library,
            source,
            finder=finder,
            added={
                i: (token.content if token.special else token.content.replace(META, " ")).encode()
                for i, token in added.items()
                if i >= n_pieces
            },
            silent=frozenset([*control, *(i for i, token in added.items() if token.special)]),
            prefixes_all=side.prefixes_all,
            bos_id=bos_id,
            eos_ids=eos_ids,
            adds_bos=side.flag("add_bos_token") is not False,
        )

    def added_tokens(self) -> dict[str, dict[str, Any]]:
        """The added tokens as ``added_tokens_decoder`` of a tokenizer_config.json has them."""
        tokens = {} if self._finder is None else self._finder.tokens
        special = set(self.special_tokens().values())
        names = ("single_word", "lstrip", "rstrip", "normalized")
        return {
            str(i): {"content": token.content, "special": i in special}
            | {name: getattr(token, name) for name in names}
            for i, token in tokens.items()
        }

    def _encode(self, text: str) -> list[int]:
        with library_errors(f"{self.source}: this text cannot be encoded"):
            if self._finder is None:
                return list(self._library.encode(text, out_type=int))
            parts = self._finder.split(text)
            first = [part for token_id, part in parts[:1] if token_id is None]
            later = [part for token_id, part in parts[1:] if token_id is None]
            texts = iter(_encode_all(self._library, first) + _encode_all(self._after_token, later))
            ids: list[int] = []
            for token_id, _ in parts:
                if token_id is None:
                    ids += next(texts)
                else:
                    ids.append(token_id)
        return ids


def _encode_all(library: Any, texts: list[str]) -> list[list[int]]:
    """The ids of each text; of many texts in one call, as a call costs more than a short text."""
    if len(texts) < 2:
        return [library.encode(text, out_type=int) for text in texts]
    ids: list[list[int]] = library.encode(texts, out_type=int, num_threads=1)
    return ids


def _n_pieces(library: Any, source: str) -> int:
    n: int = library.vocab_size()
    if n < 1:
        raise TokenizerError(f"{source}: has no tokens; expected a SentencePiece model")
    return n


def _piece_bytes(library: Any, token_id: int) -> bytes:
    piece: str = library.id_to_piece(token_id)
    if library.is_byte(token_id):
        return bytes.fromhex(piece[3:5])  # "<0x0A>"
    return piece.replace(META, " ").encode("utf-8")


def _adding(
    ids: Mapping[str, int], control: list[int], user_defined: list[int], side: SideTokens, source: str
) -> Any:
    """A tokenizer of the ``tokenizers`` library with the pieces of a model and the tokens added to them.

    `ids` are those of pieces; `control` and `user_defined` are the pieces that count as added tokens.
    """
    added_token = import_tokenizers(source).AddedToken
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(side.n_sentinels))]
    all_ids = dict(ids)
    for name in sentinels:
        all_ids.setdefault(name, len(all_ids))
    adding = pieces_tokenizer(all_ids, source)
    pieces = {i: name for name, i in all_ids.items()}
    special = dict.fromkeys(user_defined, False) | dict.fromkeys(control, True)
    adding.add_tokens(
        [added_token(pieces[i], special=special[i], normalized=False) for i in sorted(special) if i in pieces]
    )
    side.add_to(adding, source, with_defaults=False)
    adding.add_tokens([added_token(name, special=True, normalized=False) for name in sentinels])
    return adding


def _user_defined(model: bytes) -> list[int]:
    """The ids of the user-defined pieces of a serialized model, which the library does not list."""
    pieces = (value for number, value in read_fields(model) if number == _PIECES)
    kind = _TYPE, _USER_DEFINED
    mark = integer_field(*kind)  # few pieces have these bytes: only those are parsed
    return [i for i, piece in enumerate(pieces) if mark in piece and kind in read_fields(piece)]


def _without_prefix(library: Any, source: str) -> Any:
    """The same model without the space at the beginning of a text: a later field overrides an earlier one."""
    no_prefix = bytes_field(_NORMALIZER, integer_field(_ADD_DUMMY_PREFIX, 0))
    return parse_sentencepiece(library.serialized_model_proto() + no_prefix, source)


def open_sentencepiece(path: Path) -> Any:
    """The model at a path, by the ``sentencepiece`` library."""
    try:
        model = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_sentencepiece(model, str(path))


def parse_sentencepiece(model: bytes, source: str) -> Any:
    """A serialised model, by the ``sentencepiece`` library; raises as `open_sentencepiece`."""
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingTokenizerLibraryError(
            f"{source}: is read by the package `sentencepiece`, which is not installed: "
            "pip install sentencepiece (or tokenizer=False: ids in, ids out)"
        ) from error
    library = sentencepiece.SentencePieceProcessor()
    with library_errors(f"{source}: not a SentencePiece model"):
        library.LoadFromSerializedProto(model)
    return library


def _strip_of(library: Any) -> Strip:
    """What the library drops at the beginning of a text: tried out, as its Python face hides the setting."""
    spaces = library.decode_pieces([META, META, "x"])
    return {2: Strip.NOTHING, 1: Strip.ONE_SPACE, 0: Strip.ALL_SPACES}[len(spaces) - 1]


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

    `model`: The SentencePiece model. `numbers`: The ids of pieces and special tokens. `source`: Where the
    vocabulary was read, for messages. `codes`: Whether a text may begin with a token such as ">>de<<", as
    Marian's of several target languages do. `before`: As in `ByteTokenizer`. `bos_id`, `eos_ids`: The model's
    own; None: "</s>" of the vocabulary ends a text. `source_side`: What sources are encoded by; itself where
    both sides have one vocabulary and one model.
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
    values = read_json_object(file, TokenizerError)
    seen: set[int] = set()
    for piece, token_id in values.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0 or token_id in seen:
            raise TokenizerError(
                f"{file}: piece {as_json(piece)} has id {as_json(token_id)}; expected a whole number that no "
                "other has"
            )
        seen.add(token_id)
    return values
