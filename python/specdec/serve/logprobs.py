"""The texts of tokens, and their log-probabilities in the two formats of the API."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from specdec.models.tokenizer import ByteTokenizer, StreamDecoder, Tokenizer

_LEAST: Final = -9999.0
"""Stands for ln 0: JSON has no infinity."""

ScoredToken = tuple[int, int, float | None, list[tuple[int, float]]]
"""A token's first character in the text, its id, ln p, and the most probable tokens at its position.

ln p is None for the first token of a prompt.
"""


class TokenTexts:
    """The texts of tokens; a special token, which has no text, is called by its name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names = {}
        if isinstance(tokenizer, ByteTokenizer):
            self._names = {token: name for name, token in tokenizer.special_tokens().items()}

    def utf8(self, token: int) -> bytes:
        """Return the bytes of a token, which may be a part of a character."""
        if token in self._names:
            return self._names[token].encode("utf-8")
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._tokenizer.text_bytes(token)
        return self._tokenizer.decode([token]).encode("utf-8", "replace")

    def longest(self, n_vocab: int) -> int:
        """Return the number of bytes of the longest token."""
        n = min(n_vocab, self._tokenizer.n_vocab)
        return max((len(self.utf8(token)) for token in range(n)), default=0)

    def text(self, token: int) -> str:
        """Return the text of a token; U+FFFD stands for a part of a character."""
        return self.utf8(token).decode("utf-8", "replace")

    def key(self, token: int) -> str:
        """Return the text of a token, or its bytes where they are no text, so that tokens differ."""
        found = self.utf8(token)
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


class TokenLedger:
    """Tokens with their log-probabilities, each given out with the text that it belongs to.

    A stop string cuts the text, and an end token has no text: tokens after the end of the text are no part of
    the answer. `decoder` is the text's, and `begin` the number of characters before it.
    """

    def __init__(self, decoder: StreamDecoder, begin: int = 0) -> None:
        self._decoder, self._end = decoder, begin
        self._held: list[ScoredToken] = []

    def add(
        self, tokens: Sequence[int], log_probs: Iterable[float], top: Sequence[Sequence[tuple[int, float]]]
    ) -> None:
        """Add new tokens."""
        for i, (token, log_prob) in enumerate(zip(tokens, log_probs, strict=True)):
            self._held.append((self._end, token, float(log_prob), list(top[i]) if top else []))
            self._end += len(self._decoder.feed([token]))

    def take(self, n_characters: int, *, stopped: bool, final: bool) -> list[ScoredToken]:
        """Remove and return the tokens that begin in the first `n_characters` of the text.

        Of a `final` text that was not `stopped` by a stop string or stop id, all tokens are returned.
        """
        n = len(self._held)
        if not final or stopped:
            n = next((i for i, held in enumerate(self._held) if held[0] >= n_characters), n)
        found, self._held = self._held[:n], self._held[n:]
        return found


def _finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else _LEAST


def chat_logprobs(texts: TokenTexts, scored: Iterable[ScoredToken]) -> list[dict[str, Any]]:
    """Return an entry for each token, as in chat completions and responses."""

    def entry(token: int, log_prob: float) -> dict[str, Any]:
        return {"token": texts.text(token), "logprob": _finite(log_prob), "bytes": list(texts.utf8(token))}

    return [
        {**entry(token, log_prob or 0.0), "top_logprobs": [entry(*pair) for pair in top]}
        for _, token, log_prob, top in scored
    ]


def legacy_logprobs(texts: TokenTexts, scored: Iterable[ScoredToken], n_top: int) -> dict[str, Any]:
    """Return four lists with an entry for each token, as in completions."""
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for begin, token, log_prob, top in scored:
        found["tokens"].append(texts.key(token))
        found["text_offset"].append(begin)
        found["token_logprobs"].append(None if log_prob is None else _finite(log_prob))
        if log_prob is None:
            found["top_logprobs"].append(None)
            continue
        named: dict[str, float] = {}
        for other, of_other in [(token, log_prob), *top[:n_top]]:
            if other == token and named:
                continue  # it is there already
            name = texts.key(other)
            named[name if name not in named else f"token_id:{other}"] = _finite(of_other)
        found["top_logprobs"].append(named)
    return found
