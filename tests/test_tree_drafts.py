"""Trees drafted by a model, and nested drafts: draft tokens, their distributions, and the output.

Statistical tests fix their seeds and state their false alarm rate.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

import specdec
from descriptions import by_method
from distributions import FALSE_ALARM, p_value
from exact import Conditional, Proposal, chain_distribution, independent, prefixes_of, without_replacement
from sessions import Session, all_rounds
from specdec import InputError, _core, drafts, reference
from specdec.drafts import Bigram, DynamicTree, ParallelChains, PythonDraft, StaticTree
from specdec.verification.rules import DECODING_RULES
from trained import small_pair
from worlds import canonical
from worlds.canonical import LLAMA, build, perturbed, random_tensors, step_by_step

Tokens = tuple[int, ...]


def config_of(n_vocab: int, **changes: Any) -> dict[str, Any]:
    return LLAMA | {"n_vocab": n_vocab, "n_layer": 2, "n_ctx": 64} | changes


def random_model(n_vocab: int, seed: int, scale: float = 3.0, **changes: Any) -> _core.Model:
    return canonical.random_model(config_of(n_vocab, **changes), seed, scale)


def follower(table: dict[int, Sequence[int]], n_vocab: int) -> _core.Model:
    """A model in which each token has equally likely successors, whatever came before."""
    config = config_of(n_vocab, n_layer=1)
    tensors = {name: np.zeros_like(array) for name, array in random_tensors(config).items()}
    tensors["token_embedding"][:, :n_vocab] = np.eye(n_vocab, dtype=np.float32)
    tensors["output_norm.weight"][:] = 1.0
    for token, successors in table.items():
        for successor in successors:
            tensors["head"][successor, token] = 40.0
    return build(config, tensors)


def conditional(model: _core.Model, prompt: Sequence[int], temperature: float = 1.0) -> Conditional:
    @cache
    def probs(new: Tokens) -> NDArray[np.float64]:
        return reference.distribution(step_by_step(model, [*prompt, *new])[-1], temperature)

    return probs


def rounds(
    target: _core.Model, draft: object, prompts: list[list[int]], *, n: int | None = 1,
    keep_drafts: bool = True, **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Records of the first n rounds of each prompt, or of all rounds."""
    how: dict[str, Any] = {"gamma": 8, "max_new_tokens": 20, "temperature": 1.0}
    how["seeds"] = [(5, i) for i in range(len(prompts))]
    session = Session(target, draft, prompts, **(how | options))
    return all_rounds(canonical.with_drafts(session) if keep_drafts else session, n)


def text_of(records: list[dict[str, Any]], sequence: int) -> list[int]:
    return [token for record in records if record["sequence"] == sequence for token in record["tokens"]]


# ------------------------------------------------------------------------------------ given shapes

PROMPT = [1, 2, 0]
TREES = {
    "(2, 2)": (0, 0, 1, 1, 2, 2),
    "(3, 1)": (0, 0, 0, 1, 2, 3),
    "uneven": (0, 0, 0, 1, 1, 2, 4, 4),
    "chain": (0, 1, 2, 3),
}


def test_widths_are_a_tree() -> None:
    assert StaticTree((2, 2)).parents == TREES["(2, 2)"]
    assert StaticTree((3, 1)).parents == TREES["(3, 1)"]
    assert StaticTree((4, 2, 1)).gamma == 4 + 8 + 8
    assert StaticTree(parents=[0, 0, 1]).parents == (0, 0, 1)


@pytest.mark.parametrize("acceptance", [(0.6, 0.2, 0.1), (0.5, 0.5), (0.9,), (0.3, 0.2, 0.2, 0.2)])
def test_the_shape_that_is_expected_to_do_best(acceptance: tuple[float, ...]) -> None:
    """Against all paths of the tree, sorted: the best n of them."""
    for n_nodes in (1, 2, 4, 7):
        parents = StaticTree.expected(n_nodes, acceptance).parents
        ranks: Counter[int] = Counter()
        values = [1.0]
        for parent in parents:
            values.append(values[parent] * acceptance[ranks[parent]])
            ranks[parent] += 1
        paths = [path for n in range(1, n_nodes + 1) for path in itertools.product(acceptance, repeat=n)]
        best = sorted((float(np.prod(path)) for path in paths), reverse=True)[:n_nodes]
        assert sum(values[1:]) == pytest.approx(sum(best), rel=1e-12)


@pytest.mark.parametrize("how", ["sample", "without replacement", "top-k"])
@pytest.mark.parametrize("name", TREES)
def test_a_shape_is_what_is_proposed(name: str, how: str) -> None:
    """Whole, cut by gamma, and cut where the text ends."""
    target, draft, parents = random_model(9, 1), random_model(9, 2), TREES[name]
    described = by_method("static_tree", draft, parents, how)
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    for gamma in (1, 3, len(parents), 20):
        for temperature, rule in ((0.0, "rejection"), (1.0, "rejection"), (1.0, "coupled")):
            options: dict[str, Any] = {"gamma": gamma, "temperature": temperature, "rule": rule}
            for record in rounds(target, described, [[1, 2], [3] * 5], **options):
                assert tuple(record["parents"]) == parents[:gamma]
            (record,) = rounds(target, described, [[1, 2]], max_new_tokens=3, **options)
            assert len(record["parents"]) == sum(0 < depth <= 2 for depth in depths[: gamma + 1])


PROPOSALS: dict[str, Callable[[Sequence[int], Conditional], Proposal]] = {
    "sample": independent,
    "without replacement": without_replacement,
}


def check_rows(described: tuple[object, ...], parents: Sequence[int], proposal: Proposal) -> None:
    """Compare the reported distributions of nodes with a proposal; equal nodes share a row.

    `test_every_drafter.py` tests that nodes are drawn from their reported distributions.
    """
    for gamma in (len(parents), 1, 2):
        found = rounds(random_model(3, 1), described, [PROMPT] * 60, gamma=gamma)
        assert len({tuple(record["drafted"]) for record in found}) > gamma
        for record in found:
            assert record["parents"] == list(parents[:gamma])
            prefixes = prefixes_of(record["drafted"], record["parents"])
            assert record["n_rows"] == len(set(prefixes))
            for node, row in enumerate(record["draft_probs"][1:], 1):
                np.testing.assert_allclose(row, proposal(node, prefixes[:node]), atol=2e-6)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("how", PROPOSALS)
def test_nodes_say_what_the_draft_says(how: str, name: str) -> None:
    """The distribution after the parent, or what earlier siblings left of it."""
    draft, parents = random_model(3, 2, 1.0), TREES[name]
    proposal = PROPOSALS[how]([-1, *parents], conditional(draft, PROMPT))
    check_rows(by_method("static_tree", draft, parents, how), parents, proposal)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_chains_are_dealt_out_level_by_level(k: int) -> None:
    draft, parents = random_model(3, 2, 1.0), [max(0, node - k) for node in range(1, 13)]
    proposal = independent([-1, *parents], conditional(draft, PROMPT))
    check_rows(by_method("parallel_chains", draft, k), parents, proposal)


def test_samples_run_out_where_the_draft_knows_no_more() -> None:
    """Without replacement there are as many children as tokens with mass."""
    known = follower({0: [1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}, 8)
    draft = by_method("static_tree", known, [0, 0, 0, 0, 1, 1, 1, 2], "without replacement")
    sampling = {"temperature": 1.0, "top_p": 0.99}
    (record,) = rounds(random_model(8, 1), draft, [[0, 1]], draft_sampling=sampling)
    assert record["parents"] == [0, 0, 1, 1, 2]
    assert sorted(record["drafted"][:2]) == [2, 3]


def test_top_k_are_the_most_probable() -> None:
    """In order, as point masses; ties go to the lowest id, and a forbidden token is never among them."""
    target, draft = random_model(700, 1), random_model(700, 2)
    for temperature in (0.0, 0.7):
        bias = {int(np.argmax(step_by_step(draft, [1, 2])[-1])): -np.inf}
        (record,) = rounds(
            target, by_method("static_tree", draft, [0] * 40, "top-k"), [[1, 2]], gamma=40,
            temperature=temperature, draft_sampling={"temperature": temperature, "logit_bias": bias},
        )  # fmt: skip
        order = np.argsort(-step_by_step(draft, [1, 2])[-1], kind="stable")
        assert record["drafted"] == order[1:41].tolist()
        assert np.array_equal(record["draft_probs"][1:], np.eye(700)[record["drafted"]])
    tied = follower({1: [7, 3, 29, 5]}, 30)
    (record,) = rounds(random_model(30, 1), by_method("static_tree", tied, [0] * 6, "top-k"), [[0, 1]])
    assert record["drafted"] == [3, 5, 7, 29]  # the others have no mass


@pytest.mark.parametrize("grown", [False, True])
def test_siblings_of_the_coupled_rule_are_the_first_of_the_race(grown: bool) -> None:
    """Their order is that of the target's own race over the draft's distribution."""
    target, draft, prompt = random_model(50, 1), random_model(50, 2), [1, 2]
    described = by_method("static_tree", draft, [0, 0, 0, 1], "sample")
    if grown:
        described = by_method("dynamic_tree", draft, 3, 1, 1.0)
    probs = reference.distribution(step_by_step(draft, prompt)[-1], 1.0)
    for i, record in enumerate(
        rounds(target, described, [prompt] * 20, rule="coupled", gamma=3 + (not grown))
    ):
        noise = reference.noise(5, i, len(prompt), 50)
        with np.errstate(divide="ignore"):
            times = -np.log1p(-noise) / probs
        assert record["drafted"][:3] == np.argsort(times)[:3].tolist()


# -------------------------------------------------------------------------------------- grown trees


def grown(probs: Conditional, n_nodes: int, width: int, steps: int, depth: int) -> list[Tokens]:
    """Expand the best unread nodes, and keep the best of all."""
    values: dict[Tokens, float] = {(): 1.0}
    read: set[Tokens] = set()

    def best() -> list[Tokens]:
        return sorted(values.keys() - {()}, key=lambda prefix: -values[prefix])[:n_nodes]

    for step in range(steps):
        unread = [p for p in best() if p not in read and len(p) < depth] if step else [()]
        for prefix in unread[:width]:
            read.add(prefix)
            row = probs(prefix)
            for token in np.argsort(-row, kind="stable")[:width]:
                values[(*prefix, int(token))] = values[prefix] * float(row[token])
    return best()


@pytest.mark.parametrize("n_nodes", [1, 2, 3])
def test_a_grown_tree_is_the_best_of_all(n_nodes: int) -> None:
    """With enough steps and width, no tree of this size has more expected accepted tokens."""
    target, draft = random_model(3, 1), random_model(3, 2, 2.2)
    prefixes = [
        prefix for depth in range(1, n_nodes + 1) for prefix in itertools.product(range(3), repeat=depth)
    ]
    trees = [tree for tree in itertools.combinations(prefixes, n_nodes)
             if all(len(prefix) == 1 or prefix[:-1] in tree for prefix in tree)]  # fmt: skip
    for prompt in ([1, 2], [2], [0, 1, 1]):
        probs = conditional(draft, prompt)
        chances = {prefix: float(np.prod([probs(prefix[:i])[token] for i, token in enumerate(prefix)]))
                   for prefix in prefixes}  # fmt: skip
        (record,) = rounds(target, by_method("dynamic_tree", draft, 3, n_nodes, 1.0), [prompt], gamma=n_nodes)
        found = prefixes_of(record["drafted"], record["parents"])[1:]
        best = max(sum(chances[prefix] for prefix in tree) for tree in trees)
        assert len(found) == n_nodes
        assert sum(chances[prefix] for prefix in found) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(("temperature", "sharpness"), [(0.0, 1.0), (0.0, 3.5), (1.0, 3.5)])
@pytest.mark.parametrize(("width", "steps"), [(1, 3), (2, 3), (3, 2), (4, 1)])
def test_a_tree_grows_step_by_step(width: int, steps: int, temperature: float, sharpness: float) -> None:
    """At temperature 0 confidence is that of the logits times the sharpness; else it is the probability."""
    confidence_at = 1.0 / sharpness if temperature == 0.0 else 1.0
    target, draft = random_model(30, 1), random_model(30, 2, 2.0)
    for prompt in ([1, 2], [7], [9, 4, 1]):
        for n_nodes, depth in ((3, 19), (9, 19), (9, 2)):
            tree = by_method("dynamic_tree", draft, width, steps, sharpness)
            options = {"gamma": n_nodes, "temperature": temperature, "max_new_tokens": depth + 1}
            (record,) = rounds(target, tree, [prompt], **options)
            wanted = grown(conditional(draft, prompt, confidence_at), n_nodes, width, steps, depth)
            assert prefixes_of(record["drafted"], record["parents"])[1:] == wanted
            assert np.array_equal(record["draft_probs"][1:], np.eye(30)[record["drafted"]])


# ------------------------------------------------------------------------------- drafts of drafts


def nested(draft: _core.Model, small: _core.Model, n_vocab: int) -> dict[str, tuple[object, ...]]:
    """Nested drafts of `draft`."""
    model = by_method("model", small)
    table = by_method("ngram", Bigram(np.random.default_rng(1).integers(0, n_vocab, 300), n_vocab).core)
    tree = by_method("static_tree", small, [0, 0, 1, 1], "without replacement")
    paths = {
        "a table": (table, 3), "a model": (model, 2), "a tree": (tree, 4),
        "chains": (by_method("parallel_chains", small, 3), 6),
        "a grown tree": (by_method("dynamic_tree", small, 2, 2, 3.5), 5),
        "three deep": (by_method("nested", small, table, 2), 3),
        "itself": (by_method("model", draft), 3), "nothing": (model, 0),
    }  # fmt: skip
    return {name: by_method("nested", draft, *path) for name, path in paths.items()}


NESTED = list(nested(random_model(3, 1), random_model(3, 2), 3))


@pytest.mark.parametrize("name", NESTED)
def test_a_draft_of_a_draft_says_what_the_middle_model_says(name: str) -> None:
    """Four draft tokens, so that there are several inner rounds, and the last has more than is taken."""
    draft, small = random_model(3, 2, 1.0), random_model(3, 4, 1.7)
    proposal = independent([-1, 0, 1, 2, 3], conditional(draft, PROMPT))
    check_rows(nested(draft, small, 3)[name], [0, 1, 2, 3], proposal)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", NESTED)
def test_greedy_and_coupled_draft_tokens_are_the_models_own(name: str, temperature: float) -> None:
    """Token for token what the model drafts alone, round after round, in a batch and two threads."""
    config = config_of(61)
    tensors = random_tensors(config, 3)
    target, draft, small = (build(config, perturbed(tensors, scale)) for scale in (0.0, 0.03, 0.08))
    prompts = [[1, 2], [3] * 9, [5]]
    options: dict[str, Any] = {
        "n": None, "gamma": 5, "temperature": temperature, "rule": "coupled", "max_new_tokens": 40,
    }  # fmt: skip
    alone = rounds(target, by_method("model", draft), prompts, **options)
    found = rounds(target, nested(draft, small, 61)[name], prompts, n_threads=2, **options)
    keys = ("sequence", "drafted", "accepted", "tokens")
    mine, its = ([[record[key] for key in keys] for record in some] for some in (found, alone))
    assert mine == its
    assert any(record["accepted"] for record in found)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "name", ["a table", "a tree", "three deep", "sample", "without replacement", "chains of three"]
)
def test_several_rounds_have_the_targets_distribution(name: str) -> None:
    """No random number is met twice: the first five tokens, rounds and their cuts included, 6,000 seeds.

    Chi-square, false alarm 1e-3 each.
    """
    target, draft, small = random_model(3, 1, 1.6), random_model(3, 2, 2.0), random_model(3, 4, 1.7)
    trees = {how: by_method("static_tree", draft, [0, 0, 1, 2], how) for how in PROPOSALS}
    trees["chains of three"] = by_method("parallel_chains", draft, 3)
    several = nested(draft, small, 3) | trees
    n = 6000
    texts: list[Tokens] = [()] * n
    options: dict[str, Any] = {"n": None, "gamma": 4, "max_new_tokens": 5, "keep_drafts": False}
    for record in rounds(target, several[name], [PROMPT] * n, **options):
        texts[record["sequence"]] += tuple(record["tokens"])
    seen = Counter(text[:5] for text in texts)
    assert p_value(dict(seen), chain_distribution(conditional(target, PROMPT), 5)) > FALSE_ALARM


def test_random_numbers_of_a_rejected_draft_token_are_not_used_again() -> None:
    """The second round's inner draws do not depend on the first's; false alarm 1e-3.

    The target never accepts, so the middle model drafts again at every position, from the same
    distribution; without inner draft tokens it visits every position in both rounds.
    """
    target, draft = follower({0: [1], 1: [0]}, 4), follower({0: [2, 3], 1: [2, 3], 2: [2, 3], 3: [2, 3]}, 4)
    described = by_method("nested", draft, by_method("model", draft), 0)
    found = rounds(target, described, [[0]] * 4000, n=2, gamma=3, keep_drafts=False)
    table = np.zeros((2, 2))
    for first, second in zip(found[:4000], found[4000:], strict=True):
        assert not first["accepted"] and first["sequence"] == second["sequence"]
        table[first["drafted"][1] - 2, second["drafted"][0] - 2] += 1
    assert scipy.stats.chi2_contingency(table, correction=False).pvalue > FALSE_ALARM


ALL = ["chains", "sample", "without replacement", "top-k", "dynamic tree", *NESTED]


def described(name: str, draft: _core.Model, n_vocab: int) -> tuple[object, ...]:
    small = random_model(n_vocab, 9)
    if name in NESTED:
        return nested(draft, small, n_vocab)[name]
    if name == "chains":
        return by_method("parallel_chains", draft, 3)
    if name == "dynamic tree":
        return by_method("dynamic_tree", draft, 3, 4, 3.5)
    return by_method("static_tree", draft, [0, 0, 0, 1, 1, 2, 4, 4], name)


@pytest.mark.parametrize("name", ALL)
def test_a_draft_of_a_shorter_context(name: str) -> None:
    """It drafts as far as its context allows, then no more; the text continues."""
    target, draft = random_model(61, 1), described(name, random_model(61, 1, n_ctx=20), 61)
    options: dict[str, Any] = {"n": None, "max_new_tokens": 60, "temperature": 0.0}
    plain, found = (rounds(target, one, [[1, 2], [4] * 30], **options) for one in (None, draft))
    assert [text_of(plain, i) for i in range(2)] == [text_of(found, i) for i in range(2)]
    assert found[0]["drafted"] and not found[-1]["drafted"]
    assert not any(record["drafted"] for record in found if record["sequence"] == 1)


@pytest.mark.parametrize("name", ["ensemble", "chains", "shape"])
def test_the_last_tokens_origin_by_the_texts_of_the_tree(name: str) -> None:
    """A draft was rejected iff some node has the accepted tokens and one more from the root. Where drafts of
    several lengths are merged its parent may be a node that is not on the path, but has the tokens of one."""
    target, small = small_pair()
    draft, temperature = {
        "ensemble": (drafts.Ensemble(drafts.PromptLookup(min_match=1, gamma=1), small, adaptive=False), 0.0),
        "chains": (drafts.ModelDraft(small, tree=ParallelChains(3)), 1.0),
        "shape": (drafts.ModelDraft(small, tree=StaticTree((3, 2))), 0.7),
    }[name]
    n_duplicates = 0
    openings = ("It was a dark night", "The old man", "Once upon a time", "There was no sound")
    prompts = [f"{opening} and {opening} and" for opening in openings]
    options: dict[str, Any] = {"max_new_tokens": 90, "temperature": temperature, "n_threads": 1, "seed": 3}
    for out in specdec.generate(target, draft, prompts, **options):
        for r in out.trace.rounds:
            texts = prefixes_of(r.drafted, r.parents)
            assert list(r.rows) == [texts.index(text) for text in texts]
            n = len(r.path)
            rejected = [text for text in texts if len(text) == n + 1 and text[:n] == r.accepted]
            last = "correction" if rejected else "bonus" if r.drafted else "target"
            assert r.origin == ("draft",) * n + (last,)
            assert len(r.betas) == n + bool(rejected)
            n_duplicates += bool(rejected) and (r.path[-1] if r.path else 0) not in r.parents
    assert n_duplicates > 0 or name != "ensemble"


# --------------------------------------------------------------------------------- what is refused


def judged(pair: Any, draft: Any, verify: str, **more: Any) -> specdec.Result:
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0, "seed": 1}
    found = specdec.generate(pair[0], draft, "It was", verify=verify, **options | more)
    assert len(found.tokens) == (options | more)["max_new_tokens"]
    return found


class Branches:
    """A draft object that proposes two tokens at one position, from round n on."""

    def __init__(self, n_chains: int = 0) -> None:
        self.n_chains = n_chains

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> drafts.Proposal:
        self.n_chains -= 1
        return drafts.Proposal([1, 2][:budget], [0, 0 if self.n_chains < 0 else 1][:budget])


def test_the_default_rule() -> None:
    """It depends on the draft's trees, on sampling, temperature and lenience, never on the text.

    Without `verify` the output equals that of the chosen rule.
    """
    small = small_pair()[1]
    tree, grown = (drafts.ModelDraft(small, tree=shape) for shape in (StaticTree((2, 2)), DynamicTree(4)))
    greedy: dict[str, Any] = {"draft_sampling": specdec.Sampling(0.0)}
    copies = drafts.PromptLookup()
    chosen = [copies, drafts.Lookahead(), grown, drafts.Ensemble(copies, grown, adaptive=False)]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (small, {}, "block"), (drafts.EarlyExit(2), {}, "block"), (small, {"n": 3}, "block"),
        (drafts.ModelDraft(small, draft=copies), {}, "block"), (tree, {}, "traversal"),
        (drafts.Ensemble(copies, small, adaptive=False), {}, "traversal"),
        (small, {"temperature": 0.0}, "rejection"), (small, {"lenience": 0.5}, "rejection"),
        (small, greedy, "rejection"), (tree, greedy, "rejection"),
        *((one, {}, "rejection") for one in chosen),
    ]  # fmt: skip
    for draft, options, rule in cases:
        how: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 1} | options
        found, named = (
            several if isinstance(several, list) else [several]
            for several in (
                specdec.generate(small_pair()[0], draft, "It was", **how, **verify)
                for verify in ({}, {"verify": rule})
            )
        )
        assert {one.trace.rule for one in found} == {rule}
        assert [one.tokens for one in found] == [one.tokens for one in named]


def test_rules_that_cannot_judge_a_tree() -> None:
    shapes = ParallelChains(2), DynamicTree(4), StaticTree((2, 2)), StaticTree((2, 2), "without replacement")
    trees = [drafts.ModelDraft(small_pair()[1], tree=tree) for tree in shapes]
    chains, grown, samples, distinct = trees
    copies = [drafts.Lookahead(), drafts.PromptLookup(n_candidates=2), drafts.InputCopy(n_candidates=2)]
    refused = {"block": [*trees, *copies], "k-sequential": [grown, distinct, *copies]}
    for verify, several in refused.items():
        for draft in several:
            with pytest.raises(InputError, match=f"verify is '{verify}', which judges"):
                judged(small_pair(), draft, verify)
        judged(small_pair(), drafts.ModelDraft(small_pair()[1], draft=distinct), verify)
    taken = [*itertools.product(trees, ("rejection", "traversal", "coupled", "classical"))]
    for draft, verify in [*taken, (samples, "k-sequential"), (chains, "k-sequential")]:
        judged(small_pair(), draft, verify)
    with pytest.raises(InputError, match="temperature 0"):
        judged(small_pair(), samples, "k-sequential", draft_sampling=specdec.Sampling(0.0))


@pytest.mark.parametrize("verify", ["block", "k-sequential"])
def test_rules_and_the_trees_of_objects(verify: str) -> None:
    """An object that does not declare trees is only detected when it proposes one."""
    tree = rf"Branches\.propose: parents\[1\] is 0, expected 1, as in a chain: verify is '{verify}'"
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "seed": 1}
    text = ""
    with pytest.raises(InputError, match=tree):
        for piece in specdec.stream(small_pair()[0], Branches(3), "It was", verify=verify, **options):
            text += piece
    whole = judged(small_pair(), Branches(10**6), verify, **options)
    assert text and str(whole.text).startswith(text), "what came before it is kept"
    declared: Any = Branches(10**6)
    declared.trees = True
    with pytest.raises(InputError, match=f"verify is '{verify}', which judges .*; expected another rule"):
        judged(small_pair(), declared, verify)
    assert declared.n_chains == 10**6, "before the run"
    declared.trees = False
    judged(small_pair(), declared, verify)
    declared.trees = "no"
    with pytest.raises(InputError, match="trees of the draft Branches is 'no'"):
        judged(small_pair(), declared, verify)
    judged(small_pair(), drafts.ModelDraft(small_pair()[1], draft=Branches()), "rejection")


@pytest.mark.parametrize("verify", DECODING_RULES)
def test_at_temperature_0_every_rule_takes_every_tree(verify: str) -> None:
    target, small = small_pair()
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True, "n_threads": 1, "logits": True}
    plain = specdec.generate(target, None, "It was, it was, it was,", **options)
    shapes = ParallelChains(2), StaticTree((2, 2)), StaticTree((3,), "top-k"), DynamicTree(5)
    several = [PythonDraft(Branches()), drafts.Lookahead(), drafts.PromptLookup(min_match=1, n_candidates=3)]
    several += [drafts.ModelDraft(small, tree=tree) for tree in shapes]
    for draft, draft_sampling in itertools.product(several, (None, specdec.Sampling(1.0))):
        how = options | {"verify": verify, "draft_sampling": draft_sampling}
        out = specdec.generate(target, draft, "It was, it was, it was,", **how)
        assert out.tokens == plain.tokens and np.array_equal(out.logits, plain.logits), draft
        assert out.trace.n_drafted > 0


def test_fixed_acceptance_takes_chains() -> None:
    tree = drafts.ModelDraft(small_pair()[1], tree=ParallelChains(2)).describe(small_pair()[0])
    with pytest.raises(ValueError, match="fixed_acceptance: the draft proposes trees"):
        rounds(small_pair()[0].core, canonical.fixed_acceptance(tree, 0.5, [[1, 2]]), [[1]])


def test_what_is_no_draft() -> None:
    small = small_pair()[1]
    of_small = partial(drafts.ModelDraft, small)
    for make, message in [
        (StaticTree, "either widths or parents"),
        (partial(StaticTree, (2,), parents=(0,)), "either widths or parents"),
        (partial(of_small, tree=(2, 2)), "tree is a tuple; expected ParallelChains, StaticTree"),
        (partial(of_small, tree=ParallelChains(2), draft=small), "tree and draft are both given"),
        (partial(of_small, gamma=0), "gamma is 0"),
    ]:
        with pytest.raises(InputError, match=message):
            make()
    with pytest.raises(specdec.VocabularyMismatchError):
        of_small(draft=drafts.Unigram([0], 7))
    for tree, gamma in [(DynamicTree(16), 16), (ParallelChains(3), 12), (None, 4)]:
        assert of_small(tree=tree).gamma == gamma
    assert of_small(draft=small).gamma == 4
    assert "DynamicTree(n_nodes=16" in repr(of_small(tree=DynamicTree(16)))
