"""A request: options, models and prompts, checked against each other."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from specdec import _core
from specdec.checks import check_integer, check_items, check_path
from specdec.containers import Container, prompts_of
from specdec.decoding.adaptive_gamma import AUTO_GAMMA, AdaptiveGamma, RunType
from specdec.decoding.constraint import Constraint
from specdec.decoding.guided.after_reasoning import AfterReasoning
from specdec.decoding.guided.grammars import ConstraintType
from specdec.decoding.guided.guidance import Guidance
from specdec.decoding.options import DecodingOptions, Policy
from specdec.decoding.prompts import Chat, PromptIds, decoder_prompts_of
from specdec.decoding.result import Result
from specdec.decoding.stopping import StopRules
from specdec.display.rounds import FinishReason
from specdec.drafts.draft import MAX_GAMMA, Description, Draft, check_source
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.errors import ConstraintError, InputError, number_of
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.reasoning_format import ReasoningPosition
from specdec.models.tokenizer import ByteTokenizer
from specdec.verification.rules import DecodingRule, Rule
from specdec.verification.sampling import TRUNCATIONS, Sampling


class Drafting(NamedTuple):
    """The draft of a session for the core (None: plain decoding), and its maximum of draft tokens."""

    draft: Draft | None = None
    description: Description | None = None
    gamma: int = 0
    adaptive: tuple[AdaptiveGamma, RunType] | None = None
    """Controller of gamma, and the key of its estimates."""


class Request:
    """A decoding request, fully validated before decoding begins.

    Loads models given by path and encodes the prompts: those of the `chat` or of `prompt`, for an
    encoder-decoder with `decoder_prompt`. An engine passes its number of slots and its longest text. Raises
    as `specdec.generate`.
    """

    def __init__(
        self, target: ModelLike, draft: DraftLike | None,
        prompt: Prompt | Sequence[Prompt] | Container | None, options: DecodingOptions,
        chat: Chat | None = None, decoder_prompt: Prompt | Sequence[Prompt] | Container | None = None, *,
        n_slots: int | None = None, n_text: int | None = None,
    ) -> None:  # fmt: skip
        # Cheap checks come before models are loaded.
        if chat is None:
            _check_given(prompt)
            given, self.is_batch = prompts_of("prompt", prompt)
        else:
            given, self.is_batch = chat.conversations, chat.is_batch
        n_texts, n = len(given) * options.n, options.n
        self.options, self.n_text = options, n_text
        self.n_slots = min(options.slots, n_texts) if n_slots is None else n_slots
        self.node_budget = 0
        if options.node_budget is not None:
            least = check_integer("node_budget", options.node_budget, self.n_slots)
            self.node_budget = min(least, self.n_slots * (MAX_GAMMA + 1))
        self.seeds = seeds_of(options.seed, n_texts)
        """RNG stream key (seed, sequence) of each sequence."""

        self.target = as_model("target", target)
        models = adapted_models(self.target, options, len(given), is_batch=self.is_batch)
        self._models = None if models is None else [model for model in models for _ in range(n)]
        opened = None if draft is None else open_draft("draft", draft, optional=True, target=self.target)
        description = None if opened is None else opened.describe(self.target)  # raises if it does not fit
        check_source(opened is not None and opened.reads_source, self.target)
        n_vocab, tokenizer = self.target.config.n_vocab, self.target.tokenizer
        asked, self.rule = _target_sampling(options)
        self.sampling = self.draft_sampling = asked.for_vocabulary(n_vocab, tokenizer)
        drafting_settings = options.draft_sampling or options.sampling
        if drafting_settings is not asked:
            self.draft_sampling = drafting_settings.for_vocabulary(n_vocab, tokenizer)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(options, name) is not None:
                check_integer(name, getattr(options, name), 0, n_vocab)
        ends: tuple[int, ...] = () if options.ignore_eos else self.target.eos_ids
        if chat is not None and not options.ignore_eos:
            ends = (*ends, *self.target.chat_end_ids)
        included = options.include_stop_str_in_output
        self.stop = StopRules.parse(
            options.stop, n_vocab=n_vocab, tokenizer=tokenizer, eos_ids=ends, included=included
        )
        if not (options.skip_special_tokens or isinstance(tokenizer, ByteTokenizer | None)):
            expected = "True, as the tokenizer does not list its special tokens"
            raise InputError.of("skip_special_tokens", False, expected)
        prompts = _prompt_ids(self.target, given, self.is_batch, chat, decoder_prompt)
        self.prompts = [ids for ids in prompts for _ in range(n)]
        self.reasoning = self._reasoning(chat, [one.ids for one in prompts])
        self.constraint = self._constraint(sorted(ends))
        gamma, self.policy = max_draft_tokens(options, opened)
        self.drafting = Drafting()
        if opened is None or gamma == 0:
            self.policy = None
        else:
            run_type = RunType(self.target, opened, self.sampling.temperature, self.rule, options.threads)
            adaptive = (self.policy, run_type) if isinstance(self.policy, AdaptiveGamma) else None
            self.drafting = Drafting(opened, description, gamma, adaptive)

    def _reasoning(
        self, chat: Chat | None, prompts: list[list[int]]
    ) -> Mapping[tuple[int, ...], ReasoningPosition]:
        """Return the position in its reply after each prompt of a model that reasons."""
        found = {} if chat is None else chat.reasoning_positions(self.target, prompts)
        if (limit := self.options.max_reasoning_tokens) is not None and not found:
            expected = "None, or messages for a model whose chat template has a known reasoning format"
            raise InputError.of("max_reasoning_tokens", limit, expected)
        return found

    def _constraint(self, end_ids: Sequence[int]) -> Constraint | None:
        """Return the constraint of the texts, of reasoning replies with a bound on their reasoning."""
        self.guidance = given = constraint_of(self.options, self.target, end_ids)
        limit = self.options.max_reasoning_tokens
        may_reason = any(position.phase != "ended" for position in self.reasoning.values())
        if not may_reason or (given is None and limit is None):
            return given
        return AfterReasoning(self.reasoning, given, limit, self.target.config.n_vocab, end_ids)

    def model(self, index: int) -> Model:
        """Return the model, adapted or not, of a sequence."""
        return self.target if self._models is None else self._models[index]

    def limit(self, index: int) -> tuple[int, FinishReason]:
        """Return (maximum of new tokens, finish reason when it is reached) of a sequence."""
        capacity = self.prompts[index].capacity(self.target)
        if self.n_text is not None:
            capacity = min(capacity, self.n_text - len(self.prompts[index].ids))
        if self.options.max_new_tokens is not None and self.options.max_new_tokens <= capacity:
            return self.options.max_new_tokens, "length"
        return capacity, "context"

    def settings(self, index: int, **drafting: Any) -> _core.Settings:
        """Return a sequence's settings for the core; `drafting`: `gamma`, `drafters`, `prediction`."""
        options = self.options
        if self.draft_sampling is not self.sampling:
            drafting["draft_sampling"] = self.draft_sampling.core()
        if options.logprobs is not None:
            drafting |= {"logprobs_of": options.logprobs_of, "n_top": options.logprobs}
        return _core.Settings(
            max_new_tokens=max(self.limit(i)[0] for i in range(len(self.prompts))),
            sampling=self.sampling.core(), rule=self.rule, lenience=options.lenience,
            transform=options.transform, constraint=self.constraint, stop_ids=sorted(self.stop.ids),
            model=self.model(index).core, **drafting,
        )  # fmt: skip

    def arranged(self, results: list[Result]) -> Result | list[Result] | list[list[Result]]:
        """Arrange all results as the caller expects them: by prompt, then by sample."""
        n = self.options.n
        if n == 1:
            return results if self.is_batch else results[0]
        return [results[i : i + n] for i in range(0, len(results), n)] if self.is_batch else results

    @property
    def longest(self) -> int:
        """Maximum number of tokens of any sequence, prompt and new."""
        return max(len(prompt.ids) + self.limit(i)[0] for i, prompt in enumerate(self.prompts))

    @property
    def n_new_tokens(self) -> int:
        """Maximum number of new tokens over all sequences."""
        return sum(self.limit(i)[0] for i in range(len(self.prompts)))


def seeds_of(seed: Any, n_sequences: int) -> list[tuple[int, int]]:
    """Return the RNG stream keys (seed, sequence) for the `seed` argument of a call."""
    if seed is None:
        seed = secrets.randbits(63)
    if not isinstance(seed, list | tuple | np.ndarray):
        number = check_integer("seed", seed, 0, 2**64 - 1)
        return [(number, i) for i in range(n_sequences)]
    entries = check_items("seed", seed, "an integer, or a list with an entry for each prompt")
    if len(entries) != n_sequences:
        found = f"{len(entries)} entries for {number_of(n_sequences, 'text')}"
        raise InputError.of("seed", seed, "one for each prompt, or sample", found, "has")
    keys = []
    for i, entry in enumerate(entries):
        key, expected = (entry, 0), "an integer or a pair (seed, sequence)"
        if isinstance(entry, list | tuple | np.ndarray):
            key = tuple(check_items(f"seed[{i}]", entry, expected))
        if len(key) != 2:
            raise InputError.of(f"seed[{i}]", entry, expected)
        number = check_integer(f"seed[{i}]", key[0], 0, 2**64 - 1)
        keys.append((number, check_integer(f"sequence of seed[{i}]", key[1], 0, 2**32 - 1)))
    return keys


def adapted_models(
    target: Model, options: DecodingOptions, n_prompts: int, *, is_batch: bool
) -> list[Model] | None:
    """Return the model of each prompt, or None if all use the target. Reads each adapter folder once."""
    adapter: Any = options.adapter
    if adapter is None:
        return None
    given = adapter if isinstance(adapter, list) else [adapter] * n_prompts
    if given is adapter and (not is_batch or len(given) != n_prompts):
        found = f"a list of {len(given)} for {number_of(n_prompts, 'prompt')}"
        raise InputError.of("adapter", adapter, "one adapter, or one for each prompt of a list", found)
    weights = target.core.base or target.core
    read: dict[Path, Model] = {}
    models: list[Model] = []
    for one in given:
        if one is None:
            models.append(target)
        elif isinstance(one, Model):
            if (one.core.base or one.core) is not weights:
                found = f"{one!r}, whose weights are not those of {target!r}"
                raise InputError.of("adapter", one, "a model of its with_adapter", found)
            models.append(one)
        else:
            path = check_path("adapter", one)
            if path not in read:
                read[path] = (target.base or target).with_adapter(path, n_threads=options.threads)
            models.append(read[path])
    return models


def _prompt_ids(
    target: Model, given: list[Any], is_batch: bool, chat: Chat | None, decoder_prompt: Any
) -> list[PromptIds]:
    """Encode the prompts."""
    starts = decoder_prompts_of(target, decoder_prompt, len(given), is_batch)
    if chat is not None:
        given = chat.prompts(target)
    prompts = []
    for i, (item, start) in enumerate(zip(given, starts, strict=True)):
        own_text = chat is not None and chat.begins_reply(i)
        name = f"prompt {i}" if is_batch else "prompt"
        prompts.append(PromptIds.of(target, item, name, decoder_prompt=start, own_text=own_text))
    return prompts


def constraint_of(options: DecodingOptions, target: Model, end_ids: Sequence[int]) -> Constraint | None:
    """Return the constraint in the options, compiled for the target's tokens; `end_ids` end a text."""
    for name in get_args(ConstraintType):
        if (given := getattr(options, name)) is None:
            continue
        guidance = Guidance.of(name, given, target.tokenizer, target.config.n_vocab, end_ids)
        if guidance.start(()).mask() is None:
            found = "only the empty text, and the target has no end-of-text token"
            raise ConstraintError.of(name, given, "a constraint that some text satisfies", found, "allows")
        return guidance
    return options.constraint


def _check_given(prompt: object) -> None:
    """Catch two likely mistakes: no prompt, and messages passed as the prompt."""
    if prompt is None:
        expected = (
            "a text, token ids, or a list of prompts (sources of an encoder-decoder) as the third argument; "
            "the second argument is the draft, None for plain decoding"
        )
        raise InputError.of("prompt", prompt, expected, "missing")
    first: Any = prompt
    for _ in range(3):  # a conversation, or several
        if isinstance(first, dict) and "role" in first:
            expected = "a text or token ids; pass a conversation as messages=[...]"
            raise InputError.of("prompt", prompt, expected, "a message with 'role'")
        if type(first) not in (list, tuple) or not first:
            return
        first = first[0]


def max_draft_tokens(
    options: DecodingOptions, draft: Draft | None
) -> tuple[int, AdaptiveGamma | Policy | None]:
    """Return (maximum of draft tokens per round, controller of gamma or None)."""
    policy = options.policy
    if isinstance(policy, AdaptiveGamma):
        if draft is not None and draft.adaptive:
            return draft.gamma, None  # adapts by itself: a second controller would interfere
        return policy.limit(draft), policy
    if policy is not None:
        most = getattr(policy, "max_gamma", AUTO_GAMMA)
        return check_integer("gamma.max_gamma", most, 0, MAX_GAMMA), policy
    if options.gamma is None:
        return 0 if draft is None else draft.gamma, None
    return cast("int", options.gamma), None


def _target_sampling(options: DecodingOptions) -> tuple[Sampling, DecodingRule | Rule]:
    """Return (sampling settings of the target, verification rule) as the core takes them."""
    sampling = options.sampling
    if options.lenience == 1.0 or not sampling.greedy:
        return sampling, options.verify
    # At temperature 0, lenience compares with the distribution before the argmax (appendix A.5).
    whole: dict[str, Any] = dict.fromkeys(TRUNCATIONS)
    return replace(sampling, temperature=1.0, **whole), "greedy"
