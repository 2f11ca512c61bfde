"""`score`: log-probabilities of a dataset's texts, by actors that each hold a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from specdec.checks import check_flag, check_integer
from specdec.errors import InputError, shown
from specdec.models.model import Model
from specdec.ray.blocks import OnError, Spread, check_on_error, in_blocks, write_block
from specdec.ray.jobs import pickled
from specdec.ray.records import Records, field_of
from specdec.ray.sent_pair import TargetGiven, described, opened_target


def score(
    target: TargetGiven,
    data: Any,
    output: str | os.PathLike[str],
    *,
    column: str = "text",
    context: str | None = None,
    source: str | None = None,
    top_logprobs: int = 0,
    rolling: bool = False,
    batch_size: int | None = None,
    on_error: OnError = "raise",
    block_size: int | None = None,
    n_actors: int | None = None,
    n_threads: int | None = None,
    retries: int = 3,
    progress: bool = False,
) -> Records:
    """Log-probabilities of each record of a dataset, by actors on the machines of a Ray cluster.

    The numbers are those of ``Model.score(requests)`` in one process, to the bit. A run goes on in its
    folder, and blocks are begun again, as in `specdec.ray.generate`.

    Parameters
    ----------
    target : Model, path, hub name or function
        As in `specdec.ray.generate`.
    data : list, ray.data.Dataset or table
        Records: dicts with a text in the field `column`, or texts themselves, or pairs (context,
        continuation). Each side of a pair is text or token ids.
    output : path-like
        A folder, new or empty or of the same run.
    column : str, default "text"
        The field that is scored.
    context : str, optional
        The field that stands before it and is not scored. Records that follow each other and begin alike are
        cheapest, as their beginning is read once.
    source : str, optional
        Of an encoder-decoder: the field with what its encoder reads.
    top_logprobs, rolling, batch_size
        As in `specdec.Model.score`.
    on_error, block_size, n_actors, n_threads, retries, progress
        As in `specdec.ray.generate`.

    Returns
    -------
    Records
        A record has the fields ``index``, ``record`` (as it was given), ``tokens``, ``log_probs``,
        ``greedy``, ``total``, ``is_greedy``, ``n_tokens``, and ``top_logprobs`` where they were asked for.

    Raises
    ------
    InputError, WorkerError, MissingPackageError
        As in `specdec.ray.generate`.

    Examples
    --------
    >>> records = specdec.ray.score("path/to/model", [{"text": "Once upon a time"}], "scores")
    >>> records[0]["total"]
    """
    for name, value in (("column", column), ("context", context), ("source", source)):
        if not isinstance(value, str) and (name == "column" or value is not None):
            raise InputError(f"{name} is {shown(value)}; expected the name of a field")
    on_error, rolling = check_on_error(on_error), check_flag("rolling", rolling)
    asked = {
        "target": described(target),
        "column": column,
        "context": context,
        "source": source,
        "top_logprobs": check_integer("top_logprobs", top_logprobs, 0),
        "rolling": rolling,
    }

    def work(ray: Any, threads: int, run: dict[str, Any]) -> Scoring:
        pickled(ray, "target", target)
        return Scoring(target, column, context, source, top_logprobs, rolling, batch_size, on_error, threads)

    spread = Spread(block_size, n_actors, n_threads, retries, progress)
    return in_blocks("score", data, output, work, asked, {}, spread)


@dataclass(frozen=True)
class Scoring:
    """What an actor does: it scores blocks."""

    target: TargetGiven
    column: str
    context: str | None
    source: str | None
    top_logprobs: int
    rolling: bool
    batch_size: int | None
    on_error: OnError
    n_threads: int

    def open(self) -> Callable[[str], str]:
        """Load the model."""
        return partial(self.block, opened_target(self.target))

    def block(self, target: Model, given: str) -> str:
        """The lines of a block."""
        return write_block(given, partial(self.score, target), self.on_error)

    def score(self, target: Model, first: int, records: list[Any]) -> list[dict[str, Any]]:
        """What is made of records that follow each other."""
        requests = [self.request(index, record) for index, record in enumerate(records, first)]
        source = self.source
        sources = source and [field_of(index, record, source) for index, record in enumerate(records, first)]
        found = target.score(
            requests,
            sources=sources,
            top_logprobs=self.top_logprobs,
            rolling=self.rolling,
            batch_size=self.batch_size,
            n_threads=self.n_threads,
        )
        return [_fields(one) for one in found]

    def request(self, index: int, record: Any) -> Any:
        """A record as `Model.score` takes it: a text, or a pair."""
        if isinstance(record, dict):
            text = field_of(index, record, self.column)
            return text if self.context is None else (field_of(index, record, self.context), text)
        if isinstance(record, list) and len(record) == 2 and not all(isinstance(x, int) for x in record):
            return tuple(record)  # a pair, which JSON has as a list
        return record


def _fields(score: Any) -> dict[str, Any]:
    found = {
        "tokens": list(score.tokens),
        "log_probs": score.log_probs.tolist(),
        "greedy": score.greedy.tolist(),
        "total": score.total,
        "is_greedy": score.is_greedy,
        "n_tokens": score.n_tokens,
    }
    if score.top_logprobs is not None:
        found["top_logprobs"] = [[[token, value] for token, value in row] for row in score.top_logprobs]
    return found
