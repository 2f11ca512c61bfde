"""What measurements take: drafts of every kind, by name, and the prompts that are continued."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec import drafts
from specdec.checks import check_integer, check_items
from specdec.containers import prompts_of
from specdec.decoding.beginning import Beginning
from specdec.drafts.draft import MAX_GAMMA, check_source
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, kind_of, shown
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.verification.sampling import Sampling

__all__ = [
    "RUN_BY_THE_CORE",
    "MeasurableDraft",
    "MeasurableDraftLike",
    "ProbabilityDraft",
    "check_gammas",
    "check_names",
    "check_say",
    "default_prompts",
    "different_numbers",
    "drafts_by_name",
    "has_law",
    "name_of",
    "open_pair",
    "opened",
    "sampling_options",
    "short_name",
    "short_names",
    "split",
    "work_of",
]

PROMPTS = (
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    '"My dear sir," said the old gentleman,',
    "The captain of the ship",
)


@runtime_checkable
class ProbabilityDraft(Protocol):
    """A draft that is no model, such as `specdec.drafts.Bigram`."""

    def probabilities(self, ids: Sequence[int] | NDArray[np.integer[Any]], /) -> NDArray[np.float64]:
        """[len(ids), n_vocab]: row i is the distribution of the token after ids[: i + 1]."""
        ...


MeasurableDraft: TypeAlias = Model | ProbabilityDraft | drafts.Draft
RUN_BY_THE_CORE = (Model, drafts.Draft)
"""Drafts that `generate` takes, so that runs with them can be timed."""
MeasurableDraftLike: TypeAlias = DraftLike | ProbabilityDraft


def open_pair(target: ModelLike, draft: MeasurableDraftLike) -> tuple[Model, MeasurableDraft]:
    """Target and draft, loaded where they are paths, of one vocabulary.

    A draft that learns from texts is a snapshot. What drafts chains by a model alone is the model.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
    """
    target = as_model("target", target)
    found: object = opened(draft, target)
    if isinstance(found, drafts.Draft):
        found = found.snapshot()
    if isinstance(found, Model):
        found = drafts.ModelDraft(found)
    if isinstance(found, drafts.ModelDraft) and not found.translates(target):
        check_source(found.reads_source, target)
        if found.tree is None and found.draft is None:
            return target, found.model
    if has_law(found):
        return target, found
    if not isinstance(found, drafts.Draft | type) and not hasattr(found, "propose"):
        raise InputError(
            f"draft is {kind_of(found)}; expected a specdec.Model, a path, a hub name, one of "
            "specdec.drafts, or an object with a method propose or probabilities(ids)"
        )
    return target, as_draft(target, found)


def has_law(draft: object) -> TypeGuard[Model | ProbabilityDraft]:
    """Whether a draft has one distribution for the token after a text, whatever it has guessed before.

    Such a draft can be held against every text of the target. Any other is measured by running it.
    """
    if isinstance(draft, Model):
        return True
    chain = not isinstance(draft, type) and getattr(draft, "tree", None) is None
    return chain and isinstance(draft, ProbabilityDraft)


def name_of(model: object, name: str | None = None, argument: str = "name") -> str:
    """A name for tables: the caller's; of a model its folder or file, of an exit its layer; else the type.

    Raises
    ------
    InputError
        If the caller's name is no text.
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise InputError(f"{argument} is {shown(name)}; expected a text")
        return name
    if isinstance(model, drafts.Draft):
        model = model.identity
    if isinstance(model, Model):
        return model.path.absolute().name
    if isinstance(model, drafts.EarlyExit):
        return f"exit at layer {model.layer}"
    return type(model).__name__.lower()


def short_name(text: str) -> str:
    """A draft's name for a table: each path in it shortened to its last folder, "heads:a/b" to "heads:b"."""
    return re.sub(r"[^:+]*/(?=[^/])", "", text.rstrip("/")) or text


def short_names(texts: Sequence[str]) -> list[str]:
    """The short name of each text; the text itself where two have the same short name."""
    names = [short_name(text) for text in texts]
    return [name if names.count(name) == 1 else text for name, text in zip(names, texts, strict=True)]


def drafts_by_name(argument: str, target: Model, given: Any) -> dict[str, Any]:
    """The argument of this name, a dict of drafts by name: checked, loaded where they are paths.

    Raises
    ------
    InputError, CheckpointError, TokenizerError
    """
    expected = "a dict of drafts by their names"
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{argument} is {shown(given)}; expected {expected}")
    check_names(argument, given, expected)
    return {name: opened(draft, target) for name, draft in given.items()}


def opened(draft: Any, target: Model) -> Any:
    """Open a draft that is given as a path, or a text of `specdec.drafts.named`; return any other as it is.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
    """
    if isinstance(draft, os.PathLike):
        return drafts.load(draft, target)
    return drafts.named(draft, target) if isinstance(draft, str) else draft


def sampling_options(sampling: Sampling) -> dict[str, Any]:
    """Sampling settings as keyword arguments of `generate`."""
    return {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}


def default_prompts(target: Model) -> list[str]:
    """What is continued where the caller has no prompts."""
    if target.tokenizer is None:
        raise InputError("prompts is None, and the target has no tokenizer; expected prompts of token ids")
    return list(PROMPTS)


def split(target: Model, prompts: Prompt | Sequence[Prompt]) -> list[Beginning]:
    """What each prompt's text begins with; a text, or a list of integers, is one prompt."""
    given, _ = prompts_of("prompts", prompts)
    return [Beginning.of(target, prompt, f"prompt {i}") for i, prompt in enumerate(given)]


def work_of(
    target: Model, beginnings: Sequence[Beginning], share: int, n_tokens: int
) -> list[tuple[Sequence[int], int]]:
    """Prompts in order with their new tokens: `share` each, as far as contexts reach, `n_tokens` in all."""
    work: list[tuple[Sequence[int], int]] = []
    left = n_tokens
    for beginning in beginnings:
        n = min(share, left, beginning.room(target))
        if n > 0:
            work.append((beginning.given, n))
            left -= n
    return work


def check_gammas(gammas: Any) -> list[int]:
    """The argument `gammas`: guesses of a round at most, each from 1 to 1024, none twice.

    Raises
    ------
    InputError
    """
    return [check_integer("gammas", gamma, 1, MAX_GAMMA) for gamma in different_numbers("gammas", gammas)]


def check_say(say: object) -> None:
    """Refuse an argument `say` that cannot be called.

    Raises
    ------
    InputError
    """
    if not callable(say):
        raise InputError(f"say is {kind_of(say)}; expected a function that takes a line")


def check_names(argument: str, given: Mapping[Any, Any], expected: str) -> None:
    """Refuse names of drafts that are no texts, or empty.

    Raises
    ------
    InputError
    """
    for name in given:
        if not isinstance(name, str) or not name:
            raise InputError(f"{argument} has the name {shown(name)}; expected {expected}")


def different_numbers(name: str, values: Any) -> list[Any]:
    """A sequence of at least one number, none twice.

    Raises
    ------
    InputError
    """
    found = check_items(name, values, "a sequence of numbers")
    try:
        n_different = len(set(found))
    except TypeError:
        raise InputError(f"{name} is {shown(values)}; expected a sequence of numbers") from None
    if not found or n_different < len(found):
        raise InputError(f"{name} is {shown(values)}; expected at least one number, and none twice")
    return found
