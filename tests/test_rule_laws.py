"""Contract 1, distribution, for every rule and shape of tree on distributions of trained models.

The distributions are those of trained models and of models near them; the drafts are drawn here, the core
verifies them. 100,000 continuations a test; a right program fails one with probability FALSE_ALARM (1e-3) for
a fresh seed, and seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from exact import Conditional, Proposal, depths, independent, without_replacement
from laws import FALSE_ALARM, TRAINED, conditional, count, law_of, p_value, trained
from specdec import _core, reference
from tables import shapes

pytestmark = pytest.mark.law

N_SAMPLES = 100_000


class Models(NamedTuple):
    """What trained models say after the prompt and some new tokens."""

    target: Conditional
    draft: Conditional
    other: Conditional
    """Of a model farther from the target, hotter."""
    hot: Conditional
    """As `draft`, hotter."""
    broad: Conditional
    """As `draft`, over more tokens."""
    broader: Conditional
    """Over so many that all of the target's are among them."""


@pytest.fixture(scope="module", params=TRAINED)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    found = trained(request, request.param, tmp_path_factory.mktemp("models"))
    return Models(
        conditional(found.target.logits, found.prompt, temperature=1.0, top_k=4),
        conditional(found.near.logits, found.prompt, temperature=1.0, top_k=4),
        conditional(found.far.logits, found.prompt, temperature=1.5, top_k=4),
        conditional(found.near.logits, found.prompt, temperature=1.5, top_k=4),
        conditional(found.near.logits, found.prompt, temperature=1.0, top_k=12),
        conditional(found.near.logits, found.prompt, temperature=1.0, top_k=40),
    )


# --------------------------------------------------------------------------- drawing and verifying


def groups(rows: NDArray[np.int64]) -> Iterator[tuple[list[int], NDArray[np.int64]]]:
    """Each distinct row, and where it stands."""
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    where = np.split(np.argsort(inverse.ravel(), kind="stable"), np.cumsum(np.bincount(inverse.ravel()))[:-1])
    yield from zip(distinct.tolist(), where, strict=True)


def prefixes_of(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The new tokens down to each node."""
    prefixes: list[tuple[int, ...]] = [()]
    for node in range(1, len(tokens)):
        prefixes.append((*prefixes[parents[node]], tokens[node]))
    return prefixes


def draw(parents: Sequence[int], proposal: Proposal, rng: np.random.Generator) -> NDArray[np.int64]:
    """[N_SAMPLES, n_nodes] the tokens of trees of drafts, node by node."""
    tokens = np.zeros((N_SAMPLES, len(parents)), dtype=np.int64)
    for node in range(1, len(parents)):
        for before, here in groups(tokens[:, :node]):
            row = proposal(node, prefixes_of(before, parents))
            tokens[here, node] = rng.choice(len(row), size=len(here), p=row)
    return tokens


def race(
    parents: Sequence[int], proposals: Sequence[Conditional], noise: NDArray[np.float64]
) -> NDArray[np.int64]:
    """As `draw`, with the noise that the target will meet, [n_samples, n_places, n_vocab]."""
    tokens, depth = np.zeros((len(noise), len(parents)), dtype=np.int64), depths(parents)
    for node in range(1, len(parents)):
        for before, here in groups(tokens[:, :node]):
            row = proposals[node](prefixes_of(before, parents)[parents[node]])
            some = np.flatnonzero(row)
            times = -np.log1p(-noise[np.ix_(here, [depth[node] - 1], some)][:, 0]) / row[some]
            tokens[here, node] = some[np.argmin(times, axis=1)]
    return tokens


def continuations(
    tokens: NDArray[np.int64],
    parents: Sequence[int],
    target: Conditional,
    reported: Proposal,
    rng: np.random.Generator,
    *,
    order: NDArray[np.float64] | None = None,
    noise: NDArray[np.float64] | None = None,
    **options: Any,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[n_samples, 2] the first two tokens, and [n_samples] how many drafts were accepted.

    `order` and `noise` have a row for each sample. An output of one token is continued by the target.
    """
    outputs, n_accepted = np.full((len(tokens), 2), -1), np.zeros(len(tokens), dtype=int)
    uniforms = rng.random((len(tokens), len(parents) + 1))
    for tree, here in groups(tokens):
        prefixes = prefixes_of(tree, parents)
        target_probs = np.array([target(prefix) for prefix in prefixes])
        rows = [reported(node, prefixes) for node in range(1, len(parents))]
        draft_probs = np.array([np.zeros_like(target_probs[0]), *rows])
        for i in here:
            of_sample = {} if order is None else {"order": order[i]}
            of_sample |= {} if noise is None else {"noise": noise[i]}
            path, token, _ = _core.verify(
                tree, parents, target_probs, draft_probs, uniforms[i], **options, **of_sample
            )
            new = [*(tree[node] for node in path[:2]), token][:2]
            outputs[i, : len(new)], n_accepted[i] = new, len(path)
    short = np.flatnonzero(outputs[:, 1] < 0)
    for first, here in groups(outputs[short, :1]):
        row = target(tuple(first))
        outputs[short[here], 1] = rng.choice(len(row), size=len(here), p=row)
    return outputs, n_accepted


def assert_lawful(outputs: NDArray[np.int64], target: Conditional) -> None:
    assert p_value(count(outputs), law_of(target, 2)) > FALSE_ALARM


# ------------------------------------------------------------------------------------------ the tests


def test_siblings_of_different_drafts_in_random_order(models: Models) -> None:
    """SpecInfer's walk (Stratos' note, 2.1), with a fresh order for every tree."""
    rng, parents = np.random.default_rng(1), shapes()["three long"]
    model_of = [
        models.draft,
        models.draft,
        models.other,
        models.draft,
        models.draft,
        models.other,
        models.draft,
    ]

    def proposal(node: int, prefixes: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
        return model_of[node](prefixes[parents[node]])

    tokens = draw(parents, proposal, rng)
    order = rng.random((N_SAMPLES, len(parents)))
    outputs, n_accepted = continuations(tokens, parents, models.target, proposal, rng, order=order)
    assert_lawful(outputs, models.target)
    assert np.bincount(n_accepted).min() > 1000


def test_iterative_sampling_of_independent_drafts(models: Models) -> None:
    """Stratos' note, section 2, K = 3: more are accepted than the first, which is with beta (Theorem 3.5)."""
    rng, parents = np.random.default_rng(2), shapes()["three"]
    proposal = independent(parents, models.broad)
    tokens = draw(parents, proposal, rng)
    outputs, n_accepted = continuations(tokens, parents, models.target, proposal, rng)
    assert_lawful(outputs, models.target)
    later = n_accepted.mean() - np.minimum(models.target(()), models.broad(())).sum()
    assert later > 0.01, "siblings that are never accepted show nothing"


def test_drafts_without_replacement(models: Models) -> None:
    rng, parents = np.random.default_rng(3), shapes()["three"]
    proposal = without_replacement(parents, models.other)
    tokens = draw(parents, proposal, rng)
    outputs, _ = continuations(tokens, parents, models.target, proposal, rng)
    assert_lawful(outputs, models.target)
    wrong, _ = continuations(tokens, parents, models.target, independent(parents, models.other), rng)
    assert p_value(count(wrong), law_of(models.target, 2)) < 1e-9, "told of the wrong draft, unseen"


def test_k_sequential_selection_of_sequences(models: Models) -> None:
    """Three sequences of two; some first draft is accepted with probability 1 - (1 - b)**3 (SpecTr)."""
    rng, parents = np.random.default_rng(4), shapes()["three long"]
    proposal = independent(parents, models.draft)
    tokens = draw(parents, proposal, rng)
    outputs, n_accepted = continuations(tokens, parents, models.target, proposal, rng, rule="k-sequential")
    assert_lawful(outputs, models.target)
    t, d = models.target(()), models.draft(())
    b = np.minimum(d, t / reference.smallest_rho(t, d, 3)).sum()
    assert (
        scipy.stats.binomtest(int((n_accepted > 0).sum()), N_SAMPLES, 1 - (1 - b) ** 3).pvalue > FALSE_ALARM
    )


def test_block_verification(models: Models) -> None:
    """Three drafts; more of them are accepted than by the standard rule on the same drafts."""
    rng, parents = np.random.default_rng(5), shapes()["chain3"]
    proposal = independent(parents, models.hot)
    tokens = draw(parents, proposal, rng)
    # The same random numbers for both, so that the difference has little noise.
    outputs, n_block = continuations(
        tokens, parents, models.target, proposal, np.random.default_rng(50), rule="block"
    )
    assert_lawful(outputs, models.target)
    standard, n_standard = continuations(tokens, parents, models.target, proposal, np.random.default_rng(50))
    assert_lawful(standard, models.target)
    gain = n_block - n_standard
    assert gain.mean() > 5 * np.sqrt(gain.var() / N_SAMPLES)


def test_classical_rejection(models: Models) -> None:
    rng, parents = np.random.default_rng(6), shapes()["chain1"]
    proposal = independent(parents, models.broader)
    tokens = draw(parents, proposal, rng)
    outputs, n_accepted = continuations(tokens, parents, models.target, proposal, rng, rule="classical")
    assert_lawful(outputs, models.target)
    t, d = models.target(()), models.broader(())
    rate = (d[t > 0] / t[t > 0]).min()  # A.2
    assert 0 < rate < np.minimum(t, d).sum()
    assert scipy.stats.binomtest(int(n_accepted.sum()), N_SAMPLES, rate).pvalue > FALSE_ALARM


def test_coupled_sampling_on_a_tree(models: Models) -> None:
    """Two sequences of two from different drafts, all drawn with the target's own noise."""
    rng, parents = np.random.default_rng(7), shapes()["both"]
    proposals = [models.draft, models.draft, models.other, models.draft, models.other]
    reported = independent(parents, models.draft)  # what the drafts were drawn from does not matter
    outputs, n_accepted = [], 0
    for _ in range(20):  # for the memory that noise takes
        noise = rng.random((N_SAMPLES // 20, 3, len(models.target(()))))
        tokens = race(parents, proposals, noise)
        some, accepted = continuations(
            tokens, parents, models.target, reported, rng, rule="coupled", noise=noise
        )
        outputs.append(some)
        n_accepted += accepted.sum()
    assert_lawful(np.concatenate(outputs), models.target)
    assert n_accepted / N_SAMPLES > np.minimum(models.target(()), models.draft(())).sum() / 2


@pytest.mark.parametrize("lenience", [0.7, 0.3])
def test_lenience_keeps_its_bound(models: Models, lenience: float) -> None:
    """A.5 with two sequences: one-sided tests of P(x) <= T(x) / l for every token, and of pairs."""
    rng, parents = np.random.default_rng(8), shapes()["both"]
    proposal = independent(parents, models.draft)
    tokens = draw(parents, proposal, rng)
    outputs, _ = continuations(tokens, parents, models.target, proposal, rng, lenience=lenience)
    assert p_value(count(outputs), law_of(models.target, 2)) < 1e-9, (
        "lenience that changes nothing shows nothing"
    )
    for length in (1, 2):
        law, counts = law_of(models.target, length), count(outputs[:, :length])
        assert counts.keys() <= law.keys()
        for new, probability in law.items():
            bound = min(1.0, probability / lenience**length)
            test = scipy.stats.binomtest(counts.get(new, 0), N_SAMPLES, bound, alternative="greater")
            assert test.pvalue > FALSE_ALARM / len(law)
