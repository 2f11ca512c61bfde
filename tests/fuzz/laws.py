"""The law of short texts on small vocabularies, sampled and exact."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from fuzz.adapters import adapted_target, models_of_texts
from fuzz.decoding import may_be_refused
from fuzz.drafts import make_draft
from fuzz.failures import Failure
from fuzz.objects import ProposerError
from fuzz.settings import distribution_after, hangs_on_rounding, keywords
from specdec import _core
from specdec.errors import InputError

__all__ = ["check_law", "tail"]

Tokens = tuple[int, ...]

N_FIRST, SUSPICION, N_SECOND = 1500, 0.02, 10_000
"""Samples of a first look; a p value below which there is a second one, of other samples, that decides."""


class HangsOnRoundingError(Exception):
    """A cut of a distribution falls between tokens that rounding may swap."""


def check_law(case: dict[str, Any]) -> str:
    """Sample texts, and compare how often each came with the probability that the target gives it.

    Each text, each first and each last token is tested by itself, by an exact binomial test; the p value is
    the least one times their number (Bonferroni). With lenience, the test is one-sided, against the bound.
    With a right program the second look fails with at most the probability `alarm` of the case. A case whose
    law hangs on the last bits of the logits has none to compare with, and passes.
    """
    try:
        _compare(case, N_FIRST, 0, SUSPICION)
    except (InputError, ProposerError):
        if may_be_refused(case):
            return "refused"
        raise
    except HangsOnRoundingError:
        return "passed"
    except Failure:
        _compare(case, N_SECOND, 1, case["alarm"])
    return "passed"


def _compare(case: dict[str, Any], n: int, look: int, level: float) -> None:
    settings, length = case["settings"], case["length"]
    target = adapted_target(case)
    draft = make_draft(case["draft"], case["target"], case["models"])
    options = keywords(settings) | {"seed": settings["seed"] + look, "max_new_tokens": length}
    given = case["prompt"]
    if "source" in case:
        given, options["decoder_prompt"] = case["source"], given
    among = models_of_texts(case, target)
    if among is None:
        results = specdec.generate(target, draft, [given] * n, batch_size=32, **options)
    else:  # the first is looked at, the others share its batch
        options["adapter"] = [None if model is target else model for model in among] * n
        results = specdec.generate(target, draft, [given] * n * len(among), batch_size=32, **options)
        results, target = results[:: len(among)], among[0]
    found = Counter(tuple(result.tokens) for result in results)
    law = _law(target, case)
    bound = settings.get("lenience", 1.0) ** -length
    first_bound = settings.get("lenience", 1.0) ** -1
    tests = [(f"text {text}", found[text], law[text], bound) for text in law]
    for place in {0, length - 1} if length > 1 else ():
        for token in range(target.config["n_vocab"]):
            count = sum(number for text, number in found.items() if text[place] == token)
            probability = sum(p for text, p in law.items() if text[place] == token)
            if place == 0 or bound == 1.0:
                tests.append((f"token {token} at {place}", count, probability, first_bound))
    for what, count, probability, factor in tests:
        limit = min(1.0, probability * factor)
        p = (
            tail(n, limit, count)
            if factor > 1.0
            else min(1.0, 2 * min(tail(n, limit, count), lower(n, limit, count)))
        )
        if p * len(tests) < level:
            more = "" if factor == 1.0 else f", at most {limit:.5f} by lenience"
            raise Failure(
                "difference",
                f"law: {what} came {count} times of {n} ({count / n:.5f}), of probability {probability:.5f}"
                f"{more}; p = {p * len(tests):.1e} over {len(tests)} tests",
            )


def _law(target: specdec.Model, case: dict[str, Any]) -> dict[Tokens, float]:
    n_vocab, settings = target.config["n_vocab"], case["settings"]
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(case["length"]):
        longer: dict[Tokens, float] = {}
        for new, probability in law.items():
            if probability == 0.0:
                longer |= {(*new, token): 0.0 for token in range(n_vocab)}
                continue
            prompt = [*target.decoder_start, *case["prompt"]]
            text, logits = [*prompt, *new], _logits_behind(target, prompt, new, case.get("source"))
            if hangs_on_rounding(settings, logits, text, len(prompt)):
                raise HangsOnRoundingError(f"after {text}")
            row = distribution_after(settings, logits, text, len(prompt))
            longer |= {(*new, token): probability * float(row[token]) for token in range(n_vocab)}
        law = longer
    return law


def _logits_behind(target: specdec.Model, prompt: list[int], new: Tokens, source: Any) -> NDArray[np.float32]:
    """Logits [n_vocab] behind a prompt and new tokens.

    All of the prompt but its last token is read as prompts are, which may have bits of their own; that token
    and what follows are decoded.
    """
    *begun, root = prompt
    decoder = _core.Decoder(target.core, capacity=len(prompt) + len(new), source=source)
    if begun:
        decoder.prefill(begun)
    for token in (root, *new):
        logits = decoder.forward([token], [-1])[0]
        decoder.keep([0])
    return logits


def tail(n: int, p: float, k: int) -> float:
    """P(X >= k) of a binomial X of n trials of probability p."""
    if k <= 0 or p >= 1.0:
        return 1.0
    if p <= 0.0:
        return 0.0
    if k <= n * p:  # the larger part: from the other side
        return max(0.0, 1.0 - lower(n, p, k - 1))
    return _sum(n, p, range(k, n + 1))


def lower(n: int, p: float, k: int) -> float:
    """P(X <= k)."""
    if k >= n or p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 0.0
    if k >= n * p:
        return max(0.0, 1.0 - tail(n, p, k + 1))
    return _sum(n, p, range(k, -1, -1))


def _sum(n: int, p: float, values: range) -> float:
    """The sum of probabilities that fall along the values."""
    total, logs = 0.0, (math.log(p), math.log1p(-p))
    whole = math.lgamma(n + 1)
    for k in itertools.islice(values, n + 1):
        log = whole - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * logs[0] + (n - k) * logs[1]
        term = math.exp(log)
        total += term
        if term < 1e-12 * total or log < -700:
            break
    return min(1.0, total)
