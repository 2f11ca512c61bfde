"""Past outputs draft: what followed the same tokens in them, by frequency."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_flag, check_integer, check_number
from specdec.drafts.draft import MAX_GAMMA, Description, check_n_vocab
from specdec.drafts.memory_draft import IntegerFile, MemoryDraft
from specdec.drafts.texts import MAX_VOCABULARY, Ids, check_ids
from specdec.errors import VocabularyMismatchError
from specdec.models.model import Model

MAX_TOKENS: Final = 2**28
MAX_DEPTH: Final = 1024
_ARRAYS: Final = ("tokens", "lengths", "n_before")
_SETTINGS: Final = ("max_tokens", "max_depth", "factor", "min_probability", "min_match", "branches", "gamma")


class SuffixMemory(MemoryDraft):
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

    def text_key(self) -> tuple[int, ...]:
        return *super().text_key(), self._origin

    def snapshot(self) -> SuffixMemory:
        copy = SuffixMemory(**self._settings)
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
        return f"<specdec.drafts.SuffixMemory of {self.n_texts} outputs, {self.n_tokens} tokens>"
