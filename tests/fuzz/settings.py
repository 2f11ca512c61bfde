"""Settings of a run: drawn at random as plain values, and made into arguments of `specdec.generate`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from specdec import reference
from worlds.constraints import Form
from worlds.draws import Draws
from worlds.written_constraints import allowed_after

__all__ = [
    "EXTREMES", "TRANSFORMS", "distribution_after", "draw_sampling", "draw_settings", "hangs_on_rounding",
    "is_extreme", "keywords", "may_forbid_all", "plain_keywords",
]  # fmt: skip

RULES = ("rejection", "block", "coupled", "k-sequential", "classical")

Probs = NDArray[np.float64]


def _square(probs: Probs, tokens: Sequence[int]) -> Probs:
    return 1000.0 * probs**2


def _floor(probs: Probs, tokens: Sequence[int]) -> Probs:
    return probs + 1e-3


def _half(probs: Probs, tokens: Sequence[int]) -> Probs:
    """Every other token, by the text so far; all where next to nothing would be left."""
    kept = probs * (np.arange(len(probs)) % 2 == sum(tokens) % 2)
    return kept if kept.sum() > 1e-9 else probs


TRANSFORMS: dict[str, Callable[[Probs, Sequence[int]], Probs]] = {
    "square": _square,
    "floor": _floor,
    "half": _half,
}


_BY_TEXT = ("presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "bad_words")

EXTREMES: dict[str, tuple[float, ...]] = {
    "temperature": (1e-300, 1e-38, 1e38, 1e300),
    "repetition_penalty": (1e-300, 1e-38, 1e-30, 1e30, 1e38, 1e300),
    "top_p": (1e-300, 1.0 - 1e-16),
    "min_p": (1e-300,),
    "top_k": (2**31 - 1, 2**31, 10**12),
}
"""Values that may be refused, and otherwise leave plain and speculative decoding alike."""


class EveryOther:
    """A gamma that is a function of the rounds so far."""

    def __init__(self, max_gamma: int) -> None:
        self.max_gamma = max_gamma

    def __call__(self, rounds: Sequence[specdec.Round]) -> int:
        """How many tokens to draft next."""
        accepted = rounds[-1].n_accepted if rounds else 1
        return (3 * len(rounds) + accepted) % (self.max_gamma + 1)


def draw_sampling(draws: Draws, n_vocab: int) -> dict[str, Any]:
    """Fields of `specdec.Sampling`; a temperature above 0."""
    found: dict[str, Any] = {"temperature": draws.one(1.0, 1.0, 0.7, 0.2, 1.6, 5.0, 1e-3)}
    if draws.chance(0.2):
        found["top_k"] = draws.randint(1, n_vocab + 1)
    if draws.chance(0.2):
        found["top_p"] = draws.one(0.01, 0.5, 0.9, 0.999, 1.0)
    if draws.chance(0.15):
        found["min_p"] = draws.one(0.0, 0.02, 0.3, 1.0)
    return found | draw_adjustment(draws, n_vocab)


def draw_adjustment(draws: Draws, n_vocab: int) -> dict[str, Any]:
    """A penalty and a bias, of any temperature."""
    found: dict[str, Any] = {}
    if draws.chance(0.2):
        found["repetition_penalty"] = draws.one(0.5, 1.0, 1.1, 1.3, 3.0)
    for name in ("presence_penalty", "frequency_penalty"):
        if draws.chance(0.15):
            found[name] = draws.one(-2.0, -0.1, 0.0, 0.3, 1.0, 2.0)
    if draws.chance(0.2):
        biased = [draws.randrange(n_vocab) for _ in range(draws.randint(1, 3))]
        found["logit_bias"] = {token: draws.one(-inf, -5.0, -1.0, 0.0, 2.0, 30.0) for token in biased}
        if len(found["logit_bias"]) == n_vocab:
            found["logit_bias"][0] = 1.0
    if draws.chance(0.15):
        found["no_repeat_ngram_size"] = draws.randint(2, 4)
    if draws.chance(0.15):
        lengths = [draws.randint(1, 3) for _ in range(draws.randint(1, 3))]
        found["bad_words"] = [[draws.randrange(n_vocab) for _ in range(n)] for n in lengths]
    return found


def draw_settings(draws: Draws, target: dict[str, Any], n_prompts: int) -> dict[str, Any]:
    """Settings of a run of some prompts."""
    n_vocab = target.get("n_vocab", 11)
    found: dict[str, Any] = {
        "seed": draws.randrange(2**32),
        "max_new_tokens": draws.one(1, 2, 5, 12, 12, 24, 24, None),
        "gamma": draws.one(None, None, draws.randint(0, 12), draws.randint(1, 6), "auto", ["function", 7]),
    }
    greedy = draws.chance(0.5)
    found |= draw_adjustment(draws, n_vocab) if greedy else draw_sampling(draws, n_vocab)
    if draws.chance(0.15):
        found["transform"] = draws.one(*TRANSFORMS)
    if draws.chance(0.12):
        found["constraint"] = {
            "n_vocab": n_vocab, "seed": draws.randrange(1000), "n_allowed": draws.randint(1, 5),
            "length": draws.one(None, 3, 9), "forced": draws.one(0.0, 0.4, 1.0),
        }  # fmt: skip
    if draws.chance(0.15):
        found["draft_sampling"] = {"temperature": 0.0} if draws.chance(0.3) else draw_sampling(draws, n_vocab)
    rule = draws.weighted(**{"rejection": 4, "block": 1, "coupled": 3, "k-sequential": 1, "classical": 1})
    if rule != "rejection":
        found["verify"] = rule
    elif draws.chance(0.15):
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
    if draws.chance(0.1):
        found["ignore_eos"] = True
    if draws.chance(0.08):
        found["n_threads"] = draws.randint(2, 4)
    if draws.chance(0.6):
        found["logits"] = True
    if n_prompts > 1 and draws.chance(0.5):
        found["batch_size"] = draws.randint(1, n_prompts)
    if draws.chance(0.2):
        found["node_budget"] = n_prompts + draws.randint(0, 20)
    if draws.chance(0.15):
        found["prompt_cache"] = draws.one(0, 5_000, 1_000_000)
    return found


@functools.cache
def _prompt_cache(max_bytes: int) -> specdec.PromptCache:
    """One for all runs, so that a run finds what those before it have read."""
    return specdec.PromptCache(max_bytes)


def is_extreme(settings: dict[str, Any]) -> bool:
    """Whether a value is one of `EXTREMES`."""
    return any(settings.get(name) in values for name, values in EXTREMES.items())


def may_forbid_all(settings: dict[str, Any]) -> bool:
    """Whether settings may leave no token to choose from."""
    return is_extreme(settings) or "no_repeat_ngram_size" in settings or "bad_words" in settings


def keywords(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `specdec.generate`; one thread where nothing is said."""
    found = {"n_threads": 1} | settings
    gamma = found.get("gamma")
    if isinstance(gamma, list):
        found["gamma"] = EveryOther(gamma[1])
    if "prompt_cache" in found:
        found["prompt_cache"] = _prompt_cache(found["prompt_cache"])
    if "transform" in found:
        found["transform"] = TRANSFORMS[found["transform"]]
    if "constraint" in found:
        found["constraint"] = Form(**found["constraint"])
    if "form" in found:
        kind, form, _ = found.pop("form")
        found[kind] = form
    if "draft_sampling" in found:
        found["draft_sampling"] = specdec.Sampling(**found["draft_sampling"])
    return found


def plain_keywords(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a plain run of one prompt, on one thread, with the same output."""
    only_speculative = (
        "gamma",
        "draft_sampling",
        "batch_size",
        "node_budget",
        "seed",
        "n_threads",
        "prompt_cache",
    )
    return keywords({name: value for name, value in settings.items() if name not in only_speculative})


def _adjusted(
    settings: dict[str, Any], logits: NDArray[np.float32], text: Sequence[int], n_prompt: int
) -> NDArray[Any]:
    return reference.adjusted_logits(
        logits,
        text,
        settings.get("repetition_penalty") or 1.0,
        settings.get("logit_bias"),
        n_prompt=n_prompt,
        **{name: settings[name] for name in _BY_TEXT if name in settings},
    )


def _standardised(settings: dict[str, Any], adjusted: NDArray[Any]) -> Probs:
    lenient_argmax = settings.get("lenience", 1.0) < 1.0 and not settings.get("temperature", 0.0)
    return reference.distribution(
        adjusted,
        temperature=1.0 if lenient_argmax else settings.get("temperature", 0.0),
        top_k=0 if lenient_argmax else settings.get("top_k") or 0,
        top_p=1.0 if lenient_argmax else settings.get("top_p") or 1.0,
        min_p=0.0 if lenient_argmax else settings.get("min_p") or 0.0,
    )


def hangs_on_rounding(
    settings: dict[str, Any], logits: NDArray[np.float32], text: Sequence[int], n_prompt: int
) -> bool:
    """Whether a cut of top-k, nucleus or min-p falls between tokens that rounding may swap.

    The reference weighs tokens in f64 and the core in f32: there two that differ in the last bits are equal,
    and the one of the lower id stays. With such logits either set of tokens is right.
    """
    temperature = settings.get("temperature", 0.0)
    if not temperature or not any(settings.get(name) for name in ("top_k", "top_p", "min_p")):
        return False
    adjusted = _adjusted(settings, logits, text, n_prompt).astype(np.float64)
    kept = _standardised(settings, adjusted) > 0.0
    finite = adjusted[np.isfinite(adjusted)]
    step = temperature * 1e-6 + np.ptp(finite) * 2.0**-22
    for value in np.unique(finite):  # equal logits are equal for both
        for sign in (-1.0, 1.0):
            moved = np.where(adjusted == value, adjusted + sign * step, adjusted)
            if not np.array_equal(_standardised(settings, moved) > 0.0, kept):
                return True
    return False


def distribution_after(
    settings: dict[str, Any],
    logits: NDArray[np.float32],
    text: Sequence[int],
    n_prompt: int,
    target: specdec.Model | None = None,
) -> Probs:
    """The distribution of the token after a text, from its logits: in NumPy, by the reference.

    A form is one of the target's tokens.
    """
    adjusted = _adjusted(settings, logits, text, n_prompt)
    allowed = None
    if "constraint" in settings:
        allowed = Form(**settings["constraint"]).allowed(list(text[n_prompt:]))
    elif "form" in settings:
        assert target is not None
        may_end = not settings.get("ignore_eos", False)
        allowed = allowed_after(settings["form"], target, list(text[n_prompt:]), may_end=may_end)
    if allowed is not None:
        adjusted = np.where(allowed, adjusted, -inf)
    probs = _standardised(settings, adjusted)
    if "transform" in settings:
        probs = TRANSFORMS[settings["transform"]](probs, list(text))
        if allowed is not None:
            probs = np.where(allowed, probs, 0.0)
        probs = probs / probs.sum()
    return probs
