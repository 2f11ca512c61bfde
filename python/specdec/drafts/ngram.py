"""N-gram drafts, counted from texts or from the text being generated.

A file has the tensors ``unigrams`` (I32, [n_vocab]) and for k = 2 … n ``starts.k`` (I64), ``tokens.k`` and
``counts.k`` (I32), as in `NgramCounts` (and ``draft/tables/tables.h``), and the metadata ``format``,
``version`` and ``smoothing``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_choice, check_flag, check_integer, check_items, check_path
from specdec.drafts.draft import Description, Draft, check_model, check_n_vocab, loaded_again
from specdec.drafts.memories import IntegerFile
from specdec.drafts.texts import MAX_N, Ids, check_ids, check_n_ids, check_texts
from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints.safetensors_file import write_safetensors
from specdec.models.model import Model
from specdec.models.origin import ReadFiles
from specdec.models.tokenizer import Tokenizer
from specdec.models.tokenizer.resolve import adapted
from specdec.progress import counted
from specdec.text_files import read_text_file

Text: TypeAlias = str | os.PathLike[str]
Table = TypeVar("Table", bound="Ngram")

Smoothing: TypeAlias = Literal["interpolated", "backoff"]
SMOOTHINGS: tuple[Smoothing, ...] = get_args(Smoothing)
check_smoothing = partial(check_choice, "smoothing", choices=SMOOTHINGS)

METADATA: Final = {"format": "specdec n-gram counts", "version": "1"}
_MOST: Final = 2**31 - 1  # counts and numbers of n-grams fit 32 bits
_PARTS: Final = ("starts", "tokens", "counts")  # 64-bit arrays first, which aligns all arrays in the file


@dataclass(frozen=True)
class NgramLevel:
    """k-grams sorted by their tokens."""

    starts: NDArray[np.int64]  # [n_shorter + 1] index of the first k-gram that begins with (k - 1)-gram i
    tokens: NDArray[np.int32]  # [n_grams] last token of each
    counts: NDArray[np.int32]  # [n_grams] occurrences of each


@dataclass(frozen=True)
class NgramCounts:
    """Counts of all n-grams up to some length: `unigrams` [n_vocab], and levels from 2-grams on."""

    unigrams: NDArray[np.int32]
    levels: tuple[NgramLevel, ...]

    @staticmethod
    def count(texts: Sequence[NDArray[np.int64]], n_vocab: int, n: int, min_count: int = 1) -> NgramCounts:
        """Count the n-grams of each text; drop those of 2 tokens and more below `min_count`."""
        ids = np.concatenate(texts)
        left = np.concatenate([np.arange(len(text), 0, -1) for text in texts])  # tokens to the text's end
        begins, numbers = np.arange(len(ids)), ids  # start of each n-gram, and its index in its level
        levels: list[NgramLevel] = []
        for k in range(2, n + 1):
            kept = (left[begins] >= k) & (numbers >= 0)
            begins, numbers = begins[kept], numbers[kept]
            keys = numbers * n_vocab + ids[begins + k - 1]
            n_shorter = len(levels[-1].tokens) if levels else n_vocab
            level, numbers = _level(keys, None, n_shorter, n_vocab, min_count)
            levels.append(level)
        return NgramCounts(_narrow(np.bincount(ids, minlength=n_vocab)), tuple(levels))

    def plus(self, other: NgramCounts) -> NgramCounts:
        """Return the sum of two counts of the same vocabulary and length."""
        n_vocab = n_shorter = len(self.unigrams)
        mine = theirs = np.arange(n_vocab)  # index of each n-gram in the sum
        levels = []
        for a, b in zip(self.levels, other.levels, strict=True):
            shorter = [np.repeat(mine, np.diff(a.starts)), np.repeat(theirs, np.diff(b.starts))]
            keys = np.concatenate(shorter) * n_vocab + np.concatenate([a.tokens, b.tokens])
            level, numbers = _level(keys, np.concatenate([a.counts, b.counts]), n_shorter, n_vocab)
            mine, theirs = np.split(numbers, [len(a.tokens)])
            levels.append(level)
            n_shorter = len(level.tokens)
        return NgramCounts(_narrow(self.unigrams.astype(np.int64) + other.unigrams), tuple(levels))


def _level(
    keys: NDArray[np.int64],
    counts: NDArray[np.int32] | None,
    n_shorter: int,
    n_vocab: int,
    min_count: int = 1,
) -> tuple[NgramLevel, NDArray[np.int64]]:
    """Make a level from keys (index of the shorter n-gram · n_vocab + last token) and counts, default 1.

    Sum the counts of equal keys. Also return the index of each key in the level, -1 below `min_count`.
    """
    keys, numbers = np.unique(keys, return_inverse=True)
    totals = np.bincount(numbers.reshape(-1), counts, len(keys)).astype(np.int64)
    kept = totals >= min_count
    if np.count_nonzero(kept) > _MOST:
        raise InputError(f"ids has {kept.sum()} distinct n-grams of equal length; expected at most {_MOST}")
    shorter, tokens = np.divmod(keys[kept], n_vocab)
    starts = np.searchsorted(shorter, np.arange(n_shorter + 1)).astype(np.int64)
    level = NgramLevel(starts, tokens.astype(np.int32), _narrow(totals[kept]))
    return level, np.where(kept, np.cumsum(kept) - 1, -1)[numbers.reshape(-1)]


def _narrow(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Convert counts to 32 bits; raise an InputError if one does not fit."""
    if counts.max(initial=0) > _MOST:
        raise InputError(f"an n-gram occurs {counts.max()} times in ids; expected at most {_MOST}")
    return counts.astype(np.int32)


def read_ngrams(path: Path, mmap: bool) -> tuple[NgramCounts, str]:
    """Read counts, in memory or as views of the file, and the smoothing; the core checks the values."""
    file = IntegerFile(path, METADATA)
    n = sum(name.startswith("tokens.") for name in file.tensors) + 1
    levels = tuple(
        NgramLevel(*(file.take(f"{part}.{k}", mmap=mmap) for part in _PARTS)) for k in range(2, n + 1)
    )
    counts = NgramCounts(file.take("unigrams", mmap=mmap), levels)
    file.check_end(f"a table of {n}-grams")
    return counts, file.metadata.get("smoothing", "")


@runtime_checkable
class Written(Protocol):
    """The part of `specdec.Result` that `Ngram.from_results` reads."""

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""

    @property
    def tokens(self) -> list[int]:
        """New token ids."""


class Ngram(Draft):
    """An n-gram language model, at negligible cost (arXiv 2211.17192, section 3.6).

    P_0(x) = (n(x) + d / n_vocab) / (n + d), with the count n(x) of token x, n = Σ n(x), and d the number of
    distinct tokens: Witten and Bell's interpolation with the uniform distribution (IEEE Trans. on Information
    Theory 37, 1991), which gives every token a positive probability. For the last k tokens h, let n(hx) count
    how often x followed h, N = Σ n(hx), and D be the number of distinct followers. From k = 1 to n - 1, if h
    has a follower:

    - ``"interpolated"``: P_k(x) = (n(hx) + D P_{k-1}(x)) / (N + D), of the same paper;
    - ``"backoff"``: P_k(x) = n(hx) / (N + D) if n(hx) > 0, else D / (N + D) P_{k-1}(x) / U, with U ≥ 1e-9 the
      sum of P_{k-1} over the tokens that did not follow h (Katz, IEEE Trans. on Acoustics, Speech and Signal
      Processing 35, 1987, with the discount of Witten and Bell), normalized.

    Counting takes about 40 bytes of memory per token, and n seconds per million tokens.

    Parameters
    ----------
    ids : sequence of int, or a list of such
        Token ids of one text or several, at least one token. No n-gram spans two texts.
    n_vocab : int
        Vocabulary size.
    n : int, default 3
        Length of the longest n-grams, 1 to 8.
    smoothing : {"interpolated", "backoff"}
        How to combine longer and shorter contexts.
    min_count : int, default 1
        Drop n-grams of two tokens and more with smaller counts, for a smaller table.
    """

    counts: NgramCounts
    smoothing: Smoothing
    _mapped: ReadFiles | None = None  # the file that `counts` maps
    _only_n: ClassVar[int | None] = None  # fixed n of a subclass

    def __init__(
        self, ids: Ids | Sequence[Ids], n_vocab: int, n: int = 3, *, smoothing: Smoothing = "interpolated",
        min_count: int = 1,
    ) -> None:  # fmt: skip
        texts = check_texts(ids, n_vocab)
        self.smoothing = check_smoothing(smoothing)
        min_count = min(check_integer("min_count", min_count, 1), 2**31 - 1)  # no count is larger
        self.counts = NgramCounts.count(
            texts, check_n_ids(n_vocab), check_integer("n", n, 1, MAX_N), min_count
        )

    @classmethod
    def of(cls: type[Table], counts: NgramCounts, smoothing: Smoothing = "interpolated") -> Table:
        """Make a draft from counts, with n = 1 for `Unigram` and 2 for `Bigram`."""
        cls._n_of_class(len(counts.levels) + 1)
        table = object.__new__(cls)
        table.counts, table.smoothing = counts, check_smoothing(smoothing)
        return table

    @classmethod
    def _n_of_class(cls, n: int | None) -> int:
        """Return `n`, or the default for None; refuse another n than that of a fixed-n subclass."""
        if n is None:
            return 3 if cls._only_n is None else cls._only_n
        if cls._only_n is not None and check_integer("n", n, 1, MAX_N) != cls._only_n:
            raise InputError.of("n", n, f"{cls._only_n} for every {cls.__name__}")
        return n

    @classmethod
    def from_text(
        cls: type[Table], texts: Text | Sequence[Text], tokenizer: Model | Tokenizer, n: int | None = None, *,
        smoothing: Smoothing = "interpolated", min_count: int = 1, progress: bool = False,
    ) -> Table:  # fmt: skip
        """Count n-grams of text.

        Parameters
        ----------
        texts : str, path, or a list of these
            A string is a text; a path names a UTF-8 file. Each begins with BOS if the model uses it.
        tokenizer : Model or Tokenizer
            The target, or its tokenizer if that covers all of the target's ids.
        n, smoothing, min_count
            See `Ngram`; n is fixed to 1 for `Unigram` and 2 for `Bigram`.
        progress : bool
            Show a progress bar (needs tqdm).
        """
        n = cls._n_of_class(n)
        encoder: Any = (
            tokenizer.tokenizer if isinstance(tokenizer, Model) else adapted(tokenizer) or tokenizer
        )
        if encoder is None:
            raise InputError.of("tokenizer", None, "a tokenizer for the texts", "a model without one")
        if not (hasattr(encoder, "encode") and hasattr(encoder, "n_vocab")):
            raise InputError.of("tokenizer", tokenizer, "a specdec.Model or its tokenizer")
        n_vocab = tokenizer.config["n_vocab"] if isinstance(tokenizer, Model) else encoder.n_vocab
        if isinstance(texts, str | os.PathLike):
            texts = [texts]
        several = check_items("texts", texts, "a text, a path, or a list of these")
        ids = []
        with counted(len(several), "text", progress) as done:
            for text in several:
                if not isinstance(text, str):
                    text = read_text_file(check_path("texts", text), "a text", name="texts")
                ids.append(encoder.encode(text))
                done(1)
        return cls.of(Ngram(ids, n_vocab, n, smoothing=smoothing, min_count=min_count).counts, smoothing)

    @classmethod
    def from_results(
        cls: type[Table], results: Written | Sequence[Written], target: Model, n: int | None = None, *,
        smoothing: Smoothing = "interpolated", min_count: int = 1,
    ) -> Table:  # fmt: skip
        """Count n-grams of a target's `Result` objects, prompts included, which imitates the target.

        Examples
        --------
        >>> results = specdec.generate(target, None, prompts, max_new_tokens=300)
        >>> table = drafts.Ngram.from_results(results, target, n=4)
        """
        n, n_vocab = cls._n_of_class(n), check_model("target", target).config["n_vocab"]
        several = [results] if isinstance(results, Written) else results
        texts = []
        for i, result in enumerate(check_items("results", several, "a specdec.Result, or a list of these")):
            if not isinstance(result, Written):
                raise InputError.of(f"results[{i}]", result, "a specdec.Result")
            texts.append([*result.prompt_ids, *result.tokens])
        return cls.of(Ngram(texts, n_vocab, n, smoothing=smoothing, min_count=min_count).counts, smoothing)

    @classmethod
    def load(cls: type[Table], path: str | os.PathLike[str], *, mmap: bool = False) -> Table:
        """Read a table that `save` wrote.

        Parameters
        ----------
        path : path-like
            The file.
        mmap : bool, default False
            True: validate the file once and map it, for tables larger than memory or shared by processes. The
            file must then not change: truncating it kills the process (SIGBUS). `save` replaces files safely.
        """
        file, mmap = check_path("path", path, CheckpointError), check_flag("mmap", mmap)
        mapped = ReadFiles.at(file, [file]) if mmap else None
        counts, smoothing = read_ngrams(file, mmap)
        try:
            table = cls.of(counts, check_smoothing(smoothing))
            _ = table.core
        except ValueError as error:
            raise CheckpointError(f"{file}: {error}") from error
        table._mapped = mapped
        return table

    def __reduce__(self) -> tuple[Callable[..., Draft], tuple[Any, ...]]:
        """Pickle the counts, or the name of a mapped file."""
        if self._mapped is not None:
            return loaded_again, (type(self), self._mapped.reference(), (), {"mmap": True})
        return type(self).of, (self.counts, self.smoothing)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a safetensors file, for `load`; replace an existing file."""
        file, levels = check_path("path", path), list(enumerate(self.counts.levels, 2))
        arrays = {f"{part}.{k}": getattr(level, part) for part in _PARTS for k, level in levels}
        arrays["unigrams"] = self.counts.unigrams
        write_safetensors(file, arrays, METADATA | {"smoothing": self.smoothing})

    def update(self, ids: Ids | Sequence[Ids]) -> None:
        """Add counts of more text without `min_count`; runs in progress keep the old counts."""
        texts = check_texts(ids, self.n_vocab)
        self.counts = self.counts.plus(NgramCounts.count(texts, self.n_vocab, self.n))
        self._mapped = None
        self.__dict__.pop("core", None)

    @property
    def n(self) -> int:
        """Length of the longest n-grams."""
        return len(self.counts.levels) + 1

    def frequent_tokens(self, n: int) -> NDArray[np.int64]:
        """Return the `n` most frequent tokens, [n], in descending order; among equals by id.

        Examples
        --------
        >>> specdec.drafts.Unigram([3, 1, 3], 5).frequent_tokens(3).tolist()
        [3, 1, 0]
        """
        counts = self.counts.unigrams.astype(np.int64)
        return np.argsort(-counts, kind="stable")[: check_integer("n", n, 1, self.n_vocab)]

    @property
    def n_vocab(self) -> int:
        """Vocabulary size."""
        return len(self.counts.unigrams)

    @property
    def n_ngrams(self) -> tuple[int, ...]:
        """Number of distinct n-grams of 1, 2, … n tokens."""
        n_unigrams = int(np.count_nonzero(self.counts.unigrams))
        return (n_unigrams, *(len(level.tokens) for level in self.counts.levels))

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """Return the next-token distributions after each prefix of `ids` [n_tokens].

        Row i of the result, float64 [n_tokens, n_vocab], is for the token after ``ids[: i + 1]``.
        """
        tokens = check_ids(ids, self.n_vocab).tolist()
        rows = [row_after(self, tokens[: i + 1]) for i in range(len(tokens))]
        return np.array(rows).reshape(len(tokens), self.n_vocab)

    def after(self, context: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the followers of a context of 0 to n - 1 tokens, ascending, and their counts, [n] each."""
        if not context:
            tokens = np.flatnonzero(self.counts.unigrams).astype(np.int32)
            return tokens, self.counts.unigrams[tokens]
        row = context[0]
        for token, level in zip(context[1:], self.counts.levels, strict=False):
            begin, end = level.starts[row : row + 2]
            row = int(begin + np.searchsorted(level.tokens[begin:end], token))
            if row == end or level.tokens[row] != token:
                return level.tokens[:0], level.counts[:0]
        level = self.counts.levels[len(context) - 1]
        found = slice(level.starts[row], level.starts[row + 1])
        return level.tokens[found], level.counts[found]

    def describe(self, target: Model) -> Description:
        check_n_vocab(self.n_vocab, target)
        return "ngram", {"table": self.core}

    @cached_property
    def core(self) -> _core.Ngram:
        """The table for the C core, which shares the arrays."""
        levels = tuple((level.starts, level.tokens, level.counts) for level in self.counts.levels)
        return _core.Ngram(self.counts.unigrams, levels, back_off=self.smoothing == "backoff")

    def __repr__(self) -> str:
        sizes = "".join(f", {m} {k}-grams" for k, m in enumerate(self.n_ngrams[1:], 2))
        return f"<specdec.drafts.{type(self).__name__} of {self.n_vocab} tokens{sizes}>"


class Unigram(Ngram):
    """Token frequencies: an `Ngram` with n = 1."""

    _only_n = 1

    def __init__(self, ids: Ids | Sequence[Ids], n_vocab: int) -> None:
        super().__init__(ids, n_vocab, 1)

    @property
    def probs(self) -> NDArray[np.float64]:
        """The distribution of every token, [n_vocab]."""
        return row_after(self, [])


class Bigram(Ngram):
    """An `Ngram` with n = 2."""

    _only_n = 2

    def __init__(
        self, ids: Ids | Sequence[Ids], n_vocab: int, *, smoothing: Smoothing = "interpolated",
        min_count: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(ids, n_vocab, 2, smoothing=smoothing, min_count=min_count)


def row_after(
    table: Ngram, context: Sequence[int], seen: Mapping[tuple[int, ...], Counter[int]] | None = None
) -> NDArray[np.float64]:
    """Return the next-token distribution [n_vocab] after a text; add the counts `seen` to the table."""
    tokens: NDArray[np.integer[Any]]
    counts: NDArray[np.integer[Any]]
    row = np.full(table.n_vocab, 1.0 / table.n_vocab)
    for k in range(min(table.n - 1, len(context)) + 1):
        shorter = context[len(context) - k :]
        tokens, counts = table.after(shorter)
        if seen and (more := seen.get(tuple(shorter))):
            both = np.zeros(table.n_vocab, np.int64)
            both[tokens] = counts
            both[list(more)] += list(more.values())
            tokens = np.flatnonzero(both)
            counts = both[tokens]
        n_different = len(tokens)
        if not n_different:
            continue
        n = int(counts.sum(dtype=np.int64)) + n_different
        if table.smoothing == "backoff" and k > 0:
            row *= n_different / n / max(1.0 - row[tokens].sum(), 1e-9)
            row[tokens] = counts / n
        else:
            row *= n_different
            row[tokens] += counts
            row /= n
    return row / row.sum() if table.smoothing == "backoff" else row


class OnlineNgram(Draft):
    """An n-gram draft that also counts each sequence, prompt included, as it grows.

    After every round its distributions equal those of ``Ngram([*texts, text_so_far], n_vocab, n)``: the
    initial table plus the committed text. Each sequence of a batch has separate counts, which end with it. A
    run allocates 4 bytes per token of the longest text and 8 per vocabulary entry.

    Parameters
    ----------
    start : int or Ngram, default 3
        The initial table; or n, 1 to 8, to start empty.
    smoothing : {"interpolated", "backoff"}
        See `Ngram`; None or the table's with a table.
    """

    def __init__(self, start: int | Ngram = 3, *, smoothing: Smoothing | None = None) -> None:
        self.table = start if isinstance(start, Ngram) else None
        if isinstance(start, Ngram):
            if smoothing is not None and check_smoothing(smoothing) != start.smoothing:
                raise InputError.of("smoothing", smoothing, f"the table's, {start.smoothing!r}")
            self.n, self.smoothing = start.n, start.smoothing
        else:
            self.n = check_integer("n", start, 1, MAX_N)
            self.smoothing = check_smoothing("interpolated" if smoothing is None else smoothing)

    def _table(self, n_vocab: int) -> Ngram:
        if self.table is not None:
            return self.table
        return Ngram.of(NgramCounts.count([np.zeros(0, np.int64)], n_vocab, self.n), self.smoothing)

    def describe(self, target: Model) -> Description:
        _, table = self._table(target.config["n_vocab"]).describe(target)
        return "online_ngram", table

    def probabilities(self, ids: Ids, n_vocab: int | None = None) -> NDArray[np.float64]:
        """Return next-token distributions as `Ngram.probabilities` does, counting the tokens of the text.

        `n_vocab` is required without a table.
        """
        if self.table is None and n_vocab is None:
            raise InputError.of("n_vocab", None, "the vocabulary size, as there is no table")
        table = self.table or self._table(check_n_ids(n_vocab))
        tokens = check_ids(ids, table.n_vocab).tolist()
        rows = np.empty((len(tokens), table.n_vocab))
        seen: dict[tuple[int, ...], Counter[int]] = {}  # followers of each context in the text so far
        for i, row in enumerate(rows):
            for k in range(min(self.n - 1, i) + 1):
                seen.setdefault(tuple(tokens[i - k : i]), Counter())[tokens[i]] += 1
            row[:] = row_after(table, tokens[: i + 1], seen)
        return rows

    def __repr__(self) -> str:
        return f"<specdec.drafts.OnlineNgram of {self.n}-grams, from {self.table or 'nothing'}>"
