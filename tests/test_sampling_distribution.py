"""Contract 1, distribution, on whole models: sampled continuations against their exact distribution.

That distribution comes from the target's logits alone. With a fresh seed a correct program fails each test
with probability FALSE_ALARM (1e-3); seeds are fixed. The other rules have fewer samples here, and are proven
in ``test_rules``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from compiled import Model, prompt_logits
from distributions import (
    FALSE_ALARM,
    TRAINED,
    Conditional,
    Probs,
    Tokens,
    Trained,
    beta,
    conditional,
    count,
    p_value,
    trained,
)
from exact import chain_distribution
from sessions import Session, all_rounds
from specdec import Sampling, drafts, reference
from worlds.canonical import GPT, LLAMA, build, random_tensors

SLOW = specdec.kernels() == "ref"
"""The scalar kernels give the same bits and would take minutes: fewer samples there."""


# ---------------------------------------------------------------------------------- a trained pair

N_SAMPLES = {"small": 2_000 if SLOW else 20_000, "stories260K": 5_000 if SLOW else 100_000}
BATCH = 50
SETTINGS = {"temperature": 1.0, "top_k": 6}


@pytest.fixture(scope="module", params=TRAINED)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(request, request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def tables(models: Trained) -> tuple[Conditional, Conditional]:
    target, draft = (conditional(m.logits, models.prompt, **SETTINGS) for m in (models.target, models.near))
    assert 0.1 < beta(target, draft) < 0.9, "drafts must be both accepted and rejected"
    return target, draft


@pytest.fixture(scope="module")
def results(models: Trained) -> list[specdec.Result]:
    """Continuations of equal prompts in batches, each with its own seed.

    Three tokens, so that the first round can have two draft tokens. One thread, because waking another takes
    longer than models of this size compute.
    """
    return [
        result
        for batch in range(N_SAMPLES[models.name] // BATCH)
        for result in specdec.generate(
            models.target, models.near, [models.prompt] * BATCH, gamma=2, max_new_tokens=3, seed=123 + batch,
            n_threads=1, **SETTINGS,
        )
    ]  # fmt: skip


@pytest.mark.statistical
def test_two_tokens_of_a_trained_pair(
    tables: tuple[Conditional, Conditional], results: list[specdec.Result]
) -> None:
    tokens = np.array([result.tokens[:2] for result in results])
    assert p_value(count(tokens), chain_distribution(tables[0], 2)) > FALSE_ALARM


@pytest.mark.statistical
def test_drafts_are_accepted_as_often_as_theorem_3_5_says(
    tables: tuple[Conditional, Conditional], results: list[specdec.Result]
) -> None:
    n_accepted = sum(result.trace.rounds[0].n_accepted > 0 for result in results)
    assert scipy.stats.binomtest(n_accepted, len(results), beta(*tables)).pvalue > FALSE_ALARM
    assert results[0].trace.rounds[0].betas[0] == pytest.approx(beta(*tables), abs=1e-4)
    assert {result.trace.rule for result in results} == {"block"}


@pytest.mark.statistical
def test_equal_prompts_of_a_batch_are_independent(
    tables: tuple[Conditional, Conditional], results: list[specdec.Result]
) -> None:
    """First tokens of neighbors in the batch, and at the same index in batches with neighboring seeds."""
    probs = tables[0](())
    expected = {(a, b): float(probs[a] * probs[b]) for a, b in itertools.product(range(len(probs)), repeat=2)}
    expected = {pair: probability for pair, probability in expected.items() if probability > 0}
    first = np.array([result.tokens[0] for result in results])
    for pairs in (first.reshape(-1, 2), first.reshape(-1, 2, BATCH).swapaxes(1, 2).reshape(-1, 2)):
        assert p_value(count(pairs), expected) > FALSE_ALARM


LENIENCE = 0.5


def lenient(target: Conditional, draft: Conditional) -> Conditional:
    """The distribution of A.5: min(T / l, D), and the rest from norm(max(0, T / l - D))."""

    def conditional(new: Tokens) -> Probs:
        both = np.minimum(target(new) / LENIENCE, draft(new))
        return both + (1 - both.sum()) * reference.residual(target(new) / LENIENCE, draft(new))

    return conditional


def agreement(t: Probs, d: Probs) -> float:
    """Probability that two races with one noise agree: for x, 1 / sum_y max(T(y) / T(x), D(y) / D(x))."""
    both = np.flatnonzero(np.minimum(t, d))
    return float(sum(1 / np.maximum(t / t[x], d / d[x]).sum() for x in both))


def either(t: Probs, d: Probs) -> float:
    """Probability that one of two draws from d is accepted, the second against the residual."""
    both = np.minimum(t, d).sum()
    return float(both + (1 - both) * np.minimum(reference.residual(t, d), d).sum())


# For each rule: options of generate, and the chance that a first draft token is accepted.
RULES: dict[str, tuple[dict[str, Any], Callable[[Probs, Probs], float]]] = {
    "rejection": ({"verify": "rejection"}, lambda t, d: np.minimum(t, d).sum()),
    "traversal": ({"tree": drafts.StaticTree((2, 2)), "gamma": None}, either),
    "coupled": ({"verify": "coupled"}, agreement),
    "classical": (
        {"verify": "classical", "draft_sampling": Sampling(1.0)},
        lambda t, d: (d[t > 0] / t[t > 0]).min(),
    ),
    "lenient": ({"lenience": LENIENCE}, lambda t, d: np.minimum(t / LENIENCE, d).sum()),
}


@pytest.mark.statistical
@pytest.mark.parametrize("rule", RULES)
def test_the_other_rules(models: Trained, rule: str) -> None:
    """Two tokens; with lenience by its own distribution, and no first token above the bound T / l.

    A tree has traversal by default, as chains have block verification, which made `results`.
    """
    options, chance = RULES[rule]
    how = {"gamma": 2, "max_new_tokens": 3} | SETTINGS | options
    tree = how.pop("tree", None)
    drafting = models.near if tree is None else drafts.ModelDraft(models.near, tree=tree)
    of_draft = {"temperature": 1.0} if "draft_sampling" in options else SETTINGS
    target = conditional(models.target.logits, models.prompt, **SETTINGS)
    draft = conditional(models.near.logits, models.prompt, **of_draft)
    n_samples = N_SAMPLES["small"]  # as many suffice to see what lenience changes
    tokens, n_accepted = [], 0
    for batch in range(n_samples // 500):
        several = {"seed": 77_000 + batch, "n_threads": 1} | how
        for result in specdec.generate(models.target, drafting, [models.prompt] * 500, **several):
            tokens.append(result.tokens[:2])
            n_accepted += result.trace.rounds[0].n_accepted > 0
    counts = count(np.array(tokens))
    expected = chain_distribution(lenient(target, draft) if rule == "lenient" else target, 2)
    assert p_value(counts, expected) > FALSE_ALARM
    assert scipy.stats.binomtest(n_accepted, n_samples, chance(target(()), draft(()))).pvalue > FALSE_ALARM
    if rule == "lenient":
        assert p_value(counts, chain_distribution(target, 2)) < 1e-9, (
            "lenience that changes nothing shows nothing"
        )
        first = count(np.array(tokens)[:, :1])
        for token in np.flatnonzero(target(())):
            bound = min(1.0, target(())[token] / LENIENCE)
            test = scipy.stats.binomtest(first.get((token,), 0), n_samples, bound, alternative="greater")
            assert test.pvalue > FALSE_ALARM / 6


# --------------------------------------------------------------- five tokens, settings that differ


def small(base: dict[str, Any], seed: int) -> Model:
    """A random model over five tokens."""
    sizes = {"n_vocab": 5, "n_ctx": 16, "n_layer": 2, "d_model": 24, "d_ff": 40}
    config = base | sizes
    return build(config, {name: 2 * tensor for name, tensor in random_tensors(config, seed).items()})


@pytest.mark.parametrize(
    ("gamma", "of_target", "of_draft"),
    [
        (1, {}, {}),
        pytest.param(3, {"temperature": 0.8}, {"temperature": 1.5}, marks=pytest.mark.statistical),
        pytest.param(3, {"top_k": 3}, {"top_p": 0.7}, marks=pytest.mark.statistical),
        pytest.param(2, {"temperature": 1.5, "top_p": 0.8}, {"top_k": 2}, marks=pytest.mark.statistical),
        pytest.param(2, {}, {"temperature": 0.0}, marks=pytest.mark.statistical),
    ],
    ids=["plain", "temperatures", "top-k-and-nucleus", "nucleus-and-top-k", "greedy-draft"],
)
def test_three_tokens_of_a_tiny_vocabulary(
    gamma: int, of_target: dict[str, float], of_draft: dict[str, float]
) -> None:
    """Target and draft are unrelated, of different families, and standardized differently."""
    n_samples, prompt = 2_000 if SLOW else 10_000, [1, 3, 0, 4]
    default = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    of_target, of_draft = default | of_target, default | of_draft
    models = small(LLAMA, seed=1), small(GPT, seed=2)
    samples, n_accepted = [], 0
    for batch in range(n_samples // BATCH):
        session = Session(
            *models, [prompt] * BATCH, gamma=gamma, max_new_tokens=5, sampling=of_target,
            draft_sampling=of_draft, seeds=[(batch, i) for i in range(BATCH)],
        )  # fmt: skip
        texts: list[list[int]] = [[] for _ in range(BATCH)]
        for record in all_rounds(session):
            n_accepted += not texts[record["sequence"]] and len(record["accepted"]) > 0
            texts[record["sequence"]] += record["tokens"]
        samples += [text[:3] for text in texts]
    target, draft = (
        conditional(partial(prompt_logits, model), prompt, **options)
        for model, options in zip(models, (of_target, of_draft), strict=True)
    )
    assert p_value(count(np.array(samples)), chain_distribution(target, 3)) > FALSE_ALARM
    assert scipy.stats.binomtest(n_accepted, n_samples, beta(target, draft)).pvalue > FALSE_ALARM
