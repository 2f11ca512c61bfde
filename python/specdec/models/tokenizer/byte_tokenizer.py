"""Tokenizers as tables of byte strings, their decoding as ids come, and ByT5's, whose tokens are bytes."""

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
    """Anything with these attributes can be given as ``tokenizer=``.

    ``decode`` of a longer sequence must begin with ``decode`` of its beginning, but for a trailing U+FFFD
    where a character is still incomplete; streaming rests on that.
    """

    @property
    def n_vocab(self) -> int:
        """Ids run from 0 to n_vocab - 1; a model may have more, which then stand for no text."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        ...

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text; ``add_bos`` puts BOS in front where the model was trained with it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens left out."""
        ...


class Strip(enum.Enum):
    """What a tokenizer drops at the beginning of a decoded text, having added it when it encoded."""

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
        By id; a special token has its name, an id without token None.
    silent : set of int
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
        """One more than the highest id."""
        return len(self._vocabulary)

    def __repr__(self) -> str:
        ids = f"n_vocab={self.n_vocab}, bos_id={self.bos_id}, eos_ids={self.eos_ids}"
        return f"{type(self).__name__}({self.source!r}, {ids})"

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text; `add_bos` puts ``bos_id`` in front if this model was trained so (`adds_bos`).

        Raises
        ------
        InputError
            `text` is no str, or has a lone surrogate, which UTF-8 cannot write.
        """
        if not isinstance(text, str):
            raise InputError.of("text", text, "a str", type_of(text))
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"a text with a lone surrogate, {text[error.start]!r}, at position {error.start}"
            raise InputError.of("text", text, "text that UTF-8 can write", found) from error
        prefix = [self.bos_id] if add_bos and self.adds_bos and self.bos_id is not None else []
        return prefix + self._encode(text)

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Ids of a valid text, without BOS."""

    def decode(self, ids: Sequence[int], *, continuing: bool = False) -> str:
        """The text of some ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD.

        `continuing`: The ids continue a text, so a space at their beginning stays.

        Raises
        ------
        InputError
            A negative id. Ids from ``n_vocab`` up, which padded models have, stand for no text.
        """
        stream = StreamDecoder(self, continuing=continuing)
        return stream.feed(ids) + stream.finish()

    def text_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; b"" for special tokens and for ids past the vocabulary."""
        if token_id < 0:
            raise InputError.of("token id", token_id, "at least 0")
        return self._texts[token_id] if token_id < len(self._texts) else b""

    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the tokens that have a name and stand for no text."""
        return self._special_tokens

    @functools.cached_property
    def _special_tokens(self) -> Mapping[str, int]:
        named = ((i, token) for i, token in enumerate(self._vocabulary) if token and not self._texts[i])
        return {token.decode("utf-8", "replace"): token_id for token_id, token in named}

    def vocabulary(self) -> tuple[bytes | None, ...]:
        """Every token by id: its bytes, or its name where it is special; None where an id has no token."""
        return self._vocabulary

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary in hexadecimal: equal for equal vocabularies, whatever their files."""
        digest = hashlib.sha256()
        for token in self._vocabulary:
            digest.update(b"-" if token is None else b"%d:%b" % (len(token), token))
        return digest.hexdigest()


class StreamDecoder:
    """Incremental ``tokenizer.decode``.

    However the ids are cut into calls, the pieces of :meth:`feed` and the last one of :meth:`finish`
    concatenate to ``tokenizer.decode`` of all of them.

    Parameters
    ----------
    tokenizer : Tokenizer
    continuing : bool
        The ids continue a text: a space at their beginning stays. Only for tokenizers that specdec reads
        itself; another one's ``decode`` is called as it is.

    Examples
    --------
    >>> stream = StreamDecoder(tokenizer)
    >>> text = stream.feed([523]) + stream.feed([17, 9]) + stream.finish()
    """

    def __init__(self, tokenizer: Tokenizer, *, continuing: bool = False) -> None:
        self._tokenizer, self._ids, self._given = tokenizer, list[int](), ""
        own = tokenizer.strip if isinstance(tokenizer, ByteTokenizer) else Strip.NOTHING
        self._strip = Strip.NOTHING if continuing else own
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; often empty, never half a character."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._utf8.decode(b"".join(map(self._stripped, map(self._tokenizer.text_bytes, ids))))
        self._ids.extend(ids)
        return self._new(self._tokenizer.decode(self._ids).rstrip("\ufffd"))

    def finish(self) -> str:
        """The rest: U+FFFD for a character that never became complete, else nothing."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._utf8.decode(b"", True)
        return self._new(self._tokenizer.decode(self._ids))

    def _stripped(self, piece: bytes) -> bytes:
        """The bytes of a token, less what the beginning of a text loses."""
        if self._strip is Strip.NOTHING or not piece:
            return piece
        strip, self._strip = self._strip, Strip.NOTHING
        if strip is Strip.ONE_SPACE:
            return piece.removeprefix(b" ")
        if strip is Strip.SPACES_OF_FIRST_TOKEN:
            return piece.replace(b" ", b"")
        rest = piece.lstrip(b" ")
        if not rest:
            self._strip = strip  # nothing but spaces so far
        return rest

    def _new(self, text: str) -> str:
        """What is new in a text, of which `decode` gives all: what is stable of it."""
        if self._given.startswith(text):
            return ""  # what was given out already ends inside a run of U+FFFD, or nothing is new
        if not text.startswith(self._given):
            what = f"{type(self._tokenizer).__name__}.decode changed the beginning of a text by further ids"
            raise TokenizerError(f"{what}; expected it to extend {self._given[-20:]!r}")
        piece, self._given = text[len(self._given) :], text
        return piece


_APART: Final = "\n"  # what words do not go on behind


def encode_exactly(tokenizer: ByteTokenizer, text: str) -> list[int] | None:
    """The ids of a text that continues another one; None where no tokens have its bytes."""

    def candidates() -> Iterator[list[int]]:
        yield tokenizer.encode(text, add_bos=False)
        if text.startswith(" "):
            yield tokenizer.encode(text[1:], add_bos=False)
        after_break = tokenizer.encode(_APART + text, add_bos=False)
        yield from (after_break[at:] for at in range(min(len(after_break), 4)))

    wanted = text.encode("utf-8")
    return next((ids for ids in candidates() if b"".join(map(tokenizer.text_bytes, ids)) == wanted), None)


def encode_continuing(tokenizer: ByteTokenizer, text: str) -> list[int]:
    """As `encode_exactly` where that finds ids; else what the tokenizer makes of the text."""
    ids = encode_exactly(tokenizer, text)
    return tokenizer.encode(text, add_bos=False) if ids is None else ids


_SPECIAL: Final = ("<pad>", "</s>", "<unk>")
_FIRST: Final = len(_SPECIAL)
_MOST: Final = 4096  # added tokens


class Utf8Tokenizer(ByteTokenizer):
    """Ids 0 to 2 are special, id 3 + b is the byte b; then come the added tokens of the settings."""

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
