"""N-gram drafts: how often tokens follow one another in a text."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_choice, check_flag, check_integer, check_items, check_path
from specdec.drafts.draft import Description, Draft, check_n_vocab
from specdec.drafts.ids import Ids, check_ids, check_n, check_n_ids, check_texts
from specdec.drafts.model_draft import DraftLike
from specdec.drafts.ngram_counts import NgramCounts
from specdec.drafts.ngram_file import read_ngrams, write_ngrams
from specdec.errors import CheckpointError, InputError, shown
from specdec.models.model import Model, Prompt
from specdec.models.tokenizer import Tokenizer
from specdec.models.tokenizer.objects import adapted
from specdec.progress import counted

__all__ = ["Bigram", "Ngram", "Smoothing", "Unigram", "check_smoothing"]

Text: TypeAlias = str | os.PathLike[str]

Smoothing: TypeAlias = Literal["interpolated", "backoff"]
"""How the counts of longer and shorter contexts are joined."""
SMOOTHINGS: tuple[Smoothing, ...] = get_args(Smoothing)


@runtime_checkable
class Written(Protocol):
    """What `Ngram.from_results` counts; the attributes are those of `specdec.Result`."""

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt as the models saw it."""
        ...

    @property
    def tokens(self) -> list[int]:
        """The new token ids."""
        ...


class Ngram(Draft):
    """A draft that knows the last n - 1 tokens: a model of negligible cost (arXiv 2211.17192, section 3.6).

    P_0(x) = (n(x) + d / n_vocab) / (n + d), with n(x) how often token x was seen, n = Σ n(x), and d how many
    different tokens were seen: Witten and Bell's interpolation with the uniform distribution (IEEE
    Transactions on Information Theory 37, 1991), so that no token has probability 0. Let h be the last k
    tokens, n(hx) how often x followed them, N = Σ n(hx) and D how many different tokens followed them. From
    k = 1 to n - 1, where h was ever followed by anything:

    - ``"interpolated"``: P_k(x) = (n(hx) + D P_{k-1}(x)) / (N + D), of the same paper;
    - ``"backoff"``: P_k(x) = n(hx) / (N + D) if n(hx) > 0, else D / (N + D) P_{k-1}(x) / U, with U the sum of
      P_{k-1} over the tokens that did not follow h (Katz, IEEE Transactions on Acoustics, Speech and Signal
      Processing 35, 1987, with the discount of Witten and Bell). U is taken as 1e-9 where it is less, and
      the row then divided by its sum.

    Parameters
    ----------
    ids : sequence of int, or a list of such
        Token ids of the text, or of several texts, between which nothing is counted; at least one token.
    n_vocab : int
        Number of different token ids.
    n : int, default 3
        Tokens of the longest n-grams, 1 to 8.
    smoothing : {"interpolated", "backoff"}
    min_count : int, default 1
        n-grams of two tokens and more that occur less often are left out, for a smaller table.

    Attributes
    ----------
    counts : NgramCounts
    smoothing : str

    Raises
    ------
    InputError
        If there is no token, or one is not in 0 to n_vocab - 1, or an argument is out of its range.

    Notes
    -----
    Counting takes memory for some 40 bytes a token, and about n seconds for a million of them.
    """

    counts: NgramCounts
    smoothing: Smoothing

    def __init__(
        self,
        ids: Ids | Sequence[Ids],
        n_vocab: int,
        n: int = 3,
        *,
        smoothing: Smoothing = "interpolated",
        min_count: int = 1,
    ) -> None:
        texts = check_texts(ids, n_vocab)
        self.smoothing = check_smoothing(smoothing)
        min_count = min(check_integer("min_count", min_count, 1), 2**31 - 1)  # no count is larger
        self.counts = NgramCounts.count(texts, check_n_ids(n_vocab), check_n(n), min_count)

    @staticmethod
    def of(counts: NgramCounts, smoothing: Smoothing = "interpolated") -> Ngram:
        """The draft of counts that are there already."""
        table = object.__new__(Ngram)
        table.counts, table.smoothing = counts, check_smoothing(smoothing)
        return table

    @staticmethod
    def from_text(
        texts: Text | Sequence[Text],
        tokenizer: Model | Tokenizer,
        n: int = 3,
        *,
        smoothing: Smoothing = "interpolated",
        min_count: int = 1,
        progress: bool = False,
    ) -> Ngram:
        """Count text.

        Parameters
        ----------
        texts : str, path, or a list of these
            A string is a text, a path a file of it, in UTF-8. Each begins with BOS where the model was
            trained with it.
        tokenizer : Model or Tokenizer
            The target, or its tokenizer if that knows all of the target's ids.
        n, smoothing, min_count
            As of `Ngram`.
        progress : bool
            Show a bar over the texts; it needs tqdm.

        Raises
        ------
        InputError
            If a file cannot be read, the model has no tokenizer, or as `Ngram`.
        """
        tokenizer = adapted(tokenizer) or tokenizer
        of_model = getattr(tokenizer, "tokenizer", tokenizer)
        counted_by = "n_vocab" if of_model is tokenizer else "config"
        if of_model is not None and not (hasattr(of_model, "encode") and hasattr(tokenizer, counted_by)):
            raise InputError(f"tokenizer is {shown(tokenizer)}; expected a specdec.Model or its tokenizer")
        if of_model is None:
            raise InputError("tokenizer is a model without a tokenizer; expected one, to encode texts with")
        source: Any = tokenizer
        n_vocab = source.n_vocab if of_model is tokenizer else source.config["n_vocab"]
        if isinstance(texts, str | os.PathLike):
            texts = [texts]
        several = check_items("texts", texts, "a text, a path, or a list of these")
        ids = []
        with counted(len(several), "text", progress) as done:
            for text in several:
                ids.append(of_model.encode(_read(text)))
                done(1)
        return Ngram(ids, n_vocab, n, smoothing=smoothing, min_count=min_count)

    @staticmethod
    def from_results(
        results: Written | Sequence[Written],
        target: Model,
        n: int = 3,
        *,
        smoothing: Smoothing = "interpolated",
        min_count: int = 1,
    ) -> Ngram:
        """Count what a target has written: then the table guesses like the target, not like some corpus.

        Parameters
        ----------
        results : Result or list of Result
            What `specdec.generate` gave for this target. The prompts are counted too.
        target : Model
        n, smoothing, min_count
            As of `Ngram`.

        Raises
        ------
        InputError
            If something else is among the results, or as `Ngram`.

        Examples
        --------
        >>> results = specdec.generate(target, None, prompts, max_new_tokens=300)
        >>> table = drafts.Ngram.from_results(results, target, n=4)
        """
        if not isinstance(target, Model):
            raise InputError(f"target is {shown(target)}; expected a specdec.Model")
        several = [results] if isinstance(results, Written) else results
        texts = []
        for i, result in enumerate(check_items("results", several, "a specdec.Result, or a list of these")):
            if not isinstance(result, Written):
                raise InputError(f"results[{i}] is {shown(result)}; expected a specdec.Result")
            texts.append([*result.prompt_ids, *result.tokens])
        return Ngram(texts, target.config["n_vocab"], n, smoothing=smoothing, min_count=min_count)

    @staticmethod
    def from_target(
        target: Model,
        prompts: Sequence[Prompt],
        n: int = 3,
        *,
        draft: DraftLike | None = None,
        smoothing: Smoothing = "interpolated",
        min_count: int = 1,
        progress: bool = False,
        **options: Any,
    ) -> Ngram:
        """Deprecated, until version 0.3: `specdec.generate`, then `Ngram.from_results`.

        Parameters
        ----------
        target, prompts, draft, progress, **options
            As of `specdec.generate`.
        n, smoothing, min_count
            As of `Ngram`.

        Raises
        ------
        InputError
            As `specdec.generate` and `Ngram`.
        """
        # The one import that goes up; it leaves with this method.
        from specdec.decoding.generate import generate

        warnings.warn(
            "Ngram.from_target is deprecated; use Ngram.from_results(specdec.generate(...), target)",
            DeprecationWarning,
            stacklevel=2,
        )
        check_smoothing(smoothing)
        check_n(n)
        several = check_items("prompts", prompts, "a list of prompts")
        results = generate(target, draft, several, progress=progress, **options)
        if not isinstance(results, list):
            raise InputError(f"prompts is {shown(prompts)}; expected a list of prompts")
        return Ngram.from_results(results, target, n, smoothing=smoothing, min_count=min_count)

    @staticmethod
    def load(path: str | os.PathLike[str], *, mmap: bool = False) -> Ngram:
        """Read a table that `save` wrote.

        Parameters
        ----------
        path : path
        mmap : bool, default False
            False: read the table into memory, so that what becomes of the file does not matter. True: leave
            it in the file and map it, for tables larger than memory or shared by processes; opening reads it
            once, to check it, and from then on the system keeps in memory what is used. The file must then
            stay as it is: if another program cuts it short, the system ends the process (SIGBUS). `save`
            replaces a file and cuts none short.

        Raises
        ------
        CheckpointNotFoundError
            There is no such file.
        CheckpointError
            It is damaged, or holds something else.
        """
        file = check_path("path", path, CheckpointError)
        counts, smoothing = read_ngrams(file, check_flag("mmap", mmap))
        if smoothing not in SMOOTHINGS:
            raise CheckpointError(
                f"{file}: metadata field 'smoothing' is {smoothing!r}; "
                f"expected one of {', '.join(SMOOTHINGS)}"
            )
        table = Ngram.of(counts, check_smoothing(smoothing))
        try:
            _ = table.core
        except ValueError as error:
            raise CheckpointError(f"{file}: {error}") from error
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file (safetensors), for `load`. A file that is there is replaced.

        Raises
        ------
        InputError
            `path` is none, or cannot be that of a file.
        OSError
            The file cannot be written.
        """
        write_ngrams(check_path("path", path), self.counts, self.smoothing)

    def update(self, ids: Ids | Sequence[Ids]) -> None:
        """Add the counts of more text; runs that have begun go on with what was there.

        All n-grams of it are added, whatever `min_count` was.

        Raises
        ------
        InputError
            As `Ngram`.
        """
        texts = check_texts(ids, self.n_vocab)
        self.counts = self.counts.plus(NgramCounts.count(texts, self.n_vocab, self.n))
        self.__dict__.pop("core", None)
        self.__dict__.pop("_unigram", None)

    @property
    def n(self) -> int:
        """Tokens of the longest n-grams."""
        return self.counts.n

    @property
    def n_vocab(self) -> int:
        """Number of different token ids."""
        return self.counts.n_vocab

    @property
    def n_ngrams(self) -> tuple[int, ...]:
        """How many different n-grams of 1, 2, … n tokens were seen."""
        return (
            int(np.count_nonzero(self.counts.unigrams)),
            *(len(level.tokens) for level in self.counts.levels),
        )

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """The distribution of the next token after each of some tokens.

        Parameters
        ----------
        ids : sequence of int, [n_tokens]

        Returns
        -------
        ndarray of float64, [n_tokens, n_vocab]
            Row i is the distribution of the token after ids[: i + 1].

        Raises
        ------
        InputError
            If a token is not in 0 to n_vocab - 1.
        """
        tokens = check_ids(ids, self.n_vocab).tolist()
        rows = np.empty((len(tokens), self.n_vocab))
        for i, row in enumerate(rows):
            row[:] = self._unigram
            for k in range(1, self.n):
                if k <= i + 1:
                    lengthen(row, *self.after(tokens[i + 1 - k : i + 1]), self.smoothing)
            if self.smoothing == "backoff":
                row /= row.sum()
        return rows

    def after(self, context: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """What followed a context of 1 to n - 1 tokens, ascending, and how often: [n_different] each."""
        row = context[0]
        nothing = np.zeros(0, np.int32)
        for token, level in zip(context[1:], self.counts.levels, strict=False):
            begin, end = level.starts[row : row + 2]
            row = int(begin + np.searchsorted(level.tokens[begin:end], token))
            if row == end or level.tokens[row] != token:
                return nothing, nothing
        level = self.counts.levels[len(context) - 1]
        found = slice(level.starts[row], level.starts[row + 1])
        return level.tokens[found], level.counts[found]

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        check_n_vocab(self.n_vocab, target)
        return "ngram", self.core

    @cached_property
    def _unigram(self) -> NDArray[np.float64]:
        return unigram(self.counts.unigrams)

    @cached_property
    def core(self) -> _core.Ngram:
        """The table as the C core reads it: the same arrays."""
        levels = tuple((level.starts, level.tokens, level.counts) for level in self.counts.levels)
        return _core.Ngram(self.counts.unigrams, levels, back_off=self.smoothing == "backoff")

    def __repr__(self) -> str:
        sizes = "".join(f", {m} {k}-grams" for k, m in enumerate(self.n_ngrams[1:], 2))
        return f"<specdec.drafts.{type(self).__name__} of {self.n_vocab} tokens{sizes}>"


class Unigram(Ngram):
    """A draft that gives every token the share it has in some text: `Ngram` of n = 1.

    Parameters
    ----------
    ids, n_vocab
        As of `Ngram`.
    """

    def __init__(self, ids: Ids | Sequence[Ids], n_vocab: int) -> None:
        super().__init__(ids, n_vocab, 1)

    @property
    def probs(self) -> NDArray[np.float64]:
        """The one distribution, [n_vocab]."""
        return self._unigram


class Bigram(Ngram):
    """A draft that knows the last token alone: `Ngram` of n = 2.

    Parameters
    ----------
    ids, n_vocab, smoothing, min_count
        As of `Ngram`.
    """

    def __init__(
        self,
        ids: Ids | Sequence[Ids],
        n_vocab: int,
        *,
        smoothing: Smoothing = "interpolated",
        min_count: int = 1,
    ) -> None:
        super().__init__(ids, n_vocab, 2, smoothing=smoothing, min_count=min_count)


def unigram(counts: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.float64]:
    """P_0 of `Ngram` from the counts of all tokens; uniform if there are none. [n_vocab]."""
    n_different = np.count_nonzero(counts)
    if not n_different:
        return np.full(len(counts), 1.0 / len(counts))
    n_tokens = int(counts.sum(dtype=np.int64))
    return np.asarray((counts + n_different / len(counts)) / (n_tokens + n_different), dtype=np.float64)


def lengthen(
    row: NDArray[np.float64], tokens: NDArray[np.int32], counts: NDArray[np.int32], smoothing: Smoothing
) -> None:
    """P_{k-1} becomes P_k of `Ngram`, in place; a back-off's sum is left as it is."""
    n_different = len(tokens)
    if not n_different:
        return
    n = int(counts.sum(dtype=np.int64)) + n_different
    if smoothing == "interpolated":
        row *= n_different
        row[tokens] += counts
        row /= n
    else:
        row *= n_different / n / max(1.0 - row[tokens].sum(), 1e-9)
        row[tokens] = counts / n


def check_smoothing(smoothing: Any) -> Smoothing:
    """One of the names of smoothing."""
    return check_choice("smoothing", smoothing, SMOOTHINGS)


def _read(text: Text) -> str:
    if isinstance(text, str):
        return text
    path = check_path("texts", text)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"texts: {path} cannot be read as UTF-8: {error}") from error
