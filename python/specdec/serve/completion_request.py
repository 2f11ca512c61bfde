"""`/v1/completions`: texts that go on with a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdec.checks import as_integer
from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import shown
from specdec.models.score import Score
from specdec.models.tokenizer import StreamDecoder
from specdec.serve.choice_text import ChoiceText, Delta, piece_of
from specdec.serve.choices_answer import ChunkWriter, choices_answer
from specdec.serve.event_stream import EventWriter
from specdec.serve.given_fields import GivenFields
from specdec.serve.service import Service
from specdec.serve.text_fields import check_prompt_size
from specdec.serve.text_request import TextRequest
from specdec.serve.token_texts import ScoredToken, legacy_logprobs
from specdec.serve.usage import Usage

__all__ = ["CompletionRequest"]

_KIND: Final = "text_completion"
"""What the API calls an answer, and a chunk of one."""


class CompletionRequest(TextRequest):
    """A request for completions, as `TextRequest`.

    Attributes
    ----------
    prompts : list of str and list of int
    echo : bool
        Whether the prompt stands before the text.
    alone : bool
        Whether the prompt alone is wanted.
    """

    prefix = "cmpl-"
    limit_names = ("max_tokens",)
    default_limit = 16

    def read_n_top(self, fields: GivenFields, most: int) -> int | None:
        """See `TextRequest.read_n_top`."""
        return fields.integer("logprobs", 0, most)

    def read_least(self, fields: GivenFields) -> int:
        """See `TextRequest.read_least`."""
        self.echo = fields.flag("echo")
        return 0 if self.echo else 1

    def read_texts(self, fields: GivenFields, form: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `TextRequest.read_texts`."""
        self.prompts = _prompts(fields, self.service)
        for prompt in self.prompts:
            if isinstance(prompt, str):
                check_prompt_size(fields, {"prompt": prompt}, self.service)
        n, n_prompts, most = self.fields.n, len(self.prompts), self.service.limits.n_texts
        if n_prompts * n > most:
            raise fields.refusal(
                "n",
                f"{n_prompts} prompts with n = {n} are {n_prompts * n} texts; expected at most {most}",
            )
        if self.echo and self.n_top is not None and self.fields.stream:
            raise fields.refusal(
                "echo",
                "echo, logprobs and stream are all given; expected stream without one of the others",
                "unsupported_parameter",
            )
        options = self.options_with(form)
        self.alone = options["max_new_tokens"] == 0
        if self.alone and self.fields.stream:
            raise fields.refusal("max_tokens", "max_tokens is 0 with stream; expected at least 1")
        if self.echo:
            options["prompt_logprobs"] = self.n_top
        seed = options.pop("seed")
        return [
            {
                **options,
                "prompt": prompt,
                "n": n,
                "seed": None if seed is None else [(seed, i * n + sample) for sample in range(n)],
            }
            for i, prompt in enumerate(self.prompts)
        ]

    def refuse_others(self, fields: GivenFields) -> None:
        """See `TextRequest.refuse_others`."""
        fields.only("best_of", self.fields.n, why="all texts are returned")
        fields.only("suffix", "", why="the models served here continue texts; they fill no gaps")
        fields.only("add_special_tokens", True, why="a prompt given as token ids has none added")

    def scored_prompts(self) -> dict[str, Any]:
        """The answer where no new text is wanted: the prompts, and what the model says of them.

        Raises
        ------
        InputError
        """
        service, choices, n_tokens = self.service, [], 0
        for i, prompt in enumerate(self.prompts):
            ids = service.target.check_ids(prompt, minimum=1).tolist()
            n_tokens += len(ids)
            text = self._echoed(prompt, ids)
            scored = []
            if self.n_top is not None:
                score = service.engine.score(ids, self.n_top, self.adapter)
                scored = _scored_prompt(service, ids, score)
            for sample in range(self.fields.n):
                index = i * self.fields.n + sample
                choices.append(self._choice(index, text, scored, Delta(finish_reason="length")))
        usage = {"prompt_tokens": n_tokens, "completion_tokens": 0, "total_tokens": n_tokens}
        return {**choices_answer(self, _KIND, choices), "usage": usage}

    def whole(self, generations: Sequence[Generation], results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """The answer when all texts have ended."""
        choices = []
        for i, (generation, samples) in enumerate(zip(generations, results, strict=True)):
            for sample, result in enumerate(samples):
                before, scored = "", []
                if self.echo:
                    before = self._echoed(self.prompts[i], generation.prompt_ids)
                    if result.prompt_logprobs is not None:
                        scored = _scored_prompt(
                            self.service,
                            generation.prompt_ids,
                            (result.prompt_logprobs.tolist(), result.prompt_top_logprobs),
                        )
                delta = self._text(generation, len(before)).feed(piece_of(sample, result))
                index = i * self.fields.n + sample
                choices.append(self._choice(index, before + delta.text, scored + delta.scored, delta))
        return choices_answer(self, _KIND, choices, Usage(generations, results))

    def writer(self, generations: Sequence[Generation]) -> EventWriter:
        """What writes the answer as a stream."""
        return _CompletionWriter(self, generations)

    def _echoed(self, prompt: Any, ids: Sequence[int]) -> str:
        return prompt if isinstance(prompt, str) else self.service.tokenizer.decode(ids)

    def _text(self, generation: Generation, begin: int = 0) -> ChoiceText:
        return self.choice_text(generation, own_text=False, begin=begin)

    def _choice(self, index: int, text: str, scored: list[ScoredToken], delta: Delta) -> dict[str, Any]:
        logprobs = None
        if self.n_top is not None:
            logprobs = legacy_logprobs(self.service.texts, scored, self.n_top)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop,
        }


class _CompletionWriter(ChunkWriter):
    """The events of completions."""

    _request: CompletionRequest

    def __init__(self, request: CompletionRequest, generations: Sequence[Generation]) -> None:
        super().__init__(request, _KIND, generations)
        self._texts: dict[int, ChoiceText] = {}

    def begin(self) -> list[bytes]:
        request, found = self._request, []
        for i, generation in enumerate(self._generations):
            before = request._echoed(request.prompts[i], generation.prompt_ids) if request.echo else ""
            for sample in range(request.fields.n):
                index = i * request.fields.n + sample
                self._texts[index] = request._text(generation, len(before))
                if before:
                    found.append(self.chunk(request._choice(index, before, [], Delta())))
        return found

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        request = self._request
        index = prompt * request.fields.n + piece.index
        delta = self._texts[index].feed(piece)
        if not (delta.said or delta.scored or delta.finish_reason):
            return []
        return [self.chunk(request._choice(index, delta.text, delta.scored, delta))]


def _prompts(fields: GivenFields, service: Service) -> list[Any]:
    """The prompts: texts, or lists of token ids."""
    value = fields.required("prompt", "a string, token ids, or a list of these")
    n_vocab = service.target.config.n_vocab
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise fields.wrong("prompt", "a string, token ids, or a list of these")
    if as_integer(value[0]) is not None:
        return [fields.token_ids("prompt", value, n_vocab)]
    if len(value) > service.limits.n_texts:
        raise fields.refusal(
            "prompt", f"prompt has {len(value)} items; expected at most {service.limits.n_texts}"
        )
    found: list[Any] = []
    for i, item in enumerate(value):
        if isinstance(item, list):
            found.append(fields.token_ids("prompt", item, n_vocab, f"prompt[{i}]"))
        elif isinstance(item, str):
            found.append(item)
        else:
            raise fields.refusal("prompt", f"prompt[{i}] is {shown(item)}; expected a string or token ids")
    return found


def _scored_prompt(
    service: Service, ids: Sequence[int], score: Score | tuple[list[float], Any]
) -> list[ScoredToken]:
    """The tokens of a prompt with what the model says of each but the first."""
    if isinstance(score, tuple):
        log_probs, top = score
    else:
        log_probs, top = score.log_probs.tolist(), score.top_logprobs
    decoder, found, begin = StreamDecoder(service.tokenizer), [], 0
    for i, token in enumerate(ids):
        of_token = None if i == 0 else log_probs[i - 1]
        found.append((begin, token, of_token, list(top[i - 1]) if i and top else []))
        begin += len(decoder.feed([token]))
    return found
