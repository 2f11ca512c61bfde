"""From logits to the distribution to sample (Leviathan, section 2.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probs = NDArray[np.float64]

_LARGEST = float(np.finfo(np.float32).max)


def adjusted_logits(
    logits: ArrayLike, tokens: Iterable[int], repetition_penalty: float = 1.0,
    logit_bias: Mapping[int, float] | None = None, *, presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0, n_prompt: int = 0, min_tokens: int = 0, end_ids: Iterable[int] = (),
    no_repeat_ngram_size: int = 0, bad_words: Iterable[Sequence[int]] = (), dry_multiplier: float = 0.0,
    dry_base: float = 1.75, dry_allowed_length: int = 2, dry_penalty_last_n: int | None = None,
    dry_sequence_breakers: Iterable[Sequence[int]] = (),
) -> NDArray[np.float32]:  # fmt: skip
    """Apply penalties on tokens that have occurred, then the bias, then masks.

    The repetition penalty is that of Keskar et al. (CTRL, section 4.1), the others are OpenAI's. All
    arithmetic is in float32.

    Parameters
    ----------
    logits : array_like, [n_vocab]
    tokens : iterable of int
        Prompt (the first `n_prompt`) and text so far, draft tokens on the path included.
    repetition_penalty : float
        Above 0. Divides the positive logits of these tokens and multiplies their other logits.
    logit_bias : mapping of int to float, optional
        Added to the logits of these tokens; -inf excludes a token.
    presence_penalty, frequency_penalty : float
        A token that occurs c > 0 times after the prompt loses presence + c times frequency, rounded once.
    min_tokens, end_ids : int, iterable of int
        Masks `end_ids` until there are `min_tokens` tokens after the prompt.
    no_repeat_ngram_size : int
        If above 0, no n-gram of this size is repeated.
    bad_words : iterable of sequence of int
        Forbidden sequences of tokens.
    dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers
        Penalties of `repetitions`: a token that would extend n >= `dry_allowed_length` repeated tokens loses
        dry_multiplier times dry_base to the power n - dry_allowed_length, rounded once.
    """
    adjusted = np.array(logits, dtype=np.float32)
    penalty = np.float32(repetition_penalty)
    tokens = list(tokens)
    for token in set(tokens):
        adjusted[token] = adjusted[token] / penalty if adjusted[token] > 0 else adjusted[token] * penalty
    if presence_penalty or frequency_penalty:
        for token, count in Counter(tokens[n_prompt:]).items():
            penalized = float(adjusted[token]) - (presence_penalty + count * frequency_penalty)
            adjusted[token] = np.float32(penalized)
    if dry_multiplier:
        last = tokens if dry_penalty_last_n is None else tokens[max(len(tokens) - dry_penalty_last_n, 0) :]
        for token, length in repetitions(last, [list(one) for one in dry_sequence_breakers]).items():
            if length >= dry_allowed_length:
                loss = min(dry_multiplier * _power(dry_base, length - dry_allowed_length), _LARGEST)
                adjusted[token] = np.float32(float(adjusted[token]) - loss)
    for token, bias in (logit_bias or {}).items():
        adjusted[token] += np.float32(bias)
    if len(tokens) - n_prompt < min_tokens:
        adjusted[list(end_ids)] = -np.inf
    if no_repeat_ngram_size:
        before = tokens[len(tokens) - no_repeat_ngram_size + 1 :]
        for i in range(len(tokens) - no_repeat_ngram_size + 1):
            *start, token = tokens[i : i + no_repeat_ngram_size]
            if start == before:
                adjusted[token] = -np.inf
    for *start, token in bad_words:
        if tokens[len(tokens) - len(start) :] == start:
            adjusted[token] = -np.inf
    return adjusted


def repetitions(tokens: Sequence[int], breakers: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the length of the longest repetition that each next token would extend.

    A repetition is an end of `tokens` that occurs earlier, followed by that token; it lies after the breaker
    that begins last. Tokens that are breakers alone are left out.
    """
    n, begin = len(tokens), 0
    for at in reversed(range(n)):
        ends = [at + len(one) for one in breakers if list(tokens[at : at + len(one)]) == list(one)]
        if ends:
            begin = max(ends)
            break
    found: dict[int, int] = {}
    for at in range(1, n):
        length = 0
        while length < min(at, n - begin) and tokens[at - 1 - length] == tokens[n - 1 - length]:
            length += 1
        if [tokens[at]] not in breakers:
            found[tokens[at]] = max(length, found.get(tokens[at], 0))
    return found


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by squaring: the same products everywhere."""
    product = 1.0
    while exponent:
        if exponent % 2:
            product *= base
        base, exponent = base * base, exponent // 2
    return product


def distribution(
    logits: ArrayLike, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Probs:
    """Return the probabilities [n_vocab] that reduce any sampling setting to plain sampling.

    Leviathan, section 2.2. Applies temperature and softmax, then top-k, then nucleus on the rest, then min-p
    on the rest; ties go to the lowest id. -inf in `logits` [n_vocab] excludes a token. Temperature 0 puts all
    mass on the argmax. `top_k` keeps exactly this many tokens, 0 all; `top_p` keeps the smallest set of most
    probable tokens with at least this mass; `min_p` keeps tokens with at least this fraction of the largest
    probability.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        point = np.zeros(len(logits))
        point[np.argmax(logits)] = 1.0
        return point
    with np.errstate(over="ignore"):  # -inf is correct for a tiny temperature
        exponents = (logits - logits.max()) / temperature
    probs: Probs = np.exp(exponents)
    probs /= probs.sum()
    most_probable = np.argsort(-logits, kind="stable")
    if top_k > 0:
        probs[most_probable[top_k:]] = 0.0
        probs /= probs.sum()
    if top_p < 1:
        n_kept = np.searchsorted(np.cumsum(probs[most_probable]), top_p) + 1
        probs[most_probable[n_kept:]] = 0.0
    probs[probs < min_p * probs.max()] = 0.0
    probs /= probs.sum()
    return probs
