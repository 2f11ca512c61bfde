"""`generate`: a dataset continued, record by record, by actors that each hold a target and a draft."""

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
    """Continue each record of a dataset, by actors on the machines of a Ray cluster.

    Each actor holds a target and a draft, which it has loaded itself, and decodes blocks of records. Record i
    draws its random numbers from the key (seed, i). So the records are those of
    ``specdec.generate(target, draft, prompts, seed=seed)`` in one process, to the bit, however many actors
    there are, whatever block a record is in, and whatever happened on the way.

    The folder `output` has a file for each block that is done. The same call goes on with a folder that an
    interrupted run has left. A block is begun again where its process or machine ended, and where it failed
    for a reason that may pass, such as a lack of memory.

    Parameters
    ----------
    target : Model, path, hub name or function
        A path or name is loaded by each actor, so it must mean the same on every machine. A `Model` is sent
        as a reference to its files. A function without arguments is called in each actor and gives a model.
    draft : Draft, Model, path, hub name, object, function or None
        As in `specdec.generate`. A function is called with the target, in each actor, and gives a draft.
    data : list, ray.data.Dataset or table
        Records: dicts with a prompt in the field `column`, or prompts themselves, as text or token ids. A
        table is an object of pandas or datasets.
    output : path-like
        A folder, new or empty or of the same run. It is written by the process that calls.
    column : str, default "prompt"
        The field with the prompt. Other fields come back unchanged.
    chat : bool, default False
        The field holds messages, as in ``specdec.generate(..., messages=...)``.
    decoder_prompt : str or sequence of int, optional
        Of an encoder-decoder, whose sources the prompts are: what every new text goes on with.
    seed : int, optional
        None: a fresh one, which ``Records.run`` records. A run that goes on keeps its own.
    on_error : {"raise", "keep"}
        What becomes of a record that cannot be decoded, such as a prompt longer than the context: the run
        raises an error when all other blocks are done, or the record gets the field ``error`` in place of a
        text.
    block_size : int, optional
        Records of a block: what is done again where a process ends. None: at most 64, fewer where the
        actors would have less than four blocks each.
    n_actors : int, optional
        None: as many as the machines hold.
    n_threads : int, optional
        Threads of each actor, for which as many CPUs are reserved: actors of one machine never have more
        threads together than it has CPUs. None: the CPUs of the smallest machine.
    retries : int, default 3
        How often a block is begun again.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    options : DecodingOptions, optional
        The settings of single texts, `gamma` and `batch_size`.
    **changes
        Such settings by name, in place of those of `options`. With ``gamma="auto"``, and with drafts that
        remember earlier texts or decide by measured times how much to draft, the text of a seed depends on
        where its record was decoded, unless decoding is greedy or ``verify="coupled"``; without either these
        are refused.

    Returns
    -------
    Records
        A record has the fields ``index``, ``record`` (as it was given), ``text``, ``tokens``,
        ``finish_reason``, ``stop``, ``seed``, ``n_prompt_tokens``, ``n_calls``, ``n_drafted`` and
        ``n_accepted``, and log-probabilities where they were asked for.

    Raises
    ------
    InputError
        An argument is out of range, or the folder holds something else.
    WorkerError
        Some blocks could not be done. All others are, and the same call tries the rest again.
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
        raise InputError(f"{name} is given; expected settings of single texts, gamma and batch_size")
    chat, on_error = check_flag("chat", chat), check_choice("on_error", on_error, ON_ERROR)
    if seed is not None:
        seed = check_integer("seed", seed, 0, _LARGEST_SEED)
    if not isinstance(column, str):
        raise InputError.of("column", column, "the name of a field")
    if isinstance(settings.gamma, AdaptiveGamma):
        expected = "an integer, 'auto', or a function: it learns in one process"
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
    """Return whether the text of a seed, not only its distribution, depends on the draft."""
    greedy = settings.temperature == 0 and settings.lenience == 1.0
    return not greedy and settings.verify != "coupled"


def open_generation(
    target: TargetGiven, draft: DraftGiven, fields: Mapping[str, Any], options: Mapping[str, Any], seed: int,
    by_seed: bool, on_error: OnError,
) -> Callable[[str], str]:  # fmt: skip
    """Load the pair in an actor: return what decodes a block, by arguments of `specdec.generate`."""
    model = opened_target(target)
    opened = opened_draft(draft, model)
    if opened is not None and by_seed and (opened.adaptive or opened.rng_key()):
        raise InputError(
            f"draft is {type_of(opened)} that goes by earlier texts or measured times: the text of a seed "
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
