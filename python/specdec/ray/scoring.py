"""`score`: compute log-probabilities of a dataset's texts with actors that each hold a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from specdec.checks import check_choice, check_flag, check_integer
from specdec.errors import InputError
from specdec.ray.blocks import ON_ERROR, OnError, in_blocks, write_block
from specdec.ray.jobs import TargetGiven, Work, described, opened_target, pickled
from specdec.ray.records import Records, field_of


def score(
    target: TargetGiven, data: Any, output: str | os.PathLike[str], *, column: str = "text",
    context: str | None = None, source: str | None = None, top_logprobs: int = 0, rolling: bool = False,
    batch_size: int | None = None, on_error: OnError = "raise", block_size: int | None = None,
    n_actors: int | None = None, n_threads: int | None = None, retries: int = 3, progress: bool = False,
) -> Records:  # fmt: skip
    """Score each record of a dataset, with actors on the machines of a Ray cluster.

    The log-probabilities equal those of ``Model.score(requests)`` in one process, bit for bit. Runs resume
    and blocks are retried as in `specdec.ray.generate`.

    Parameters
    ----------
    target : Model, path, hub name or function
        As in `specdec.ray.generate`.
    data : list, ray.data.Dataset or table
        Records: dicts with a text in the field `column`, texts, or pairs (context, continuation). Each side
        of a pair is text or token ids.
    output : path-like
        See `specdec.ray.generate`.
    column : str, default "text"
        Field to score.
    context : str, optional
        Field before it, not scored. Sort records by context: consecutive records share the prefill of a
        common prefix.
    source : str, optional
        For an encoder-decoder: field with the encoder's input.
    top_logprobs, rolling, batch_size
        As in `specdec.Model.score`.
    on_error, block_size, n_actors, n_threads, retries, progress
        As in `specdec.ray.generate`.

    Returns
    -------
    Records
        A record has the fields ``index``, ``record`` (as given), ``tokens``, ``log_probs``, ``greedy``,
        ``total``, ``is_greedy``, ``n_tokens``, and ``top_logprobs`` if requested.

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
            raise InputError.of(name, value, "the name of a field")
    on_error, rolling = check_choice("on_error", on_error, ON_ERROR), check_flag("rolling", rolling)
    fields = {"column": column, "context": context, "source": source}
    how = {"top_logprobs": check_integer("top_logprobs", top_logprobs, 0), "rolling": rolling}

    def work(ray: Any, threads: int, run: dict[str, Any]) -> Work:
        pickled(ray, "target", target)
        options = how | {"batch_size": batch_size, "n_threads": threads}
        return partial(open_scoring, target, fields, options, on_error)

    asked = {"target": described(target), **fields, **how}
    return in_blocks(
        "score", data, output, work, asked, {}, block_size=block_size, n_actors=n_actors, n_threads=n_threads,
        retries=retries, progress=progress,
    )  # fmt: skip


def open_scoring(
    target: TargetGiven, fields: Mapping[str, str | None], options: Mapping[str, Any], on_error: OnError
) -> Callable[[str], str]:
    """Load the model in an actor and return the function that scores a block."""
    model, column = opened_target(target), str(fields["column"])
    context, source = fields.get("context"), fields.get("source")

    def request(index: int, record: Any) -> Any:
        """Convert a record to a request of `Model.score`: a text or a pair."""
        if isinstance(record, dict):
            text = field_of(index, record, column)
            return text if context is None else (field_of(index, record, context), text)
        if isinstance(record, list) and len(record) == 2 and not all(isinstance(x, int) for x in record):
            return tuple(record)  # a pair, a list in JSON
        return record

    def score(first: int, records: list[Any]) -> list[dict[str, Any]]:
        sources = source and [field_of(index, record, source) for index, record in enumerate(records, first)]
        requests = [request(index, record) for index, record in enumerate(records, first)]
        return [_fields(one) for one in model.score(requests, sources=sources, **options)]

    return lambda given: write_block(given, score, on_error)


def _fields(score: Any) -> dict[str, Any]:
    found = {
        "tokens": list(score.tokens), "log_probs": score.log_probs.tolist(), "greedy": score.greedy.tolist(),
        "total": score.total, "is_greedy": score.is_greedy, "n_tokens": score.n_tokens,
    }  # fmt: skip
    if score.top_logprobs is not None:
        found["top_logprobs"] = [[[token, value] for token, value in row] for row in score.top_logprobs]
    return found
