"""`generate`: continue the records of a dataset with actors that each hold a target and a draft."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from specdec.checks import check_choice, check_flag, check_integer
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.generate import generate as generate_here
from specdec.decoding.options import DecodingOptions, TextOptions
from specdec.decoding.result import Result, result_fields
from specdec.errors import InputError, type_of
from specdec.ray.blocks import ON_ERROR, OnError, in_blocks, write_block
from specdec.ray.jobs import DraftGiven, TargetGiven, Work, described, opened_draft, opened_target, pickled
from specdec.ray.records import Records, field_of, json_value
from specdec.settings_table import Unpack

_LARGEST_SEED = 2**64 - 1


def generate(
    target: TargetGiven, draft: DraftGiven, data: Any, output: str | os.PathLike[str], *,
    column: str = "prompt", chat: bool = False, decoder_prompt: str | Sequence[int] | None = None,
    seed: int | None = None, on_error: OnError = "raise", block_size: int | None = None,
    n_actors: int | None = None, n_threads: int | None = None, retries: int = 3, progress: bool = False,
    options: DecodingOptions | None = None, **changes: Unpack[TextOptions],
) -> Records:  # fmt: skip
    """Continue each record of a dataset, with actors on the machines of a Ray cluster.

    Each actor loads a target and a draft and decodes blocks of records. Record i uses the RNG key (seed, i).
    The records equal those of ``specdec.generate(target, draft, prompts, seed=seed)`` in one process, bit for
    bit, for any number of actors, any block size and after any failures.

    Each finished block is a file of the folder `output`. The same call resumes an interrupted run. A block is
    retried after its process or machine ends, and after failures that may be temporary, such as a lack of
    memory.

    Parameters
    ----------
    target : Model, path, hub name or function
        Each actor loads a path or name, so it must mean the same on every machine. A `Model` is sent as a
        reference to its files. Each actor calls a function without arguments, which returns a model.
    draft : Draft, Model, path, hub name, object, function or None
        As in `specdec.generate`. Each actor calls a function with the target, which returns a draft.
    data : list, ray.data.Dataset or table
        Records: dicts with a prompt in the field `column`, or prompts as text or token ids. A table is an
        object of pandas or datasets.
    output : path-like
        A new or empty folder, or that of the same run. The calling process writes it.
    column : str, default "prompt"
        Field with the prompt. Other fields are returned unchanged.
    chat : bool, default False
        The field holds messages, as in ``specdec.generate(..., messages=...)``.
    decoder_prompt : str or sequence of int, optional
        For an encoder-decoder: start of every new text; the prompts are the encoder's input.
    seed : int, optional
        None: a random seed, stored in ``Records.run``. A resumed run keeps its own.
    on_error : {"raise", "keep"}
        For a record that cannot be decoded, such as a prompt longer than the context: raise an error after
        all other blocks are done, or store the field ``error`` instead of a text.
    block_size : int, optional
        Records per block, the unit of retries. None: up to 64, with at least four blocks per actor.
    n_actors : int, optional
        None: as many as fit the machines.
    n_threads : int, optional
        Threads of each actor, each with a reserved CPU, so actors never oversubscribe a machine. None: the
        CPUs of the smallest machine.
    retries : int, default 3
        Retries of a block.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    options : DecodingOptions, optional
        Settings of single texts, `gamma` and `batch_size`.
    **changes
        Settings that override those of `options`. With ``gamma="auto"``, or a draft that uses earlier texts
        or measured times, the text of a seed would depend on where its record is decoded. These need greedy
        decoding or ``verify="coupled"``.

    Returns
    -------
    Records
        A record has the fields ``index``, ``record`` (as given), ``text``, ``tokens``, ``finish_reason``,
        ``stop``, ``seed``, ``n_prompt_tokens``, ``n_calls``, ``n_drafted``, ``n_accepted``, and
        log-probabilities if requested.

    Raises
    ------
    InputError
        An argument is out of range, or the folder holds something else.
    WorkerError
        Some blocks failed; all others are done. The same call retries the rest.
    MissingPackageError
        ray is not installed.

    Examples
    --------
    >>> prompts = ["Once upon a time", "It was a dark and stormy night"]
    >>> records = specdec.ray.generate("path/to/target", "path/to/draft", prompts, "out", seed=1)
    >>> [record["text"] for record in records]
    """
    settings = (DecodingOptions() if options is None else options).replace(**changes)
    given = settings.arguments()
    for name in sorted(given.keys() - TextOptions.__optional_keys__):
        raise InputError(f"{name} is given; expected settings of single texts, gamma or batch_size")
    chat, on_error = check_flag("chat", chat), check_choice("on_error", on_error, ON_ERROR)
    if seed is not None:
        seed = check_integer("seed", seed, 0, _LARGEST_SEED)
    if not isinstance(column, str):
        raise InputError.of("column", column, "the name of a field")
    if isinstance(settings.gamma, AdaptiveGamma):
        expected = "an integer, 'auto', or a function, as an AdaptiveGamma learns in one process"
        raise InputError.of("gamma", settings.gamma, expected, "an AdaptiveGamma")
    by_seed = depends_on_draft(settings)
    if by_seed and isinstance(settings.policy, AdaptiveGamma):
        raise InputError.about(
            "gamma",
            f"gamma is 'auto' at temperature {settings.temperature:g} with verify={settings.verify!r}: the "
            "text of a seed would depend on measured times; expected an integer, temperature 0, or "
            "verify='coupled'",
        )
    start = None if decoder_prompt is None else json_value("decoder_prompt", decoder_prompt)
    fields = {"column": column, "chat": chat, "decoder_prompt": start}
    kept = {name: value for name, value in given.items() if name != "batch_size"}
    asked = {"target": described(target), "draft": described(draft), "seed": seed, "options": described(kept)}

    def work(ray: Any, threads: int, run: dict[str, Any]) -> Work:
        for name, value in (("target", target), ("draft", draft), ("options", given)):
            pickled(ray, name, value)
        how = given | {"n_threads": threads}
        return partial(open_generation, target, draft, fields, how, run["seed"], by_seed, on_error)

    return in_blocks(
        "generate", data, output, work, asked | fields, {"seed": secrets.randbits(63)}, block_size=block_size,
        n_actors=n_actors, n_threads=n_threads, retries=retries, progress=progress,
    )  # fmt: skip


def depends_on_draft(settings: DecodingOptions) -> bool:
    """Return whether the text of a seed, and not only its distribution, depends on the draft."""
    greedy = settings.temperature == 0 and settings.lenience == 1.0
    return not greedy and settings.verify != "coupled"


def open_generation(
    target: TargetGiven, draft: DraftGiven, fields: Mapping[str, Any], options: Mapping[str, Any], seed: int,
    by_seed: bool, on_error: OnError,
) -> Callable[[str], str]:  # fmt: skip
    """Load the pair in an actor and return the function that decodes a block."""
    model = opened_target(target)
    opened = opened_draft(draft, model)
    if opened is not None and by_seed and (opened.adaptive or opened.rng_key()):
        raise InputError(
            f"draft is {type_of(opened)} that uses earlier texts or measured times: the text of a seed "
            "would depend on the actor; expected another draft, temperature 0, or verify='coupled'"
        )

    def decode(first: int, records: list[Any]) -> list[dict[str, Any]]:
        indices = range(first, first + len(records))
        prompts = [field_of(*pair, fields["column"]) for pair in zip(indices, records, strict=True)]
        given: dict[str, Any] = {"messages" if fields["chat"] else "prompt": prompts}
        if fields["decoder_prompt"] is not None:
            given["decoder_prompt"] = fields["decoder_prompt"]
        seeds = [(seed, index) for index in indices]
        results: list[Result] = generate_here(model, opened, seed=seeds, **given, **options)
        return [result_fields(result) for result in results]

    return lambda given: write_block(given, decode, on_error)
