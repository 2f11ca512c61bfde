"""What an answer says of its cost: tokens, times, and how well was guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.decoding.engine import Generation
from specdec.decoding.result import Result

__all__ = ["Usage"]


class Usage:
    """The figures of a request whose texts have all ended.

    Parameters
    ----------
    generations : sequence of Generation
        One for each prompt.
    results : sequence of list of Result
        Of each of them its samples.
    n_reasoning : int
        New tokens that are reasoning.
    """

    def __init__(
        self, generations: Sequence[Generation], results: Sequence[Sequence[Result]], n_reasoning: int = 0
    ) -> None:
        self._generations = generations
        self._results = [result for samples in results for result in samples]
        self._n_prompt = sum(len(generation.prompt_ids) for generation in generations)
        self._n_cached = sum(generation.n_cached_tokens or 0 for generation in generations)
        self._n_reasoning = n_reasoning
        self._n_new = sum(len(result.tokens) for result in self._results)

    def _prediction(self) -> tuple[int, int]:
        uses = [one.prediction for one in self._generations if one.prediction is not None]
        return sum(use.n_accepted for use in uses), sum(use.n_rejected for use in uses)

    def completion(self) -> dict[str, Any]:
        """`usage` of completions and chat completions."""
        accepted, rejected = self._prediction()
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": self._n_new,
            "total_tokens": self._n_prompt + self._n_new,
            "prompt_tokens_details": {"cached_tokens": self._n_cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            }
            | ({"reasoning_tokens": self._n_reasoning} if self._n_reasoning else {}),
        }

    def response(self) -> dict[str, Any]:
        """`usage` of responses."""
        return {
            "input_tokens": self._n_prompt,
            "input_tokens_details": {"cached_tokens": self._n_cached, "cache_write_tokens": 0},
            "output_tokens": self._n_new,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning},
            "total_tokens": self._n_prompt + self._n_new,
        }

    def timings(self) -> dict[str, Any]:
        """`timings` as llama.cpp gives them: milliseconds and rates of prompts and of new tokens."""
        times = [generation.times for generation in self._generations]
        begun = [time.started for time in times if time.started is not None]
        first = [time.first_token for time in times if time.first_token is not None]
        ended = [time.ended for time in times if time.ended is not None]
        prompt_ms = 1e3 * (max(first) - min(begun)) if begun and first else 0.0
        new_ms = 1e3 * (max(ended) - min(first)) if first and ended else 0.0
        n_read = self._n_prompt - self._n_cached
        return {
            "cache_n": self._n_cached,
            "prompt_n": n_read,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / max(n_read, 1),
            "prompt_per_second": 1e3 * n_read / prompt_ms if prompt_ms else 0.0,
            "predicted_n": self._n_new,
            "predicted_ms": new_ms,
            "predicted_per_token_ms": new_ms / max(self._n_new, 1),
            "predicted_per_second": 1e3 * self._n_new / new_ms if new_ms else 0.0,
            "draft_n": sum(result.trace.n_drafted for result in self._results),
            "draft_n_accepted": sum(result.trace.n_accepted for result in self._results),
        }

    def metrics(self) -> dict[str, Any]:
        """`metrics` as vLLM gives them, of the rounds with guesses; of a tree its depth counts."""
        rounds = [
            round_ for result in self._results for round_ in result.trace.rounds if round_.n_drafted > 0
        ]
        n_drafted = sum(round_.n_drafted for round_ in rounds)
        n_accepted = sum(round_.n_accepted for round_ in rounds)
        deepest = max((round_.depth for round_ in rounds), default=0)
        histogram = [0] * (deepest + 1)
        for round_ in rounds:
            histogram[round_.n_accepted] += 1
        return {
            "speculative_decoding": {
                "mean_acceptance_length": 1.0 + n_accepted / len(rounds) if rounds else 1.0,
                "draft_acceptance_rate": n_accepted / n_drafted if n_drafted else 0.0,
                "acceptance_histogram": histogram if rounds else [],
                "num_spec_steps": len(rounds),
                "num_accepted_draft_tokens": n_accepted,
                "num_draft_tokens": n_drafted,
                "num_spec_tokens": deepest,
            }
        }

    def figures(self) -> dict[str, Any]:
        """`timings` and `metrics` of an answer."""
        return {"timings": self.timings(), "metrics": self.metrics()}
