"""Small random models over a few tokens, and tree shapes, for the proofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from exact import Conditional, Probs, Proposal, Tokens
from specdec import _core, reference

Standardize = Callable[[np.ndarray], Probs]


def standardize(with_core: bool, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Standardize:
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return partial(_core.distribution if with_core else reference.distribution, **options)


# (kind and settings of the target, kind and settings of the draft)
PAIRS: dict[str, tuple[tuple[str, dict], tuple[str, dict]]] = {
    "plain": (("random", {}), ("random", {})),
    "temperatures": (("random", {"temperature": 0.6}), ("random", {"temperature": 1.8})),
    "top-k-of-target": (("random", {"top_k": 2}), ("random", {})),
    "top-k-of-draft": (("random", {}), ("random", {"top_k": 2})),
    "top-k-of-both": (("random", {"top_k": 2}), ("random", {"top_k": 2, "temperature": 0.7})),
    "nucleus-of-target": (("random", {"top_p": 0.6}), ("random", {"temperature": 2.0})),
    "nucleus-of-draft": (("random", {"temperature": 2.0}), ("random", {"top_p": 0.6})),
    "nucleus-and-top-k": (("random", {"top_p": 0.8}), ("random", {"top_k": 2, "top_p": 0.9})),
    "zeros": (("zeros", {}), ("zeros", {})),
    "ties": (("ties", {"top_k": 2}), ("ties", {"top_p": 0.5})),
    "disjoint": (("even", {}), ("odd", {})),
    "greedy": (("random", {"temperature": 0.0}), ("random", {"temperature": 0.0})),
    "greedy-target": (("random", {"temperature": 0.0}), ("random", {})),
    "greedy-draft": (("random", {}), ("random", {"temperature": 0.0})),
    "rational": (("rational", {}), ("rational", {})),
}


def models(pair: str, n_vocab: int, with_core: bool) -> tuple[Conditional, Conditional]:
    (target_kind, target_settings), (draft_kind, draft_settings) = PAIRS[pair]
    return (
        table(n_vocab, 1, standardize(with_core, **target_settings), kind=target_kind),
        table(n_vocab, 2, standardize(with_core, **draft_settings), kind=draft_kind),
    )


def table(
    n_vocab: int, seed: int, standardize: Callable[[NDArray[np.float32]], Probs], *, kind: str = "random"
) -> Conditional:
    """A model over a few tokens: random logits for every prefix, standardized.

    `kind` says which: "random", "ties" (few distinct values), "zeros" (about half of the tokens excluded),
    "even" and "odd" (only tokens of this parity, so that the two have disjoint supports), "rational" (small
    integers over their sum: zeros, ties and point masses among them, and equal rows of two tables).
    """
    known: dict[Tokens, Probs] = {}

    def conditional(prefix: Tokens) -> Probs:
        if prefix not in known:
            # One more than each id: trailing zeros would not change the generator.
            rng = np.random.default_rng([seed, n_vocab, *(token + 1 for token in prefix)])
            logits = (1.5 * rng.standard_normal(n_vocab)).astype(np.float32)
            token = np.arange(n_vocab)
            if kind == "ties":
                logits = np.round(logits)
            elif kind == "zeros":
                logits[(rng.random(n_vocab) < 0.5) & (token != rng.integers(n_vocab))] = -np.inf
            elif kind in ("even", "odd"):
                logits[token % 2 != (kind == "odd")] = -np.inf
            elif kind == "rational":
                counts = rng.integers(4, size=n_vocab) + (token == rng.integers(n_vocab))
                known[prefix] = counts / counts.sum()
                return known[prefix]
            known[prefix] = standardize(logits)
        return known[prefix]

    return conditional


def unlike(parents: Sequence[int], n_vocab: int, seed: int = 10) -> Proposal:
    """Draw every node from a distribution of its own: several drafts, or one at several temperatures."""
    drafts = [table(n_vocab, seed + node, standardize(False)) for node in range(len(parents))]
    return lambda node, prefixes: drafts[node](prefixes[parents[node]])


def shapes() -> dict[str, list[int]]:
    """Trees by name, as lists of parents."""
    return {
        "chain0": [-1], "chain1": [-1, 0], "chain2": [-1, 0, 1], "chain3": [-1, 0, 1, 2],
        "chain4": [-1, 0, 1, 2, 3], "two": [-1, 0, 0], "three": [-1, 0, 0, 0], "left": [-1, 0, 0, 1],
        "right": [-1, 0, 0, 2], "both": [-1, 0, 0, 1, 2], "interleaved": [-1, 0, 1, 0, 1],
        "bushy": [-1, 0, 0, 1, 1, 2, 2], "two long": [-1, 0, 0, 1, 2, 3, 4],
        "three long": [-1, 0, 0, 0, 1, 2, 3],
    }  # fmt: skip


def random_tree(
    rng: np.random.Generator, *, chain: bool = False, one_draft: bool = False
) -> tuple[list[int], list[int], Probs, Probs]:
    """A tree of up to 13 nodes over up to 300 tokens, of any shape, drafts drawn from their distributions.

    Equal texts have equal targets. Every node has a draft of its own, or, with `one_draft`, every text has.
    Drafts resemble the target often enough that long paths are accepted. Returned are tokens, parents,
    target_probs and draft_probs.
    """
    n_nodes, n_vocab = int(rng.integers(1, 14)), int(rng.choice([1, 2, 3, 8, 17, 300]))
    chain = chain or rng.random() < 0.3
    parents = [-1, *(node - 1 if chain else int(rng.integers(node)) for node in range(1, n_nodes))]

    def row() -> Probs:
        logits = (rng.choice([0.5, 2.0, 8.0]) * rng.standard_normal(n_vocab)).astype(np.float32)
        if rng.random() < 0.3:
            logits = np.round(logits)
        options = {"temperature": float(rng.choice([0.0, 0.7, 1.0])), "top_p": float(rng.choice([0.8, 1.0]))}
        return reference.distribution(logits, top_k=int(rng.choice([0, 1, 3])), **options)

    def near(target: Probs) -> Probs:
        probs = row() if rng.random() < 0.4 else 0.8 * target + 0.2 * row()
        return probs / probs.sum()

    prefixes: list[Tokens] = [()]
    target_rows, draft_rows = {(): row()}, [np.zeros(n_vocab)]
    drafts_after: dict[Tokens, Probs] = {}
    for node in range(1, n_nodes):
        parent = prefixes[parents[node]]
        draft = near(target_rows[parent])
        if one_draft:
            draft = drafts_after.setdefault(parent, draft)
        draft_rows.append(draft)
        prefixes.append((*parent, reference.sample(draft, float(rng.random()))))
        target_rows.setdefault(prefixes[-1], row())
    tokens = [prefix[-1] if prefix else 0 for prefix in prefixes]
    return tokens, parents, np.array([target_rows[prefix] for prefix in prefixes]), np.array(draft_rows)
