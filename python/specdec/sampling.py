"""Sampling settings: how the distribution of the next token is made from logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from specdec.errors import InputError

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """The adjusted distribution that tokens are drawn from (section 2.2 of the paper).

    The logits are divided by the temperature and turned into probabilities; then only the `top_k` likeliest
    tokens are kept, then the smallest set of the likeliest ones that holds at least `top_p` of what is left;
    then the rest is normalised. The same settings apply to target and draft. Exactness holds for any.

    Parameters
    ----------
    temperature : float, default 0.0
        0 is the argmax (ties go to the lowest id), 1 the model's own distribution.
    top_k : int, optional
        Keep this many tokens; None keeps all.
    top_p : float, optional
        Probability mass to keep, in (0, 1]; None keeps all.

    Raises
    ------
    InputError
        If a field is out of its range; the message names the field, its value and what is expected.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        temperature = _real("temperature", self.temperature, "a finite number, at least 0")
        if not (math.isfinite(temperature) and temperature >= 0.0):
            raise InputError(f"temperature is {self.temperature!r}; expected a finite number, at least 0")
        object.__setattr__(self, "temperature", temperature)

        if self.top_k is not None:
            if isinstance(self.top_k, bool) or not isinstance(self.top_k, Integral) or self.top_k < 1:
                raise InputError(f"top_k is {self.top_k!r}; expected an integer, at least 1, or None")
            object.__setattr__(self, "top_k", int(self.top_k))

        if self.top_p is not None:
            top_p = _real("top_p", self.top_p, "a number in (0, 1], or None")
            if not 0.0 < top_p <= 1.0:
                raise InputError(f"top_p is {self.top_p!r}; expected a number in (0, 1], or None")
            object.__setattr__(self, "top_p", top_p)

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax, with no randomness."""
        return self.temperature == 0.0

    def core(self) -> tuple[float, int, float]:
        """The settings as the C core takes them: (temperature, top_k or 0, top_p or 1.0)."""
        return self.temperature, self.top_k or 0, 1.0 if self.top_p is None else self.top_p


def _real(field: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{field} is {value!r}; expected {expected}")
    return float(value)
