"""Options of a command line without a verb."""

from __future__ import annotations

from typing import Any

import click

from specdec import _core
from specdec.commands.decoding_options import READABLE, decoding_options
from specdec.commands.given_models import model_options, source_option
from specdec.commands.verb import CONTEXT


def _show_help(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the help of the whole program."""
    if wanted and not ctx.resilient_parsing:
        click.echo(ctx.find_root().get_help())
        ctx.exit()


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"specdec {_core.__version__} (kernels: {_core.kernels()})")
        ctx.exit()


_EAGER: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}


@click.command("specdec", context_settings=CONTEXT, add_help_option=False)
@click.argument("prompt", nargs=-1)
@source_option
@model_options
@decoding_options(
    temperature=f"{READABLE['temperature']}, or 0 with --source",
    repetition_penalty=f"{READABLE['repetition_penalty']}, or 1 with --temperature or --source",
    verify="coupled, which samples the same text with and without a draft; rejection with --lenience. "
    "auto accepts more",
    seed="0",
)
@click.option("--no-color", is_flag=True, help="Use marks instead of colors (as with NO_COLOR set).")
@click.option("--version", callback=_show_version, help="Show the version and kernels, then exit.", **_EAGER)
@click.option("-h", "--help", callback=_show_help, help="Show this message and exit.", **_EAGER)
def command(prompt: tuple[str, ...], source: str | None, no_color: bool, **given: Any) -> int:
    """Continue a prompt by speculative decoding and compare it with plain decoding."""
    from specdec.commands.side_by_side import run_side_by_side

    given["prefill"] = given["prefill"] or "rows"  # so that the text is the same on every processor
    return run_side_by_side(prompt, source, not no_color, given)
