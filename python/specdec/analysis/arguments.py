"""What the views of an experiment take: models by name, prompts, and the options of decoding."""

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
"""Options of decoding that measuring a draft by its distribution takes."""
_NOT_IN_RUNS: Final = frozenset(
    {"n", "batch_size", "node_budget", "logits", "logprobs", "logprobs_of", "prompt_logprobs", "prompt_cache"}
)
"""Options of decoding that no experiment takes: its runs are of one text each, and are counted."""

Value = TypeVar("Value")


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


def decoding_options(
    options: DecodingOptions | None, changes: Mapping[str, Any], owns: Mapping[str, str], *,
    in_distributions: bool = False, **defaults: Any,
) -> DecodingOptions:  # fmt: skip
    """Return the options of a view with the changes that its keyword arguments make.

    `owns` names the options that the view has parameters of its own for, and these; with `in_distributions`
    it takes those alone that distributions have. Others, and unknown ones, raise InputError.
    """
    if options is not None and not isinstance(options, DecodingOptions):
        raise InputError.of("options", options, "a specdec.DecodingOptions, or None", found=type_of(options))
    found = (DecodingOptions(**defaults) if options is None else options).replace(**changes)
    for name in changes if options is None else {**options.arguments(), **changes}:
        if name in owns:
            raise InputError.of(name, getattr(found, name), f"{owns[name]}, which sets it here")
        if name not in _IN_DISTRIBUTIONS if in_distributions else name in _NOT_IN_RUNS:
            raise InputError.of(name, getattr(found, name), "none: it has no effect here")
    return found


def run_options(options: DecodingOptions) -> dict[str, Any]:
    """Keyword arguments of `generate` for the runs of an experiment, but for gamma, length and seed."""
    left_out = (*_NOT_IN_RUNS, "gamma", "max_new_tokens", "seed", "progress")
    given = options.arguments() | {"temperature": options.temperature, "n_threads": options.threads}
    return {name: value for name, value in given.items() if name not in left_out}


def in_json(value: Any) -> Any:
    """A setting as JSON has it: numbers and texts as they are, all else as a message shows it."""
    return value if value is None or isinstance(value, int | float | str) else shown(value)


def seed_of(options: DecodingOptions) -> int:
    """The seed, by default 0."""
    return check_integer("seed", 0 if options.seed is None else options.seed, 0, 2**64 - 1)


@dataclass(frozen=True)
class Setup:
    """What all views begin with: the target and its name, the options, and the prompts."""

    target: Model
    name: str
    options: DecodingOptions
    prompts: list[PromptIds]

    @classmethod
    def of(cls, target: Any, options: DecodingOptions, prompts: Prompt | Sequence[Prompt] | None) -> Setup:
        """Load a target, and read the prompts; None: some of ours."""
        name, given = named_one("target", target)
        model = as_model("target", given)
        if prompts is None and model.tokenizer is None:
            raise InputError("prompts is None, and the target has no tokenizer; expected token ids")
        texts, _ = prompts_of("prompts", list(_PROMPTS) if prompts is None else prompts)
        read = [PromptIds.of(model, one, f"prompt {i}") for i, one in enumerate(texts)]
        return cls(model, name or name_of(model), options, read)

    @property
    def seed(self) -> int:
        """The seed, by default 0."""
        return seed_of(self.options)

    def draft(self, given: Any) -> tuple[str, MeasurableDraft]:
        """(name, draft opened for measuring) of an argument that may be a dict of one by its name."""
        name, draft = named_one("draft", given)
        opened = measurable(self.target, draft)
        return name or name_of(opened), opened

    def runs(self, **changes: Any) -> dict[str, Any]:
        """Keyword arguments of `generate` for runs, but for their prompt, length and seed."""
        return run_options(self.options.replace(**changes))

    def share(self, n_tokens: int) -> int:
        """New tokens of a prompt where there are so many in all."""
        return -(-n_tokens // len(self.prompts))

    def work(self, n_tokens: int, share: int | None = None) -> list[tuple[Sequence[int], int]]:
        """Prompts with their new tokens: `share` each, as far as contexts reach, `n_tokens` in all."""
        share = self.share(n_tokens) if share is None else share
        work: list[tuple[Sequence[int], int]] = []
        for prompt in self.prompts:
            if (n := min(share, n_tokens, prompt.capacity(self.target))) > 0:
                work.append((prompt.given, n))
                n_tokens -= n
        return work

    def described(self, **settings: Any) -> dict[str, Any]:
        """Settings of a comparison in the types of JSON: those given, and the options."""
        options = {name: getattr(self.options, name) for name in ("verify", *TRUNCATIONS)} | self.runs()
        options |= {"n_threads": self.options.threads, "seed": self.seed}
        return settings | {name: in_json(one) for name, one in options.items() if name != "temperature"}


def measurable(target: Model, draft: MeasurableDraftLike) -> MeasurableDraft:
    """Open a draft for measuring: a snapshot of one that learns, the model of one that chains it alone."""
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
        expected = "a specdec.Model, a path, a hub name, one of specdec.drafts, or an object with a method"
        raise InputError.of("draft", found, f"{expected} propose or probabilities(ids)", type_of(found))
    return as_draft(target, found)


def has_distribution(draft: object) -> TypeGuard[Model | ProbabilityDraft]:
    """Whether a draft has one distribution for the token after a text, whatever it has drafted before."""
    chain = not isinstance(draft, type) and getattr(draft, "tree", None) is None
    return isinstance(draft, Model) or (chain and isinstance(draft, ProbabilityDraft))


def opened(draft: Any, target: Model) -> Any:
    """Open a draft that is given as a path or a name of `specdec.drafts.named`; return any other as it is."""
    if isinstance(draft, os.PathLike):
        return drafts.load(draft, target)
    return drafts.named(draft, target) if isinstance(draft, str) else draft


def name_of(model: object) -> str:
    """A name for tables: of a model its folder or file, of an exit its layer; else the type."""
    if isinstance(model, drafts.Draft):
        model = model.identity
    if isinstance(model, Model):
        return model.path.absolute().name
    if isinstance(model, drafts.EarlyExit):
        return f"exit at layer {model.layer}"
    return type(model).__name__.lower()


def named_one(argument: str, given: Value | Mapping[str, Value]) -> tuple[str | None, Any]:
    """(name, value) of an argument that may be a dict of one value by its name; None: it has no name."""
    if not isinstance(given, Mapping):
        return None, given
    expected = "one, or a dict of one by its name"
    if len(given) != 1:
        raise InputError.of(argument, given, expected)
    check_names(argument, given, expected)
    return next(iter(given.items()))


def check_names(argument: str, given: Mapping[Any, Any], expected: str) -> None:
    """Refuse names that are no texts, or empty."""
    for name in given:
        if not isinstance(name, str) or not name:
            raise InputError.of(argument, name, expected, verb="has the name")


def drafts_by_name(argument: str, target: Model, given: Any) -> dict[str, Any]:
    """Check an argument that is a dict of drafts by name, and open those that are given as texts."""
    expected = "a dict of drafts by their names"
    if not isinstance(given, Mapping) or not given:
        raise InputError.of(argument, given, expected)
    check_names(argument, given, expected)
    return {name: opened(draft, target) for name, draft in given.items()}


def unique(names: Sequence[str]) -> list[str]:
    """Names of which none is twice: equal ones are numbered."""
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def short_name(text: str) -> str:
    """A draft's name for a table: each path in it shortened to its last folder, "heads:a/b" to "heads:b"."""
    return re.sub(r"[^:+]*/(?=[^/])", "", text.rstrip("/")) or text


def short_names(texts: Sequence[str]) -> list[str]:
    """The short name of each text; the text itself where two have the same short name."""
    names = [short_name(text) for text in texts]
    return [name if names.count(name) == 1 else text for name, text in zip(names, texts, strict=True)]


def check_say(say: Any) -> None:
    """Refuse what cannot be called with a line."""
    if not callable(say):
        raise InputError.of("say", say, "a function that takes a line", found=type_of(say))


def check_gammas(gammas: Any) -> list[int]:
    """Check drafted tokens of a round at most: each from 1 to 1024, none twice."""
    return [check_integer("gammas", gamma, 1, MAX_GAMMA) for gamma in different_numbers("gammas", gammas)]


def different_numbers(name: str, values: Any) -> list[Any]:
    """Check a sequence of at least one number, none twice."""
    expected = "a sequence of at least one number, none twice"
    found = check_items(name, values, expected)
    try:
        fits = 0 < len(set(found)) == len(found)
    except TypeError:  # what has no hash is no number
        fits = False
    if not fits:
        raise InputError.of(name, values, expected)
    return found
