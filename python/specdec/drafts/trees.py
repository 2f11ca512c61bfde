"""Shapes of draft trees: parallel chains, static trees and dynamic trees."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from specdec.checks import as_integer, check_choice, check_integer, check_items, check_number
from specdec.drafts.draft import MAX_GAMMA, Description
from specdec.errors import InputError, shown, type_of

ChildChoice: TypeAlias = Literal["sample", "without replacement", "top-k"]
CHOICES: tuple[ChildChoice, ...] = get_args(ChildChoice)


@dataclass(frozen=True)
class ParallelChains:
    """`k` independent samples of the draft, merged into a prefix tree (SpecInfer, Miao et al. 2024).

    Draft and target run once for shared prefixes. At temperature 0 and under the coupled rule the chains
    begin with the k most promising tokens. With gamma = 10, three chains get 4, 3 and 3 draft tokens.
    """

    k: int  # chains, 1 to 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_integer("k", self.k, 1, MAX_GAMMA))

    @property
    def gamma(self) -> int:
        """Default number of draft tokens per round: 4 per chain."""
        return min(4 * self.k, MAX_GAMMA)

    def describe(self) -> Description:
        """Return the core's method and shape arguments, without the model."""
        return "parallel_chains", {"n_chains": self.k}


@dataclass(frozen=True)
class StaticTree:
    """A tree of fixed shape. A smaller gamma takes the first nodes, level by level.

    Parameters
    ----------
    widths : sequence of int
        Children per node at each depth, from the root: ``(4, 2, 1)`` has 4 + 8 + 8 nodes.
    how : {"sample", "without replacement", "top-k"}
        How to choose the children of a node: independent samples of the draft's distribution; samples without
        replacement (recursive rejection sampling, Jeon et al. 2024, arXiv 2402.14160); or the most probable
        tokens. Rules take all of them; "k-sequential" takes independent samples only, "block" no tree. At
        temperature 0 the children are always the most probable tokens, under the coupled rule the best ones
        given the shared noise.
    parents : sequence of int, optional
        Any other tree, instead of `widths`: entry i is the parent of node i + 1, and 0 is the root. Entries
        must not decrease: nodes are numbered level by level, in the order of their parents.

    Attributes
    ----------
    parents : tuple of int, [n_nodes]
        Parent of each node, at most 1024.
    """

    parents: tuple[int, ...]
    how: ChildChoice

    def __init__(
        self, widths: Sequence[int] | None = None, how: ChildChoice = "sample", *,
        parents: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        how = check_choice("how", how, CHOICES)
        if (widths is None) == (parents is None):
            raise InputError("expected either widths or parents, not both")
        found = _parents_of(widths) if widths is not None else _checked(parents)
        object.__setattr__(self, "parents", found)
        object.__setattr__(self, "how", how)

    @classmethod
    def expected(
        cls, n_nodes: int, acceptance: Sequence[float] = (0.65, 0.12, 0.05, 0.03), how: ChildChoice = "sample"
    ) -> StaticTree:  # fmt: skip
        """Return the shape of `n_nodes` nodes with the most expected accepted tokens (Sequoia, section 3.1).

        Parameters
        ----------
        n_nodes : int
            Number of nodes, 1 to 1024.
        acceptance : sequence of float
            Acceptance rate of the r-th child of a node: descending, between 0 and 1, with a sum of at most 1.
            Its length limits the children of a node. The default is roughly right for the embedded pair at
            temperature 1.
        how : str
            See `StaticTree`.
        """
        n_nodes = check_integer("n_nodes", n_nodes, 1, MAX_GAMMA)
        expected = "descending numbers between 0 and 1, of sum 1 at most"
        chances = [
            check_number(f"acceptance[{i}]", p, "a number between 0 and 1", lambda x: 0.0 < x < 1.0)
            for i, p in enumerate(check_items("acceptance", acceptance, expected))
        ]
        if not chances or chances != sorted(chances)[::-1] or sum(chances) > 1 + 1e-9:
            raise InputError(f"acceptance is {shown(acceptance)}; expected {expected}")
        # A node's acceptance probability never exceeds its parent's, so the best nodes are a tree.
        queue: list[tuple[float, tuple[int, ...]]] = [(-chances[0], (0,))]  # paths, by ranks of children
        paths: list[tuple[int, ...]] = []
        while len(paths) < n_nodes:
            value, path = heapq.heappop(queue)
            paths.append(path)
            heapq.heappush(queue, (value * chances[0], (*path, 0)))
            if path[-1] + 1 < len(chances):
                ratio = chances[path[-1] + 1] / chances[path[-1]]
                heapq.heappush(queue, (value * ratio, (*path[:-1], path[-1] + 1)))
        paths.sort(key=lambda path: (len(path), path))
        numbers = {path: node for node, path in enumerate([(), *paths])}
        return cls(how=how, parents=[numbers[path[:-1]] for path in paths])

    @property
    def gamma(self) -> int:
        """Number of nodes."""
        return len(self.parents)

    def describe(self) -> Description:
        """See `ParallelChains.describe`."""
        return "static_tree", {"parents": list(self.parents), "how": self.how}

    def __repr__(self) -> str:
        return f"<specdec.drafts.StaticTree of {len(self.parents)} nodes, {self.how}>"


@dataclass(frozen=True)
class DynamicTree:
    """A tree that grows where the draft is confident.

    Each step expands the best unread nodes in one forward pass of the draft, and adds the most probable
    tokens after each. A node's value is the product of the draft's confidences along its path; the best
    `n_nodes` are proposed (Sequoia, arXiv 2402.12374; EAGLE-2, arXiv 2406.16858; OPT-Tree, arXiv 2406.17276).
    Suits greedy decoding and the coupled rule; under other rules a sampled `StaticTree` is accepted more
    often.

    Parameters
    ----------
    n_nodes : int
        Largest number of nodes, 1 to 1024; a smaller gamma keeps the best.
    width : int, default 3
        Nodes expanded per step, and children per expanded node.
    steps : int, default 8
        Largest number of draft forward passes per round, which limits the depth.
    sharpness : float, default 3.5
        Factor of the logits before the softmax that estimates confidence, for greedy decoding and the coupled
        rule. 3.5 suits a good draft, which is right more often than its probabilities say, and makes deep
        trees; 1 makes wide ones.
    """

    n_nodes: int
    width: int = 3
    steps: int = 8
    sharpness: float = 3.5

    def __post_init__(self) -> None:
        for name in ("n_nodes", "width", "steps"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 1, MAX_GAMMA))
        expected = "a number above 0, at most 1000"
        sharpness = check_number("sharpness", self.sharpness, expected, lambda x: 0.0 < x <= 1000.0)
        object.__setattr__(self, "sharpness", sharpness)

    @property
    def gamma(self) -> int:
        """Number of nodes."""
        return self.n_nodes

    def describe(self) -> Description:
        """See `ParallelChains.describe`."""
        return "dynamic_tree", {"width": self.width, "steps": self.steps, "sharpness": self.sharpness}


Tree: TypeAlias = ParallelChains | StaticTree | DynamicTree


def check_tree(tree: object) -> Tree | None:
    """Return the argument `tree`; refuse anything but a tree or None."""
    if tree is None or isinstance(tree, Tree):
        return tree
    raise InputError(f"tree is {type_of(tree)}; expected ParallelChains, StaticTree, DynamicTree or None")


def gamma_of(gamma: int | None, tree: Tree | None, default: int) -> int:
    """Return the argument `gamma`; for None the number of tree nodes, or `default` for a chain."""
    if gamma is not None:
        return check_integer("gamma", gamma, 1, MAX_GAMMA)
    return default if tree is None else tree.gamma


def describe_shape(tree: Tree | None, predictor: object) -> Description:
    """Return the core's method and arguments for a tree, or a chain, drawn from a predictor."""
    method, shape = ("model", {}) if tree is None else tree.describe()
    return method, {"model": predictor, **shape}


def _parents_of(widths: Sequence[int]) -> tuple[int, ...]:
    expected = "a sequence of integers, such as (4, 2, 1)"
    given = [] if isinstance(widths, str) else check_items("widths", widths, expected)
    if not given:
        raise InputError(f"widths is {shown(widths)}; expected {expected}")
    parents: list[int] = []
    level = [0]
    for depth, entry in enumerate(given):
        width = check_integer(f"widths[{depth}]", entry, 1, MAX_GAMMA)
        n = width * len(level)
        if len(parents) + n > MAX_GAMMA:
            raise InputError(f"widths is {shown(widths)}; expected a tree of at most {MAX_GAMMA} nodes")
        first = len(parents) + 1
        parents += [node for node in level for _ in range(width)]
        level = list(range(first, first + n))
    return tuple(parents)


def _checked(parents: Any) -> tuple[int, ...]:
    expected = f"a sequence of 1 to {MAX_GAMMA} integers"
    given = [] if isinstance(parents, str) else check_items("parents", parents, expected)
    if not 1 <= len(given) <= MAX_GAMMA:
        raise InputError(f"parents is {shown(parents)}; expected {expected}")
    found: list[int] = []
    for i, entry in enumerate(given):
        parent, low = as_integer(entry), found[-1] if found else 0
        if parent is None or not low <= parent <= i:
            raise InputError(f"parents[{i}] is {shown(entry)}; expected {low} to {i}: nodes level by level")
        found.append(parent)
    return tuple(found)
