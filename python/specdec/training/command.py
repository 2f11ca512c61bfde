"""The command ``specdec train draft``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from specdec.checks import check_choice
from specdec.errors import InputError, MissingPackageError, shown
from specdec.training.registry import KINDS
from specdec.training.settings import DATA, LOSSES

__all__ = ["PROGRAM", "train_command"]

PROGRAM = "specdec train draft"


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def train_command(argv: Sequence[str]) -> int:
    """Run the command; gives the exit status.

    Raises
    ------
    SpecdecError, OSError
        As `specdec.training.train_draft`.
    """
    arguments = vars(_parser().parse_args(argv))
    if find_spec("torch") is None:
        raise MissingPackageError("training needs torch, which is not installed: pip install torch")
    check_choice("kind", arguments["kind"], tuple(KINDS))
    say("Loading torch and what trains this kind of draft; the first time this may take a minute.")
    from specdec.training.training_run import check_device, train_draft

    check_device(arguments["device"])
    shape = _shape(arguments.pop("set"))
    threads, quiet = arguments.pop("threads"), arguments.pop("quiet")
    trained = train_draft(
        arguments.pop("target"),
        arguments.pop("kind"),
        arguments.pop("out"),
        shape=shape,
        n_threads=threads,
        progress=not quiet and find_spec("tqdm") is not None,
        say=say,
        **arguments,
    )
    print(trained)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Train a draft for a target, from texts that they write themselves.\n"
        "The same command again goes on where it was interrupted.",
        epilog="kinds:\n"
        + "".join(f"  {name:<11}{what}\n" for name, what in KINDS.items())
        + "\ndocs/TRAINING.md says what each kind learns, and which settings --set takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--target", metavar="MODEL", help="path or hub name (default: the target in the package)")
    formats = ("f32", "bf16", "int8", "int4")
    add("--dtype", choices=formats, metavar="FORMAT", help="the target's number format")
    add("--kind", required=True, metavar="KIND", help="what is trained: see below")
    add("--out", required=True, metavar="DIR", help="folder of the draft; its folder training keeps the rest")
    add(
        "--prompts",
        metavar="FILE",
        help="a prompt a line, or .jsonl with prompts or messages (default: the token that begins a text)",
    )
    add("--loss", choices=LOSSES, default="fkl-tvd", help="(default: %(default)s)")
    add("--beta", type=float, default=0.5, metavar="B", help="of jsd (default: %(default)s)")
    add("--temperature", type=float, default=1.0, metavar="T", help="of the compared laws (default: 1)")
    add("--data", choices=DATA, default="target", help="who writes the texts (default: %(default)s)")
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--minutes", type=float, metavar="M", help="what all of it may take (default: 10)")
    time.add_argument(
        "--steps", type=int, metavar="N", help="steps in place of minutes: a seed then fixes the weights"
    )
    add("--seed", type=int, default=0, metavar="S", help="(default: %(default)s)")
    add("--begin", metavar="DIR", help="folder of a draft to begin with")
    add("--after", nargs="+", default=(), metavar="DIR", help="drafts that the new one shall complete")
    add("--length", type=int, metavar="N", help="tokens of a text (default: 256)")
    add("--batch", type=int, default=16, metavar="N", help="texts a step (default: %(default)s)")
    add("--passes", type=int, default=4, metavar="N", help="how often a text is used (default: %(default)s)")
    add("--learning-rate", type=float, metavar="R", help="(default: the kind's)")
    add("--top", type=int, default=0, metavar="K", help="tokens of a law that are learnt one by one")
    add("--weights", choices=("bf16", "f32"), default="bf16", help="of the file (default: %(default)s)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the kind")
    add("--device", metavar="NAME", help="of torch (default: cuda where there is one, else cpu)")
    add("--threads", type=int, metavar="N", help="(default: SPECDEC_NUM_THREADS, or the CPUs at hand)")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _shape(settings: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--set is {shown(text)}; expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
