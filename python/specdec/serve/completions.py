"""`/v1/completions`: texts that continue a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.models.score import TopLogProbs
from specdec.models.tokenizer import StreamDecoder
from specdec.serve.choices import Choice, Delta, piece_of
from specdec.serve.logprobs import ScoredToken, legacy_logprobs
from specdec.serve.request_fields import refused
from specdec.serve.schemas import CompletionFields
from specdec.serve.service import Service
from specdec.serve.text_request import ChoicesRequest, check_prompt_size


class CompletionRequest(ChoicesRequest):
    """A request for completions, as `TextRequest`."""

    schema = CompletionFields
    prefix = "cmpl-"
    limit_fields = ("max_tokens",)
    default_limit = 16
    kind = chunk_kind = "text_completion"

    @property
    def alone(self) -> bool:
        """Whether the prompt alone is wanted, and no new text."""
        return bool(self.options["max_new_tokens"] == 0)

    def read_n_top(self) -> int | None:
        """See `TextRequest.read_n_top`."""
        n_top: int | None = self.fields.logprobs
        return n_top

    def read_prompts(self) -> list[dict[str, Any]]:
        """See `TextRequest.read_prompts`."""
        prompts, n, most = self.fields.prompt, self.fields.n, self.service.limits.n_texts
        for prompt in prompts:
            if isinstance(prompt, str):
                check_prompt_size({"prompt": prompt}, self.service)
        if (n_texts := len(prompts) * n) > most:
            message = f"{len(prompts)} prompts with n = {n} are {n_texts} texts; expected at most {most}"
            raise refused("n", message)
        options = dict(self.options)
        seed = options.pop("seed")
        if self.fields.echo:
            options["prompt_logprobs"] = self.n_top
        return [
            {
                **options,
                "prompt": prompt,
                "n": n,
                "seed": None if seed is None else [(seed, i * n + sample) for sample in range(n)],
            }
            for i, prompt in enumerate(prompts)
        ]

    def scored_prompts(self) -> dict[str, Any]:
        """Return the answer where no new text is wanted: the prompts, and their log-probabilities.

        Raises
        ------
        InputError
        """
        service, choices, n_tokens = self.service, [], 0
        for i, prompt in enumerate(self.fields.prompt):
            ids = service.target.check_ids(prompt, minimum=1).tolist()
            n_tokens += len(ids)
            text, scored = self._echoed(i, ids), []
            if self.n_top is not None:
                score = service.engine.score(ids, self.n_top, self.adapter)
                scored = _scored_prompt(service, ids, score.log_probs.tolist(), score.top_logprobs)
            for sample in range(self.fields.n):
                index = i * self.fields.n + sample
                choices.append(self._choice(index, text, scored, Delta(finish_reason="length")))
        usage = {"prompt_tokens": n_tokens, "completion_tokens": 0, "total_tokens": n_tokens}
        return {**self.answer(self.kind, choices), "usage": usage}

    def _echoed(self, prompt: int, ids: Sequence[int]) -> str:
        """The text of a prompt."""
        given = self.fields.prompt[prompt]
        return given if isinstance(given, str) else self.service.tokenizer.decode(ids)

    def start(self, generations: Sequence[Generation]) -> None:
        """See `TextRequest.start`."""
        self._before = [
            self._echoed(i, one.prompt_ids) if self.fields.echo else "" for i, one in enumerate(generations)
        ]
        super().start(generations)

    def make_choice(self, prompt: int) -> Choice:
        """See `ChoicesRequest.make_choice`."""
        return self.choice(self.generations[prompt], own_text=False, begin=len(self._before[prompt]))

    def whole(self, results: Sequence[Sequence[Result]]) -> dict[str, Any]:
        """See `TextRequest.whole`."""
        choices = []
        for i, (generation, samples) in enumerate(zip(self.generations, results, strict=True)):
            for sample, result in enumerate(samples):
                scored = []
                if self.fields.echo and result.prompt_logprobs is not None:
                    log_probs, top = result.prompt_logprobs.tolist(), result.prompt_top_logprobs
                    scored = _scored_prompt(self.service, generation.prompt_ids, log_probs, top)
                index = i * self.fields.n + sample
                delta = self.choices[index].feed(piece_of(sample, result))
                choices.append(
                    self._choice(index, self._before[i] + delta.text, scored + delta.scored, delta)
                )
        return self.answer(self.kind, choices, self.usage(results))

    def begin(self) -> list[bytes]:
        """See `TextRequest.begin`."""
        n = self.fields.n
        return [
            self.chunk(self._choice(i * n + sample, before, [], Delta()))
            for i, before in enumerate(self._before)
            for sample in range(n)
            if before
        ]

    def piece(self, prompt: int, piece: Piece) -> list[bytes]:
        """See `TextRequest.piece`."""
        index = prompt * self.fields.n + piece.index
        delta = self.choices[index].feed(piece)
        if not (delta.said or delta.scored or delta.finish_reason):
            return []
        return [self.chunk(self._choice(index, delta.text, delta.scored, delta))]

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


def _scored_prompt(
    service: Service, ids: Sequence[int], log_probs: list[float], top: TopLogProbs | None
) -> list[ScoredToken]:
    """The tokens of a prompt with the log-probabilities of all but the first."""
    decoder, found, begin = StreamDecoder(service.tokenizer), [], 0
    for i, token in enumerate(ids):
        of_token = None if i == 0 else log_probs[i - 1]
        found.append((begin, token, of_token, list(top[i - 1]) if i and top else []))
        begin += len(decoder.feed([token]))
    return found
