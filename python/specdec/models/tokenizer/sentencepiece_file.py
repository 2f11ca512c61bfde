"""SentencePiece tokenizers: tokenizer.model, Marian, M2M-100."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

from specdec.errors import TokenizerError
from specdec.models.tokenizer.added_tokens import (
    AddedTokenFinder,
    SideTokens,
    import_library,
    import_tokenizers,
    library_errors,
    pieces_tokenizer,
    read_numbers,
)
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Strip
from specdec.text_files import reading

# A model is a Protocol Buffers message. The library's own module for it cannot be imported together with
# transformers' module, because both register the same file name.
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types
_SIZES: Final = {_FOUR_BYTES: 4, _EIGHT_BYTES: 8}


def _varint(value: int) -> bytes:
    """Encode a varint: seven bits per byte, lowest first; negative numbers as 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    """Serialize a message from (number, value) fields; values are int, float (32-bit) or bytes."""
    found = []
    for number, value in fields:
        if isinstance(value, bytes):
            found.append(_varint(number << 3 | _BYTES) + _varint(len(value)) + value)
        elif isinstance(value, float):
            found.append(_varint(number << 3 | _FOUR_BYTES) + struct.pack("<f", value))
        else:
            found.append(_varint(number << 3 | _VARINT) + _varint(value))
    return b"".join(found)


def read_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of a valid message's fields; values are int or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = data[at]
        at += 1
        if value < 0x80:  # most numbers
            return value
        value, shift = value & 0x7F, 7
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            yield number, varint()
        else:
            size = _SIZES[wire_type] if wire_type in _SIZES else varint()
            yield number, data[at : at + size]
            at += size


META: Final = "\u2581"  # "▁", the visible space

# Fields of sentencepiece_model.proto.
_PIECES, _TYPE, _NORMALIZER, _ADD_DUMMY_PREFIX = 1, 3, 3, 3
_USER_DEFINED: Final = 4


class SentencePieceTokenizer(ByteTokenizer):
    """A SentencePiece model and the tokens `added` to it, where a `finder` splits text first.

    `prefixes_all`: Whether text after an added token gets a leading space, like the start of a text.
    """

    reads_special_tokens = True

    def __init__(
        self, library: Any, source: str, *, finder: AddedTokenFinder | None, added: Mapping[int, bytes],
        silent: Set[int], prefixes_all: bool, **ends: Any,
    ) -> None:  # fmt: skip
        self.library, self._finder, self.prefixes_all = library, finder, prefixes_all
        self._after_token = library
        with library_errors(f"{source}: not a SentencePiece model"):
            n_pieces = _n_pieces(library, source)
            vocabulary: list[bytes | None] = [_piece_bytes(library, i) for i in range(n_pieces)]
            unknown = library.unk_id()
            replaced = {unknown: library.decode([unknown]).encode("utf-8")} if unknown >= 0 else {}
            # leading spaces that the library strips; its Python API hides the setting
            spaces = len(library.decode_pieces([META, META, "x"])) - 1
            strip = (Strip.ALL_SPACES, Strip.ONE_SPACE, Strip.NOTHING)[spaces]
        vocabulary += [None] * (max(added, default=-1) + 1 - n_pieces)
        for token_id, text in added.items():
            vocabulary[token_id] = text
        if finder is not None and not prefixes_all:
            self._after_token = _without_prefix(library, source)
        super().__init__(source, vocabulary=vocabulary, silent=silent, replaced=replaced, strip=strip, **ends)
        self.added_ids = frozenset(added) if finder is None else frozenset(finder.tokens)

    @classmethod
    def from_file(cls, path: Path, side: SideTokens) -> SentencePieceTokenizer:
        """Read a file and the tokens of the files next to it."""
        library, source = open_sentencepiece(path), str(path)
        if not side.prefixes_text:
            library = _without_prefix(library, source)
        with library_errors(f"{source}: not a SentencePiece model"):
            n_pieces = _n_pieces(library, source)
            ids = {library.id_to_piece(i): i for i in range(n_pieces)}
            control = [i for i in range(n_pieces) if library.is_control(i)]
            special = dict.fromkeys(_user_defined(library.serialized_model_proto()), False)
            special |= dict.fromkeys(control, True)
            ends = {"bos_token": library.bos_id(), "eos_token": library.eos_id()}
        with library_errors(f"{source}: the tokens of {side.folder} cannot be added"):
            adding = _adding(ids, special, side, source)
            tokens = adding.get_added_tokens_decoder()
            bos_id, eos_ids = side.end_ids(adding.token_to_id, ends)
            finder = AddedTokenFinder(adding, source) if tokens else None
        added = {i: token for i, token in tokens.items() if i >= n_pieces}
        texts = {i: t.content if t.special else t.content.replace(META, " ") for i, t in added.items()}
        return cls(
            library, source, finder=finder, added={i: text.encode() for i, text in texts.items()},
            silent={*control, *(i for i, token in tokens.items() if token.special)},
            prefixes_all=side.prefixes_all, bos_id=bos_id, eos_ids=eos_ids,
            adds_bos=side.flag("add_bos_token") is not False,
        )  # fmt: skip

    def added_tokens(self) -> dict[str, dict[str, Any]]:
        """Return the added tokens in the format of ``added_tokens_decoder``."""
        tokens = {} if self._finder is None else self._finder.tokens
        special = set(self.special_tokens().values())
        names = ("content", "single_word", "lstrip", "rstrip", "normalized")
        return {
            str(i): {name: getattr(token, name) for name in names} | {"special": i in special}
            for i, token in tokens.items()
        }

    def _encode(self, text: str) -> list[int]:
        with library_errors(f"{self.source}: this text cannot be encoded"):
            parts = [(None, text)] if self._finder is None else self._finder.split(text)
            first = [part for token_id, part in parts[:1] if token_id is None]
            later = [part for token_id, part in parts[1:] if token_id is None]
            texts = iter(_encode_all(self.library, first) + _encode_all(self._after_token, later))
            found = (next(texts) if token_id is None else [token_id] for token_id, _ in parts)
            return [token for ids in found for token in ids]


def _encode_all(library: Any, texts: list[str]) -> list[list[int]]:
    """Encode texts in one call, because a call costs more than a short text."""
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


def _adding(ids: Mapping[str, int], special: Mapping[int, bool], side: SideTokens, source: str) -> Any:
    """Make a tokenizer of ``tokenizers`` with a model's pieces, of which `special` ones are added tokens."""
    new = import_tokenizers(source).AddedToken
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(side.n_sentinels))]
    all_ids = dict(ids)
    for name in sentinels:
        all_ids.setdefault(name, len(all_ids))
    adding = pieces_tokenizer(all_ids, source)
    pieces = {i: name for name, i in all_ids.items() if i in special}
    adding.add_tokens([new(pieces[i], special=special[i], normalized=False) for i in sorted(pieces)])
    side.add_to(adding, source, with_defaults=False)
    adding.add_tokens([new(name, special=True, normalized=False) for name in sentinels])
    return adding


def _user_defined(model: bytes) -> list[int]:
    """Return the ids of user-defined pieces in a serialized model, which the library does not list."""
    pieces = (value for number, value in read_fields(model) if number == _PIECES)
    type_field = _TYPE, _USER_DEFINED
    mark = message(type_field)  # only the few pieces with these bytes are parsed
    return [i for i, piece in enumerate(pieces) if mark in piece and type_field in read_fields(piece)]


def _without_prefix(library: Any, source: str) -> Any:
    """Return the model without leading space; a later field overrides an earlier one."""
    no_prefix = message((_NORMALIZER, message((_ADD_DUMMY_PREFIX, 0))))
    return parse_sentencepiece(library.serialized_model_proto() + no_prefix, source)


def open_sentencepiece(path: Path) -> Any:
    """Load the model at a path with the ``sentencepiece`` library."""
    with reading(path, TokenizerError):
        return parse_sentencepiece(path.read_bytes(), str(path))


def parse_sentencepiece(model: bytes, source: str) -> Any:
    """Load a serialized model with the ``sentencepiece`` library."""
    library = import_library("sentencepiece", source).SentencePieceProcessor()
    with library_errors(f"{source}: not a SentencePiece model"):
        library.LoadFromSerializedProto(model)
    return library


_SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>")
_UNKNOWN: Final = "<unk>"
_MOST_UNUSED: Final = 1 << 20  # limit of unused ids
_CODE: Final = re.compile(r">>.*?<<")
_LANGUAGE: Final = re.compile("__.+__", re.DOTALL)

# Languages of M2M-100 in the order of their ids, which follow those of vocab.json.
_LANGUAGES: Final[Mapping[str, str]] = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne "
    "nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo "
    "xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}


class NumberedPieces(ByteTokenizer):
    """A SentencePiece `model` whose pieces get their ids from a vocabulary, `numbers`.

    `codes`: Whether text may start with a token such as ">>de<<". `source_side`: Tokenizer of sources.
    """

    def __init__(
        self, model: Path, numbers: Mapping[str, int], source: str, *, codes: bool = False,
        before: tuple[int, ...] = (), bos_id: int | None = None, eos_ids: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self._library = open_sentencepiece(model)
        self._numbers, self._codes = dict(numbers), codes
        self.source_side = self
        n_ids = max(numbers.values(), default=-1) + 1
        if _UNKNOWN not in numbers or n_ids > len(numbers) + _MOST_UNUSED:
            expected = f"ids of pieces, among them {_UNKNOWN!r}, without large gaps"
            raise TokenizerError(f"{source}: has {len(numbers)} pieces below {n_ids}; expected {expected}")
        vocabulary: list[bytes | None] = [None] * n_ids
        for piece, token_id in numbers.items():
            vocabulary[token_id] = piece.replace(META, " ").encode("utf-8", "replace")
        if eos_ids is None:
            eos_ids = (numbers["</s>"],) if "</s>" in numbers else ()
        super().__init__(
            source, vocabulary=vocabulary,
            silent={i for name, i in numbers.items() if name in _SPECIAL or _LANGUAGE.fullmatch(name)},
            strip=Strip.ONE_SPACE, bos_id=bos_id, eos_ids=eos_ids, adds_bos=False,
        )  # fmt: skip
        self.before = before

    def _encode(self, text: str) -> list[int]:
        found: list[str] = []
        if self._codes and (code := _CODE.match(text)):
            found, text = [code[0]], text[code.end() :]
        with library_errors(f"{self.source}: `sentencepiece` cannot encode this text"):
            found += self._library.encode(text, out_type=str)
        unknown = self._numbers[_UNKNOWN]
        return [self._numbers.get(piece, unknown) for piece in found]


def open_marian(folder: Path, **ends: Any) -> NumberedPieces:
    """Load the target side of source.spm, target.spm, vocab.json and an optional target_vocab.json."""
    theirs, ours = folder / "vocab.json", folder / "target_vocab.json"
    files = [theirs, ours if ours.is_file() else theirs]
    models = folder / "source.spm", folder / "target.spm"
    return _two_sides(models, [_numbers(file) for file in files], list(map(str, files)), **ends)


def marian_of(given: Any, source: str, **ends: Any) -> NumberedPieces:
    """Wrap a MarianTokenizer of transformers."""
    models = tuple(Path(file) for file in given.spm_files)
    target = given.target_encoder if given.separate_vocabs else given.encoder
    return _two_sides(models, (given.encoder, target), (source, source), **ends)


def _two_sides(
    models: Sequence[Path], numbers: Sequence[Mapping[str, int]], names: Sequence[str], **ends: Any
) -> NumberedPieces:
    """Return the target side, from models, vocabularies and names of source and target; `ends` its ids."""
    shared = numbers[0] == numbers[1]
    source = NumberedPieces(models[0], numbers[0], names[0], codes=shared, **(ends if shared else {}))
    target = NumberedPieces(models[1], numbers[1], names[1], codes=shared, **ends)
    target.source_side = source
    return target


def open_m2m(folder: Path, settings: Mapping[str, Any], **ends: Any) -> NumberedPieces:
    """Load sentencepiece.bpe.model and vocab.json, with languages after its ids."""
    file, config = folder / "vocab.json", folder / "tokenizer_config.json"
    numbers = _numbers(file)
    code_set = settings.get("language_codes") or "m2m100"
    if not isinstance(code_set, str) or code_set not in _LANGUAGES:
        raise TokenizerError.of(config, "language_codes", code_set, f"one of {', '.join(_LANGUAGES)}")
    languages = {f"__{code}__": len(numbers) + i for i, code in enumerate(_LANGUAGES[code_set].split())}
    source = settings.get("src_lang") or "en"
    if f"__{source}__" not in languages:
        raise TokenizerError.of(config, "src_lang", source, f"one of {_LANGUAGES[code_set]}")
    model, before = folder / "sentencepiece.bpe.model", (languages[f"__{source}__"],)
    return NumberedPieces(model, numbers | languages, str(file), before=before, **ends)


def m2m_of(given: Any, source: str, **ends: Any) -> NumberedPieces:
    """Wrap an M2M100Tokenizer of transformers."""
    before = (given.get_lang_id(given.src_lang),)
    numbers = given.encoder | given.lang_token_to_id
    return NumberedPieces(Path(given.spm_file), numbers, source, before=before, **ends)


def _numbers(file: Path) -> dict[str, int]:
    if not file.is_file():
        raise TokenizerError(f"{file}: no such file; expected the ids of pieces")
    return read_numbers(file)
