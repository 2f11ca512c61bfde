"""Sampling settings: how the distribution of the next token is made from logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from specdec.checks import as_integer, check_items, check_number
from specdec.errors import InputError, shown
from specdec.models.tokenizer import Tokenizer
from specdec.settings_table import check_settings, integer, number, other, table_of

_MAX_INT = 2**31 - 1
"""What fits the core's integers."""

_LEAST, _LARGEST = (float(bound) for bound in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
"""Of the numbers of float32 that have full precision."""
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


def _ids_of_word(
    word: str | Sequence[int], n_vocab: int, tokenizer: Tokenizer | None
) -> Iterable[tuple[int, ...]]:
    """The sequences of tokens that a word stands for."""
    if not isinstance(word, str):
        if max(word) >= n_vocab:
            raise InputError.of("bad_words", max(word), f"ids from 0 to {n_vocab - 1}", verb="has token")
        return [tuple(word)]
    if tokenizer is None:
        expected = "token ids, as the target has no tokenizer"
        raise InputError.of("bad_words", word, expected, verb="has")
    bare = word.lstrip(" ")
    return {tuple(tokenizer.encode(text, add_bos=False)) for text in (bare or word, f" {bare}")}


@dataclass(frozen=True)
class Sampling:
    """The adjusted distribution that tokens are drawn from (section 2.2 of the paper).

    In this order: logits of tokens that have occurred are penalized (`repetition_penalty`, then presence and
    frequency), `logit_bias` is added, tokens that `min_tokens`, `no_repeat_ngram_size` or `bad_words` rule
    out here are masked, and the logits are divided by the temperature and turned into probabilities; then
    only the `top_k` likeliest tokens are kept, then the smallest set of the likeliest ones that holds at
    least `top_p` of what is left, then those that are at least `min_p` times as likely as the likeliest.
    Exactness holds for any settings, and for other ones of the draft's. None changes nothing.

    Parameters
    ----------
    temperature : float, default 0.0
        0 is the argmax (ties go to the lowest id), 1 the model's own distribution.
    top_k : int, optional
        Keep this many tokens, 1 to 2147483647.
    top_p : float, optional
        Probability mass to keep, in (0, 1].
    min_p : float, optional
        Least probability to keep as a share of the largest, in [0, 1].
    repetition_penalty : float, optional
        Logits of tokens in the prompt or the text so far are divided by it where positive and multiplied by
        it where negative (Keskar et al., arXiv 1909.05858, section 4.1), however often the token has
        occurred; above 0.
    logit_bias : mapping of int to float, optional
        Added to the logits of these token ids; -inf forbids a token.
    presence_penalty, frequency_penalty : float, optional
        Subtracted from the logits of tokens of the new text, not of the prompt: the first once, the second as
        often as the token has occurred in it (OpenAI's definition; there from -2 to 2). Along the draft
        tokens of a round each one counts those before it.
    min_tokens : int, default 0
        Mask the tokens that end a text, those of the model and the `stop` ids, until there are so many new
        tokens. A stop text, or a constraint that is complete, still ends it.
    no_repeat_ngram_size : int, default 0
        Mask the tokens that would complete a sequence of so many tokens which the prompt or the text so far
        has already; 0 masks none.
    bad_words : list of str or of sequences of int, optional
        Texts, or sequences of token ids, that must not occur: where prompt and text end with all tokens of
        one but the last, the last is masked. A text stands for its tokens with a space before it and without.

    Raises
    ------
    InputError
        If a field is out of its range; the message names the field, its value and what is expected.
    """

    temperature: float = number(
        0.0, "a finite number, at least 0", lambda x: 0.0 <= x < math.inf,
        help="0 is greedy.", flag="T", served=(0.0, 1e6),
    )  # fmt: skip
    top_k: int | None = integer(
        None, 1, _MAX_INT,
        help="Sample from the K likeliest tokens only.", flag="K", served=(-1, _MAX_INT), neutral=0,
        truncates=True,
    )  # fmt: skip
    top_p: float | None = number(
        None, "a number in (0, 1]", lambda x: 0.0 < x <= 1.0,
        help="Sample from the likeliest tokens that hold mass P only.", flag="P", served=(1e-9, 1.0),
        neutral=1.0, truncates=True,
    )  # fmt: skip
    min_p: float | None = number(
        None, "a number in [0, 1]", lambda x: 0.0 <= x <= 1.0,
        help="Sample from tokens at least P times as likely as the likeliest.", flag="P", served=(0.0, 1.0),
        neutral=0.0, truncates=True,
    )  # fmt: skip
    repetition_penalty: float | None = number(
        None, "a finite number above 0 (1.2e-38 to 3.4e38, as float32 has)",
        lambda x: _LEAST <= x <= _LARGEST,
        help="Above 1, tokens that have occurred are less likely.", flag="R", served=(1e-30, 1e30),
        neutral=1.0,
    )  # fmt: skip
    logit_bias: Mapping[int, float] | None = other(None, _biases, served=(-100.0, 100.0), neutral={})
    presence_penalty: float | None = number(
        None, _FLOAT32, _is_float32, help="Subtracted from the logits of tokens of the new text.",
        flag="P", served=(-2.0, 2.0), neutral=0.0,
    )  # fmt: skip
    frequency_penalty: float | None = number(
        None, _FLOAT32, _is_float32, help="The same for each time that a token has occurred there.",
        flag="F", served=(-2.0, 2.0), neutral=0.0,
    )  # fmt: skip
    min_tokens: int = integer(
        0, 0, _MAX_INT, help="New tokens before the text may end.", flag="N", served=(0, _MAX_INT)
    )
    no_repeat_ngram_size: int = integer(
        0, 0, _MAX_INT, help="No N tokens in a row occur twice.", flag="N", served=(0, _MAX_INT)
    )
    bad_words: Sequence[str | Sequence[int]] | None = other(
        None, _words, help="A text that must not occur; may be repeated.", flag="TEXT", many=True,
        served=(0, _MAX_INT), neutral=[],
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax, with no randomness."""
        return self.temperature == 0.0

    def core(self) -> dict[str, Any]:
        """The settings as the C core takes them."""
        values = ((name, getattr(self, name), row.neutral) for name, row in table_of(Sampling).items())
        return {name: neutral if value is None else value for name, value, neutral in values}

    def for_vocabulary(self, n_vocab: int, tokenizer: Tokenizer | None) -> Sampling:
        """The settings for the models of a vocabulary, which must have all tokens named: texts become ids."""
        biases = self.logit_bias or {}
        for token in biases:
            if token >= n_vocab:
                raise InputError.of("logit_bias", token, f"ids from 0 to {n_vocab - 1}", verb="has token")
        if sum(bias == -math.inf for bias in biases.values()) == n_vocab:
            raise InputError.of(
                "logit_bias", biases, "at least one that is allowed", "every token", "forbids"
            )
        if self.bad_words is None:
            return self
        words = (_ids_of_word(word, n_vocab, tokenizer) for word in self.bad_words)
        return replace(self, bad_words=sorted({ids for found in words for ids in found if ids}))


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as keyword arguments, for type checkers."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    presence_penalty: float | None
    frequency_penalty: float | None
    min_tokens: int
    no_repeat_ngram_size: int
    bad_words: Sequence[str | Sequence[int]] | None


TRUNCATIONS = tuple(name for name, row in table_of(Sampling).items() if row.truncates)
"""The settings that drop tokens by their probability."""
