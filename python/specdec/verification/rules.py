"""Names of the verification rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from specdec.checks import Choice, check_choice, check_number
from specdec.errors import InputError, shown

DecodingRule: TypeAlias = Literal[
    "auto", "rejection", "block", "traversal", "coupled", "k-sequential", "classical"
]
"""A rule of `specdec.generate`; at temperature 0 all of them are greedy. The core resolves "auto"."""
Rule: TypeAlias = Literal["rejection", "block", "traversal", "coupled", "k-sequential", "classical", "greedy"]
"""A rule of `specdec.verify`."""
DECODING_RULES: tuple[DecodingRule, ...] = get_args(DecodingRule)
RULES: tuple[Rule, ...] = get_args(Rule)
ONE_DRAFT_RULES: tuple[DecodingRule, ...] = ("block", "k-sequential")
"""Rules that, above temperature 0, cannot judge two drafts in one tree."""
WHOLE_TREE_RULES: tuple[DecodingRule, ...] = ("block", "traversal")
"""Rules that judge no draft token by itself."""

_LENIENT = ("auto", "rejection", "greedy")


def check_rule(argument: str, rule: Any, lenience: Any, rules: Sequence[Choice]) -> tuple[Choice, float]:
    """Return a rule and its lenience; InputError names the `argument` that gave the rule."""
    chosen = check_choice(argument, rule, rules)
    lenience = check_lenience("lenience", lenience)
    if lenience < 1.0 and chosen not in _LENIENT:
        raise InputError.of(
            "lenience",
            lenience,
            f"1 with {argument}={shown(chosen)}, which is exact",
        )
    return chosen, lenience


def check_lenience(name: str, value: Any, verb: str = "is") -> float:
    """Return a number in (0, 1], else raise InputError; `verb` as in `check_number`."""
    return check_number(name, value, "a number above 0, at most 1", lambda number: 0.0 < number <= 1.0, verb)
