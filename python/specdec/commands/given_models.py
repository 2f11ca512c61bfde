"""Options that name models and drafts, and functions that open them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from specdec import drafts
from specdec.commands.verb import several
from specdec.drafts.draft import Draft
from specdec.errors import CheckpointNotFoundError, InputError
from specdec.models.chat_template import ChatTemplate
from specdec.models.loading import embedded_pair, load
from specdec.models.model import Model
from specdec.models.number_formats import CACHE_DTYPES, DTYPES, PREFILL_CHOICES
from specdec.text_files import read_text_file

_FORMAT: Final[dict[str, Any]] = {"type": click.Choice(DTYPES), "metavar": "FORMAT"}

_TARGET = click.option(
    "--target",
    metavar="MODEL",
    help="Target model: path or hub name (default: the bundled one).",
)
_DRAFT = click.option(
    "--draft",
    metavar="DRAFT",
    help="Draft: path or hub name of a model or learned draft, or a name such as prompt-lookup, heads:DIR "
    "or ngram:FILE (see specdec drafts).",
)
_DRAFTS = click.option(
    "--draft",
    "drafts",
    multiple=True,
    metavar="DRAFT",
    help="Draft for all requests, or repeated NAME=DRAFT for drafts that requests choose by name; the "
    "first is the default.",
)
_DTYPE = click.option("--dtype", **_FORMAT, help=f"{', '.join(DTYPES)} (default: as in the checkpoint).")
_DRAFT_DTYPE = click.option("--draft-dtype", **_FORMAT, help="Number format of the draft.")
_PREFILL = click.option(
    "--prefill",
    type=click.Choice(PREFILL_CHOICES),
    metavar="METHOD",
    help="How prompts are computed: auto (the fastest here), rows (with the bits of decoding, the same on "
    "every processor), tiles or blas (default: auto; for chat and without a verb: rows).",
)
_CACHE_DTYPE = click.option(
    "--cache-dtype",
    type=click.Choice(CACHE_DTYPES),
    metavar="FORMAT",
    help="Number format of the target's KV cache: f32, bf16 or int8, the fastest in long contexts (default: "
    "f32 for a target in f32, else bf16).",
)
_LANGUAGES = (
    click.option("--src-lang", metavar="CODE", help="Source language, for multilingual models."),
    click.option("--tgt-lang", metavar="CODE", help="Target language, for multilingual models."),
)

_ADAPTER = click.option(
    "--adapter", metavar="FOLDER", help="LoRA adapter (PEFT) to merge into the target's weights."
)

target_options = several(_TARGET, _ADAPTER, _DTYPE, _CACHE_DTYPE, _PREFILL, *_LANGUAGES)
"""Options for a target without a draft."""
format_options = several(_DTYPE, _DRAFT_DTYPE, _CACHE_DTYPE, _PREFILL, *_LANGUAGES)
"""Format options, for verbs that take models as arguments."""
model_options = several(_TARGET, _ADAPTER, _DRAFT, _DTYPE, _DRAFT_DTYPE, _CACHE_DTYPE, _PREFILL, *_LANGUAGES)
"""Options for a target and one draft."""
drafts_options = several(_TARGET, _DRAFTS, _DTYPE, _DRAFT_DTYPE, _CACHE_DTYPE, _PREFILL, *_LANGUAGES)
"""Options for a target and several drafts."""
template_option = click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Jinja chat template that replaces the model's own, if any.",
)
"""The --chat-template option."""
source_option = click.option(
    "--source", metavar="TEXT", help="Encoder input of an encoder-decoder model; - reads standard input."
)
"""The --source option."""

EMBEDDED: Final = "embedded"
"""Name of the bundled target."""


def open_target(given: Mapping[str, Any]) -> Model:
    """Load the target; by default, and as "embedded", the bundled one."""
    name, dtype = given["target"], given["dtype"]
    return _with_languages(_loaded(None if name == EMBEDDED else name, dtype, given), given)


def _loaded(name: str | None, dtype: Any, given: Mapping[str, Any]) -> Model:
    """Load the named or bundled target and merge the --adapter, if any."""
    adapter, how = given.get("adapter"), _how(given)
    if name is None:
        bundled = embedded_pair(dtype, None, **how)[0]
        return bundled if adapter is None else load(bundled.path, dtype, adapter=adapter, **how)
    return load(name, dtype, adapter=adapter, **how)


def _how(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"prefill": given["prefill"] or "auto", "cache_dtype": given["cache_dtype"]}


def open_models(given: Mapping[str, Any]) -> tuple[Model, Model | Draft | None]:
    """Load the target, and the draft if one is named."""
    _report_target(given)
    target = open_target(given)
    if given["draft"] is None:
        if given["draft_dtype"] is not None:
            raise InputError(f"--draft-dtype is {given['draft_dtype']}, but there is no draft; add --draft")
        return target, None
    return target, open_draft(given["draft"], target, given["draft_dtype"], given)


def open_pair(given: Mapping[str, Any], *, optional: bool = False) -> tuple[Model, Any]:
    """Load target and draft, the bundled pair by default; an `optional` draft may be None."""
    if is_pair_in_package(given):
        target, small = embedded_pair(given["dtype"], given["draft_dtype"], **_how(given))
        if given.get("adapter") is not None:
            target = _loaded(None, given["dtype"], given)
        return _with_languages(target, given), small
    if given["draft"] is None and not optional:
        raise InputError("--draft is missing; expected a draft, such as prompt-lookup or a path")
    return open_models(given)


def _report_target(given: Mapping[str, Any]) -> None:
    """Report on standard error that a draft without --target drafts for the bundled target."""
    if given["target"] is None and given["draft"] is not None:
        click.echo(f"specdec: no --target, so {given['draft']} drafts for the bundled target", err=True)


def with_given_template(target: Model, file: str | None) -> Model:
    """Return the target with the chat template of --chat-template, if given."""
    if file is None:
        return target
    text = read_text_file(Path(file), "a chat template", name="--chat-template")
    ChatTemplate(text, source=file).check()
    return target.with_chat_template(text)


def is_pair_in_package(given: Mapping[str, Any]) -> bool:
    """Return whether the options name neither a target nor a draft."""
    return given["target"] is None and given["draft"] is None


def open_draft(text: str, target: Model, dtype: Any, given: Mapping[str, Any]) -> Model | Draft:
    """Open a draft by name or path, with the target's languages."""
    try:
        draft = drafts.named(text, target, dtype=dtype)
    except CheckpointNotFoundError as error:
        if "/" in text:
            raise
        raise CheckpointNotFoundError(f"{error}; specdec drafts lists the names of drafts") from error
    languages = _languages(given)
    if languages and isinstance(draft, drafts.ModelDraft) and draft.model.config.encoder is not None:
        return draft.model.with_languages(**languages)
    return draft


def _languages(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: given[name] for name in ("src_lang", "tgt_lang") if given.get(name) is not None}


def _with_languages(target: Model, given: Mapping[str, Any]) -> Model:
    languages = _languages(given)
    return target.with_languages(**languages) if languages else target
