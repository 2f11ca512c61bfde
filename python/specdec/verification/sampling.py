"""`Sampling`: from logits to the distribution of the next token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

import numpy as np

from specdec.checks import as_integer, check_items, check_number
from specdec.errors import InputError, shown
from specdec.models.tokenizer import Tokenizer, sequences_of
from specdec.settings_table import check_settings, integer, number, other, table_of

_MAX_INT = 2**31 - 1
"""Largest value of the core's integers."""

_LEAST, _LARGEST = (float(bound) for bound in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
"""Smallest positive normal float32."""
_FLOAT32 = "a finite number (float32, to 3.4e38)"


def _is_float32(value: float) -> bool:
    return abs(value) <= _LARGEST


def _biases(name: str, given: Any) -> dict[int, float]:
    expected = "a mapping of token id to number, or None"
    if not isinstance(given, Mapping):
        raise InputError.of(name, given, expected)
    biases = {}
    for token in check_items(name, given, expected):
        number = as_integer(token)
        if number is None or number < 0:
            raise InputError.of(name, token, "a token id, 0 or more", verb="has the key")
        key, fits = f"{name}[{shown(number)}]", lambda x: x == -math.inf or _is_float32(x)
        biases[number] = check_number(key, given[token], f"{_FLOAT32} or -inf", fits)
    return biases


def _words(name: str, given: Any) -> tuple[str | tuple[int, ...], ...]:
    """Check a list of words: texts, or sequences of token ids."""
    expected = "a list of texts, or of lists of token ids"
    if isinstance(given, str | Mapping):
        raise InputError.of(name, given, expected)
    return tuple(_word(f"{name}[{i}]", word) for i, word in enumerate(check_items(name, given, expected)))


def _word(name: str, word: Any) -> str | tuple[int, ...]:
    expected = "a text of at least one character, or a list of at least one token id"
    if isinstance(word, str) and word:
        return word
    ids = [] if isinstance(word, str) else [as_integer(token) for token in check_items(name, word, expected)]
    found = tuple(token for token in ids if token is not None and token >= 0)
    if not found or len(found) < len(ids):
        raise InputError.of(name, word, expected)
    return found


_LONGEST_BREAKER: Final = 40
_BREAKERS: Final = ("\n", ":", '"', "*")
"""Default `dry_sequence_breakers` of a target with a tokenizer, as in llama.cpp."""


def _breakers(name: str, given: Any) -> tuple[str | tuple[int, ...], ...]:
    """Check a list of texts, each of at most 40 characters as in llama.cpp, or of sequences of token ids."""
    for i, word in enumerate(words := _words(name, given)):
        if isinstance(word, str) and len(word) > _LONGEST_BREAKER:
            raise InputError.of(f"{name}[{i}]", word, f"at most {_LONGEST_BREAKER} characters")
    return words


def _ids_of_words(
    name: str, words: Iterable[str | Sequence[int]], n_vocab: int, tokenizer: Tokenizer | None,
    encode: Callable[[Tokenizer, str], Iterable[tuple[int, ...]]],
) -> list[tuple[int, ...]]:  # fmt: skip
    """Return the token sequences that words stand for, sorted and each once; `encode` tokenizes a text."""
    found: set[tuple[int, ...]] = set()
    for word in words:
        if not isinstance(word, str):
            if max(word) >= n_vocab:
                raise InputError.of(name, max(word), f"ids from 0 to {n_vocab - 1}", verb="has token")
            found.add(tuple(word))
        elif tokenizer is None:
            raise InputError.of(name, word, "token ids, as the target has no tokenizer", verb="has")
        else:
            found.update(ids for ids in encode(tokenizer, word) if ids and max(ids) < n_vocab)
    return sorted(found)


def _with_spaces(tokenizer: Tokenizer, word: str) -> Iterable[tuple[int, ...]]:
    """Tokenize a text with and without a leading space."""
    bare = word.lstrip(" ")
    return (tuple(tokenizer.encode(text, add_bos=False)) for text in (bare or word, f" {bare}"))


@dataclass(frozen=True)
class Sampling:
    """Sampling settings: the standardized distribution that tokens are drawn from (section 2.2).

    Applied in this order: repetition, presence, frequency and DRY penalties; `logit_bias`; masks of
    `min_tokens`, `no_repeat_ngram_size` and `bad_words`; temperature and softmax; `top_k`; `top_p` of the
    remaining mass; `min_p`. Speculative decoding is exact for any settings, and the draft may have others.
    None means unchanged.

    Parameters
    ----------
    temperature : float, default 0.0
        0 is the argmax (ties go to the lowest id), 1 the model's own distribution.
    top_k : int, optional
        Keep this many of the most probable tokens, 1 to 2147483647.
    top_p : float, optional
        Keep the smallest set of most probable tokens with at least this mass, in (0, 1].
    min_p : float, optional
        Keep tokens whose probability is at least this fraction of the largest, in [0, 1].
    repetition_penalty : float, optional
        Divides the positive logits and multiplies the negative logits of tokens that occur in the prompt or
        the new text (Keskar et al., arXiv 1909.05858, section 4.1), regardless of how often; above 0.
    logit_bias : mapping of int to float, optional
        Added to the logits of these token ids; -inf forbids a token.
    presence_penalty, frequency_penalty : float, optional
        Subtracted from the logits of tokens that occur in the new text, not the prompt: `presence_penalty`
        once, `frequency_penalty` per occurrence (as in OpenAI's API, where they are from -2 to 2). Draft
        tokens of the same round count for those after them.
    dry_multiplier : float, default 0.0
        DRY ("don't repeat yourself") as in llama.cpp: a token that would extend a repetition of n tokens from
        the prompt or the text, n at least `dry_allowed_length`, loses ``dry_multiplier * dry_base ** (n -
        dry_allowed_length)``. 0 is off; 0.8 is usual.
    dry_base, dry_allowed_length : float, int, default 1.75, 2
        Growth of the penalty per token, at least 1, and length of the shortest penalized repetition.
    dry_penalty_last_n : int, optional
        Number of last tokens that are searched for repetitions; None: all.
    dry_sequence_breakers : list of str or of sequences of int, optional
        Strings or sequences of token ids that repetitions do not cross; None: line break, colon, quote and
        asterisk, or none without a tokenizer.
    min_tokens : int, default 0
        Mask end-of-text and `stop` ids until there are this many new tokens. A stop string or a complete
        constraint still ends the text.
    no_repeat_ngram_size : int, default 0
        Mask tokens that would repeat an n-gram of this size from the prompt or the text; 0 masks none.
    bad_words : list of str or of sequences of int, optional
        Forbidden strings or sequences of token ids: after all tokens of one but the last, the last is masked.
        A string covers its tokens with and without a leading space.

    Raises
    ------
    InputError
        If a field is out of range; the message names the field, its value and what is expected.
    """

    temperature: float = number(
        0.0, "a finite number, at least 0 (float32, to 3.4e38)", lambda x: x >= 0.0 and _is_float32(x),
        help="Sampling temperature; 0 is greedy.", flag="T", served=(0.0, 1e6),
    )  # fmt: skip
    top_k: int | None = integer(
        None, 1, _MAX_INT,
        help="Sample from the K most probable tokens only.", flag="K", served=(-1, _MAX_INT), neutral=0,
        truncates=True,
    )  # fmt: skip
    top_p: float | None = number(
        None, "a number in (0, 1]", lambda x: 0.0 < x <= 1.0,
        help="Sample from the most probable tokens with total mass P.", flag="P", served=(1e-9, 1.0),
        neutral=1.0, truncates=True,
    )  # fmt: skip
    min_p: float | None = number(
        None, "a number in [0, 1]", lambda x: 0.0 <= x <= 1.0,
        help="Sample from tokens at least P times as probable as the most probable one.", flag="P",
        served=(0.0, 1.0), neutral=0.0, truncates=True,
    )  # fmt: skip
    repetition_penalty: float | None = number(
        None, "a finite number above 0 (float32: 1.2e-38 to 3.4e38)",
        lambda x: _LEAST <= x <= _LARGEST,
        help="Above 1 makes repeated tokens less probable.", flag="R", served=(1e-30, 1e30),
        neutral=1.0,
    )  # fmt: skip
    logit_bias: Mapping[int, float] | None = other(None, _biases, served=(-100.0, 100.0), neutral={})
    presence_penalty: float | None = number(
        None, _FLOAT32, _is_float32, help="Subtracted from the logits of tokens in the new text.",
        flag="P", served=(-2.0, 2.0), neutral=0.0,
    )  # fmt: skip
    frequency_penalty: float | None = number(
        None, _FLOAT32, _is_float32, help="Subtracted from the logits once per occurrence in the new text.",
        flag="F", served=(-2.0, 2.0), neutral=0.0,
    )  # fmt: skip
    dry_multiplier: float = number(
        0.0, "a finite number, at least 0 (float32, to 3.4e38)", lambda x: x >= 0.0 and _is_float32(x),
        help="DRY: penalty of tokens that extend a repetition; 0 is off.", flag="M", served=(0.0, 1e6),
    )  # fmt: skip
    dry_base: float = number(
        1.75, "a finite number, at least 1 (float32, to 3.4e38)", lambda x: x >= 1.0 and _is_float32(x),
        help="DRY: factor of the penalty for each repeated token.", flag="B", served=(1.0, 1e6),
    )  # fmt: skip
    dry_allowed_length: int = integer(
        2, 0, _MAX_INT, help="DRY: shortest repetition that is penalized.", flag="N", served=(0, _MAX_INT)
    )
    dry_penalty_last_n: int | None = integer(
        None, 0, _MAX_INT, help="DRY: number of last tokens to search (default: all).", flag="N",
        served=(-1, _MAX_INT), neutral=_MAX_INT,
    )  # fmt: skip
    dry_sequence_breakers: Sequence[str | Sequence[int]] | None = other(
        None, _breakers, help="DRY: text that repetitions do not cross; may be repeated.", flag="TEXT",
        many=True, served=(0, _MAX_INT), neutral=[],
    )  # fmt: skip
    min_tokens: int = integer(
        0, 0, _MAX_INT, help="Minimum number of new tokens.", flag="N", served=(0, _MAX_INT)
    )
    no_repeat_ngram_size: int = integer(
        0, 0, _MAX_INT, help="Do not repeat any N-gram.", flag="N", served=(0, _MAX_INT)
    )
    bad_words: Sequence[str | Sequence[int]] | None = other(
        None, _words, help="Forbidden text; may be repeated.", flag="TEXT", many=True,
        served=(0, _MAX_INT), neutral=[],
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax, without randomness."""
        return self.temperature == 0.0

    def core(self) -> dict[str, Any]:
        """Return the settings as the C core takes them."""
        values = ((name, getattr(self, name), row.neutral) for name, row in table_of(Sampling).items())
        return {name: neutral if value is None else value for name, value, neutral in values}

    def for_vocabulary(self, n_vocab: int, tokenizer: Tokenizer | None) -> Sampling:
        """Return the settings for a vocabulary: checks token ids and tokenizes texts."""
        biases = self.logit_bias or {}
        for token in biases:
            if token >= n_vocab:
                raise InputError.of("logit_bias", token, f"ids from 0 to {n_vocab - 1}", verb="has token")
        if sum(bias == -math.inf for bias in biases.values()) == n_vocab:
            raise InputError.of(
                "logit_bias", biases, "at least one that is allowed", "every token", "forbids"
            )
        given, breakers = (n_vocab, tokenizer), self.dry_sequence_breakers
        if self.dry_multiplier == 0.0:
            breakers = ()
        elif breakers is None:
            breakers = () if tokenizer is None else _BREAKERS
        return replace(
            self,
            bad_words=_ids_of_words("bad_words", self.bad_words or (), *given, _with_spaces),
            dry_sequence_breakers=_ids_of_words("dry_sequence_breakers", breakers, *given, sequences_of),
        )


class SamplingOptions(TypedDict, total=False):
    """Fields of `Sampling` as keyword arguments, for type checkers."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str | Sequence[int]] | None
    min_tokens: int
    no_repeat_ngram_size: int
    bad_words: Sequence[str | Sequence[int]] | None


TRUNCATIONS = tuple(name for name, row in table_of(Sampling).items() if row.truncates)
"""Settings that drop tokens by their probability."""
