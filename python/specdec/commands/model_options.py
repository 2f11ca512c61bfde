"""The options that name models and drafts."""

from __future__ import annotations

from typing import Any, Final

import click

from specdec.commands.verb import several
from specdec.models.number_formats import DTYPES

__all__ = [
    "drafts_options",
    "format_options",
    "model_options",
    "source_option",
    "target_options",
    "template_option",
]

_FORMAT: Final[dict[str, Any]] = {"type": click.Choice(DTYPES), "metavar": "FORMAT"}

_TARGET = click.option(
    "--target",
    metavar="MODEL",
    help="Path or hub name of the model whose text this is (default: the one in the package).",
)
_DRAFT = click.option(
    "--draft",
    metavar="DRAFT",
    help="What guesses ahead: path or hub name of a model or a learnt draft, or a name such as copy, "
    "heads:DIR or ngram:FILE; specdec drafts lists them.",
)
_DRAFTS = click.option(
    "--draft",
    "drafts",
    multiple=True,
    metavar="DRAFT",
    help="What guesses ahead, as of `specdec`; or NAME=DRAFT, once for each draft that requests choose from: "
    "the first drafts for those that name none.",
)
_DTYPE = click.option("--dtype", **_FORMAT, help=f"{', '.join(DTYPES)} (default: what the checkpoint holds).")
_DRAFT_DTYPE = click.option("--draft-dtype", **_FORMAT, help="The same for the draft.")
_LANGUAGES = (
    click.option("--src-lang", metavar="CODE", help="Language of the source, for models of several."),
    click.option("--tgt-lang", metavar="CODE", help="Language of the text, for models of several."),
)

_ADAPTER = click.option(
    "--adapter", metavar="FOLDER", help="A LoRA adapter of PEFT, merged into the target's weights."
)

target_options = several(_TARGET, _ADAPTER, _DTYPE, *_LANGUAGES)
"""The options of a target alone."""
format_options = several(_DTYPE, _DRAFT_DTYPE, *_LANGUAGES)
"""The options of models that are named otherwise."""
model_options = several(_TARGET, _ADAPTER, _DRAFT, _DTYPE, _DRAFT_DTYPE, *_LANGUAGES)
"""The options of a target and one draft."""
drafts_options = several(_TARGET, _DRAFTS, _DTYPE, _DRAFT_DTYPE, *_LANGUAGES)
"""The options of a target and drafts to choose from."""
template_option = click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Jinja file, for a model without a chat template, or in place of its own.",
)
"""A chat template."""
source_option = click.option(
    "--source", metavar="TEXT", help="What the encoder of an encoder-decoder reads; - is standard input."
)
"""The source of an encoder-decoder."""
