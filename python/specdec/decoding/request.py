"""What a caller asks for: the arguments of `generate` and `stream`, checked."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_flag, check_integer, check_items
from specdec.decoding.adaptive_gamma import AUTO_GAMMA, SHARED, Auto, RunKind
from specdec.decoding.stopping import StopRules
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, shown
from specdec.models.model import Model, ModelLike, Prompt, as_model
from specdec.threads import check_threads
from specdec.trace import Round
from specdec.verification.rules import DECODING_RULES, check_rule
from specdec.verification.sampling import Sampling

__all__ = [
    "DEFAULT_BATCH_SIZE", "MAX_GAMMA", "Gamma", "Options", "Request",
    "Seed", "Stop", "Transform", "check_prompt",
]  # fmt: skip

Gamma: TypeAlias = "int | str | Auto | Callable[[Sequence[Round]], int] | None"
Stop: TypeAlias = "str | int | Iterable[str | int] | None"
Seed: TypeAlias = "int | Sequence[int | tuple[int, int]] | None"
Transform: TypeAlias = "Callable[[NDArray[np.float64], list[int]], NDArray[np.float64]]"


class Options(TypedDict, total=False):
    """The keyword arguments that `specdec.generate` and `specdec.stream` share, for type checkers."""

    gamma: Gamma
    max_new_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    draft_sampling: Sampling | None
    transform: Transform | None
    verify: str
    lenience: float
    seed: Seed
    stop: Stop
    n_threads: int | None
    logits: bool
    ignore_eos: bool


DEFAULT_BATCH_SIZE = 16
"""Prompts decoded at once when the caller does not say."""

MAX_GAMMA = 1024
"""Longest chain of a round; the core's SD_MAX_GAMMA."""


@dataclass(frozen=True)
class Request:
    """The arguments of a run, checked before anything begins, so that it cannot fail on them half-way.

    Attributes
    ----------
    target : Model
    draft : Model, Draft or None
        None where nothing is to be drafted.
    prompts : list of list of int
        Token ids of each prompt.
    is_batch : bool
        Whether the caller gave a list of prompts and expects a list of results.
    gamma : int
        Drafted tokens a round at most; 0 without a draft.
    policy : Auto, callable or None
        What says how many they are in each round; None: `gamma`.
    max_new_tokens : int or None
    sampling, draft_sampling : Sampling
    transform : callable or None
    rule : str
        As the core names it: "greedy" for argmax with lenience.
    lenience : float
    seeds : list of (int, int)
        Key (seed, sequence) of each prompt's random numbers.
    stop : StopRules
    n_threads : int
    logits : bool
    n_places : int
        Prompts decoded at once.
    node_budget : int or None
    """

    target: Model
    draft: Model | Draft | None
    prompts: list[list[int]]
    is_batch: bool
    gamma: int
    policy: Auto | Callable[[Sequence[Round]], int] | None
    max_new_tokens: int | None
    sampling: Sampling
    draft_sampling: Sampling
    transform: Transform | None
    rule: str
    lenience: float
    seeds: list[tuple[int, int]]
    stop: StopRules
    n_threads: int
    logits: bool
    n_places: int
    node_budget: int | None

    @classmethod
    def prepare(
        cls,
        target: ModelLike,
        draft: DraftLike | None,
        prompt: Prompt | Sequence[Prompt],
        *,
        gamma: Gamma,
        max_new_tokens: int | None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        draft_sampling: Sampling | None = None,
        transform: Transform | None = None,
        verify: str = "rejection",
        lenience: float = 1.0,
        seed: Seed = None,
        stop: Stop = None,
        n_threads: int | None = None,
        logits: bool = False,
        ignore_eos: bool = False,
        batch_size: int | None = None,
        node_budget: int | None = None,
    ) -> Request:
        """Check the arguments of `specdec.generate`, load models given by path, and encode the prompts.

        Raises
        ------
        InputError, VocabularyMismatchError, CheckpointError
            As `specdec.generate` says.
        """
        # What is cheap is checked before models are loaded.
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, logit_bias)
        if draft_sampling is None:
            draft_sampling = sampling
        elif not isinstance(draft_sampling, Sampling):
            raise InputError(
                f"draft_sampling is a {type(draft_sampling).__name__}; expected a specdec.Sampling, or None"
            )
        if transform is not None and not callable(transform):
            raise InputError(
                f"transform is a {type(transform).__name__}; expected a function of (probs, tokens), or None"
            )
        sampling, rule, lenience = _rule(verify, lenience, sampling)
        policy = _policy(gamma)
        if gamma is not None and policy is None:
            gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
        logits, ignore_eos = check_flag("logits", logits), check_flag("ignore_eos", ignore_eos)
        if max_new_tokens is not None:
            max_new_tokens = check_integer("max_new_tokens", max_new_tokens, 1)
        n_threads = check_threads(n_threads)
        given, is_batch = _split(prompt)
        if batch_size is None:
            batch_size = DEFAULT_BATCH_SIZE
        n_places = min(check_integer("batch_size", batch_size, 1), len(given))
        if node_budget is not None:
            node_budget = min(check_integer("node_budget", node_budget, n_places), n_places * (MAX_GAMMA + 1))
        seeds = _seeds(seed, len(given))

        target = as_model("target", target)
        draft = None if draft is None else as_draft(target, draft)
        if isinstance(draft, Draft) and not sampling.greedy:  # at temperature 0 every rule takes every tree
            draft.check_rule(rule, draft_sampling)
        for settings in (sampling, draft_sampling):
            settings.check_vocabulary(target.config["n_vocab"])
        tokenizer = target.tokenizer
        rules = StopRules.parse(
            stop,
            n_vocab=target.config["n_vocab"],
            has_text=tokenizer is not None,
            eos_ids=() if ignore_eos or tokenizer is None else tokenizer.eos_ids,
        )
        names = [f"prompt {i}" for i in range(len(given))] if is_batch else ["prompt"]
        if isinstance(policy, Auto) and isinstance(draft, Draft) and draft.adaptive:
            policy, gamma = None, draft.gamma  # two that learn from what the other does learn nothing
        elif isinstance(policy, Auto):
            gamma = policy.limit(draft)
        elif policy is not None:
            gamma = check_integer("gamma.max_gamma", getattr(policy, "max_gamma", AUTO_GAMMA), 0, MAX_GAMMA)
        elif gamma is None:
            gamma = draft.gamma if isinstance(draft, Draft) else Draft.gamma
        drafting = draft is not None and gamma > 0
        return cls(
            target=target,
            draft=draft if drafting else None,
            prompts=[check_prompt(target, item, name) for item, name in zip(given, names, strict=True)],
            is_batch=is_batch,
            gamma=gamma if drafting else 0,
            policy=policy if drafting else None,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            draft_sampling=draft_sampling,
            transform=transform,
            rule=rule,
            lenience=lenience,
            seeds=seeds,
            stop=rules,
            n_threads=n_threads,
            logits=logits,
            n_places=n_places,
            node_budget=node_budget,
        )

    def limit(self, index: int) -> tuple[int, str]:
        """(how many new tokens a sequence may have, the finish reason when it has them)."""
        room = self.target.config["n_ctx"] - len(self.prompts[index])
        if self.max_new_tokens is not None and self.max_new_tokens <= room:
            return self.max_new_tokens, "length"
        return room, "context"

    @property
    def kind(self) -> RunKind:
        """What estimates of acceptance and times depend on."""
        return RunKind(self.target, self.draft, self.sampling.temperature, self.rule, self.n_threads)

    @property
    def n_new_tokens(self) -> int:
        """New tokens of all sequences together, if nothing stops them early."""
        return sum(self.limit(i)[0] for i in range(len(self.prompts)))


def _policy(gamma: Any) -> Auto | Callable[[Sequence[Round]], int] | None:
    """What chooses gamma round by round; None for a number."""
    if isinstance(gamma, str):
        if gamma != "auto":
            raise InputError(
                f"gamma is {shown(gamma)}; expected an integer from 0 to {MAX_GAMMA}, 'auto', a "
                "specdec.Auto, or a function of the rounds so far"
            )
        return SHARED
    return gamma if isinstance(gamma, Auto) or callable(gamma) else None


def _rule(verify: Any, lenience: Any, sampling: Sampling) -> tuple[Sampling, str, float]:
    """(sampling of the target, the core's rule, lenience)."""
    rule, lenience = check_rule("verify", verify, lenience, DECODING_RULES)
    if lenience == 1.0:
        return sampling, rule, lenience
    if sampling.greedy:
        # Lenience for argmax looks at the distribution before it is standardised (appendix A.5).
        return (
            replace(sampling, temperature=1.0, top_k=None, top_p=None, min_p=None),
            "greedy",
            float(lenience),
        )
    return sampling, verify, float(lenience)


def _split(prompt: Any) -> tuple[list[Any], bool]:
    """(the prompts, whether they came as a list of prompts)."""
    if isinstance(prompt, str | np.ndarray):
        return [prompt], False
    if not isinstance(prompt, list | tuple):
        raise InputError(
            f"prompt is a {type(prompt).__name__}; expected text, token ids, or a list of prompts"
        )
    prompt = check_items("prompt", prompt, "text, token ids, or a list of prompts")
    if not prompt:
        raise InputError("prompt is an empty list; expected text, token ids, or a list of prompts")
    n_prompts = sum(isinstance(item, str | list | tuple | np.ndarray) for item in prompt)
    if n_prompts not in (0, len(prompt)):
        raise InputError("prompt mixes prompts with token ids; expected a list of either")
    return (prompt, True) if n_prompts else ([prompt], False)


def check_prompt(target: Model, prompt: Any, name: str) -> list[int]:
    """The ids of a prompt, encoded if it is a text: at least one, and room for another in the context.

    Raises
    ------
    InputError
    """
    n_ctx = target.config["n_ctx"]
    try:
        ids: list[int] = target.check_ids(prompt).tolist()
        if len(ids) == n_ctx:
            raise InputError(
                f"there are {n_ctx} token ids; expected fewer, as the context of {n_ctx} is then full"
            )
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return ids


def _seeds(seed: Any, n_sequences: int) -> list[tuple[int, int]]:
    if seed is None:
        seed = secrets.randbits(63)
    if not isinstance(seed, list | tuple | np.ndarray):
        number = check_integer("seed", seed, 0, 2**64 - 1)
        return [(number, i) for i in range(n_sequences)]
    entries = check_items("seed", seed, "an integer, or a list with an entry for each prompt")
    if len(entries) != n_sequences:
        raise InputError(f"seed has {len(entries)} entries for {n_sequences} prompts; expected one for each")
    keys = []
    for i, entry in enumerate(entries):
        key = (entry, 0)
        if isinstance(entry, list | tuple | np.ndarray):
            key = tuple(check_items(f"seed[{i}]", entry, "an integer or a pair (seed, sequence)"))
        if len(key) != 2:
            raise InputError(f"seed[{i}] is {shown(entry)}; expected an integer or a pair (seed, sequence)")
        number = check_integer(f"seed[{i}]", key[0], 0, 2**64 - 1)
        keys.append((number, check_integer(f"sequence of seed[{i}]", key[1], 0, 2**32 - 1)))
    return keys
