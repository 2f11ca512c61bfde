"""tokenizer.model files, through the ``sentencepiece`` library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specdec.errors import MissingTokenizerLibraryError, TokenizerError
from specdec.models.tokenizer.added_tokens import (
    AddedTokenFinder,
    SideTokens,
    import_tokenizers,
    pieces_tokenizer,
)
from specdec.models.tokenizer.byte_stream import Strip
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.library import library_errors
from specdec.models.tokenizer.protocol_buffers import bytes_field, integer_field, read_fields

__all__ = ["META", "SentencePieceTokenizer", "open_sentencepiece", "parse_sentencepiece"]

META: Final = "\u2581"  # "▁", the visible space

# Fields of sentencepiece_model.proto.
_PIECES, _TYPE, _NORMALIZER, _ADD_DUMMY_PREFIX = 1, 3, 3, 3
_USER_DEFINED: Final = 4


class SentencePieceTokenizer(ByteTokenizer):
    """A SentencePiece model, unigram, BPE or characters, and the tokens added to it; `from_file` reads one.

    A text is cut at its added tokens first: control and user-defined pieces, and those of side files.

    Parameters
    ----------
    source : str
        Where it was read, for messages.
    finder : AddedTokenFinder or None
        Finds the added tokens of a text.
    added : mapping of int to bytes
        The added tokens after the pieces, by id.
    silent : frozenset of int
        The special tokens.
    prefixes_all : bool
        Whether a text after an added token gets the space that the beginning of a text gets; an attribute
        too.
    bos_id, eos_ids
        As in `ByteTokenizer`.
    adds_bos : bool
        Whether the model was trained with BOS, which the file does not say. Models with a SentencePiece
        file are.
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

        Parameters
        ----------
        bos_id, eos_ids
            The model's own, from its configuration; None: the side files', or else the file's.
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
