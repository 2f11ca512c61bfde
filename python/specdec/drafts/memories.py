"""Drafts that learn from generated texts, and their files: integer arrays in safetensors."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_flag, check_integer, check_number, check_path
from specdec.drafts.draft import MAX_GAMMA, Description, Draft, check_n_vocab, loaded_again
from specdec.drafts.texts import MAX_VOCABULARY, Ids, check_ids
from specdec.drafts.trees import StaticTree
from specdec.errors import CheckpointError, InputError, VocabularyMismatchError, type_of
from specdec.fields import as_json
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata, write_safetensors
from specdec.models.model import Model
from specdec.models.origin import ReadFiles


class IntegerFile:
    """Integer arrays of a safetensors file with the metadata `expected`, taken one by one."""

    def __init__(self, path: Path, expected: Mapping[str, str]) -> None:
        self.path = path
        self.tensors, self.metadata = read_safetensors_with_metadata(path)  # not taken yet
        for name, value in expected.items():
            if self.metadata.get(name) != value:
                raise CheckpointError.of(path, name, self.metadata.get(name), as_json(value))

    def take(self, name: str, *, mmap: bool = False) -> NDArray[Any]:
        """Take an array, in memory or as a view of the mapped file, out of `tensors`."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{name}' is missing")
        return self.tensors.pop(name).integers(mmap=mmap)

    def take_ids(self, name: str) -> NDArray[np.int32]:
        """Take a one-dimensional int32 array, in memory."""
        array = self.take(name)
        if array.dtype != np.int32 or array.ndim != 1:
            found = f"shape {array.shape} and dtype {array.dtype}; expected one dimension and int32"
            raise CheckpointError(f"{self.path}: tensor '{name}' has {found}")
        return array

    def number(self, name: str, low: int, high: int) -> int:
        """Return a metadata field as an integer from low to high."""
        text = self.metadata.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
        raise CheckpointError.of(self.path, name, text, f"an integer, {low} to {high}")

    def check_end(self, of: str) -> None:
        """Refuse a file with further arrays; `of` describes the contents."""
        if self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{min(self.tensors)}' is not part of {of}")


Memory = TypeVar("Memory", bound="MemoryDraft")


class MemoryDraft(Draft):
    """A draft whose knowledge sequences share; its pickle names the file it was saved to."""

    metadata: ClassVar[Mapping[str, str]]  # of the file
    holds: ClassVar[str]  # contents of the file, for messages
    sizes: ClassVar[Mapping[str, int]]  # arguments stored in the file, with the largest value of each

    def __init__(self) -> None:
        self.n_vocab: int | None = None
        self._lock = threading.Lock()  # for changes and new sequences
        self._n_begun = 0
        self._has_begun = False
        self._file: ReadFiles | None = None  # loaded from or saved to last

    @property
    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The constructor arguments."""

    @abstractmethod
    def _knows_something(self) -> bool:
        """Return whether the draft has learned anything."""

    @abstractmethod
    def _stored(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """Return the numbers of the file, except `sizes`, and its arrays."""

    def __reduce__(self) -> tuple[Callable[..., Draft], tuple[Any, ...]]:
        if self._file is not None:
            return loaded_again, (type(self), self._file.reference(), (), self._settings)
        if self._has_begun or self._knows_something():
            expected = "one that was saved to a file or loaded from one, which a pickle names"
            raise InputError(f"{self!r} is only in this process and cannot be pickled; expected {expected}")
        return partial(type(self), **self._settings), ()

    def rng_key(self) -> tuple[int, ...]:
        self._has_begun = True
        return (self._next_text(),)

    def _next_text(self) -> int:
        with self._lock:
            self._n_begun += 1
            return self._n_begun

    def _as_snapshot_of(self, other: MemoryDraft) -> None:
        """Take over the counters of `other`, whose knowledge was copied before."""
        self._n_begun, self._has_begun = other._n_begun, other._has_begun
        self.n_vocab, self._snapshot_of = other.n_vocab, other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the draft to a safetensors file, for `load`; replace an existing file."""
        file = check_path("path", path)
        numbers, arrays = self._stored()
        numbers |= {name: getattr(self, name) for name in self.sizes} | {"n_begun": self._next_text()}
        write_safetensors(
            file, arrays, {**self.metadata, **{name: str(number) for name, number in numbers.items()}}
        )
        self._file = ReadFiles.at(file, [file])

    @classmethod
    def load(cls: type[Memory], path: str | os.PathLike[str], **settings: Any) -> Memory:
        """Read a file that `save` wrote; `settings` override constructor arguments."""
        location = check_path("path", path, CheckpointError)
        files, file = ReadFiles.at(location, [location]), IntegerFile(location, cls.metadata)
        n_begun = file.number("n_begun", 0, 2**62)
        draft = cls(**{**{name: file.number(name, 1, most) for name, most in cls.sizes.items()}, **settings})
        try:
            draft._fill(file)
        except CheckpointError:
            raise
        except ValueError as error:  # the core does not name the file
            raise CheckpointError(f"{location}: {error}") from error
        file.check_end(cls.holds)
        draft._n_begun, draft._file = n_begun, files
        return draft

    @abstractmethod
    def _fill(self, file: IntegerFile) -> None:
        """Fill a new object from a file; a ValueError means that the file is damaged."""


MAX_TOKENS: Final = 2**28
MAX_DEPTH: Final = 1024
_ARRAYS: Final = ("tokens", "lengths", "n_before")
_SETTINGS: Final = ("max_tokens", "max_depth", "factor", "min_probability", "min_match", "branches", "gamma")


class SuffixDecoding(MemoryDraft):
    """Suffix decoding: proposes the most frequent continuations of the longest suffix in past outputs.

    A model-free, training-free draft (Oliaro et al. 2024, arXiv 2411.04975) for requests that resemble
    earlier ones, such as agent loops, pipelines and templates. Give the same object to every call: it records
    each output when it ends and drafts for later sequences, in other threads too. If the text itself promises
    more than the memory, the draft copies from the text.

    Each round looks up the longest suffix of the text, up to `max_depth` tokens, in the memory and in the
    earlier text. The continuations of at most 256 occurrences make up a tree; the value of a token is the
    product of the shares of occurrences along its path. The draft takes the tree with the larger sum of
    values, and from it the best tokens, at most `factor` per suffix token.

    The memory is a suffix tree without edges: 8 bytes per token, and 4 bytes for each of up to `max_depth`
    prompt tokens before an output. Adding a text takes about 20 ms per million tokens in the memory, and
    temporarily doubles it.

    Parameters
    ----------
    max_tokens : int, default 1000000
        Capacity in tokens, ends of prompts included, up to 2**28; the oldest texts are dropped.
    max_depth : int, default 64
        Longest suffix in tokens, 1 to 1024.
    factor : float, default 1.0
        Draft tokens per suffix token, above 0; at least one if a suffix matches.
    min_probability : float, default 0.1
        Smallest value of a draft token; above 0, at most 1.
    min_match : int, default 2
        Shortest suffix in tokens, at least 1.
    branches : bool, default True
        True: a tree. False: a chain, which every rule accepts.
    gamma : int, default 16

    Attributes
    ----------
    n_vocab : int or None
        Vocabulary size of the first target; other targets are refused.

    Notes
    -----
    Exact with every rule: draft tokens are point masses, from outputs with independent random numbers.
    A sequence's random numbers depend on the seed and the number of earlier sequences. With rules other than
    "coupled" a sample depends on the seed and the memory, but its distribution does not. Greedy and coupled
    output depends on the model and the seed alone.

    An interrupted call records its committed tokens. Texts are stored unencrypted, in memory and in files. A
    pickle names the file last loaded or saved; a used memory without a file cannot be pickled.
    """

    metadata: ClassVar = {"format": "specdec suffix memory", "version": "1"}
    holds: ClassVar = "a suffix memory"
    sizes: ClassVar = {"max_tokens": MAX_TOKENS, "max_depth": MAX_DEPTH}

    def __init__(
        self, *, max_tokens: int = 1_000_000, max_depth: int = 64, factor: float = 1.0,
        min_probability: float = 0.1, min_match: int = 2, branches: bool = True, gamma: int = 16,
    ) -> None:  # fmt: skip
        self.max_tokens = check_integer("max_tokens", max_tokens, 1, MAX_TOKENS)
        self.max_depth = check_integer("max_depth", max_depth, 1, MAX_DEPTH)
        expected = "a number above 0"
        self.factor = check_number("factor", factor, expected, lambda x: 0.0 < x < np.inf)
        self.min_probability = check_number(
            "min_probability", min_probability, f"{expected}, at most 1", lambda x: 0.0 < x <= 1.0
        )
        self.min_match = check_integer("min_match", min_match, 1, MAX_DEPTH)
        self.branches = check_flag("branches", branches)
        self.gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
        super().__init__()
        self._tree = _core.SuffixTree(self.max_tokens, self.max_depth)
        self._origin = 0  # digest of all texts passed to `add`

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    @property
    def n_texts(self) -> int:
        """Number of stored outputs."""
        return self._tree.n_texts

    @property
    def n_tokens(self) -> int:
        """Number of stored tokens, ends of prompts included."""
        return self._tree.n_tokens

    @property
    def n_bytes(self) -> int:
        """Memory in bytes."""
        return self._tree.n_bytes

    def texts(self) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Return the end of the prompt and the output of each text, [n_tokens] each, the oldest first."""
        tokens, lengths, n_before = self._tree.texts()
        ends = np.cumsum(lengths, dtype=np.int64)
        return [
            (tokens[end - length : end - length + n], tokens[end - length + n : end])
            for end, length, n in zip(ends, lengths, n_before, strict=True)
        ]

    def add(self, ids: Ids, prompt: Ids = ()) -> None:
        """Add an output made without this memory, after the last `max_depth` ids of its prompt."""
        n_vocab = MAX_VOCABULARY if self.n_vocab is None else self.n_vocab
        before, tokens = check_ids(prompt, n_vocab), check_ids(ids, n_vocab)
        self._add(before, tokens)
        state = self._origin.to_bytes(8, "little") + tokens.tobytes()
        self._origin = int.from_bytes(blake2b(state, digest_size=8).digest(), "little")

    def _add(self, before: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        before = before[-self.max_depth :]
        if len(tokens):
            text = np.concatenate([before, tokens]).astype(np.int32)
            with self._lock:
                self._tree.add(text, [len(text)], [len(before)])

    def remember(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        self._add(np.array(prompt[-self.max_depth :], np.int64), np.array(tokens, np.int64))

    def rng_key(self) -> tuple[int, ...]:
        return *super().rng_key(), self._origin

    def snapshot(self) -> SuffixDecoding:
        copy = SuffixDecoding(**self._settings)
        copy._tree.add(*self._tree.texts())
        copy._as_snapshot_of(self)
        copy._origin = self._origin
        return copy

    def describe(self, target: Model) -> Description:
        n_vocab = target.config["n_vocab"] if self.n_vocab is None else self.n_vocab
        check_n_vocab(n_vocab, target)
        if self._tree.max_token >= n_vocab:
            found = f"the memory has the token {self._tree.max_token}"
            raise VocabularyMismatchError(f"{found}; expected the target's, 0 to {n_vocab - 1}")
        self.n_vocab = n_vocab
        names = ("min_match", "factor", "min_probability", "branches")
        return "suffix_memory", {"memory": self._tree, **{name: getattr(self, name) for name in names}}

    def _knows_something(self) -> bool:
        return self.n_texts > 0

    def _stored(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        arrays = dict(zip(_ARRAYS, self._tree.texts(), strict=True))
        return {"n_vocab": self.n_vocab or 0, "origin": self._origin}, arrays

    def _fill(self, file: IntegerFile) -> None:
        self.n_vocab = file.number("n_vocab", 0, MAX_VOCABULARY) or None
        self._origin = file.number("origin", 0, 2**64 - 1)
        self._tree.add(*map(file.take_ids, _ARRAYS))
        if self.n_vocab and (found := self._tree.max_token) >= self.n_vocab:
            raise ValueError(f"tensor 'tokens' has the token {found}; expected 0 to {self.n_vocab - 1}")

    def __repr__(self) -> str:
        return f"<specdec.drafts.SuffixDecoding of {self.n_texts} outputs, {self.n_tokens} tokens>"


MAX_K: Final = 64
N_NODES: Final = 8
RANK_CHANCES: Final = (0.45, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.012)
"""Rough acceptance rate by rank, between those of repetitive and of sampled text."""


class TokenRecycling(MemoryDraft):
    """Token recycling: proposes the target's most probable tokens after each token, as last seen.

    A model-free, training-free draft (Luo et al. 2024, arXiv 2408.08696). For each token a matrix stores the
    k tokens with the largest logits when the target last read it. A tree is filled from the matrix: child r
    of a node is the token of rank r after the node's token. Each round updates the rows of all tree tokens,
    rejected ones included. The first rounds draft nothing, so give the same object to every call. Prompts are
    read without logits and update nothing.

    Parameters
    ----------
    k : int, default 8
        Stored tokens per token, 1 to 64; the matrix takes 4 k bytes per token.
    tree : StaticTree, optional
        Tree shape, with at most k children per node; its `how` is ignored. None: ``StaticTree.expected`` with
        8 nodes. Wider trees, as in the paper, pay if verifying more tokens costs little.

    Attributes
    ----------
    gamma : int
        Number of tree nodes, the default number of draft tokens per round.
    n_vocab : int or None
        Vocabulary size of the first target; other targets are refused.

    Notes
    -----
    Exact with every rule that accepts trees, and with every rule if the tree is a chain. Seeds and pickles
    behave as in `SuffixDecoding`.
    """

    metadata: ClassVar = {"format": "specdec token recycling", "version": "1"}
    holds: ClassVar = "a matrix of tokens"
    sizes: ClassVar = {"k": MAX_K}

    def __init__(self, k: int = 8, *, tree: StaticTree | None = None) -> None:
        super().__init__()
        self.k = check_integer("k", k, 1, MAX_K)
        if tree is not None and not isinstance(tree, StaticTree):
            raise InputError.of("tree", tree, "StaticTree or None", type_of(tree))
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
        """Return a copy of the matrix, [n_vocab, k]: the best token first, -1 where none is known."""
        if self._matrix is None:
            raise InputError("the draft has no target yet; expected one that was used")
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
