"""Comparison of sampled short texts on small vocabularies with their exact distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

import specdec
from fuzz.decoding import may_be_refused
from fuzz.drafts import make_draft
from fuzz.objects import ProposerError
from fuzz.running import Case, Failure
from fuzz.settings import distribution_after, hangs_on_rounding, keywords
from specdec import _core
from specdec.errors import InputError
from worlds.described import adapted_target, models_of_texts

Tokens = tuple[int, ...]

N_FIRST, SUSPICION, N_SECOND = 1500, 0.02, 10_000
"""Number of samples in a first test; a p value below which a second test with other samples decides."""


class HangsOnRoundingError(Exception):
    """A truncation of a distribution falls between tokens that rounding may swap."""


def check_distribution(case: Case) -> str:
    """Compare frequencies of texts, first and last tokens with their probabilities, by exact binomial tests.

    The p value is the least one times their number (Bonferroni); with lenience, the test is one-sided. A case
    passes if its distribution depends on the last bits of the logits.
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


def _compare(case: Case, n: int, look: int, level: float) -> None:
    from scipy.stats import binom  # takes long to import

    settings, length = case["settings"], case["length"]
    target = adapted_target(case)
    draft = make_draft(case["draft"], case["target"], case["models"])
    options = keywords(settings) | {"seed": settings["seed"] + look, "max_new_tokens": length}
    given = case["prompt"]
    if "source" in case:
        given, options["decoder_prompt"] = case["source"], given
    among = models_of_texts(case, target) or [target]
    if "adapters" in case:  # the first is tested, the others share its batch
        options["adapter"] = [None if model is target else model for model in among] * n
    results = specdec.generate(target, draft, [given] * n * len(among), batch_size=32, **options)
    found = Counter(tuple(result.tokens) for result in results[:: len(among)])
    exact = _distribution(among[0], case)
    bound = settings.get("lenience", 1.0) ** -1
    tests = [(f"text {text}", found[text], exact[text], bound**length) for text in exact]
    for place in {0, length - 1} if length > 1 else ():
        for token in range(target.config["n_vocab"]):
            count = sum(number for text, number in found.items() if text[place] == token)
            probability = sum(p for text, p in exact.items() if text[place] == token)
            if place == 0 or bound == 1.0:
                tests.append((f"token {token} at {place}", count, probability, bound))
    names, counts, probabilities, factors = map(np.array, zip(*tests, strict=True))
    limits = np.minimum(1.0, probabilities * factors)
    above, below = binom.sf(counts - 1, n, limits), binom.cdf(counts, n, limits)
    p = np.where(factors > 1.0, above, np.minimum(1.0, 2 * np.minimum(above, below)))
    if p.min() * len(tests) < level:
        i = p.argmin()
        raise Failure(
            f"distribution: {names[i]} came {counts[i]} times of {n} ({counts[i] / n:.5f}), of probability "
            f"{probabilities[i]:.5f}, times {factors[i]:.3g} by lenience; p = {p[i] * len(tests):.1e}"
        )


def _distribution(target: specdec.Model, case: Case) -> dict[Tokens, float]:
    n_vocab, settings = target.config["n_vocab"], case["settings"]
    exact: dict[Tokens, float] = {(): 1.0}
    for _ in range(case["length"]):
        longer: dict[Tokens, float] = {}
        for new, probability in exact.items():
            if probability == 0.0:
                longer |= {(*new, token): 0.0 for token in range(n_vocab)}
                continue
            prompt = [*target.decoder_start, *case["prompt"]]
            text, logits = [*prompt, *new], _logits_after(target, prompt, new, case.get("source"))
            if hangs_on_rounding(settings, logits, text, len(prompt)):
                raise HangsOnRoundingError(f"after {text}")
            row = distribution_after(settings, logits, text, len(prompt))
            longer |= {(*new, token): probability * float(row[token]) for token in range(n_vocab)}
        exact = longer
    return exact


def _logits_after(
    target: specdec.Model, prompt: list[int], new: Tokens, source: list[int] | None
) -> NDArray[np.float32]:
    """Logits [n_vocab] after a prompt, read as prompts are except its last token, and new tokens."""
    *begun, root = prompt
    decoder = _core.Decoder(target.core, capacity=len(prompt) + len(new), source=source)
    if begun:
        decoder.prefill(begun)
    for token in (root, *new):
        logits = decoder.forward([token], [-1])[0]
        decoder.keep([0])
    return logits
