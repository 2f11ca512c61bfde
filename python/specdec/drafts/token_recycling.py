"""What the target said after a token when it last read it drafts."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_integer
from specdec.drafts.draft import Description, check_n_vocab
from specdec.drafts.memory_draft import IntegerFile, MemoryDraft
from specdec.drafts.texts import MAX_VOCABULARY
from specdec.drafts.trees import StaticTree
from specdec.errors import CheckpointError, InputError, kind_of
from specdec.models.model import Model

MAX_K: Final = 64
N_NODES: Final = 8
RANK_CHANCES: Final = (0.45, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.012)
"""How often the token of each rank comes, roughly: between text that repeats itself and sampled text."""


class TokenRecycling(MemoryDraft):
    """A draft that recycles what the target said: the most probable tokens after each token, last time.

    Token recycling (Luo et al. 2024, arXiv 2408.08696), without training and without a model. A matrix of 4 k
    bytes a token has, for each token, those of the largest logits when the target last read it. A tree is
    filled from it: child number r of a node is the token of rank r after the node's token. After each round
    the rows of all tokens of the tree, rejected ones too, are replaced by what the target predicts now. So
    the first rounds draft nothing, and each text leaves the matrix to the next ones: give the same object to
    every call. Prompts are read without logits and teach it nothing.

    Parameters
    ----------
    k : int, default 8
        Tokens that are kept for each token, 1 to 64.
    tree : StaticTree, optional
        The shape, whatever its `how`; a node has at most k children. By default ``StaticTree.expected`` of 8
        nodes; wider trees, as in the paper, bring more tokens where rows of the target are nearly free.

    Attributes
    ----------
    gamma : int
        The nodes of the tree: draft tokens of a round when the caller does not say.
    n_vocab : int or None
        Tokens of the vocabulary, once the draft has had a target; others are refused then.

    Notes
    -----
    Exact with every rule that takes trees; a tree that is a chain is taken by every rule. Seeds and pickles
    are as of `SuffixMemory`.
    """

    metadata: ClassVar = {"format": "specdec token recycling", "version": "1"}
    holds: ClassVar = "a matrix of tokens"
    sizes: ClassVar = {"k": MAX_K}

    def __init__(self, k: int = 8, *, tree: StaticTree | None = None) -> None:
        super().__init__()
        self.k = check_integer("k", k, 1, MAX_K)
        if tree is not None and not isinstance(tree, StaticTree):
            raise InputError.of("tree", tree, "StaticTree or None", kind_of(tree))
        self.tree = StaticTree.expected(N_NODES, RANK_CHANCES[: self.k]) if tree is None else tree
        widest = int(np.bincount(self.tree.parents).max())
        if widest > self.k:
            raise InputError.of("tree", tree, f"at most k, {self.k}", f"a node with {widest} children", "has")
        self.gamma = self.tree.gamma
        self._matrix: _core.TokenMatrix | None = None

    @property
    def _settings(self) -> dict[str, Any]:
        return {"k": self.k, "tree": self.tree}

    def _knows_something(self) -> bool:
        return self._matrix is not None and bool((self._matrix.rows() >= 0).any())

    def rows(self) -> NDArray[np.int32]:
        """A copy of the matrix, [n_vocab, k]: the best first, -1 where nothing is known yet."""
        if self._matrix is None:
            raise InputError("the draft has had no target yet; expected one that was used")
        return self._matrix.rows()

    def snapshot(self) -> TokenRecycling:
        copy = TokenRecycling(self.k, tree=self.tree)
        if self._matrix is not None:
            copy._matrix = _core.TokenMatrix(self._matrix.rows())
        copy._as_snapshot_of(self)
        return copy

    def describe(self, target: Model) -> Description:
        with self._lock:
            if self._matrix is None or self.n_vocab is None:
                self.n_vocab = target.config["n_vocab"]
                self._matrix = _core.TokenMatrix(np.full((self.n_vocab, self.k), -1, np.int32))
        check_n_vocab(self.n_vocab, target)
        chances = [*RANK_CHANCES, *[RANK_CHANCES[-1]] * MAX_K][: self.k]
        parents = list(self.tree.parents)
        return "token_recycling", {"matrix": self._matrix, "parents": parents, "chances": chances}

    def _stored(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        return {}, {"rows": self.rows().reshape(-1)}

    def _fill(self, file: IntegerFile) -> None:
        k, rows = file.number("k", 1, MAX_K), file.take_ids("rows")
        if self.k != k:
            raise CheckpointError.of(file.path, "k", k, str(self.k))
        if not 0 < len(rows) <= MAX_VOCABULARY * k or len(rows) % k:
            expected = f"{k} for each of 1 to {MAX_VOCABULARY} tokens"
            raise ValueError(f"tensor 'rows' has {len(rows)} entries; expected {expected}")
        self._matrix, self.n_vocab = _core.TokenMatrix(rows.reshape(-1, k)), len(rows) // k

    def __repr__(self) -> str:
        known = "" if self._matrix is None else f" of {self.n_vocab} tokens"
        return f"<specdec.drafts.TokenRecycling{known}, k {self.k}, tree of {self.gamma} nodes>"
