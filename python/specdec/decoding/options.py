"""`DecodingOptions`, the table of all settings, and helpers of the functions that take them as arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from specdec.checks import Function, check_integer, check_items, similar, suggesting
from specdec.containers import Container
from specdec.decoding.adaptive_gamma import SHARED, AdaptiveGamma
from specdec.decoding.constraint import Constraint, Schema, StatefulTransform
from specdec.decoding.guided.grammars import ConstraintType, json_text
from specdec.decoding.prompt_cache import PromptCache, check_prompt_cache
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import InputError, shown, type_of
from specdec.models.model import Model, Prompt
from specdec.settings_table import DOORS, Unpack, choice, flag, integer, number, other, table_of
from specdec.threads import MAX_THREADS, check_threads
from specdec.trace import Round
from specdec.verification.rules import DECODING_RULES, DecodingRule, check_rule
from specdec.verification.sampling import Sampling, SamplingOptions

__all__ = [
    "MAX_GAMMA", "AdapterLike", "BatchOptions", "CallOptions", "Constraint", "DecodingOptions",
    "DecodingRule", "Gamma", "LogprobsOf", "Policy", "PromptCache", "SampleOptions", "Sampling", "Schema",
    "Seed", "Stop", "TextOptions", "Transform", "door",
]  # fmt: skip

Policy: TypeAlias = Callable[[Sequence[Round]], int]
"""A caller's function that maps the rounds so far to the number of tokens to draft next."""
Gamma: TypeAlias = int | Literal["auto"] | AdaptiveGamma | Policy | None
Stop: TypeAlias = str | int | Iterable[str | int] | None
Seed: TypeAlias = int | Sequence[int | tuple[int, int]] | None
Transform: TypeAlias = Callable[[NDArray[np.float64], list[int]], NDArray[np.float64]] | StatefulTransform
LogprobsOf: TypeAlias = Literal["model", "sampling"]
"""The distribution that log-probabilities refer to: the model's own, or the one sampled from."""
AdapterLike: TypeAlias = Model | str | os.PathLike[str]
"""A model of `specdec.Model.with_adapter`, or the folder of an adapter."""

_MOST_SAMPLES = 2**20
MAX_REASONING: Final = 2**31 - 1
CONSTRAINTS: Final = (*get_args(ConstraintType), "constraint")


def _takes_rounds(policy: Policy) -> bool:
    """Return whether a function takes one argument; True if its signature is unknown."""
    try:
        inspect.signature(policy).bind(())
    except TypeError:
        return False
    except ValueError:  # of a builtin
        return True
    return True


def _check_gamma(name: str, gamma: Any) -> Gamma:
    if gamma is None or isinstance(gamma, AdaptiveGamma):
        return gamma
    if callable(gamma):
        policy: Policy = gamma
        if not _takes_rounds(policy):
            expected = "a function of one argument, the rounds so far, such as lambda rounds: 3"
            raise InputError.of(name, gamma, expected)
        return policy
    if isinstance(gamma, str):
        if gamma == "auto":
            return "auto"
        expected = f"an integer from 0 to {MAX_GAMMA}, 'auto', a specdec.AdaptiveGamma, or a function"
        raise InputError.of(name, gamma, expected)
    return check_integer(name, gamma, 0, MAX_GAMMA)


def _check_adapter(name: str, adapter: Any) -> Any:
    """Return one adapter unchanged, several as a new list."""
    expected = "a model of Model.with_adapter, the folder of an adapter, or None"
    several = isinstance(adapter, list | tuple)
    given = check_items(name, adapter, f"{expected}, or a list of these") if several else [adapter]
    for i, one in enumerate(given):
        if one is not None and not isinstance(one, Model | str | os.PathLike):
            raise InputError.of(f"{name}[{i}]" if several else name, one, expected, type_of(one))
    return given if several else adapter


def _check_draft_sampling(name: str, given: Any) -> Sampling:
    if not isinstance(given, Sampling):
        raise InputError.of(name, given, "a specdec.Sampling, or None", type_of(given))
    return given


def _check_transform(name: str, given: Any) -> Transform:
    if not callable(given) and not callable(getattr(given, "start", None)):
        expected = "a function of (probs, tokens), an object with the method start(tokens), or None"
        raise InputError.of(name, given, expected, type_of(given))
    transform: Transform = given
    return transform


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(Sampling):
    """All settings of `specdec.generate` in one object; a superset of `Sampling`.

    `specdec.generate` documents each setting. The constructor validates what it can without a model and
    raises an `InputError` that names the argument. Instances compare by value.

    Examples
    --------
    >>> options = specdec.DecodingOptions(gamma=4, temperature=0.7)
    >>> options.replace(temperature=0.0).arguments()
    {'gamma': 4}
    """

    gamma: Gamma = other(
        None, _check_gamma, scope="engine", flag="N",
        help="Draft tokens per round, or 'auto' (adaptive).",
    )  # fmt: skip
    max_new_tokens: int | None = integer(
        200, 1, optional=True, flag="N", help="Maximum number of new tokens."
    )
    draft_sampling: Sampling | None = other(None, _check_draft_sampling)
    transform: Transform | None = other(None, _check_transform)
    schema: Schema | None = other(None, flag="FILE", help="JSON schema file that the text must match.")
    regex: str | None = other(None, flag="PATTERN", help="Regular expression that the whole text must match.")
    grammar: str | None = other(None, flag="FILE", help="Grammar file, Lark or GBNF, for the text.")
    constraint: Constraint | None = other(None)
    max_reasoning_tokens: int | None = integer(
        None, 0, flag="N", served=(0, MAX_REASONING), help="Maximum number of tokens of reasoning in a reply."
    )
    verify: DecodingRule = choice("auto", DECODING_RULES, flag="RULE", help=", ".join(DECODING_RULES))
    lenience: float = number(
        1.0, "a number above 0, at most 1", lambda x: 0.0 < x <= 1.0, flag="L",
        help="Lenience of the rejection rule; below 1 the output is not exact.",
    )  # fmt: skip
    seed: Seed = other(None, value_type=int, flag="S", help="Random seed.")
    stop: Stop = other(
        None, flag="TEXT", many=True, help="Stop before this text or special token; may be repeated."
    )
    include_stop_str_in_output: bool = flag()
    skip_special_tokens: bool = flag(True)
    n_threads: int | None = integer(
        None, 1, MAX_THREADS, scope="engine", flag="N",
        help="Default: SPECDEC_NUM_THREADS, or the available CPUs.",
    )  # fmt: skip
    logits: bool = flag(scope="logits")
    logprobs: int | None = integer(
        None, 0, flag="K", help="Log-probability of each token and of the K likeliest (with --json)."
    )
    logprobs_of: LogprobsOf = choice("model", get_args(LogprobsOf))
    prompt_logprobs: int | None = integer(None, 0)
    ignore_eos: bool = flag()
    prompt_cache: PromptCache | None = other(None, scope="engine")
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = other(None, _check_adapter)
    n: int = integer(
        1, 1, _MOST_SAMPLES, scope="samples", flag="N",
        help="Samples per prompt (with --json).",
    )  # fmt: skip
    batch_size: int | None = integer(
        None, 1, scope="batch", flag="N", help="Prompts decoded together with --lines (default: 16)."
    )
    node_budget: int | None = integer(None, 1, scope="batch")
    progress: bool = flag(scope="display")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_constraints()
        check_prompt_cache(self.prompt_cache)
        check_rule("verify", self.verify, self.lenience, DECODING_RULES)
        if self.logprobs is not None and self.logprobs_of == "sampling" and self.lenience < 1:
            found = f"'sampling' with a lenience of {shown(self.lenience)}"
            expected = "'model': the output is then not drawn from the distribution of the settings"
            raise InputError.of("logprobs_of", self.logprobs_of, expected, found)
        _ = self.threads  # validate the environment variable

    def _check_constraints(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError.about(given[0], f"{' and '.join(given)} are given; expected one of them at most")
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise InputError.of(name, text, "a str, or None", type_of(text))
        if self.schema is not None:
            json_text(self.schema)
        if self.constraint is not None and not callable(getattr(self.constraint, "start", None)):
            expected = "an object with the method start(tokens), or None"
            raise InputError.of("constraint", self.constraint, expected, type_of(self.constraint))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(DecodingOptions, **self.arguments()), ()

    def replace(self, **changes: Unpack[SampleOptions]) -> DecodingOptions:
        """Return a copy with some values changed; raises `InputError` for a bad value or unknown name."""
        return DecodingOptions.of_arguments({**self.arguments(), **changes})

    def arguments(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as keyword arguments of `specdec.generate`."""
        rows = table_of(DecodingOptions).items()
        values = ((name, getattr(self, name), row.default) for name, row in rows)
        return {name: x for name, x, default in values if type(x) is not type(default) or x != default}

    @cached_property
    def sampling(self) -> Sampling:
        """Sampling settings of the target."""
        return Sampling(**{name: getattr(self, name) for name in table_of(Sampling)})

    @cached_property
    def threads(self) -> int:
        """Number of compute threads: `n_threads`, or this machine's default."""
        return check_threads(self.n_threads)

    @property
    def slots(self) -> int:
        """Number of sequences decoded together: `batch_size`, or 16."""
        return 16 if self.batch_size is None else self.batch_size

    @property
    def policy(self) -> AdaptiveGamma | Policy | None:
        """Adaptive or user-defined controller of gamma; None for a fixed gamma."""
        if self.gamma == "auto":
            return SHARED
        return None if self.gamma is None or isinstance(self.gamma, int | str) else self.gamma

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> DecodingOptions:
        """Make options from keyword arguments, rejecting unknown names."""
        known = table_of(cls)
        for name in arguments:
            if name not in known:
                raise InputError(f"{shown(name)} is not a setting{_meant(name, known)}")
        return cls(**arguments)

    @classmethod
    def of_call(cls, given: Mapping[str, Any]) -> DecodingOptions:
        """Make options from the local variables of a public function."""
        return cls(**{name: given[name] for name in table_of(cls) if name in given})


class TextOptions(SamplingOptions, total=False):
    """Per-request settings plus `gamma` and `batch_size`, for type checkers (`specdec.ray`)."""

    gamma: Gamma
    max_new_tokens: int | None
    draft_sampling: Sampling | None
    transform: Transform | None
    schema: Schema | None
    regex: str | None
    grammar: str | None
    constraint: Constraint | None
    max_reasoning_tokens: int | None
    verify: DecodingRule
    lenience: float
    stop: Stop
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    logprobs: int | None
    logprobs_of: LogprobsOf
    prompt_logprobs: int | None
    ignore_eos: bool
    adapter: AdapterLike | Sequence[AdapterLike | None] | None
    batch_size: int | None


class BatchOptions(TextOptions, total=False):
    """Settings of `specdec.generate` for one sample per prompt, for type checkers."""

    seed: Seed
    n_threads: int | None
    logits: bool
    prompt_cache: PromptCache | None
    node_budget: int | None
    progress: bool


class CallOptions(BatchOptions, total=False):
    """These settings plus the other keyword arguments of `specdec.generate`, for type checkers."""

    decoder_prompt: Prompt | Sequence[Prompt] | Container | None
    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    chat_template_kwargs: Mapping[str, Any] | None


class SampleOptions(BatchOptions, total=False):
    """All settings of `specdec.generate`, for type checkers."""

    n: int


def door(function: Function) -> Function:
    """Decorate a function that takes settings: unknown names raise a TypeError with a suggestion."""
    return suggesting(_meant)(function)


def _meant(name: str, known: Collection[str]) -> str:
    """Return a suggestion to append to the error about an unknown setting."""
    if name in table_of(DecodingOptions):
        scope = table_of(DecodingOptions)[name].scope
        return f"; {', '.join(of for of, scopes in DOORS.items() if scope in scopes)} have it"
    return "; specdec.load has it" if name in _OF_LOAD else similar(name, known, _ELSEWHERE)


_OF_LOAD: Final = ("cache_dtype", "dtype", "n_ctx", "prefill", "tokenizer")
_ELSEWHERE: Final = {
    "max_length": "max_new_tokens", "max_tokens": "max_new_tokens", "n_predict": "max_new_tokens",
    "num_speculative_tokens": "gamma", "num_assistant_tokens": "gamma", "stop_sequences": "stop",
    "json_schema": "schema", "guided_json": "schema", "guided_regex": "regex",
    "guided_grammar": "grammar", "logits_processor": "transform", "eos_token_id": "stop",
    "num_threads": "n_threads", "lora_request": "adapter", "num_return_sequences": "n",
    "thinking_token_budget": "max_reasoning_tokens", "reasoning_budget": "max_reasoning_tokens",
    "min_new_tokens": "min_tokens", "bad_words_ids": "bad_words",
}  # fmt: skip
"""Names of settings in other libraries."""
