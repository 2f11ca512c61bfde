"""Sampling settings: how the distribution of the next token is made from logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.checks import as_integer, check_items, check_number
from specdec.errors import InputError, shown

__all__ = ["MAX_TOP_K", "Sampling"]

MAX_TOP_K = 2**31 - 1
"""What fits the core's integers; more tokens than any vocabulary has."""

_LEAST, _LARGEST = (float(bound) for bound in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
"""Of the numbers of float32 that have full precision."""


@dataclass(frozen=True)
class Sampling:
    """The adjusted distribution that tokens are drawn from (section 2.2 of the paper).

    In this order: logits of tokens that have occurred are penalised (`repetition_penalty`, then presence and
    frequency), `logit_bias` is added, the logits are divided by the temperature and turned into
    probabilities; then only the `top_k` likeliest tokens are kept, then the smallest set of the likeliest
    ones that holds at least `top_p` of what is left, then those that are at least `min_p` times as likely as
    the likeliest; then the rest is normalised. Exactness holds for any settings, and for other ones of the
    draft's.

    Parameters
    ----------
    temperature : float, default 0.0
        0 is the argmax (ties go to the lowest id), 1 the model's own distribution.
    top_k : int, optional
        Keep this many tokens, 1 to 2147483647; None keeps all.
    top_p : float, optional
        Probability mass to keep, in (0, 1]; None keeps all.
    min_p : float, optional
        Least probability to keep as a share of the largest, in [0, 1]; None keeps all.
    repetition_penalty : float, optional
        Logits of tokens in the prompt or the text so far are divided by it where positive and multiplied by
        it where negative (Keskar et al., arXiv 1909.05858, section 4.1), however often the token has
        occurred; above 0; None or 1 changes nothing.
    logit_bias : mapping of int to float, optional
        Added to the logits of these token ids; -inf forbids a token.
    presence_penalty, frequency_penalty : float, optional
        Subtracted from the logits of tokens of the new text, not of the prompt: the first once, the second as
        often as the token has occurred in it (OpenAI's definition; there from -2 to 2). Below 0 such tokens
        become more probable. Along the guesses of a round each one counts those before it. None or 0 changes
        nothing.

    Raises
    ------
    InputError
        If a field is out of its range; the message names the field, its value and what is expected.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def __post_init__(self) -> None:
        checks = {
            "temperature": ("a finite number, at least 0", lambda x: 0.0 <= x < math.inf),
            "top_p": ("a number in (0, 1], or None", lambda x: 0.0 < x <= 1.0),
            "min_p": ("a number in [0, 1], or None", lambda x: 0.0 <= x <= 1.0),
            "repetition_penalty": (
                "a finite number above 0 (1.2e-38 to 3.4e38, as float32 has), or None",
                lambda x: _LEAST <= x <= _LARGEST,
            ),
        }
        for name in ("presence_penalty", "frequency_penalty"):
            checks[name] = (
                "a finite number (float32, to 3.4e38), or None",
                lambda x: abs(x) <= _LARGEST,
            )
        for name, (expected, fits) in checks.items():
            value = getattr(self, name)
            if value is not None or name == "temperature":
                object.__setattr__(self, name, check_number(name, value, expected, fits))
        if self.top_k is not None:
            top_k = as_integer(self.top_k)
            if top_k is None or not 1 <= top_k <= MAX_TOP_K:
                raise InputError(
                    f"top_k is {shown(self.top_k)}; expected an integer from 1 to {MAX_TOP_K}, or None"
                )
            object.__setattr__(self, "top_k", top_k)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax, with no randomness."""
        return self.temperature == 0.0

    def core(self) -> dict[str, Any]:
        """The settings as the C core takes them."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "min_p": self.min_p or 0.0,
            "repetition_penalty": 1.0 if self.repetition_penalty is None else self.repetition_penalty,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "logit_bias": dict(self.logit_bias or {}),
        }

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise InputError if `logit_bias` names a token that such a vocabulary lacks, or forbids all."""
        biases = self.logit_bias or {}
        for token in biases:
            if token >= n_vocab:
                raise InputError(f"logit_bias has token {shown(token)}; expected ids from 0 to {n_vocab - 1}")
        if sum(bias == -math.inf for bias in biases.values()) == n_vocab:
            raise InputError("logit_bias forbids every token; expected at least one that is allowed")


def _biases(given: object) -> dict[int, float]:
    expected = "a mapping of token id to number, or None"
    if not isinstance(given, Mapping):
        raise InputError(f"logit_bias is {shown(given)}; expected {expected}")
    biases = {}
    for token in check_items("logit_bias", given, expected):
        bias = given[token]
        number = as_integer(token)
        if number is None or number < 0:
            raise InputError(f"logit_bias has the key {shown(token)}; expected a token id, 0 or more")
        biases[number] = check_number(
            f"logit_bias[{shown(number)}]",
            bias,
            "a finite number (float32, to 3.4e38) or -inf",
            lambda x: x == -math.inf or abs(x) <= _LARGEST,
        )
    return biases
