"""The verbs `convert`, `drafts`, `eval` and `train`, which import their dependencies when run."""

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
    "specdec convert org/name model.gguf                 from the hub, as F16 or BF16",
    "specdec convert path/to/folder model-Q4_K_M.gguf --type Q4_K_M --importance text.txt",
    "specdec convert path/to/folder model.specdec --type int8    a packed file, which loads instantly",
    "specdec convert model.gguf path/to/new-folder       back to a Hugging Face folder",
    "specdec convert path/to/folder path/to/new-folder --type int4    a folder of quantized weights",
    "specdec convert path/to/folder model.gguf --adapter path/to/adapter    with a LoRA adapter merged",
)
@click.argument("source")
@click.argument("out", type=click.Path())
@click.option(
    "--type",
    metavar="TYPE",
    help="F32, F16 or BF16 (default: as in SOURCE). GGUF also takes Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, Q4_K_S, "
    "Q4_K_M, Q5_K_S, Q5_K_M; a folder also takes INT8, INT4; a packed file takes f32, bf16, int8, int4.",
)
@click.option(
    "--importance",
    metavar="TEXT",
    help="Calibration text, or a file of llama-imatrix, that weights the quantization error; for Q4_0, Q4_K, "
    "Q5_K, Q6_K and mixtures.",
)
@click.option(
    "--adapter", type=click.Path(), metavar="FOLDER", help="LoRA adapter to merge into the weights."
)
@click.option(
    "--max-shard-size",
    type=int,
    metavar="BYTES",
    help="Largest file of a folder, in bytes of tensors.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@click.option("--no-tokenizer", is_flag=True, help="Leave out the tokenizer.")
def convert_verb(source: str, out: str, no_tokenizer: bool, **how: Any) -> None:
    """Convert a model to another file format.

    SOURCE is a path, a hub name or "embedded". OUT ends in .gguf or .specdec, or is a new folder. An existing
    OUT is overwritten only with --force.
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
    "specdec generate --draft ensemble:prompt-lookup+embedded Tell me    two drafts combined",
)
def drafts_verb() -> None:
    """List the draft names that --draft accepts and what each needs.

    Anything else is the path or hub name of a model or learned draft. For a file or folder that has one of
    these names, write a path such as ./prompt-lookup.
    """
    usages = {name.usage(word): name.meaning for word, name in NAMES.items()}
    width = max(map(len, usages))
    for usage, meaning in usages.items():
        print(f"{usage:<{width}}  {meaning}")


_OTHER_COMMANDS = ("ls", "validate")
"""Harness commands that do not evaluate."""


@click.command(
    "eval",
    context_settings=CONTEXT | {"ignore_unknown_options": True},
    epilog=examples(
        "specdec eval --target big --draft small --tasks hellaswag,gsm8k --batch_size 16",
        "specdec eval --target big --draft prompt-lookup --gamma auto --tasks humaneval --limit 20",
        "specdec eval --tasks my_task --include_path folder    the bundled target, no draft",
        "specdec eval ls tasks                                 list the tasks",
        "specdec eval -- --help                                the harness's options",
    ),
)
@click.option(
    "--target", metavar="MODEL", default="embedded", help="Path or hub name (default: the bundled one)."
)
@click.option("--draft", metavar="DRAFT", help="Path, hub name, or a name from specdec drafts.")
@click.option("--dtype", type=click.Choice(DTYPES), metavar="FORMAT", help=f"{', '.join(DTYPES)}.")
@click.option("--draft-dtype", type=click.Choice(DTYPES), metavar="FORMAT", help="Format of the draft.")
@click.option("--gamma", type=gamma_value, metavar="N", help="Draft tokens per round, or 'auto'.")
@click.argument("arguments", metavar="[HARNESS OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def eval_verb(arguments: tuple[str, ...], **given: Any) -> int:
    """Evaluate a model on tasks of lm-evaluation-harness (pip install 'specdec-cpu[lm-eval]').

    All other options go to the harness, lm-eval; --model_args adds to the options above. A draft shortens
    generation and changes no score.
    """
    from specdec.integrations.lm_eval.__main__ import main as evaluate

    try:
        evaluate(_harness_arguments(arguments, given))
    except SystemExit as end:
        if isinstance(end.__cause__, SpecdecError):
            raise end.__cause__ from None
        if isinstance(end.code, str):  # as Python prints it
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
        "specdec train draft --help                  training methods and their options",
    ),
)
def train_verb() -> None:
    """Train a draft: specdec train draft."""


@train_verb.command(
    "draft",
    short_help="Train a draft for a target on text that the models generate.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def draft(arguments: tuple[str, ...]) -> int:
    """Train a draft for a target; `specdec.training` parses the arguments."""
    from specdec.training.command import train_command

    return train_command(arguments)
