"""The tokens of a model as ``llguidance`` asks for them: the bytes of each, and how bytes become tokens."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Final

from specdec.decoding.forms.first_bytes import FirstBytes
from specdec.errors import InputError, kind_of, pass_signals_on
from specdec.models.tokenizer import ByteTokenizer, Tokenizer
from specdec.models.tokenizer.byte_tokenizer import encode_exactly

__all__ = ["FormVocabulary", "checked", "library_tokenizer"]

_PIECE: Final = 4096  # bytes of a forced text that are encoded at once
_SHORT: Final = 128  # bytes of a forced text that is remembered in tokens
_MOST_TEXTS: Final = 2048  # that are remembered so

_lock: Final = threading.Lock()
_tokenizers: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


class FormVocabulary:
    """A tokenizer as the library asks for it: the bytes of each token, and how forced bytes are written.

    Special tokens are names behind the byte 0xFF, which no text has; the library never takes them for text. A
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
        if len(data) <= _SHORT:  # forms force the same texts again and again
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


def checked(tokenizer: Tokenizer | None, kind: str) -> ByteTokenizer:
    """A tokenizer whose tokens are byte strings; any other raises an `InputError`."""
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer
    what = "no tokenizer" if tokenizer is None else f"the tokenizer {kind_of(tokenizer)}"
    raise InputError(
        f"{kind} is given, but the target has {what}; expected one whose tokens are byte strings, as those "
        "of specdec.tokenizer"
    )


def library_tokenizer(
    library: Any, tokenizer: ByteTokenizer, n_vocab: int, end_ids: tuple[int, ...], kind: str
) -> tuple[Any, FirstBytes, tuple[int, ...]]:
    """(the library's tokenizer, its tokens, the ids that end a text in it): made once for each tokenizer."""
    ends = tuple(sorted(token for token in set(end_ids) if token < n_vocab))
    # Without a token that ends a text the library gets one behind the vocabulary, which no model has.
    n_tokens, own_ends = (n_vocab, ends) if ends else (n_vocab + 1, (n_vocab,))
    with _lock:
        known = _tokenizers.setdefault(tokenizer, {})
        made = known.get((n_tokens, own_ends))
    if made is None:
        vocabulary = FormVocabulary(tokenizer, n_tokens, own_ends)
        its_own = library.LLTokenizer(
            library.TokenizerWrapper(vocabulary),
            n_vocab=n_tokens,
            eos_token=list(own_ends),
            slices=library.LLTokenizer.json_slices() if kind == "schema" else None,
        )
        made = (its_own, FirstBytes(vocabulary.tokens))
        with _lock:
            made = known.setdefault((n_tokens, own_ends), made)
    return *made, own_ends
