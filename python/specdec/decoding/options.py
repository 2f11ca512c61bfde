"""The settings of a run in one object: the keyword arguments of `generate`, checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_choice, check_flag, check_integer
from specdec.decoding.adapters import AdapterLike, check_adapter
from specdec.decoding.adaptive_gamma import SHARED, AdaptiveGamma
from specdec.decoding.constraint import Constraint, Schema, StatefulTransform, check_form
from specdec.decoding.prompt_cache import PromptCache, check_prompt_cache
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import InputError, kind_of, shown
from specdec.threads import check_threads
from specdec.trace import Round
from specdec.verification.rules import DECODING_RULES, DecodingRule, check_rule
from specdec.verification.sampling import Sampling

__all__ = [
    "MAX_GAMMA", "BatchOptions", "DecodingOptions", "Gamma", "LogprobsOf", "Options", "Policy",
    "SampleOptions", "Seed", "Stop", "Transform", "with_options",
]  # fmt: skip

Policy: TypeAlias = Callable[[Sequence[Round]], int]
"""A caller's function of the rounds so far that says how many tokens to draft."""
Gamma: TypeAlias = int | Literal["auto"] | AdaptiveGamma | Policy | None
Stop: TypeAlias = str | int | Iterable[str | int] | None
Seed: TypeAlias = int | Sequence[int | tuple[int, int]] | None
Transform: TypeAlias = Callable[[NDArray[np.float64], list[int]], NDArray[np.float64]] | StatefulTransform
LogprobsOf: TypeAlias = Literal["model", "sampling"]
"""Whose law log-probabilities are of: the model's own, or that which is sampled from."""

_DEFAULT_BATCH_SIZE = 16
_MOST_SAMPLES = 2**20

Function = TypeVar("Function", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The keyword arguments that `specdec.generate` and `specdec.stream` share, for type checkers."""

    gamma: Gamma
    max_new_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    draft_sampling: Sampling | None
    transform: Transform | None
    schema: Schema | None
    regex: str | None
    grammar: str | None
    constraint: Constraint | None
    verify: DecodingRule
    lenience: float
    seed: Seed
    stop: Stop
    n_threads: int | None
    logits: bool
    logprobs: int | None
    logprobs_of: LogprobsOf
    prompt_logprobs: int | None
    ignore_eos: bool
    prompt_cache: PromptCache | None
    adapter: AdapterLike | Sequence[AdapterLike | None] | None


class BatchOptions(Options, total=False):
    """The keyword arguments of `specdec.generate` for one sample of each prompt, for type checkers."""

    batch_size: int | None
    node_budget: int | None
    progress: bool


class SampleOptions(BatchOptions, total=False):
    """All keyword arguments of `specdec.generate`, for type checkers."""

    n: int


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """The keyword arguments of `specdec.generate`, whose docstring explains each; here are their defaults.

    What can be checked without a model is checked when the object is made.

    Raises
    ------
    InputError
        If a value is out of range; the message names the argument.
    """

    gamma: Gamma = None
    max_new_tokens: int | None = 200
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    draft_sampling: Sampling | None = None
    transform: Transform | None = None
    schema: Schema | None = None
    regex: str | None = None
    grammar: str | None = None
    constraint: Constraint | None = None
    verify: DecodingRule = "rejection"
    lenience: float = 1.0
    seed: Seed = None
    stop: Stop = None
    n_threads: int | None = None
    logits: bool = False
    logprobs: int | None = None
    logprobs_of: LogprobsOf = "model"
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    prompt_cache: PromptCache | None = None
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None
    n: int = 1
    batch_size: int | None = None
    node_budget: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        _ = self.sampling  # its settings are checked
        if self.draft_sampling is not None and not isinstance(self.draft_sampling, Sampling):
            raise InputError(
                f"draft_sampling is {kind_of(self.draft_sampling)}; expected a specdec.Sampling, or None"
            )
        has_states = callable(getattr(self.transform, "start", None))
        if self.transform is not None and not callable(self.transform) and not has_states:
            raise InputError(
                f"transform is {kind_of(self.transform)}; expected a function of (probs, tokens), an object "
                "with the method start(tokens), or None"
            )
        check_form(self)
        check_prompt_cache(self.prompt_cache)
        check_adapter(self.adapter)
        rule, lenience = check_rule("verify", self.verify, self.lenience, DECODING_RULES)
        self._set(verify=rule, lenience=float(lenience), gamma=_check_gamma(self.gamma))
        for name in ("logits", "ignore_eos", "progress"):
            self._set(**{name: check_flag(name, getattr(self, name))})
        if self.max_new_tokens is not None:
            self._set(max_new_tokens=check_integer("max_new_tokens", self.max_new_tokens, 1))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._set(**{name: check_integer(name, getattr(self, name), 0)})
        check_choice("logprobs_of", self.logprobs_of, get_args(LogprobsOf))
        if self.logprobs is not None and self.logprobs_of == "sampling" and lenience < 1:
            raise InputError(
                f"logprobs_of is 'sampling' with a lenience of {shown(lenience)}; expected 'model': the "
                "output is then not drawn from the law of the settings"
            )
        self._set(n=check_integer("n", self.n, 1, _MOST_SAMPLES))
        batch_size = _DEFAULT_BATCH_SIZE if self.batch_size is None else self.batch_size
        self._set(
            n_threads=check_threads(self.n_threads), batch_size=check_integer("batch_size", batch_size, 1)
        )

    def _set(self, **values: Any) -> None:
        """Keep checked values in place of those given."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def sampling(self) -> Sampling:
        """The target's settings."""
        return Sampling(
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.logit_bias,
            self.presence_penalty,
            self.frequency_penalty,
        )

    @property
    def policy(self) -> AdaptiveGamma | Policy | None:
        """What chooses gamma round by round; None where gamma is a number."""
        gamma = self.gamma
        return None if gamma is None or isinstance(gamma, int | str) else gamma

    @classmethod
    def of_call(cls, function: Callable[..., Any], arguments: Mapping[str, Any]) -> DecodingOptions:
        """The keyword arguments of a call of a function that `with_options` has decorated.

        Raises
        ------
        TypeError
            As Python does, for an argument that the function does not have.
        InputError
        """
        known = inspect.signature(function).parameters
        for name in arguments:
            if name not in known:
                hint = _meant(name, known)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return cls(**arguments)

    @classmethod
    def of_request(cls, arguments: Mapping[str, Any]) -> DecodingOptions:
        """The options of one text, whose names nobody has looked at.

        Raises
        ------
        InputError
            Also for a name that is no option.
        """
        known = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in known:
                raise InputError(f"{shown(name)} is no option{_meant(name, known)}")
        return cls(**arguments)


def _meant(name: str, known: Collection[str]) -> str:
    """The end of an error about an option that is not known."""
    meant = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, known, 1)), None)
    return f"; did you mean {meant}?" if meant in known else ""


_ELSEWHERE: Final = {
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "num_speculative_tokens": "gamma",
    "num_assistant_tokens": "gamma",
    "stop_sequences": "stop",
    "json_schema": "schema",
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "logits_processor": "transform",
    "eos_token_id": "stop",
    "num_threads": "n_threads",
    "lora_request": "adapter",
    "num_return_sequences": "n",
}
"""What options are called in other libraries."""


def with_options(*left_out: str) -> Callable[[Function], Function]:
    """Give a function of ``**options`` the signature and types that write the options out, but for some."""

    def decorate(function: Function) -> Function:
        given = inspect.signature(function)
        kept = [entry for entry in given.parameters.values() if entry.kind is not entry.VAR_KEYWORD]
        options = [field for field in fields(DecodingOptions) if field.name not in left_out]
        kept += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
            )
            for field in options
        ]
        function.__signature__ = given.replace(parameters=kept)  # type: ignore[attr-defined]
        # Types, not their names: the function's module need not know the names.
        types = get_type_hints(DecodingOptions)
        function.__annotations__ = {
            **{name: hint for name, hint in function.__annotations__.items() if name != "options"},
            **{field.name: types[field.name] for field in options},
        }
        return function

    return decorate


def _check_gamma(gamma: Any) -> Gamma:
    if isinstance(gamma, str):
        if gamma != "auto":
            raise InputError(
                f"gamma is {shown(gamma)}; expected an integer from 0 to {MAX_GAMMA}, 'auto', a "
                "specdec.AdaptiveGamma, or a function of the rounds so far"
            )
        return SHARED
    if gamma is None or isinstance(gamma, AdaptiveGamma):
        return gamma
    if callable(gamma):
        policy: Policy = gamma
        return policy
    return check_integer("gamma", gamma, 0, MAX_GAMMA)
