"""tokenizer.model files, through the ``sentencepiece`` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from specdec.errors import MissingTokenizerLibraryError, TokenizerError
from specdec.models.tokenizer.byte_stream import Strip
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.library import library_errors

__all__ = ["META", "SentencePieceTokenizer", "open_sentencepiece", "parse_sentencepiece"]

META: Final = "\u2581"  # "▁", the visible space


class SentencePieceTokenizer(ByteTokenizer):
    """A SentencePiece model, unigram, BPE or characters; `from_file` reads one.

    Parameters
    ----------
    library : sentencepiece.SentencePieceProcessor
    source : str
        Where it was read, for messages.
    bos_id, eos_ids
        The model's own, from its configuration; None: the file's.
    adds_bos : bool
        Whether the model was trained with BOS, which the file does not say. Models with a SentencePiece
        file are.
    """

    def __init__(
        self,
        library: Any,
        source: str,
        *,
        bos_id: int | None = None,
        eos_ids: tuple[int, ...] | None = None,
        adds_bos: bool = True,
    ) -> None:
        self._library = library
        with library_errors(f"{source}: not a SentencePiece model"):
            n_vocab = self._library.vocab_size()
            if n_vocab < 1:
                raise TokenizerError(f"{source}: has no tokens; expected a SentencePiece model")
            if bos_id is None and self._library.bos_id() >= 0:
                bos_id = self._library.bos_id()
            if eos_ids is None:
                eos_ids = (self._library.eos_id(),) if self._library.eos_id() >= 0 else ()
            unknown = self._library.unk_id()
            vocabulary = [self._token(i) for i in range(n_vocab)]
            silent = frozenset(i for i in range(n_vocab) if self._library.is_control(i))
            replaced = {unknown: self._library.decode([unknown]).encode("utf-8")} if unknown >= 0 else {}
            strip = _strip_of(self._library)
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

    @property
    def library(self) -> Any:
        """The tokenizer of the library."""
        return self._library

    @classmethod
    def from_file(cls, path: Path, **options: Any) -> SentencePieceTokenizer:
        """Read a file. Options are those of the class."""
        return cls(open_sentencepiece(path), str(path), **options)

    def _token(self, token_id: int) -> bytes:
        piece: str = self._library.id_to_piece(token_id)
        if self._library.is_byte(token_id):
            return bytes.fromhex(piece[3:5])  # "<0x0A>"
        return piece.replace(META, " ").encode("utf-8")

    def _encode(self, text: str) -> list[int]:
        with library_errors(f"{self.source}: `sentencepiece` cannot encode this text"):
            ids: list[int] = self._library.encode(text, out_type=int)
        return ids


def open_sentencepiece(path: Path) -> Any:
    """The model at a path, by the ``sentencepiece`` library.

    Raises
    ------
    TokenizerError
    """
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
