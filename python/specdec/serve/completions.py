"""`/v1/completions` and `/v1/chat/completions`: responses with choices, whole or in chunks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from specdec import _core
from specdec.decoding.engine import Piece
from specdec.decoding.result import Result
from specdec.errors import InputError
from specdec.models.score import TopLogProbs
from specdec.models.tokenizer import StreamDecoder
from specdec.serve.bodies import event
from specdec.serve.choices import (
    Choice,
    Delta,
    ScoredToken,
    Usage,
    chat_logprobs,
    legacy_logprobs,
    piece_of,
)
from specdec.serve.reply_readers import ToolCall
from specdec.serve.request_fields import refused
from specdec.serve.schemas import ChatFields, CompletionFields
from specdec.serve.service import Service
from specdec.serve.text_request import ConversationRequest, TextRequest, check_prompt_size, new_id

_FINGERPRINT: Final = f"specdec-{_core.__version__}-{_core.kernels()}"
"""Fingerprint of the backend: equal seeds give equal texts only with equal fingerprints."""


class ChoicesRequest(TextRequest):
    """Request whose response is a list of choices."""

    object_type: ClassVar[str]
    chunk_type: ClassVar[str]

    @abstractmethod
    def make_choice(self, prompt: int) -> Choice:
        """Make a choice of a prompt."""

    def prepare(self) -> None:
        n = self.fields.n
        self.choices = [self.make_choice(index // n) for index in range(n * len(self.generations))]

    def answer(
        self, object_type: str, choices: list[dict[str, Any]], usage: Usage | None = None
    ) -> dict[str, Any]:
        """Return a response, or a chunk of one, with its usage if given."""
        found = {
            "id": self.id, "object": object_type, "created": self.created, "model": self.model,
            "system_fingerprint": _FINGERPRINT, "choices": choices,
        }  # fmt: skip
        return found if usage is None else {**found, "usage": usage.completion(), **usage.figures()}

    def chunk(self, *choices: dict[str, Any], usage: Usage | None = None) -> bytes:
        return event(self.answer(self.chunk_type, list(choices), usage))

    def usage(self, results: Sequence[Sequence[Result]]) -> Usage:
        return Usage(self.generations, results, sum(choice.n_reasoning_tokens for choice in self.choices))

    def fed(self, results: Sequence[Sequence[Result]]) -> Iterator[tuple[int, Result, Delta]]:
        """Yield (index of the prompt, result, its whole text as a delta)."""
        choices = iter(self.choices)
        for prompt, samples in enumerate(results):
            for sample, result in enumerate(samples):
                yield prompt, result, next(choices).feed(piece_of(sample, result))

    def end(self, results: Sequence[Sequence[Result]]) -> list[bytes]:
        options, done = self.fields.stream_options, event("[DONE]")
        has_usage = options is not None and options.include_usage
        return [self.chunk(usage=self.usage(results)), done] if has_usage else [done]


class CompletionRequest(ChoicesRequest):
    """Request for continuations of prompts."""

    schema = CompletionFields
    prefix = "cmpl-"
    limit_fields = ("max_tokens",)
    default_limit = 16
    object_type = chunk_type = "text_completion"

    @property
    def alone(self) -> bool:  # type: ignore[override]
        """Whether the request only scores its prompt."""
        return bool(self.options["max_new_tokens"] == 0)

    def read_n_top(self) -> int | None:
        n_top: int | None = self.fields.logprobs
        return n_top

    def read_prompts(self) -> list[dict[str, Any]]:
        prompts, n, most = self.fields.prompt, self.fields.n, self.service.limits.n_texts
        for prompt in prompts:
            if isinstance(prompt, str):
                check_prompt_size({"prompt": prompt}, self.service)
        if (n_texts := len(prompts) * n) > most:
            message = f"{len(prompts)} prompts with n = {n} make {n_texts} texts; expected at most {most}"
            raise refused("n", message)
        options = {**self.options, "n": n, "skip_special_tokens": self.fields.skip_special_tokens}
        options["prompt_logprobs"] = self.n_top if self.fields.echo else None
        if self.fields.suffix:
            prompts = self._infilled(prompts, options)
        seed = options["seed"]
        seeds = [None if seed is None else [(seed, i * n + k) for k in range(n)] for i in range(len(prompts))]
        return [
            {**options, "prompt": prompt, "seed": own} for prompt, own in zip(prompts, seeds, strict=True)
        ]

    def _infilled(self, prompts: Sequence[Any], options: dict[str, Any]) -> list[list[int]]:
        """Return the prompts with the suffix in the model's infilling template; its end tokens stop."""
        target, suffix = self.service.target, self.fields.suffix
        for prompt in prompts:
            text = prompt if isinstance(prompt, str) else ""
            check_prompt_size({"suffix": suffix, "prompt": text}, self.service)
        if not self.fields.ignore_eos:
            options["stop"] = [*options["stop"], *target.infill_end_ids]
        try:
            return [target.infill_ids(prompt, suffix) for prompt in prompts]
        except InputError as error:
            raise refused("suffix", str(self.service.refusal(error)), "unsupported_parameter") from error

    def scored_prompts(self) -> dict[str, Any]:
        """Return the response without new text: the prompts and their log-probabilities."""
        service, n_tokens = self.service, 0
        choices: list[dict[str, Any]] = []
        for i, prompt in enumerate(self.fields.prompt):
            ids = service.target.check_ids(prompt, minimum=1).tolist()
            n_tokens += len(ids)
            text, scored = self._echoed(i, ids), []
            if self.n_top is not None:
                score = service.engine.score(ids, self.n_top, self.adapter)
                scored = _scored_prompt(service, ids, score.log_probs.tolist(), score.top_logprobs)
            for _ in range(self.fields.n):
                choices.append(self._choice(len(choices), text, scored, Delta(finish_reason="length")))
        usage = {"prompt_tokens": n_tokens, "completion_tokens": 0, "total_tokens": n_tokens}
        return {**self.answer(self.object_type, choices), "usage": usage}

    def _echoed(self, prompt: int, ids: Sequence[int]) -> str:
        given = self.fields.prompt[prompt]
        return given if isinstance(given, str) else self.service.tokenizer.decode(ids)

    def prepare(self) -> None:
        echoes = self.fields.echo
        self._before = [self._echoed(i, one.prompt_ids) * echoes for i, one in enumerate(self.generations)]
        super().prepare()

    def make_choice(self, prompt: int) -> Choice:
        fields, begin = self.fields, len(self._before[prompt])
        how = {"rounds": fields.return_rounds, "names": not fields.skip_special_tokens}
        return self.choice(self.generations[prompt], own_text=False, begin=begin, **how)

    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for i, _, delta in self.fed(results):
            before, scored = self._echo(i, len(choices) % self.fields.n)
            choices.append(self._choice(len(choices), before + delta.text, scored + delta.scored, delta))
        return self.answer(self.object_type, choices, self.usage(results))

    def begin(self) -> list[bytes]:
        self._unread = set(range(len(self.choices) if self.fields.echo else 0))  # choices without their echo
        return []

    def _echo(self, prompt: int, sample: int) -> tuple[str, list[ScoredToken]]:
        """Return the prompt before a text, and its log-probabilities if requested."""
        generation, scored = self.generations[prompt], []
        if (score := generation.prompt_score(sample)) is not None and self.fields.echo:
            log_probs, top = score.log_probs.tolist(), score.top_logprobs
            scored = _scored_prompt(self.service, generation.prompt_ids, log_probs, top)
        return self._before[prompt], scored

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        index = prompt * self.fields.n + piece.index
        found = []
        if index in self._unread:
            self._unread.remove(index)
            found.append(self.chunk(self._choice(index, *self._echo(prompt, piece.index), Delta())))
        delta = self.choices[index].feed(piece)
        if delta.said or delta.scored or delta.rounds or delta.finish_reason:
            found.append(self.chunk(self._choice(index, delta.text, delta.scored, delta)))
        return found

    def _choice(self, index: int, text: str, scored: list[ScoredToken], delta: Delta) -> dict[str, Any]:
        n_top = self.n_top
        logprobs = None if n_top is None else legacy_logprobs(self.service.texts, scored, n_top)
        return {"index": index, "text": text, "logprobs": logprobs, **delta.end}


def _scored_prompt(
    service: Service, ids: Sequence[int], log_probs: list[float], top: TopLogProbs | None
) -> list[ScoredToken]:
    """Return the tokens of a prompt with log-probabilities of all but the first."""
    decoder, found, begin = StreamDecoder(service.tokenizer), [], 0
    for i, token in enumerate(ids):
        of_token = None if i == 0 else log_probs[i - 1]
        found.append((begin, token, of_token, list(top[i - 1]) if i and top else []))
        begin += len(decoder.feed([token]))
    return found


class ChatRequest(ChoicesRequest, ConversationRequest):
    """Request for chat replies."""

    schema = ChatFields
    prefix = "chatcmpl-"
    limit_fields = ("max_completion_tokens", "max_tokens")
    object_type = "chat.completion"
    chunk_type = "chat.completion.chunk"

    def read_n_top(self) -> int | None:
        return (self.fields.top_logprobs or 0) if self.fields.logprobs else None

    def read_messages(self) -> list[dict[str, Any]]:
        return [message.for_template() for message in self.fields.messages]

    def make_choice(self, prompt: int) -> Choice:
        return self.reply(self.generations[prompt], rounds=self.fields.return_rounds)

    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        choices = []
        for index, (_, _, delta) in enumerate(self.fed(results)):
            message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None}
            if delta.reasoning:
                message["reasoning_content"] = delta.reasoning
            if delta.calls:
                message["content"] = delta.text or None
                message["tool_calls"] = [_entry_of(call) for call in delta.calls]
            choices.append({"index": index, "message": message, **self._rest(delta)})
        return self.answer(self.object_type, choices, self.usage(results))

    def begin(self) -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        return [self._delta(index, first, Delta()) for index in range(self.fields.n)]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        index, found = piece.index, []
        n_calls = self.choices[index].n_calls
        delta = self.choices[index].feed(piece)
        calls = [{"index": i, **_entry_of(call)} for i, call in enumerate(delta.calls, n_calls)]
        content = {"reasoning_content": delta.reasoning, "content": delta.text, "tool_calls": calls}
        content = {name: value for name, value in content.items() if value}
        if content or delta.scored or delta.rounds:
            found.append(self._delta(index, content, Delta(scored=delta.scored, rounds=delta.rounds)))
        if delta.finish_reason is not None:
            found.append(self._delta(index, {}, Delta(finish_reason=delta.finish_reason, stop=delta.stop)))
        return found

    def _delta(self, index: int, delta: Mapping[str, Any], rest: Delta) -> bytes:
        return self.chunk({"index": index, "delta": delta, **self._rest(rest)})

    def _rest(self, delta: Delta) -> dict[str, Any]:
        logprobs = None
        if self.n_top is not None:
            logprobs = {"content": chat_logprobs(self.service.texts, delta.scored), "refusal": None}
        return {"logprobs": logprobs, **delta.end}


def _entry_of(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": new_id("call_"), "type": "function", "function": function}
