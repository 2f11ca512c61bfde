"""Shared by evaluation harnesses: open a pair from its arguments, sum up decoding statistics."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from specdec.decoding.options import Gamma
from specdec.decoding.result import Result
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike
from specdec.drafts.opening import named
from specdec.errors import InputError, shown
from specdec.models.loading import embedded_pair, load
from specdec.models.model import Model
from specdec.models.number_formats import CacheDtype, Dtype, PrefillChoice
from specdec.models.tokenizer import Tokenizer
from specdec.settings_table import Unpack
from specdec.verification.rules import DecodingRule

EMBEDDED: Final = "embedded"
NO_DRAFT: Final = "none"


class LoadOptions(TypedDict, total=False):
    """Load options of a pair, as in `specdec.load`; None means not given."""

    dtype: Dtype | None
    draft_dtype: Dtype | None
    cache_dtype: CacheDtype | None
    prefill: PrefillChoice | None
    tokenizer: Any
    n_ctx: int | None
    n_threads: int | None
    revision: str | None


@dataclass(frozen=True)
class EvaluatedPair:
    """Target with a tokenizer, an optional draft, and the caller's names for both."""

    target: Model
    draft: DraftLike | None
    name: str
    draft_name: str | None

    @classmethod
    def open(
        cls,
        target: Model | str | os.PathLike[str],
        draft: DraftLike | str | None = None,
        **options: Unpack[LoadOptions],
    ) -> EvaluatedPair:
        """Load a target (path, hub name or "embedded") and a draft as for `drafts.named`.

        The draft None or "none" means plain decoding. Loaded models and drafts take no options.
        """
        check_names(options, LoadOptions.__annotations__)
        given: Any = {name: value for name, value in options.items() if value is not None}
        n_threads = given.pop("n_threads", None)
        dtype, draft_dtype = (given.pop(name, None) for name in ("dtype", "draft_dtype"))
        name = str(target.path) if isinstance(target, Model) else str(target)
        if isinstance(target, Model):
            _refuse({**given, "dtype": dtype}, "a loaded model")
            model = target
        elif target == EMBEDDED:
            how = {name: given.pop(name) for name in ("cache_dtype", "prefill") if name in given}
            _refuse(given, "the bundled target")
            model = embedded_pair(dtype, **how)[0]
        else:
            model = load(target, dtype, n_threads=n_threads, **given)
        if model.tokenizer is None:
            raise InputError(f"{name} has no tokenizer; expected a target with one, as harnesses pass text")
        if draft == NO_DRAFT:
            draft = None
        if isinstance(draft, str | os.PathLike):
            word = os.fspath(draft)
            return cls(model, named(word, model, dtype=draft_dtype), name, word)
        _refuse({"draft_dtype": draft_dtype}, "no draft" if draft is None else "a loaded draft")
        return cls(model, draft, name, None if draft is None else _name_of(draft))

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the target."""
        assert self.target.tokenizer is not None  # checked when the pair was opened
        return self.target.tokenizer

    def description(self, gamma: Gamma, verify: DecodingRule) -> dict[str, Any]:
        """Describe models and settings for result files."""
        return {
            "target": self.name, "dtype": self.target.dtype, "cache_dtype": self.target.cache_dtype,
            "draft": self.draft_name,
            "gamma": gamma if gamma is None or isinstance(gamma, int | str) else type(gamma).__name__,
            "verify": verify,
        }  # fmt: skip


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown arguments of the model."""
    names = list(known)
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, 1)
            meant = f"did you mean {nearest[0]}? Arguments" if nearest else "arguments"
            raise InputError(f"the model has no argument {shown(name)}; {meant} are {', '.join(names)}")


def _refuse(options: dict[str, Any], what: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is {shown(value)}, with {what}; expected None")


def _name_of(draft: Draft | Any) -> str:
    return str(draft.path) if isinstance(draft, Model) else type(draft).__name__


@dataclass
class Tally:
    """Statistics of decoded texts."""

    n_texts: int = 0
    n_tokens: int = 0
    n_calls: int = 0
    n_drafted: int = 0
    n_verified: int = 0  # judged draft tokens: those up to the first rejection of a round
    n_accepted: int = 0
    beta: float = 0.0  # sum of their acceptance probabilities
    seconds: float = 0.0  # in `specdec.generate`

    def add(self, results: Iterable[Result], seconds: float = 0.0) -> Tally:
        """Add results and the seconds they took together; return self."""
        for trace in (result.trace for result in results):
            self.n_texts += 1
            for name in ("n_tokens", "n_calls", "n_drafted", "n_verified", "n_accepted"):
                setattr(self, name, getattr(self, name) + getattr(trace, name))
            self.beta += sum(beta for one in trace.rounds for beta in one.betas)
        self.seconds += seconds
        return self

    def rates(self) -> dict[str, Any]:
        """Return the counts, and rates as in `specdec.Trace`; None for 0 / 0."""
        names = ("n_texts", "n_tokens", "n_calls", "n_drafted", "n_accepted")
        return {
            **{name: getattr(self, name) for name in names},
            "tokens_per_call": _quotient(self.n_tokens, self.n_calls),
            "acceptance_rate": _quotient(self.beta, self.n_verified),
            "draft_acceptance_rate": _quotient(self.n_accepted, self.n_drafted),
        }

    def figures(self) -> dict[str, Any]:
        """Return `rates` with seconds and tokens per second."""
        per_s = _quotient(self.n_tokens, self.seconds)
        return {**self.rates(), "seconds": round(self.seconds, 3), "tokens_per_s": per_s}


def _quotient(above: float, below: float) -> float | None:
    return above / below if below else None
