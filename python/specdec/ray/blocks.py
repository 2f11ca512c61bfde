"""Datasets in blocks: each block of records is a job and becomes a file of the output folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from specdec.checks import check_integer
from specdec.errors import InputError, SpecdecError
from specdec.progress import counted
from specdec.ray.jobs import Work, connected, do_jobs, machines_of, placement_on
from specdec.ray.records import OutputFolder, Records, block_names, line, records_of

OnError: TypeAlias = Literal["raise", "keep"]
ON_ERROR: Final[tuple[OnError, ...]] = ("raise", "keep")

_LARGEST_BLOCK = 64
_BLOCKS_OF_AN_ACTOR = 4  # at least, to balance load at the end


def in_blocks(
    run_type: str, data: Any, output: str | os.PathLike[str],
    work: Callable[[Any, int, dict[str, Any]], Work], asked: Mapping[str, Any], chosen: Mapping[str, Any], *,
    block_size: int | None, n_actors: int | None, n_threads: int | None, retries: int, progress: bool,
) -> Records:  # fmt: skip
    """Process a dataset, or the rest of an interrupted run; the split into blocks changes no record.

    ``work(ray, n_threads, run)`` returns the actors' `Work`; `asked` and `chosen` as in `OutputFolder.begin`.
    """
    if block_size is not None:
        block_size = check_integer("block_size", block_size, 1)
    retries = check_integer("retries", retries, 0)
    ray = connected()
    records = records_of(ray, data)
    placement = placement_on(machines_of(ray), n_actors, n_threads)
    share = -(-len(records) // (_BLOCKS_OF_AN_ACTOR * placement.n_actors))
    digest = sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
    asked = {"n_records": len(records), "data": digest, "block_size": block_size, **asked}
    folder = OutputFolder.begin(output, run_type, asked, {"block_size": min(_LARGEST_BLOCK, share), **chosen})
    size = folder.run["block_size"]
    jobs = {
        name: json.dumps({"first": i * size, "records": records[i * size : (i + 1) * size]})
        for i, name in enumerate(block_names(len(records), size))
    }
    with counted(len(records), "record", progress) as done:

        def finished(job: str, content: str) -> None:
            folder.store(job, content)
            done(content.count("\n"))

        waiting = {name: given for name, given in jobs.items() if not folder.has(name)}
        done(len(records) - sum(len(json.loads(given)["records"]) for given in waiting.values()))
        if waiting:
            opened = work(ray, placement.n_threads, folder.run)
            do_jobs(ray, opened, waiting, placement, noun="block", retries=retries, finished=finished)
    return Records(folder.path)


def write_block(given: str, make: Callable[[int, list[Any]], list[dict[str, Any]]], on_error: OnError) -> str:
    """Return the lines of a block's file from the outputs of ``make(first, records)``.

    For a record that `make` refuses, raise InputError or write the message, as `on_error` says.
    """
    block = json.loads(given)
    first, records = block["first"], block["records"]
    try:
        made = make(first, records)
    except SpecdecError:  # find the record
        made = []
        for index, record in enumerate(records, first):
            try:
                made += make(index, [record])
            except SpecdecError as error:
                message = f"{type(error).__name__}: {error}"
                if on_error == "raise":
                    raise InputError(f"record {index}: {message}") from error
                made.append({"error": message})
    return "".join(
        line({"index": index, "record": record, **output})
        for index, (record, output) in enumerate(zip(records, made, strict=True), first)
    )
