"""Every way to draft, by name: what `test_every_drafter.py` runs over.

A new draft gets an entry here, and one more for every setting that changes how it proposes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import specdec
from specdec import drafts


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


Make = Callable[[World], Any]

CHAINS: dict[str, Make] = {
    "model": lambda world: world.draft,
    "unigram": lambda world: drafts.Unigram(world.ids, world.n_vocab),
    "bigram": lambda world: drafts.Bigram(world.ids, world.n_vocab),
}
"""Drafts whose every proposal is a chain, so that block verification takes them."""

TREES: dict[str, Make] = {}

DRAFTS: dict[str, Make] = CHAINS | TREES
