"""Log-probabilities of texts and continuations, in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_flag, check_integer, check_items
from specdec.containers import plain, prompts_of, text_of
from specdec.errors import InputError, number_of, shown
from specdec.models.tokenizer import why_no_tokenizer
from specdec.progress import counted
from specdec.threads import check_threads

TopLogProbs: TypeAlias = list[list[tuple[int, float]]]
"""For each token the most probable alternatives: pairs (id, ln p), best first."""

_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """Log-probabilities of a text, or of the continuation of a context.

    Attributes
    ----------
    tokens : list of int
        The scored tokens.
    log_probs : ndarray of float64, shape (n_tokens,)
        ln p of each token given all tokens before it.
    greedy : ndarray of bool, shape (n_tokens,)
        Whether the token is the most probable one; ties go to the lowest id.
    top_logprobs : list of lists of (int, float), or None
        For each token the most probable alternatives, best first, ties by id; None unless requested.
    """

    tokens: list[int]
    log_probs: NDArray[np.float64]
    greedy: NDArray[np.bool_]
    top_logprobs: TopLogProbs | None = None

    @property
    def n_tokens(self) -> int:
        """Number of scored tokens."""
        return len(self.tokens)

    @property
    def total(self) -> float:
        """Sum of ``log_probs``."""
        return float(self.log_probs.sum())

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding generates these tokens."""
        return bool(self.greedy.all())

    @property
    def perplexity(self) -> float:
        """exp of the mean of -ln p; NaN without tokens, infinite on overflow."""
        if not self.tokens:
            return math.nan
        try:
            return math.exp(-self.total / self.n_tokens)
        except OverflowError:
            return math.inf

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Score):
            return NotImplemented
        return (
            self.tokens == other.tokens
            and np.array_equal(self.log_probs, other.log_probs)
            and np.array_equal(self.greedy, other.greedy)
            and self.top_logprobs == other.top_logprobs
        )

    __hash__ = None  # type: ignore[assignment]  # compared by value, and arrays have no hash

    def __repr__(self) -> str:
        found = ", greedy" if self.is_greedy else ""
        return f"<specdec.Score of {number_of(self.n_tokens, 'token')}: ln p {self.total:.4g}{found}>"


Text: TypeAlias = tuple[Sequence[int] | NDArray[np.int32], int]
"""Token ids, and the number of leading ones, at least one, that are not scored."""


def _rolling_windows(tokens: Sequence[int], prefix: int, n_ctx: int) -> Iterator[Text]:
    """Yield windows that score each token of a text once, as in lm-evaluation-harness."""
    if len(tokens) > 0:
        yield [prefix, *tokens[:n_ctx]], 1
    for first in range(n_ctx, len(tokens), n_ctx):
        end = min(first + n_ctx, len(tokens))
        begin = end - n_ctx - 1
        yield list(tokens[begin:end]), first - begin


def _is_text(value: object) -> TypeGuard[Any]:
    """Return whether a value is text or token ids in a type that `text_of` returns."""
    return isinstance(value, str | list | tuple | np.ndarray)


def _are_requests(given: Any) -> bool:
    """Return whether an argument of `Model.score` is a list of requests."""
    value = text_of(given)
    if isinstance(value, np.ndarray):
        return value.ndim == 2
    if not isinstance(value, list | tuple) or not value or isinstance(value[0], int | np.integer):
        return False
    return _is_text(text_of(value[0]))


def score(
    model: Any, ids: Any, source: Any, sources: Any, *, n_threads: int | None, **options: Any
) -> NDArray[np.float64] | list[Score]:
    """Implement `Model.score`."""
    if _are_requests(ids):
        if source is not None and sources is not None:
            raise InputError("source and sources are both given; expected one of them")
        every = source if sources is None else sources
        return _score_requests(model, ids, every, n_threads=n_threads, **options)
    tokens = model.check_ids(ids, minimum=2)
    defaults = {"top_logprobs": 0, "rolling": False, "batch_size": None, "progress": False}
    for name, given in [("sources", sources), *options.items()]:
        if given is not defaults.get(name):
            raise InputError(f"{name} is {shown(given)} for a single text; expected a list of requests")
    threads = check_threads(n_threads)
    own = model.source_of(source)
    found, _ = scored(model, [(tokens, 1)], None if own is None else [own], n_top=0, n_threads=threads)
    return found[0].log_probs


def _score_requests(
    model: Any,
    requests: Any,
    sources: Any,
    *,
    top_logprobs: int,
    rolling: bool,
    batch_size: int | None,
    n_threads: int | None,
    progress: bool,
) -> list[Score]:
    """Score a list of requests."""
    n_top = check_integer("top_logprobs", top_logprobs, 0, model.config.n_vocab)
    n_texts = 0 if batch_size is None else check_integer("batch_size", batch_size, 1, _NO_LIMIT)
    threads, rolls = check_threads(n_threads), check_flag("rolling", rolling)
    given = check_items("requests", plain(requests), "a list of texts, or of pairs (context, continuation)")
    texts: list[Text] = []
    ends = []  # of the windows of each request
    for index, request in enumerate(given):
        with _named(f"requests[{index}]"):
            texts += _pieces(model, request) if rolls else [_text(model, request)]
        ends.append(len(texts))
    read = _sources(model, sources, len(given))  # None with windows
    with counted(len(texts), "window" if rolls else "request", progress) as done:
        found, _ = scored(model, texts, read, n_top=n_top, n_texts=n_texts, n_threads=threads, done=done)
    return [joined(found[begin:end], n_top) for begin, end in pairwise([0, *ends])]


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Prefix the messages of InputErrors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _text(model: Any, request: Any) -> Text:
    n_ctx = model.config.n_ctx
    text = None
    if isinstance(request, tuple) and len(request) == 2:
        context, continuation = map(text_of, request)
        text = _pair(model, context, continuation) if _is_text(context) and _is_text(continuation) else None
    ids, n_given = text or (model.check_ids(request, minimum=2, maximum=_NO_LIMIT), 1)
    if len(ids) > n_ctx + 1:
        expected = f"{n_ctx + 1}: the context of {model.path}, and a last token that is not read"
        raise InputError(f"there are {len(ids)} token ids; expected at most {expected}")
    return ids, n_given


def _pair(model: Any, context: Any, continuation: Any) -> Text:
    """Tokenize a context and its continuation; two texts are tokenized together."""
    ids_of = partial(model.check_ids, minimum=0, maximum=_NO_LIMIT)
    with _named("context"):
        before = ids_of(context)
    with _named("continuation"):
        if isinstance(continuation, str) and model.tokenizer is None:
            raise InputError(f"a text was given, but {why_no_tokenizer(model.path)}")
        if isinstance(context, str) and isinstance(continuation, str):
            ids, n = ids_of(context + continuation), len(before)
            differ = np.flatnonzero(before[: len(ids)] != ids[:n])
            n_given = int(differ[0]) if len(differ) else min(n, len(ids))
        else:
            if isinstance(continuation, str):
                continuation = model.tokenizer.encode(continuation, add_bos=False)
            ids, n_given = np.concatenate([before, ids_of(continuation)]), len(before)
    if n_given == 0:
        raise InputError(
            f"the context has no tokens; expected at least one, because {model.path} does not predict a "
            "first token: start with BOS, or else EOS"
        )
    if n_given == len(ids):
        raise InputError("the continuation has no tokens; expected at least one")
    return ids, n_given


def _pieces(model: Any, request: Any) -> list[Text]:
    if model.config.encoder is not None:
        raise InputError(f"rolling is True, but {model.path} has an encoder; expected a decoder-only model")
    tokenizer = model.tokenizer
    prefix = next((token for token in (model.bos_id, *model.eos_ids) if token is not None), None)
    if prefix is None:
        raise InputError(
            f"rolling is True, but {model.path} has neither BOS nor EOS; expected pairs "
            "(context, continuation)"
        )
    text = text_of(request)
    if isinstance(text, str) and tokenizer is not None:
        text = tokenizer.encode(text, add_bos=False)
    tokens = model.check_ids(text, minimum=0, maximum=_NO_LIMIT).tolist()
    return list(_rolling_windows(tokens, prefix, model.config.n_ctx))


def _sources(model: Any, sources: Any, n_requests: int) -> list[NDArray[np.int32]] | None:
    """Return the source ids of each request; None for a model without encoder."""
    if sources is None:
        if model.config.encoder is not None:
            expected = "text or token ids, or a list with one for each request"
            raise InputError(f"sources is None, but {model.path} has an encoder; expected {expected}")
        return None
    given, several = prompts_of("sources", sources)
    if several and len(given) != n_requests:
        found = f"a list of {len(given)} for {number_of(n_requests, 'request')}"
        raise InputError.of("sources", sources, "one, or one for each request", found)
    read: list[NDArray[np.int32]] = []
    known: dict[str, NDArray[np.int32]] = {}
    for index, source in enumerate(given):
        with _named(f"sources[{index}]" if several else "sources"):
            ids = known.get(source) if isinstance(source, str) else None
            read.append(model.source_ids(source) if ids is None else ids)
        if isinstance(source, str):
            known[source] = read[-1]
    return read if several else read * n_requests


def scored(
    model: Any, texts: Sequence[Text], sources: Sequence[Any] | None, *, n_top: int, **options: Any
) -> tuple[list[Score], _core.CachedText | None]:
    """Score texts with the core's `options`; with `keep`, also return the cached last text."""
    if not texts:
        return [], None
    log_probs, greedy, tokens, of_top, kept = _core.score_texts(
        model.core,
        _listed([ids for ids, _ in texts]),
        np.array([n_given for _, n_given in texts], np.int32),
        sources=None if sources is None else _listed(sources),
        n_top=n_top,
        **options,
    )
    scores, end = [], 0
    for ids, n_given in texts:
        begin, end = end, end + len(ids) - n_given
        top = top_pairs(tokens[begin:end], of_top[begin:end]) if n_top > 0 else None
        own = np.asarray(ids[n_given:]).tolist()
        scores.append(Score(own, log_probs[begin:end].copy(), greedy[begin:end].copy(), top))
    return scores, kept


def top_pairs(tokens: NDArray[np.int32], log_probs: NDArray[np.float64]) -> TopLogProbs:
    """Return pairs (id, ln p) of the core's rows [n, n_top], without padding (id -1)."""
    rows = zip(tokens.tolist(), log_probs.tolist(), strict=True)
    return [[pair for pair in zip(*row, strict=True) if pair[0] >= 0] for row in rows]


def _listed(texts: Sequence[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the concatenated ids of all texts, and their lengths."""
    ids = np.concatenate([np.asarray(text, np.int32) for text in texts])
    return ids, np.array([len(text) for text in texts], np.int32)


def joined(pieces: Sequence[Score], n_top: int) -> Score:
    """Join the scores of a text's windows."""
    return Score(
        [token for piece in pieces for token in piece.tokens],
        np.concatenate([np.empty(0), *(piece.log_probs for piece in pieces)]),
        np.concatenate([np.empty(0, np.bool_), *(piece.greedy for piece in pieces)]),
        [row for piece in pieces for row in piece.top_logprobs or []] if n_top > 0 else None,
    )
