"""The shapes of the trees that a model drafts: chains side by side, a given tree, one that grows."""

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

    Draft and target are run once for equal beginnings. At temperature 0 and under the coupled rule they begin
    with the k most promising tokens. With gamma = 10, three chains get 4, 3 and 3 draft tokens.
    """

    k: int  # chains, 1 to 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_integer("k", self.k, 1, MAX_GAMMA))

    @property
    def gamma(self) -> int:
        """Guesses a round when the caller does not say: 4 for each chain."""
        return min(4 * self.k, MAX_GAMMA)

    def describe(self) -> Description:
        """The drafting method and the shape, as the core takes them; a model is to be added."""
        return "parallel_chains", {"n_chains": self.k}


@dataclass(frozen=True)
class StaticTree:
    """A tree of a given shape. A smaller gamma takes the first nodes, level by level.

    Parameters
    ----------
    widths : sequence of int
        Every node at depth d has ``widths[d]`` children, the root being at depth 0: ``(4, 2, 1)`` are 4 + 8
        + 8 nodes.
    how : {"sample", "without replacement", "top-k"}
        How the children of a node are chosen: as independent samples of the draft's distribution; each from
        what is left of it without its earlier siblings (recursive rejection sampling, Jeon et al. 2024, arXiv
        2402.14160); or as its most probable tokens. All are exact with verify="rejection"; "k-sequential"
        judges independent samples only. At temperature 0 the children are always the most probable tokens,
        and under the coupled rule those that are first in the race of the shared noise.
    parents : sequence of int, optional
        Any other tree, in place of `widths`: entry i is the parent of node i + 1, 0 being the root. Nodes
        are numbered level by level, and within a level in the order of their parents, so that no entry is
        below the one before it.

    Attributes
    ----------
    parents : tuple of int, [n_nodes]
        At most 1024.
    """

    parents: tuple[int, ...]
    how: ChildChoice

    def __init__(
        self, widths: Sequence[int] | None = None, how: ChildChoice = "sample", *,
        parents: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        how = check_choice("how", how, CHOICES)
        if (widths is None) == (parents is None):
            raise InputError("expected either widths or parents of the shape")
        found = _parents_of(widths) if widths is not None else _checked(parents)
        object.__setattr__(self, "parents", found)
        object.__setattr__(self, "how", how)

    @classmethod
    def expected(
        cls, n_nodes: int, acceptance: Sequence[float] = (0.65, 0.12, 0.05, 0.03), how: ChildChoice = "sample"
    ) -> StaticTree:  # fmt: skip
        """The shape with the most expected accepted tokens of all with so many nodes (Sequoia, section 3.1).

        Parameters
        ----------
        n_nodes : int
            1 to 1024.
        acceptance : sequence of float
            ``acceptance[r]``: how often a token is accepted from the child tried as number r of its node;
            descending, of (0, 1), with a sum of at most 1. A node has at most as many children. The default
            is roughly that of the embedded pair at temperature 1.
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
        # A node's value is the chance that it is accepted, never above its parent's: so the best are a tree.
        queue: list[tuple[float, tuple[int, ...]]] = [(-chances[0], (0,))]  # ways down, by ranks of children
        ways: list[tuple[int, ...]] = []
        while len(ways) < n_nodes:
            value, way = heapq.heappop(queue)
            ways.append(way)
            heapq.heappush(queue, (value * chances[0], (*way, 0)))
            if way[-1] + 1 < len(chances):
                ratio = chances[way[-1] + 1] / chances[way[-1]]
                heapq.heappush(queue, (value * ratio, (*way[:-1], way[-1] + 1)))
        ways.sort(key=lambda way: (len(way), way))
        numbers = {way: node for node, way in enumerate([(), *ways])}
        return cls(how=how, parents=[numbers[way[:-1]] for way in ways])

    @property
    def gamma(self) -> int:
        """Guesses a round: as many as the shape has nodes."""
        return len(self.parents)

    def describe(self) -> Description:
        """As that of `ParallelChains`."""
        return "static_tree", {"parents": list(self.parents), "how": self.how}

    def __repr__(self) -> str:
        return f"<specdec.drafts.StaticTree of {len(self.parents)} nodes, {self.how}>"


@dataclass(frozen=True)
class DynamicTree:
    """A tree that grows where the draft is confident, to a number of nodes.

    In each step the draft reads, in one forward pass, the best nodes that it has not read, and each is
    followed by its most probable tokens; a node's value is the product of the draft's confidences down to it.
    The best `n_nodes` are proposed: the tree of which the draft expects most accepted tokens (Sequoia, arXiv
    2402.12374; EAGLE-2, arXiv 2406.16858; OPT-Tree, arXiv 2406.17276). It is made for greedy decoding and the
    coupled rule; under other rules a `StaticTree` of samples is accepted more often.

    Parameters
    ----------
    n_nodes : int
        Nodes of the tree at most, 1 to 1024; a smaller gamma keeps the best.
    width : int, default 3
        Guesses that are read in a step, and tokens that may follow each.
    steps : int, default 8
        Forwards of the draft in a round at most, and so guesses in a row.
    sharpness : float, default 3.5
        Confidence in a token, for greedy decoding and the coupled rule, is the softmax of the draft's logits
        times this: 3.5 for a good draft, which is right far more often than its probability says and has
        deep trees; 1 takes the draft by its word, which makes bushes.
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
        """Guesses a round: n_nodes."""
        return self.n_nodes

    def describe(self) -> Description:
        """As that of `ParallelChains`."""
        return "dynamic_tree", {"width": self.width, "steps": self.steps, "sharpness": self.sharpness}


Tree: TypeAlias = ParallelChains | StaticTree | DynamicTree


def check_tree(tree: object) -> Tree | None:
    """The argument `tree`, which may be None."""
    if tree is None or isinstance(tree, Tree):
        return tree
    raise InputError(f"tree is {type_of(tree)}; expected ParallelChains, StaticTree, DynamicTree or None")


def gamma_of(gamma: int | None, tree: Tree | None, default: int) -> int:
    """Draft tokens a round: the argument `gamma`; None: the nodes of the tree, or of a chain the default."""
    if gamma is not None:
        return check_integer("gamma", gamma, 1, MAX_GAMMA)
    return default if tree is None else tree.gamma


def describe_shape(tree: Tree | None, predictor: object) -> Description:
    """The drafting method that draws a tree, or a chain, from what a predictor of the core says."""
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
