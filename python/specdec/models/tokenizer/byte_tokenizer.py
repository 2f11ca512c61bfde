"""Tokenizers as tables of byte strings, incremental decoding, and ByT5's byte-level tokenizer."""

from __future__ import annotations

import codecs
import enum
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, Protocol, runtime_checkable

from specdec.errors import InputError, TokenizerError, type_of


@runtime_checkable
class Tokenizer(Protocol):
    """Interface of objects that ``tokenizer=`` accepts.

    Streaming requires that ``decode`` of a prefix is a prefix of ``decode`` of the whole, except for a
    trailing U+FFFD while a character is incomplete.
    """

    @property
    def n_vocab(self) -> int:
        """Number of token ids; a model may have more, which decode to nothing."""
        ...

    @property
    def bos_id(self) -> int | None:
        """BOS id, if any."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """EOS ids."""
        ...

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Encode text; ``add_bos`` prepends BOS if the model was trained with it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, skipping special tokens."""
        ...


class Strip(enum.Enum):
    """Leading spaces that decoding removes because encoding added them."""

    NOTHING = enum.auto()
    ONE_SPACE = enum.auto()
    ALL_SPACES = enum.auto()
    SPACES_OF_FIRST_TOKEN = enum.auto()


class ByteTokenizer(ABC):
    """A tokenizer whose tokens are byte strings.

    Parameters
    ----------
    source : str
        Where it was read, for messages.
    vocabulary : sequence of bytes or None
        Token by id; the name of a special token, None for an unused id.
    silent : set of int
        Special tokens, which decode to nothing.
    replaced : dict
        Ids that decode to other bytes than their vocabulary entry, such as the unknown token.
    strip : Strip
        Leading spaces that decoding removes.
    bos_id, eos_ids
        As in :class:`Tokenizer`.
    adds_bos : bool
        Whether the model was trained with BOS, so that ``encode`` prepends it.
    """

    reads_special_tokens = False
    """Whether `encode` parses names of special tokens in text."""

    before: tuple[int, ...] = ()
    """Ids that an encoder expects before a source."""

    after: tuple[int, ...] = ()
    """Ids that an encoder expects after a source."""

    def __init__(
        self, source: str, *, vocabulary: Sequence[bytes | None], silent: Set[int],
        replaced: Mapping[int, bytes] | None = None, strip: Strip, bos_id: int | None,
        eos_ids: tuple[int, ...], adds_bos: bool,
    ) -> None:  # fmt: skip
        self.source, self.strip = source, strip
        self.bos_id: int | None = bos_id
        self.eos_ids = tuple(eos_ids)
        self.adds_bos = adds_bos and bos_id is not None
        self._vocabulary = tuple(vocabulary)
        texts = [b"" if token is None or i in silent else token for i, token in enumerate(self._vocabulary)]
        for token_id, text in (replaced or {}).items():
            texts[token_id] = text
        self._texts = tuple(texts)

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return len(self._vocabulary)

    def __repr__(self) -> str:
        ids = f"n_vocab={self.n_vocab}, bos_id={self.bos_id}, eos_ids={self.eos_ids}"
        return f"{type(self).__name__}({self.source!r}, {ids})"

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Encode text; `add_bos` prepends ``bos_id`` if the model was trained with it (`adds_bos`).

        Raises
        ------
        InputError
            `text` is not a str, or has a lone surrogate, which UTF-8 cannot encode.
        """
        if not isinstance(text, str):
            raise InputError.of("text", text, "a str", type_of(text))
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"a text with a lone surrogate, {text[error.start]!r}, at position {error.start}"
            raise InputError.of("text", text, "text that UTF-8 can encode", found) from error
        prefix = [self.bos_id] if add_bos and self.adds_bos and self.bos_id is not None else []
        return prefix + self._encode(text)

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Encode valid text without BOS."""

    def decode(self, ids: Sequence[int], *, continuing: bool = False) -> str:
        """Decode ids, skipping special tokens; invalid UTF-8 becomes U+FFFD.

        `continuing`: Keep a leading space, because the ids continue a text.

        Raises
        ------
        InputError
            A negative id. Ids from ``n_vocab`` up, which padded models have, decode to nothing.
        """
        stream = StreamDecoder(self, continuing=continuing)
        return stream.feed(ids) + stream.finish()

    def text_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes; b"" for special tokens and ids past the vocabulary."""
        if token_id < 0:
            raise InputError.of("token id", token_id, "at least 0")
        return self._texts[token_id] if token_id < len(self._texts) else b""

    def special_tokens(self) -> Mapping[str, int]:
        """Return the ids of special tokens by name."""
        return self._special_tokens

    @functools.cached_property
    def _special_tokens(self) -> Mapping[str, int]:
        named = ((i, token) for i, token in enumerate(self._vocabulary) if token and not self._texts[i])
        return {token.decode("utf-8", "replace"): token_id for token_id, token in named}

    def vocabulary(self) -> tuple[bytes | None, ...]:
        """Return tokens by id: bytes, the name of a special token, or None for an unused id."""
        return self._vocabulary

    @functools.cached_property
    def named(self) -> tuple[bytes | None, ...]:
        """Vocabulary up to the last used id."""
        tokens = self._vocabulary
        return tokens[: next((n for n in range(len(tokens), 0, -1) if tokens[n - 1] is not None), 0)]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the vocabulary in hexadecimal, independent of its file format."""
        digest = hashlib.sha256()
        for token in self._vocabulary:
            digest.update(b"-" if token is None else b"%d:%b" % (len(token), token))
        return digest.hexdigest()


class StreamDecoder:
    """Incremental ``tokenizer.decode``.

    The results of :meth:`feed`, for any split of the ids, and of :meth:`finish` concatenate to
    ``tokenizer.decode`` of all ids.

    Parameters
    ----------
    tokenizer : Tokenizer
    continuing : bool
        Keep a leading space, because the ids continue a text. Has no effect on the caller's own tokenizer
        objects.
    names : bool
        Write special tokens as their names; without effect on the caller's own tokenizer objects.

    Examples
    --------
    >>> stream = StreamDecoder(tokenizer)
    >>> text = stream.feed([523]) + stream.feed([17, 9]) + stream.finish()
    """

    def __init__(self, tokenizer: Tokenizer, *, continuing: bool = False, names: bool = False) -> None:
        self._tokenizer, self._ids, self._given, self._names = tokenizer, list[int](), "", names
        own = tokenizer.strip if isinstance(tokenizer, ByteTokenizer) else Strip.NOTHING
        self._strip = Strip.NOTHING if continuing else own
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that these ids complete; often empty, never half a character."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._utf8.decode(b"".join(self._text(self._tokenizer, token) for token in ids))
        self._ids.extend(ids)
        return self._new(self._tokenizer.decode(self._ids).rstrip("\ufffd"))

    def finish(self) -> str:
        """Return the rest: U+FFFD for an incomplete character, else nothing."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._utf8.decode(b"", True)
        return self._new(self._tokenizer.decode(self._ids))

    def _text(self, tokenizer: ByteTokenizer, token: int) -> bytes:
        """Return a token's bytes; the first are stripped, names of special tokens are not."""
        text = tokenizer.text_bytes(token)
        if text or not self._names:
            return self._stripped(text)
        return tokenizer.vocabulary()[token] or b"" if token < tokenizer.n_vocab else b""

    def _stripped(self, piece: bytes) -> bytes:
        """Return a token's bytes without leading spaces to strip."""
        if self._strip is Strip.NOTHING or not piece:
            return piece
        strip, self._strip = self._strip, Strip.NOTHING
        if strip is Strip.ONE_SPACE:
            return piece.removeprefix(b" ")
        if strip is Strip.SPACES_OF_FIRST_TOKEN:
            return piece.replace(b" ", b"")
        rest = piece.lstrip(b" ")
        if not rest:
            self._strip = strip  # only spaces so far
        return rest

    def _new(self, text: str) -> str:
        """Return the new part of the stable text so far."""
        if self._given.startswith(text):
            return ""  # nothing new, or the returned text ends inside a run of U+FFFD
        if not text.startswith(self._given):
            what = f"{type(self._tokenizer).__name__}.decode changed earlier text when given more ids"
            raise TokenizerError(f"{what}; expected it to extend {self._given[-20:]!r}")
        piece, self._given = text[len(self._given) :], text
        return piece


_APART: Final = "\n"  # a word boundary


def encode_exactly(tokenizer: ByteTokenizer, text: str) -> list[int] | None:
    """Encode text that continues another text; None if no candidate decodes to its bytes."""

    def candidates() -> Iterator[list[int]]:
        yield tokenizer.encode(text, add_bos=False)
        if text.startswith(" "):
            yield tokenizer.encode(text[1:], add_bos=False)
        after_break = tokenizer.encode(_APART + text, add_bos=False)
        yield from (after_break[at:] for at in range(min(len(after_break), 4)))

    wanted = text.encode("utf-8")
    return next((ids for ids in candidates() if b"".join(map(tokenizer.text_bytes, ids)) == wanted), None)


def encode_continuing(tokenizer: ByteTokenizer, text: str) -> list[int]:
    """Encode as `encode_exactly` if possible, else as the tokenizer does."""
    ids = encode_exactly(tokenizer, text)
    return tokenizer.encode(text, add_bos=False) if ids is None else ids


_SPECIAL: Final = ("<pad>", "</s>", "<unk>")
_FIRST: Final = len(_SPECIAL)
_MOST: Final = 4096  # added tokens


class Utf8Tokenizer(ByteTokenizer):
    """ByT5's tokenizer: ids 0 to 2 are special, 3 + b is byte b, then the settings' added tokens."""

    def __init__(
        self, source: str, settings: Mapping[str, Any], *, bos_id: int | None = None,
        eos_ids: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        vocabulary = [*(name.encode() for name in _SPECIAL), *(bytes([byte]) for byte in range(256))]
        first_added = len(vocabulary)
        added = settings.get("added_tokens_decoder")
        names = added if isinstance(added, dict) else {}
        while len(vocabulary) < _MOST and (token := names.get(str(len(vocabulary)))) is not None:
            content = token.get("content") if isinstance(token, dict) else token
            vocabulary.append(str(content).encode("utf-8", "replace"))
        super().__init__(
            source, vocabulary=vocabulary, silent={*range(_FIRST), *range(first_added, len(vocabulary))},
            strip=Strip.NOTHING, bos_id=bos_id, eos_ids=(1,) if eos_ids is None else eos_ids, adds_bos=False,
        )  # fmt: skip

    def _encode(self, text: str) -> list[int]:
        return [_FIRST + byte for byte in text.encode("utf-8")]
