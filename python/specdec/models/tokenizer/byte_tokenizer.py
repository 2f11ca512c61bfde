"""The base of the tokenizers that specdec reads itself: a table of byte strings."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from specdec.errors import InputError, kind_of
from specdec.models.tokenizer.byte_stream import ByteStream, Strip

__all__ = ["ByteTokenizer"]


class ByteTokenizer(ABC):
    """A tokenizer whose tokens are byte strings.

    Parameters
    ----------
    source : str
        Where it was read, for messages.
    vocabulary : sequence of bytes or None
        By id; a special token has its name, an id without token None.
    silent : mapping-like of ids
        Ids that stand for no text: special tokens.
    replaced : dict
        Ids whose text is not their vocabulary entry, as the unknown token's.
    strip : Strip
        What decoding drops at the beginning of a text.
    bos_id, eos_ids
        As in :class:`Tokenizer`.
    adds_bos : bool
        Whether ``encode`` with ``add_bos`` puts ``bos_id`` in front: what the model was trained with.
    """

    reads_special_tokens = False
    """Whether `encode` takes the name of a special token in a text for this token."""

    before: tuple[int, ...] = ()
    """The ids before a source, where an encoder expects some."""

    after: tuple[int, ...] = ()
    """The ids behind a source."""

    def __init__(
        self,
        source: str,
        *,
        vocabulary: Sequence[bytes | None],
        silent: frozenset[int],
        replaced: dict[int, bytes] | None = None,
        strip: Strip,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        adds_bos: bool,
    ) -> None:
        self.source = source
        self.strip = strip
        self.adds_bos = adds_bos and bos_id is not None
        self._vocabulary = tuple(vocabulary)
        self._bos_id = bos_id
        self._eos_ids = tuple(eos_ids)
        texts = [b"" if token is None or i in silent else token for i, token in enumerate(self._vocabulary)]
        for token_id, text in (replaced or {}).items():
            texts[token_id] = text
        self._texts = tuple(texts)

    @property
    def n_vocab(self) -> int:
        """One more than the highest id."""
        return len(self._vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        return self._bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return self._eos_ids

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.source!r}, n_vocab={self.n_vocab}, "
            f"bos_id={self.bos_id}, eos_ids={self.eos_ids})"
        )

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text.

        Parameters
        ----------
        text : str
        add_bos : bool
            Put ``bos_id`` in front, if this model was trained so (``adds_bos``).

        Raises
        ------
        InputError
            ``text`` is no str, or has a lone surrogate, which UTF-8 cannot write.
        """
        if not isinstance(text, str):
            raise InputError(f"text is {kind_of(text)}; expected a str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"text has a lone surrogate, {text[error.start]!r}, at position {error.start}; "
                f"expected text that UTF-8 can write"
            ) from error
        prefix = [self._bos_id] if add_bos and self.adds_bos and self._bos_id is not None else []
        return prefix + self._encode(text)

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Ids of a valid text, without BOS."""

    def decode(self, ids: Sequence[int], *, continuing: bool = False) -> str:
        """The text of some ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids : sequence of int
        continuing : bool
            The ids continue a text, so a space at their beginning stays.

        Raises
        ------
        InputError
            A negative id. Ids from ``n_vocab`` up, which padded models have, stand for no text.
        """
        stream = ByteStream(self.text_bytes, Strip.NOTHING if continuing else self.strip)
        return stream.feed(ids) + stream.finish()

    def text_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; b"" for special tokens and for ids past the vocabulary."""
        if token_id < 0:
            raise InputError(f"token id is {token_id}; expected at least 0")
        return self._texts[token_id] if token_id < len(self._texts) else b""

    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the tokens that have a name and stand for no text."""
        return self._special_tokens

    @functools.cached_property
    def _special_tokens(self) -> Mapping[str, int]:
        return {
            token.decode("utf-8", "replace"): token_id
            for token_id, token in enumerate(self._vocabulary)
            if token and not self._texts[token_id]
        }

    def vocabulary(self) -> tuple[bytes | None, ...]:
        """Every token by id: its bytes, or its name where it is special; None where an id has no token."""
        return self._vocabulary

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary in hexadecimal: equal for equal vocabularies, whatever their files."""
        digest = hashlib.sha256()
        for token in self._vocabulary:
            digest.update(b"-" if token is None else b"%d:%b" % (len(token), token))
        return digest.hexdigest()
