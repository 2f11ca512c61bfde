"""The command ``specdec train draft``, with the options of `TrainingOptions`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from specdec.checks import check_choice
from specdec.drafts.learned.methods import METHODS
from specdec.errors import InputError, MissingPackageError
from specdec.models.number_formats import DTYPES
from specdec.settings_table import table_of
from specdec.training.settings import TrainingOptions

PROGRAM = "specdec train draft"


say = partial(print, flush=True)


def train_command(argv: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    arguments = vars(_parser().parse_args(argv))
    if find_spec("torch") is None:
        raise MissingPackageError(
            "training needs torch, which is not installed: pip install 'specdec-cpu[train]'"
        )
    check_choice("method", arguments["method"], tuple(METHODS))
    say("Loading torch and the trainer; the first time may take a minute.")
    from specdec.training.training_run import check_device, train_draft

    check_device(arguments["device"])
    shape = _shape(arguments.pop("set"))
    target, method, out, quiet = (arguments.pop(name) for name in ("target", "method", "out", "quiet"))
    own = {name: arguments.pop(name) for name in ("prompts", "dtype")}
    own |= {"progress": not quiet and find_spec("tqdm") is not None, "say": say}
    print(train_draft(target, method, out, TrainingOptions(**arguments, shape=shape), **own))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Train a draft for a target on generated texts.\n"
        "Repeat the same command to continue an interrupted training.",
        epilog="methods:\n"
        + "".join(f"  {name:<11}{method.meaning}\n" for name, method in METHODS.items())
        + "\ndocs/TRAINING.md describes each method and its settings for --set.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--target", metavar="MODEL", help="path or hub name (default: the bundled target)")
    add("--dtype", choices=DTYPES, metavar="FORMAT", help="the target's number format")
    add("--method", required=True, metavar="METHOD", help="type of draft, see below")
    add("--out", required=True, metavar="DIR", help="folder of the draft; DIR/training keeps checkpoints")
    prompts = "one prompt per line, or .jsonl with prompts or messages (default: the BOS token)"
    add("--prompts", metavar="FILE", help=prompts)
    time = parser.add_mutually_exclusive_group()
    for name, row in table_of(TrainingOptions).items():
        holder = time if name in ("minutes", "steps") else parser
        more: dict[str, Any] = {"nargs": "+"} if row.many else {"type": row.value_type}
        words = row.help.replace("%", "%%")
        flag = f"--{name.replace('_', '-')}"
        holder.add_argument(flag, default=row.default, help=words, metavar=row.flag, **more)
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the method")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _shape(settings: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError.of("--set", text, "NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
