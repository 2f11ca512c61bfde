"""Drafts that remember texts, and their files: arrays of integers in safetensors."""

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
    """The arrays of integers of a file, taken one by one; `expected` is metadata that the file must have."""

    def __init__(self, path: Path, expected: Mapping[str, str]) -> None:
        self.path = path
        self.tensors, self.metadata = read_safetensors_with_metadata(path)  # those that are not taken yet
        for name, value in expected.items():
            if self.metadata.get(name) != value:
                raise CheckpointError.of(path, name, self.metadata.get(name), as_json(value))

    def take(self, name: str, *, mmap: bool = False) -> NDArray[Any]:
        """Take an array, in memory or as a view of the mapped file."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{name}' is missing")
        return self.tensors.pop(name).integers(mmap=mmap)

    def take_ids(self, name: str) -> NDArray[np.int32]:
        """Take an array of int32 of one dimension, in memory."""
        array = self.take(name)
        if array.dtype != np.int32 or array.ndim != 1:
            found = f"shape {array.shape} and dtype {array.dtype}; expected one dimension and int32"
            raise CheckpointError(f"{self.path}: tensor '{name}' has {found}")
        return array

    def number(self, name: str, low: int, high: int) -> int:
        """Return a field of the metadata that is an integer from low to high."""
        text = self.metadata.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
        raise CheckpointError.of(self.path, name, text, f"an integer, {low} to {high}")

    def check_end(self, of: str) -> None:
        """Refuse a file with arrays that have not been taken; `of` is what it holds."""
        if self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{min(self.tensors)}' is none of {of}")


Memory = TypeVar("Memory", bound="MemoryDraft")


class MemoryDraft(Draft):
    """A draft that one object shares between texts, with a file to save it, which a pickle names."""

    metadata: ClassVar[Mapping[str, str]]  # of its file
    holds: ClassVar[str]  # its file, in messages
    sizes: ClassVar[Mapping[str, int]]  # arguments that the file has, and the largest of each

    def __init__(self) -> None:
        self.n_vocab: int | None = None
        self._lock = threading.Lock()  # of who changes it, or begins a text
        self._n_begun = 0
        self._has_begun = False
        self._file: ReadFiles | None = None  # loaded from or saved to last

    @property
    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The arguments that it was made with."""

    @abstractmethod
    def _knows_something(self) -> bool:
        """Return whether it differs from a new object."""

    @abstractmethod
    def _stored(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """Return the numbers of the file, but for its `sizes`, and its arrays."""

    def __reduce__(self) -> tuple[Callable[..., Draft], tuple[Any, ...]]:
        if self._file is not None:
            return loaded_again, (type(self), self._file.reference(), (), self._settings)
        if self._has_begun or self._knows_something():
            expected = "one that was saved to a file or loaded from one, which a pickle names"
            raise InputError(f"{self!r} cannot be pickled, as it lives in this process; expected {expected}")
        return partial(type(self), **self._settings), ()

    def rng_key(self) -> tuple[int, ...]:
        self._has_begun = True
        return (self._next_text(),)

    def _next_text(self) -> int:
        with self._lock:
            self._n_begun += 1
            return self._n_begun

    def _as_snapshot_of(self, other: MemoryDraft) -> None:
        """Count texts from where `other` is now; called after its knowledge was copied."""
        self._n_begun, self._has_begun = other._n_begun, other._has_begun
        self.n_vocab, self._snapshot_of = other.n_vocab, other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file (safetensors), for `load`. A file that is there is replaced."""
        file = check_path("path", path)
        numbers, arrays = self._stored()
        numbers |= {name: getattr(self, name) for name in self.sizes} | {"n_begun": self._next_text()}
        write_safetensors(
            file, arrays, {**self.metadata, **{name: str(number) for name, number in numbers.items()}}
        )
        self._file = ReadFiles.at(file, [file])

    @classmethod
    def load(cls: type[Memory], path: str | os.PathLike[str], **settings: Any) -> Memory:
        """Read what `save` wrote; `settings` are arguments of the class, by default those of the file."""
        location = check_path("path", path, CheckpointError)
        files, file = ReadFiles.at(location, [location]), IntegerFile(location, cls.metadata)
        n_begun = file.number("n_begun", 0, 2**62)
        draft = cls(**{**{name: file.number(name, 1, most) for name, most in cls.sizes.items()}, **settings})
        try:
            draft._fill(file)
        except CheckpointError:
            raise
        except ValueError as error:  # the core names no file
            raise CheckpointError(f"{location}: {error}") from error
        file.check_end(cls.holds)
        draft._n_begun, draft._file = n_begun, files
        return draft

    @abstractmethod
    def _fill(self, file: IntegerFile) -> None:
        """Take what `_stored` gave into a new object; a ValueError is one of the file."""


MAX_TOKENS: Final = 2**28
MAX_DEPTH: Final = 1024
_ARRAYS: Final = ("tokens", "lengths", "n_before")
_SETTINGS: Final = ("max_tokens", "max_depth", "factor", "min_probability", "min_match", "branches", "gamma")


class SuffixDecoding(MemoryDraft):
    """A draft that remembers outputs: what followed the text's longest suffix in them, by frequency.

    Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975), without training and without a model, for requests
    that resemble earlier ones: agents that ask again with small changes, pipelines, templates. Give the same
    object to every call: each text is remembered when it ends, and drafts for the texts that begin
    afterwards, also in other threads. Where the text itself promises more than the memory, its own earlier
    tokens are copied.

    In each round the longest suffix of the text that occurs in the memory is looked for, up to `max_depth`
    tokens, and that in the text before. What followed its occurrences (256 of them at most) is a tree, in
    which a token's value is the product of the shares of occurrences down to it. The best tokens by that
    value are drafted, at most `factor` for each token of the suffix, of the tree with the larger sum.

    The outputs are kept as a suffix tree without edges: 8 bytes a token, and 4 bytes for each of up to
    `max_depth` tokens of the prompt before an output. To remember a text takes some 20 milliseconds for each
    million tokens of the memory, and twice the memory for that moment.

    Parameters
    ----------
    max_tokens : int, default 1000000
        Tokens that are kept at most, the ends of prompts included; the oldest texts leave. Up to 2**28.
    max_depth : int, default 64
        Tokens of a suffix that are looked at, 1 to 1024.
    factor : float, default 1.0
        Draft tokens for each token of the suffix, above 0; at least one where there is a suffix.
    min_probability : float, default 0.1
        A token is drafted only if its value is at least this; above 0, at most 1.
    min_match : int, default 2
        The shortest suffix, in tokens, that is looked for, at least 1.
    branches : bool, default True
        True: a tree. False: a chain, which every rule takes.
    gamma : int, default 16

    Attributes
    ----------
    n_vocab : int or None
        Tokens of the vocabulary, once the memory has had a target; others are refused then.

    Notes
    -----
    Exact with every rule: draft tokens are point masses, of outputs whose random numbers are independent of
    the text's, as those of a text are made of the seed and of how many texts this memory has begun with. So
    with the rejection rule a sample follows from the seed and the memory; its distribution does not depend on
    the memory, and greedy and coupled output is a function of the model and the seed as always.

    Of a call that ended early the tokens that were committed are remembered. Texts are kept in the clear, in
    memory and in files. A pickle names the file that the memory was loaded from or saved to last; one that
    has no file and has begun a text cannot be pickled.
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
        self._origin = 0  # a digest of all texts that were added by hand

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    @property
    def n_texts(self) -> int:
        """Outputs that are kept."""
        return self._tree.n_texts

    @property
    def n_tokens(self) -> int:
        """Tokens that are kept, the ends of prompts included."""
        return self._tree.n_tokens

    @property
    def n_bytes(self) -> int:
        """Memory held."""
        return self._tree.n_bytes

    def texts(self) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """What is kept, the oldest first: the end of the prompt and the output, [n_tokens] each."""
        tokens, lengths, n_before = self._tree.texts()
        ends = np.cumsum(lengths, dtype=np.int64)
        return [
            (tokens[end - length : end - length + n], tokens[end - length + n : end])
            for end, length, n in zip(ends, lengths, n_before, strict=True)
        ]

    def add(self, ids: Ids, prompt: Ids = ()) -> None:
        """Remember an output made without this memory, after the last `max_depth` ids of its prompt."""
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
    are as of `SuffixDecoding`.
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
