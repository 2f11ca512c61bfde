"""The verbs `convert`, `drafts`, `eval` and `train`; what they need is imported when they are carried out."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from specdec.commands.verb import CONTEXT, examples, gamma_value, verb
from specdec.drafts.opening import NAMES
from specdec.errors import SpecdecError
from specdec.models.number_formats import DTYPES


@verb(
    "convert",
    "specdec convert path/to/folder model-Q8_0.gguf --type Q8_0",
    "specdec convert org/name model.gguf                 from the hub, in F16 or BF16",
    "specdec convert path/to/folder model-Q4_K_M.gguf --type Q4_K_M --importance text.txt",
    "specdec convert path/to/folder model.specdec --type int8    a packed file, which loads at once",
    "specdec convert model.gguf path/to/new-folder       back to a Hugging Face folder",
    "specdec convert path/to/folder path/to/new-folder --type int4    a folder of codes",
    "specdec convert path/to/folder model.gguf --adapter path/to/adapter    with a LoRA adapter merged",
)
@click.argument("source")
@click.argument("out", type=click.Path())
@click.option(
    "--type",
    metavar="TYPE",
    help="F32, F16 or BF16 (default: what SOURCE holds); of a GGUF file also Q8_0, Q4_0, Q4_K, Q5_K, "
    "Q6_K, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M; of a folder also INT8, INT4; of a packed file f32, bf16, "
    "int8, int4.",
)
@click.option(
    "--importance",
    metavar="TEXT",
    help="A text that the model reads, to find out which weights count most, or what llama-imatrix writes; "
    "for Q4_0, Q4_K, Q5_K, Q6_K and mixtures.",
)
@click.option(
    "--adapter", type=click.Path(), metavar="FOLDER", help="A LoRA adapter to merge into what is written."
)
@click.option(
    "--max-shard-size",
    type=int,
    metavar="BYTES",
    help="Of a folder: tensors of at most so many bytes in a file.",
)
@click.option("--force", is_flag=True, help="Replace what is at OUT.")
@click.option("--no-tokenizer", is_flag=True, help="Leave the vocabulary out.")
def convert_verb(source: str, out: str, no_tokenizer: bool, **how: Any) -> None:
    """Write a model in another file format.

    SOURCE is a path or hub name, or embedded. OUT ends in .gguf or .specdec, or is the path of a new folder.
    What is at OUT is kept, unless --force is given.
    """
    from specdec.models.convert import convert
    from specdec.models.loading import embedded_pair

    model = embedded_pair()[0].path if source == "embedded" else source
    path = convert(model, out, tokenizer=False if no_tokenizer else None, **how)
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
    print(f"{path}: {size / 1e6:.1f} MB")


@verb(
    "drafts",
    "specdec drafts",
    "specdec generate --draft ensemble:prompt-lookup+embedded Tell me    two of them at once",
)
def drafts_verb() -> None:
    """List the drafts that --draft takes by name, and what each needs.

    What is no name is the path or hub name of a model or of a learned draft. A file or folder that is called
    as a name is written with its place: ./copy.
    """
    usages = {name.usage(word): name.meaning for word, name in NAMES.items()}
    width = max(map(len, usages))
    for usage, meaning in usages.items():
        print(f"{usage:<{width}}  {meaning}")


_OTHER_COMMANDS = ("ls", "validate")
"""Commands of the harness that evaluate nothing."""


@click.command(
    "eval",
    context_settings=CONTEXT | {"ignore_unknown_options": True},
    epilog=examples(
        "specdec eval --target big --draft small --tasks hellaswag,gsm8k --batch_size 16",
        "specdec eval --target big --draft prompt-lookup --gamma auto --tasks humaneval --limit 20",
        "specdec eval --tasks my_task --include_path folder    the target in the package, plainly",
        "specdec eval ls tasks                                 what can be evaluated",
        "specdec eval -- --help                                the options of the harness",
    ),
)
@click.option(
    "--target", metavar="MODEL", default="embedded", help="Path or hub name (default: the package's)."
)
@click.option("--draft", metavar="DRAFT", help="Path, hub name, or a name that specdec drafts lists.")
@click.option("--dtype", type=click.Choice(DTYPES), metavar="FORMAT", help=f"{', '.join(DTYPES)}.")
@click.option("--draft-dtype", type=click.Choice(DTYPES), metavar="FORMAT", help="The same for the draft.")
@click.option("--gamma", type=gamma_value, metavar="N", help="Drafted tokens a round, or 'auto'.")
@click.argument("arguments", metavar="[HARNESS OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def eval_verb(arguments: tuple[str, ...], **given: Any) -> int:
    """Evaluate a model by the tasks of lm-evaluation-harness (pip install lm-eval jinja2).

    All other options are those of the harness, lm-eval; --model_args adds to what is said here. A draft
    changes no score, but the time that texts take.
    """
    from specdec.integrations.lm_eval.__main__ import main as evaluate

    try:
        evaluate(_harness_arguments(arguments, given))
    except SystemExit as end:
        if isinstance(end.__cause__, SpecdecError):
            raise end.__cause__ from None
        if isinstance(end.code, str):  # as Python would say it
            print(end.code, file=sys.stderr)
            return 2
        return end.code or 0
    return 0


def _harness_arguments(arguments: tuple[str, ...], given: dict[str, Any]) -> list[str]:
    """Return the harness's command line: the model, then the user's arguments."""
    if arguments[:1] and arguments[0] in _OTHER_COMMANDS:
        return list(arguments)
    own = arguments[1:] if arguments[:1] == ("run",) else arguments
    if "--help" in own or not own:
        return ["run", "--help"]
    model = {name: value for name, value in given.items() if value is not None}
    return ["run", "--model", "specdec", "--model_args", json.dumps(model), *own]


@click.group(
    "train",
    context_settings=CONTEXT,
    no_args_is_help=False,
    epilog=examples(
        "specdec train draft --method small --prompts prompts.txt --out my-draft --minutes 10",
        "specdec train draft --target path/to/model --method heads --prompts chat.jsonl --out my-heads",
        "specdec train draft --help                  methods of training and what can be set",
    ),
)
def train_verb() -> None:
    """Train something: specdec train draft."""


@train_verb.command(
    "draft",
    short_help="Train a draft for a target, from texts that they write themselves.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def draft(arguments: tuple[str, ...]) -> int:
    """Train a draft for a target; the arguments are read where the training is."""
    from specdec.training.command import train_command

    return train_command(arguments)
