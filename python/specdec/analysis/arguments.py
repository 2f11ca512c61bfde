"""Shared arguments of measurements: named models, prompts and decoding options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec import drafts
from specdec.checks import check_integer, check_items
from specdec.containers import prompts_of
from specdec.decoding.options import DecodingOptions
from specdec.decoding.prompts import PromptIds
from specdec.drafts.draft import MAX_GAMMA, check_source
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, shown, type_of
from specdec.models.loading import as_model
from specdec.models.model import Model, Prompt
from specdec.verification.sampling import TRUNCATIONS

_PROMPTS: Final = (
    "It was a dark and stormy night, and", "She looked out of the window, and",
    '"My dear sir," said the old gentleman,', "The captain of the ship",
)  # fmt: skip
_IN_DISTRIBUTIONS: Final = frozenset({"temperature", *TRUNCATIONS, "seed", "n_threads", "progress"})
"""Options that measuring acceptance by distributions takes."""
_NOT_IN_RUNS: Final = frozenset(
    {"n", "batch_size", "node_budget", "logits", "logprobs", "logprobs_of", "prompt_logprobs", "prompt_cache"}
)
"""Options that no measurement takes: its runs decode one text at a time."""

Value = TypeVar("Value")


@runtime_checkable
class ProbabilityDraft(Protocol):
    """A draft that is not a model but has probabilities, such as `specdec.drafts.Bigram`."""

    def probabilities(self, ids: Sequence[int] | NDArray[np.integer[Any]], /) -> NDArray[np.float64]:
        """Return [len(ids), n_vocab]: row i is the distribution of the token after ids[: i + 1]."""
        ...


MeasurableDraft: TypeAlias = Model | ProbabilityDraft | drafts.Draft
RUN_BY_THE_CORE = (Model, drafts.Draft)
"""Drafts that `generate` takes, which can be timed."""
MeasurableDraftLike: TypeAlias = DraftLike | ProbabilityDraft


def decoding_options(
    options: DecodingOptions | None, changes: Mapping[str, Any], owns: Mapping[str, str], *,
    in_distributions: bool = False, **defaults: Any,
) -> DecodingOptions:  # fmt: skip
    """Return decoding options with the changes of keyword arguments applied.

    `owns` maps options to the caller's own parameters that replace them. With `in_distributions`, only
    options that affect distributions are allowed. Other or unknown options raise InputError.
    """
    if options is not None and not isinstance(options, DecodingOptions):
        raise InputError.of("options", options, "a specdec.DecodingOptions, or None", found=type_of(options))
    found = (DecodingOptions(**defaults) if options is None else options).replace(**changes)
    for name in changes if options is None else {**options.arguments(), **changes}:
        if name in owns:
            raise InputError.of(name, getattr(found, name), f"{owns[name]}, which sets it here")
        if name not in _IN_DISTRIBUTIONS if in_distributions else name in _NOT_IN_RUNS:
            raise InputError.of(name, getattr(found, name), "the default: it has no effect here")
    return found


def run_options(options: DecodingOptions) -> dict[str, Any]:
    """Return keyword arguments of `generate` for the runs, without gamma, length and seed."""
    left_out = (*_NOT_IN_RUNS, "gamma", "max_new_tokens", "seed", "progress")
    given = options.arguments() | {"temperature": options.temperature, "n_threads": options.threads}
    return {name: value for name, value in given.items() if name not in left_out}


def in_json(value: Any) -> Any:
    """Return a setting for JSON: numbers and text unchanged, other values as messages show them."""
    return value if value is None or isinstance(value, int | float | str) else shown(value)


def seed_of(options: DecodingOptions) -> int:
    """Return the seed, 0 by default."""
    return check_integer("seed", 0 if options.seed is None else options.seed, 0, 2**64 - 1)


@dataclass(frozen=True)
class Setup:
    """Common start of measurements: the target and its name, the options, and the prompts."""

    target: Model
    name: str
    options: DecodingOptions
    prompts: list[PromptIds]

    @classmethod
    def of(cls, target: Any, options: DecodingOptions, prompts: Prompt | Sequence[Prompt] | None) -> Setup:
        """Load a target and encode the prompts; None: built-in ones."""
        name, given = named_one("target", target)
        model = as_model("target", given)
        if prompts is None and model.tokenizer is None:
            raise InputError("prompts is None; expected token ids, because the target has no tokenizer")
        texts, _ = prompts_of("prompts", list(_PROMPTS) if prompts is None else prompts)
        read = [PromptIds.of(model, one, f"prompt {i}") for i, one in enumerate(texts)]
        return cls(model, name or name_of(model), options, read)

    @property
    def seed(self) -> int:
        """Seed, 0 by default."""
        return seed_of(self.options)

    def draft(self, given: Any) -> tuple[str, MeasurableDraft]:
        """Return (name, draft opened for measuring) for an argument that may be a dict of one by name."""
        name, draft = named_one("draft", given)
        opened = measurable(self.target, draft)
        return name or name_of(opened), opened

    def runs(self, **changes: Any) -> dict[str, Any]:
        """Return keyword arguments of `generate` for the runs, without prompt, length and seed."""
        return run_options(self.options.replace(**changes))

    def share(self, n_tokens: int) -> int:
        """Return each prompt's share of the new tokens."""
        return -(-n_tokens // len(self.prompts))

    def work(self, n_tokens: int, share: int | None = None) -> list[tuple[Sequence[int], int]]:
        """Return prompts with their new tokens: `share` each, within the context, `n_tokens` in total."""
        share = self.share(n_tokens) if share is None else share
        work: list[tuple[Sequence[int], int]] = []
        for prompt in self.prompts:
            if (n := min(share, n_tokens, prompt.capacity(self.target))) > 0:
                work.append((prompt.given, n))
                n_tokens -= n
        return work

    def described(self, **settings: Any) -> dict[str, Any]:
        """Return the settings of a comparison as JSON types: those given, and the options."""
        options = {name: getattr(self.options, name) for name in ("verify", *TRUNCATIONS)} | self.runs()
        options |= {"n_threads": self.options.threads, "seed": self.seed}
        return settings | {name: in_json(one) for name, one in options.items() if name != "temperature"}


def measurable(target: Model, draft: MeasurableDraftLike) -> MeasurableDraft:
    """Open a draft for measuring: a snapshot if it learns, the model itself if it drafts plain chains."""
    found: object = opened(draft, target)
    if isinstance(found, drafts.Draft):
        found = found.snapshot()
    if isinstance(found, Model):
        found = drafts.ModelDraft(found)
    if isinstance(found, drafts.ModelDraft) and not found.translates(target):
        check_source(found.reads_source, target)
        if found.tree is None and found.draft is None:
            return found.model
    if has_distribution(found):
        return found
    if not isinstance(found, drafts.Draft | type) and not hasattr(found, "propose"):
        expected = "a specdec.Model, a path, a hub name, a draft of specdec.drafts, or an object with"
        raise InputError.of("draft", found, f"{expected} propose or probabilities(ids)", type_of(found))
    return as_draft(target, found)


def has_distribution(draft: object) -> TypeGuard[Model | ProbabilityDraft]:
    """Whether the next-token distribution of a draft depends on the text only."""
    chain = not isinstance(draft, type) and getattr(draft, "tree", None) is None
    return isinstance(draft, Model) or (chain and isinstance(draft, ProbabilityDraft))


def opened(draft: Any, target: Model) -> Any:
    """Open a draft given as a path or a name for `specdec.drafts.named`; return others unchanged."""
    if isinstance(draft, os.PathLike):
        return drafts.load(draft, target)
    return drafts.named(draft, target) if isinstance(draft, str) else draft


def name_of(model: object) -> str:
    """Return a name for tables: a model's folder or file, an exit's layer, or the type."""
    if isinstance(model, drafts.Draft):
        model = model.identity
    if isinstance(model, Model):
        return model.path.absolute().name
    if isinstance(model, drafts.EarlyExit):
        return f"exit at layer {model.layer}"
    return type(model).__name__.lower()


def named_one(argument: str, given: Value | Mapping[str, Value]) -> tuple[str | None, Any]:
    """Return (name or None, value) of an argument that may be a dict of one value by name."""
    if not isinstance(given, Mapping):
        return None, given
    expected = "one, or a dict of one by its name"
    if len(given) != 1:
        raise InputError.of(argument, given, expected)
    check_names(argument, given, expected)
    return next(iter(given.items()))


def check_names(argument: str, given: Mapping[Any, Any], expected: str) -> None:
    """Raise unless names are non-empty str."""
    for name in given:
        if not isinstance(name, str) or not name:
            raise InputError.of(argument, name, expected, verb="has the name")


def drafts_by_name(argument: str, target: Model, given: Any) -> dict[str, Any]:
    """Check a dict of drafts by name, and open those given as str."""
    expected = "a dict of drafts by their names"
    if not isinstance(given, Mapping) or not given:
        raise InputError.of(argument, given, expected)
    check_names(argument, given, expected)
    return {name: opened(draft, target) for name, draft in given.items()}


def unique(names: Sequence[str]) -> list[str]:
    """Make names distinct by numbering equal ones."""
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def short_name(text: str) -> str:
    """Return a short name for tables, with paths reduced to their last folder: "heads:a/b" to "heads:b"."""
    return re.sub(r"[^:+]*/(?=[^/])", "", text.rstrip("/")) or text


def short_names(texts: Sequence[str]) -> list[str]:
    """Return the short name of each text, or the text itself if short names collide."""
    names = [short_name(text) for text in texts]
    return [name if names.count(name) == 1 else text for name, text in zip(names, texts, strict=True)]


def check_say(say: Any) -> None:
    """Raise unless `say` is callable."""
    if not callable(say):
        raise InputError.of("say", say, "a function that takes a line", found=type_of(say))


def check_gammas(gammas: Any) -> list[int]:
    """Check a list of distinct gammas, each from 1 to 1024."""
    return [check_integer("gammas", gamma, 1, MAX_GAMMA) for gamma in different_numbers("gammas", gammas)]


def different_numbers(name: str, values: Any) -> list[Any]:
    """Check a non-empty sequence of distinct numbers."""
    expected = "a non-empty sequence of distinct numbers"
    found = check_items(name, values, expected)
    try:
        fits = 0 < len(set(found)) == len(found)
    except TypeError:  # unhashable values are not numbers
        fits = False
    if not fits:
        raise InputError.of(name, values, expected)
    return found
