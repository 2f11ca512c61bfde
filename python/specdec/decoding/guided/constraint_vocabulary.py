"""A model's tokens as ``llguidance`` asks for them: their bytes, and bytes that a grammar forces."""

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

_PIECE: Final = 4096  # bytes of a forced text that are encoded at once
_SHORT: Final = 128  # bytes of a forced text that is remembered in tokens
_MOST_TEXTS: Final = 2048  # that are remembered so
_NO_TEXT: Final = 0xFF  # the first byte of the library's name of a token that stands for no text

_lock: Final = threading.Lock()
_tokenizers: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


class ConstraintVocabulary:
    """A tokenizer as the library asks for it: the bytes of each token, and how forced bytes are written.

    Special tokens are names after the byte 0xFF, which no text has; the library never takes them for text. A
    token id without bytes is such a name too.
    """

    def __init__(self, tokenizer: ByteTokenizer, n_tokens: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = weakref.ref(tokenizer)  # which would else be kept by what is known of it
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
        """Tokens of a text, whose bytes joined are the text's: as the tokenizer writes it, if that is so."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if len(data) <= _SHORT:  # constraints force the same texts again and again
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
        except Exception as error:  # a tokenizer without some of the characters
            pass_signals_on(error)
            ids = None
        if ids is None or b"".join(self.tokens[token] for token in ids) != data:  # it has special tokens
            return self._longest_first(data)
        return ids

    def _longest_first(self, data: bytes) -> list[int]:
        """The longest token at each place; a byte without token is left out, as no text can have it."""
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
    """A tokenizer whose tokens are byte strings; any other raises an `InputError`."""
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer
    expected = "one whose tokens are byte strings, as those of specdec.tokenizer"
    what = "no tokenizer" if tokenizer is None else f"the tokenizer {type_of(tokenizer)}"
    raise InputError.of(name, tokenizer, expected, f"given, but the target has {what}")


class LibraryTokenizer:
    """A tokenizer as the library has it, and its tokens by their first bytes; `end_ids` end a text.

    Without a token that ends a text the library gets one after the vocabulary, which no model has.
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
        """The library's tokenizer, made once for each tokenizer."""
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
        """A mask of the library without the end of text that no model has."""
        if self._without is None:
            return mask[: self.n_bytes_of_mask]
        words = bytearray(mask)
        words[self._without >> 3] &= ~(1 << (self._without & 7)) & 0xFF
        return bytes(words[: self.n_bytes_of_mask])

    @cached_property
    def _starting(self) -> list[int]:
        """The tokens with each first byte, as the bits of a number; only grammars ask."""
        bits = [bytearray((len(self.tokens) + 7) // 8) for _ in range(256)]
        for token, text in enumerate(self.tokens):
            bits[text[0]][token >> 3] |= 1 << (token & 7)
        return [int.from_bytes(words, "little") for words in bits]

    def shortest_forced(self, mask: bytes) -> int | None:
        """The shortest token of a mask all of whose tokens begin with the same byte; None: they do not.

        Longer ones may go on with what need not come.
        """
        left = int.from_bytes(mask, "little")
        if left == 0:
            return None
        lowest = (left & -left).bit_length() - 1
        first = self.tokens[lowest][0]
        # What begins with _NO_TEXT is a token's name: of several of them none must come.
        if first == _NO_TEXT or left & ~self._starting[first]:
            return None
        best = lowest
        while left:
            token = (left & -left).bit_length() - 1
            left &= left - 1
            if len(self.tokens[token]) < len(self.tokens[best]):
                best = token
        return best


# ------------------------------------------------------------------------------------------ endless bytes

_LEAST_BOUND: Final = 1 << 12
"""Bytes that any grammar may force in a row."""
_OPTIONS: Final = re.compile(r"^[ \t]*%llguidance\s*", re.MULTILINE)
"""Where a grammar in Lark's syntax says the library's options, as a JSON object."""


def unforced(grammar: str) -> str | None:
    """A grammar, in Lark's syntax, that forces no bytes; None: this one forces none."""
    options: dict[str, Any] = {}
    rest, at = "", 0
    for found in _OPTIONS.finditer(grammar):
        try:
            given, end = json.JSONDecoder().raw_decode(grammar, found.end())
            options |= given
        except (ValueError, TypeError, RecursionError):  # the library says what is wrong with it
            return grammar
        rest, at = rest + grammar[at : found.start()], end
    if options.get("no_forcing") is True:
        return None
    return f"%llguidance {json.dumps(options | {'no_forcing': True})}\n{rest}{grammar[at:]}"


class Watcher:
    """A grammar whose forced bytes are not written, so that a place where these never end can be found.

    Only grammars have such places: a word of theirs is read as far as it goes, and what follows may begin
    like the word.
    """

    def __init__(self, matcher: Any, made: LibraryTokenizer, grammar: str) -> None:
        self.matcher, self._made = matcher, made
        # Bytes in a row: more than the grammar's words have, if they are not repeated.
        self._bound = max(_LEAST_BOUND, 2 * len(grammar.encode("utf-8", "surrogatepass")))

    def check(self, matcher: Any) -> None:
        """Raise a `ConstraintError` if more bytes than the bound are forced where the matcher is."""
        token = self._made.shortest_forced(matcher.compute_bitmask())
        if token is None:
            return
        ahead, n_bytes = matcher.deep_copy(), 0
        while token is not None and n_bytes <= self._bound and ahead.consume_token(token):
            n_bytes += len(self._made.tokens[token])
            token = self._made.shortest_forced(ahead.compute_bitmask())
        if n_bytes > self._bound:
            expected = "words that end, where what follows may begin like them"
            found = f"more than {self._bound} bytes in a row, and no text has so many"
            raise ConstraintError.of("grammar", None, expected, found, "forces")
