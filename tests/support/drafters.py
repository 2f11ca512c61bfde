"""All drafts by name, for `test_every_drafter.py`.

Add an entry for a new draft, and one for each setting that changes its proposals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from distributions import first_layers, small_llama2c
from specdec import _core, drafts
from trained import small_pair
from worlds.assistants import may_be_assisted, random_assistant
from worlds.eagles import eagle_for, may_have_mtp, random_mtp
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights
from worlds.vocabularies import Renumbered


@dataclass(frozen=True)
class World:
    """A target and the components of drafts for it."""

    target: specdec.Model
    draft: specdec.Model  # a smaller model of the same vocabulary
    ids: list[int]  # of some text

    @property
    def n_vocab(self) -> int:
        return self.target.config["n_vocab"]

    def heads(self, *, tree: Any = None, **settings: Any) -> drafts.DecodingHeads:
        """Make random heads for the target."""
        return drafts.DecodingHeads(random_heads(self.target, **settings), tree=tree)


TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12


def small_world(folder: Path, text: str = TEXT) -> World:
    """Make a world of the bundled small draft as target, its first layer as draft, and the ids of a text."""
    _, target = small_pair()
    return World(target, first_layers(small_llama2c(folder), 1, folder), target.tokenizer.encode(text))


Make = Callable[[World], Any]


class Repeats:
    """Draft object that repeats what followed the last token earlier, in a chain or as branches.

    It fails for a text whose prompt it did not receive.
    """

    def __init__(self, *, branches: bool = False) -> None:
        self.branches = branches
        self.prompts: dict[int, list[int]] = {}

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        self.prompts[sequence] = list(prompt)

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> list[int] | drafts.Proposal:
        prompt = self.prompts.get(sequence)
        assert prompt is not None and list(tokens[: len(prompt)]) == prompt, "begin has not been called"
        found = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
        if not self.branches:
            return list(tokens[found[-1] + 1 :])[:budget] if found else []
        ids, parents = [], []
        for at in found[-2:]:
            run = list(tokens[at + 1 : at + 3])[: budget - len(ids)]
            parents += [0, len(ids) + 1][: len(run)]
            ids += run
        return drafts.Proposal(ids, parents)


class Scripted:
    """Draft object that returns a fixed value or that of a function of text and budget; records its calls."""

    def __init__(self, answer: Any, gamma: int | None = None, seconds: float = 0.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.calls: list[tuple[Any, ...]] = []
        if gamma is not None:
            self.gamma = gamma

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        self.calls.append(("begin", sequence, list(prompt)))

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> Any:
        self.calls.append(("propose", sequence, list(tokens), budget))
        time.sleep(self.seconds)
        return self.answer(tokens, budget) if callable(self.answer) else self.answer

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        self.calls.append(("commit", sequence, list(tokens)))

    @property
    def budgets(self) -> list[int]:
        return [note[3] for note in self.calls if note[0] == "propose"]


class Draws:
    """Draft object that samples near the last token, in a chain or as two branches."""

    def __init__(self, n_vocab: int, *, branches: bool = False) -> None:
        self.n_vocab, self.branches = n_vocab, branches

    def row(self, token: int) -> NDArray[np.float64]:
        weights = 1.0 / (1.0 + (np.arange(self.n_vocab) - token) % self.n_vocab)
        return weights / weights.sum()

    def propose(
        self, sequence: int, tokens: Sequence[int], budget: int, rng: np.random.Generator
    ) -> drafts.Proposal:
        parents = [0, 0, 1][:budget] if self.branches else list(range(min(budget, 3)))
        text, rows = [tokens[-1]], []
        for parent in parents:
            rows.append(self.row(text[parent]))
            token = int(np.searchsorted(np.cumsum(rows[-1]), rng.random(), side="right"))
            text.append(min(token, self.n_vocab - 1))
        return drafts.Proposal(text[1:], parents, rows)


def remembering(world: World, **settings: Any) -> drafts.SuffixDecoding:
    """Make a memory of some texts."""
    memory = drafts.SuffixDecoding(min_match=1, **settings)
    for text in (world.ids[:100], world.ids[30:200]):
        memory.add(text[5:], text[:5])
    return memory


def recycling(world: World, tree: drafts.StaticTree) -> drafts.TokenRecycling:
    """Make a matrix in which every token has successors."""
    draft = drafts.TokenRecycling(2, tree=tree)
    ids = np.arange(world.n_vocab)
    after = dict(zip(world.ids, world.ids[1:], strict=False))
    best = np.array([after.get(token, 0) for token in ids])
    rows = np.stack([best, (best + 1) % world.n_vocab], axis=1).astype(np.int32)
    draft.n_vocab, draft._matrix = world.n_vocab, _core.TokenMatrix(rows)
    return draft


def together(*parts: Any) -> drafts.Ensemble:
    """Combine drafts that all draft in every round."""
    return drafts.Ensemble(*parts, adaptive=False)


class Learns(drafts.OnlineTrainer):
    """Trainer that returns the draft unchanged."""

    name = "learns"

    def __init__(self, world: World) -> None:
        self.draft = drafts.ModelDraft(world.draft)

    def learn(self, samples: Any, n_new: int, goes_on: Any) -> drafts.Draft:
        return self.draft


DISTINCT = "without replacement"
tree = drafts.StaticTree


def drafted_by(make: Make, **settings: Any) -> Make:
    """Model draft with its own nested draft."""
    return lambda w: drafts.ModelDraft(w.draft, draft=make(w), **settings)


def in_tree(shape: Any) -> Make:
    """Model draft that proposes trees."""
    return lambda w: drafts.ModelDraft(w.draft, tree=shape)


def learning(make: Callable[[World], Any], taught: bool = True) -> Make:
    """Online draft; by default trained on what it already predicts."""
    return lambda w: drafts.OnlineDraft(make(w), trainer=Learns(w) if taught else None, interval=None)


CHAINS: dict[str, Make] = {
    "object": lambda w: Repeats(),
    "object that draws": lambda w: Draws(w.n_vocab),
    "model": lambda w: w.draft,
    "model with a window": lambda w: drafts.ModelDraft(w.draft, window=5),
    "unigram": lambda w: drafts.Unigram(w.ids, w.n_vocab),
    "bigram": lambda w: drafts.Bigram(w.ids, w.n_vocab),
    "trigram": lambda w: drafts.Ngram(w.ids, w.n_vocab, 3),
    "back-off": lambda w: drafts.Ngram(w.ids, w.n_vocab, 4, smoothing="backoff"),
    "online": lambda w: drafts.OnlineNgram(4),
    "online back-off": lambda w: drafts.OnlineNgram(drafts.Ngram(w.ids, w.n_vocab, 3, smoothing="backoff")),
    "table that learns": learning(lambda w: drafts.Ngram(w.ids, w.n_vocab, 3), taught=False),
    "model that learns": learning(lambda w: w.draft),
    "random": lambda w: drafts.RandomDraft(),
    "context copy": lambda w: drafts.PromptLookup(min_match=1),
    "document copy": lambda w: drafts.PromptLookup([w.ids[:200], w.ids[200:]]),
    "suffix memory chain": lambda w: remembering(w, branches=False),
    "drafted by a memory": drafted_by(lambda w: remembering(w), gamma=6),
    "input copy": lambda w: drafts.InputCopy(start=5),
    "source copy": lambda w: drafts.InputCopy(w.ids, min_match=1),
    "recurrent": lambda w: drafts.RecurrentDraft(recurrent_weights(w.target, w.ids)),
    "heads": lambda w: w.heads(shared_output=True, n_blocks=2),
    "heads that see draft tokens": lambda w: w.heads(
        see_draft_tokens=True, n_heads=2, tokens=range(0, w.n_vocab, 2)
    ),
    "look-ahead embeddings": lambda w: drafts.LookAheadEmbeddings(look_ahead_weights(w.target)),
    "early exit": lambda w: drafts.EarlyExit(1),
    "skip attention": lambda w: drafts.SkipLayers(attn=[1]),
    "skip mlp": lambda w: drafts.SkipLayers(mlp=[0]),
    "drafted by a bigram": drafted_by(lambda w: drafts.Bigram(w.ids, w.n_vocab), gamma=6),
    "drafted by copying": drafted_by(
        lambda w: drafts.PromptLookup([w.ids], min_match=1, n_candidates=5), gamma=6
    ),
    "drafted by a recurrent network": drafted_by(
        lambda w: drafts.RecurrentDraft(recurrent_weights(w.target, w.ids), gamma=3)
    ),
    "drafted by lookahead": drafted_by(lambda w: drafts.Lookahead()),
    "drafted by an object": drafted_by(lambda w: Repeats(branches=True)),
    "drafted by trees": drafted_by(in_tree(tree((2, 2), DISTINCT))),
    "other vocabulary": lambda w: Renumbered(w.draft),
    "through text": lambda w: Renumbered(w.draft, text="text"),
    "other vocabulary, measured": lambda w: Renumbered(w.draft, text="measured"),
    "eagle 3": lambda w: eagle_for(w.target, "reduced"),  # an Eagle of some of the tokens
    "mtp": lambda w: random_mtp(w.target) if may_have_mtp(w.target.config) else eagle_for(w.target, "eagle1"),
    "assistant": lambda w: (
        random_assistant(w.target) if may_be_assisted(w.target.config) else eagle_for(w.target, "eagle1")
    ),
    "eagle 1 with half of the head": lambda w: eagle_for(w.target, "eagle1 with half of the head"),
    "three models deep": drafted_by(drafted_by(in_tree(drafts.ParallelChains(2)), gamma=3)),
}
"""Drafts whose every proposal is a chain, so that block verification takes them."""

TREES: dict[str, Make] = {
    "lookahead": lambda w: drafts.Lookahead(),
    "lookahead of 4-grams": lambda w: drafts.Lookahead(2, 4, candidates=3),
    "ensemble": lambda w: together(Repeats(), drafts.Bigram(w.ids, w.n_vocab), w.draft),
    "ensemble that adapts": lambda w: drafts.Ensemble(drafts.PromptLookup(min_match=1), w.draft),
    "ensemble of layers": lambda w: together(Repeats(), drafts.EarlyExit(1), drafts.SkipLayers(mlp=[1])),
    "suffix memory": lambda w: remembering(w, max_depth=8, factor=3.0),
    "tree that learns": learning(in_tree(tree((2, 1, 2), DISTINCT))),
    "token recycling": lambda w: recycling(w, tree((2, 2, 1))),
    "ensemble of memories": lambda w: together(remembering(w), recycling(w, tree((2, 1))), w.draft),
    "object with branches": lambda w: Repeats(branches=True),
    "object that draws branches": lambda w: Draws(w.n_vocab, branches=True),
    "ensemble of objects that draw": lambda w: together(Draws(w.n_vocab), Draws(w.n_vocab, branches=True)),
    "context copy tree": lambda w: drafts.PromptLookup([w.ids], min_match=1, n_candidates=5),
    "input copy tree": lambda w: drafts.InputCopy(w.ids, n_candidates=3),
    "eagle 2": lambda w: eagle_for(
        w.target, "eagle1", drafts.DynamicTree(6, width=2, steps=3, sharpness=1.0)
    ),
    "assistant in a tree": lambda w: (
        random_assistant(w.target, 1, tree=tree((2, 1, 2), DISTINCT))
        if may_be_assisted(w.target.config)
        else eagle_for(w.target, "eagle1")
    ),
    "chains": in_tree(drafts.ParallelChains(3)),
    "samples": in_tree(tree((2, 1, 2))),
    "without replacement": in_tree(tree((2, 1, 2), DISTINCT)),
    "top-k": in_tree(tree((3, 2, 1), "top-k")),
    "recurrent tree": lambda w: drafts.RecurrentDraft(
        recurrent_weights(w.target, w.ids, (4, 6, 2), range(0, w.n_vocab, 2)), tree=tree((2, 2, 1))
    ),
    "look-ahead embeddings in a tree": lambda w: drafts.LookAheadEmbeddings(
        look_ahead_weights(w.target, 2), tree=tree((2, 1, 1), DISTINCT)
    ),
    "ensemble with look-ahead embeddings": lambda w: together(
        Repeats(), drafts.LookAheadEmbeddings(look_ahead_weights(w.target))
    ),
    "dynamic tree": in_tree(drafts.DynamicTree(8, width=3, steps=4)),
    "other vocabulary in a tree": lambda w: Renumbered(w.draft, tree((2, 1, 2), DISTINCT)),
    "heads in a tree": lambda w: w.heads(tree=tree((2, 1, 2), DISTINCT)),
    "heads in a dynamic tree": lambda w: w.heads(
        see_draft_tokens=True, tree=drafts.DynamicTree(6, width=2, steps=4)
    ),
}

DRAWN_ANYHOW = {"object that draws", "object that draws branches", "ensemble of objects that draw"}
"""Drafts that draw their tokens whatever the draft's settings are."""

LATER = {"look-ahead embeddings", "look-ahead embeddings in a tree"}
"""Drafts that propose nothing in the first round of a text."""

CHOSEN = {"lookahead", "lookahead of 4-grams"}
"""Drafts whose tokens are point masses, chosen with random numbers."""

REMEMBERING = {
    "table that learns", "model that learns", "tree that learns",
    "suffix memory chain", "suffix memory", "token recycling", "drafted by a memory",
    "ensemble of memories",
}  # fmt: skip
"""Drafts that learn from each text, and so change the samples of later texts."""

DRAFTS: dict[str, Make] = CHAINS | TREES

VARIANTS = {
    "online back-off", "document copy", "source copy", "suffix memory chain", "model that learns",
    "tree that learns", "drafted by a memory", "drafted by copying", "drafted by a recurrent network",
    "drafted by lookahead", "drafted by trees", "three models deep", "heads that see draft tokens",
    "heads in a tree", "heads in a dynamic tree", "recurrent tree", "look-ahead embeddings in a tree",
    "lookahead of 4-grams", "ensemble of memories", "ensemble of layers", "object that draws branches",
    "assistant in a tree",
}  # fmt: skip
"""Entries that differ from others by a setting or consist of others; they run in the slower tier."""


def named(names: Iterable[str] = DRAFTS) -> list[Any]:
    """Parametrize a test over drafts by name; `VARIANTS` are slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in names]
