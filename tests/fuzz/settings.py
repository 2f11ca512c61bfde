"""Random settings of a run as plain values, and their conversion to arguments of `specdec.generate`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import specdec
from specdec import reference
from specdec.settings_table import table_of
from worlds.constraints import RandomConstraint, allowed_after
from worlds.draws import Draws

Probs = NDArray[np.float64]


def _half(probs: Probs, tokens: Sequence[int]) -> Probs:
    """Allow every other token, depending on the text so far; all tokens if few would be left."""
    kept = probs * (np.arange(len(probs)) % 2 == sum(tokens) % 2)
    return kept if kept.sum() > 1e-9 else probs


TRANSFORMS: dict[str, Callable[[Probs, Sequence[int]], Probs]] = {
    "square": lambda probs, tokens: 1000.0 * probs**2,
    "floor": lambda probs, tokens: probs + 1e-3,
    "half": _half,
}

EXTREMES: dict[str, tuple[float, ...]] = {
    "temperature": (1e-300, 1e-38, 1e38, 1e300),
    "repetition_penalty": (1e-300, 1e-38, 1e-30, 1e30, 1e38, 1e300), "top_p": (1e-300, 1.0 - 1e-16),
    "min_p": (1e-300,), "top_k": (2**31 - 1, 2**31, 10**12),
}  # fmt: skip
"""Values that may be refused, and otherwise leave plain and speculative decoding alike."""

TRUNCATIONS = tuple(name for name, row in table_of(specdec.Sampling).items() if row.truncates)


class EveryOther:
    """A gamma that depends on the number of rounds so far."""

    def __init__(self, max_gamma: int) -> None:
        self.max_gamma = max_gamma

    def __call__(self, rounds: Sequence[specdec.Round]) -> int:
        """Number of tokens to draft next."""
        accepted = rounds[-1].n_accepted if rounds else 1
        return (3 * len(rounds) + accepted) % (self.max_gamma + 1)


def draw_sampling(draws: Draws, n_vocab: int, *, greedy: bool = False) -> dict[str, Any]:
    """Draw fields of `specdec.Sampling`: any of the table, or only those that change the argmax.

    A field without listed values gets a small number that a server accepts.
    """
    tokens, bias = st.integers(0, n_vocab - 1), st.sampled_from([-inf, -5.0, -1.0, 0.0, 2.0, 30.0])
    biases = st.dictionaries(tokens, bias, min_size=1, max_size=min(3, n_vocab - 1))
    words = st.lists(st.lists(tokens, min_size=1, max_size=3), min_size=1, max_size=3)
    values: dict[str, tuple[Any, ...]] = {
        "temperature": (1.0, 1.0, 1.0, 0.7, 0.2, 1.6, 5.0, 1e-3),
        "top_k": (0.2, st.integers(1, n_vocab + 1)),
        "top_p": (0.2, 0.01, 0.5, 0.9, 0.999, 1.0),
        "min_p": (0.15, 0.0, 0.02, 0.3, 1.0),
        "repetition_penalty": (0.2, 0.5, 1.0, 1.1, 1.3, 3.0),
        "presence_penalty": (0.15, -2.0, -0.1, 0.0, 0.3, 1.0, 2.0),
        "frequency_penalty": (0.15, -2.0, -0.1, 0.0, 0.3, 1.0, 2.0),
        "logit_bias": (0.2, biases),
        "no_repeat_ngram_size": (0.15, st.integers(2, 4)),
        "bad_words": (0.15, words),
        "dry_multiplier": (0.2, 0.0, 0.8, 3.0), "dry_base": (0.1, 1.0, 1.2, 1.75, 1e30),
        "dry_penalty_last_n": (0.1, st.integers(0, 12)), "dry_sequence_breakers": (0.15, words),
    }  # fmt: skip
    for name, row in table_of(specdec.Sampling).items():
        if greedy and (name == "temperature" or row.truncates):
            values.pop(name, None)
        elif name not in values:
            assert row.value_type is not None and row.served is not None, f"{name} has no values to draw"
            low, high = row.served
            numbers: Any = st.integers if row.value_type is int else st.floats
            values[name] = (0.15, numbers(low, min(high, low + 6)))
    found: dict[str, Any] = draws.fields(**values)
    if "dry_multiplier" in found:  # the defaults depend on the tokenizer
        found.setdefault("dry_sequence_breakers", [])
    return found


def draw_settings(draws: Draws, target: dict[str, Any], n_prompts: int) -> dict[str, Any]:
    """Draw settings of a run of some prompts."""
    n_vocab = target.get("n_vocab", 11)
    found: dict[str, Any] = {
        "seed": draws.randrange(2**32),
        "max_new_tokens": draws.one(1, 2, 5, 12, 12, 24, 24, None),
        "gamma": draws.one(None, None, st.integers(0, 12), st.integers(1, 6), "auto", ["function", 7]),
        **draw_sampling(draws, n_vocab, greedy=draws.chance(0.5)),
    }
    if draws.chance(0.12):
        found["constraint"] = {
            "n_vocab": n_vocab, "seed": draws.randrange(1000), "n_allowed": draws.randint(1, 5),
            "length": draws.one(None, 3, 9), "forced": draws.one(0.0, 0.4, 1.0),
        }  # fmt: skip
    if draws.chance(0.15):
        found["draft_sampling"] = {"temperature": 0.0} if draws.chance(0.3) else draw_sampling(draws, n_vocab)
    rule = draws.weighted(
        **{"auto": 3, "rejection": 2, "block": 1, "traversal": 1, "coupled": 3, "k-sequential": 1,
           "classical": 1}
    )  # fmt: skip
    if rule != "auto":
        found["verify"] = rule
    if rule in ("auto", "rejection") and draws.chance(0.15):
        found["lenience"] = draws.one(0.99, 0.5, 0.1, 1e-6)
    if draws.chance(0.04):
        name = draws.choice(list(EXTREMES))
        found[name] = draws.choice(EXTREMES[name])
    if draws.chance(0.3):
        found["stop"] = [draws.randrange(n_vocab) for _ in range(draws.randint(1, 2))]
        if target.get("text"):
            found["stop"] += [draws.one("a", "ab", "aa", "ba\n", "é", "€", "\ufffd")]
            if draws.chance(0.3):  # special tokens by name
                found["stop"] += [draws.one("<s>", "<pad>", "</s>", "a<s>", "<s>a", "<pad><s>", "b</s>")]
    return found | draws.fields(
        transform=(0.15, *TRANSFORMS), ignore_eos=(0.1, True), n_threads=(0.08, st.integers(2, 4)),
        logits=(0.6, True), batch_size=(0.5 * (n_prompts > 1), st.integers(1, n_prompts)),
        node_budget=(0.2, st.integers(n_prompts, n_prompts + 20)), prompt_cache=(0.15, 0, 5_000, 1_000_000),
    )  # fmt: skip


@functools.cache
def _prompt_cache(max_bytes: int) -> specdec.PromptCache:
    """Return one prompt cache for all runs, so that later runs reuse prompts."""
    return specdec.PromptCache(max_bytes)


def is_extreme(settings: dict[str, Any]) -> bool:
    """Return whether a value is in `EXTREMES`."""
    return any(settings.get(name) in values for name, values in EXTREMES.items())


def may_forbid_all(settings: dict[str, Any]) -> bool:
    """Return whether settings may leave no token to choose from."""
    masks = ("min_tokens", "no_repeat_ngram_size", "bad_words")
    return is_extreme(settings) or any(settings.get(name) for name in masks)


def keywords(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `specdec.generate`; one thread by default."""
    found = {"n_threads": 1} | settings
    if isinstance(found.get("gamma"), list):
        found["gamma"] = EveryOther(found["gamma"][1])
    if "structure" in found:
        kind, constraint, _ = found.pop("structure")
        found[kind] = constraint
    made: dict[str, Callable[[Any], Any]] = {
        "prompt_cache": _prompt_cache, "transform": TRANSFORMS.__getitem__,
        "constraint": lambda given: RandomConstraint(**given),
        "draft_sampling": lambda given: specdec.Sampling(**given),
    }  # fmt: skip
    return {name: made[name](value) if name in made else value for name, value in found.items()}


_ONLY_SPECULATIVE = "gamma draft_sampling batch_size node_budget seed n_threads prompt_cache".split()


def plain_keywords(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a plain single-prompt run, on one thread, with the same output."""
    return keywords({name: value for name, value in settings.items() if name not in _ONLY_SPECULATIVE})


def _end_ids(settings: dict[str, Any], target: specdec.Model | None) -> set[int]:
    """Return the end tokens, which `min_tokens` masks."""
    named = {"<pad>": 0, "<s>": 1, "</s>": 2}
    stops = {named.get(one, one) for one in settings.get("stop") or ()}
    ends = () if target is None or settings.get("ignore_eos") else target.eos_ids
    return {one for one in stops if isinstance(one, int)} | set(ends)


def _adjusted(
    settings: dict[str, Any], logits: NDArray[np.float32], text: Sequence[int], n_prompt: int,
    target: specdec.Model | None = None,
) -> NDArray[Any]:  # fmt: skip
    names = table_of(specdec.Sampling).keys() - {"temperature", *TRUNCATIONS}
    given = {name: settings[name] for name in names if name in settings}
    return reference.adjusted_logits(
        logits, text, n_prompt=n_prompt, end_ids=_end_ids(settings, target), **given
    )


def _standardized(settings: dict[str, Any], adjusted: NDArray[Any]) -> Probs:
    if settings.get("lenience", 1.0) < 1.0 and not settings.get("temperature", 0.0):  # lenient argmax
        return reference.distribution(adjusted, temperature=1.0)
    given = {name: settings[name] for name in TRUNCATIONS if settings.get(name)}
    return reference.distribution(adjusted, temperature=settings.get("temperature", 0.0), **given)


def hangs_on_rounding(
    settings: dict[str, Any], logits: NDArray[np.float32], text: Sequence[int], n_prompt: int
) -> bool:
    """Whether a cut of top-k, nucleus or min-p falls between tokens that rounding may swap.

    The reference weighs tokens in f64 and the core in f32, where two that differ in the last bits are equal
    and the lower id stays. With such logits either set of tokens is right.
    """
    temperature = settings.get("temperature", 0.0)
    if not temperature or not any(settings.get(name) for name in TRUNCATIONS):
        return False
    adjusted = _adjusted(settings, logits, text, n_prompt).astype(np.float64)
    kept = _standardized(settings, adjusted) > 0.0
    finite = adjusted[np.isfinite(adjusted)]
    step = temperature * 1e-6 + np.ptp(finite) * 2.0**-22
    for value in np.unique(finite):  # equal logits are equal for both
        for sign in (-1.0, 1.0):
            moved = np.where(adjusted == value, adjusted + sign * step, adjusted)
            if not np.array_equal(_standardized(settings, moved) > 0.0, kept):
                return True
    return False


def distribution_after(
    settings: dict[str, Any], logits: NDArray[np.float32], text: Sequence[int], n_prompt: int,
    target: specdec.Model | None = None,
) -> Probs:  # fmt: skip
    """Compute the next token's distribution from the logits after a text, with the reference in NumPy."""
    adjusted, new, allowed = _adjusted(settings, logits, text, n_prompt, target), list(text[n_prompt:]), None
    if "constraint" in settings:
        allowed = RandomConstraint(**settings["constraint"]).allowed(new)
    elif "structure" in settings:
        assert target is not None
        allowed = allowed_after(
            settings["structure"], target, new, may_end=not settings.get("ignore_eos", False)
        )
    if allowed is not None:
        adjusted = np.where(allowed, adjusted, -inf)
    probs = _standardized(settings, adjusted)
    if "transform" in settings:
        probs = TRANSFORMS[settings["transform"]](probs, list(text))
        if allowed is not None:
            probs = np.where(allowed, probs, 0.0)
        probs = probs / probs.sum()
    return probs
