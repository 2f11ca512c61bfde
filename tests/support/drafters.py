"""Every way to draft, by name: what `test_every_drafter.py` runs over.

A new draft gets an entry here, and one more for every setting that changes how it proposes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from specdec import _core, drafts
from worlds.eagles import eagle_for
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights
from worlds.vocabularies import Renumbered


@dataclass(frozen=True)
class World:
    """A target and what drafts for it are made of."""

    target: specdec.Model
    draft: specdec.Model
    """A smaller model of the same vocabulary."""
    ids: list[int]
    """Tokens of some text."""

    @property
    def n_vocab(self) -> int:
        return self.target.config["n_vocab"]

    def heads(self, *, tree: Any = None, **settings: Any) -> drafts.Heads:
        """Random heads for the target."""
        return drafts.Heads(random_heads(self.target, **settings), tree=tree)


class Repeats:
    """An object of a user's: what followed the last token where it stood before, in a row or as branches.

    It fails if it is asked about a text that it was not told the beginning of.
    """

    def __init__(self, *, branches: bool = False) -> None:
        self.branches = branches
        self.prompts: dict[int, list[int]] = {}
        self.n_asked = 0

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        self.prompts[sequence] = list(prompt)

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> list[int] | drafts.Proposal:
        prompt = self.prompts.get(sequence)
        assert prompt is not None and list(tokens[: len(prompt)]) == prompt, "begin has not been called"
        self.n_asked += 1
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
    """Returns what it is given, or what a function of text and budget gives; notes what it is told."""

    def __init__(self, answer: Any, gamma: int | None = None, seconds: float = 0.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.told: list[tuple[Any, ...]] = []
        if gamma is not None:
            self.gamma = gamma

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        self.told.append(("begin", sequence, list(prompt)))

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> Any:
        self.told.append(("propose", sequence, list(tokens), budget))
        time.sleep(self.seconds)
        return self.answer(tokens, budget) if callable(self.answer) else self.answer

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        self.told.append(("commit", sequence, list(tokens)))

    @property
    def budgets(self) -> list[int]:
        return [note[3] for note in self.told if note[0] == "propose"]


class Draws:
    """An object of a user's that draws: near the last token, in a row or as two branches."""

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


def remembering(world: World, **settings: Any) -> drafts.SuffixMemory:
    """A memory of some texts."""
    memory = drafts.SuffixMemory(min_match=1, **settings)
    for text in (world.ids[:100], world.ids[30:200]):
        memory.add(text[5:], text[:5])
    return memory


def recycling(world: World, tree: drafts.StaticTree) -> drafts.TokenRecycling:
    """A matrix in which something stands behind every token."""
    draft = drafts.TokenRecycling(2, tree=tree)
    ids = np.arange(world.n_vocab)
    after = dict(zip(world.ids, world.ids[1:], strict=False))
    best = np.array([after.get(token, 0) for token in ids])
    rows = np.stack([best, (best + 1) % world.n_vocab], axis=1).astype(np.int32)
    draft.n_vocab, draft._matrix = world.n_vocab, _core.TokenMatrix(rows)
    return draft


class Learns(drafts.Learner):
    """Says that the draft is what it was."""

    name = "learns"

    def __init__(self, world: World) -> None:
        self.draft = drafts.ModelDraft(world.draft)

    def learn(self, corrections: Any, n_new: int, goes_on: Any) -> drafts.Draft:
        return self.draft


CHAINS: dict[str, Callable[[World], Any]] = {
    "object": lambda world: Repeats(),
    "object that draws": lambda world: Draws(world.n_vocab),
    "model": lambda world: world.draft,
    "unigram": lambda world: drafts.Unigram(world.ids, world.n_vocab),
    "bigram": lambda world: drafts.Bigram(world.ids, world.n_vocab),
    "trigram": lambda world: drafts.Ngram(world.ids, world.n_vocab, 3),
    "back-off": lambda world: drafts.Ngram(world.ids, world.n_vocab, 4, smoothing="backoff"),
    "online": lambda world: drafts.OnlineNgram(4),
    "online back-off": lambda world: drafts.OnlineNgram(
        drafts.Ngram(world.ids, world.n_vocab, 3, smoothing="backoff")
    ),
    "table that learns": lambda world: drafts.Online(
        drafts.Ngram(world.ids, world.n_vocab, 3), interval=None
    ),
    "model that learns": lambda world: drafts.Online(world.draft, learner=Learns(world), interval=None),
    "random": lambda world: drafts.Random(),
    "context copy": lambda world: drafts.ContextCopy(min_match=1),
    "document copy": lambda world: drafts.ContextCopy([world.ids[:200], world.ids[200:]]),
    "suffix memory chain": lambda world: remembering(world, branches=False),
    "drafted by a memory": lambda world: drafts.ModelDraft(world.draft, draft=remembering(world), gamma=6),
    "input copy": lambda world: drafts.InputCopy(start=5),
    "source copy": lambda world: drafts.InputCopy(world.ids, min_match=1),
    "recurrent": lambda world: drafts.Recurrent(recurrent_weights(world.target, world.ids)),
    "heads": lambda world: world.heads(shared_output=True, n_blocks=2),
    "heads that see guesses": lambda world: world.heads(
        see_guesses=True, n_heads=2, tokens=range(0, world.n_vocab, 2)
    ),
    "look-ahead embeddings": lambda world: drafts.LookAheadEmbeddings(look_ahead_weights(world.target)),
    "early exit": lambda world: drafts.EarlyExit(1),
    "skip attention": lambda world: drafts.SkipLayers(attn=[1]),
    "skip mlp": lambda world: drafts.SkipLayers(mlp=[0]),
    "drafted by a bigram": lambda world: drafts.ModelDraft(
        world.draft, draft=drafts.Bigram(world.ids, world.n_vocab), gamma=6
    ),
    "drafted by copying": lambda world: drafts.ModelDraft(
        world.draft, draft=drafts.ContextCopy([world.ids], min_match=1, n_candidates=5), gamma=6
    ),
    "drafted by a recurrent network": lambda world: drafts.ModelDraft(
        world.draft, draft=drafts.Recurrent(recurrent_weights(world.target, world.ids), gamma=3)
    ),
    "drafted by lookahead": lambda world: drafts.ModelDraft(world.draft, draft=drafts.Lookahead()),
    "drafted by an object": lambda world: drafts.ModelDraft(world.draft, draft=Repeats(branches=True)),
    "drafted by trees": lambda world: drafts.ModelDraft(
        world.draft,
        draft=drafts.ModelDraft(world.draft, tree=drafts.StaticTree((2, 2), "without replacement")),
    ),
    "other vocabulary": lambda world: Renumbered(world.draft),
    "through text": lambda world: Renumbered(world.draft, text="text"),
    "other vocabulary, measured": lambda world: Renumbered(world.draft, text="measured"),
    "eagle 3": lambda world: eagle_for(world.target, "reduced"),  # an Eagle of some of the tokens
    "three models deep": lambda world: drafts.ModelDraft(
        world.draft,
        draft=drafts.ModelDraft(
            world.draft, draft=drafts.ModelDraft(world.draft, tree=drafts.ParallelChains(2)), gamma=3
        ),
    ),
}
"""Drafts whose every proposal is a chain, so that block verification takes them."""

TREES: dict[str, Callable[[World], Any]] = {
    "lookahead": lambda world: drafts.Lookahead(),
    "lookahead of 4-grams": lambda world: drafts.Lookahead(2, 4, candidates=3),
    "ensemble": lambda world: drafts.Ensemble(
        Repeats(), drafts.Bigram(world.ids, world.n_vocab), world.draft, adaptive=False
    ),
    "ensemble that adapts": lambda world: drafts.Ensemble(drafts.ContextCopy(min_match=1), world.draft),
    "ensemble of layers": lambda world: drafts.Ensemble(
        Repeats(), drafts.EarlyExit(1), drafts.SkipLayers(mlp=[1]), adaptive=False
    ),
    "suffix memory": lambda world: remembering(world, max_depth=8, factor=3.0),
    "tree that learns": lambda world: drafts.Online(
        drafts.ModelDraft(world.draft, tree=drafts.StaticTree((2, 1, 2), "without replacement")),
        learner=Learns(world),
        interval=None,
    ),
    "token recycling": lambda world: recycling(world, drafts.StaticTree((2, 2, 1))),
    "ensemble of memories": lambda world: drafts.Ensemble(
        remembering(world), recycling(world, drafts.StaticTree((2, 1))), world.draft, adaptive=False
    ),
    "object with branches": lambda world: Repeats(branches=True),
    "object that draws branches": lambda world: Draws(world.n_vocab, branches=True),
    "ensemble of objects that draw": lambda world: drafts.Ensemble(
        Draws(world.n_vocab), Draws(world.n_vocab, branches=True), adaptive=False
    ),
    "context copy tree": lambda world: drafts.ContextCopy([world.ids], min_match=1, n_candidates=5),
    "input copy tree": lambda world: drafts.InputCopy(world.ids, n_candidates=3),
    "eagle 2": lambda world: eagle_for(
        world.target, "eagle1", drafts.DynamicTree(6, width=2, steps=3, sharpness=1.0)
    ),
    "chains": lambda world: drafts.ModelDraft(world.draft, tree=drafts.ParallelChains(3)),
    "samples": lambda world: drafts.ModelDraft(world.draft, tree=drafts.StaticTree((2, 1, 2))),
    "without replacement": lambda world: drafts.ModelDraft(
        world.draft, tree=drafts.StaticTree((2, 1, 2), "without replacement")
    ),
    "top-k": lambda world: drafts.ModelDraft(world.draft, tree=drafts.StaticTree((3, 2, 1), "top-k")),
    "recurrent tree": lambda world: drafts.Recurrent(
        recurrent_weights(world.target, world.ids, (4, 6, 2), range(0, world.n_vocab, 2)),
        tree=drafts.StaticTree((2, 2, 1)),
    ),
    "look-ahead embeddings in a tree": lambda world: drafts.LookAheadEmbeddings(
        look_ahead_weights(world.target, 2), tree=drafts.StaticTree((2, 1, 1), "without replacement")
    ),
    "ensemble with look-ahead embeddings": lambda world: drafts.Ensemble(
        Repeats(), drafts.LookAheadEmbeddings(look_ahead_weights(world.target)), adaptive=False
    ),
    "dynamic tree": lambda world: drafts.ModelDraft(
        world.draft, tree=drafts.DynamicTree(8, width=3, steps=4)
    ),
    "other vocabulary in a tree": lambda world: Renumbered(
        world.draft, drafts.StaticTree((2, 1, 2), "without replacement")
    ),
    "heads in a tree": lambda world: world.heads(tree=drafts.StaticTree((2, 1, 2), "without replacement")),
    "heads in a dynamic tree": lambda world: world.heads(
        see_guesses=True, tree=drafts.DynamicTree(6, width=2, steps=4)
    ),
}

DRAWN_ANYHOW = {"object that draws", "object that draws branches", "ensemble of objects that draw"}
"""Drafts that draw their guesses whatever the draft's settings are."""

LATER = {"look-ahead embeddings", "look-ahead embeddings in a tree"}
"""Drafts that propose nothing in the first round of a text."""

CHOSEN = {"lookahead", "lookahead of 4-grams"}
"""Drafts whose guesses are point masses, chosen by random numbers that no distribution tells of."""

REMEMBERING = {
    "table that learns", "model that learns", "tree that learns",
    "suffix memory chain", "suffix memory", "token recycling", "drafted by a memory",
    "ensemble of memories",
}  # fmt: skip
"""Drafts that learn from each text for those that begin after it, which are sampled otherwise then."""

DRAFTS: dict[str, Callable[[World], Any]] = CHAINS | TREES

VARIANTS = {
    "online back-off", "document copy", "source copy", "suffix memory chain", "model that learns",
    "tree that learns", "drafted by a memory", "drafted by copying", "drafted by a recurrent network",
    "drafted by lookahead", "drafted by trees", "three models deep", "heads that see guesses",
    "heads in a tree", "heads in a dynamic tree", "recurrent tree", "look-ahead embeddings in a tree",
    "lookahead of 4-grams", "ensemble of memories", "ensemble of layers", "object that draws branches",
}  # fmt: skip
"""Entries that differ from others by a setting, or are made of others: they run in the slower tier."""


def named(names: Iterable[str] = DRAFTS) -> list[Any]:
    """Parameters of a test over drafts, by name; `VARIANTS` are slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in names]
