"""A model's tokens for ``llguidance``: their bytes, and the tokenization of forced bytes."""

from __future__ import annotations

import functools
import json
import re
import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, cast

from specdec.errors import ConstraintError, InputError, pass_signals_on, type_of
from specdec.models.tokenizer import ByteTokenizer, Tokenizer
from specdec.models.tokenizer.byte_tokenizer import encode_exactly

_PIECE: Final = 4096  # bytes of forced text to encode at a time
_SHORT: Final = 128  # longest forced text, in bytes, whose tokens are cached
_MOST_TEXTS: Final = 2048  # cached texts
_NO_TEXT: Final = 0xFF  # first byte of the library's names for tokens without text

_lock: Final = threading.Lock()
_tokenizers: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


class ConstraintVocabulary:
    """Tokenizer interface of the library: the bytes of each token, and the tokenization of forced bytes.

    Special tokens, and ids without bytes, are names after the byte 0xFF, which no text has, so the library
    never takes them for text.
    """

    def __init__(self, tokenizer: ByteTokenizer, n_tokens: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = weakref.ref(tokenizer)  # weak: the cache must not keep it alive
        entries = tokenizer.vocabulary()
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = []
        self._ids: dict[bytes, int] = {}
        for token in range(n_tokens):
            text = tokenizer.text_bytes(token)
            if not text or token in end_ids:
                name = entries[token] if token < len(entries) else None
                text = b"\xff" + (name or b"<[%d]>" % token)
                self.special_token_ids.append(token)
            else:
                self._ids.setdefault(text, token)
            self.tokens.append(text)
        self._longest = max(map(len, self._ids), default=1)
        self._remembered = functools.lru_cache(_MOST_TEXTS)(self._encode)
        self.bos_token_id = None
        self.eos_token_id = end_ids[0]

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize text: as the tokenizer does if its bytes are exactly the text's, else longest-first."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if len(data) <= _SHORT:  # constraints force the same texts repeatedly
            return list(self._remembered(data))
        ids: list[int] = []
        for at in range(0, len(data), _PIECE):
            ids += self._encode(data[at : at + _PIECE])
        return ids

    def _encode(self, data: bytes) -> list[int]:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return self._longest_first(data)
        tokenizer = self._tokenizer()
        try:
            ids = None if tokenizer is None else encode_exactly(tokenizer, text)
        except Exception as error:  # the tokenizer lacks some characters
            pass_signals_on(error)
            ids = None
        if ids is None or b"".join(self.tokens[token] for token in ids) != data:  # not exactly these bytes
            return self._longest_first(data)
        return ids

    def _longest_first(self, data: bytes) -> list[int]:
        """Tokenize longest-first; bytes without a token cannot occur and are dropped."""
        ids, at = [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + length])
                if token is not None:
                    ids.append(token)
                    break
            else:
                length = 1
            at += length
        return ids


def checked(tokenizer: Tokenizer | None, name: str) -> ByteTokenizer:
    """Return the tokenizer if its tokens are byte strings, else raise an `InputError`."""
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer
    expected = "a tokenizer whose tokens are byte strings, such as those of specdec.tokenizer"
    what = "no tokenizer" if tokenizer is None else f"the tokenizer {type_of(tokenizer)}"
    raise InputError.of(name, tokenizer, expected, f"given, but the target has {what}")


class LibraryTokenizer:
    """The library's tokenizer object, and tokens by first byte; `end_ids` are end-of-text ids.

    Without end-of-text ids, the library gets one beyond the model's vocabulary.
    """

    def __init__(
        self, library: Any, tokenizer: ByteTokenizer, n_vocab: int, ends: tuple[int, ...], for_json: bool
    ) -> None:
        self.end_ids = ends or (n_vocab,)
        self.n_bytes_of_mask = (n_vocab + 31) // 32 * 4
        self._without = None if ends else n_vocab
        vocabulary = ConstraintVocabulary(tokenizer, n_vocab if ends else n_vocab + 1, self.end_ids)
        self.tokens = vocabulary.tokens
        slices = library.LLTokenizer.json_slices() if for_json else None
        wrapped, eos = library.TokenizerWrapper(vocabulary), list(self.end_ids)
        self.tokenizer = library.LLTokenizer(wrapped, n_vocab=len(self.tokens), eos_token=eos, slices=slices)

    @classmethod
    def of(
        cls, library: Any, tokenizer: ByteTokenizer, n_vocab: int, end_ids: Sequence[int], name: str
    ) -> LibraryTokenizer:
        """Return the library's tokenizer, created once per tokenizer."""
        ends = tuple(sorted(token for token in set(end_ids) if token < n_vocab))
        with _lock:
            known = _tokenizers.setdefault(tokenizer, {})
            made = known.get((n_vocab, ends))
        if made is None:
            made = cls(library, tokenizer, n_vocab, ends, name == "schema")
            with _lock:
                made = known.setdefault((n_vocab, ends), made)
        return cast("LibraryTokenizer", made)

    def words_of(self, mask: bytes) -> bytes:
        """Return a mask of the library without the artificial end-of-text token."""
        if self._without is None:
            return mask[: self.n_bytes_of_mask]
        words = bytearray(mask)
        words[self._without >> 3] &= ~(1 << (self._without & 7)) & 0xFF
        return bytes(words[: self.n_bytes_of_mask])

    @cached_property
    def _starting(self) -> list[int]:
        """Bit sets of the tokens with each first byte; only grammars need them."""
        bits = [bytearray((len(self.tokens) + 7) // 8) for _ in range(256)]
        for token, text in enumerate(self.tokens):
            bits[text[0]][token >> 3] |= 1 << (token & 7)
        return [int.from_bytes(words, "little") for words in bits]

    def shortest_forced(self, mask: bytes) -> int | None:
        """Return the shortest token of a mask if all its tokens begin with the same byte, else None.

        Longer tokens may continue with bytes that are not forced.
        """
        left = int.from_bytes(mask, "little")
        if left == 0:
            return None
        lowest = (left & -left).bit_length() - 1
        first = self.tokens[lowest][0]
        # Tokens that begin with _NO_TEXT are names: several of them force nothing.
        if first == _NO_TEXT or left & ~self._starting[first]:
            return None
        best = lowest
        while left:
            token = (left & -left).bit_length() - 1
            left &= left - 1
            if len(self.tokens[token]) < len(self.tokens[best]):
                best = token
        return best


# ------------------------------------------------------------------------------- endless forced bytes

_LEAST_BOUND: Final = 1 << 12
"""Bytes in a row that any grammar may force."""
_OPTIONS: Final = re.compile(r"^[ \t]*%llguidance\s*", re.MULTILINE)
"""The statement with the library's options, a JSON object, in a Lark grammar."""


def unforced(grammar: str) -> str | None:
    """Return a Lark grammar with forced bytes disabled, or None if it disables them already."""
    options: dict[str, Any] = {}
    rest, at = "", 0
    for found in _OPTIONS.finditer(grammar):
        try:
            given, end = json.JSONDecoder().raw_decode(grammar, found.end())
            options |= given
        except (ValueError, TypeError, RecursionError):  # the library reports the error
            return grammar
        rest, at = rest + grammar[at : found.start()], end
    if options.get("no_forcing") is True:
        return None
    return f"%llguidance {json.dumps(options | {'no_forcing': True})}\n{rest}{grammar[at:]}"


class Watcher:
    """A grammar without forced bytes, used to detect positions where forced bytes would never end.

    Only grammars can have such positions: their words are matched greedily, and the following text may begin
    like the word.
    """

    def __init__(self, matcher: Any, made: LibraryTokenizer, grammar: str) -> None:
        self.matcher, self._made = matcher, made
        # More bytes in a row than the grammar's words have, unless they repeat.
        self._bound = max(_LEAST_BOUND, 2 * len(grammar.encode("utf-8", "surrogatepass")))

    def check(self, matcher: Any) -> None:
        """Raise a `ConstraintError` if the matcher forces more bytes than the bound."""
        token = self._made.shortest_forced(matcher.compute_bitmask())
        if token is None:
            return
        ahead, n_bytes = matcher.deep_copy(), 0
        while token is not None and n_bytes <= self._bound and ahead.consume_token(token):
            n_bytes += len(self._made.tokens[token])
            token = self._made.shortest_forced(ahead.compute_bitmask())
        if n_bytes > self._bound:
            expected = "words that cannot absorb the text after them"
            found = f"more than {self._bound} bytes in a row, without end"
            raise ConstraintError.of("grammar", None, expected, found, "forces")
