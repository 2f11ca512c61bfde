"""From logits to the distribution to sample (Leviathan, section 2.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probs = NDArray[np.float64]


def adjusted_logits(
    logits: ArrayLike, tokens: Iterable[int], repetition_penalty: float = 1.0,
    logit_bias: Mapping[int, float] | None = None, *, presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0, n_prompt: int = 0, min_tokens: int = 0, end_ids: Iterable[int] = (),
    no_repeat_ngram_size: int = 0, bad_words: Iterable[Sequence[int]] = (),
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
    for token, bias in (logit_bias or {}).items():
        adjusted[token] += np.float32(bias)
    if len(tokens) - n_prompt < min_tokens:
        adjusted[list(end_ids)] = -np.inf
    if no_repeat_ngram_size:
        before = tokens[len(tokens) - no_repeat_ngram_size + 1 :]
        for i in range(len(tokens) - no_repeat_ngram_size + 1):
            *start, last = tokens[i : i + no_repeat_ngram_size]
            if start == before:
                adjusted[last] = -np.inf
    for *start, last in bad_words:
        if tokens[len(tokens) - len(start) :] == start:
            adjusted[last] = -np.inf
    return adjusted


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
